"""Why a step of a pipeline failed, kept in a run's folder for the report.

Kubeflow gives the exit handler the state of the run, and no more of a step than its exit code.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from caloscale.errors import CaloscaleError, StorageError
from caloscale.storage.objects import delete_object, read_object, write_object

FAILURE_FILE = "stages/failure.txt"


@contextmanager
def failure_kept(step: str, folder: str) -> Iterator[None]:
    """Write why the block failed into a run's folder; what an earlier step left there is deleted.

    For steps without a record of their own when they fail: the first, and a training that a cluster refuses.
    """
    uri = _uri(folder)
    delete_object(uri)
    try:
        yield
    except CaloscaleError as error:
        with suppress(StorageError):
            write_object(f"step {step}: {error}".encode(), uri)
        raise


def read_failure(folder: str) -> str | None:
    """Why a step failed; None where none left a reason."""
    content = read_object(_uri(folder))
    return None if content is None else content.decode()


def _uri(folder: str) -> str:
    return f"{folder.rstrip('/')}/{FAILURE_FILE}"
