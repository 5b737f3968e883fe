"""The cost study against the published epochs and prices, which stand here a second time."""

import csv
import datetime as dt
import json

import pytest

from caloscale.errors import ConfigurationError
from caloscale.planning.catalogue.prices import load_prices
from caloscale.studies.measures import MEASURES, Context
from caloscale.studies.report import run_study
from caloscale.studies.sweep import load_study

TODAY = dt.date(2026, 11, 21)
TRAIN_SECONDS = {2: 1784.42, 4: 900.49, 8: 456.62, 16: 229.66, 32: 115.02}
TEST_SECONDS = {2: 22.40, 4: 11.40, 8: 8.05, 16: 7.36, 32: 3.37}
V100_SPOT = {"2022-06-01": 0.74, "2026-11-21": 1.0443}
HOST_2022 = 8 * 0.007325 + 30 * 0.000987  # n1-standard-8, europe-west4, preemptible


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cost")
    outcome = run_study(load_study("cost"), Context(TODAY), folder, "caloscale study cost")
    return outcome, folder, json.loads((folder / "study.json").read_text())


@pytest.mark.integration
def test_cost_per_epoch_of_2_to_32_v100_is_flat(made):
    rows = made[2]["tables"]["flat"]
    assert len(rows) == 20
    for row in rows:
        count, day = row["GPUs"], row["prices of"]
        seconds = TRAIN_SECONDS[count] + (TEST_SECONDS[count] if row["host of a GPU"] else 0)
        assert row["epoch s"] == pytest.approx(seconds, rel=1e-4)
        if row["host of a GPU"] is None:
            assert row["USD/epoch"] == pytest.approx(seconds * count * V100_SPOT[day] / 3600, rel=1e-3)
        elif day == "2022-06-01":
            assert row["USD/epoch"] == pytest.approx(seconds * count * (0.74 + HOST_2022) / 3600, rel=1e-3)
    spreads = [s["figures"]["spread"] for s in made[2]["statements"] if "flat" in s["claim"]]
    assert len(spreads) == 4
    assert spreads[0] == pytest.approx(32 * 115.02 / (2 * 1784.42) - 1, abs=1e-4)
    assert max(spreads) < 0.05


def test_tpu_against_v100_at_the_prices_of_the_study_and_of_today(made):
    statements = [s for s in made[2]["statements"] if "TPU" in s["claim"]]
    old, new = statements
    assert old["figures"]["ratio"] == pytest.approx(456.62 * 8 * 0.74 / (416.29 * 2.64), abs=0.001)
    assert f"{old['figures']['ratio']:.2f}" == "2.46"
    assert (round(old["figures"]["lowest"], 2), round(old["figures"]["highest"], 2)) == (2.07, 3.14)
    assert new["figures"]["ratio"] == pytest.approx(456.62 * 8 * 1.0443 / (416.29 * 2.244), abs=0.001)
    for statement, day, seen in ((old, "2022-06-01", "2022-01-01"), (new, "2026-11-21", "2026-01-01")):
        assert f"prices of {day} seen on {seen}" in statement["finding"]
        assert "without hosts" in statement["finding"] and "n1-standard-96" in statement["finding"]
    of_region = {
        (row["region"], row["prices of"]): row["V100 over TPU"]
        for row in made[2]["tables"]["tpu"]
        if row["hosts of V100"] == "without hosts" and row["epoch is"] == "training"
    }
    assert of_region["us-central1", "2022-06-01"] == pytest.approx(2.71, abs=0.005)


PAIR = {
    "one.accelerator": "nvidia-tesla-v100",
    "one.count": 8,
    "one.batchPerReplica": 96,
    "other.accelerator": "tpu-v3",
    "other.count": 4,
    "region": "europe-west4",
    "capacityType": "spot",
    "asOf": "2022-06-01",
    "withTest": True,
}


