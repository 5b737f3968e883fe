"""The weights that a training begins with: those of a trained model, as of another detector, as far as they fit, and
those that its family adapts to the training showers."""

import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from caloscale.errors import ConfigurationError
from caloscale.models import build
from caloscale.models.card import load_network, read_start
from caloscale.models.families.family import GENERATOR
from caloscale.models.optimizers import unwrap
from caloscale.showers.preprocessing import to_network
from caloscale.showers.tfrecord.shard_folder import ShardFolder
from caloscale.spec import Run
from caloscale.storage.objects import download, is_remote
from caloscale.training.checkpoint.format import decode, encode
from caloscale.training.checkpoint.manager import from_host
from caloscale.training.coordination.peers import Peers
from caloscale.training.record import StartedFrom
from caloscale.training.state import TrainingState, network_variables

log = logging.getLogger(__name__)


def start_from_model(state: TrainingState, run: Run) -> StartedFrom:
    """Assign what fits of the weights of the model `train.startFrom` to the new networks of a training.

    A weight fits if the weight at the same position of the model's network has the same shape. A weight that begins
    with a constant of the run configuration, such as the mean response of a detector, keeps its trained distance from
    that constant. Weights that `adapt` sets are left out. Raises CheckpointError for a folder that is no model,
    ConfigurationError for one of another preset or of which nothing fits, StorageError.
    """
    source = run.train.start_from
    assert source is not None
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(source)
        if is_remote(source):
            folder = Path(scratch)
            download(source, folder)
        trained = read_start(folder, run)
        before = build(trained.model, trained.data)
        weights = {role: load_network(folder / f"{role}.keras", trained.model).get_weights() for role in before}
    taken, new = 0, []
    adapted = {id(variable) for variable in state.adapted_variables().values()}
    for name, began in before.items():
        network = state.networks[name]
        begun = network_variables(began, state.family)
        for index, variable in network_variables(network, state.family).items():
            if id(variable) in adapted:
                continue
            if index in begun and variable.shape == begun[index].shape == weights[name][int(index)].shape:
                theirs, fresh, start = weights[name][int(index)], variable.numpy(), begun[index].numpy()
                is_constant = np.ptp(fresh) == np.ptp(start) == 0
                variable.assign(theirs + (fresh - start) if is_constant else theirs)
                taken += int(np.prod(variable.shape))
            else:
                new.append(f"{name}: {network.weights[int(index)].path}")
    if not taken:
        problem = "none of its weights has the shape of one of this run"
        remedy = "give a model of a more similar detector, or leave train.startFrom out"
        raise ConfigurationError(problem, field="train.startFrom", value=source, remedy=remedy)
    if state.average is not None:
        state.average.set_weights(state.networks[GENERATOR].get_weights())
    return StartedFrom(model=source, weights=taken, new=tuple(new))


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


def calibrate(state: TrainingState, dataset: ShardFolder) -> None:
    """Set the adapted weights of the generator that is released (`Family.calibrate`). Raises as `adapt`."""
    values = state.family.calibrate(state.run, state.released, lambda most: _draw(state, dataset, most))
    weights = state.family.adapted_weights(state.released)
    pairs = {str(at): pair for at, pair in enumerate(zip(weights, values, strict=True))}
    from_host(
        {at: unwrap(weight) for at, (weight, _) in pairs.items()},
        {at: np.asarray(value, np.float32) for at, (_, value) in pairs.items()},
    )


def _draw(state: TrainingState, dataset: ShardFolder, most: int) -> Mapping[str, NDArray[np.float32]]:
    """At most this number of training showers, at equal distances among all."""
    number = dataset.manifest.splits["train"]
    chosen = np.unique(np.linspace(0, number - 1, min(most, number)).astype(np.intp))
    showers = dataset.read("train", chosen)
    return {"cells": to_network(showers.cells_gev, state.run.data.preprocessing), **showers.primaries}
