import json

import numpy as np
import pytest
import yaml
from scipy.stats import norm

from caloscale import spec
from caloscale.errors import ConfigurationError
from caloscale.physics.gates import decide, exceeding_sigmas, holm
from caloscale.physics.quantities import of_separation
from caloscale.physics.resampling import Sample, draw_resampling, separate
from caloscale.physics.result import Counts, Difference, ObservableResult, QuantityResult
from caloscale.spec import Gate
from caloscale.spec.validation import MINIMUM_GATES

SHOWERS = Counts(reference=400, generated=5000, training=0, untrained=0, empty=0, unusable=0)


def quantity(*values: tuple[float, float], unit: str = "%") -> QuantityResult:
    differences = tuple(
        Difference(where=f"range {k}", value=value, uncertainty=sigma) for k, (value, sigma) in enumerate(values)
    )
    return QuantityResult(title="Mean response", unit=unit, differences=differences)


def judge_alone(gate: Gate, *differences: Difference, showers: Counts = SHOWERS):
    found = {gate.quantity: QuantityResult(title="Mean response", unit="%", differences=differences)}
    (result,), decision, _ = decide([gate], found, showers, [])
    assert (decision == "rejected") == (result.decision == "rejected")
    return result


def decide_one(tolerance: float, *values: tuple[float, float]):
    return judge_alone(Gate(quantity="response", tolerance=tolerance), *quantity(*values).differences)


@pytest.mark.parametrize(
    ("value", "decision"),
    [
        (1.0, "accepted"),
        (-1.3, "accepted"),
        (1.4, "undecided"),
        (-2.5, "undecided"),
        (2.7, "rejected"),
        (-9, "rejected"),
    ],
)
def test_the_interval_decides(value, decision):
    """Tolerance 2, uncertainty .4: accepted below 2 - 1.645 x .4 = 1.34, rejected above 2 + 1.645 x .4 = 2.66."""
    result = decide_one(2, (value, 0.4))
    assert result.decision == decision
    assert result.low == pytest.approx(max(0, abs(value) - 1.645 * 0.4), abs=1e-3)
    assert result.high == pytest.approx(abs(value) + 1.645 * 0.4, abs=1e-3)


def test_the_worst_range_of_energy_decides():
    assert decide_one(2, (0.1, 0.1), (0.1, 0.1), (3.5, 0.4)).where == "range 2"
    # A range that is undecided keeps the gate open though another is farther away.
    assert decide_one(2, (1.2, 0.1), (0.5, 2.0)).decision == "undecided"
    # Three ranges: the probability is three times as high that one of them exceeds by chance.
    assert decide_one(2, (2.7, 0.4)).decision == "rejected"
    assert decide_one(2, (2.7, 0.4), (0, 0.4), (0, 0.4)).decision == "undecided"


def test_holm_is_that_of_its_definition():
    assert holm([0.01, 0.04, 0.03, 0.005], 0.05) == [True, False, False, True]
    assert holm([0.02, 0.9], 0.05) == [True, False]
    assert holm([0.04, 0.04], 0.05) == [False, False]
    assert holm([], 0.05) == []


def test_more_gates_need_more_evidence_to_reject():
    names = ("response", "linearity", "resolution", "depthSpread", "hits")
    gates = [Gate(quantity=name, tolerance=2) for name in names]
    found = {name: quantity((2.8 if name == "hits" else 0.1, 0.4)) for name in names}
    assert decide(gates[-1:], found, SHOWERS, [])[1] == "rejected"
    assert decide(gates, found, SHOWERS, [])[0][-1].decision == "undecided"
    found["hits"] = quantity((3.2, 0.4))
    results, decision, reasons = decide(gates, found, SHOWERS, [])
    assert decision == "rejected" and reasons == (results[-1].statement,)


def test_error_rates_are_those_that_are_stated():
    """A difference at the tolerance is accepted wrongly, and rejected wrongly, in 5% of the experiments each."""
    values = np.random.default_rng(1).normal(2, 0.4, 4000)
    decisions = [decide_one(2, (float(v), 0.4)).decision for v in values]
    for decision in ("accepted", "rejected"):
        assert decisions.count(decision) / 4000 == pytest.approx(0.05, abs=0.011)


