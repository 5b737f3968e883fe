"""Several generators in one table: verdicts, gates, observables, money, and how their configurations differ."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

from caloscale.detector.axes import Floats
from caloscale.physics import Evaluation
from caloscale.physics.binning import UNITS
from caloscale.report.blocks import Block, Cell, Notice, Page, Section, Table, Text
from caloscale.report.drawing import (
    MONTE_CARLO,
    MONTE_CARLO_EDGE,
    Drawing,
    draw_band,
    new_page,
    new_panels,
    sample_names,
    set_log,
    set_top,
)
from caloscale.report.figure_data import Curve, FigureData, Panel
from caloscale.report.numbers import plain
from caloscale.report.physics_sections import TONES, definition, definitions_section

COLOURS = ("#c8322b", "#1f5fa8", "#1c7a5f", "#7b5aa6", "#b8860b", "#5b5b5b")
"""Colours of the lines, one for each generator; they repeat after the last."""
APART = (
    "data.source", "data.simulation.engine", "data.simulation.cutMm",
    "data.geometry.", "data.preprocessing.", "data.energyGev", "data.angleDeg", "data.azimuthDeg", "data.entryMm",
    "data.particle", "data.front", "data.pairDistanceMm",
)  # fmt: skip
"""Fields of the run configuration whose difference makes other Monte Carlo showers, of which one sample is drawn:
nothing is overlaid."""
OWN_DEFINITION = {"validation.energyBins": "longitudinal profiles", "validation.hitsThresholdGev": "hits"}
"""Fields that define an observable: where they differ, it is not overlaid."""
ABSENT = "-"


@dataclass(frozen=True)
class Compared:
    """A generator that was judged: a run, or a file of showers (without a configuration)."""

    name: str
    folder: str
    network: str
    configuration: Mapping[str, Any] | None
    evaluation: Evaluation
    figures: FigureData
    milliseconds_per_shower: float | None = None
    training_seconds: float | None = None
    usd: float | None = None


def differences(compared: Sequence[Compared]) -> dict[str, tuple[Any, ...]]:
    """Fields of the run configuration, dotted, that are not the same in all runs; one value a run, files left out."""
    flat = [_flat(each.configuration) for each in compared if each.configuration is not None]
    fields = dict.fromkeys(field for one in flat for field in one)
    values = {field: tuple(one.get(field) for one in flat) for field in fields}
    return {field: given for field, given in values.items() if any(value != given[0] for value in given)}


def comparison_tables(compared: Sequence[Compared]) -> tuple[Table, ...]:
    """Overview, gates, and differences of the configurations; one column a generator."""
    names = tuple(each.name for each in compared)
    runs = [each.name for each in compared if each.configuration is not None]
    fields = tuple(
        (field, *(ABSENT if value is None else str(value) for value in values))
        for field, values in differences(compared).items()
    )
    differ = Table("Configurations: what differs", ("field", *runs), fields)
    return (
        Table("Overview", ("", *names), tuple(_overview(compared))),
        Table(
            "Gates",
            ("gate", *names),
            tuple(_gates(compared)),
            note="Difference from Monte Carlo with its 90% interval, and the tolerance where it differs. "
            "Each generator is judged by the gates of its own run.",
        ),
        *((differ,) if fields and len(runs) > 1 else ()),
    )


def comparison_page(compared: Sequence[Compared], figures: Sequence[Block]) -> Page:
    """The page of a comparison."""
    apart = [f"{OWN_DEFINITION[field]}: {field} differs" for field in differences(compared) if field in OWN_DEFINITION]
    text = f"Not overlaid are {'; '.join(apart)}." if apart else ""
    if _showers_differ(compared):
        text = "Monte Carlo showers, cells or primaries of these runs are not the same; no observable is overlaid."
    verdicts, gates, *configurations = comparison_tables(compared)
    return Page(
        title="Comparison of " + ", ".join(each.name for each in compared),
        lead="Each generator against held-out Monte Carlo showers of its run.",
        notices=(Notice(text),) if text else (),
        sections=(
            Section("Verdicts", (verdicts, gates)),
            Section("Observables", tuple(figures) or (Text("Nothing can be overlaid.", "pale"),)),
            *(Section("Configurations", (table,)) for table in configurations),
            definitions_section(),
        ),
    )


def comparison_drawings(compared: Sequence[Compared]) -> list[Callable[[], Drawing | None]]:
    """Functions that draw the overlaid observables, for `save_figures`; the ROC alone where cells differ."""
    drawn = [_roc] if _showers_differ(compared) else [_profiles, _roc, _spectra, _distributions]
    return [partial(draw, compared) for draw in drawn]


def _overview(compared: Sequence[Compared]) -> list[tuple[str | Cell, ...]]:
    def row(title: str, text: Callable[[Compared], str]) -> tuple[str | Cell, ...]:
        return (title, *(text(each) for each in compared))

    def optional(value: float | None, template: str) -> str:
        return ABSENT if value is None else template.format(value)

    warned = any(each.evaluation.warnings for each in compared)
    decisions = (Cell(each.evaluation.decision, TONES[each.evaluation.decision]) for each in compared)
    return [
        ("verdict", *decisions),
        *([row("warnings", lambda e: "; ".join(e.evaluation.warnings) or ABSENT)] if warned else []),
        row("network", lambda each: each.network),
        row("AUC of the classifier", lambda each: optional(each.evaluation.classifier.value, "{:.3f}")),
        row("showers compared", lambda e: f"{e.evaluation.showers.generated} / {e.evaluation.showers.reference}"),
        row("worth of a million showers", _worth),
        row("generation, ms a shower", lambda each: optional(each.milliseconds_per_shower, "{:.3g}")),
        row("training, minutes", lambda e: ABSENT if e.training_seconds is None else f"{e.training_seconds / 60:.1f}"),
        row("bill, USD", lambda each: optional(each.usd, "{:.4g}")),
    ]


def _worth(each: Compared) -> str:
    worst = each.evaluation.worth.worst
    if worst is None:
        return ABSENT
    return f"{worst.worth} Monte Carlo showers ({worst.title})"


def _gates(compared: Sequence[Compared]) -> list[tuple[str | Cell, ...]]:
    by_key = [{(gate.quantity, gate.showers): gate for gate in each.evaluation.gates} for each in compared]
    rows: list[tuple[str | Cell, ...]] = []
    for key in dict.fromkeys(key for gates in by_key for key in gates):
        there = [gates[key] for gates in by_key if key in gates]
        same = len({gate.tolerance for gate in there}) == 1
        unit = f" {there[0].unit}" if there[0].unit else ""
        cells = []
        for gates in by_key:
            gate = gates.get(key)
            if gate is None:
                cells.append(Cell("no gate", "pale"))
                continue
            size = (
                gate.decision
                if gate.value is None
                else f"{plain(gate.value)} ({plain(gate.low)} to {plain(gate.high)})"
            )
            size += "" if same else f", tolerance {gate.tolerance:g}"
            if gate.decision != "accepted" and gate.value is not None:
                size += f": {gate.decision}"
            cells.append(Cell(size, TONES[gate.decision]))
        tolerance = f", tolerance {there[0].tolerance:g}{unit}" if same else unit
        rows.append((Cell(there[0].title + tolerance, link=definition(key[0])), *cells))
    return rows


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _showers_differ(compared: Sequence[Compared]) -> bool:
    return any(field.startswith(APART) for field in differences(compared))


def _overlay(ax: Any, panels: Sequence[Panel], compared: Sequence[Compared], unit: str, *, log: bool = False) -> None:
    """Monte Carlo of the first run filled, each generator as a line; ``unit``: of the values of a bin; log: both axes.
    The bins of a run are those of its own samples. Where they are not the same, values are divided by their widths."""
    edges, reference = panels[0].edges, panels[0].curves["reference"]
    same = all(np.array_equal(panel.edges, edges) for panel in panels)

    def scaled(values: Floats, panel: Panel) -> Floats:
        return values if same else values / np.diff(panel.edges)

    label = sample_names(compared[0].evaluation.reference_source)["reference"]
    values, errors = scaled(reference.values, panels[0]), scaled(reference.errors, panels[0])
    ax.stairs(values, edges, fill=True, color=MONTE_CARLO, label=label, zorder=1)
    draw_band(ax, edges, values, errors)
    drawn = {"reference": Curve(values=values, errors=errors)}
    for colour, panel, each in zip(cycle(COLOURS), panels, compared):
        line = scaled(panel.curves["generated"].values, panel)
        drawn[each.folder] = Curve(values=line, errors=np.zeros_like(line))
        ax.stairs(line, panel.edges, color=colour, label=each.name, linewidth=1.6, zorder=3)
    ax.set_xlim(edges[0], edges[-1])
    if log:
        ax.set_xscale("log")
        set_log(ax, Panel(curves=drawn))
    else:
        set_top(ax, Panel(curves=drawn), tuple(drawn), 1.4)
    ax.set_ylabel(unit if same else f"{unit} per unit")


def _profiles(compared: Sequence[Compared]) -> Drawing | None:
    if "validation.energyBins" in differences(compared):
        return None
    panels = [each.figures.longitudinal for each in compared]
    count = len(panels[0])
    page, axes = new_panels(count, count, 4.3, 3.5)
    for index, ax in enumerate(axes):
        _overlay(ax, [panel[index] for panel in panels], compared, "mean energy [MeV]")
        ax.set_title(compared[0].evaluation.energy_ranges[index].label)
        ax.set_xlabel("layer")
    page.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    names = ", ".join(each.name for each in compared)
    return Drawing("longitudinal", "Longitudinal profiles", "Mean energy of each layer.", f"Profiles of {names}.", page)


def _roc(compared: Sequence[Compared]) -> Drawing | None:
    page = new_page(6.5, 4.8)
    ax = page.subplots()
    ax.plot([0, 1], [0, 1], color=MONTE_CARLO_EDGE, linestyle=":", linewidth=1)
    seen = []
    for colour, each in zip(cycle(COLOURS), compared):
        points, auc = each.evaluation.roc_curve(), each.evaluation.classifier.value
        if points is None or auc is None:
            continue
        label = f"{each.name}, AUC {auc:.3f}"
        ax.plot(points[0], points[1], color=colour, label=label)
        seen.append(label)
    if not seen:
        return None
    ax.set(
        xlabel="generated classified as Monte Carlo", ylabel="Monte Carlo classified as such", xlim=(0, 1), ylim=(0, 1)
    )
    ax.legend(loc="lower right")
    return Drawing(
        "roc",
        "ROC of the classifier",
        "Boosted trees separate generated from Monte Carlo showers; the diagonal: they cannot.",
        f"ROC curves: {'; '.join(seen)}.",
        page,
    )


def _spectra(compared: Sequence[Compared]) -> Drawing:
    panels = [each.figures.spectrum for each in compared]
    page = new_page(6.5, 4.2)
    ax = page.subplots()
    _overlay(ax, panels, compared, "cells per shower", log=True)
    ax.set_xlabel("energy of a cell [MeV]")
    ax.legend()
    names = ", ".join(each.name for each in compared)
    return Drawing("spectrum", "Energies of cells", "Cells per shower and bin.", f"Cell spectra of {names}.", page)


def _distributions(compared: Sequence[Compared]) -> Drawing:
    known = [each.figures.distributions for each in compared]
    names = list(known[0])
    if "validation.hitsThresholdGev" in differences(compared):
        names.remove("hits")
    page, axes = new_panels(len(names), 4, 3.9, 3.5)
    for ax, name in zip(axes, names):
        panels = [by_name[name] for by_name in known]
        _overlay(ax, panels, compared, "share of showers")
        ax.set_title(f"{panels[0].title} [{UNITS[name]}]" if name in UNITS else panels[0].title, fontsize=12)
    page.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return Drawing(
        "distributions",
        "Distributions",
        "One number per shower, all energies.",
        f"Histograms of {', '.join(each.name for each in compared)}.",
        page,
    )
