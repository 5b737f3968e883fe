"""caloscale inspect, as its user sees it."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--picture", "x.xyz"], ".svg"),
        (["--picture", "x"], ".svg"),
        (["--json", "--picture", "j.png"], "--picture"),
    ],
)
def test_a_picture_that_cannot_be_is_refused_before_anything_is_read(command, tmp_path, monkeypatch, options, says):
    monkeypatch.chdir(tmp_path)
    done = command("inspect", "absent.h5", *options)
    assert done.code == 2 and says in done.err and "remedy" in done.err
    assert list(tmp_path.iterdir()) == []
