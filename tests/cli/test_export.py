"""The command export: files as the simulations call them, seen with ONNX Runtime alone; checks; bad input."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from scipy.special import erf

from caloscale.cli import model as commands
from caloscale.inference import generator
from caloscale.inference.export import files, formats
from caloscale.inference.export.runtimes import exported
from caloscale.random import latent_noise
from tests.inference.model_folders import COMPACT, make_model

SHAPE, NOISE = (5, 4, 3), 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compact model of 5 x 4 x 3 cells, trained on 5 to 40 GeV and 60 to 120 degrees, accepted."""
    folder = make_model(tmp_path_factory.mktemp("accepted") / "model", "compact", COMPACT)
    (folder / "verdict.json").write_text('{"decision": "accepted", "reasons": ["all gates"]}')
    return folder


@pytest.fixture(scope="module", autouse=True)
def loaded_once() -> Iterator[None]:
    """Each network is read and traced once for all tests here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generator, "load_generator", cache(generator.load_generator))
        yield


@pytest.fixture(scope="module")
def cells(model: Path) -> Callable[..., np.ndarray]:
    """GeV per cell (X, Y, Z) of the Keras network."""
    network = generator.load_generator(model)

    def compute(noise: np.ndarray, energy_gev: float, angle_deg: float) -> np.ndarray:
        angle = np.radians([angle_deg]).astype(np.float32)
        return network.generate_batch(noise[None], np.array([energy_gev], np.float32), angle)[0]

    return compute


@pytest.fixture(scope="module")
def folders(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exports of the model, a folder for each target."""
    folder = tmp_path_factory.mktemp("exports")
    for target in ("par04", "ddml"):
        commands.export(target=target, model=model, output=folder / target)
    return folder


