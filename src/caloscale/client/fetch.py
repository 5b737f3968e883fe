"""What a run on a cluster left: report, model, and what it used, as a run's folder."""

import datetime as dt
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from caloscale.client.runs import RunOnCluster
from caloscale.client.usage import StageTime, keep_use
from caloscale.cluster.workload.pod_template import workspace_of
from caloscale.errors import ClusterError
from caloscale.spec import AnyRun, SolverRun, build_any_run, dump_run, load_any_run
from caloscale.spec.block import read_block
from caloscale.spec.workspace_layout import UNCOPIED
from caloscale.status import RunStatus
from caloscale.storage.atomic import make_folder, write_text
from caloscale.storage.objects import download, is_remote


def fetch(run: RunOnCluster, folder: Path) -> list[str]:
    """Copy a run into a folder: run.yaml, status.json, usage.json and plan.json (for `caloscale bill`), and the
    workspace without showers and checkpoints, which are large.

    Returns what could not be brought, a sentence each. Raises ClusterError when the folder holds another run.
    """
    configured = build_any_run(run.spec)
    make_folder(folder)
    kept, written, remedy = folder / "status.json", folder / "run.yaml", "another --to, or delete it"
    if kept.is_file():
        before = read_block(RunStatus, kept, remedy=remedy)
        launched = [attempt.launched for attempt in run.status.attempts[:1]]
        if before.attempts and launched != [before.attempts[0].launched]:
            raise ClusterError(f"{folder} holds another run of that name", remedy=remedy)
        if not before.attempts and written.is_file() and _lasting(load_any_run(written)) != _lasting(configured):
            raise ClusterError(f"{written} is the configuration of another run", remedy=remedy)
    elif (times := _stage_times(folder / "stages")) and not any((t.attempt or "").startswith(run.uid) for t in times):
        raise ClusterError(f"{folder} holds another run, whose results would be replaced", remedy=remedy)
    # first: a folder that was brought in part is known by it
    write_text(kept, run.status.model_dump_json(by_alias=True, exclude_none=True, indent=2))
    missing = []
    workspace = workspace_of(configured)
    if workspace is not None and is_remote(workspace):
        if not download(workspace, folder, without=UNCOPIED):
            missing.append(f"{workspace} holds nothing yet: neither report nor model")
    elif configured.cluster.volume_claim is not None and (workspace is not None or isinstance(configured, SolverRun)):
        missing.append(
            f"the workspace is on volume claim {configured.cluster.volume_claim}: mount it in a pod and use kubectl cp"
        )
    else:
        missing.append(
            "the run's workspace is neither in a bucket nor on a volume claim: report and model ended with its pods"
        )
    if not written.exists():
        write_text(written, dump_run(configured))
    return missing + keep_use(run, configured, str(folder), _stage_times(folder / "stages"))


def _lasting(run: AnyRun) -> dict[str, Any]:
    """The blocks that the custom resource keeps unchanged; `caloscale stop` and a larger budget change others."""
    return run.model_dump(include={"model", "data", "train", "validation", "solver", "hardware"})


def _stage_times(folder: Path) -> list[StageTime]:
    """What the stages recorded, those of earlier attempts too; a record that cannot be read is left out."""
    times = []
    for file in sorted(folder.glob("*.json")):
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            held = json.loads(file.read_bytes())
            earlier = [record for attempt in held.get("attempts", ()) for record in attempt["stages"]]
            for record in earlier or [held]:
                started = dt.datetime.fromisoformat(record["started"])
                times.append(StageTime(record["stage"], started, float(record["seconds"]), record.get("attempt")))
    return times
