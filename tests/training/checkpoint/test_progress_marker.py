"""Restarts and lost steps, counted over the attempts of a training."""

from caloscale.training.checkpoint.progress_marker import AttemptMark, ProgressMarker, next_attempt, read_marker
from tests.training.processes import start_python


def test_a_killed_process_leaves_its_last_step(tmp_path):
    code = (
        "import os, signal\nfrom pathlib import Path\n"
        "from caloscale.training.checkpoint.progress_marker import AttemptMark, ProgressMarker\n"
        f"marker = ProgressMarker(Path({str(tmp_path / 'progress-marker')!r}), AttemptMark(2, 5, 40))\n"
        "for step in range(41, 1000): marker.write(step)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    process = start_python(code)
    process.communicate()
    assert process.returncode == -9
    assert read_marker(tmp_path / "progress-marker") == AttemptMark(2, 5, 999)


def test_attempts(tmp_path):
    first = next_attempt(None, None)
    assert first == AttemptMark(0, 0, 0)
    # Killed at step 12, the last checkpoint was of step 10; then at 11, before any other checkpoint.
    second = next_attempt(AttemptMark(0, 0, 12), AttemptMark(0, 0, 10))
    assert second == AttemptMark(1, 2, 10)
    third = next_attempt(AttemptMark(1, 2, 11), AttemptMark(0, 0, 10))
    assert third == AttemptMark(2, 3, 10)
    assert next_attempt(AttemptMark(0, 0, 4), None) == AttemptMark(1, 4, 0), "killed before the first checkpoint"
    assert next_attempt(None, AttemptMark(3, 7, 20)) == AttemptMark(4, 7, 20), (
        "on another machine only the checkpoint knows"
    )


def test_no_marker_and_a_damaged_one(tmp_path):
    assert read_marker(tmp_path / "none") is None
    (tmp_path / "progress-marker").write_bytes(b"\xff\x00 1")
    assert read_marker(tmp_path / "progress-marker") is None
    marker = ProgressMarker(tmp_path / "progress-marker", AttemptMark(1, 0, 3))
    marker.close()
    assert read_marker(tmp_path / "progress-marker") == AttemptMark(1, 0, 3)
