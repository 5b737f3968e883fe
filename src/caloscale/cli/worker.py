"""caloscale worker: what a pod of a run on a cluster runs."""

from __future__ import annotations

import os
from pathlib import Path

from caloscale.errors import InputError
from caloscale.progress import PROGRESS_FILE_VARIABLE


def command() -> None:
    """Train as one of the workers of a run on a cluster; everything comes from the environment of the pod."""
    from caloscale import stages
    from caloscale.client.reporting import ProgressReporter, worker_index
    from caloscale.cluster.pod_template import DATASET_VARIABLE, DOCUMENT_VARIABLE, SCRATCH, WORKSPACE_VARIABLE
    from caloscale.showers.storage import download, is_remote
    from caloscale.spec import parse_run

    text = os.environ.get(DOCUMENT_VARIABLE)
    if text is None:
        raise InputError(
            "is not set: this verb is for pods of the operator",
            field=DOCUMENT_VARIABLE,
            remedy="train here with caloscale train or caloscale run",
        )
    run = parse_run(text)
    chief = worker_index(os.environ) == 0
    scratch = Path(os.environ.get("CALOSCALE_SCRATCH", SCRATCH))
    workspace = os.environ.get(WORKSPACE_VARIABLE, str(scratch / "run")) if chief else str(scratch / "run")
    showers, dataset, trained = scratch / "showers", scratch / "dataset", scratch / "model"
    given = os.environ.get(DATASET_VARIABLE)
    if given is not None and is_remote(given):
        download(given, dataset)
    elif given is not None:
        dataset = Path(given)
    else:
        stages.simulate(run, workspace, showers)
        stages.preprocess(run, workspace, showers, dataset)
    progress = scratch / "progress.json"
    os.environ[PROGRESS_FILE_VARIABLE] = str(progress)
    with ProgressReporter(progress):
        stages.train(run, workspace, dataset, trained)
    if chief and given is None:  # with shards from elsewhere this is a step of a longer chain
        stages.validate(run, workspace, dataset, trained, scratch / "released")
        stages.report(run, workspace)
