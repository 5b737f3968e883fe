"""Sections of a report about the physics: verdict, numbers in ranges of energy, distances, figures."""

from collections.abc import Callable, Sequence
from functools import partial

from caloscale.physics import binning, quantities
from caloscale.physics.result import Evaluation, Resolution
from caloscale.physics.worth import Amplification, Worth, count
from caloscale.report import energy_figures, shower_figures
from caloscale.report.blocks import Cell, Fact, Facts, Figure, Notice, Section, Statement, Table, Text, Tone, markdown
from caloscale.report.drawing import Drawing
from caloscale.report.figure_data import FigureData
from caloscale.report.numbers import ABSENT, measured, percent, plain, signed, with_uncertainty

FIGURES: tuple[Callable[[Evaluation, FigureData], Drawing | None], ...] = (
    shower_figures.shower_and_profile, shower_figures.longitudinal_profile,
    shower_figures.transverse_profiles, shower_figures.cell_spectrum, energy_figures.response,
    energy_figures.resolution, energy_figures.maximum_and_angle, shower_figures.distributions, shower_figures.moments,
    shower_figures.correlations, energy_figures.classifier_and_regression, shower_figures.mean_showers,
    shower_figures.example_showers,
)  # fmt: skip
"""All figures of a comparison, in the order of a report."""


def physics_drawings(evaluation: Evaluation, data: FigureData) -> list[Callable[[], Drawing | None]]:
    """Functions that draw the figures of a comparison, for `save_figures`."""
    return [partial(draw, evaluation, data) for draw in FIGURES]


def verdict_section(
    evaluation: Evaluation | None, worth: Worth | None = None, figures: Sequence[Figure] = ()
) -> Section:
    """The decision, what generated showers are worth, the gates, and the numbers and figures that are looked at first.

    worth: measured with more showers or runs than the evaluation; absent: as the evaluation found it.
    """
    if evaluation is None:
        text = "The run ended before generated showers were compared with Monte Carlo."
        return Section("Verdict", (Statement("not assessed", text, "open"),))
    return Section(
        "Verdict",
        (
            statement(evaluation),
            worth_text(worth or evaluation.worth),
            *figures,
            *(Notice(note) for note in evaluation.notes),
            *gate_tables(evaluation),
            *gate_notes(evaluation),
            Facts(tuple(physics_facts(evaluation))),
            Section("What generated showers are worth", worth_tables(worth or evaluation.worth)),
        ),
    )


def physics_section(evaluation: Evaluation, figures: Sequence[Figure]) -> Section:
    """Tables of observables, ranges of energy and distances, and all figures."""
    return Section(
        "Physics",
        (
            Text("All figures are in the folder figures/ next to this page, as PNG and PDF.", "pale"),
            observables_table(evaluation),
            ranges_table(evaluation),
            distances_table(evaluation),
            *figures,
        ),
    )


def verdict_markdown(evaluation: Evaluation) -> str:
    """Decision, worth, gates and observables as Markdown."""
    return markdown(
        statement(evaluation),
        worth_text(evaluation.worth),
        *gate_tables(evaluation),
        *gate_notes(evaluation),
        observables_table(evaluation),
    )


TONES: dict[str, Tone] = {"accepted": "good", "rejected": "bad", "undecided": "open", "not assessed": "open"}


def statement(evaluation: Evaluation) -> Statement:
    """The decision in one sentence; a generator that is worse than one that learnt nothing is called so first."""
    warnings = f"the generator is {' and '.join(evaluation.warnings)}; " if evaluation.warnings else ""
    if evaluation.decision == "accepted":
        text = f"all {len(evaluation.gates)} gates are met."
    else:
        text = "; ".join(evaluation.reasons) + "."
    return Statement(evaluation.decision, warnings + text, TONES[evaluation.decision])


