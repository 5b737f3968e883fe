"""Names in the folder of a run that several rooms agree on."""

from __future__ import annotations

DATASET = "dataset"
"""Shards."""
CHECKPOINTS = "training/checkpoints"
"""Checkpoints; in a bucket they arrive while the training runs."""
MODEL = "training/model"
"""The trained networks."""
LARGE = (CHECKPOINTS, DATASET)
"""What is neither copied nor uploaded with the rest of a folder in a bucket: who needs it, says so."""
PLAN_FILE = "plan.json"
"""The plan of a run (`caloscale.planning.plan.Plan`), for its bill."""
USAGE_FILE = "usage.json"
"""What a run used (`caloscale.planning.usage.RunUse`)."""
