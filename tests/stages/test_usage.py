"""What a run on one's own machine used, from its records to its bill and its page."""

import datetime as dt
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from caloscale import spec, stages
from caloscale.errors import InputError
from caloscale.report.bill import NO_SPEED
from caloscale.stages import reporting, training
from caloscale.stages.planning import bill_of, local_speed, read_plan, read_use
from caloscale.stages.record import StageRecord, finished, read_earlier, recorded, this_machine, write_record
from caloscale.stages.reporting import _generation, keep_use
from caloscale.stages.solving import report_solution
from caloscale.stages.usage import training_usd

USD_PER_HOUR = 2 * 0.031611 + 7.5 * 0.004237  # n1-standard-2, us-central1, on demand
COMPACT = spec.load_run(preset="compact")
SIMULATED: dict[str, Any] = {"coreSecondsPerShower": 0.1, "reused": False}


def keep(
    folder: Path, stage: str, seconds: float, outcome: Any = "succeeded", attempt: str | None = None, **figures: Any
) -> None:
    record = StageRecord(
        stage=stage,
        outcome=outcome,
        started=dt.datetime(2026, 11, 21, tzinfo=dt.UTC),
        seconds=seconds,
        core_seconds=seconds,
        peak_memory_mib=1.0,
        machine=this_machine(),
        attempt=attempt,
        figures=figures,
        error=None if outcome == "succeeded" else "why",
    )
    write_record(record, folder)


V100 = {"machineType": "n1-standard-64", "region": "europe-west4", "accelerator": "nvidia-tesla-v100", "perNode": 8}


def rent(folder: Path, **node: Any) -> str:
    """The usage of two hours on rented machines in a run's folder."""
    held = {"machineType": "n1-standard-8", "region": "us-central1", "nodes": 2, **node}
    attempt = {"nodes": [{**held, "capacityType": "spot", "seconds": 7200}]}
    text = json.dumps({"name": "rented", "day": "2026-11-21", "epochs": 1, "attempts": [attempt]})
    (folder / "usage.json").write_text(text)
    return text


def test_a_machine_at_hand_is_billed_with_the_gpus_that_are_added_to_its_type(tmp_path: Path) -> None:
    keep(tmp_path, "train", 3600, epochs=1)
    priced = "budget.pricedAs.machineType=n1-standard-8 with 1 x nvidia-tesla-t4"
    keep_use(spec.load_run(preset="compact", overrides=[priced]), tmp_path)
    (node,) = bill_of(tmp_path).nodes
    assert (node.title, node.usd) == (
        "n1-standard-8 with 1 x nvidia-tesla-t4",
        pytest.approx(4 * USD_PER_HOUR + 0.35, abs=1e-4),
    )


def test_a_bill_from_the_records_by_hand(tmp_path: Path) -> None:
    keep(tmp_path, "simulate", 30_000)
    keep(tmp_path, "preprocess", 1_000)
    keep(tmp_path, "train", 36_000, secondsFirstStep=600, epochs=25)
    keep(tmp_path, "validate", 5_000)
    keep_use(COMPACT, tmp_path)
    made = bill_of(tmp_path)
    usd = {part.purpose: part.usd for part in made.parts}
    seconds = {"showers": 31_000, "training": 35_400, "startUp": 600, "evaluation": 5_000}
    assert made.usd == pytest.approx(20 * USD_PER_HOUR, abs=0.005)
    assert sum(usd.values()) == pytest.approx(made.usd, abs=1e-9)
    for purpose, held in seconds.items():
        assert usd[purpose] == pytest.approx(held / 3600 * USD_PER_HOUR, abs=0.01)
    assert {purpose for purpose, money in usd.items() if money} == set(seconds)
    assert (made.epochs, made.usd_per_epoch) == (25, pytest.approx(20 * USD_PER_HOUR / 25))
    assert made.own_machine and made.against_estimate is None


def test_an_epoch_that_minutes_ended_counts_in_part(tmp_path: Path) -> None:
    """As of a run on a cluster: its steps are paid for, and the plan has such a part, too."""
    figures = {"steps": 38, "epochs": 3, "globalBatchSize": 100, "data": {"showers": 1_050}}
    keep(tmp_path, "train", 3_600, **figures)
    keep_use(COMPACT, tmp_path)
    made = bill_of(tmp_path)
    assert (made.epochs, made.usd_per_epoch) == (3.8, pytest.approx(USD_PER_HOUR / 3.8, abs=1e-5))


