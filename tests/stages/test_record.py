"""Records of stages: what is measured, what a failure leaves, what a new attempt clears."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from caloscale import spec
from caloscale.errors import InputError, PeerLostError, ShowerFileError, Terminated
from caloscale.stages.record import ENVIRONMENT, adopt_records, ended_well, read_earlier, read_records, recorded
from caloscale.stages.solving import report_solution
from tests.processes import UNTIL_STOPPED, running, wait_for


def test_times_figures_and_memory_are_measured(tmp_path: Path) -> None:
    block = None
    with recorded("train", tmp_path) as figures:
        until = time.process_time() + 0.2
        while time.process_time() < until:
            block = bytearray(64 * 2**20)
        figures["steps"] = 7
    assert block is not None
    record = read_records(tmp_path)["train"]
    assert record.outcome == "succeeded" and record.exit_code == 0
    assert record.figures == {"steps": 7}
    assert record.core_seconds >= 0.2
    assert record.seconds > 0
    assert record.peak_memory_mib > 64
    assert record.machine.cores >= 1 and record.machine.memory_gib > 0


def test_variables_that_change_results_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    monkeypatch.setenv("SECRET", "hidden")
    with recorded("train", tmp_path):
        pass
    assert read_records(tmp_path)["train"].environment == {"NVIDIA_TF32_OVERRIDE": "0"}


def test_a_run_has_ended_well_until_it_is_reported_or_begins_again(tmp_path: Path) -> None:
    seen = []
    for stage in ("train", "validate", "report", "validate", "train"):
        with recorded(stage, tmp_path):
            pass
        seen.append(ended_well(tmp_path))
    assert seen == [False, True, False, True, False]
    with pytest.raises(ShowerFileError), recorded("validate", tmp_path):
        raise ShowerFileError("is torn", file="a.h5", remedy="make it anew")
    assert not ended_well(tmp_path)


def test_core_seconds_count_children(tmp_path: Path) -> None:
    with recorded("simulate", tmp_path):
        work = "import time\nwhile time.process_time() < 0.3: pass"
        subprocess.run([sys.executable, "-c", work], check=True)
    assert read_records(tmp_path)["simulate"].core_seconds >= 0.3


def test_a_signal_in_the_c_code_of_a_library_is_no_failure(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), recorded("train", tmp_path):
        raise SystemError("returned a result with an exception set") from KeyboardInterrupt()
    assert read_records(tmp_path)["train"].outcome == "interrupted"


def test_a_new_attempt_clears_what_lies_behind_it(tmp_path: Path) -> None:
    for stage in ("simulate", "preprocess", "train"):
        with recorded(stage, tmp_path):
            pass
    with pytest.raises(ZeroDivisionError), recorded("preprocess", tmp_path):
        raise ZeroDivisionError
    assert list(read_records(tmp_path)) == ["simulate", "preprocess"]


def test_a_new_attempt_removes_the_report_of_the_failed_one(tmp_path: Path) -> None:
    """Where no report follows, it would stay. That of a run that ended well, and what a solver made, stay."""

    def kept(stage: str, summary: str) -> set[str]:
        for name, text in (("summary.json", summary), ("report.html", ""), ("bill.json", ""), ("usage.json", "")):
            (tmp_path / name).write_text(text, encoding="utf-8")
        with recorded(stage, tmp_path):
            return {file.name for file in tmp_path.iterdir() if file.is_file()}

    every = {"summary.json", "report.html", "bill.json", "usage.json"}
    failed, well, of_a_solver = '{"outcome": "failed"}', '{"outcome": "succeeded"}', '{"residuals": {}}'
    assert kept("train", failed) == {"usage.json"}
    assert kept("report", failed) == kept("train", well) == kept("validate", of_a_solver) == every
    with pytest.raises(KeyboardInterrupt), recorded("validate", tmp_path):
        raise KeyboardInterrupt
    assert kept("validate", of_a_solver) == {"summary.json", "usage.json"}


@pytest.mark.parametrize("failure", [None, "the step was killed"])
def test_a_solver_step_that_was_killed_without_a_record_leaves_no_report_of_its_failure(
    tmp_path: Path, failure: str | None
) -> None:
    run = spec.load_solver_run(preset="proxy", overrides=["solver.ranks=1"])
    report_solution(run, tmp_path, failure=failure)
    assert ("This run failed" in (tmp_path / "report.html").read_text(encoding="utf-8")) is bool(failure)
    with recorded("solve", tmp_path):
        pass
    kept = {name for name in ("report.html", "bill.json") if (tmp_path / name).is_file()}
    assert kept == (set() if failure else {"report.html", "bill.json"})


@pytest.mark.parametrize("damaged", ["train.json", "earlier.json"])
def test_a_damaged_record_is_named_and_the_stage_makes_a_new_one(tmp_path: Path, damaged: str) -> None:
    for _ in range(2):
        with recorded("train", tmp_path):
            pass
    path = tmp_path / "stages" / damaged
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=f"{damaged}.*[\\s\\S]*remedy: delete it"):
        (read_records if damaged == "train.json" else read_earlier)(tmp_path)
    if damaged == "earlier.json":
        path.unlink()
    with recorded("train", tmp_path):
        pass
    assert read_records(tmp_path)["train"].outcome == "succeeded"


def test_a_record_that_comes_back_is_paid_for_once(tmp_path: Path) -> None:
    """A kill between the upload of the earlier records and the deletion of the record itself leaves it in a bucket."""
    with recorded("train", tmp_path):
        pass
    path = tmp_path / "stages/train.json"
    record = path.read_bytes()
    for _ in range(2):
        path.write_bytes(record)
        with recorded("preprocess", tmp_path):
            pass
    assert [r.stage for attempt in read_earlier(tmp_path) for r in attempt.stages] == ["train", "preprocess"]


def test_ctrl_c_is_recorded_as_interrupted(tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""
        import sys, time
        from pathlib import Path
        from caloscale.stages.record import ENVIRONMENT, recorded
        with recorded("train", Path(sys.argv[1])):
            print("in", flush=True)
            {UNTIL_STOPPED}
        """
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with running(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout.readline() == "in\n"
        process.send_signal(signal.SIGINT)
        process.wait()
    record = read_records(tmp_path)["train"]
    assert (record.outcome, record.exit_code) == ("interrupted", 130)


def test_a_step_whose_process_group_is_ended_is_interrupted(tmp_path: Path) -> None:
    """As Argo ends a step: who reads its output ends at once, a training between two of its steps."""
    program = textwrap.dedent(
        """
        import signal, sys, time
        from pathlib import Path
        from caloscale.stages.record import ENVIRONMENT, recorded
        signal.signal(signal.SIGTERM, lambda *_: None)
        with recorded("train", Path(sys.argv[1])):
            while True:
                print("step", flush=True)
                time.sleep(0.01)
        """
    )
    group = ["sh", "-c", '"$0" -c "$1" "$2" | cat', sys.executable, program, str(tmp_path)]
    with running(group, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout.readline() == "step\n"
        os.killpg(process.pid, signal.SIGTERM)
        wait_for((tmp_path / "stages/train.json").is_file)
    record = read_records(tmp_path)["train"]
    assert (record.outcome, record.exit_code) == ("interrupted", 143)
    assert record.error == "the process that reads its output has ended"


@pytest.mark.parametrize(
    ("error", "outcome", "code", "says"),
    [
        (Terminated(), "interrupted", 143, "stopped by SIGTERM"),
        (PeerLostError(1), "interrupted", 138, "worker 1"),
        (ShowerFileError("is torn", file="a.h5", remedy="make it anew"), "failed", 2, "a.h5"),
        (ZeroDivisionError("by zero"), "failed", 1, "ZeroDivisionError: by zero"),
    ],
)
def test_what_is_no_fault_of_the_stage_is_an_interruption(
    tmp_path: Path, error: BaseException, outcome: str, code: int, says: str
) -> None:
    with pytest.raises(type(error)), recorded("train", tmp_path):
        raise error
    record = read_records(tmp_path)["train"]
    assert (record.outcome, record.exit_code) == (outcome, code) and says in str(record.error)


def test_records_of_a_run_that_continues_another_are_adopted_once_with_those_of_its_retries(tmp_path: Path) -> None:
    """A step of a pipeline that was retried twice; the report is made more than once."""
    own, continued = tmp_path / "own", tmp_path / "continued"
    with recorded("simulate", continued):
        pass
    with pytest.raises(Terminated), recorded("simulate", own):
        raise Terminated
    for _ in range(2):
        with recorded("simulate", own):
            pass
        adopt_records(own, continued)
        adopt_records(own, continued)
    records = [record for attempt in read_earlier(continued) for record in attempt.stages]
    assert [record.outcome for record in records].count("interrupted") == 1 and len(records) == 3
    assert read_records(continued) == read_records(own)
