"""Real ranks under mpiexec: the command, its results, and what happens when a rank fails."""

import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import psutil
import pytest

from caloscale.errors import InputError, RankLostError, TrainingError
from caloscale.sagips import launch
from caloscale.sagips.saves import (
    checkpoint_file,
    list_checkpoints,
    list_states,
    rank_folder,
    read_checkpoints,
    read_record,
)
from caloscale.spec import SolverRun, load_solver_run
from caloscale.stages.solving import new_solver_folder, solve_and_report
from tests.processes import running, wait_for

SUMMARY_KEYS = {
    "ranks", "exchange", "groups", "epochs", "secondsPerEpoch", "exchangeSecondsPerEpoch", "analysisRate", "residuals",
    "stale", "dropped", "transferSecondsPerEpoch", "deviceMemoryBytes", "parameters", "stopped",
}  # fmt: skip
SMALL = [
    "solver.objective=energy-distance",
    "solver.generator={width: 8, layers: 2, noise: 2, learningRate: 0.002}",
    "solver.parameterSamples=4",
    "solver.eventsPerSample=8",
    "solver.analysisSamples=32",
    "solver.threads=1",
]


def small_run(options: str = "", *overrides: str, source: str = "truth") -> SolverRun:
    data = f"[{{environment: tests.sagips.faults.Faulty, events: 500, source: {source}, options: {{{options}}}}}]"
    return load_solver_run(preset="proxy", overrides=[*SMALL, f"solver.dataSets={data}", *overrides])


@pytest.mark.integration
def test_a_killed_rank_ends_all_and_the_same_call_resumes(tmp_path: Path) -> None:
    """Rank 1 also has gradients that are not finite, before and after it is killed."""
    options = f"not_finite: [5, 30], killed: 24, marker: {tmp_path / 'killed'}"
    two = ("solver.ranks=2", "solver.epochs=40", "solver.saveEvery=10", "solver.checkpoints=5", "solver.exchange=ring")
    run = small_run(options, *two)
    folder = new_solver_folder(run, tmp_path / "runs", "one")
    (tmp_path / "runs/trained/model").mkdir(parents=True)
    (tmp_path / "runs/latest").symlink_to("trained")
    with pytest.raises(RankLostError, match=r"rank 1 was killed by signal 9; all ranks have ended") as caught:
        solve_and_report(run, folder)
    assert caught.value.exit_code == 138
    assert "resumes from epoch 20" in str(caught.value)
    assert (tmp_path / "killed").read_text() == ""  # a quarter of the processor time of TensorFlow's import
    assert "This run failed" in (folder / "report.html").read_text()
    read_checkpoints(folder, 20, 2)  # both ranks have written theirs
    first = [(folder / "checkpoints" / "epoch-00000020" / "rank-00000.npz").stat().st_mtime_ns]

    summary = solve_and_report(run, folder)
    assert first == [(folder / "checkpoints" / "epoch-00000020" / "rank-00000.npz").stat().st_mtime_ns]
    assert summary.epochs == 40
    assert (tmp_path / "runs/latest/model").is_dir()  # that of the last training: the solver makes no model
    assert summary.dropped == 4  # two epochs, on both ranks
    assert np.isfinite(summary.residuals.mean).all()
    written = json.loads((folder / "summary.json").read_text())
    assert written.keys() == SUMMARY_KEYS
    assert written["ranks"] == 2 and written["groups"] == 1 and written["exchange"] == "ring"
    assert len(written["residuals"]["mean"]) == len(written["residuals"]["std"]) == 2
    assert written["analysisRate"] == pytest.approx(2 * 4 * 8 / written["secondsPerEpoch"])
    assert 0 < written["exchangeSecondsPerEpoch"] < written["secondsPerEpoch"]
    assert 0 < written["transferSecondsPerEpoch"] < written["secondsPerEpoch"]
    assert written["stale"] == 0  # messages are of their epoch
    assert list_checkpoints(folder) == [0, 10, 20, 30, 40]
    bill = json.loads((folder / "bill.json").read_text())
    assert bill["attempts"] == 2 and bill["epochs"] == 40 and bill["usd"] > 0
    # Both ranks have the same generator: they start from one, and apply the same averages of all weights.
    weights = [np.load(checkpoint_file(folder, 40, rank))["weights"] for rank in range(2)]
    assert np.isfinite(weights).all()
    # Of epoch 0 nothing is exchanged; rank 0 lacks two gradients of rank 1, which lacks none of rank 0.
    assert [read_record(rank_folder(folder, rank)).contributions for rank in range(2)] == [37, 39]


