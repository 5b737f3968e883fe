"""Contenders in separate processes, timed one after the other in each round: what disturbs the machine affects all."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from typing import Any

from caloscale.bench.results import Spread
from caloscale.errors import BenchError
from caloscale.installation import require
from caloscale.progress import bar

LEAST_ROUNDS, MOST_ROUNDS = 5, 25
SHORTEST_SECONDS = 0.3
"""Shortest time of a contender's round: its work is repeated until then, s."""


class Contender:
    """A process (`worker`) that does a unit of work as often as requested, and returns how long it took.

    A context manager: the process starts when it is entered and is gone when it is left.
    """

    def __init__(
        self,
        name: str,
        work: str,
        settings: Mapping[str, Any],
        *,
        environment: Mapping[str, str | None] | None = None,
        cores: Sequence[int] | None = None,
    ) -> None:
        """environment: variables added to those of this process; None removes one. cores: to which it is pinned."""
        self.name, self._order = name, {"work": work, **settings}
        self._environment, self._cores = environment or {}, cores
        self.seconds: list[float] = []
        """Seconds per unit, round by round."""
        self.facts: dict[str, Any] = {}
        """What the process said when it was ready: ``seconds`` of a unit, and what its work adds."""
        self.peak_memory_mib = 0.0
        """Largest resident memory, MiB; after the rounds."""

    def __enter__(self) -> "Contender":
        require("cpu")  # every work loads TensorFlow
        self._errors = TemporaryFile()
        variables = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, **self._environment}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "caloscale.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={name: value for name, value in variables.items() if value is not None},
        )
        try:
            if self._cores is not None:
                os.sched_setaffinity(self._process.pid, self._cores)
            self.facts = self._ask(self._order)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                with suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def run(self, units: int) -> None:
        """One round."""
        self.seconds.append(self._ask({"units": units})["seconds"] / units)

    def finish(self) -> None:
        """Ask for what is known at the end."""
        self.peak_memory_mib = self._ask({"units": 0})["peakMemoryMiB"]

    def timing(self, scale: float = 1.0) -> Spread:
        """Seconds per unit times ``scale``."""
        return Spread.of(self.seconds, scale)

    def ratio(self, slower: "Contender", scale: float = 1.0) -> Spread:
        """Seconds per unit of another contender over the own ones, round by round, times ``scale``."""
        return Spread.of([theirs / own for theirs, own in zip(slower.seconds, self.seconds, strict=True)], scale)

    def _ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            code = self._process.wait()
            self._errors.seek(0)
            output = self._errors.read().decode(errors="replace").strip().splitlines()
            raise BenchError(f"the contender {self.name} ended with exit code {code}: {' '.join(output[-3:])[-500:]}")
        content: dict[str, Any] = json.loads(answer)
        if "problem" in content:
            raise BenchError(f"{self.name}: {content['problem']}")
        return content


def interleave(contenders: Sequence[Contender], label: str, seconds: float, rounds: int | None = None) -> None:
    """Time all contenders in every round, in an order that rotates; ``rounds`` None: about ``seconds`` in all."""
    units = {c.name: max(1, math.ceil(SHORTEST_SECONDS / max(c.facts["seconds"], 1e-6))) for c in contenders}
    if rounds is None:
        round_seconds = sum(units[c.name] * c.facts["seconds"] for c in contenders)
        rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, int(seconds / round_seconds)))
    with bar(label, rounds * len(contenders), "measurements") as shown:
        for number in range(rounds):
            first = number % len(contenders)
            for contender in (*contenders[first:], *contenders[:first]):
                contender.run(units[contender.name])
                shown.update(1)
    for contender in contenders:
        contender.finish()
