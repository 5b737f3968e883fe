"""Generators in one table and one page."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from caloscale import stages
from caloscale.errors import InputError
from caloscale.physics import Evaluation
from caloscale.report.blocks import Cell
from caloscale.report.comparison import Compared, comparison_drawings, comparison_page, comparison_tables, differences
from caloscale.report.drawing import save_figures
from caloscale.report.figure_data import FIGURE_DATA_FILE, figure_data
from caloscale.report.html import render
from caloscale.spec import load_run
from caloscale.spec.workspace_layout import PHYSICS_FILE
from caloscale.stages.comparison import compare_runs, comparison_json
from caloscale.stages.record import recorded
from caloscale.storage.atomic import write_text
from tests.physics.conftest import Case


def compared(name: str, evaluation: Evaluation, case: Case, *overrides: str, **known: float) -> Compared:
    configuration = load_run(preset="compact", overrides=overrides).model_dump(mode="json", by_alias=True)
    return Compared(name, f"runs/{name}", "compact", configuration, evaluation, figure_data(case.comparison), **known)


@pytest.fixture
def two(undistorted: Case, distorted: Evaluation) -> tuple[Compared, Compared]:
    return (
        compared("good", undistorted.evaluation, undistorted, milliseconds_per_shower=0.25, usd=0.5),
        compared("bad", distorted, undistorted, "train.seed=2", "train.epochs=7"),
    )


def test_fields_that_differ_are_listed_and_no_others(two: tuple[Compared, Compared]) -> None:
    seed, epochs = (two[0].configuration["train"][field] for field in ("seed", "epochs"))  # type: ignore[index]
    assert differences(two) == {"train.seed": (seed, 2), "train.epochs": (epochs, 7)}
    file = replace(two[1], configuration=None)
    assert differences((two[0], file)) == {} and differences((*two, file)) == differences(two)


def test_each_gate_has_the_result_of_its_own_run(two: tuple[Compared, Compared]) -> None:
    overview, gates, configurations = comparison_tables(two)
    assert gates.columns == ("gate", "good", "bad")
    wide = next(row[1:] for row in gates.rows if row[0].text.startswith("Mean response"))
    assert isinstance(wide[0], Cell) and isinstance(wide[1], Cell)
    good, bad = ({gate.quantity: gate for gate in each.evaluation.gates} for each in two)
    assert bad["response"].decision == "rejected" and wide[1].text.endswith(": rejected") and wide[1].tone == "bad"
    known = "response" in good
    assert wide[0].text == "no gate" if not known else good["response"].decision in ("accepted", "undecided")
    texts = {row[0]: row[1:] for row in overview.texts()}
    assert texts["generation, ms a shower"] == ("0.25", "-") and texts["bill, USD"] == ("0.5", "-")
    assert texts["verdict"] == (two[0].evaluation.decision, two[1].evaluation.decision)
    assert [row[0] for row in configurations.rows] == list(differences(two))
    warned = replace(two[1], evaluation=two[1].evaluation.model_copy(update={"warnings": ("trained on other shards",)}))
    texts = {row[0]: row[1:] for row in comparison_tables((two[0], warned))[0].texts()}
    assert texts["warnings"] == ("-", "trained on other shards")
    assert comparison_json((two[0], warned))["runs"][1]["warnings"] == ["trained on other shards"]


def test_observables_are_overlaid_where_the_showers_are_alike(two: tuple[Compared, Compared], tmp_path) -> None:
    figures = save_figures(tmp_path, comparison_drawings(two))
    assert [figure.name for figure in figures] == ["longitudinal", "roc", "spectrum", "distributions"]
    profiles, roc, spectrum, distributions = (drawing() for drawing in comparison_drawings(two))
    ranges = [energy.label for energy in two[0].evaluation.energy_ranges]
    assert [ax.get_title() for ax in profiles.page.axes] == ranges
    assert "ECAL sum [MeV]" in [ax.get_title() for ax in distributions.page.axes]
    for line, each in zip(roc.page.axes[0].lines[1:], two, strict=True):
        area = np.trapezoid(line.get_ydata(), line.get_xdata())
        assert area == pytest.approx(each.evaluation.classifier.value, abs=0.02)
    low, high = spectrum.page.axes[0].get_ylim()
    values = two[0].figures.spectrum.curves["reference"].values
    assert 0 < low < values.max() < high < 100 * values.max() and high / low < 1e8
    page = render(comparison_page(two, figures))
    assert page.count("data:image/png") == 4 and "Comparison of good, bad" in page


@pytest.mark.parametrize(
    ("override", "drawn", "notice"),
    [
        ("data.energyGev=[10, 20]", ["roc"], "no observable is overlaid"),
        ("data.source=/own/showers", ["roc"], "no observable is overlaid"),
        ("data.simulation.engine=parametrised", ["roc"], "no observable is overlaid"),
        ("data.front=[{material: lead, thicknessMm: 5.6}]", ["roc"], "no observable is overlaid"),
        ("validation.energyBins=2", ["roc", "spectrum", "distributions"], "longitudinal profiles: validation.energyB"),
        ("validation.hitsThresholdGev=0.001", ["longitudinal", "roc", "spectrum", "distributions"], "are hits: valid"),
    ],
)
def test_observables_of_another_meaning_are_not_overlaid(
    two: tuple[Compared, Compared], override, drawn, notice
) -> None:
    """Other primaries; other ranges of energy below one title; hits of another threshold."""
    configuration = load_run(preset="compact", overrides=[override]).as_values()
    both = two[0], replace(two[1], configuration=configuration)
    drawings = [drawing for draw in comparison_drawings(both) if (drawing := draw()) is not None]
    assert [drawing.name for drawing in drawings] == drawn and notice in render(comparison_page(both, []))
    titles = [ax.get_title() for drawing in drawings for ax in drawing.page.axes]
    assert "ECAL sum [MeV]" in titles or drawn == ["roc"]
    assert ("Hits [cells]" in titles) == ("energyBins" in override)


def test_lines_are_densities_where_the_bins_are_others(two: tuple[Compared, Compared]) -> None:
    """The area under a line is the same then: half as many bins, twice as wide."""
    panel = two[1].figures.distributions["hits"]
    curve = panel.curves["generated"]
    count = len(curve.values) // 2
    merged = curve.model_copy(
        update={part: getattr(curve, part)[: 2 * count].reshape(-1, 2).sum(1) for part in ("values", "errors")}
    )
    wide = panel.model_copy(
        update={"edges": panel.edges[: 2 * count + 1 : 2], "curves": {**panel.curves, "generated": merged}}
    )
    others = (
        replace(each, figures=each.figures.model_copy(update={"distributions": {"hits": hits}}))
        for each, hits in zip(two, (two[0].figures.distributions["hits"], wide))
    )
    drawing = comparison_drawings(tuple(others))[3]()
    _, _, narrow, broad = (patch.get_data() for patch in drawing.page.axes[0].patches)  # Monte Carlo and its band first
    areas = [float((line.values * np.diff(line.edges)).sum()) for line in (narrow, broad)]
    np.testing.assert_allclose(areas, [1, curve.values[: 2 * count].sum()], rtol=1e-4)


def test_speed_and_money_of_a_run_are_those_of_its_verdict(
    undistorted: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained in two attempts, and a later validation that no report has."""
    trained = {"steps": 90, "epochs": 3, "showersPerSecond": 50.0, "seconds": 600.0, "selectedEpoch": 3}
    monkeypatch.setattr("caloscale.stages.reporting._draw", lambda *_: [])
    both = [tmp_path / "one" / "flow", tmp_path / "two" / "flow"]
    for folder in both:
        write_text(folder / PHYSICS_FILE, undistorted.evaluation.as_json())
        write_text(folder / "validation" / FIGURE_DATA_FILE, figure_data(undistorted.comparison).as_json())
        for stage, figures in (("train", {**trained, "stopped": "epochs"}), ("validate", {})):
            with recorded(stage, folder) as kept:
                kept.update(figures)
        stages.report(load_run(preset="compact"), folder)
    assert [(each.name, each.training_seconds) for each in compare_runs(both)] == [(str(one), 600) for one in both]
    with recorded("validate", both[1]):
        pass
    with pytest.raises(InputError, match=r"again after its report(.|\n)*two"):
        compare_runs(both)
