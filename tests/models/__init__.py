"""Tests of the networks and of their faster forms."""

import pytest

from caloscale.models.layers.convolution import has_bfloat16

HAS_BFLOAT16 = has_bfloat16()
needs_bfloat16 = pytest.mark.skipif(not HAS_BFLOAT16, reason="sums of products of bfloat16 would be wrong here")


def copy_weights(source, target):
    """Set the weights of a network to those of another with layers of the same names."""
    for layer in source.layers:
        if layer.weights:
            target.get_layer(layer.name).set_weights(layer.get_weights())