@pytest.mark.parametrize("true", [0.5, 3.2])
def test_the_further_showers_would_decide(true):
    """With as many more Monte Carlo showers the interval just reaches the tolerance."""
    result = decide_one(2, (true, 1.2))
    assert result.decision == "undecided" and result.further_showers > 0
    assert f"{result.further_showers} more held-out Monte Carlo showers are needed" in result.statement

    def scaled(further: int) -> float:
        old, new = (1 / n + 1 / SHOWERS.generated for n in (SHOWERS.reference, SHOWERS.reference + further))
        return 1.2 * np.sqrt(new / old)

    assert decide_one(2, (true, scaled(result.further_showers + 1))).decision != "undecided"
    assert decide_one(2, (true, scaled(result.further_showers - 10))).decision == "undecided"


def test_the_further_showers_would_reject_in_spite_of_the_other_gates():
    """Of four gates one exceeds its tolerance: it needs the evidence of Holm's correction, not that of one gate."""
    gates = [Gate(quantity=name, tolerance=2) for name in ("response", "hits", "resolution", "depthSpread")]

    def decided(sigma: float):
        met = {gate.quantity: quantity((0.1, 0.2)) for gate in gates}
        return decide(gates, met | {"response": quantity((3.2, sigma))}, SHOWERS, [])[0][0]

    result = decided(0.6)
    assert result.decision == "undecided"
    old, exact, less = (
        1 / (SHOWERS.reference + more) + 1 / SHOWERS.generated
        for more in (0, result.further_showers + 1, result.further_showers - 10)
    )
    assert decided(0.6 * np.sqrt(exact / old)).decision == "rejected"
    assert decided(0.6 * np.sqrt(less / old)).decision == "undecided"


def test_without_a_value_or_an_uncertainty_nothing_is_measured():
    gate = Gate(quantity="response", tolerance=2)
    for difference in (Difference(where="", value=5.0), Difference(where="", uncertainty=1.0)):
        assert exceeding_sigmas(gate, difference) is None
    for where, text in (("", "because"), ("low", "at low: because")):
        result = judge_alone(gate, Difference(where=where, value=5.0, reason="because"))
        assert (result.decision, result.reason) == ("undecided", text)
    differences = Difference(where="low", value=1.0, uncertainty=0.1), Difference(where="high", reason="nothing there")
    result = judge_alone(gate, *differences)
    assert (result.decision, result.where, result.further_showers) == ("undecided", "low", None)
    assert result.reason == "at high: nothing there"


def test_a_difference_at_the_tolerance_has_no_number_of_showers():
    result = decide_one(2, (2.0, 0.4))
    assert result.further_showers is None and "too near to the tolerance" in result.statement


def test_generated_showers_that_lack_are_named():
    """Held-out ones alone would not decide: with both numbers the interval just reaches the tolerance."""
    result = decide_one(2, (1.8, 0.9))
    each = result.needed_showers[0]
    assert result.reason is None and f"undecided: {each} generated showers (validation.showers)" in result.statement
    old = 1 / SHOWERS.reference + 1 / SHOWERS.generated
    assert decide_one(2, (1.8, 0.9 * np.sqrt(2 / (each + 1) / old))).decision == "accepted"


def test_separations_and_aucs_have_one_bad_side_and_an_auc_at_another_size_does_not_decide():
    below = Difference(where="", value=-0.05, uncertainty=0.01)
    assert judge_alone(Gate(quantity="hitsSeparation", tolerance=0.02), below).decision == "accepted"
    curve = [
        Difference(where=f"{n} showers of each kind", value=v, uncertainty=0.01) for n, v in ((250, 0.7), (500, 0.9))
    ]
    auc, elsewhere = (
        judge_alone(Gate(quantity="classifierAuc", tolerance=0.8, showers=n), *curve) for n in (500, 1000)
    )
    assert (auc.decision, auc.value, elsewhere.decision) == ("rejected", 0.9, "undecided")
    assert "on 1000 of each kind: it has 250, 500" in elsewhere.statement


@pytest.mark.parametrize(
    ("value", "decision"),
    [(30, "undecided"), (13.9, "accepted"), (48.7, "rejected"), (-22, "undecided"), (-45, "rejected")],
)
def test_ratios_are_compared_on_their_logarithm(value, decision):
    """Tolerance 30%, uncertainty 8% of the ratio: accepted below 1.3 / exp(1.645 x .08) = 1.140 and above .7 x
    exp(.1316) = .798, rejected above 1.3 x exp(.1316) = 1.483 and below .7 / exp(.1316) = .614."""
    sigma = 0.08 * (100 + value)
    difference = Difference(where="", scale="ratio", value=value, uncertainty=sigma)
    result = judge_alone(Gate(quantity="response", tolerance=30), difference)
    assert result.decision == decision
    ends = [abs((100 + value) * np.exp(side * norm.ppf(0.95) * 0.08) - 100) for side in (-1, 1)]
    assert (result.low, result.high) == pytest.approx(sorted(ends) if abs(value) > 15 else (result.low, max(ends)))


