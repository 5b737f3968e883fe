"""Arithmetic of a network from its shapes: what the bill and the benchmarks divide by."""

import math

import tensorflow as tf

from caloscale.models.layers.folding import UpsampledConv3D


def flops_per_layer(network: tf.keras.Model, *, folded: bool = False) -> dict[str, int]:
    """Floating-point operations of each layer with weights, for one shower's forward pass.

    A multiply-add counts 2. Counted are convolutions and dense layers; biases, activations and normalisations are below
    a hundredth of them. A convolution costs 2 x kernel x channels in x channels out for every position of its output (a
    transposed one: of its input). A folded convolution counts as the plain one that it stands for (the published
    arithmetic, by which machines were measured), or, with `folded`, as what is really computed. A layer with a method
    `arithmetic` states its own. Raises TypeError for a layer with weights that is none of these.
    """
    layers = tf.keras.layers
    counts: dict[str, int] = {}
    for layer in network.layers:
        if isinstance(layer, tf.keras.Model):
            inner = flops_per_layer(layer, folded=folded)
            counts.update({f"{layer.name}/{name}": count for name, count in inner.items()})
        elif isinstance(layer, layers.Conv1DTranspose | layers.Conv2DTranspose | layers.Conv3DTranspose):
            counts[layer.name] = 2 * _size(layer.kernel.shape) * _size(layer.input.shape[1:-1])
        elif hasattr(layer, "arithmetic") and (folded or not isinstance(layer, UpsampledConv3D)):
            counts[layer.name] = layer.arithmetic()
        elif isinstance(layer, layers.Conv1D | layers.Conv2D | layers.Conv3D | layers.Dense | UpsampledConv3D):
            counts[layer.name] = 2 * _size(layer.kernel.shape) * _size(layer.output.shape[1:-1])
        elif layer.trainable_weights and not isinstance(layer, layers.BatchNormalization):
            raise TypeError(f"the arithmetic of layer {layer.name} ({type(layer).__name__}) is not known")
    return counts


def flops(network: tf.keras.Model, *, folded: bool = False) -> int:
    """Floating-point operations of one shower's forward pass: the sum of `flops_per_layer`."""
    return sum(flops_per_layer(network, folded=folded).values())


def _size(shape: tf.TensorShape) -> int:
    return math.prod(int(n) for n in shape)
