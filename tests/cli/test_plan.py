"""caloscale plan, bill, prices and calibrate: what a person reads, what a script reads, and bad input."""

import csv
import datetime as dt
import json
import os
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from caloscale.planning.search.own_machine import reference_speeds
from caloscale.showers.files import write_showers
from caloscale.spec import dump_run, load_run
from caloscale.spec.model import FIRST_PRESET
from caloscale.stages.record import StageRecord, this_machine, write_record
from caloscale.stages.reporting import keep_use
from tests.processes import without
from tests.showers.conftest import make_showers

RUN = """
model: {preset: variable-angle}
train: {batchPerReplica: 96}
hardware: {accelerator: nvidia-tesla-v100, count: 32, perNode: 8, region: europe-west4, capacityType: spot}
"""
ROOT = Path(__file__).parents[2]
MODULES = {"scikit-learn": "sklearn", "tensorflow-cpu": "tensorflow", "pysocks": "socks"}
MODULES |= {"google-cloud-storage": "google.cloud", "google-crc32c": "google_crc32c", "mpi4py": "mpi4py"}
"""Modules of packages that have another name."""
NODE_HOUR_2026 = 64 * 0.01392 + 240 * 0.001866 + 8 * 1.0443  # n1-standard-64 with 8 V100, europe-west4, spot
HELD = {
    "machineType": "n1-standard-64",
    "accelerator": "nvidia-tesla-v100",
    "perNode": 8,
    "region": "europe-west4",
    "capacityType": "spot",
    "nodes": 4,
    "seconds": 7200,
}
USAGE = {
    "name": "own",
    "day": "2026-11-21",
    "epochs": 55,
    "attempts": [{"nodes": [HELD], "startUpSeconds": 130, "trainingSeconds": 6600, "evaluationSeconds": 200}],
    "observed": {
        "network": "variable-angle",
        "workers": 4,
        "batchPerReplica": 96,
        "showers": 124950,
        "epochs": 54,
        "stepSeconds": 2.9,
    },
}


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "own"
    path.mkdir()
    (path / "usage.json").write_text(json.dumps(USAGE))
    return path


def test_a_plan_for_scripts_and_the_same_for_people(command, document, tmp_path):
    figure = tmp_path / "pareto.svg"
    made = json.loads(command("plan", document, "--json", "--as-of", "2026-11-21", "--figure", figure).out)
    chosen = made["chosen"]
    assert (chosen["workers"], chosen["acceleratorsPerWorker"], chosen["nodes"]) == (4, 8, 4)
    assert chosen["usd"] == pytest.approx(4 * NODE_HOUR_2026 * chosen["totalSeconds"] / 3600)
    assert made["prices"]["asOf"] == "2026-11-21" and made["pareto"] and made["candidates"]
    assert ET.parse(figure).getroot().tag.endswith("svg")
    shown = command("plan", document, "--as-of", "2026-11-21")
    assert shown.code == 0
    for text in (f"{chosen['usd']:.2f} USD", "4 workers x 8", "4 x 8 (aligned)", "324 days before", "not known"):
        assert text in shown.out


@pytest.mark.parametrize("name", ["run", "plan", "submit"])
@pytest.mark.parametrize(("epochs", "warned"), [(1, True), (2, False)])
def test_a_schedule_that_is_not_what_the_run_asks_for_is_named(command, tmp_path, name, epochs, warned):
    absent = tmp_path / "absent"
    options = ("--preset", "compact", "--set", f"data.source={absent}", "--set", f"train.epochs={epochs}")
    options += ("--set", f"train.deterministic={json.dumps(warned)}")
    folder = {"run": ("--runs", tmp_path), "submit": ("--dry-run",)}.get(name, ())
    done = command(name, *options, *folder)
    assert ("warning: train.warmupEpochs 2 is more than train.epochs 1," in done.err) is warned
    assert ("no two runs are alike; set train.maxMinutes to null" in done.err) is warned


@pytest.mark.parametrize("hardware", [("--set", "hardware.accelerator=cpu"), ()])
def test_a_run_that_trains_here_names_the_machines_that_it_does_not_use(command, tmp_path, hardware):
    absent = ("--preset", "compact", "--set", f"data.source={tmp_path / 'absent'}")
    done = command("run", *absent, *hardware, "--runs", tmp_path)
    assert done.code == 2
    assert ("trains on this one; caloscale submit" in done.err) is bool(hardware)


