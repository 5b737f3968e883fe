"""Sections of a report about the physics: verdict, numbers in ranges of energy, distances, figures."""

from collections.abc import Callable, Sequence

from caloscale.physics import binning, quantities
from caloscale.physics.result import Evaluation
from caloscale.physics.worth import Amplification, Worth, count
from caloscale.report import energy_figures, shower_figures
from caloscale.report.blocks import Cell, Figure, Notice, Section, Statement, Table, Text, Tone, markdown
from caloscale.report.drawing import Drawing
from caloscale.report.figure_data import FigureData
from caloscale.report.numbers import ABSENT, measured, plain, signed, with_uncertainty

FIGURES: tuple[Callable[[Evaluation, FigureData], Drawing | None], ...] = (
    shower_figures.shower_and_profile, shower_figures.longitudinal_profile,
    shower_figures.transverse_profiles, shower_figures.cell_spectrum, energy_figures.response,
    energy_figures.resolution, energy_figures.maximum_and_angle, shower_figures.distributions, shower_figures.moments,
    shower_figures.correlations, energy_figures.classifier_and_regression, shower_figures.mean_showers,
    shower_figures.example_showers,
)  # fmt: skip
"""All figures of a comparison, in the order of a report."""
TONES: dict[str, Tone] = {"accepted": "good", "rejected": "bad", "undecided": "open", "not assessed": "open"}
PARAMETRISED = Notice(
    "Parametrised showers. What is called Monte Carlo here was not simulated with Geant4 but drawn from a "
    "parametrisation (Grindhammer-Peters). No number of this report describes a real detector."
)
"""What a reader must know where the Monte Carlo was not simulated."""


