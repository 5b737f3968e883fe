"""Environments for the tests of the ranks: pipelines in which something goes wrong on one rank."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from caloscale.random import EventDraws
from caloscale.sagips.environment import EVENTS, Values
from tests.sagips.toy import Normal

RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))


class Faulty(Normal):
    """late: rank 1 is not ready before rank 0, which then makes this file. paused: rank 1 stays in this epoch until
    rank 0 has come to epoch `reached`, which the file `marker`.reached says.

    On rank 1: in epochs `not_finite` the events are NaN; before epoch `killed` the rank kills itself, once, and
    leaves in the file `marker` which packages it has loaded that Keras alone uses; in epoch `raised` it
    raises an error.
    """

    def __init__(
        self,
        events_per_sample: int,
        not_finite: tuple[int, ...] = (),
        killed: int = -1,
        marker: str = "",
        raised: int = -1,
        late: str = "",
        paused: int = -1,
        reached: int = -1,
    ) -> None:
        super().__init__(events_per_sample)
        if late and RANK == 0:
            Path(late).touch()
        elif late:
            _wait_for(Path(late))
        self._paused, self._reached = paused, reached
        self._not_finite, self._killed, self._marker = tuple(not_finite), killed, marker
        self._raised = raised

    def __call__(self, values: Values, draws: EventDraws) -> Values:
        """The events of `Normal`, plus the fault."""
        events = super().__call__(values, draws)[EVENTS]
        if (RANK != 1 and self._reached < 0) or not tf.inside_function():
            return {EVENTS: events}
        return {EVENTS: events + tf.ensure_shape(tf.numpy_function(self._fault, [draws._high], tf.float32), ())}

    def _fault(self, high: np.ndarray) -> np.float32:
        epoch = int(high) >> 16
        if RANK != 1:
            if epoch == self._reached:
                Path(f"{self._marker}.reached").touch()
            return np.float32(0)
        if epoch == self._paused:
            _wait_for(Path(f"{self._marker}.reached"))
        if epoch == self._killed and not Path(self._marker).exists():
            Path(self._marker).write_text(" ".join({"matplotlib", "sklearn"} & sys.modules.keys()))
            os.kill(os.getpid(), signal.SIGKILL)
        if epoch == self._raised:
            raise OSError("the detector does not answer")
        return np.float32(np.nan if epoch in self._not_finite else 0)


def _wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)
