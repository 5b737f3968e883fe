"""What can go wrong when a control plane is built or started, and how commands show it."""

import sys
from collections.abc import Callable
from pathlib import Path

from caloscale.errors import CaloscaleError

LINES_SHOWN = 12


class ClusterError(CaloscaleError):
    """A program of the control plane is missing, does not build, or does not become ready."""

    exit_code = 4

    def __init__(self, problem: str, *, remedy: str, log: Path | None = None) -> None:
        shown = "".join(f"\n  | {line}" for line in last_lines(log)) if log else ""
        super().__init__(f"{problem}{shown}", remedy=remedy)


def run_app(app: Callable[[], object]) -> None:
    """Run a command of these tools; an error of ours is printed without a traceback and gives the exit code."""
    try:
        app()
    except CaloscaleError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("\ninterrupted; run it again to resume", file=sys.stderr)
        sys.exit(130)


def last_lines(log: Path) -> list[str]:
    """The end of a log file, for a message."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line[:300] for line in text.splitlines()[-LINES_SHOWN:]]
