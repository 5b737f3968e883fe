"""The names that a notebook uses: these, typed and described, without TensorFlow until it is needed."""

import inspect
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import h5py
import numpy as np
import pytest

import caloscale
from caloscale import stages
from caloscale.errors import InputError, ShowerFileError
from caloscale.planning.search.own_machine import reference_speeds
from caloscale.showers.arrays import Showers
from caloscale.showers.sources import detector_of
from caloscale.showers.tfrecord.shard_folder import open_shards
from caloscale.stages.comparison import compare_runs
from caloscale.stages.planning import keep_speeds
from caloscale.stages.validation import monte_carlo
from tests.physics.conftest import DATA, make_showers
from tests.pipelines.conftest import OVERRIDES

CLASSES = {"Evaluation", "Generator", "Run", "Showers"}
NAMES = CLASSES | {
    "bill",
    "evaluate",
    "load_run",
    "plan",
    "read_showers",
    "run",
    "simulate",
    "train",
    "validate",
    "write_showers",
}


def test_the_public_names_are_these() -> None:
    assert set(caloscale.__all__) == NAMES == {name for name in dir(caloscale) if name[0] != "_"}
    for name in NAMES - CLASSES:
        function = getattr(caloscale, name)
        signature = inspect.signature(function)
        assert inspect.getdoc(function) and signature.return_annotation is not signature.empty
        assert all(p.annotation is not p.empty for p in signature.parameters.values())
    with pytest.raises(AttributeError, match="absent"):
        _ = caloscale.absent


def test_nothing_heavy_is_loaded_before_it_is_used() -> None:
    program = (
        "import sys, caloscale; print('numpy' in sys.modules)\n"
        "run = caloscale.load_run(preset='variable-angle', overrides=['hardware.accelerator=nvidia-tesla-v100'])\n"
        "chosen = caloscale.plan(run).chosen; print(chosen is not None and chosen.usd > 0)\n"
        "print({'tensorflow', 'threadpoolctl', 'sklearn', 'matplotlib'} & set(sys.modules) or 'none')"  # of extras
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "none"]


def test_showers_come_in_the_cells_of_the_networks(tmp_path: Path) -> None:
    run = caloscale.load_run(preset="compact")
    cells = np.random.default_rng(1).random((3, *run.data.geometry.cells)).astype(np.float32)
    with h5py.File(tmp_path / "own.h5", "w") as file:
        file["ECAL"] = cells.swapaxes(1, 2) * 50  # stored in units of 20 MeV, with the inclined axis second
        file["energy"], file["theta"] = np.full(3, 10.0), np.full(3, np.pi / 2)
    showers = caloscale.read_showers(tmp_path / "own.h5", run, start=1)
    assert showers.cells_gev.shape == (2, *run.data.shape)
    np.testing.assert_allclose(showers.ecal_sum_gev, cells[1:].sum((1, 2, 3)), rtol=1e-5)


def test_cells_in_another_unit_than_the_layout_has_are_not_read(tmp_path: Path) -> None:
    """GeV in a file that does not state it would be taken for 1/50 GeV, and a good generator be rejected."""
    run = caloscale.load_run(preset="compact").model_copy(update={"data": DATA})
    showers = make_showers(20, 1)
    caloscale.write_showers(showers, path := tmp_path / "gev.h5", rebin=DATA.preprocessing.rebin)
    with h5py.File(path, "a") as file:
        file["ECAL"][...] = showers.cells_gev.swapaxes(1, 2)
        del file.attrs["unitsPerGev"]
    with pytest.raises(ShowerFileError, match=r"(?s)gev\.h5: ECAL: cells sum up to .* attribute unitsPerGev"):
        caloscale.read_showers(path, run)
    assert len(caloscale.read_showers(path, run, stop=5)) == 5  # too few to say
    with h5py.File(path, "a") as file:
        file.attrs["unitsPerGev"] = 1.0
    np.testing.assert_allclose(caloscale.read_showers(path, run).ecal_sum_gev, showers.ecal_sum_gev, rtol=1e-5)


