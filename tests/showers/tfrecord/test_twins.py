"""The same showers twice, in files that differ."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from caloscale.errors import ShowerFileError
from caloscale.showers.hdf5.writer import write_showers
from caloscale.showers.tfrecord import shards as shards_module
from caloscale.showers.tfrecord.shards import preprocess_showers
from caloscale.showers.tfrecord.twins import Twins
from caloscale.spec import Data
from tests.showers.conftest import make_showers


@pytest.mark.parametrize("bytes_of_a_block", [1, shards_module._BLOCK_BYTES])
@pytest.mark.parametrize("form", ["compressed", "merged"])
def test_rewritten_showers_are_refused(
    folder_of_showers: Callable[..., Path],
    data: Data,
    tmp_path: Path,
    form: str,
    bytes_of_a_block: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A compressed copy of one of six files, or two of them merged in another order."""
    monkeypatch.setattr(shards_module, "_BLOCK_BYTES", bytes_of_a_block)
    source = folder_of_showers(*6 * [10])
    parts = [0] if form == "compressed" else [1, 0]
    with h5py.File(source / "again.h5", "w", libver="v110") as file:
        for name in ("ECAL", "energy", "theta"):
            columns = []
            for part in parts:
                with h5py.File(source / f"showers-{part:03d}.h5") as original:
                    columns.append(original[name][()])
                    file.attrs.update(original.attrs)
            file.create_dataset(name, data=np.concatenate(columns), compression="gzip")
    with pytest.raises(ShowerFileError, match=rf"{10 * len(parts)} showers are there twice") as caught:
        preprocess_showers(data, source, tmp_path / "out")
    assert "again.h5" in str(caught.value) and "remove one of the two files" in str(caught.value.remedy)
    assert caught.value.exit_code == 2 and not (tmp_path / "out").exists()


def test_the_example_names_both_places() -> None:
    showers, twins = make_showers(8), Twins()
    twins.add(Path("a.h5"), showers[:3], np.arange(3))
    twins.add(Path("a.h5"), showers[3:6], np.arange(13, 16))
    twins.check()
    twins.add(Path("b.h5"), showers[:0], np.arange(0))
    twins.add(Path("b.h5"), showers[4:8], np.arange(4))
    with pytest.raises(ShowerFileError, match=r"b\.h5: .*2 showers .* shower [01] .* is also shower 1[45] of a\.h5"):
        twins.check()


def test_empty_showers_and_equal_primaries_are_no_twins(data: Data, tmp_path: Path) -> None:
    """Showers of one energy and angle, some of them empty; the smallest sum is 0."""
    for index in range(3):
        showers = make_showers(20, seed=index)
        showers.cells_gev[:5] = 0
        same = np.full(20, 15, np.float32), np.full(20, np.pi / 2, np.float32)
        write_showers(
            tmp_path / "in" / f"{index}.h5", replace(showers, energy_gev=same[0], angle_rad=same[1]), attributes={}
        )
    preprocessing = data.preprocessing.model_copy(update={"minimum_sum_gev": 0.0})
    manifest = preprocess_showers(
        data.model_copy(update={"preprocessing": preprocessing}), tmp_path / "in", tmp_path / "out"
    )
    assert sum(manifest.splits.values()) == 45


@pytest.mark.parametrize(("copied", "refused"), [(3, True), (1, False)])
@pytest.mark.parametrize("change", ["rounded", "scaled", "another energy"])
def test_copies_that_differ_a_little_are_refused_where_they_are_many(change: str, copied: int, refused: bool) -> None:
    showers, twins = make_showers(100, cells=(8, 8, 8)), Twins()
    copies = showers[:copied]
    if change == "another energy":
        copies = replace(copies, energy_gev=copies.energy_gev * np.float32(1.001))
    else:
        cells = copies.cells_gev.astype(np.float16) if change == "rounded" else copies.cells_gev * 1.01
        copies = replace(copies, cells_gev=cells.astype(np.float32))
    twins.add(Path("a.h5"), showers, np.arange(100))
    twins.add(Path("b.h5"), copies, np.arange(copied))
    if not refused:
        return twins.check()
    with pytest.raises(ShowerFileError, match=r"b\.h5: .*3 showers look like rounded or scaled copies"):
        twins.check()
