"""A contender's process: reads orders as lines of JSON, works, and answers with seconds.

First order: a function of `work` ("work") and its arguments. Then {"units": n}: work n times; n = 0 asks for the peak
memory.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from caloscale.errors import CaloscaleError
from caloscale.processor import peak_memory_mib
from caloscale.tensorflow_import import load_tensorflow_quietly

Work = Callable[[int], None]
"""Does n units of work and returns when they are done."""


def make(function: str, settings: dict[str, Any]) -> tuple[Work, dict[str, Any]]:
    """The work of a function of `work`, and facts about it; heavy modules are loaded here."""
    load_tensorflow_quietly()
    return getattr(import_module("caloscale.bench.work"), function)(**settings)


def timed(work: Work, units: int) -> float:
    """Wall seconds."""
    clock = time.perf_counter()
    work(units)
    return time.perf_counter() - clock


def main() -> None:
    """Serve orders until the other side closes."""
    # What libraries print on the standard output must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    order = json.loads(sys.stdin.readline())
    try:
        work, facts = make(order.pop("work"), order)
        work(1)  # compiles
        answer({"seconds": timed(work, 1), **facts})
    except CaloscaleError as error:
        answer({"problem": str(error)})
        return
    for line in sys.stdin:
        units = json.loads(line)["units"]
        if units:
            answer({"seconds": timed(work, units)})
        else:
            answer({"peakMemoryMiB": peak_memory_mib()})


if __name__ == "__main__":
    main()