def test_showers_keep_their_primary(tmp_path: Path) -> None:
    """A file of photons is refused in a run of electrons, and so are its showers from one of photons."""
    run = caloscale.load_run(preset="compact").model_copy(update={"data": DATA})
    photons = run.model_copy(update={"data": DATA.model_copy(update={"particle": "gamma"})})
    electrons = make_showers(6, 1)
    caloscale.write_showers(electrons, path := tmp_path / "photons.h5", rebin=DATA.preprocessing.rebin)
    assert set(caloscale.read_showers(path, run).further["pdg"]) == {11}
    with h5py.File(path, "a") as file:
        file.attrs["particle"] = "gamma"
    showers = caloscale.read_showers(path, photons)
    for name in ("again.h5", "again.npz"):
        caloscale.write_showers(showers, tmp_path / name, rebin=DATA.preprocessing.rebin)
        with pytest.raises(InputError, match=r"holds showers of gamma, the run configuration is one of e-"):
            caloscale.read_showers(tmp_path / name, run)
    with pytest.raises(InputError, match=r"generated: 6 of 6 showers have their primary not in data\.particle"):
        caloscale.evaluate(showers, reference=electrons, run=run)


def test_showers_of_another_detector_are_not_read(tmp_path: Path) -> None:
    """Of as many cells: they would be judged as a generator's."""
    run = caloscale.load_run(preset="compact").model_copy(update={"data": DATA})
    caloscale.write_showers(make_showers(6, 1), path := tmp_path / "showers.h5", rebin=DATA.preprocessing.rebin)
    for cell_mm in (7.0, 6.0):
        with h5py.File(path, "a") as file:
            file.attrs["simulatedDetector"] = json.dumps({**detector_of(DATA), "data.geometry.cellMm": cell_mm})
        if cell_mm == 7:
            assert len(caloscale.read_showers(path, run)) == 6
            continue
        with pytest.raises(ShowerFileError, match=r"geometry\.cellMm: the showers were made with another value"):
            caloscale.read_showers(path, run)
    other = replace(make_showers(6, 2), detector=json.dumps({**detector_of(DATA), "data.geometry.cellMm": 6.0}))
    caloscale.write_showers(other, tmp_path / "other.npz")
    for showers in (other, tmp_path / "other.npz"):
        with pytest.raises(ShowerFileError, match=r"geometry\.cellMm: the showers were made with another value"):
            caloscale.evaluate(showers, reference=make_showers(6, 1), run=run)


def test_a_run_in_a_line() -> None:
    run = caloscale.load_run(preset="compact", overrides=["data.showers=300", "train.epochs=2"])
    assert repr(run) == "Run(compact, 300 showers, 2 epochs, this machine)"
    with pytest.raises(InputError, match="generate: must be at least 1"):
        caloscale.plan(run, generate=-1)


def test_a_plan_counts_the_measured_machine_as_the_command_does() -> None:
    run, reference = caloscale.load_run(preset="compact"), reference_speeds()[0]
    keep_speeds([reference.model_copy(update={"source": "measured here"})])
    found = caloscale.plan(run, generate=1000)
    assert found.own_training.source == "measured here"
    assert all(offer.basis.startswith("measured here") for offer in found.making.offers)


def test_showers_in_a_line_and_in_a_notebook() -> None:
    showers = replace(make_showers(3, 1), source="generated", seed=7)
    cells = " x ".join(map(str, showers.cells_gev.shape[1:]))
    assert repr(showers).startswith(f"Showers(3 of {cells} cells, ") and repr(showers).endswith("generated, seed 7)")
    assert (
        showers[:2].seed == 7
        and showers[1:].seed is None
        and repr(showers[:0]) == f"Showers(0 of {cells} cells, generated, seed 7)"
    )
    page = ElementTree.fromstring(f"<div>{showers._repr_html_()}</div>")
    heights = [float(bar.get("height", "nan")) for bar in page.iter("rect")]
    layers_gev = showers.cells_gev.sum((1, 2)).mean(0)
    np.testing.assert_allclose(heights, 60 * layers_gev / layers_gev.max(), atol=0.06)
    assert "<svg" not in showers[:0]._repr_html_()


