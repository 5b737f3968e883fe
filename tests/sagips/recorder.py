"""An optimiser of one's own that records its calls."""

import numpy as np

from caloscale.sagips.optimizers import Step
from caloscale.sagips.saves import Problem

CALLS: list[tuple[int, float]] = []
"""The epoch of each update, and the epoch of its gradient."""


class Recorder:
    """The gradient of an epoch is its number; the parameter is the number of updates."""

    problem = Problem(("a",), (0.5,))

    def __init__(self, solver, rank):
        self.updates, self._solver = 0, solver

    def step(self, epoch):
        return Step({"generator": 1.0}, np.array([epoch], np.float32))

    def apply(self, gradient, step, epoch):
        assert gradient[0] == step.gradient[0]
        self.updates += 1
        CALLS.append((epoch, float(gradient[0])))

    def propose(self):
        return np.full((self._solver.analysis_samples, 1), self.updates, np.float32)

    def generator(self):
        return {"updates": np.array(self.updates)}

    def state(self):
        return self.generator()

    def restore(self, state):
        self.updates = int(state["updates"])
