"""Progress of long work: a bar in a terminal, a line every few seconds in a log."""

import sys
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 5.0


class _Lines(tqdm):  # type: ignore[type-arg]
    """A bar that writes whole lines, for logs and pipes, where a carriage return is lost."""

    @staticmethod
    def status_printer(file: Any) -> Callable[[str], None]:
        def write(status: str) -> None:
            if status.strip():
                file.write(status.strip() + "\n")
                file.flush()

        return write


def bar(label: str, total: int, unit: str, **options: Any) -> Any:
    """A tqdm bar, to be used in a ``with``, of what is done, the rate in ``unit``/s and the time left."""
    shown = {"desc": label, "total": total, "unit": f" {unit}", **options}
    if "ipykernel" in sys.modules:  # a notebook
        from tqdm.auto import tqdm as notebook_tqdm

        return notebook_tqdm(**shown)
    if sys.stderr.isatty():
        return tqdm(**shown, dynamic_ncols=True)
    return _Lines(**shown, mininterval=SECONDS_BETWEEN_LINES, ascii=True, ncols=130)
