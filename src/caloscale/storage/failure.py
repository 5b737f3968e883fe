"""Why a step of a pipeline failed, kept in the workspace for the report of the run.

Kubeflow gives the exit handler the state of the run, and no more of a step than its exit code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from caloscale.errors import CaloscaleError, StorageError
from caloscale.storage.objects import delete_object, read_object, write_object

STEPS = ("plan", "train")
"""Steps without a record of their own when they fail: the plan, and a training that a cluster refuses."""


@contextmanager
def failure_kept(step: str, workspace: str) -> Iterator[None]:
    """Write why the block failed into the workspace; what an earlier try left there is deleted."""
    uri = _uri(step, workspace)
    delete_object(uri)
    try:
        yield
    except CaloscaleError as error:
        with suppress(StorageError):
            write_object(f"step {step}: {error}".encode(), uri)
        raise


def read_failure(workspace: str) -> str | None:
    """Why the first of these steps failed; None where none left a reason."""
    for step in STEPS:
        content = read_object(_uri(step, workspace))
        if content is not None:
            return content.decode()
    return None


def _uri(step: str, workspace: str) -> str:
    return f"{workspace.rstrip('/')}/stages/{step}-failure.txt"