def test_a_ratio_is_of_one_to_the_other_and_has_a_test_pass_only_where_one_was_measured(tmp_path):
    compute, context = MEASURES["epochRatio"].compute, Context(TODAY)
    assert compute(PAIR, context, tmp_path)["ratio"] == pytest.approx(2.45, abs=0.01)
    exchanged = {k.replace("one.", "x").replace("other.", "one.").replace("x", "other."): v for k, v in PAIR.items()}
    turned = compute(exchanged, context, tmp_path)
    assert turned["ratio"] == pytest.approx(1 / 2.45, abs=0.01) and turned["oneCost"]["title"] == "v3-8"
    azure = {"one.provider": "azure", "one.count": 100, "one.region": "westeurope"}
    with pytest.raises(ConfigurationError, match="test pass of this run was not measured"):
        compute({**PAIR, **azure}, context, tmp_path)
    with pytest.raises(ConfigurationError, match=r"onee\.host"):
        compute({**PAIR, "onee.host": "n1-standard-96"}, context, tmp_path)


def test_one_accelerator_against_many_for_60_and_120_epochs(made):
    statements = {s["figures"]["epochs"]: s for s in made[2]["statements"] if "epochs" in s["figures"]}
    epoch_of_one = 2 * TRAIN_SECONDS[2] + 2 * TEST_SECONDS[2]
    epoch_of_128 = 33.22 + 1.59  # the study's run of 120 epochs
    for epochs in (60, 120):
        figures = statements[epochs]["figures"]
        assert figures["oneSeconds"] == pytest.approx(epochs * epoch_of_one, rel=0.02)
        assert figures["manySeconds"] == pytest.approx(epochs * (epoch_of_128 + 4), rel=0.08)
        assert "1 x nvidia-tesla-v100 is extrapolated" in statements[epochs]["finding"]


def test_statements_name_the_capacity_type_that_was_priced(tmp_path):
    study = load_study("cost").changed({"capacityType": "on-demand", "hardware.capacityType": "spot"})
    statements = run_study(study, Context(TODAY), tmp_path, "x").statements
    assert all("on-demand, " in s.finding for s in statements if "v3-8" in s.claim or "flat" in s.claim)
    assert all("spot, 96 showers" in s.finding for s in statements if "week" in s.claim)


def test_one_number_of_accelerators_is_no_statement_about_several(tmp_path):
    """Its cost is not flat from 2 to 2, nor its time 1 times shorter."""
    names = ("count", "nodes", "workers", "hosts", "hardware.count", "hardware.perNode")
    study = load_study("cost").changed({name: [2] for name in names})
    statements = run_study(study, Context(TODAY), tmp_path, "x").statements
    assert {s.claim for s in statements} == {"a preemptible TPU v3-8 is 2.4 times cheaper than its GPU equivalent"}


def test_what_a_study_leaves(made):
    outcome, folder, content = made
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "points",
        "study.md",
        "study.html",
        "study.json",
        *(f"{name}.{kind}" for name in ("flat", "time") for kind in ("svg", "png")),
        *(f"{table.sweep.name}.csv" for table in outcome.tables),
    }
    page = (folder / "study.md").read_text()
    assert "2.46 in europe-west4" in page and "![" in page and "caloscale study cost, today" in page
    rows = list(csv.DictReader((folder / "tpu.csv").read_text().splitlines()))
    assert [float(row["V100 over TPU"]) for row in rows] == [r["V100 over TPU"] for r in content["tables"]["tpu"]]
    assert all(statement["claim"] in page for statement in content["statements"])


def test_prices_of_another_day_and_of_a_file_are_what_today_means(tmp_path):
    study = load_study("cost")
    study = study.model_copy(update={"sweeps": study.sweeps[:1], "conclusions": None})
    own = tmp_path / "own.csv"
    own.write_text(
        "provider,region,sku_kind,sku,unit,capacity_type,usd_per_unit_hour,effective_from,observed_on,source\n"
        "gcp,europe-west4,gpu,nvidia-tesla-v100,gpu,spot,0.5,2026-11-01,2026-11-20,our invoice\n"
    )
    first = run_study(study, Context(TODAY), tmp_path / "out", "x").tables[0].values
    again = run_study(study, Context(TODAY, load_prices([own])), tmp_path / "out", "x").tables[0].values
    before, after = ([list(row.values())[4] for row in rows] for rows in (first, again))
    assert before[:10] == after[:10]  # prices of 2022
    assert after[10] / before[10] == pytest.approx(0.5 / 1.0443)