def test_an_evaluation_has_the_monte_carlo_showers_that_a_run_uses() -> None:
    """Those whose sum is not above the minimum are not in shards; of a generator all are judged."""
    run = caloscale.load_run(preset="compact", overrides=["validation.bootstraps=20", "validation.energyBins=1"])
    preprocessing = DATA.preprocessing.model_copy(update={"minimum_sum_gev": 0.15})
    run = run.model_copy(update={"data": DATA.model_copy(update={"preprocessing": preprocessing})})
    reference, training, made = make_showers(60, 1), make_showers(70, 2), make_showers(80, 3)
    bright = [int((each.ecal_sum_gev > 0.15).sum()) for each in (reference, training, made)]
    assert bright[0] < 60 and bright[1] < 70 and bright[2] < 80
    for source, judged in (("generated", 80), ("file", 80), ("geant4", bright[2])):
        generated = replace(made, source=source)
        counts = caloscale.evaluate(generated, reference=reference, training=training, run=run).showers
        assert (counts.reference, counts.training, counts.generated) == (*bright[:2], judged)
    for bad in (np.nan, -1.0):  # no showers that are merely faint
        spoilt = replace(reference, cells_gev=reference.cells_gev.copy())
        spoilt.cells_gev[5] = bad
        with pytest.raises(InputError, match=r"reference: showers with cells that are not finite or negative .got 1"):
            caloscale.evaluate(made, reference=spoilt, training=training, run=run)
    faint = replace(reference, cells_gev=reference.cells_gev * np.float32(1e-3))
    for given, field in (({"reference": faint}, "reference"), ({"reference": reference[:0]}, "reference")):
        with pytest.raises(InputError, match=f"{field}: holds no showers that a run uses"):
            caloscale.evaluate(made, **given, run=run)
    in_mev = replace(training, cells_gev=training.cells_gev * np.float32(1e3))  # classifiers would learn the unit
    for given in ({"reference": in_mev}, {"reference": reference, "training": in_mev}):
        with pytest.raises(InputError, match=f"{list(given)[-1]}: have cells that sum up to more"):
            caloscale.evaluate(made, **given, run=run)
    with pytest.raises(InputError, match="generated: holds no showers that a run uses, of 0"):
        caloscale.evaluate(made[:0], reference=reference, run=run)