HEADER = "provider,region,sku_kind,sku,unit,capacity_type,usd_per_unit_hour,effective_from,observed_on,source\n"


def own_prices(
    folder: Path, provider: str, region: str, sold: str = "gpu,nvidia-tesla-v100,gpu", way: str = "spot"
) -> Path:
    row = f"{provider},{region},{sold},{way},0.5,2026-11-01,2026-11-20,our invoice\n"
    (folder / "own.csv").write_text(HEADER + row)
    return folder / "own.csv"


def test_old_prices_and_own_prices(command, document, tmp_path):
    old = json.loads(command("plan", document, "--json", "--as-of", "2022-06-01").out)
    assert old["chosen"]["usdPerHour"] == pytest.approx(4 * (64 * 0.007325 + 240 * 0.000987 + 8 * 0.74))
    own = own_prices(tmp_path, "gcp", "europe-west4").read_bytes()
    read, write = os.pipe()  # can be read once: --prices <(our-invoices)
    os.write(write, own)
    os.close(write)
    made = json.loads(command("plan", document, "--json", "--as-of", "2026-11-21", "--prices", f"/dev/fd/{read}").out)
    node = NODE_HOUR_2026 - 8 * (1.0443 - 0.5)
    assert made["chosen"]["usdPerHour"] == pytest.approx(4 * node)


UNUSED = "no machine of the catalogue has all its prices in the region europe-west44,"
VM = "vm,ND40rs_v2,vm"


@pytest.mark.parametrize(
    ("place", "says"),
    [
        (("gcp", "europe-west4"), ""),
        (("gcp", "europe-west44"), UNUSED),
        (("none", "our room"), ""),
        (("azure", "westeurope", VM), ""),
        (("azure", "westeuropa", VM), "westeuropa is no region of azure that is known, and its rows are used: did"),
    ],
)
def test_rows_of_a_mistyped_region_are_reported(command, tmp_path, place, says):
    done = command("prices", "--prices", own_prices(tmp_path, *place))
    assert done.code == 0 and (f"warning: --prices: {says}" in done.err) == bool(says) == bool(done.err)


def test_a_cap_on_the_training_stands_in_the_first_line(command):
    """The compact preset ends after five minutes: of ten million showers that is a part of an epoch."""
    accelerator = ("--set", "hardware.accelerator=nvidia-a100-80gb")
    shown = command("plan", "--preset", "compact", "--set", "data.showers=10000000", *accelerator)
    assert shown.code == 0
    assert shown.out.startswith("train.maxMinutes ends the training after 0.41 of 42 epochs; chosen: ")
    whole = command("plan", "--preset", "compact", *accelerator, "--set", "train.maxMinutes=600", "--json")
    assert json.loads(whole.out)["chosen"]["epochs"] == 42


def test_without_a_measured_machine_the_exit_code_says_that_nothing_is_chosen(command):
    shown = command("plan", "--preset", "compact", "--json")
    assert json.loads(shown.out)["chosen"] is None and shown.code == 8
    first_line = command("plan", "--preset", "compact").out.splitlines()[0]
    assert first_line.endswith("compact was measured on no machine, and hardware.accelerator names none")


def keep_local_run(folder: Path, *overrides: str, reused: bool = False) -> None:
    """The records that a run on this machine leaves."""
    run = load_run(preset="compact", overrides=("data.showers=10000000", "train.maxMinutes=null", *overrides))
    (folder / "run.yaml").parent.mkdir()
    (folder / "run.yaml").write_text(dump_run(run))
    figures: dict[str, dict[str, object]] = {
        "simulate": {"showersPerSecond": 10.0, "source": "geant4", "reused": reused},
        "train": {"showersPerSecond": 2e5, "globalBatchSize": 32, "epochs": 42},
        "validate": {"showersPerSecond": 1000.0},
    }
    for stage, measured in figures.items():
        started = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
        times = {"started": started, "seconds": 9.0, "core_seconds": 9.0, "peak_memory_mib": 1.0}
        record = StageRecord(stage=stage, outcome="succeeded", machine=this_machine(), figures=measured, **times)
        write_record(record, folder)
    keep_use(run, folder)


