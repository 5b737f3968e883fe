import gzip
import hashlib
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ks_2samp

import caloscale
from caloscale.detector.angle import measured_angle_rad
from caloscale.errors import ShowerFileError, StorageError
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.reader import read_showers
from caloscale.showers.hdf5.writer import write_showers
from caloscale.showers.preprocessing import to_gev, to_network
from caloscale.showers.primaries import rows
from caloscale.showers.sources import sample_of_run
from caloscale.showers.tfrecord import shards as shards_module
from caloscale.showers.tfrecord.manifest import check_shards
from caloscale.showers.tfrecord.records import SCALARS, read_batches, record_positions
from caloscale.showers.tfrecord.shards import ShardWriter, plan_shards, preprocess_showers, read_manifest, read_split
from caloscale.simulation.worker import build_engine, simulate_file
from caloscale.spec import Data, Geometry, LayerGroup, Simulation, load_run
from caloscale.training.selection import selection_showers
from tests.showers.conftest import make_showers, write_published

MakeFolder = Callable[..., Path]


ONE_SHOWER = {"angle_deg": (90, 90), "showers": 1, "simulation": Simulation(engine="parametrised")}


def all_examples(folder: Path) -> dict[str, np.ndarray]:
    manifest = read_manifest(folder)
    batches = [b for shard in manifest.shards for b in read_batches(folder / shard.file, manifest.shape)]
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def changed(data: Data, **preprocessing: object) -> Data:
    return data.model_copy(update={"preprocessing": data.preprocessing.model_copy(update=preprocessing)})


