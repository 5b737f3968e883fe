from functools import partial

import numpy as np
import pytest

from caloscale.detector.axes import axes_of
from caloscale.errors import StorageError
from caloscale.physics import compare, evaluate
from caloscale.profiling.result import Profile
from caloscale.report import drawing
from caloscale.report.drawing import save_figures
from caloscale.report.energy_figures import response
from caloscale.report.figure_data import FigureData, _examples, _transverse, figure_data
from caloscale.report.physics_sections import FIGURES
from caloscale.report.run import PARTS, profile_table, read_history, shares_of, step_profile, training_curves
from caloscale.report.shower_figures import mean_showers
from caloscale.spec import Preprocessing, Validation
from tests.physics.conftest import DATA, make_showers, make_two_particles

HISTORY = {"step": list(range(300)), "loss": list(np.linspace(3, 1, 300)), "flat": [1.0] * 300}
SHARES = (
    ("fakes", "forward", 0.05),
    ("discriminatorReal", "forward", 0.1),
    ("discriminatorReal", "backPropagation", 0.2),
    ("generator", "forward", 0.15),
    ("generator", "backPropagation", 0.25),
    ("generator", "optimizer", 0.05),
    ("rest", "forward", 0.02),
)
PROFILE = Profile(
    preset="compact",
    precision="float32",
    device="CPU",
    batch=32,
    steps=8,
    seconds_per_step=0.25,
    shares=[dict(zip(("phase", "part", "share"), row)) for row in SHARES],
    input_wait=0.08,
    idle=0.1,
    matrix_share=0.6,
    gflop_per_step=9.5,
    gflops=38.0,
    matrix_gflops=77.2,
    peak_gflops=187.0,
    limit="compute",
    statement="Limited by computing & <more>.",
)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(drawing, "DOTS_PER_INCH", 30)


@pytest.fixture(scope="module")
def perfect_data(undistorted) -> FigureData:
    return figure_data(undistorted.comparison)


def check_files(drawn, folder):
    names = [figure.name for figure in drawn]
    assert len(set(names)) == len(names)
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{n}.{k}" for n in names for k in ("pdf", "png"))
    for figure in drawn:
        assert figure.png.read_bytes().startswith(b"\x89PNG")
        assert figure.png.with_suffix(".pdf").read_bytes().startswith(b"%PDF")


def construct(evaluation, data) -> list[drawing.Drawing]:
    """All figures, without their files, which take most of the time."""
    made = [figure for draw in FIGURES if (figure := draw(evaluation, data)) is not None]
    for figure in made:
        assert figure.title and figure.caption and figure.alternative
        assert "nan" not in figure.alternative and "None" not in figure.alternative
    return made


def draw_without_layout(figures: list[drawing.Drawing]) -> None:
    """What a figure contains becomes pixels; the layout takes as long again."""
    for figure in figures:
        figure.page.set_layout_engine("none")
        figure.page.set_dpi(20)
        figure.page.canvas.draw()


def test_all_figures_are_described(undistorted, perfect_data):
    """Their files: `test_figures_of_the_run`, and `test_all_figures_are_saved`."""
    made = construct(undistorted.evaluation, perfect_data)
    assert len({figure.name for figure in made}) == len(FIGURES)
    captions = {figure.name: figure.caption for figure in made}
    for name in set(captions) - {"longitudinal_profile", "example_showers"}:
        assert "600 generated and 240 held-out Monte Carlo showers" in captions[name], name
    seen = {figure.name: figure.alternative for figure in made}
    for energy, maximum in zip(undistorted.evaluation.energy_ranges, undistorted.evaluation.shower_maximum):
        assert energy.label in seen["longitudinal_profile"]
        assert f"in layer {maximum.layer.reference.value:.0f}" in seen["longitudinal_profile"]
    assert f"{undistorted.evaluation.classifier.value:.2f}" in seen["classifier_and_regression"]
    for point in undistorted.evaluation.classifier.learning_curve:
        assert f"{point.value:.3f} with {point.showers}" in seen["classifier_and_regression"]
    draw_without_layout([figure for figure in made if figure.name == "classifier_and_regression"])


