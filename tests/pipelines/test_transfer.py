"""The study of a changed detector at a small size: from random weights and from the model of a finished run."""

import json
import subprocess
from pathlib import Path

import pytest

from caloscale.spec import load_run
from tests.pipelines.conftest import OVERRIDES, run

OWN = ("model.preset", "data.showers", "data.validationFraction", "train.epochs", "validation.gates")
"""What the study sets itself, and gates: those of the preset count."""
AXES = (
    "data.showers=[32]",
    "data.validationFraction=[0.5]",
    "train.epochs=[2]",
    "train.seed=[1]",
    "train.startFrom=[null, runs/pipeline/model]",
)


@pytest.mark.integration
def test_a_changed_detector_is_trained_from_both_starts(
    home: Path, by_pipeline: subprocess.CompletedProcess[str]
) -> None:
    assert by_pipeline.returncode == 0
    changes = [*AXES, *(override for override in OVERRIDES if override.split("=")[0] not in OWN)]
    words = [word for change in changes for word in ("--set", change)]
    done = run(home, "-m", "caloscale.cli.main", "study", "transfer", *words, "--json")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    scratch, started = json.loads(done.stdout)["tables"]["showers"]
    assert (scratch["start"], started["start"]) == (None, "runs/pipeline/model")
    assert scratch["simulation s/shower"] == started["simulation s/shower"] > 0, "both have the same showers"
    for point in (scratch, started):
        decided = point["gates accepted"], point["rejected"], point["undecided"]
        assert (
            sum(decided) == len(load_run(preset="compact").validation.judging)
            and point["verdict"] in ("rejected", "undecided")
            and point["USD"] > 0
        )
    assert scratch["resolution"] != started["resolution"]
    files = {file.resolve() for file in home.glob("runs/study-transfer/points/*/stages/train.json")}
    begun = [json.loads(file.read_text())["figures"]["startedFrom"] for file in files]
    (taken,) = (one for one in begun if one is not None)
    assert len(begun) == 2 and taken["model"] == "runs/pipeline/model" and taken["weights"] > 0
