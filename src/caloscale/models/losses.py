"""The loss of the 3DGAN: per shower, weighted, never reduced over the batch.

Dividing by the batch is the training's business, which knows how many showers all replicas see together.
"""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from caloscale.spec import LossWeights

PROBABILITY_MARGIN = 1e-7
"""Probabilities are kept this far from 0 and 1, so that their logarithm is finite (as Keras does)."""

SMALLEST_TARGET = 1e-7
"""Least target that a percentage is taken of (as Keras does)."""

SMALLEST_COUNT = 1.0
"""Least count that a percentage is taken of: an empty bin counts as one cell (as published)."""


def binary_crossentropy(label: tf.Tensor, probability: tf.Tensor) -> tf.Tensor:
    """-(y ln p + (1 - y) ln(1 - p)), shape as given; p is a probability, not a logit."""
    p = tf.clip_by_value(probability, PROBABILITY_MARGIN, 1 - PROBABILITY_MARGIN)
    return -(label * tf.math.log(p) + (1 - label) * tf.math.log1p(-p))


def absolute_percentage_error(target: tf.Tensor, output: tf.Tensor, smallest: float = SMALLEST_TARGET) -> tf.Tensor:
    """100 |target - output| / |target|, percent of the target, shape as given."""
    return 100 * tf.abs(target - output) / tf.maximum(tf.abs(target), smallest)


def adversarial_loss(
    outputs: Mapping[str, tf.Tensor],
    targets: Mapping[str, tf.Tensor],
    labels: tf.Tensor,
    weights: LossWeights,
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Loss of each shower (B,), and its terms before they are weighted, each (B,).

    outputs: of the discriminator, real_fake (probability), energy, angle, ecal_sum, each (B, 1), and
        perhaps bins (B, 8).
    targets: energy (E / energyScaleGev), angle (rad), ecal_sum (network side: units of 1/unitsPerGev GeV),
        each (B,) or (B, 1); bins (B, 8) where outputs has them.
    labels: 1 real, 0 generated, (B,) or (B, 1).
    Terms: cross-entropy of real_fake, percentage errors of energy, ecal_sum and bins, absolute error of the
    angle (rad). A term of weight 0 is reported and left out of the total.
    """

    def pair(name: str) -> tuple[tf.Tensor, tf.Tensor]:
        output = _at_least_float32(outputs[name])
        target = labels if name == "real_fake" else targets[name]
        return tf.reshape(tf.cast(target, output.dtype), tf.shape(output)), output

    target_angle, angle = pair("angle")
    per_output = {
        "real_fake": binary_crossentropy(*pair("real_fake")),
        "energy": absolute_percentage_error(*pair("energy")),
        "angle": tf.abs(target_angle - angle),
        "ecal_sum": absolute_percentage_error(*pair("ecal_sum")),
    }
    if "bins" in outputs:
        per_output["bins"] = absolute_percentage_error(*pair("bins"), smallest=SMALLEST_COUNT)
    terms = {name: tf.reduce_mean(term, axis=-1) for name, term in per_output.items()}
    weighted = [weight * term for name, term in terms.items() if (weight := getattr(weights, name))]
    return (tf.add_n(weighted) if weighted else tf.zeros_like(terms["real_fake"])), terms


def _at_least_float32(values: tf.Tensor) -> tf.Tensor:
    """Half precision is widened: 1 - 1e-7 is 1 there."""
    values = tf.convert_to_tensor(values)
    return values if values.dtype == tf.float64 else tf.cast(values, tf.float32)