def test_maps_have_the_names_of_the_axes_of_their_cells(undistorted, perfect_data):
    for axes, across, summed in ((("x", "y"), "x", "y"), (("azimuth", "radius"), "radius", "azimuth")):
        made = mean_showers(undistorted.evaluation, perfect_data.model_copy(update={"transverse_axes": axes}))
        assert f"summed over {summed}," in made.caption and f"plane of {across} and layer" in made.alternative
        assert made.page.axes[0].get_ylabel().endswith(f"{across} [mm]")


@pytest.mark.long
def test_all_figures_are_saved(undistorted, perfect_data, tmp_path):
    drawings = [partial(draw, undistorted.evaluation, perfect_data) for draw in FIGURES]
    drawn = save_figures(tmp_path / "figures", drawings)
    assert {figure.name for figure in drawn} == {figure.__name__ for figure in FIGURES}
    check_files(drawn, tmp_path / "figures")


@pytest.mark.integration
def test_figures_of_almost_nothing(degenerate, nothing):
    made = construct(degenerate, figure_data(nothing))
    names = {figure.name for figure in made}
    assert not names & {"correlations", "classifier_and_regression"} and "response" in names
    draw_without_layout(made)


def test_a_line_that_crosses_zero_has_no_relative_deviation_there(undistorted, perfect_data):
    """As that of the published network after two epochs."""
    evaluation = undistorted.evaluation
    line = evaluation.linearity.line_mev
    steep = line.model_copy(update={"generated": line.generated.model_copy(update={"value": -1e6})})
    linearity = evaluation.linearity.model_copy(update={"line_mev": steep})
    figure = response(evaluation.model_copy(update={"linearity": linearity}), perfect_data)
    reference, generated = (points.lines[0].get_ydata() for points in figure.page.axes[2].containers)
    assert np.isfinite(reference).all() and np.isnan(generated).all()
    draw_without_layout([figure])


def sparse(reference: int, energies: tuple[float, float], *, empty_above: float | None = None):
    """A comparison with log-uniform energies, of which few or none lie in the upper ranges."""
    data = DATA.model_copy(update={"energy_gev": (1.0, 1000.0)})

    def showers(count: int, seed: int, upper: float):
        made = make_showers(count, seed, data=DATA)
        energy = np.exp(np.random.default_rng(seed).uniform(np.log(energies[0]), np.log(upper), count))
        made.energy_gev[:] = energy.astype(np.float32)
        return made

    return compare(
        showers(reference, 1, energies[1]),
        showers(60, 2, empty_above or energies[1]),
        training=showers(120, 3, energies[1]),
        untrained=None,
        data=data,
        validation=Validation(showers=60, bootstraps=10, energy_bins=5),
    )


@pytest.mark.integration
@pytest.mark.parametrize(
    ("reference", "energies", "empty_above"),
    [
        pytest.param(200, (1.0, 1000.0), None, marks=pytest.mark.long),
        (51, (250.0, 1000.0), None),
        (40, (1.0, 1000.0), 200.0),
    ],
)
def test_ranges_without_showers_are_drawn_as_absent(reference, energies, empty_above):
    comparison = sparse(reference, energies, empty_above=empty_above)
    evaluation, data = evaluate(comparison), figure_data(comparison)
    missing = [
        (k, sample)
        for k, energy in enumerate(evaluation.energy_ranges)
        for sample in ("reference", "generated")
        if not getattr(energy, sample)
    ]
    assert missing or reference == 200
    for k, sample in missing:
        curve = data.longitudinal[k].curves[sample]
        assert np.isnan(curve.values).all() and len(curve.errors) == len(curve.values)
    figures = {figure.name: figure for figure in construct(evaluation, data)}
    draw_without_layout([figures[name] for name in ("longitudinal_profile", "response", "maximum_and_angle")])
    seen, shown = figures["longitudinal_profile"].alternative, {0, 2, 4}
    assert ("has no showers" in seen) == any(k in shown for k, _ in missing)


def test_figure_data_are_read_back_with_what_is_absent():
    data = figure_data(sparse(51, (250.0, 1000.0)))
    text = data.model_dump_json(by_alias=True)
    read = FigureData.model_validate_json(text)
    assert "NaN" not in text and read.model_dump_json(by_alias=True) == text
    np.testing.assert_allclose(
        read.longitudinal[0].curves["reference"].values, data.longitudinal[0].curves["reference"].values, rtol=1e-4
    )