def gate_tables(evaluation: Evaluation) -> list[Table]:
    """Each gate with its result; no table where there are no gates."""
    if not evaluation.gates:
        return []
    rows: list[tuple[str | Cell, ...]] = []
    for gate in evaluation.gates:
        unit = f" {gate.unit}" if gate.unit else ""
        size, interval = f"{plain(gate.value)}{unit}", f"{plain(gate.low)} to {plain(gate.high)}{unit}"
        if gate.where:
            size += f", {gate.where}"
        rows.append(
            (
                Cell(gate.title, link=definition(gate.quantity)),
                *((ABSENT, ABSENT) if gate.value is None else (size, interval)),
                f"{gate.tolerance:g}{unit}",
                ABSENT if gate.sigmas is None else f"{gate.sigmas:.1f} sigma",
                Cell(gate.decision, TONES[gate.decision]),
            )
        )
    note = (
        "Accepted: the interval lies below the tolerance, in every range of energy. Rejected: the difference exceeds "
        "the tolerance significantly (5%, Bonferroni over the ranges, Holm over the gates). Undecided: undecided with "
        "these showers. Evidence: standard deviations from no difference."
    )
    columns = ("gate", "difference", "90% interval", "tolerance", "evidence of a difference", "decision")
    return [Table(f"Gates: {shower_figures.count_showers(evaluation)}", columns, tuple(rows), note=note)]


def definition(name: str, kind: str = "gate") -> str:
    """Name of the cell of `definitions_section` that defines a gate's quantity, or an observable."""
    observable = name.removesuffix("Separation")
    return f"{kind}-{name}" if kind == "gate" and observable == name else f"observable-{observable}"


def definitions_section() -> Section:
    """What gates and observables are, for the links of the tables."""
    tables = []
    for kind, module in (("gate", quantities), ("observable", binning)):
        rows = [
            (Cell(module.TITLES[name], name=definition(name, kind)), Cell(text))
            for name, text in module.DEFINITIONS.items()
        ]
        tables.append(Table(f"{kind}s", (kind, "definition"), tuple(rows)))
    excess = "A separation is compared by its excess: the separation without what fluctuations add."
    return Section("Definitions", (*tables, Text(f"Generated over or minus Monte Carlo. {excess}", "pale")))


def gate_notes(evaluation: Evaluation) -> list[Text]:
    """Which gates are dropped, and what no gate limits."""
    notes = {"Dropped gates of the preset": evaluation.dropped, "Measured without a gate": evaluation.ungated}
    return [Text(f"{title}: {', '.join(names)}.") for title, names in notes.items() if names]


def worth_tables(worth: Worth) -> tuple[Table, ...]:
    """A table of the gated quantities; of all quantities where there is no gate, none where the showers are too few."""
    shown = worth.gated or worth.others
    if not shown:
        return ()
    learnt = any(one.training for one in shown)
    rows = tuple(
        (
            one.name,
            str(one.predicted or "needs two generators"),
            str(one.observed),
            *([str(one.training or "too few showers")] if learnt else []),
            str(one.worth),
            _dollars(one),
        )
        for one in shown
    )
    members = max(one.members for one in shown)
    generators = "1 generator" if members == 1 else f"{members} generators"
    names = f" ({', '.join(worth.runs)})" if worth.runs else ""
    table = Table(
        f"{_monte_carlo(worth)} showers that generated ones are worth",
        (
            "quantity",
            "n, predicted by the scatter",
            "n, observed",
            *(["n of the training showers"] if learnt else []),
            f"{worth.worth_of:,} generated are worth",
            "USD per effective shower",
        ),
        rows,
        note=f"n: size of the {_monte_carlo(worth)} sample whose statistical error equals the generators' systematic "
        "error. "
        + ("Of the training showers: as if they were generated. " if learnt else "")
        + "In brackets: 95% intervals. Worth: by the observed n. USD: the bills of all these runs over the worth. "
        f"Measured with {generators}{names}, {worth.generated:,} showers of each, and "
        f"{worth.reference:,} held-out {_monte_carlo(worth)} showers.",
    )
    return (table,)