@pytest.mark.integration
def test_an_evaluation_decides_by_the_gates_of_the_run() -> None:
    auc = "quantity: classifierAuc, showers"
    gates = f"[{{{auc}: 1000, drop: true}}, {{{auc}: 200, tolerance: 0.9}}]"
    run = caloscale.load_run(
        preset="compact", overrides=[f"validation.gates={gates}", "validation.bootstraps=20", "validation.energyBins=1"]
    )
    run = run.model_copy(update={"data": DATA})
    reference, training = make_showers(300, 1), make_showers(300, 2)

    def decide(generated: Showers) -> str:
        evaluation = caloscale.evaluate(generated, reference=reference, training=training, run=run)
        assert repr(evaluation).startswith(f"Evaluation({evaluation.decision}; gates: ")
        page = ElementTree.fromstring(f"<div>{evaluation._repr_html_()}</div>")
        assert len(list(page.iter("tr"))) == len(evaluation.gates) and page.find("b") is not None
        return evaluation.decision

    with pytest.raises(InputError, match=r"(?s)reference: are generated, .* exchange generated and reference"):
        caloscale.evaluate(reference, reference=replace(reference, source="generated"), run=run)
    for name, pair in (("generated", (reference, training)), ("training", (training, reference))):
        with pytest.raises(InputError, match=f"{name}: holds showers of the reference .got 300"):
            caloscale.evaluate(pair[0], reference=reference, training=pair[1], run=run)
    with pytest.raises(InputError, match=r"generated: 300 of 300 showers have their energy outside"):
        decide(replace(reference, energy_gev=reference.energy_gev * 100))
    low = training.energy_gev < 20
    for name, given in (("generated", (training[low], training)), ("training", (training, training[low]))):
        with pytest.raises(InputError, match=f"{name}: has primaries of another distribution"):
            caloscale.evaluate(given[0], reference=reference, training=given[1], run=run)
    ranged = run.model_copy(update={"data": DATA.model_copy(update={"azimuth_deg": (-90.0, 90.0)})})
    with pytest.raises(InputError, match=r"reference: have no column azimuth_rad, and the run has a range of it"):
        caloscale.evaluate(training, reference=reference, run=ranged)
    azimuth_rad = np.random.default_rng(1).uniform(-1.5, 1.5, 300).astype(np.float32)
    known = replace(reference, further={"azimuth_rad": azimuth_rad[::-1]})
    same, turned = (
        caloscale.evaluate(replace(training, further={"azimuth_rad": given}), reference=known, run=ranged)
        for given in (azimuth_rad, np.mod(azimuth_rad, np.float32(2 * np.pi)))  # the same directions
    )
    assert turned.classifier.value == pytest.approx(same.classifier.value, abs=0.02)
    assert decide(make_showers(600, 3)) in ("accepted", "undecided")
    coarse = DATA.preprocessing.model_copy(update={"threshold_gev": 1e-3})
    made = make_showers(600, 3)  # as a network makes them that was trained with this threshold
    made = replace(made, cells_gev=np.where(made.cells_gev < 1e-3, np.float32(0), made.cells_gev))
    coarse_run = run.model_copy(update={"data": DATA.model_copy(update={"preprocessing": coarse})})
    found = caloscale.evaluate(made, reference=reference, training=training, run=coarse_run)
    assert abs(found.quantities["response"].differences[0].value) < 2
    assert decide(make_showers(600, 3, response=1.3)) == "rejected"
    faint = DATA.preprocessing.model_copy(update={"minimum_sum_gev": float(np.median(reference.ecal_sum_gev))})
    faint_run = run.model_copy(update={"data": DATA.model_copy(update={"preprocessing": faint})})
    made = replace(make_showers(300, 3), source="generated")
    found = caloscale.evaluate(made, reference=reference, training=training, run=faint_run)
    assert found.showers.reference == 150 and "compared at other primaries" in found.warnings[-1]
    with pytest.raises(InputError, match="generated: has primaries of another distribution"):
        caloscale.evaluate(made[made.energy_gev < 20], reference=reference, training=training, run=faint_run)


@pytest.mark.integration
def test_an_evaluation_of_two_files_has_histograms(tmp_path: Path) -> None:
    """Half of the reference is what the others are compared with; the sums are those of the showers."""
    run = caloscale.load_run(preset="compact", overrides=["validation.bootstraps=20", "validation.energyBins=1"])
    run = run.model_copy(update={"data": DATA})
    generated, reference = make_showers(200, 3), make_showers(400, 1)
    caloscale.write_showers(generated, tmp_path / "made.npz")
    caloscale.write_showers(reference, tmp_path / "held-out.h5", rebin=(2, 2, 1))
    evaluation = caloscale.evaluate(tmp_path / "made.npz", reference=tmp_path / "held-out.h5", run=run)
    assert (evaluation.showers.reference, evaluation.showers.training, evaluation.showers.generated) == (200, 200, 200)
    with h5py.File(shutil.copy(tmp_path / "held-out.h5", tmp_path / "photons.h5"), "a") as photons:
        photons.attrs["particle"] = "gamma"
    with pytest.raises(InputError, match="holds showers of gamma"):
        caloscale.evaluate(tmp_path / "made.npz", reference=tmp_path / "photons.h5", run=run)
    found = evaluation.histograms
    assert set(found) > {"longitudinalProfile", "cellSpectrum", "ecalSum", "momentsTransverse6", "showerMaximum"}
    profile = found["longitudinalProfile"]["generated", :]
    above = generated.cells_gev >= DATA.preprocessing.threshold_gev
    layers_gev = np.where(above, generated.cells_gev, 0).astype(np.float64).sum(axis=(1, 2))
    np.testing.assert_allclose(profile.values(), layers_gev.sum(axis=0), rtol=1e-5)
    np.testing.assert_allclose(profile.variances(), (layers_gev**2).sum(axis=0), rtol=1e-5)
    sums, edges = found["ecalSum"]["generated", :], found["ecalSum"].axes[1].edges
    index = np.searchsorted(edges, 1e3 * layers_gev.sum(axis=1), side="right") - 1
    np.testing.assert_array_equal(sums.values(), [np.count_nonzero(index == b) for b in range(len(edges) - 1)])
    assert found["showerMaximum"].sum(flow=True).value == 600
    with pytest.raises(InputError, match="are not kept in the files of a run"):
        _ = type(evaluation).model_validate_json(evaluation.model_dump_json(by_alias=True)).histograms