def test_the_profile_of_a_window_one_cell_wide_has_its_width():
    wide = DATA.model_copy(update={"preprocessing": Preprocessing(rebin=(18, 2, 1))})
    along_x, along_y = (panel.edges for panel in _transverse({}, axes_of(wide)))
    np.testing.assert_allclose(along_x, [-63, 63])
    np.testing.assert_allclose(along_y, np.arange(-63, 64, 14))


def test_figure_data_match_the_showers(undistorted, perfect_data):
    whole = 1e3 * undistorted.reference.cells_gev.sum() / len(undistorted.reference)
    assert sum(perfect_data.transverse[0].curves["reference"].values) == pytest.approx(whole, rel=1e-3)
    counts = [r.reference for r in undistorted.evaluation.energy_ranges]
    per_range = [sum(panel.curves["reference"].values) for panel in perfect_data.longitudinal]
    assert np.average(per_range, weights=counts) == pytest.approx(whole, rel=1e-3)
    for panel in perfect_data.distributions.values():
        for curve in panel.curves.values():
            assert sum(curve.values) == pytest.approx(1, abs=1e-3)


def test_examples_are_pairs_of_one_primary():
    """Photons of the generator have twice the energy here; their energies and angles are those of the electrons."""
    reference = make_two_particles(60, 1, electrons=1, photons=1, source="geant4")
    generated = make_two_particles(60, 3, electrons=1, photons=2, source="generated")
    for example in _examples(reference, generated, 2):
        ratio = 2 if example.title.endswith("degrees, gamma") else 1
        assert example.title.endswith(("degrees, gamma", "degrees, e-"))
        energy = float(example.title.split()[0])
        assert example.generated.sum() == pytest.approx(26 * ratio * energy, rel=0.35)


def test_figures_of_the_run(tmp_path):
    drawn = save_figures(tmp_path / "made", [lambda: training_curves(HISTORY), lambda: step_profile(PROFILE)])
    assert [figure.name for figure in drawn] == ["training_curves", "step_profile"]
    assert all(figure.title and figure.caption for figure in drawn)
    assert "loss from 3 to 1" in drawn[0].alternative
    check_files(drawn, tmp_path / "made")
    assert save_figures(tmp_path / "none", [lambda: training_curves({})]) == []


def test_a_folder_that_cannot_be_written_is_an_input_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        save_figures(tmp_path / "file", [lambda: training_curves(HISTORY)])


def test_the_history_of_a_training():
    losses = {"step": [10, 20, 30], "loss": [3.0, None, 2.0], "late": [5.0], "never": [None, None, None]}
    found = read_history(losses | {"validation": {"epoch": [1, 2], "deviation": [0.5, 0.4]}})
    assert list(found) == ["loss", "late", "validation deviation"]
    assert found["loss"].x.tolist() == [10, 30] and found["loss"].y.tolist() == [3.0, 2.0]
    assert found["late"].x.tolist() == [30]
    assert found["validation deviation"].position == "epoch"
    assert read_history({}) == {} and read_history({"step": [], "validation": {"epoch": []}}) == {}


def test_the_table_of_the_profile_adds_up():
    shares = shares_of(PROFILE)
    assert shares["generator"]["backPropagation"] == 0.25
    assert shares["no operation"]["inputWait"] == 0.08
    table = profile_table(PROFILE)
    rows = table.texts()
    assert len(table.columns) == len(PARTS) + 2 and all(len(row) == len(table.columns) for row in rows)
    whole = rows[-1]
    assert whole[-1] == "100.0" and table.total
    for column in range(1, len(table.columns)):
        values = [float(row[column] or 0) for row in rows[:-1]]
        assert sum(values) == pytest.approx(float(whole[column] or 0))


def test_bars_reach_from_0_to_their_sums():
    page = step_profile(PROFILE).page
    page.canvas.draw()
    (ax,) = page.axes
    ends: dict[float, float] = {}
    for bar in ax.patches:
        at = round(bar.get_y() + bar.get_height() / 2)
        ends[at] = max(ends.get(at, 0), bar.get_x() + bar.get_width())
    titles = {label.get_text(): round(y) for y, label in zip(ax.get_yticks(), ax.get_yticklabels())}
    assert ends[titles["the whole step"]] == pytest.approx(100)
    assert ends[titles["discriminator, real"]] == pytest.approx(30)
    # Phases that took no time have no bar.
    assert "discriminator, generated" not in titles