def worth_text(worth: Worth) -> Text:
    """What generated showers are worth for the quantity with the least worth, and whether more of them buy anything."""
    one = worth.worst
    if one is None:
        return Text("There are too few showers to state what generated ones are worth.", "pale")
    made = "A million" if worth.worth_of == 1_000_000 else f"{worth.worth_of:,}"
    start, n = f"{made} generated showers are worth", one.observed
    kind = f"{_monte_carlo(worth)} showers for this quantity: {one.name}"
    if one.worth.value is None:
        return Text(
            f"{start} at least {count(one.worth.low)} {kind}. No systematic error is seen with the showers compared, "
            "so there is no upper bound, and whether more buy anything is open."
        )
    if n.high is not None and 10 * n.high <= worth.worth_of:
        more = "more buy nothing"
    elif worth.worth_of <= n.low:
        more = "more are worth more"
    else:
        more = "whether more buy anything is open"
    interval = f"95% interval {count(one.worth.low)} to {count(one.worth.high or worth.worth_of)}"
    return Text(f"{start} {count(one.worth.value)} {kind} ({interval}); {more}.")


def _dollars(one: Amplification) -> str:
    if one.usd_per_effective_shower is None:
        return "no bill"
    return f"{'at most ' if one.worth.value is None else ''}{one.usd_per_effective_shower:.2g}"


def _monte_carlo(worth: Worth) -> str:
    return "Geant4" if worth.source == "geant4" else "Monte Carlo"


def observables_table(evaluation: Evaluation) -> Table:
    """Each observable with its separation and what it is compared with."""
    rows: list[tuple[str | Cell, ...]] = []
    for name, result in evaluation.observables.items():
        separation = with_uncertainty(result.separation, result.uncertainty)
        rows.append(
            (
                Cell(result.title, link=definition(name, "observable")),
                f"{separation}: {result.reason}" if result.reason else separation,
                plain(result.expected_null),
                with_uncertainty(result.excess, result.excess_uncertainty),
                signed(result.excess_sigmas),
                plain(result.untrained),
                plain(result.baseline),
                signed(result.improvement_sigmas),
            )
        )
    return Table(
        f"Separation from Monte Carlo: {shower_figures.count_showers(evaluation)}",
        (
            "observable",
            "separation",
            "expected null",
            "excess",
            "evidence of a difference",
            "untrained network",
            "mean shower",
            "improvement over the baseline",
        ),
        tuple(rows),
        note="Separation power S = ½ Σ (h1 - h2)² / (h1 + h2) of histograms of unit sum: 0 equal, 1 disjoint; "
        f"uncertainties from {evaluation.bootstraps} bootstraps. Expected null: what two samples of one distribution, "
        "of the sizes compared, are expected to have, from random halves of the Monte Carlo showers. Excess: "
        "separation without what fluctuations add, which does not depend on the numbers of showers. Evidence: "
        "separation minus expected null, in standard deviations of the null. Mean shower: the baseline, which repeats "
        "the mean training shower times the energy, without fluctuations and without following the angle; its mean "
        "profiles are right by construction. Improvement over the baseline: its separation minus the generator's, in "
        "standard deviations.",
    )


def physics_facts(evaluation: Evaluation) -> list[Fact]:
    """The numbers that are looked at first."""
    facts = []
    layers = evaluation.largest_maximum_difference
    if layers is not None:
        each = "; ".join(measured(m.fitted_difference_layers) for m in evaluation.shower_maximum)
        facts.append(Fact("shower maximum, largest difference", f"{layers:.2f} layers", f"in the ranges: {each}"))
    deviation = evaluation.linearity.deviation
    if deviation.generated.value is not None:
        facts.append(Fact("non-linearity", percent(deviation.generated), f"Monte Carlo {percent(deviation.reference)}"))
    ratios = [r.ratio.value for r in evaluation.response if r.ratio.value is not None]
    if ratios:
        detail = "mean sum/E in the energy ranges"
        facts.append(Fact("response, ratio to Monte Carlo", f"{min(ratios):.3f} to {max(ratios):.3f}", detail))
    for title, result in (("plain sum", evaluation.resolution), ("layers weighted", evaluation.weighted_resolution)):
        facts += _worst_resolution(evaluation, title, result)
    if evaluation.classifier.value is not None:
        auc = evaluation.classifier
        detail = (
            f"trained on {auc.showers} showers of each kind, tested on {auc.test_reference} Monte Carlo and "
            f"{auc.test_generated} generated; extrapolated to infinitely many: {measured(auc.limit)}; null "
            f"{plain(auc.null)}, mean shower {plain(auc.baseline)}; 0.5: no difference found"
        )
        facts.append(Fact("classifier AUC", with_uncertainty(auc.value, auc.uncertainty), detail))
    return facts