def test_stages_that_were_begun_again_are_paid_for_twice(tmp_path: Path) -> None:
    keep(tmp_path, "simulate", 3_000)
    keep(tmp_path, "train", 7_200, outcome="interrupted")
    with recorded("train", tmp_path):
        pass
    assert [record.stage for attempt in read_earlier(tmp_path) for record in attempt.stages] == ["train"]
    keep(tmp_path, "train", 3_600, secondsFirstStep=100, epochs=3)
    keep_use(COMPACT, tmp_path)
    used = read_use(tmp_path)
    assert [attempt.training_seconds for attempt in used.attempts] == [7_200, 3_500]
    assert [attempt.interruptions for attempt in used.attempts] == [1, 0]
    assert bill_of(tmp_path).usd == pytest.approx(13_800 / 3600 * USD_PER_HOUR, abs=1e-4)
    assert training_usd(COMPACT, tmp_path) == pytest.approx(3 * USD_PER_HOUR, abs=1e-4)


@pytest.mark.parametrize("region", ["us-central1", "nowhere1"])
def test_a_step_logs_why_its_metrics_have_no_dollars(
    tmp_path: Path, region: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keep(tmp_path, "train", 3_600)
    monkeypatch.setattr(training, "train", lambda *_: SimpleNamespace(metrics={"steps": 3.0}))
    run = spec.load_run(preset="compact", overrides=[f"budget.pricedAs.region={region}"])
    metrics = training.train_as_step(run, str(tmp_path), tmp_path, tmp_path)
    if region == "us-central1":
        assert metrics == {"steps": 3, "usd": pytest.approx(USD_PER_HOUR, abs=1e-4)} and not caplog.messages
    else:
        assert metrics == {"steps": 3} and "no on-demand price of vcpu n1 in nowhere1" in caplog.text


def test_what_was_written_about_rented_machines_stays(tmp_path: Path) -> None:
    text = rent(tmp_path)
    keep(tmp_path, "train", 10)
    keep_use(COMPACT, tmp_path)
    assert (tmp_path / "usage.json").read_text() == text
    page, made = stages.report(COMPACT, tmp_path).html, bill_of(tmp_path)
    assert made.nodes[0].node_hours == 4 and f">{made.usd:.4f}<" in page
    (tmp_path / "usage.json").write_text(text.replace("us-central1", "nowhere1"))
    page = stages.report(COMPACT, tmp_path).html
    assert "nowhere1" in page and "remedy" in page


def test_the_page_shows_the_plan_beside_the_bill(tmp_path: Path) -> None:
    overrides = ["hardware.accelerator=nvidia-tesla-v100", "hardware.count=8", "hardware.region=europe-west4"]
    overrides += ["hardware.perNode=2", "hardware.interruptionsPerNodeHour=5", "hardware.capacityType=spot"]
    run = spec.load_run(preset="compact", overrides=overrides)
    stages.plan(run, tmp_path)
    made = read_plan(tmp_path)
    assert made is not None and made.chosen is not None
    keep(tmp_path, "simulate", 3_600, outcome="failed")
    without_plan = stages.report(COMPACT, tmp_path / "without").html
    page = stages.report(run, tmp_path).html
    assert "The plan" in page and "The plan" not in without_plan
    against = bill_of(tmp_path).against_estimate
    assert sum(cause.usd for cause in against.causes) == pytest.approx(against.difference_usd, abs=1e-9)
    low, high = made.chosen.usd_interval
    for text in (
        f"8 x nvidia-tesla-v100, {made.chosen.nodes} x {made.chosen.machine_type}",
        f"{made.chosen.usd:.2f} ({low:.2f} to {high:.2f})",
        f">{made.chosen.node_hours:.3g} (",
        f"{made.chosen.workers} workers x {made.chosen.accelerators_per_worker}",
        f"{against.difference_usd:+.4f}",
        *(cause.cause for cause in against.causes),
    ):
        assert text in page


@pytest.mark.parametrize("priced_as", ["machineType=n1-standard-3", "region=europe-west9"])
@pytest.mark.parametrize("hardware", [(), ("hardware.accelerator=nvidia-tesla-v100", "hardware.count=8")])
def test_without_a_price_there_is_a_report_and_no_bill_rather_than_one_of_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], priced_as: str, hardware: tuple[str, ...]
) -> None:
    keep(tmp_path, "simulate", 3_600)
    if hardware:
        stages.plan(spec.load_run(preset="compact", overrides=hardware), tmp_path)
        (tmp_path / "run.yaml").unlink()
    overrides = [f"budget.pricedAs.{priced_as}", *hardware]
    made = stages.report(spec.load_run(preset="compact", overrides=overrides), tmp_path)
    why = made.summary.no_price
    assert made.summary.bill is None and why is not None and "remedy" in why
    assert json.loads((tmp_path / "bill.json").read_text()) == {"noPrice": why}
    assert why in made.bill and "There is no bill: " in made.html
    assert read_use(tmp_path).attempts[0].shower_seconds == 3_600
    assert stages.print_outcome(tmp_path) == 0 and "none: " in capsys.readouterr().out
    with pytest.raises(InputError):
        bill_of(tmp_path)