def called(path: Path) -> Callable[..., Any]:
    """As the simulations: one thread, no optimisation, inputs by their order; the first output, flat."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return lambda *tensors: session.run(None, dict(zip(names, tensors, strict=True)))[0].reshape(-1)


def said(path: Path) -> dict[str, str]:
    return {one.key: one.value for one in onnx.load(str(path)).metadata_props}


@pytest.mark.integration
def test_par04_gets_fractions_of_the_energy(folders: Path, cells: Callable) -> None:
    path = folders / "par04" / "generator.onnx"
    call, noise = called(path), latent_noise(3, 0, 2, NOISE)

    def mev(noise: np.ndarray, energy_gev: float, angle_deg: float) -> np.ndarray:
        conditions = [energy_gev * 1000 / 1024000, angle_deg / 90, 0, 1]
        return call(np.concatenate([noise, conditions]).astype(np.float32)[None]) * energy_gev * 1000

    for one, energy, angle in ((noise[0], 10, 90), (noise[1], 33, 71)):
        ours, truth = mev(one, energy, angle), cells(one, energy, angle) * 1000
        assert ours.sum() == pytest.approx(truth.sum(), rel=1e-4)
    # Above and below what was trained, energies and angles are those of the range, scaled to the primary.
    np.testing.assert_allclose(mev(noise[0], 80, 90), 2 * mev(noise[0], 40, 90), rtol=1e-5)
    np.testing.assert_allclose(mev(noise[0], 1, 90), mev(noise[0], 5, 90) / 5, rtol=1e-5)
    np.testing.assert_array_equal(mev(noise[0], 10, 150), mev(noise[0], 10, 120))
    assert not np.allclose(mev(noise[0], 10, 90), mev(noise[1], 10, 90))
    text = (folders / "par04" / "README.md").read_text()
    mesh = said(path)["caloscale.mesh"]
    radius, azimuth, depth = (int(cells) for cells in re.findall(r"(?:radius|azimuth|depth) (\d+)", mesh))
    assert len(mev(noise[0], 10, 90)) == radius * azimuth * depth
    for line in (
        f"/Par04/inference/setNbOfRhoCells {radius}",
        f"/Par04/mesh/setNbOfPhiCells {azimuth}",
        "/Par04/inference/setSizeLatentVector 4",
    ):
        assert line in text.split("\n")


@pytest.mark.integration
def test_ddml_gets_mev_by_layer(folders: Path, cells: Callable) -> None:
    """The network has 5 cells along x: DDML places an even number in the middle, so 10 halves."""
    call, noise = called(folders / "ddml" / "generator.onnx"), latent_noise(4, 0, 1, NOISE)[0]
    uniform = np.full(100, 0.7)  # those behind the latent vector change nothing
    uniform[:NOISE] = erf(noise / np.sqrt(2))

    def mev(energy_gev: float) -> np.ndarray:
        tensors = uniform.astype(np.float32).reshape(1, 100, 1, 1, 1), np.full((1,) * 5, energy_gev, np.float32)
        return call(*tensors)

    ours, truth = mev(20), cells(noise, 20, 90)
    number = 0
    for layer in range(3):
        for x in range(10):
            for y in range(4):
                assert abs(ours[number] - 500 * truth[x // 2, y, layer]) <= 1e-4 * 500 * truth.max()
                number += 1
    assert number == len(ours)
    np.testing.assert_allclose(mev(80), 2 * mev(40), rtol=1e-5)
    uniform[:NOISE] = [1, -1, 1, -1]  # what float32 makes of the ends
    assert np.isfinite(mev(20)).all() and mev(20).sum() > 0
    text = (folders / "ddml" / "README.md").read_text()
    assert "model.NCellsX, model.NCellsY, model.NCellsZ = 10, 4, 3" in text
    assert "model.CellSizeX, model.CellSizeY = 2.55 * mm, 5.1 * mm" in text


@pytest.mark.integration
@pytest.mark.parametrize("target", ["par04", "ddml"])
def test_a_file_is_optimised_and_describes_itself(folders: Path, tmp_path: Path, target: str) -> None:
    path = folders / target / "generator.onnx"
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(tmp_path / "again.onnx")
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    assert len(onnx.load(str(tmp_path / "again.onnx")).graph.node) == len(onnx.load(str(path)).graph.node)
    onnx.checker.check_model(str(path))
    assert {node.domain for node in onnx.load(str(path)).graph.node} <= {"", "ai.onnx"}
    properties = said(path)
    assert properties["caloscale.target"] == target and properties["caloscale.energyRangeGev"] == "5 40"
    assert json.loads(properties["caloscale.verdict"]) == {"decision": "accepted", "reasons": ["all gates"]}
    assert "clamped" in properties["caloscale.outsideRange"]
    names = [value.name for value in (*onnx.load(str(path)).graph.input, *onnx.load(str(path)).graph.output)]
    assert {f"caloscale.units.{name}" for name in names} == {one for one in properties if ".units." in one}


@pytest.mark.long
@pytest.mark.parametrize(
    ("target", "file", "tolerance"),
    [("onnx", "generator.onnx", 1e-5), ("openvino", "generator.xml", 1e-5), ("openvino-int8", "generator.xml", 0.5)],
)
def test_exported_and_checked(
    command: Callable, model: Path, tmp_path: Path, target: str, file: str, tolerance: float
) -> None:
    done = command("export", "--target", target, "--model", model, "-o", tmp_path / "out")
    assert done.code == 0 and str(tmp_path / "out" / file) in done.out, done.err
    checked = command("export", "--check", tmp_path / "out" / file, "--json")
    assert checked.code == 0, checked.err
    report = json.loads(checked.out)
    assert report["target"] == target and report["showers"] == 100 and 0 <= report["deviation"] < tolerance
    # int8 has a verdict of its own.
    verdict = "not assessed" if target == "openvino-int8" else "accepted"
    assert f"Verdict of the validation: {verdict}." in (tmp_path / "out" / "README.md").read_text()


def test_a_target_that_the_gates_rejected_is_not_written(command: Callable, model: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(model, tmp_path / "model", ignore=shutil.ignore_patterns("exports"))
    (Path(exported(copy, "openvino-int8")).parent / "verdict.json").write_text('{"decision": "rejected"}')
    done = command("export", "--target", "openvino-int8", "--model", copy, "-o", tmp_path / "out")
    assert done.code == 2 and "is rejected by its gates as openvino-int8" in done.err
    assert not (tmp_path / "out").exists()


def test_a_generator_that_the_gates_rejected_is_exported_with_a_warning(
    command: Callable, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rejected = shutil.copytree(model, tmp_path / "model", ignore=shutil.ignore_patterns("exports"))
    written = {"target": "onnx", "model": str(rejected), "source": "0", "deviation": 0, "versions": {}}
    record = files.TargetRecord.model_validate({**written, "files": ["generator.onnx"]})
    monkeypatch.setattr(files, "export_model", lambda *_: record)
    for decision, warned in (("accepted", False), ("rejected", True)):
        (rejected / "verdict.json").write_text(json.dumps({"decision": decision}))
        done = command("export", "--target", "onnx", "--model", rejected, "-o", tmp_path / "out", "--json")
        assert done.code == 0 and ("warning: the gates of its run rejected" in done.err) == warned, done.err


def changed(path: Path, output: Path, **properties: str) -> Path:
    """A copy of an ONNX file with other metadata."""
    network = onnx.load(str(path))
    onnx.helper.set_model_props(network, {**said(path), **{f"caloscale.{k}": v for k, v in properties.items()}})
    onnx.save(network, str(output))
    return output


@pytest.mark.integration
@pytest.mark.parametrize("target", ["par04", "ddml"])
def test_a_check_finds_a_changed_file(
    command: Callable, folders: Path, model: Path, tmp_path: Path, target: str
) -> None:
    path = folders / target / "generator.onnx"
    assert command("export", "--check", path).code == 0
    network = onnx.load(str(path))
    weights = max(
        (one for one in network.graph.initializer if one.data_type == onnx.TensorProto.FLOAT),
        key=lambda one: len(one.raw_data),
    )
    values = onnx.numpy_helper.to_array(weights) * np.float32(1.01)
    weights.CopyFrom(onnx.numpy_helper.from_array(values, weights.name))
    onnx.save(network, str(tmp_path / "generator.onnx"))
    done = command("export", "--check", tmp_path / "generator.onnx", "--model", model)
    assert done.code == 2 and "differs from the network" in done.err and "remedy" in done.err


@pytest.mark.integration
def test_files_that_cannot_be_checked(command: Callable, folders: Path, model: Path, tmp_path: Path) -> None:
    path = folders / "par04" / "generator.onnx"
    foreign = onnx.load(str(path))
    del foreign.metadata_props[:]
    onnx.save(foreign, str(tmp_path / "foreign.onnx"))
    (tmp_path / "torn.onnx").write_bytes(path.read_bytes()[:1000])
    for file, problem in (
        (tmp_path / "none.onnx", "is not a file"),
        (model / "model.json", "is neither ONNX nor OpenVINO"),
        (tmp_path / "foreign.onnx", "was not written by caloscale export"),
        (tmp_path / "torn.onnx", "cannot be read"),
        (changed(path, tmp_path / "old.onnx", version="0.0.1"), "written by another version"),
        (changed(path, tmp_path / "lost.onnx"), "model that it was made from is not known"),
        (changed(path, folders / "par04" / "other.onnx", source="0"), "is not the model that"),
    ):
        done = command("export", "--check", file)
        assert done.code == 2 and problem in done.err and "remedy" in done.err, (file, done.err)
    (folders / "par04" / "other.onnx").unlink()


def test_bad_input_leaves_nothing(
    command: Callable, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, empty = tmp_path / "full", tmp_path / "empty"
    for folder in (full, empty):
        folder.mkdir()
    (full / "mine.txt").write_text("mine")
    new = tmp_path / "new"
    for arguments, problem in (
        (("--target", "gaudi", "--model", model, "-o", new), "target: is not known"),
        (("--target", "ddml", "--model", empty, "-o", new), "model.json: cannot be read"),
        (("--target", "ddml", "--model", model, "-o", full), "holds files of others: mine.txt"),
        (("--target", "ddml", "--model", model, "-o", full / "mine.txt"), "is a file"),
        (("--target", "ddml", "--model", model), "--output: is missing"),
        (("--check", full / "generator.onnx", "--target", "ddml"), "--target: does not go with --check"),
    ):
        done = command("export", *arguments)
        assert done.code == 2 and problem in done.err and "remedy" in done.err, (arguments, done.err)

    def write(_: object, graph: object, path: Path, properties: object) -> None:
        path.write_bytes(b"")

    monkeypatch.setattr(formats, "exporter", lambda _: (write, {}))
    monkeypatch.setattr(files, "open_file", lambda *_, **__: lambda *inputs: np.zeros(1))
    done = command("export", "--target", "ddml", "--model", model, "-o", new)
    assert done.code == 2 and "differs from the network in the call of ddml" in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full"]
    assert (full / "mine.txt").read_text() == "mine"