@pytest.mark.long
@pytest.mark.parametrize("exchange", ["grouped-rma", "all-reduce"])
def test_ranks_that_drift_resume_from_a_common_epoch_and_an_all_reduce_leaves_equal_generators(
    tmp_path: Path, exchange: str
) -> None:
    """Rank 1 is killed in epoch 24; with remote memory rank 0 is then in epoch 29, and does not pass the save of 30."""
    drift = "paused: 24, reached: 29, " if exchange == "grouped-rma" else ""
    options = f"{drift}killed: 24, marker: {tmp_path / 'killed'}"
    run = small_run(
        options,
        "solver.ranks=3",
        "solver.epochs=60",
        "solver.saveEvery=10",
        "solver.checkpoints=4",
        f"solver.exchange={exchange}",
    )
    folder = new_solver_folder(run, tmp_path / "runs", "one")
    with pytest.raises(RankLostError, match="resumes from epoch 20"):
        solve_and_report(run, folder)
    summary = solve_and_report(run, folder)
    assert summary.epochs == 60
    records = [read_record(rank_folder(folder, rank)) for rank in range(3)]
    assert {record.timed_epochs for record in records} == {58}  # 60 without the first of each attempt
    if exchange == "all-reduce":
        assert [record.exchanges for record in records] == [60] * 3
        first, *others = [np.load(checkpoint_file(folder, 60, rank)) for rank in range(3)]
        for other in others:
            np.testing.assert_array_equal(other["weights"], first["weights"])
            np.testing.assert_array_equal(other["biases"], first["biases"])


def test_an_error_is_read_behind_what_a_pipeline_has_printed(tmp_path: Path) -> None:
    """Without an end of its line; the run would end as one whose rank was lost, which is tried again."""
    report = launch.REPORT + json.dumps({"rank": 0, "error": {"problem": "no such file"}, "exitCode": 5})
    output, log = io.StringIO(f"made from 1995\nreading ... {report}\n"), tmp_path / "ranks.log"
    assert launch._follow(output, small_run("", "solver.ranks=1"), log, lambda *_: None) == json.loads(report[6:])
    assert log.read_text() == "made from 1995\nreading ... "


ON_ANOTHER_MACHINE = """
import os
import sys

if os.environ.get("OMPI_COMM_WORLD_RANK") == "1":
    os.chdir("elsewhere")
    sys.modules["tensorflow"] = None
"""
"""What Python runs as it starts: rank 1 is in another folder, and says what it misses before it loads TensorFlow."""


def test_a_data_file_that_is_missing_on_one_rank_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "sitecustomize.py").write_text(ON_ANOTHER_MACHINE)
    with h5py.File(tmp_path / "events.h5", "w") as file:
        file["events"] = np.random.default_rng(1).normal(size=(500, 1)).astype(np.float32)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}")
    monkeypatch.chdir(tmp_path)
    run = small_run("", "solver.ranks=2", "solver.epochs=3", source="events.h5")
    with pytest.raises(InputError, match=r"rank 1: does not exist on this machine") as caught:
        solve_and_report(run, new_solver_folder(run, tmp_path / "runs", "one"))
    assert caught.value.file == "events.h5" and caught.value.field == "solver.dataSets.0.source"


@pytest.mark.long
def test_an_error_of_one_rank_ends_the_others_which_do_not_wait_for_it(tmp_path: Path) -> None:
    """The other rank would have epochs for hours."""
    options = ("solver.ranks=2", "solver.epochs=100000000", "solver.exchange=grouped-rma")
    run = small_run("raised: 7", *options)
    with pytest.raises(TrainingError, match=r"(?s)rank 1: .*the detector does not answer"):
        solve_and_report(run, new_solver_folder(run, tmp_path / "runs", "one"))


@pytest.mark.long
def test_a_late_rank_is_waited_for_at_the_start_and_a_slow_one_is_not_in_its_group(tmp_path: Path) -> None:
    """Rank 1 is ready only after rank 0, and waits in epoch 10 until rank 0 is in epoch 40.

    If rank 0 began without rank 1, it would have exchanged less; if it waited in epoch 10, both would wait forever.
    """
    options = f"late: {tmp_path / 'ready'}, paused: 10, reached: 40, marker: {tmp_path / 'reached'}"
    run = small_run(options, "solver.ranks=2", "solver.epochs=60", "solver.saveEvery=60", "solver.checkpoints=2")
    folder = new_solver_folder(run, tmp_path / "runs", "one")
    summary = solve_and_report(run, folder)
    records = [read_record(rank_folder(folder, rank)) for rank in range(2)]
    assert [record.exchanges for record in records] == [59, 59]  # none in epoch 0
    # In epochs 11 to 40 rank 0 finds nothing new; what it finds later is old, or it is counted as repeated or missing.
    assert records[0].contributions <= 29 and records[0].repeated + records[0].missing >= 30
    assert summary.exchange == "grouped-rma" and summary.dropped == 0
    # The generators differ: a rank that is not waited for is not averaged either.
    weights = [np.load(checkpoint_file(folder, 60, rank))["weights"] for rank in range(2)]
    assert not np.array_equal(*weights)