def test_counts_and_provenance_add_up_and_no_tensorflow_is_needed(
    folder_of_showers: MakeFolder, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    source = folder_of_showers(30, 20, 10, 25, 15)
    manifest = preprocess_showers(data.model_copy(update={"source": "simulate"}), source, tmp_path / "out")
    monkeypatch.undo()
    assert manifest == read_manifest(tmp_path / "out")
    check_shards(tmp_path / "out", manifest.shards)
    kept, dropped = sum(manifest.splits.values()), sum(manifest.dropped.values())
    assert kept + dropped == 100 and manifest.source == "geant4" and manifest.shape == (3, 4, 5)
    files = manifest.provenance.files
    assert len(files) == 5 and sum(file.showers for file in files) == 100
    for part in ("train", "validation"):
        assert sum(file.used.get(part, 0) for file in files) == manifest.splits[part]
    assert manifest.provenance.split_method == "by file"
    assert all(len(file.used) == 1 for file in files), "no file is in both splits"
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == sorted(["manifest.json", *(shard.file for shard in manifest.shards)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "showers"]


def test_examples_hold_what_the_networks_see(folder_of_showers: MakeFolder, data: Data, tmp_path: Path) -> None:
    """Against the definition, computed here in float64 for each shower on its own."""
    source = folder_of_showers(12, 12)
    preprocess_showers(data, source, tmp_path / "out")
    examples = all_examples(tmp_path / "out")
    assert len(examples["cells"]) > 15
    originals = [read_showers(path, geometry=data.geometry) for path in sorted(source.iterdir())]
    energies = np.concatenate([o.energy_gev for o in originals])
    cells_gev = np.concatenate([o.cells_gev for o in originals]).astype(np.float64)
    angles = np.concatenate([o.angle_rad for o in originals])
    for index, energy in enumerate(examples["energy_gev"]):
        which = int(np.flatnonzero(energies == energy)[0])
        coarse = cells_gev[which].reshape(3, 2, 4, 5).sum(axis=1)
        coarse[coarse < 1e-4] = 0
        np.testing.assert_allclose(examples["cells"][index], (50 * coarse) ** 0.85, rtol=1e-4, atol=1e-6)
        assert examples["angle_rad"][index] == angles[which]
        assert examples["ecal_sum"][index] == pytest.approx(50 * coarse.sum(), rel=1e-4)
        measured = measured_angle_rad(coarse[None], data.geometry, (2, 1, 1))
        assert examples["measured_angle_rad"][index] == pytest.approx(measured[0], abs=1e-4)


def test_splits_come_back_in_gev(folder_of_showers: MakeFolder, data: Data, tmp_path: Path) -> None:
    source = folder_of_showers(25, 25)
    by_file = data.model_copy(update={"source": "simulate", "validation_fraction": 0.5})
    manifest = preprocess_showers(by_file, source, tmp_path / "out")
    train, held_out = (read_split(tmp_path / "out", part) for part in ("train", "validation"))
    assert (len(train), len(held_out)) == (manifest.splits["train"], manifest.splits["validation"])
    assert train.source == "geant4" and train.cells_gev.shape[1:] == data.shape
    assert not set(train.energy_gev) & set(held_out.energy_gev), "no shower is in both splits"
    first = next(file for file in manifest.provenance.files if "train" in file.used)
    original = read_showers(source / first.name, geometry=data.geometry)
    which = [int(np.flatnonzero(original.energy_gev == energy)[0]) for energy in train.energy_gev]
    coarse = original.cells_gev[which].reshape(-1, 3, 2, 4, 5).sum(axis=2)
    expected = to_gev(to_network(coarse, data.preprocessing), data.preprocessing)
    np.testing.assert_allclose(train.cells_gev, expected, rtol=1e-5)
    for chosen in (np.arange(7), np.array([0, 5, 6, len(train) - 1]), np.arange(1, len(train), 3), np.arange(0)):
        few = read_split(tmp_path / "out", "train", chosen)
        np.testing.assert_array_equal(few.energy_gev, train.energy_gev[chosen])
        np.testing.assert_array_equal(few.cells_gev, train.cells_gev[chosen])


@pytest.mark.parametrize("layout", ["variable-angle", "fixed-angle", "calochallenge"])
def test_every_layout_gives_the_same_showers(tmp_path: Path, data: Data, layout: str) -> None:
    data = changed(data, minimum_sum_gev=0.0)
    path = write_published(tmp_path / "mc.h5", make_showers(20), layout, libver="v110")
    manifest = preprocess_showers(data, path, tmp_path / "out")
    assert manifest.source == "file" and manifest.provenance.files[0].layout == layout
    assert manifest.provenance.split_method == "by shower" and manifest.splits == {"train": 18, "validation": 2}
    np.testing.assert_allclose(
        np.sort(all_examples(tmp_path / "out")["ecal_sum"]),
        np.sort(50 * make_showers(20).ecal_sum_gev),
        rtol=0.01,  # the threshold
    )


@pytest.mark.parametrize(
    ("order", "step", "problem"),
    [
        ((0, 1, 2, 3), 1, ""),
        ((0, 1, 2, 3), -1, "300 showers are nearer to the front at higher energies"),
        ((0, 3, 1, 2), 1, "300 showers are not deeper at higher energies, and change along another axis"),
    ],
)
def test_layers_that_are_reversed_or_another_axis_are_refused(
    tmp_path: Path, data: Data, order: tuple[int, ...], step: int, problem: str
) -> None:
    """Perpendicular showers in as many cells along all axes: neither shape nor inclination shows it. Energy lies one
    layer deeper at three times the energy; pions may begin anywhere, and showers of a generator."""
    random = np.random.default_rng(1)
    energy = np.exp(random.uniform(np.log(5), np.log(40), 300)).astype(np.float32)
    cells = random.gamma(2, 1e-3, (300, 6, 6, 6)) * energy[:, None, None, None] / 20
    cells *= np.exp(-((np.arange(6) - 1 - np.log(energy / 5)[:, None]) ** 2) / 2)[:, None, None, :]
    cells = cells.astype(np.float32)[..., ::step].transpose(order)
    geometry = data.geometry.model_copy(update={"cells": (6, 6, 6), "layers": (LayerGroup(count=6, absorber_mm=2.4),)})
    preprocessing = data.preprocessing.model_copy(update={"rebin": (1, 1, 1), "minimum_sum_gev": 0.0})
    own = {"source": "own", "energy_gev": (5.0, 40.0), "geometry": geometry, "preprocessing": preprocessing}
    data = data.model_copy(update=own)
    write_showers(tmp_path / "s.h5", Showers(cells, energy, np.full(300, np.pi / 2, np.float32)), attributes={})
    with pytest.raises(ShowerFileError, match=problem) if problem else nullcontext():
        preprocess_showers(data, tmp_path / "s.h5", tmp_path / "out")
    assert (tmp_path / "out").exists() == (not problem)
    for particle, source in (("pi-", "file"), ("e-", "generated")):
        with h5py.File(tmp_path / "s.h5", "a") as file:
            file.attrs.update({"particle": particle, "source": source})
        preprocess_showers(data.model_copy(update={"particle": particle}), tmp_path / "s.h5", tmp_path / source)


def test_showers_of_a_cylinder_stay_so(tmp_path: Path, data: Data) -> None:
    """In shards, in the sample that is compared, and as they are simulated."""
    showers = replace(make_showers(20), cell_shape="cylinder")
    caloscale.write_showers(showers, tmp_path / "s.h5")
    cylinder = data.model_copy(update={"geometry": data.geometry.model_copy(update={"cell_shape": "cylinder"})})
    preprocess_showers(cylinder, tmp_path / "s.h5", tmp_path / "out")
    simulated = simulate_file(build_engine(of_one := cylinder.model_copy(update=ONE_SHOWER)), of_one, 0, lambda _: None)
    read = caloscale.read_showers(tmp_path / "s.h5", load_run(preset="compact").model_copy(update={"data": cylinder}))
    for found in (read_split(tmp_path / "out", "train"), sample_of_run(read, cylinder, judged=True), simulated):
        assert found.cell_shape == "cylinder"


def test_own_showers_are_not_taken_for_simulated_ones(
    folder_of_showers: MakeFolder, data: Data, tmp_path: Path
) -> None:
    """Whole files of them would be held out, which may be sorted by energy."""
    simulated = data.model_copy(update={"source": "simulate"})
    with pytest.raises(ShowerFileError, match="are no simulated showers"):
        preprocess_showers(simulated, folder_of_showers(5, 5, source="file"), tmp_path / "out")


def test_dropped_showers_are_counted_by_reason(tmp_path: Path, data: Data) -> None:
    for index in range(3):
        showers = make_showers(10, seed=index)
        showers.energy_gev[0] = 99
        showers.angle_rad[1:3] = np.radians(30)
        showers.cells_gev[3:6] = 0
        write_showers(tmp_path / "in" / f"{index}.h5", showers, attributes={})
    manifest = preprocess_showers(
        data.model_copy(update={"source": "simulate", "showers": 6, "validation_fraction": 1 / 3}),
        tmp_path / "in",
        tmp_path / "out",
    )
    assert manifest.splits == {"train": 6, "validation": 4}
    assert manifest.dropped == {
        "angle outside data.angleDeg": 6,
        "beyond data.showers": 2,
        "energy outside data.energyGev": 3,
        "sum below data.preprocessing.minimumSumGev": 9,
    }


@pytest.mark.parametrize("limit", [3, 6, 12])
@pytest.mark.parametrize("bytes_of_a_block", [1, shards_module._BLOCK_BYTES])
def test_every_shower_is_kept_or_counted(
    tmp_path: Path, data: Data, limit: int, bytes_of_a_block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those outside the ranges in files and blocks that are not read any more."""
    monkeypatch.setattr(shards_module, "_BLOCK_BYTES", bytes_of_a_block)
    for index in range(4):
        showers = make_showers(10, seed=index)
        showers.energy_gev[::3] = 99
        showers.angle_rad[8:] = np.radians(30)
        write_showers(tmp_path / "in" / f"{index}.h5", showers, attributes={})
    manifest = preprocess_showers(data.model_copy(update={"showers": limit}), tmp_path / "in", tmp_path / "out")
    assert sum(manifest.splits.values()) + sum(manifest.dropped.values()) == 40
    assert manifest.dropped["energy outside data.energyGev"] == 16
    assert manifest.dropped["angle outside data.angleDeg"] == 4


def test_files_that_are_not_needed_are_not_read(folder_of_showers: MakeFolder, data: Data, tmp_path: Path) -> None:
    source = folder_of_showers(10, 10, 10, 10)
    few = data.model_copy(update={"source": "simulate", "showers": 5, "validation_fraction": 0.25})
    manifest = preprocess_showers(few, source, tmp_path / "out")
    assert manifest.splits["train"] == 5 and len(manifest.provenance.files) == 2
    assert manifest.dropped["beyond data.showers"] > 20


@pytest.mark.parametrize("files", [1, 8])
@pytest.mark.parametrize("limit", [None, 150])
def test_files_sorted_by_energy_give_samples_of_the_whole_range(
    tmp_path: Path, data: Data, monkeypatch: pytest.MonkeyPatch, files: int, limit: int | None
) -> None:
    """Both splits, the first showers of each, those that select the epoch, and those that are used of too many."""
    monkeypatch.setattr(shards_module, "_SHARD_BYTES", 10 * 4 * 60)  # more shards than a group has
    monkeypatch.setattr(shards_module, "_BLOCK_BYTES", 50 * 4 * 120)
    showers = make_showers(800)
    showers.cells_gev[::5] = 0  # too faint: others are used instead
    showers = showers[np.argsort(showers.energy_gev)]
    for index, part in enumerate(np.split(np.arange(800), files)):
        write_showers(tmp_path / "in" / f"{index}.h5", showers[part], attributes={})
    data = data.model_copy(update={"showers": limit, "validation_fraction": 0.25})
    manifest = preprocess_showers(data, tmp_path / "in", tmp_path / "out")
    assert manifest.splits["train"] == limit or limit is None
    assert sum(manifest.splits.values()) + sum(manifest.dropped.values()) == 800
    held_out = manifest.shards_of("validation")
    bright = showers.energy_gev[showers.cells_gev.any(axis=(1, 2, 3))]
    for split, numbers in product(("train", "validation"), (None, 50)):
        found = read_split(tmp_path / "out", split, None if numbers is None else np.arange(numbers)).energy_gev
        assert len(set(found)) == len(found) and ks_2samp(found, bright).pvalue > 0.01, (split, numbers)
    chosen = read_split(tmp_path / "out", "validation", selection_showers([shard.showers for shard in held_out]))
    assert len(held_out) > 8 and ks_2samp(chosen.energy_gev, bright).pvalue > 0.01


def test_shards_depend_on_showers_and_seed_and_not_on_blocks(
    folder_of_showers: MakeFolder, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded by the block; its size must not change the result."""
    source = folder_of_showers(10, 11)
    whole = preprocess_showers(data, source, tmp_path / "a")
    monkeypatch.setattr(shards_module, "_BLOCK_BYTES", 3 * 4 * 120)
    assert preprocess_showers(data, source, tmp_path / "b") == whole
    other = preprocess_showers(data.model_copy(update={"seed": 2}), source, tmp_path / "c")
    assert other.train_sha256 != whole.train_sha256


def test_from_a_bucket(folder_of_showers: MakeFolder, data: Data, tmp_path: Path, bucket_server: str) -> None:
    from caloscale.storage.objects import download, upload

    source = folder_of_showers(10, 10)
    upload(source, f"{bucket_server}/mc")
    local = preprocess_showers(data, source, tmp_path / "local")
    remote = preprocess_showers(data, f"{bucket_server}/mc", tmp_path / "remote")
    assert remote.shards == local.shards and remote.provenance.files == local.provenance.files
    assert sorted(path.name for path in tmp_path.iterdir()) == ["local", "remote", "showers"]
    upload(tmp_path / "remote", f"{bucket_server}/shards")
    download(f"{bucket_server}/shards", tmp_path / "back")
    check_shards(tmp_path / "back", read_manifest(tmp_path / "back").shards)


def test_rerun_replaces_the_folder(folder_of_showers: MakeFolder, data: Data, tmp_path: Path) -> None:
    source = folder_of_showers(30, 10)
    preprocess_showers(data, source, tmp_path / "out")
    second = preprocess_showers(data.model_copy(update={"showers": 3}), source, tmp_path / "out")
    assert read_manifest(tmp_path / "out") == second and second.splits["train"] == 3
    assert len(list((tmp_path / "out").glob("train-*"))) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "showers"]


def test_other_peoples_folders_are_not_replaced(folder_of_showers: MakeFolder, data: Data, tmp_path: Path) -> None:
    thesis = tmp_path / "out" / "thesis.tex"
    thesis.parent.mkdir()
    thesis.write_text("x")
    with pytest.raises(StorageError, match=r"other files than shards[\s\S]*thesis\.tex"):
        preprocess_showers(data, folder_of_showers(5, 5), tmp_path / "out")
    assert thesis.read_text() == "x"
    records = thesis.rename(thesis.with_name("theirs.tfrecord"))  # of another program: there is no manifest
    with pytest.raises(StorageError, match=r"other files than shards[\s\S]*theirs\.tfrecord"):
        preprocess_showers(data, folder_of_showers(5, 5), tmp_path / "out")
    records.rename(thesis)
    with pytest.raises(StorageError, match="is a file"):
        preprocess_showers(data, tmp_path / "showers", thesis)


@pytest.mark.parametrize("fault", ["late nan", "same file twice", "empty", "dim", "mixed", "detector", "Ctrl-C"])
@pytest.mark.parametrize("earlier", [False, True])
def test_failure_leaves_what_was_there(
    folder_of_showers: MakeFolder,
    data: Data,
    tmp_path: Path,
    fault: str,
    earlier: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    source = folder_of_showers(10, 10, 10)
    before = preprocess_showers(data, source, tmp_path / "out") if earlier else None
    last = source / "showers-002.h5"
    if fault == "late nan":
        with h5py.File(last, "a") as file:
            file["ECAL"][9, 0, 0, 0] = np.nan
    elif fault == "same file twice":
        last.write_bytes((source / "showers-001.h5").read_bytes())
    elif fault == "empty":
        data = data.model_copy(update={"energy_gev": (500.0, 600.0)})
    elif fault == "dim":
        data = changed(data, minimum_sum_gev=1e3)
    elif fault == "mixed":
        write_showers(last, make_showers(3, source="parametrised"), attributes={})
    elif fault == "detector":
        data = data.model_copy(update={"geometry": Geometry()})
    else:
        monkeypatch.setattr(shards_module, "prepare", interrupted)
    with pytest.raises((ShowerFileError, KeyboardInterrupt)) as caught:
        preprocess_showers(data, source, tmp_path / "out")
    if isinstance(caught.value, ShowerFileError):
        assert caught.value.remedy and caught.value.field and caught.value.value is not None
    assert isinstance(caught.value, KeyboardInterrupt) == (fault == "Ctrl-C")
    assert (read_manifest(tmp_path / "out") if earlier else None) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == (["out", "showers"] if earlier else ["showers"])


def relabel(folder: Path, name: str, content: bytes, showers: int | None = None) -> None:
    """Put another shard in place, with a manifest that vouches for it."""
    raw = json.loads((folder / "manifest.json").read_text())
    entry = next(shard for shard in raw["shards"] if shard["file"] == name)
    (folder / name).write_bytes(content)
    if showers is not None:
        raw["splits"][entry["split"]] += showers - entry["showers"]
        entry["showers"] = showers
    entry.update(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    (folder / "manifest.json").write_text(json.dumps(raw))


@pytest.mark.parametrize("fault", ["broken record", "lost record", "wrong count"])
def test_shards_that_are_not_what_the_manifest_says(prepared: Path, fault: str) -> None:
    """Those that have another size or checksum are in the tests of the manifest."""
    name = read_manifest(prepared).shards[0].file
    content = (prepared / name).read_bytes()
    raw = gzip.decompress(content)
    if fault == "broken record":
        relabel(prepared, name, gzip.compress(raw[:100] + b"!" + raw[101:]))
    elif fault == "lost record":
        relabel(prepared, name, content[record_positions(prepared / name)[1] :])
    else:
        relabel(prepared, name, content, showers=5)
    with pytest.raises(ShowerFileError, match=name):
        read_split(prepared, "train")


@given(st.integers(1, 2_000_000), st.sampled_from([(17, 17, 25), (51, 51, 25), (2, 2, 2)]))
def test_plan_holds_all_showers_in_shards_of_bounded_size(showers: int, shape: tuple[int, int, int]) -> None:
    for part in ("train", "validation"):
        shards, showers_per_shard = plan_shards(part, showers, shape)
        assert shards * showers_per_shard >= showers
        assert showers_per_shard * 4 * np.prod(shape) <= 128 * 2**20 + 4 * np.prod(shape)
        assert 1 <= shards <= showers


@pytest.mark.parametrize(("showers", "shards"), [(1, 1), (5, 5), (1440, 8), (8000, 16), (124_950, 256)])
def test_training_shards_divide_among_workers(showers: int, shards: int) -> None:
    assert plan_shards("train", showers, (51, 51, 25))[0] == shards


@pytest.mark.parametrize(
    ("plan", "count", "expected"),
    [
        ((8, 3), 24, [3] * 8),
        ((8, 3), 22, [3] * 6 + [2] * 2),
        ((20, 2), 40, [2] * 20),  # more than a group
        ((20, 2), 35, [2] * 16 + [1] * 3),  # fewer came than planned
        ((8, 3), 5, [1] * 5),
    ],
)
def test_showers_are_spread_evenly(tmp_path: Path, plan: tuple[int, int], count: int, expected: list[int]) -> None:
    numbers = np.arange(count, dtype=np.float32)
    showers = {"cells": np.ones((count, 1, 1, 1), np.float32), **dict.fromkeys(SCALARS, numbers)}
    with ShardWriter(tmp_path, "train", *plan) as writer:
        for part in np.array_split(np.random.default_rng(1).permutation(count), 2):
            writer.write(rows(showers, part), part)
        shards = writer.finish()
    assert [shard.showers for shard in shards] == expected
    names = [f"train-{index:05d}-of-{len(expected):05d}.tfrecord" for index in range(len(expected))]
    assert [shard.file for shard in shards] == names == sorted(path.name for path in tmp_path.iterdir())
    found = [next(read_batches(tmp_path / shard.file, (1, 1, 1)))["ecal_sum"] for shard in shards]
    assert sorted(np.concatenate(found)) == numbers.tolist()
    group = np.concatenate(found[:16])
    assert sorted(group) == list(range(len(group))), "the first group of shards holds the first showers"
