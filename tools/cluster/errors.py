"""Errors of building and starting a control plane, and how commands print them."""

import sys
from collections.abc import Callable
from pathlib import Path

from caloscale.errors import CaloscaleError

LINES_SHOWN = 12


class ClusterError(CaloscaleError):
    """A program of the control plane is missing, does not build, or does not become ready."""

    exit_code = 4

    def __init__(self, problem: str, *, remedy: str, log: Path | None = None) -> None:
        text = log.read_text(encoding="utf-8", errors="replace") if log and log.is_file() else ""
        shown = "".join(f"\n  | {line[:300]}" for line in text.splitlines()[-LINES_SHOWN:])
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