def test_a_local_run_makes_the_machine_at_hand_a_measured_one(command, tmp_path):
    """42 epochs of 10 M showers at 200,000 a second are 2,100 s; 3.6 M showers at 1,000 a second one hour."""
    keep_local_run(tmp_path / "mine")
    document = tmp_path / "mine" / "run.yaml"
    assert command("plan", document).code == 8
    done = command("calibrate", tmp_path / "mine")
    assert done.code == 0 and "trains compact with batches of 32: 2e+05 showers/s" in done.out
    limits = ("--set", "budget.maxUsd=200", "--set", "budget.deadline=12h")
    made = json.loads(command("plan", document, *limits, "--generate", 3_600_000, "--json").out)
    assert made["ownTraining"]["seconds"] == pytest.approx(2100) and made["ownTraining"]["meetsLimits"]
    generator, geant4 = made["making"]["offers"]
    usd = 2 * 0.031611 + 7.5 * 0.004237
    assert (generator["hours"], generator["usd"]) == (pytest.approx(1), pytest.approx(usd))
    assert (geant4["machines"], geant4["usd"]) == (9, pytest.approx(100 * usd))  # 100 h within 12 h
    shown = command("plan", document, *limits, "--generate", 3_600_000)
    assert shown.code == 0 and shown.out.startswith("chosen: this machine (")
    assert "making 3,600,000 showers; by generator: 1 h on 1 x n1-standard-2, 0.09 USD" in shown.out
    assert shown.out.splitlines()[3].startswith("cheaper than Monte Carlo from ")
    rows = [line for line in shown.out.splitlines()[4:] if not line.startswith("- ")]
    assert max(len(row.rstrip()) for row in rows) <= 80


def test_the_group_leaders_question_on_a_machine_that_measured_nothing(command, tmp_path, monkeypatch):
    """No run configuration: the preset of `make run`, on the reference machine, break-even in the first lines."""
    monkeypatch.chdir(tmp_path)
    made = json.loads(command("plan", "--generate", 10_000_000, "--json").out)
    reference, speeds = made["making"]["trainingReference"], {s.network: s for s in reference_speeds()}
    speed = speeds[FIRST_PRESET]
    assert made["network"] == FIRST_PRESET and reference["machineType"] == speed.machine_type
    assert reference["seconds"] == pytest.approx(made["epochs"] * made["showers"] / speed.trained_per_second)
    shown = command("plan", "--generate", 10_000_000)
    assert shown.code == 0 and shown.out.startswith(f"chosen: the reference machine ({speed.machine_type}, ")
    assert any(line.startswith("cheaper than Monte Carlo from ") for line in shown.out.splitlines()[:5])
    assert command("plan", "--generate", 10_000_000, "--set", "budget.maxUsd=0.000001").code == 8
    assert command("plan").code == 2
    makefile = (ROOT / "Makefile").read_text()
    assert f"PRESET ?= {FIRST_PRESET}\n" in makefile


def test_showers_from_the_cache_are_no_measurement_of_geant4(command, tmp_path):
    keep_local_run(tmp_path / "mine", reused=True)
    speeds = tmp_path / "speeds.csv"
    for _ in range(2):  # the same run again replaces its row
        assert command("calibrate", tmp_path / "mine", "--speeds", speeds).code == 0
    (row,) = csv.DictReader(speeds.read_text().splitlines())
    assert row["simulated_per_second"] == "" and float(row["generated_per_second"]) == 1000
    shown = command("plan", tmp_path / "mine" / "run.yaml", "--generate", 1000, "--speeds", speeds)
    assert "by Monte Carlo: " in shown.out and "n1-standard-2 (speed of the reference machine)" in shown.out
    done = command("calibrate", tmp_path / "mine", "-o", tmp_path / "rented.csv")
    assert done.code == 2 and re.search(r"--output: would not be written.*rented\.csv", done.err)
    (tmp_path / "mine" / "stages" / "train.json").unlink()
    done = command("calibrate", tmp_path / "mine", "--speeds", speeds)
    assert done.code == 2 and "measured no training" in done.err


@pytest.mark.long
def test_measuring_the_machine_at_hand(command, tmp_path):
    """Real processes: the step, the generator and, where it is installed, Geant4."""
    tiny = [f"--set=data.geometry.{one}" for one in ("cells=[9,9,4]", "layers=[{count: 4, absorberMm: 8}]")]
    tiny += ["--set=data.preprocessing.rebin=[1,1,1]", "--set=data.energyGev=[1,2]", "--set=train.batchPerReplica=4"]
    options = ("--preset", "compact", *tiny, "--set", "data.showers=1000", "--generate", 1000, "--json")
    made = json.loads(command("plan", *options, "--measure").out)
    again = json.loads(command("plan", *options).out)
    assert made["ownTraining"]["seconds"] > 0 and again["making"] == made["making"]
    assert made["making"]["offers"][0]["hours"] > 0


