"""Copies of what a training changes, on the host, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caloscale.models.normalization import running_statistics
from caloscale.training.checkpoint.format import Arrays
from caloscale.training.optimizers import plain


def network_variables(network: Any) -> dict[str, Any]:
    """Trained weights and running statistics of a network, by their place among all its weights. Constants are not
    part of it: a new network has the same.
    """
    changing = {id(weight) for weight in (*network.trainable_weights, *running_statistics(network))}
    return {f"{index:03d}": plain(weight) for index, weight in enumerate(network.weights) if id(weight) in changing}


def to_host(variables: Mapping[str, Any]) -> Arrays:
    """Copies of the values, taken now. variables: tf.Variables by name, mirrored or not."""
    return {name: np.array(variable.numpy()) for name, variable in variables.items()}


def not_finite(arrays: Mapping[str, NDArray[Any]]) -> str | None:
    """Name of the first that holds a NaN or an infinity; None when all are finite."""
    return next((name for name, values in arrays.items() if not np.isfinite(values).all()), None)


def from_host(variables: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Set all variables; ValueError, with nothing set, when a name is missing or left over or a shape differs."""
    missing, left_over = sorted(variables.keys() - arrays.keys()), sorted(arrays.keys() - variables.keys())
    if missing or left_over:
        raise ValueError(f"missing {missing[:3]}, left over {left_over[:3]}")
    for name, variable in variables.items():
        if tuple(variable.shape) != arrays[name].shape:
            raise ValueError(f"{name} has the shape {arrays[name].shape} instead of {tuple(variable.shape)}")
    for name, variable in variables.items():
        variable.assign(arrays[name])
