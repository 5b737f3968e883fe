"""What a generation writes, and one that is stopped at any place."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import h5py
import numpy as np
import pytest

import caloscale
from caloscale import stages
from caloscale.errors import InputError, ShowerFileError, Terminated
from caloscale.inference.runtime import Runtime
from caloscale.models.card import read_card
from caloscale.showers.hdf5.layouts import Layout
from caloscale.showers.inspection import describe_file, read_one
from caloscale.showers.sources import survey_file
from caloscale.stages import generation
from tests.inference.model_folders import COMPACT, shared_model

COUNT = 12
TRACED = ("stream.py", "writer.py", "generation.py", "thread.py", "_base.py", "threading.py", "std.py", "atomic.py")
"""Files of ours and of Python whose lines are the places."""


class Ones(Runtime):
    """Cells of 1 GeV."""

    def _compute(self, inputs: dict[str, Any]) -> Any:
        return np.ones((len(inputs["noise"]), *self.card.shape), np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_model(tmp_path_factory, "compact", COMPACT)


@pytest.fixture(scope="module")
def rebinned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same cells, from 10 x 12 x 3 of the detector."""
    cells = ("data.geometry.cells=[10, 12, 3]", "data.preprocessing.rebin=[2, 3, 1]")
    return shared_model(tmp_path_factory, "compact", (*COMPACT, *cells))


@pytest.mark.parametrize("layout", ["variable-angle", pytest.param("calochallenge", marks=pytest.mark.integration)])
@pytest.mark.parametrize("model_name", ["rebinned", pytest.param("model", marks=pytest.mark.integration)])
def test_what_was_generated_is_read_back(
    model_name: str, layout: Layout, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """In each layout that is written; by `read_showers` with the run of the model, and of its first shower."""
    folder, output = request.getfixturevalue(model_name), tmp_path / "s.h5"
    wanted = generation.Generation(output=output, count=5, energies="10,20", angles="70,100", layout=layout)
    assert not any("combinations" in warning for warning in stages.generate(folder, wanted).warnings)
    generator = caloscale.Generator.load(folder)
    found = caloscale.read_showers(output, generator.run)
    made = generator.generate(found.energy_gev, found.angle_rad, seed=1)
    np.testing.assert_allclose(found.cells_gev, made.cells_gev, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(found.energy_gev, [10, 20, 10, 20, 10], rtol=1e-6)
    np.testing.assert_allclose(np.degrees(found.angle_rad), [70, 70, 100, 100, 70], rtol=1e-6)
    assert found.source == "generated" and describe_file(output).showers == 5
    data = generator.run.data
    other = data.model_copy(update={"geometry": data.geometry.model_copy(update={"cell_mm": 6.0})})
    for name, showers in (("read.h5", found), ("made.h5", made[:2])):
        caloscale.write_showers(showers, tmp_path / name, rebin=data.preprocessing.rebin)
    for name in ("s.h5", "read.h5", "made.h5"):
        with pytest.raises(ShowerFileError, match=r"geometry\.cellMm: the showers were made with another value"):
            caloscale.read_showers(tmp_path / name, generator.run.model_copy(update={"data": other}))
    if layout == "variable-angle":
        np.testing.assert_array_equal(read_one(output, 2)[0].cells_gev, found.cells_gev[2:3])
        some = generation.Generation(output=tmp_path / "some.h5", count=2, energies=str(output))
        assert "2 of the 5 primaries" in stages.generate(folder, some).warnings[0]
        with pytest.raises(InputError, match="count: must be at least 1"):
            stages.generate(folder, replace(some, count=0))
        few = replace(wanted, output=tmp_path / "few.h5", count=3)
        assert "3 of the 4 combinations" in stages.generate(folder, few).warnings[0]
    if model_name == "rebinned":
        other = generator.run.model_copy(
            update={
                "data": generator.run.data.model_copy(
                    update={"preprocessing": generator.run.data.preprocessing.model_copy(update={"rebin": (5, 3, 1)})}
                )
            }
        )
        with pytest.raises(ShowerFileError, match="attribute rebin: cells are re-binned by 2x3x1, and 5x3x1 is wanted"):
            caloscale.read_showers(output, other)
        with pytest.raises(ShowerFileError, match="to train, give showers that are not re-binned"):
            survey_file(output, generator.run.data)


@contextmanager
def signal_at(line: int, number: signal.Signals) -> Iterator[list[int]]:
    """The signal comes at this line of `TRACED`, counted from the first of the loop; the list has their number."""
    counted = [0]
    begun = False

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal begun
        if not frame.f_code.co_filename.endswith(TRACED):
            return None
        begun = begun or frame.f_code is generation._write.__code__
        if event == "line" and begun:
            counted[0] += 1
            if counted[0] == line:
                signal.raise_signal(number)
        return trace

    sys.settrace(trace)
    try:
        yield counted
    finally:
        sys.settrace(None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.timeout(300)
def test_a_signal_at_any_line_ends_it_and_leaves_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Not one place may hold a lock for ever, lose the signal or report another error."""
    runtime = Ones(read_card(model), 4, streams=2)
    monkeypatch.setattr(generation, "open_runtime", lambda *_, **__: runtime)
    monkeypatch.setattr(generation, "load_tensorflow_quietly", lambda: None)
    output = tmp_path / "a.h5"
    wanted = generation.Generation(output=output, count=COUNT, batch=2)
    with signal_at(0, number) as lines:
        stages.generate(model, wanted)
    assert lines[0] > 500
    output.write_text("earlier")
    outcomes = []
    for line in range(1, lines[0], 37):
        try:
            with signal_at(line, number):
                stages.generate(model, wanted)
        except generation.GenerationStoppedError as error:
            assert error.exit_code == 128 + number
            assert output.read_text() == "earlier"
            outcomes.append("stopped")
        except (KeyboardInterrupt, Terminated):
            outcomes.append("written")
        else:
            outcomes.append("written")
        if outcomes[-1] == "written":  # the signal came when the file was complete
            with h5py.File(output) as file:
                assert len(file["ECAL"]) == COUNT
            output.write_text("earlier")
        assert [path.name for path in tmp_path.iterdir()] == ["a.h5"]
    # The number of lines varies with how long its threads are waited for, so the last ones are in no order.
    assert outcomes.count("stopped") > 0.5 * len(outcomes)