def test_nothing_at_all_is_beyond_a_tolerance_without_an_uncertainty_and_no_difference_is_not_measured():
    hits, auc = Gate(quantity="hits", tolerance=20), Gate(quantity="layerAuc", tolerance=0.8, showers=500)
    nothing, equal = (Difference(where="", scale="ratio", value=value, uncertainty=0.0) for value in (-100.0, 0.0))
    assert judge_alone(hits, nothing).decision == "rejected"
    assert judge_alone(auc, Difference(where="500 showers", value=1.0, uncertainty=0.0)).decision == "rejected"
    same = judge_alone(hits, equal)
    assert same.decision == "undecided" and "not measurable here: the uncertainty is zero" in same.statement


def test_a_separation_at_the_tolerance_is_accepted_as_rarely_as_stated():
    """Separations of drawn showers with a true value at the tolerance: ten equal bins, of which five have 10% more."""
    distorted = np.repeat([0.11, 0.09], 5)
    true = float(np.sum((distorted - 0.1) ** 2 / (distorted + 0.1)) / 2)
    gate = Gate(quantity="hitsSeparation", tolerance=true)
    accepted = 0
    for seed in range(250):
        rng = np.random.default_rng([seed, 7])
        reference, generated = (
            rng.multinomial(1, share, size=size).astype(float)[:, None, :]
            for share, size in ((np.full(10, 0.1), 100), (distorted, 600))
        )
        weights, halves = draw_resampling({"a": rng.uniform(size=(100, 2)), "b": rng.uniform(size=(600, 2))}, 40, seed)
        samples = [Sample(one, times) for one, times in zip((reference, generated), weights.values())]
        separation, _ = separate(samples[0], halves, {"generated": samples[1]})
        quantity = of_separation(ObservableResult(title="Hits", **separation.model_dump()))
        accepted += decide([gate], {"hitsSeparation": quantity}, SHOWERS, [])[0][0].decision == "accepted"
    assert 0 < accepted / 250 < 0.05 + 0.028  # two standard deviations of 250 draws


def test_no_gates_and_faults():
    results, decision, (reason,) = decide([], {}, SHOWERS, [])
    assert (results, decision) == ((), "not assessed") and all(name in reason for name in MINIMUM_GATES)
    assert decide([], {}, SHOWERS, ["a fault"])[1:] == ("rejected", ("a fault",))


@pytest.mark.parametrize(
    ("value", "complete", "without_one"),
    [(0.6, "accepted", "not assessed"), (0.85, "undecided", "not assessed"), (1.2, "rejected", "rejected")],
)
@pytest.mark.parametrize("missing", MINIMUM_GATES)
def test_without_a_gate_of_the_minimum_set_no_model_is_accepted(missing, value, complete, without_one):
    """All but the decisive gate are met; the one that is missing is named."""
    gates = [
        Gate(quantity=name, tolerance=0.9, showers=1000 if name.endswith("Auc") else None) for name in MINIMUM_GATES
    ]
    decisive = next(name for name in MINIMUM_GATES if name != missing)
    found = {
        name: QuantityResult(
            title=name,
            unit="",
            differences=(Difference(where="1000 showers", value=value if name == decisive else 0.6, uncertainty=0.05),),
        )
        for name in MINIMUM_GATES
    }
    assert decide(gates, found, SHOWERS, [])[1] == complete
    _, decision, reasons = decide([gate for gate in gates if gate.quantity != missing], found, SHOWERS, [])
    assert decision == without_one
    assert decision == "rejected" or f"no gate on {missing} (validation.gates)" in reasons[0]


@pytest.mark.parametrize(
    ("gate", "text"),
    [
        ("{quantity: cellSpectrumSeparation, tolerance: 1}", "could not fail"),
        ("{quantity: response, tolerance: 100}", "could not fail"),
        ("{quantity: classifierAuc, tolerance: 1, showers: 500}", "could not fail"),
        ("{quantity: classifierAuc, tolerance: 0.5, showers: 500}", "could not be passed"),
        ("{quantity: showerMaximum, tolerance: 24}", "could not fail"),
        ("{quantity: classifierAuc, tolerance: 0.9}", "depends on the number of showers"),
        ("{quantity: hits, tolerance: 5, showers: 500}", "depends on the number of showers"),
        ("{quantity: hits, tolerance: 5}, {quantity: hits, tolerance: 6}", "two gates on hits"),
        ("{quantity: hits, tolerance: .inf}", "finite"),
        ("{quantity: hits, maxFloors: 5}", "unknown key"),
        ("{quantity: hits, tolerance: null}", "a gate on hits without a tolerance"),
        ("{quantity: hits, tolerance: 5, drop: true}", "a gate on hits that is dropped has a tolerance"),
        ("{quantity: sparsitySeparation, drop: true}", "the preset compact has no gate on sparsitySeparation"),
        ("{quantity: classifierAuc, showers: 500, drop: true}", "no gate on classifierAuc .500 training showers."),
        ("", "an empty list drops no gate"),
    ],
)
def test_a_gate_that_decides_nothing_is_refused(gate, text):
    with pytest.raises(ConfigurationError, match=text) as error:
        spec.load_run(preset="compact", overrides=[f"validation.gates=[{gate}]"])
    assert error.value.exit_code == 2 and error.value.remedy