def verdict_section(
    evaluation: Evaluation | None, worth: Worth | None = None, figures: Sequence[Figure] = ()
) -> Section:
    """The decision, what generated showers are worth, the gates, and the figures that are looked at first.

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
    rows: list[dict[str, str | Cell]] = []
    for gate in evaluation.gates:
        unit = f" {gate.unit}" if gate.unit else ""
        size, interval = f"{plain(gate.value)}{unit}", f"{plain(gate.low)} to {plain(gate.high)}{unit}"
        if gate.where:
            size += f", {gate.where}"
        rows.append(
            {
                "gate": Cell(gate.title, link=definition(gate.quantity)),
                "difference": ABSENT if gate.value is None else size,
                "90% interval": ABSENT if gate.value is None else interval,
                "tolerance": f"{gate.tolerance:g}{unit}",
                "evidence of a difference": ABSENT if gate.sigmas is None else f"{gate.sigmas:.1f} sigma",
                "decision": Cell(gate.decision, TONES[gate.decision]),
            }
        )
    note = (
        "Accepted: the interval lies below the tolerance, in every range of energy. Rejected: the difference exceeds "
        "the tolerance significantly (5%, Bonferroni over the ranges, Holm over the gates). Undecided: undecided with "
        "these showers. Evidence: standard deviations from no difference."
    )
    return [Table.of(f"Gates: {shower_figures.count_showers(evaluation)}", rows, note=note)]


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
    rows = [
        {
            "quantity": one.name,
            "n, predicted by the scatter": str(one.predicted or "needs two generators"),
            "n, observed": str(one.observed),
            **({"n of the training showers": str(one.training or "too few showers")} if learnt else {}),
            f"{worth.worth_of:,} generated are worth": str(one.worth),
            "USD per effective shower": _dollars(one),
        }
        for one in shown
    ]
    monte_carlo, members = _monte_carlo(worth), max(one.members for one in shown)
    generators = "1 generator" if members == 1 else f"{members} generators"
    names = f" ({', '.join(worth.runs)})" if worth.runs else ""
    note = (
        f"n: size of the {monte_carlo} sample whose statistical error equals the generators' systematic error. "
        f"{'Of the training showers: as if they were generated. ' if learnt else ''}In brackets: 95% intervals. Worth: "
        "by the observed n. USD: the bills of all these runs over the worth. "
        f"Measured with {generators}{names}, {worth.generated:,} showers of each, and "
        f"{worth.reference:,} held-out {monte_carlo} showers."
    )
    return (Table.of(f"{monte_carlo} showers that generated ones are worth", rows, note=note),)


def worth_text(worth: Worth) -> Text:
    """What generated showers are worth for the quantity with the least worth, and whether more of them buy anything."""
    one = worth.worst
    if one is None:
        return Text("There are too few showers to state what generated ones are worth.", "pale")
    number = "A million" if worth.worth_of == 1_000_000 else f"{worth.worth_of:,}"
    start, n = f"{number} generated showers are worth", one.observed
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
    rows: list[dict[str, str | Cell]] = [
        {
            "observable": Cell(result.title, link=definition(name, "observable")),
            "separation": with_uncertainty(result.separation, result.uncertainty, result.reason),
            "expected null": plain(result.expected_null),
            "excess": with_uncertainty(result.excess, result.excess_uncertainty),
            "evidence of a difference": signed(result.excess_sigmas),
            "untrained network": plain(result.untrained),
            "mean shower": plain(result.baseline),
            "improvement over the baseline": signed(result.improvement_sigmas),
        }
        for name, result in evaluation.observables.items()
    ]
    return Table.of(
        f"Separation from Monte Carlo: {shower_figures.count_showers(evaluation)}",
        rows,
        note="Separation power S = ½ Σ (h1 - h2)² / (h1 + h2) of histograms of unit sum: 0 equal, 1 disjoint; "
        f"uncertainties from {evaluation.bootstraps} bootstraps. Expected null: what two samples of one distribution, "
        "of the sizes compared, are expected to have, from random halves of the Monte Carlo showers. Excess: "
        "separation without what fluctuations add, which does not depend on the numbers of showers. Evidence: "
        "separation minus expected null, in standard deviations of the null. Mean shower: the baseline, which repeats "
        "the mean training shower times the energy, without fluctuations and without following the angle; its mean "
        "profiles are right by construction. Improvement over the baseline: its separation minus the generator's, in "
        "standard deviations.",
    )


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
        for (sample, name), showers in zip(shower_figures.PAIR, counts):
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
    energy = ("energy, sample", "showers", "layer of the maximum", "maximum of the fit, X0", "sum/E, MeV/GeV")
    columns = (*energy, "σ/E of the plain sum, %", "σ/E with layers weighted, %")  # noqa: RUF001
    note = "Ratio: generator over Monte Carlo. Layers are weighted by the thickness of their absorber."
    return Table("In ranges of primary energy", columns, tuple(rows), note=note)


def distances_table(evaluation: Evaluation) -> Table:
    """Classifier, FPD and KPD."""
    auc = evaluation.classifier
    named = (("Classifier AUC", auc), ("FPD", evaluation.fpd), ("KPD", evaluation.kpd))
    rows = [
        {
            "distance": title,
            "generator": with_uncertainty(distance.value, distance.uncertainty, distance.reason),
            "null: Monte Carlo against itself": with_uncertainty(distance.null, distance.null_uncertainty),
            "untrained network": plain(distance.untrained),
            "mean shower": plain(distance.baseline),
            "showers of each kind": f"{distance.showers or 0:,}",
            "those of the null": f"{distance.null_showers or 0:,}",
        }
        for title, distance in named
    ]
    note = "Of the classifier, the showers of each kind that it is trained on: compare runs at equal numbers only."
    if auc.value is not None:
        note += (
            f" Extrapolated to infinitely many: {measured(auc.limit)}. Tested on {auc.test_reference:,} Monte Carlo "
            f"and {auc.test_generated:,} generated showers."
        )
    return Table.of("Distances in many observables at once", rows, note=note)
