"""The generator's loss: the published terms, and the same terms as proper scores of a distribution.

A mean absolute error to one real shower is least for a generator that always gives the median: it takes the
fluctuations away, and with them the energy resolution. The score |g - t| - |g - g'| / 2 with a second generated
shower g' of the same energy and angle is, in its mean, least if and only if g is distributed as the real t is: the
continuous ranked probability score for a number, the energy score for a vector. Here g' is held fixed and its
distance subtracted in full, which has the same mean gradient.
Source: Gneiting & Raftery, J. Am. Stat. Assoc. 102 (2007) 359, section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from caloscale.models.losses import SMALLEST_TARGET, adversarial_loss
from caloscale.spec import LossWeights

PROFILES = ("layers", "transverse", "depth", "counts", "hits")
"""Outputs that only the compact discriminator has; their targets are what it gives for the real showers."""

SMALLEST_SHARE = 1e-4
"""Added to a share of the energy below the root: its derivative at 0 stays finite."""

SMALLEST_SQUARE = 1e-6
"""Added below the root of a sum of squares: its derivative at 0 stays finite."""


def distance(name: str, one: Any, other: Any, ecal_sum: Any) -> Any:
    """Distance of two values of an output, per shower (B,), in the units of its loss term.

    angle: rad. ecal_sum, layers, transverse: percent of the real shower's sum. depth: percentage points.
    counts: percent. hits: mean difference of the roots.
    """
    if name == "angle":
        return tf.reduce_mean(tf.abs(one - other), axis=-1)
    if name == "hits":
        return tf.reduce_mean(tf.abs(one - other), axis=-1)
    if name == "counts":
        return 100 * tf.reduce_mean(tf.abs(one - other), axis=-1)
    if name == "ecal_sum":
        return 100 * tf.reduce_mean(tf.abs(one - other), axis=-1) / ecal_sum
    if name != "depth":
        # Roots of shares: the fringe of a profile counts as much as in a chi-squared.
        one, other = (tf.sqrt(part / ecal_sum[:, None] + SMALLEST_SHARE) for part in (one, other))
    difference = one - other
    return 100 * tf.sqrt(tf.reduce_sum(difference * difference, axis=-1) + SMALLEST_SQUARE)


def generator_loss(
    outputs: Mapping[str, Any],
    targets: Mapping[str, Any],
    labels: Any,
    weights: LossWeights,
    *,
    partner: Mapping[str, Any],
    energy_score_weight: float,
) -> tuple[Any, dict[str, Any]]:
    """Loss of each generated shower (B,), and its terms before they are weighted, each (B,).

    outputs, targets, labels, weights: as for `losses.adversarial_loss`, with targets also for the outputs of
    `PROFILES` that there are. partner: outputs for other generated showers of the same energies and angles, taken as
    constants. energy_score_weight: factor of their distance, which is subtracted, 0 to 1; with 0 and without
    profiles this is `adversarial_loss`.
    """
    total, terms = adversarial_loss(outputs, targets, labels, weights)
    ecal_sum = tf.maximum(tf.reshape(tf.cast(targets["ecal_sum"], tf.float32), (-1,)), SMALLEST_TARGET)
    for name in ("angle", "ecal_sum", *PROFILES):
        if name not in outputs:
            continue
        one = tf.cast(outputs[name], tf.float32)
        if name in PROFILES:
            terms[name] = distance(name, one, tf.cast(targets[name], tf.float32), ecal_sum)
            total = total + getattr(weights, name) * terms[name]
        if energy_score_weight:
            other = tf.stop_gradient(tf.cast(partner[name], tf.float32))
            apart = energy_score_weight * distance(name, one, other, ecal_sum)
            terms[name] = terms[name] - apart
            total = total - getattr(weights, name) * apart
    return total, terms
