from __future__ import annotations

import numpy as np
import pytest

from caloscale.errors import StorageError
from caloscale.report import draw_figures, draw_run_figures, figures
from caloscale.report.figure_data import figure_data
from caloscale.report.figures_run import read_history, words

STAGES = [{"stage": "simulate", "seconds": 12.5, "coreSeconds": 24.0}, {"name": "train", "seconds": 0.0}]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(figures, "DOTS_PER_INCH", 30)


def check_files(drawn, folder):
    names = [figure.name for figure in drawn]
    assert len(set(names)) == len(names)
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{n}.{k}" for n in names for k in ("pdf", "png"))
    for figure in drawn:
        assert figure.title and figure.caption
        assert figure.png.read_bytes().startswith(b"\x89PNG") and figure.pdf.read_bytes().startswith(b"%PDF")


def test_all_figures_are_drawn(perfect, tmp_path):
    drawn = draw_figures(perfect.evaluation, figure_data(perfect.comparison), tmp_path)
    assert [figure.name for figure in drawn] == [
        entry.name for entry in figures.catalogue(perfect.evaluation, figure_data(perfect.comparison))
    ]
    check_files(drawn, tmp_path)


def test_figures_of_almost_nothing(degenerate, nothing):
    data = figure_data(nothing)
    entries = {entry.name: entry for entry in figures.catalogue(degenerate, data) if entry.drawable}
    assert "correlations" not in entries and "classifier_and_regression" not in entries
    for entry in entries.values():
        with entry.draw(degenerate, data) as page:
            page.canvas.draw()


def test_figures_of_the_run(tmp_path):
    history = {"loss": list(np.linspace(3, 1, 300)), "flat": [1.0] * 300}
    drawn = draw_run_figures(tmp_path / "made", history=history, stages=STAGES)
    assert [figure.name for figure in drawn] == ["training_curves", "stage_times"]
    check_files(drawn, tmp_path / "made")
    assert draw_run_figures(tmp_path / "none", history={}, stages=[]) == []


def test_a_folder_that_cannot_be_written_is_an_input_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        draw_run_figures(tmp_path / "file", stages=STAGES)


@pytest.mark.parametrize(
    "history",
    [
        [{"step": 10, "loss": 3.0}, {"step": 20, "loss": 2.0}],
        {"step": [10, 20], "loss": [3.0, 2.0]},
        {"loss": {"step": [10, 20], "value": [3.0, 2.0]}},
        {"steps": [{"step": 10, "loss": 3.0, "when": "now"}, {"step": 20, "loss": 2.0}]},
    ],
)
def test_histories_of_any_form(history):
    found = read_history(history)
    assert list(found) == ["loss"]
    position, x, y = found["loss"]
    assert position == "step" and x.tolist() == [10, 20] and y.tolist() == [3.0, 2.0]


def test_nested_and_broken_histories():
    nested = read_history([{"epoch": 1, "generator": {"angle": 0.5}}, {"epoch": 2, "generator": {"angle": None}}])
    assert list(nested) == ["generator angle"] and nested["generator angle"][2].tolist() == [0.5]
    assert read_history({"generator": {"loss": [1.0, float("nan")]}})["generator loss"][2].tolist() == [1.0]
    for nothing in (None, {}, [], "text", {"loss": "text"}, {"loss": []}, [1, 2]):
        assert read_history(nothing) == {}


def test_words_of_names():
    assert words("generatorLoss") == "generator loss"
    assert words("real_fake/D.loss") == "real fake D loss"


def test_figure_data_match_the_showers(perfect):
    data = figure_data(perfect.comparison)
    whole = 1e3 * perfect.reference.cells_gev.sum() / len(perfect.reference)
    assert sum(data.transverse[0].curves["reference"].values) == pytest.approx(whole, rel=1e-3)
    counts = [r.reference for r in perfect.evaluation.energy_ranges]
    per_range = [sum(panel.curves["reference"].values) for panel in data.longitudinal]
    assert np.average(per_range, weights=counts) == pytest.approx(whole, rel=1e-3)
    for panel in data.distributions.values():
        for curve in panel.curves.values():
            assert sum(curve.values) == pytest.approx(1, abs=1e-3)
