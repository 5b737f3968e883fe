"""What a run on a cluster leaves on one's own machine, for its bill and for later plans."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from caloscale.client.fetch import fetch
from caloscale.client.runs import RunOnCluster, manifest_of
from caloscale.cluster.accounting import with_cost
from caloscale.errors import ClusterError
from caloscale.planning.catalogue.prices import load_prices
from caloscale.spec import Run, load_any_run
from caloscale.stages.planning import bill_of, calibrate_runs
from caloscale.status import RunStatus
from caloscale.storage.objects import upload
from tests.client import test_usage as use
from tests.client.test_usage import START
from tests.cluster import examples as ex


def seen(run: Run, status: RunStatus) -> RunOnCluster:
    return RunOnCluster("gan", "physics", manifest_of(run, "gan", "physics")["spec"], status, "", "u-1")


def parts_of(folder: Path) -> dict[str, float]:
    return {part.purpose: part.share for part in bill_of(folder).parts}


def test_the_bill_of_a_fetched_run_stands_beside_its_estimate_and_teaches_the_planner(tmp_path: Path) -> None:
    run = use.run_of()
    status = use.status_of(run)
    missing = fetch(seen(run, status), tmp_path / "gan")
    assert [sentence for sentence in missing if "estimate" in sentence] == []
    against = bill_of(tmp_path / "gan").against_estimate
    assert against is not None and status.placement is not None and status.placement.estimate_usd is not None
    assert against.estimated_usd == pytest.approx(status.placement.estimate_usd, abs=0.01)
    made = calibrate_runs([tmp_path / "gan"], tmp_path / "mine.csv")
    assert [row.step_seconds for row in made.residuals] == [2.9]


def test_what_an_older_version_noted_is_billed_and_teaches_the_planner(tmp_path: Path) -> None:
    """It wrote fields of a measurement that never had a value, and no run with an attempt."""
    run = use.run_of()
    fetch(seen(run, use.status_of(run)), tmp_path)
    noted = json.loads((tmp_path / "usage.json").read_text())
    noted["observed"] |= dict.fromkeys(("stepCv", "testSeconds", "provisioningSeconds"))
    del noted["attempts"][0]["run"]
    usd = bill_of(tmp_path).usd
    (tmp_path / "usage.json").write_text(json.dumps(noted))
    assert bill_of(tmp_path).usd == usd
    assert [row.step_seconds for row in calibrate_runs([tmp_path], tmp_path / "mine.csv").residuals] == [2.9]


def test_the_estimate_is_that_of_the_run_that_continued_the_others(tmp_path: Path) -> None:
    longer = use.run_of("train.epochs=120")
    first, second = (seen(run, use.status_of(run)) for run in (use.run_of(), longer))
    for run in (first, second._replace(uid="u-2"), first):
        fetch(run, tmp_path)
    made = bill_of(tmp_path)
    assert made.attempts == 2 and made.against_estimate is not None and second.status.placement is not None
    assert made.against_estimate.estimated_usd == pytest.approx(second.status.placement.estimate_usd, abs=0.01)


def test_a_solver_run_is_billed_without_an_estimate(tmp_path: Path) -> None:
    """Its folder is on a claim, which cannot be read from here."""
    run = ex.solver_of("hardware.accelerator=nvidia-tesla-v100", "solver.ranks=16", "solver.maxMinutes=60")
    placed = ex.launch_of(run, ex.node("n0"), ex.node("n1")).placed
    status = use.status_of(use.run_of(), placed)
    found = RunOnCluster("gan", "physics", manifest_of(run, "gan", "physics")["spec"], status, "")
    missing = fetch(found, tmp_path)
    assert any("volume claim shared" in sentence for sentence in missing)
    assert any("was not measured" in sentence for sentence in missing)
    made = bill_of(tmp_path)
    assert made.against_estimate is None and made.usd > 0
    assert "solver" in (tmp_path / "run.yaml").read_text(encoding="utf-8")


def test_an_estimate_that_cannot_be_made_again_is_left_out_with_the_reason(tmp_path: Path) -> None:
    run = use.run_of()
    status = use.status_of(run)
    fetch(seen(run, status), tmp_path)
    assert bill_of(tmp_path).against_estimate is not None  # of an earlier placement
    for change in ({"estimate_usd": 12.5}, {"estimate_usd": None, "reasons": ("no estimate: no price",)}):
        other = status.model_copy(update={"placement": status.placement.model_copy(update=change)})
        missing = fetch(seen(run, other), tmp_path)
        assert any("estimate" in sentence for sentence in missing)
        assert bill_of(tmp_path).against_estimate is None


def test_a_bill_by_prices_of_the_operator_alone_is_said_to_be_another(tmp_path: Path) -> None:
    """Those of its ConfigMap caloscale-prices: `caloscale bill` knows them only when they are given."""
    run = use.run_of()
    status, _ = with_cost(use.status_of(run), load_prices(), use.END)
    assert status.cost is not None and status.cost.usd is not None
    assert not any("prices" in sentence for sentence in fetch(seen(run, status), tmp_path / "same"))
    usd = bill_of(tmp_path / "same").usd
    other = status.model_copy(update={"cost": status.cost.model_copy(update={"usd": 12.5})})
    (said,) = [sentence for sentence in fetch(seen(run, other), tmp_path / "other") if "prices" in sentence]
    assert f"12.50 USD (by those of this package: {usd:.2f})" in said and "--prices" in said


@pytest.mark.parametrize("clock", [0, 9000], ids=["of the operator", "ahead"])
def test_what_a_worker_did_beside_the_training_is_no_idle_time(clock: int, tmp_path: Path, bucket_server: str) -> None:
    run = use.run_of(f"cluster.workspace={bucket_server}/run")
    stages = {"simulate": (300, 0), "preprocess": (100, 300), "validate": (240, 6700), "report": (60, 6950)}
    (tmp_path / "stages").mkdir()

    def record(stage: str, seconds: float, after: float) -> dict[str, Any]:
        started = (START + dt.timedelta(seconds=after + clock)).isoformat()
        attempt = {"attempt": "u-1/1" if after >= 0 else "u-0/1"} if clock else {}
        return {"stage": stage, "seconds": seconds, "started": started, **attempt}

    for stage, (seconds, after) in stages.items():
        (tmp_path / "stages" / f"{stage}.json").write_text(json.dumps(record(stage, seconds, after)))
    # a step of a pipeline, before the launch, or an earlier run of the name; and an attempt of the simulation that was
    # begun again
    earlier = {"attempts": [{"stages": [record("simulate", 999, -1000), record("simulate", 50, 10)]}]}
    (tmp_path / "stages" / "earlier.json").write_text(json.dumps(earlier))
    (tmp_path / "stages" / "broken.json").write_text("[")
    upload(tmp_path / "stages", f"{bucket_server}/run/stages")
    fetch(seen(run, use.status_of(run)), tmp_path / "gan")
    parts = parts_of(tmp_path / "gan")
    assert parts["showers"] == pytest.approx(450 / 7200, abs=0.001)
    assert parts["evaluation"] == pytest.approx(240 / 7200, abs=0.001)
    assert parts["idle"] == pytest.approx((7200 - 6130 - 450 - 240) / 7200, abs=0.001)


def test_a_layout_that_is_not_aligned_pays_for_it(tmp_path: Path) -> None:
    run = use.run_of("hardware.placement=Free", "hardware.nodes=4", "hardware.workers=32")
    fetch(seen(run, use.status_of(run)), tmp_path)
    assert parts_of(tmp_path)["misalignment"] > 0.1


def test_a_run_that_is_made_anew_is_not_mixed_with_the_one_that_was_fetched(tmp_path: Path) -> None:
    """It has no attempt yet, and the folder has the configuration and the bill of the other."""
    run = use.run_of()
    fetch(seen(run, use.status_of(run)), tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    with pytest.raises(ClusterError, match="holds another run"):
        fetch(seen(run, RunStatus()), tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()} == before
    waiting, other = tmp_path / "waiting", use.run_of("train.epochs=7")
    for changes in ((), (), ("cluster.suspend=true",), ("budget.maxUsd=1000", "recovery.maxRestarts=3")):
        fetch(seen(use.run_of(*changes), RunStatus()), waiting)
    with pytest.raises(ClusterError, match=r"run\.yaml is the configuration of another run"):
        fetch(seen(other, use.status_of(other)), waiting)
    assert load_any_run(waiting / "run.yaml") == run


@pytest.mark.parametrize("attempt", [None, "u-0/1", "u-1/1"], ids=["made here", "another", "copied by hand"])
def test_results_of_another_run_in_the_folder_are_not_replaced(tmp_path: Path, attempt: str | None) -> None:
    """runs/NAME is also where a run of that name on one's own machine is."""
    run, folder = use.run_of(), tmp_path / "gan"
    (folder / "stages").mkdir(parents=True)
    record = {"stage": "train", "seconds": 60, "started": START.isoformat(), "attempt": attempt}
    (folder / "stages" / "train.json").write_text(json.dumps(record))
    if attempt == "u-1/1":
        fetch(seen(run, use.status_of(run)), folder)
        assert bill_of(folder).usd > 0
    else:
        with pytest.raises(ClusterError, match="gan holds another run"):
            fetch(seen(run, use.status_of(run)), folder)
        assert [file.name for file in folder.iterdir()] == ["stages"]


