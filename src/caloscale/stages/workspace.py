"""The folder of a run, on a disk or in a bucket."""

import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from caloscale.errors import ConfigurationError, HeldError, SupersededError, UnreachableError
from caloscale.spec import AnyRun, Run, dump_run, load_run, load_solver_run
from caloscale.spec.block import read_json
from caloscale.spec.workspace_layout import DATASET, HISTORY, HOLDER, UNCOPIED
from caloscale.status import ATTEMPT_VARIABLE
from caloscale.storage.atomic import make_folder, write_text
from caloscale.storage.lock import locked
from caloscale.storage.objects import delete_object, download, is_remote, upload
from caloscale.training.checkpoint.metadata import first_difference, weights_configuration

MAY_DIFFER = {"max_minutes", "save_every", "threads"}
"""Fields of the solver that a resumed run may change: what it computes does not depend on them."""
EARLIER_SECONDS = 60.0
"""How long an attempt on a cluster waits for a process of an earlier one that is still at work in its folder, s."""


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Exclude other processes from a run's folder. Raises HeldError; an attempt on a cluster, which is to be started
    again, UnreachableError.
    """
    attempt = ATTEMPT_VARIABLE in os.environ
    with ExitStack() as held:
        try:
            held.enter_context(locked(folder, patience_seconds=EARLIER_SECONDS if attempt else 0.0))
        except HeldError as error:
            if not attempt:
                raise
            remedy = "none is needed: another attempt follows"
            raise UnreachableError(error.problem, file=error.file, remedy=remedy) from error
        yield


def named(folder: Path) -> Path:
    """The folder under the name of its run, where it is given without a name or as ``runs/latest``."""
    return folder.resolve() if folder.name in ("", "..", "latest") else folder


@contextmanager
def open_workspace(workspace: str | Path, run: AnyRun | None = None, *, shared: bool = False) -> Iterator[Path]:
    """A local folder that is the workspace; ``run``: whose configuration is kept there (`keep_configuration`).

    A path is used as it is (and made). Other processes are excluded from it (`hold`), unless it is ``shared``: plans
    and reports may be made while a stage runs.
    gs://bucket/prefix is copied into a temporary folder (without the folders of `UNCOPIED`), and at the end, also when
    the stage failed, what was added or changed is uploaded and what is gone is deleted there, unless another process
    has become its holder (`BucketCopy`). A process that is killed before leaves the bucket as it was. Raises
    ConfigurationError, before anything changes, for the workspace of another run; StorageError; and as `hold`.
    """
    if not is_remote(str(workspace)):
        folder = named(make_folder(workspace))
        with nullcontext() if shared else hold(folder):
            if run is not None:
                keep_configuration(run, folder)
            yield folder
        return
    there = str(workspace).rstrip("/")
    with tempfile.TemporaryDirectory(prefix="caloscale-") as name, ExitStack() as held:
        from caloscale.training.checkpoint.store import BucketCopy  # needs an extra that a plan does not need

        claim = BucketCopy(f"{there}/{HOLDER}", keep=0)
        if not shared:
            claim.claim()
            claim.keep()
            held.callback(claim.release)
        # The run is named after its folder, in records and in the title of its report.
        folder = Path(name, there.rpartition("/")[2])
        folder.mkdir()
        download(there, folder, without=UNCOPIED)
        before = _times(folder)
        foreign = False
        try:
            if run is not None:
                keep_configuration(run, folder)
            yield folder
            claim.sign()
        except (HeldError, SupersededError):
            foreign = True  # another process writes there
            raise
        finally:
            after = _times(folder)
            for path, time in after.items():
                uncopied = any(path.is_relative_to(folder / one) for one in UNCOPIED)
                if before.get(path) != time and not uncopied and not foreign:
                    upload(path, f"{there}/{path.relative_to(folder).as_posix()}")
            # Last: a record that is set aside is gone when the bucket has it among the earlier ones.
            for path in () if foreign else before.keys() - after.keys():
                delete_object(f"{there}/{path.relative_to(folder).as_posix()}")


def keep_configuration(run: AnyRun, folder: Path) -> None:
    """Write the resolved configuration; a folder that holds a run of another configuration is refused.

    What the result does not depend on may differ (docs/recovery.md): a training is continued for longer or elsewhere.
    """
    if refuse_another(run, folder) != run:
        write_text(folder / "run.yaml", dump_run(run))


def refuse_another(run: AnyRun, folder: Path) -> AnyRun | None:
    """The configuration that a folder holds, None where it holds none.

    Raises ConfigurationError when it is another run's, and for fewer epochs than were compared with validation showers.
    """
    path = folder / "run.yaml"
    if not path.is_file():
        return None
    held = load_run(path) if isinstance(run, Run) else load_solver_run(path)
    difference = first_difference(_result_configuration(held), _result_configuration(run))
    if difference is not None:
        raise ConfigurationError(
            "this folder holds a run of another configuration",
            file=path,
            field=difference[0],
            value=difference[2],
            remedy="choose another folder or name, or the value in this file; delete this folder only if nobody "
            "needs its checkpoints and model",
        )
    trained = math.ceil(max(read_validations(folder)["epoch"], default=0))
    if isinstance(run, Run) and run.train.epochs < trained:
        raise ConfigurationError(
            f"is less than the {trained} epochs that were trained in this folder",
            file=path,
            field="train.epochs",
            value=run.train.epochs,
            remedy=f"set train.epochs to {trained} or more, or choose another folder or name",
        )
    return held


def read_validations(folder: Path) -> dict[str, Any]:
    """The comparisons with validation showers so far of the training of a run, by name, ``epoch`` among them."""
    history = folder / HISTORY
    if not history.is_file():
        return {"epoch": []}
    validations: dict[str, Any] = read_json(history, remedy="delete it: the same command writes it again")["validation"]
    return validations


def _result_configuration(run: AnyRun) -> dict[str, Any]:
    """The fields that the weights, or the solution, depend on."""
    if isinstance(run, Run):
        return weights_configuration(run)
    return {"solver": run.solver.model_dump(mode="json", by_alias=True, exclude=MAY_DIFFER)}


def _times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def dataset_of(folder: Path) -> Path:
    """The shards of a run on this machine: those of its own stages, or of the newest pipeline that made some there."""
    manifests = sorted(folder.glob(f"pipeline/*/preprocess/{DATASET}/manifest.json"))
    return manifests[-1].parent if manifests and not (folder / DATASET).exists() else folder / DATASET
