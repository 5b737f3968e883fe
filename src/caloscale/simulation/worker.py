"""The process that simulates: ``python -m caloscale.simulation.worker``.

It reads lines of JSON from its input (an order, then the numbers of files) and writes lines of JSON (messages)
to its output. Only this process loads Geant4; it and its parent exchange only these lines and the files.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from caloscale.errors import CaloscaleError, SimulationError
from caloscale.showers.arrays import Showers
from caloscale.showers.primaries import rows
from caloscale.simulation.entering import write_entering
from caloscale.simulation.files import Order, write_file
from caloscale.simulation.primaries import batches, draw_primaries
from caloscale.simulation.tables import remedy_of_missing
from caloscale.spec import Data
from caloscale.spec.data import PrimaryRanges

if TYPE_CHECKING:
    from caloscale.simulation.geant4 import Geant4
    from caloscale.simulation.parametrised import Parametrised


def build_engine(data: Data, accepted: Sequence[PrimaryRanges] = ()) -> "Geant4 | Parametrised":
    """The engine of the run configuration; accepted: what generators take over.

    Raises SimulationError when its wheel is missing.
    """
    if data.simulation.engine == "parametrised":
        from caloscale.simulation.parametrised import Parametrised

        return Parametrised(data)
    try:
        from caloscale.simulation.geant4 import Geant4, Hybrid
    except ImportError as error:
        raise SimulationError(f"Geant4 cannot be loaded: {error}", remedy=remedy_of_missing()) from error
    return Hybrid(data, accepted) if accepted else Geant4(data)


def simulate_file(engine: "Geant4 | Parametrised", data: Data, index: int, report: Callable[[int], None]) -> Showers:
    """The showers of file ``index``; ``report`` is called after each batch with its number of showers.

    The showers depend on the index, not on what was simulated before.
    """
    primaries, transport = draw_primaries(data, index)
    engine.seed(transport)
    cells = np.zeros((len(primaries["energy_gev"]), *data.geometry.cells), np.float32)
    for batch in batches(primaries["energy_gev"], engine.batch_energy_gev):
        cells[batch] = engine.showers(rows(primaries, batch))
        report(batch.stop - batch.start)
    return Showers.of(cells, primaries, data.simulation.engine, data.geometry.cell_shape)


def work(lines: TextIO, reply: TextIO) -> None:
    """Carry out an order until the input ends; CaloscaleError becomes a message."""

    def send(event: str, **content: Any) -> None:
        reply.write(json.dumps({"event": event, **content}) + "\n")
        reply.flush()

    try:
        order = Order.model_validate_json(lines.readline())
        engine = build_engine(order.data, order.accepted)
        send("ready", versions=engine.versions())
        spent = 0.0  # the first file includes the start of the process
        for line in lines:
            index = int(line)
            showers = simulate_file(engine, order.data, index, lambda count: send("progress", showers=count))
            if order.accepted:
                write_entering(order.folder, index, engine.entering())  # type: ignore[union-attr]
            write_file(order.folder, index, showers, order.data, order.fingerprint, order.accepted)
            now = time.process_time()
            send("done", file=index, showers=len(showers), coreSeconds=now - spent)
            spent = now
    except CaloscaleError as error:
        # `simulate.run_files` raises it again.
        value = error.value if isinstance(error.value, str | int | float | None) else repr(error.value)
        fields = {"file": error.file, "field": error.field, "value": value, "remedy": error.remedy}
        send("error", kind=type(error).__name__, problem=error.problem, fields=fields)


def main() -> None:
    """Send messages to the original output; output of Geant4 goes to the error output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops the worker
    reply = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        work(sys.stdin, reply)
    except BrokenPipeError:  # the parent has ended
        os._exit(1)


if __name__ == "__main__":
    main()