def test_rented_machines_have_one_bill_and_no_speed_of_them_is_priced_as_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The speeds were measured on a worker with eight GPUs: at the rate of two processors they would be absurd."""
    keep(tmp_path, "simulate", 100, showersPerSecond=10.0, source="geant4", **SIMULATED)
    rent(tmp_path, nodes=4, **V100)
    made = stages.report(COMPACT, tmp_path)
    billed = bill_of(tmp_path)
    assert billed.usd > 50 and billed.per_million_showers is None
    assert made.summary.bill is not None and made.summary.bill.parts == billed.parts
    assert json.loads((tmp_path / "bill.json").read_text())["usd"] == billed.usd
    assert f"{billed.usd:.2f} USD" in made.bill and f"{billed.usd:.2f} USD" in made.html and NO_SPEED in made.html
    assert stages.print_outcome(tmp_path) == 0
    assert f"{billed.usd:.4f} USD for 8.00 h of n1-standard-64" in capsys.readouterr().out
    for said in (made.bill, made.html, made.summary.model_dump_json()):
        assert "n1-standard-2 " not in said and "generatedUsd" not in said


def test_a_solver_run_that_was_fetched_has_the_bill_of_its_nodes(tmp_path: Path) -> None:
    """Its launcher knew neither machines nor attempts; on one's own machine `caloscale bill` reads the same file."""
    run = spec.load_solver_run(preset="proxy", overrides=["solver.ranks=1"])
    keep(tmp_path / "rented", "solve", 100, attempt="u/1")
    assert "counted by the TrainingRun" in report_solution(run, tmp_path / "rented").bill
    rent(tmp_path / "rented")
    made = report_solution(run, tmp_path / "rented")
    assert made.metrics["usd"] == bill_of(tmp_path / "rented").usd > 0 and "4.0000" in made.html
    keep(tmp_path / "own", "solve", 3_600)
    own = report_solution(run, tmp_path / "own").metrics["usd"]
    assert own == bill_of(tmp_path / "own").usd == pytest.approx(USD_PER_HOUR, abs=1e-4)


def test_what_workers_measured_is_priced_on_the_machines_of_the_bill(tmp_path: Path) -> None:
    """Generation on a whole node of the run; Monte Carlo, which needs no GPU, on the processors of budget.pricedAs."""
    folder = tmp_path / "rented"
    keep(folder, "simulate", 100, attempt="u/1", showersPerSecond=10.0, source="geant4", **SIMULATED)
    rent(folder, nodes=4, **V100)
    made = stages.report(COMPACT, folder)
    assert "A million showers: " in made.html and NO_SPEED not in made.bill
    keep(folder, "validate", 100, attempt="u/1", showersPerSecond=500.0)
    million = bill_of(folder).per_million_showers
    assert million is not None
    per_hour = 64 * 0.01392 + 240 * 0.001866 + 8 * 1.0443  # as tests/operator has it
    assert million.generated_usd == pytest.approx(per_hour / 3600 / 500 * 1e6, rel=1e-6)
    # the same on one's own machine of as many processors as it is priced on
    slower = 10.0 * 2 / this_machine().cores
    keep(tmp_path / "own", "simulate", 100, showersPerSecond=slower, source="geant4", **SIMULATED)
    stages.report(COMPACT, tmp_path / "own")
    own = bill_of(tmp_path / "own").per_million_showers
    assert own is not None and million.monte_carlo_usd == pytest.approx(own.monte_carlo_usd, rel=1e-6)


