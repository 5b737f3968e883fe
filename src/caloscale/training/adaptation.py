"""Before the first step: a family's networks are adapted to the training showers, once and for all workers alike."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caloscale.models.families.family import GENERATOR
from caloscale.showers.preprocessing import to_network
from caloscale.showers.tfrecord.shard_folder import ShardFolder
from caloscale.training.checkpoint.format import decode, encode
from caloscale.training.checkpoint.manager import from_host
from caloscale.training.coordination.peers import Peers
from caloscale.training.state import TrainingState

log = logging.getLogger(__name__)


def adapt(state: TrainingState, dataset: ShardFolder, peers: Peers) -> None:
    """Set the adapted weights (`Family.adapt`) of a new training: worker 0 computes them, all others get them.

    A collective of all workers where the family has such weights. Raises ShowerFileError, StorageError, PeerLostError,
    and ValueError for values that do not fit the weights.
    """
    variables = state.adapted_variables()
    if not variables:
        return
    content = None
    if peers.is_chief:
        values = state.family.adapt(state.run, state.networks, lambda most: _draw(state, dataset, most))
        numbered = {f"{role}/{at}": one for role, ones in values.items() for at, one in enumerate(ones)}
        content = encode({name: np.asarray(one, np.float32) for name, one in numbered.items()}, "{}")
    if peers.connections:
        content = peers.broadcast(content)
    assert content is not None
    arrays, _ = decode(content)
    from_host(variables, arrays)
    if state.average is not None:
        state.average.set_weights(state.networks[GENERATOR].get_weights())
    log.info("%d weights are adapted to the training showers", sum(array.size for array in arrays.values()))


def untrained_generator(state: TrainingState, is_new: bool) -> Any:
    """The generator of a training as it was before its first step. is_new: ``state`` is that one still."""
    if is_new:
        return state.networks[GENERATOR]
    fresh = TrainingState(state.run).networks[GENERATOR]
    adapted = zip(state.family.adapted_weights(fresh), state.family.adapted_weights(state.networks[GENERATOR]))
    for weight, value in adapted:
        weight.assign(value)
    return fresh


def _draw(state: TrainingState, dataset: ShardFolder, most: int) -> Mapping[str, NDArray[np.float32]]:
    """At most so many training showers, at equal distances among all."""
    number = dataset.manifest.splits["train"]
    chosen = np.unique(np.linspace(0, number - 1, min(most, number)).astype(np.intp))
    showers = dataset.read("train", chosen)
    return {"cells": to_network(showers.cells_gev, state.run.data.preprocessing), **showers.primaries}
