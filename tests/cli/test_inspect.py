"""caloscale inspect, as its user sees it."""

import h5py
import numpy as np
import pytest


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--picture", "x.xyz"], ".svg"),
        (["--picture", "x"], ".svg"),
        (["--json", "--picture", "j.png"], "--picture"),
        (["--shower", "3"], "--picture"),
    ],
)
def test_a_picture_that_cannot_be_is_refused_before_anything_is_read(command, tmp_path, monkeypatch, options, says):
    monkeypatch.chdir(tmp_path)
    done = command("inspect", "absent.h5", *options)
    assert done.code == 2 and says in done.err and "remedy" in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_picture_is_drawn_where_it_is_asked_for_alone(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with h5py.File("own.h5", "w") as file:
        file["ECAL"] = np.random.default_rng(1).random((2, 4, 4, 3)).astype(np.float32)
        file["energy"], file["theta"] = np.full(2, 10.0), np.full(2, np.pi / 2)
    assert command("inspect", "own.h5").code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["own.h5"]
    done = command("inspect", "own.h5", "--picture", "second.png", "--shower", "1")
    assert done.code == 0 and "picture: second.png" in done.out
    assert (tmp_path / "second.png").read_bytes().startswith(b"\x89PNG")