def _worst_resolution(evaluation: Evaluation, title: str, result: Resolution) -> list[Fact]:
    """sigma/E in the range of energy where it differs most from Monte Carlo."""
    deviations = [
        (abs(one.ratio.value - 1), energy.label, one)
        for one, energy in zip(result.ranges, evaluation.energy_ranges)
        if one.ratio.value is not None
    ]
    if not deviations:
        return []
    _, label, worst = max(deviations, key=lambda one: one[0])
    detail = (
        f"where it differs most, {label}: {percent(worst.sigma.generated)} against {percent(worst.sigma.reference)}"
    )
    return [Fact(f"σ/E, ratio to Monte Carlo, {title}", measured(worst.ratio), detail)]  # noqa: RUF001


def ranges_table(evaluation: Evaluation) -> Table:
    """Three rows for each range of energy, and for each of several primaries: Monte Carlo, generator, their ratio."""
    parts = [
        (energy.label, (energy.reference, energy.generated), maximum, response, resolutions)
        for energy, maximum, response, *resolutions in zip(
            evaluation.energy_ranges,
            evaluation.shower_maximum,
            evaluation.response,
            evaluation.resolution.ranges,
            evaluation.weighted_resolution.ranges,
        )
    ]
    for each in evaluation.particles:
        resolutions = [each.resolution, each.weighted_resolution]
        counts = each.reference, each.generated
        parts.append((f"{each.particle}, all energies", counts, each.shower_maximum, each.response, resolutions))
    rows: list[tuple[str, ...]] = []
    for label, counts, maximum, response, resolutions in parts:
        for sample, name, showers in zip(("reference", "generated"), ("Monte Carlo", "generator"), counts):
            rows.append(
                (
                    f"{label}, {name}",
                    f"{showers:,}",
                    plain(getattr(maximum.layer, sample).value),
                    measured(getattr(maximum.depth_x0, sample)),
                    measured(getattr(response.mev_per_gev, sample)),
                    *(measured(getattr(one.sigma, sample), 100) for one in resolutions),
                )
            )
        ratios = (response.ratio, *(one.ratio for one in resolutions))
        rows.append((f"{label}, ratio", "", "", "", *map(measured, ratios)))
    return Table(
        "In ranges of primary energy",
        (
            "energy, sample",
            "showers",
            "layer of the maximum",
            "maximum of the fit, X0",
            "sum/E, MeV/GeV",
            "σ/E of the plain sum, %",  # noqa: RUF001
            "σ/E with layers weighted, %",  # noqa: RUF001
        ),
        tuple(rows),
        note="Ratio: generator over Monte Carlo. Layers are weighted by the thickness of their absorber.",
    )


def distances_table(evaluation: Evaluation) -> Table:
    """Classifier, FPD and KPD."""
    rows: list[tuple[str, ...]] = []
    for title, found in (("Classifier AUC", evaluation.classifier), ("FPD", evaluation.fpd), ("KPD", evaluation.kpd)):
        value = with_uncertainty(found.value, found.uncertainty)
        rows.append(
            (
                title,
                f"{value}: {found.reason}" if found.reason else value,
                with_uncertainty(found.null, found.null_uncertainty),
                plain(found.untrained),
                plain(found.baseline),
                f"{found.showers or 0:,}",
                f"{found.null_showers or 0:,}",
            )
        )
    return Table(
        "Distances in many observables at once",
        (
            "distance",
            "generator",
            "null: Monte Carlo against itself",
            "untrained network",
            "mean shower",
            "showers of each kind",
            "those of the null",
        ),
        tuple(rows),
        note="Of the classifier, the showers of each kind that it is trained on: its AUC rises with them. Compare runs "
        "at equal numbers only.",
    )


def parametrised_notice() -> Notice:
    """What a reader must know where the Monte Carlo was not simulated."""
    return Notice(
        "Parametrised showers. What is called Monte Carlo here was not simulated with Geant4 but drawn from a "
        "parametrisation (Grindhammer-Peters). No number of this report describes a real detector."
    )