@pytest.mark.parametrize("priced_as", ["machineType=n1-standard-3", "region=nowhere1"])
def test_rented_machines_are_billed_without_a_price_of_another(tmp_path: Path, priced_as: str) -> None:
    keep(tmp_path, "simulate", 100, attempt="u/1", showersPerSecond=10.0, source="geant4", **SIMULATED)
    rent(tmp_path, nodes=4, **V100)
    run = spec.load_run(preset="compact", overrides=[f"budget.pricedAs.{priced_as}"])
    (tmp_path / "run.yaml").write_text(spec.dump_run(run))
    billed = bill_of(tmp_path)
    assert billed.usd > 50 and billed.per_million_showers is None


def test_showers_from_the_cache_count_for_the_break_even(tmp_path: Path) -> None:
    """1,000 showers at 10 a second: simulated in the run, before it, or by an earlier attempt of it."""
    found = []
    for attempts in ([False], [True], [False, True]):
        folder = tmp_path / str(attempts)
        for reused in attempts:
            with recorded("simulate", folder):  # which sets the record of the attempt before aside
                pass
            simulated = {**SIMULATED, "showers": 1000, "reused": reused}
            keep(folder, "simulate", 100.0 * (not reused), showersPerSecond=10.0, source="geant4", **simulated)
        keep(folder, "validate", 7200, showersPerSecond=500.0)
        keep_use(COMPACT, folder)
        (folder / "run.yaml").write_text(spec.dump_run(COMPACT))
        million = bill_of(folder).per_million_showers
        assert million is not None and million.break_even_showers is not None
        found.append(million.break_even_showers)
    assert found == [pytest.approx((7200 + 100) / (1 / 10 - 1 / 500), rel=1e-3)] * 3