def test_what_was_brought_in_part_is_brought_again(tmp_path: Path, bucket_server: str) -> None:
    """Such as the record of a step of a pipeline, and not yet that of a worker."""
    run = use.run_of(f"cluster.workspace={bucket_server}/run")
    (tmp_path / "source").mkdir()
    record = {"stage": "simulate", "seconds": 60, "started": START.isoformat()}
    (tmp_path / "source" / "simulate.json").write_text(json.dumps(record))
    upload(tmp_path / "source", f"{bucket_server}/run/stages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("caloscale.client.fetch.download", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fetch(seen(run, use.status_of(run)), tmp_path / "gan")
    upload(tmp_path / "source", str(tmp_path / "gan" / "stages"))
    fetch(seen(run, use.status_of(run)), tmp_path / "gan")
    assert bill_of(tmp_path / "gan").usd > 0


def test_a_bucket_without_the_run_is_said(tmp_path: Path, bucket_server: str) -> None:
    run = use.run_of(f"cluster.workspace={bucket_server}/nothing")
    missing = fetch(seen(run, use.status_of(run)), tmp_path)
    assert any(f"{bucket_server}/nothing holds nothing yet" in sentence for sentence in missing)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ((), "neither in a bucket nor on a volume claim"),
        (("cluster.volumeClaim=runs", "cluster.dataset=/workspace/d"), "neither in a bucket nor on a volume claim"),
        (("cluster.volumeClaim=runs", "cluster.workspace=/workspace/gan"), "the workspace is on volume claim runs"),
    ],
)
def test_where_a_workspace_is_that_cannot_be_copied(settings: tuple[str, ...], said: str, tmp_path: Path) -> None:
    run = use.run_of(*settings)
    assert any(said in sentence for sentence in fetch(seen(run, use.status_of(run)), tmp_path))