@pytest.mark.parametrize("preset", spec.PRESETS)
def test_each_preset_has_gates_that_a_faithful_sample_can_pass(preset):
    """With the statistics of a run a faithful generator must be accepted in principle: tolerances are above the half
    width of the intervals of a few hundred showers."""
    gates = {gate.quantity: gate for gate in spec.load_run(preset=preset).validation.gates}
    assert gates.keys() >= {*MINIMUM_GATES}
    in_a_range = 100
    assert gates["resolution"].tolerance > 100 * norm.ppf(0.95) / np.sqrt(2 * in_a_range)
    assert gates["response"].tolerance > 100 * norm.ppf(0.95) * 0.07 / np.sqrt(in_a_range)


def test_gates_merge_over_those_of_the_preset(tmp_path):
    """By quantity, of the AUC by its number of showers too, from a file, an override, a custom resource and a pipeline
    parameter alike; what is dropped is dropped by name and stays so where the resolved configuration is read again."""
    preset = {gate.name: gate for gate in spec.load_run(preset="compact").validation.gates}
    own = [{"quantity": "response", "tolerance": 1.5}, {"quantity": "diversity", "drop": True}]
    raw = {"model": {"preset": "compact"}, "validation": {"gates": own}}
    text = yaml.safe_dump(raw)
    (tmp_path / "run.yaml").write_text(text)
    of_file = spec.load_run(tmp_path / "run.yaml")
    override = f"validation.gates={json.dumps(own)}"
    for run in (of_file, spec.load_run(preset="compact", overrides=[override]), spec.build_any_run(raw)):
        assert run == of_file == spec.parse_run(text) == spec.parse_run(spec.dump_run(run))
    judging = {gate.name: gate for gate in of_file.validation.judging}
    assert judging | {"diversity": preset["diversity"]} == preset | {
        "response": Gate(quantity="response", tolerance=1.5)
    }
    assert "diversity" not in judging and [gate.name for gate in of_file.validation.dropped] == ["diversity"]

    more = "validation.gates=[{quantity: classifierAuc, tolerance: 0.8, showers: 500}, {quantity: hits, tolerance: 9}]"
    again = "validation.gates=[{quantity: diversity, tolerance: 30}]"
    found = {
        g.name: g.tolerance for g in spec.load_run(tmp_path / "run.yaml", overrides=[more, again]).validation.gates
    }
    assert len(found) == len(preset) + 1 and (found["response"], found["hits"], found["diversity"]) == (1.5, 9, 30)
    assert found["classifierAuc (500 training showers)"] == 0.8 and "classifierAuc (1000 training showers)" in found


def test_a_problem_of_a_gate_is_found_where_it_was_written(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "validation:\n  gates:\n  - {quantity: hits, tolerance: 3}\n  - {quantity: response, tolerance: x}\n"
    )
    with pytest.raises(ConfigurationError) as error:
        spec.load_run(file, overrides=["validation.gates=[{quantity: depthSpread, tolerance: 3}]"])
    assert (error.value.file, error.value.field) == (f"{file}:4", "validation.gates.1.tolerance")


def test_the_remedy_for_a_calorimeter_of_one_layer_is_one():
    """No tolerance of a shower maximum could fail there."""
    one_layer = ("data.geometry.cells=[51, 51, 1]", "data.geometry.layers=[{count: 1, absorberMm: 30}]")
    with pytest.raises(ConfigurationError, match="could not fail: in 1 layers") as error:
        spec.load_run(preset="compact", overrides=one_layer)
    change = error.value.remedy.removeprefix("drop it: ")
    run = spec.load_run(preset="compact", overrides=[*one_layer, change])
    assert "showerMaximum" not in {gate.quantity for gate in run.validation.judging}