def test_showers_that_another_machine_simulated_are_no_speed_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a cache in a home folder that many machines have."""
    monkeypatch.setattr(reporting, "_evaluation", lambda *_: None)
    here, found = this_machine(), []
    for cores in (0, here.cores, here.cores + 62):
        where = {"processor": here.processor, "cores": cores} if cores else {}  # an older version recorded nothing
        simulated = {**SIMULATED, **where, "showers": 1000, "reused": True, "source": "geant4"}
        keep(tmp_path, "simulate", 1, showersPerSecond=10.0, **simulated)
        keep(tmp_path, "validate", 100, showersPerSecond=500.0)
        made = stages.report(COMPACT, tmp_path).summary
        assert made.generate is not None and made.bill is not None and made.bill.per_million_showers is not None
        found.append((made.generate.speedup_over_geant4, made.bill.per_million_showers.monte_carlo_usd is None))
    assert found == [(50.0, False), (50.0, False), (None, True)]


def test_parametrised_showers_are_not_priced_as_monte_carlo(tmp_path: Path) -> None:
    """They are made a thousand times faster, so that no generator would ever be cheaper."""
    keep(tmp_path, "simulate", 3_600, showersPerSecond=1e4, source="parametrised", **SIMULATED)
    keep(tmp_path, "validate", 100, showersPerSecond=500.0)
    keep_use(COMPACT, tmp_path)
    (tmp_path / "run.yaml").write_text(spec.dump_run(COMPACT))
    million = bill_of(tmp_path).per_million_showers
    assert million is not None and million.generated_usd and million.monte_carlo_usd is None


def test_a_run_that_is_priced_anew_has_one_price_everywhere(tmp_path: Path) -> None:
    keep(tmp_path, "simulate", 3_600, showersPerSecond=10.0, source="geant4", **SIMULATED)
    stages.report(COMPACT, tmp_path)
    spot = spec.load_run(preset="compact", overrides=["budget.pricedAs.capacityType=spot"])
    made = stages.report(spot, tmp_path).summary.bill
    again = stages.report(spec.load_run(tmp_path / "run.yaml"), tmp_path).summary.bill
    billed = bill_of(tmp_path)
    assert made is not None and again is not None and made.per_million_showers is not None
    assert made.nodes[0].capacity_type == "spot" and made.usd == again.usd == billed.usd < USD_PER_HOUR
    assert made.per_million_showers.monte_carlo_usd == pytest.approx(billed.per_million_showers.monte_carlo_usd)


@pytest.mark.parametrize("given", ["../latest", ".", "../mine"])
def test_a_report_has_the_name_of_the_run_however_its_folder_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    keep(tmp_path / "mine", "simulate", 60)
    (tmp_path / "latest").symlink_to("mine")
    monkeypatch.chdir(tmp_path / "mine")
    made = stages.report(COMPACT, given)
    assert stages.print_outcome(Path(given)) == 0 and "run mine" in capsys.readouterr().out
    assert made.summary.run == read_use(tmp_path / "mine").name == bill_of(Path(given)).name == "mine"
    assert "run mine<" in made.html


def test_a_bill_is_of_the_days_and_stages_of_the_run_whenever_it_is_reported(tmp_path: Path) -> None:
    """Of a run of November with a training in a later month, which no report has yet."""
    (tmp_path / "run.yaml").write_text(spec.dump_run(COMPACT))
    keep(tmp_path, "simulate", 3_600)
    reported = stages.report(COMPACT, tmp_path).summary.bill
    assert reported is not None and reported.as_of == bill_of(tmp_path).as_of == dt.date(2026, 11, 21)
    with recorded("train", tmp_path):
        pass
    keep(tmp_path, "train", 7_200, outcome="interrupted")
    assert bill_of(tmp_path).usd == pytest.approx(3 * USD_PER_HOUR, abs=1e-4)
    again = stages.report(COMPACT, tmp_path).summary.bill
    assert again is not None and again.parts == bill_of(tmp_path).parts
    (tmp_path / "stages" / "train.json").write_text("{}")
    assert bill_of(tmp_path).usd == pytest.approx(3 * USD_PER_HOUR, abs=1e-4)  # as the report has it


def test_the_monte_carlo_has_all_cores_as_the_generator_has(tmp_path: Path) -> None:
    """A simulation by one process, as its own remedy for too little memory says, is no measure of the machine."""
    (tmp_path / "run.yaml").write_text(spec.dump_run(COMPACT))
    cores, showers = this_machine().cores, {**SIMULATED, "showers": 1000, "source": "geant4"}
    keep(tmp_path, "simulate", 100, **showers, showersPerSecond=10.0, processes=1)
    keep(tmp_path, "train", 100, showersPerSecond=50.0, epochs=1)
    keep(tmp_path, "validate", 100, showersPerSecond=500.0, generated=10)
    keep_use(COMPACT, tmp_path)
    million, (records, _) = bill_of(tmp_path).per_million_showers, finished(tmp_path)
    assert million is not None and million.monte_carlo_usd is not None and million.generated_usd is not None
    assert million.monte_carlo_usd / million.generated_usd == pytest.approx(500 / (10 * cores), rel=1e-3)
    assert local_speed(tmp_path, read_use(tmp_path)).simulated_per_second == 10 * cores
    assert _generation(records["validate"], records["simulate"].figures).speedup_over_geant4 == 500 / (10 * cores)


def test_figures_of_an_earlier_report_are_removed_and_others_stay(tmp_path: Path) -> None:
    """A training that was continued is not validated yet: the folder shows nothing of the verdict before."""
    keep(tmp_path, "train", 60)
    (tmp_path / "figures").mkdir()
    for name in ("response.png", "response.pdf", "training_curves.png", "own.png"):
        (tmp_path / "figures" / name).touch()
    stages.report(COMPACT, tmp_path)
    assert [path.name for path in (tmp_path / "figures").iterdir()] == ["own.png"]


def test_a_report_that_is_made_again_does_not_forget_that_a_step_was_killed(tmp_path: Path) -> None:
    """A step that was killed has no record: nothing else knows of it, until a stage begins again."""
    keep(tmp_path, "preprocess", 60)
    stages.report(COMPACT, tmp_path, failure="step train: killed")
    again = stages.report(COMPACT, tmp_path).summary
    assert (again.outcome, again.error) == ("failed", "step train: killed")
    assert stages.report(COMPACT, tmp_path, failure="").summary.outcome == "succeeded"
    stages.report(COMPACT, tmp_path, failure="step train: killed")
    with recorded("train", tmp_path):
        pass
    assert stages.report(COMPACT, tmp_path).summary.outcome == "succeeded"
