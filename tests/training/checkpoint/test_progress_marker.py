"""Restarts and lost steps, counted over the lives of a training."""

from __future__ import annotations

from caloscale.training.checkpoint.progress_marker import Life, Mark, next_life, read_mark
from tests.training.processes import start_python


def test_a_killed_process_leaves_its_last_step(tmp_path):
    code = (
        "import os, signal\nfrom pathlib import Path\n"
        "from caloscale.training.checkpoint.progress_marker import Life, Mark\n"
        f"mark = Mark(Path({str(tmp_path / 'mark')!r}), Life(2, 5, 40))\n"
        "for step in range(41, 1000): mark.step(step)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    process = start_python(code)
    process.communicate()
    assert process.returncode == -9
    assert read_mark(tmp_path / "mark") == Life(2, 5, 999)


def test_lives(tmp_path):
    first = next_life(None, None)
    assert first == Life(0, 0, 0)
    # Died at step 12, the last checkpoint was of step 10; then at 11, before any other checkpoint.
    second = next_life(Life(0, 0, 12), Life(0, 0, 10))
    assert second == Life(1, 2, 10)
    third = next_life(Life(1, 2, 11), Life(0, 0, 10))
    assert third == Life(2, 3, 10)
    assert next_life(Life(0, 0, 4), None) == Life(1, 4, 0), "died before the first checkpoint"
    assert next_life(None, Life(3, 7, 20)) == Life(4, 7, 20), "on another machine only the checkpoint knows"


def test_no_mark_and_a_damaged_one(tmp_path):
    assert read_mark(tmp_path / "none") is None
    (tmp_path / "mark").write_bytes(b"\xff\x00 1")
    assert read_mark(tmp_path / "mark") is None
    mark = Mark(tmp_path / "mark", Life(1, 0, 3))
    mark.close()
    assert read_mark(tmp_path / "mark") == Life(1, 0, 3)
