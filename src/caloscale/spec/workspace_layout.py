"""Names in the workspace of a run, on a disk or in a bucket, that several packages use."""

from pathlib import Path

DATASET = "dataset"
"""Shards."""
CHECKPOINTS = "training/checkpoints"
"""Checkpoints; in a bucket they arrive while the training runs."""
TRAINED = "training/model"
"""The trained networks, before they are validated."""
MODEL = "model"
"""The networks that were validated, or a file with the reason why they were rejected."""
HOLDER = ".holder"
"""In a bucket: which process is at work there."""
UNCOPIED = (CHECKPOINTS, DATASET, HOLDER)
"""Folders that are not copied with the rest of a workspace in a bucket."""
PLAN_FILE = "plan.json"
"""The plan of a run (`caloscale.planning.search.plan.Plan`), for its bill."""
USAGE_FILE = "usage.json"
"""What a run used (`caloscale.planning.billing.usage.RunUse`)."""
AMPLIFICATION_FILE = "amplification.json"
"""What the generator's showers are worth (`caloscale.physics.worth.Worth`), of the networks that were validated."""


def dataset_of(folder: Path) -> Path:
    """The shards of a run on this machine: those of its own stages, or of the newest pipeline that made some there."""
    made = sorted(folder.glob(f"pipeline/*/preprocess/{DATASET}/manifest.json"))
    return made[-1].parent if made and not (folder / DATASET).exists() else folder / DATASET