@pytest.mark.integration
def test_a_run_from_python_is_that_of_the_commands(tmp_path: Path) -> None:
    """All stages, then the stages apart in the same folder: the same records."""
    run = caloscale.load_run(preset="compact", overrides=[*OVERRIDES, "data.simulation.engine=parametrised"])
    summary = caloscale.run(run, name="first", runs=tmp_path)
    folder = tmp_path / "first"
    assert summary.outcome == "succeeded"
    assert json.loads((folder / "summary.json").read_text()) == summary.model_dump(mode="json", by_alias=True)
    assert caloscale.bill(folder).usd == summary.bill.usd
    assert caloscale.train(run, workspace=folder).steps == summary.train.steps
    with pytest.raises(InputError, match="again after its report"):
        compare_runs([folder, tmp_path / "made.h5"])
    evaluation = caloscale.validate(run, workspace=folder)
    assert summary.physics is not None and evaluation.decision == summary.physics.decision
    generator = caloscale.Generator.load(folder / "training" / "model")
    stages.generate(folder / "training" / "model", stages.Generation(output=tmp_path / "made.h5", count=64))
    summary = stages.report(run, folder).summary
    first, file = compare_runs([folder, tmp_path / "made.h5"])
    assert first.evaluation == evaluation and first.usd == summary.bill.usd and file.network.endswith("gates of first")
    made = caloscale.read_showers(tmp_path / "made.h5", run)
    assert file.evaluation.showers.generated == 64 and len(made) == 64
    with h5py.File(shutil.copy(tmp_path / "made.h5", tmp_path / "photons.h5"), "a") as photons:
        photons.attrs["particle"] = "gamma"
    beyond = replace(made, energy_gev=100 * made.energy_gev)
    caloscale.write_showers(beyond, tmp_path / "beyond.npz")
    lowest = replace(made, energy_gev=np.full(64, run.data.energy_gev[0], np.float32))
    caloscale.write_showers(lowest, tmp_path / "one-energy.npz")
    for name, problem in (
        ("photons.h5", "holds showers of gamma"),
        ("beyond.npz", "64 of 64 .* energy outside"),
        ("one-energy.npz", r"one-energy\.npz: has primaries of another distribution"),
    ):
        with pytest.raises(InputError, match=problem):
            compare_runs([folder, tmp_path / name])
    with open_shards(folder / "dataset") as shards:
        reference, training = monte_carlo(run, shards)
    own = caloscale.evaluate(made, reference=reference, training=training, run=run)
    values = [
        [d.value for one in each.quantities.values() for d in one.differences if d.value is not None]
        for each in (file.evaluation, own)
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-3) and generator.card.shape == run.data.shape
    files = caloscale.simulate(run, tmp_path / "showers")
    assert [file.name for file in files] == sorted(file.name for file in (folder / "showers").glob("*.h5"))
    (made_by_pipeline := folder / "pipeline" / "first" / "preprocess").mkdir(parents=True)  # as `make run` leaves it
    (folder / "dataset").rename(made_by_pipeline / "dataset")
    assert compare_runs([folder, tmp_path / "made.h5"])[1].evaluation == file.evaluation
