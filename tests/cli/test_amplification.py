"""`caloscale amplification` on run folders with fresh networks."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from caloscale.physics.worth import Worth
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.reader import read_showers
from caloscale.showers.hdf5.writer import write_showers
from caloscale.showers.tfrecord.shards import preprocess_showers, read_manifest, read_split
from caloscale.spec import dump_run, load_run
from caloscale.spec.workspace_layout import DATASET, TRAINED
from caloscale.stages.summary import Summary
from tests.inference.model_folders import COMPACT as DETECTOR
from tests.inference.model_folders import make_model

pytestmark = pytest.mark.integration

COMPACT = (*DETECTOR, "data.angleDeg=[80, 100]")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("showers")
    random = np.random.default_rng(1)
    energy_gev = random.uniform(5, 40, 400).astype(np.float32)
    angle_rad = np.deg2rad(random.uniform(80, 100, 400)).astype(np.float32)
    cells = random.gamma(0.3, energy_gev[:, None, None, None] / 1250, (400, 5, 4, 3)).astype(np.float32)
    write_showers(folder / "showers.h5", Showers(cells, energy_gev, angle_rad, "geant4"), attributes={})
    preprocess_showers(load_run(preset="compact", overrides=COMPACT).data, folder, folder / "shards")
    return folder / "shards"


def run_folder(folder: Path, shards: Path, *overrides: str) -> Path:
    """A run whose networks were never trained."""
    make_model(folder / TRAINED, "compact", COMPACT)
    (folder / "run.yaml").write_text(dump_run(load_run(preset="compact", overrides=[*COMPACT, *overrides])))
    (folder / DATASET).symlink_to(shards)
    return folder


def test_two_runs_and_what_is_no_ensemble(command: Callable, shards: Path, tmp_path: Path) -> None:
    first, second = (run_folder(tmp_path / f"seed-{seed}", shards, f"train.seed={seed}") for seed in (1, 2))
    options = ("--showers", 200, "--held-out", shards)
    done = command("amplification", first, second, *options, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["runs"] == ["seed-1", "seed-2"] and found["generated"] == 200 and found["usd"] is None
    response = next(row for row in found["gated"] if row["quantity"] == "response")
    # networks without training are far from any shower: a shower of theirs is worth less than one of Monte Carlo
    assert response["observed"]["value"] < 100 and response["worth"]["value"] <= response["observed"]["value"]
    assert response["predicted"] is not None and response["usdPerEffectiveShower"] is None

    # Reports were made again, whose bills say that there is none.
    assert all("noPrice" in json.loads((run / "bill.json").read_text()) for run in (first, second))
    for run, usd in ((first, "1.5"), (second, "2.5")):
        (run / "bill.json").write_text(json.dumps({"usd": usd}))
    shown = command("amplification", first, second, *options, "--worth-of", 1000)
    assert shown.code == 0 and "1,000 generated are worth" in shown.out and "no bill" not in shown.out
    kept = [Worth.model_validate_json((run / "amplification.json").read_bytes()) for run in (first, second)]
    assert kept[0] == kept[1] and kept[0].usd == 4 and kept[0].worth_of == 1000
    # Nobody validated these networks: there is no verdict that it could be beside.
    assert "generated showers are worth" not in (first / "report.html").read_text()
    alone = command("amplification", first, *options)
    assert alone.code == 0 and "needs two generators" in alone.out

    other = run_folder(tmp_path / "other", shards, "train.seed=3", "train.learningRate=0.1")
    again = run_folder(tmp_path / "again", shards, "train.seed=1")
    for runs, problem in (
        ((first, tmp_path / "absent"), "no finished run"),
        ((first, other), "in more than the seed of the training"),
        ((first, again), "it is the same generator"),
    ):
        refused = command("amplification", *runs, *options)
        assert refused.code == 2 and problem in refused.err and "remedy" in refused.err, refused.err


def test_showers_that_were_trained_on_are_refused(command: Callable, shards: Path, tmp_path: Path) -> None:
    """Also some of them among others of the same energies. Here energies are unique: they count what is shared."""
    source = f"data.source={shards.parent / 'showers.h5'}"
    run = run_folder(tmp_path / "run", shards, source)
    card = json.loads((run / TRAINED / "model.json").read_text())
    card["showersSha256"] = read_manifest(shards).train_sha256
    (run / TRAINED / "model.json").write_text(json.dumps(card))
    data, mixed = load_run(preset="compact", overrides=COMPACT).data, tmp_path / "mixed"
    made = read_showers(shards.parent / "showers.h5", geometry=data.geometry)
    cells_gev = np.concatenate([made.cells_gev[:200], made.cells_gev[200:] * np.float32(1.1)])
    write_showers(tmp_path / "mixed.h5", replace(made, cells_gev=cells_gev), attributes={})
    preprocess_showers(data, tmp_path / "mixed.h5", mixed)
    shared = {*read_split(shards, "train").energy_gev} & {*read_split(mixed, "train").energy_gev}
    count = len(shared & {*made.energy_gev[:200]})
    assert 0 < count < len(shared)
    low = tmp_path / "low.h5"
    write_showers(
        low, replace(made[made.energy_gev < 20], cells_gev=2 * made.cells_gev[made.energy_gev < 20]), attributes={}
    )
    preprocess_showers(data, low, tmp_path / "low")
    refused = command("amplification", run, "--showers", 200, "--held-out", tmp_path / "low")
    assert refused.code == 2 and "training: has primaries of another distribution" in refused.err, refused.err
    for folder, what in ((shards, "the showers"), (mixed, f"{count} of the showers")):
        refused = command("amplification", run, "--showers", 200, "--held-out", folder)
        assert refused.code == 2 and f"holds {what} that the networks were trained on" in refused.err, refused.err
    second = run_folder(tmp_path / "second", shards, source, "train.seed=2")
    card["showersSha256"] = "of the shards of another simulation"
    (second / TRAINED / "model.json").write_text(json.dumps(card))
    refused = command("amplification", run, second, "--showers", 200)
    assert refused.code == 2 and f"{second}: was trained on other shards than" in refused.err, refused.err
    assert not (run / "amplification.json").exists()


@pytest.mark.long
def test_the_report_shows_it_beside_the_verdict_until_the_next_validation(
    command: Callable, shards: Path, tmp_path: Path
) -> None:
    run = run_folder(tmp_path / "run", shards, "validation.showers=60", "validation.bootstraps=10")
    judged = command("validate", "--workspace", run)
    assert judged.code == 0, judged.err
    done = command("amplification", run, "--showers", 200, "--held-out", shards, "--json")
    assert done.code == 0, done.err
    summary = Summary.model_validate_json((run / "summary.json").read_bytes())
    assert summary.amplification == Worth.model_validate_json(done.out)
    page = (run / "report.html").read_text()
    assert "<h1>compact generator of electron showers: run run</h1>" in page
    assert "A million generated showers are worth" in page and "needs two generators" in page
    assert page.index(">Verdict</h2>") < page.index("A million generated showers") < page.index(">Physics</h2>")
    (run / "amplification.json").write_text("{}")
    damaged = command("report", "--workspace", run)
    assert damaged.code == 2 and "caloscale amplification" in damaged.err

    assert command("validate", "--workspace", run, "--model", tmp_path / "absent").code == 2
    assert not (run / "amplification.json").exists()