AGENT = """#!/bin/sh
# Instead of ssh HOST COMMAND: the command in a namespace whose host name is HOST, without the caller's environment.
while case $1 in -*) true ;; *) false ;; esac; do shift; done
host=$1
shift
exec env -i HOME=/tmp PATH=/usr/bin:/bin unshare --uts sh -c "hostname $host; $*"
"""


@pytest.mark.long
@pytest.mark.parametrize("groups", [None, 1])
def test_ranks_of_several_hosts_are_a_group_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: int | None
) -> None:
    """As the launcher of an MPIJob: a file of hosts with two slots each. The hosts are namespaces of this machine.

    With one group, ranks read the memory of a rank on the other host.
    """
    if subprocess.run(["unshare", "--uts", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make a namespace with a host name of its own")
    agent, hosts = tmp_path / "agent", tmp_path / "hosts"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    hosts.write_text("solver-worker-0 slots=2\nsolver-worker-1 slots=2\n")
    monkeypatch.setenv("PRTE_MCA_plm_ssh_agent", str(agent))
    monkeypatch.setenv("OMPI_MCA_orte_default_hostfile", str(hosts))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    given = () if groups is None else (f"solver.groups={groups}",)
    saves = ("solver.epochs=12", "solver.saveEvery=4", "solver.checkpoints=4", "solver.outerEvery=2")
    run = small_run("", "solver.ranks=4", *saves, "solver.maxMinutes=1e-9", *given)
    folder = new_solver_folder(run, tmp_path / "runs", "one")
    assert solve_and_report(run, folder).epochs == 4
    for name in ("PRTE_MCA_plm_ssh_agent", "OMPI_MCA_orte_default_hostfile"):
        monkeypatch.delenv(name)
    # The rest on one host: the groups stay.
    summary = solve_and_report(small_run("", "solver.ranks=4", *saves, *given), folder)
    assert (summary.ranks, summary.groups, summary.epochs) == (4, groups or 2, 12)
    assert summary.exchange == "grouped-rma"
    records = [read_record(rank_folder(folder, rank)) for rank in range(4)]
    if groups == 1:
        assert min(record.contributions for record in records) > 0
        return
    # Ranks 0 and 2 are leaders, and have gradients of the other group, too.
    assert min(records[0].contributions, records[2].contributions) > max(records[rank].exchanges for rank in (1, 3))


@pytest.mark.integration
def test_ctrl_c_ends_the_ranks_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    """One rank, of a run that is too long to end before the signal."""
    overrides = [*SMALL, "solver.ranks=1", "solver.epochs=10000000", "solver.saveEvery=50", "solver.delay=1"]
    overrides.append("solver.dataSets=[{environment: tests.sagips.toy.Normal, events: 500}]")
    options = [word for override in overrides for word in ("--set", override)]
    command = [sys.executable, "-m", "caloscale.cli.main", "solve", "--preset", "proxy", *options]
    states = rank_folder(tmp_path / "one", 0)
    with running([*command, "--runs", str(tmp_path), "--name", "one"], stderr=subprocess.PIPE) as process:
        wait_for(lambda: any(list_states(states)), process)  # one after epoch 0
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate()
    assert process.returncode == 130
    assert "the same command resumes" in error
    assert children and not any(child.is_running() for child in children)
    saved = max(list_states(states))
    assert saved % 50 == 0 and saved > 0


@pytest.mark.integration
def test_ranks_leave_the_standard_input_to_the_caller(tmp_path: Path) -> None:
    """A shell loop `while read` over commands continues behind a solver run."""
    options = [word for override in [*SMALL, "solver.ranks=2", "solver.epochs=2"] for word in ("--set", override)]
    solve = ["-m", "caloscale.cli.main", "solve", "--preset", "proxy", *options, "--runs", str(tmp_path)]
    command = ["sh", "-c", '"$@" > /dev/null && cat', "sh", sys.executable, *solve]
    ended = subprocess.run(command, input="the next command", capture_output=True, text=True, check=True)
    assert ended.stdout == "the next command"


def test_a_folder_with_another_run_is_refused(tmp_path: Path) -> None:
    new_solver_folder(small_run("", "solver.epochs=10"), tmp_path, "one")
    new_solver_folder(small_run("", "solver.epochs=10", "solver.maxMinutes=3"), tmp_path, "one")
    with pytest.raises(InputError, match="another configuration") as caught:
        new_solver_folder(small_run("", "solver.epochs=11"), tmp_path, "one")
    assert caught.value.field == "solver.epochs"