RUN_ALL = """
import json, runpy, sys
for module, *words in json.loads(sys.argv[1]):
    print("runs", module, *words, file=sys.stderr)
    sys.argv[1:] = words
    try:
        runpy.run_module(module, run_name="__main__" if words else "imported")
    except SystemExit as end:
        if end.code:
            raise
"""
NEED = {
    "plan": [
        ["caloscale.cli.main", "plan", "run.yaml", "--generate", "1000", "--as-of", "2026-11-21"],
        ["caloscale.cli.main", "bill", "own"],
        ["caloscale.cli.main", "calibrate", "own", "-o", "mine.csv"],
        ["caloscale.cli.main", "prices", "--region", "us-central1"],
    ],
    "operator": [["caloscale.operator.__main__"]],
    "cluster": [["tools.deploy", "--help"], ["caloscale.cli.main", "node-pools", "run.yaml", "--as-of", "2026-11-21"]],
    "": [["caloscale.cli.main", "inspect", "showers.h5"], ["caloscale.cli.main", "doctor", "--json"]],
}


@pytest.mark.integration
@pytest.mark.parametrize("extra", NEED)
def test_a_command_needs_its_own_extra_only(extra, document, folder):
    """Packages of all others cannot be imported: no TensorFlow, no cloud."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    there = {*project["dependencies"], *extras.get(extra, ())}
    brought = {re.split(r"[^\w-]", each)[0] for name in {*extras} - {"dev", "docs"} for each in {*extras[name]} - there}
    modules = {MODULES.get(name, name.replace("-", "_")) for name in brought} | {"keras", "matplotlib"}
    assert {"tensorflow", "kfp", "sklearn", "tensorboard", "google.cloud"} <= modules
    assert ("kubernetes" in modules) == (extra in ("plan", "")) and ("scipy" in modules) == (extra == "")
    write_showers(make_showers(2), document.parent / "showers.h5")
    code = without(*modules) + RUN_ALL
    command = [sys.executable, "-W", "ignore", "-c", code, json.dumps(NEED[extra])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=document.parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr.count("runs ") == len(NEED[extra]), done.stderr[-2000:]


def test_deploying_installs_no_training():
    assert re.findall(r"^(?:un)?deploy: (\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE) == ["$(VENV)/.base"] * 2


def test_what_meets_no_limit_is_said(command):
    shown = command("plan", "--preset", "variable-angle", "--set", "budget.maxUsd=20", "--set", "budget.deadline=2h")
    assert shown.code == 8
    assert "nothing meets budget.maxUsd and budget.deadline; nearest" in shown.out


BAD = {
    "topology and count": (
        ["plan", "--preset", "variable-angle"]
        + [f"--set=hardware.{field}" for field in ("accelerator=tpu-v3", "topology=2x2", "count=8")],
        "chips of topology 2x2, 4",
    ),
    "figure": (["plan", "--preset", "variable-angle", "--figure", "p.docx"], ".svg"),
    "prices": (["plan", "--preset", "variable-angle", "--prices", "absent.csv"], "absent.csv"),
    "measurements": (["plan", "--preset", "variable-angle", "--measurements", "absent.csv"], "absent.csv"),
    "stale prices": (["plan", "--preset", "variable-angle", "--as-of", "2031-01-01"], "days old on 2031-01-01"),
    "count that no layout reaches": (
        ["plan", "--preset", "variable-angle"]
        + [f"--set=hardware.{field}" for field in ("accelerator=nvidia-tesla-v100", "count=3", "perNode=3")],
        "nodes of this kind have 1, 2, 4, 8",
    ),
    "no price that day": (["prices", "--as-of", "2001-01-01"], "another date"),
    "machines of a region": (["prices", "--machines", "--region", "us-central1"], "--region: does not belong"),
    "machines of a day": (["prices", "--machines", "--as-of", "2022-06-01"], "--as-of: does not belong"),
    "machines with prices": (["prices", "--machines", "--prices", "x.csv"], "--prices: does not belong"),
    "no document": (["plan"], "give a run configuration (YAML), or --preset, or run.yaml in this folder"),
    "machine without GPUs": (
        ["plan", "--preset", "variable-angle", "--set", "hardware.machineType=n1-standard-2"],
        "hardware.machineType: is no machine type with accelerators",
    ),
    "no such run": (["bill", "absent"], "does not exist"),
    "no usage": (["calibrate", ".", "-o", "m.csv"], "usage.json"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_with_2_and_a_remedy(command, case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, says = BAD[case]
    done = command(*arguments)
    assert done.code == 2 and "remedy" in done.err and says in done.err
    assert list(tmp_path.iterdir()) == []


def test_the_price_list_says_when_and_where(command):
    shown = command("prices", "--sku", "v100", "--region", "europe-west4", "--as-of", "2026-11-21", "--wide").out
    assert "1.0443" in shown and "2026-01-01" in shown and "SkyPilot" in shown and "more than 90 days" in shown
    listed = json.loads(command("prices", "--json", "--as-of", "2022-06-01").out)
    v3 = [r for r in listed["rows"] if (r["sku"], r["region"], r["capacityType"]) == ("v3-8", "europe-west4", "spot")]
    assert [row["usdPerUnitHour"] for row in v3] == [2.64]
    assert "n1-standard-64" in command("prices", "--machines", "--sku", "V100").out
    assert command("prices", "--sku", "V100").code == 0


def test_the_bill_of_rented_machines_beside_its_plan(command, document, folder):
    alone = command("bill", folder)
    assert alone.code == 0 and "Estimate" not in alone.out and "A million showers have no price" in alone.out
    made = command("plan", document, "--json", "--as-of", "2026-11-21").out
    (folder / "plan.json").write_text(made)
    bill = json.loads(command("bill", folder, "--json").out)
    assert bill["usd"] == pytest.approx(4 * NODE_HOUR_2026 * 2, abs=0.01)
    causes = sum(cause["usd"] for cause in bill["againstEstimate"]["causes"])
    assert causes == pytest.approx(bill["usd"] - json.loads(made)["chosen"]["usd"], abs=0.01)
    shown = command("bill", folder).out
    spent = [part["purpose"] for part in bill["parts"] if part["usd"]]
    beside = ("Not in it: boot disks (hardware.diskGib), control plane (", "network traffic")
    for text in (f"{bill['usd']:.2f} USD", "epochs that were planned and not run", *beside, *spent):
        assert text in shown
    attempt = {**USAGE["attempts"][0], "nodes": [{**HELD, "controlPlaneSeconds": 36_000}]}
    (folder / "usage.json").write_text(json.dumps({**USAGE, "attempts": [attempt]}))
    own = own_prices(folder, "gcp", "europe-west4", "control_plane,cluster,cluster", "on-demand")
    shown = command("bill", folder, "--prices", own).out
    assert "Not in it: boot disks (hardware.diskGib), buckets" in shown
    assert re.search(r"control plane of the cluster +10\.0000 ", shown) and re.search(r"all +8\.0000 ", shown)


def test_the_bill_of_one_s_own_machine(command, tmp_path):
    (tmp_path / "bill.json").write_text("{}")
    done = command("bill", tmp_path)
    assert done.code == 2 and "caloscale report" in done.err
    held = {"machineType": "n1-standard-2", "region": "us-central1", "capacityType": "on-demand", "nodes": 1}
    attempt = {"nodes": [{**held, "seconds": 3600}], "showerSeconds": 1800, "trainingSeconds": 1800}
    use = {"name": "mine", "day": "2026-11-21", "ownMachine": True, "epochs": 4, "attempts": [attempt]}
    (tmp_path / "usage.json").write_text(json.dumps(use))
    usd = 2 * 0.031611 + 7.5 * 0.004237
    shown = command("bill", tmp_path).out
    for text in (f"{usd:.4f} USD", f"{usd / 4:.4g} USD an epoch", "showers", "1 start,", "one's own"):
        assert text in shown
    (tmp_path / "usage.json").write_text("{}")
    assert command("bill", tmp_path).code == 2
    (tmp_path / "usage.json").write_text(json.dumps({**use, "epochs": 0}))
    assert "no epoch finished" in command("bill", tmp_path).out


def test_a_damaged_file_of_speeds_ends_a_calibration_before_anything_is_written(command, folder, tmp_path):
    keep_local_run(tmp_path / "mine")
    speeds = tmp_path / "speeds.csv"
    speeds.write_text("source\n")
    done = command("calibrate", folder, tmp_path / "mine", "-o", tmp_path / "rented.csv", "--speeds", speeds)
    assert done.code == 0  # a header alone
    (tmp_path / "rented.csv").unlink()
    speeds.write_text("nothing\n")
    done = command("calibrate", folder, tmp_path / "mine", "-o", tmp_path / "rented.csv", "--speeds", speeds)
    assert done.code == 2 and "speeds.csv" in done.err and not (tmp_path / "rented.csv").exists()


def test_calibration_adds_a_run_and_the_next_plan_counts_on_it(command, document, folder, tmp_path):
    file = tmp_path / "mine.csv"
    first = command("calibrate", folder, "-o", file)
    assert first.code == 0 and "run own" in first.out
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [(row["source"], float(row["step_seconds"]), row["steps"]) for row in rows] == [("run own", 2.9, "40")]
    made = json.loads(command("plan", document, "--json", "--measurements", file).out)
    assert made["chosen"]["reasons"][0].startswith("21 runs measured")
    assert made["chosen"]["expectedInterruptions"] > 0  # a rate from the eight node hours without any
    elsewhere = {"nodes": [{**HELD, "region": "us-central1"}], "interruptions": 3}
    other = {**USAGE, "name": "second", "observed": {**USAGE["observed"], "stepSeconds": 2.95}}
    other["attempts"] = [elsewhere, *USAGE["attempts"]]
    (folder / "usage.json").write_text(json.dumps(other))
    for _ in range(2):  # the same run again replaces its row
        done = command("calibrate", folder, "-o", file)
        assert done.code == 0 and "warning: run second: 3 interruptions in 8 hours of spot nodes" in done.err
        sources = [row["source"] for row in csv.DictReader(file.read_text().splitlines())]
        assert sources == ["run own", "run second"]
    (folder / "usage.json").write_text(json.dumps({**other, "day": "2026-11-22"}))  # another run of the same name
    assert command("calibrate", folder, "-o", file).code == 0
    assert [line.split(",")[0] for line in file.read_text().splitlines()[1:]] == ["run own", "run second", "run second"]
    assert command("calibrate", folder, folder / "usage.json", "-o", file).code == 2
    made, again = (
        json.loads(command("calibrate", folder, "-o", file, "--json", *more).out)
        for more in ((), ("--measurements", file))  # a run is predicted without its own row
    )
    assert again == made
    once, twice = (json.loads(command("plan", document, "--json", *("--measurements", file) * n).out) for n in (1, 2))
    assert twice == once


def test_calibration_names_the_runs_that_it_leaves_out(command, folder, tmp_path):
    (tmp_path / "short.json").write_text(json.dumps({**USAGE, "name": "short", "observed": None}))
    done = command("calibrate", folder, tmp_path / "short.json", "-o", tmp_path / "m.csv")
    assert done.code == 0 and "warning: run short measured no training" in done.err
    assert "run short" not in (tmp_path / "m.csv").read_text()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"attempts": []}, "attempts"),
        ({"epochs": -1}, "greater than or equal to 0"),
        ({"unknown": 1}, "unknown"),
        ({"attempts": [{"nodes": [HELD], "trainingSeconds": 9999}]}, "wall seconds"),
        ({"observed": {**USAGE["observed"], "workers": 5}}, "does not add up"),
        ({"observed": None}, "no run measured"),
    ],
)
def test_nonsense_in_a_usage_file(command, folder, tmp_path, change, says):
    (folder / "usage.json").write_text(json.dumps({**USAGE, **change}))
    done = command("calibrate", folder, "-o", tmp_path / "m.csv")
    assert done.code == 2 and says in done.err and "remedy" in done.err
    assert not (tmp_path / "m.csv").exists()


def test_a_usage_file_of_an_earlier_version_has_its_bill_and_its_measurement(command, folder, tmp_path):
    """It has fields, null, that there are no longer."""
    usd = json.loads(command("bill", folder, "--json").out)["usd"]
    gone = dict.fromkeys(("stepCv", "testSeconds", "provisioningSeconds", "firstStepSeconds"))
    (folder / "usage.json").write_text(json.dumps({**USAGE, "observed": {**USAGE["observed"], **gone}}))
    assert json.loads(command("bill", folder, "--json").out)["usd"] == usd
    assert command("calibrate", folder, "-o", tmp_path / "m.csv").code == 0


def test_nonsense_in_a_file_of_measurements_stays_as_it_is(command, folder, tmp_path):
    (tmp_path / "m.csv").write_text("network,steps\nvariable-angle,-3\n")
    done = command("calibrate", folder, "-o", tmp_path / "m.csv")
    assert done.code == 2 and "m.csv:2" in done.err
    assert (tmp_path / "m.csv").read_text().startswith("network,steps\n")
