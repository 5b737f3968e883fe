"""Losses of a generator and its discriminator: per shower, weighted, never reduced over the batch.

Dividing by the batch is the step's business, which knows how many showers all replicas see together.

`adversarial_loss` is the published one of the 3DGAN. `generator_loss` has the same terms as proper scores of a
distribution, for this reason.

A mean absolute error to one real shower is least for a generator that always gives the median; docs/compact.md has the
score that is least for the distribution of the real showers. Its distance must be a function of two showers and of the
primary alone. One that is measured in units of the real shower's sum weighs the real showers by 1 / sum and has its
least value for sums that are too small, by their relative variance (.4% at 10 GeV).
Source: Gneiting & Raftery, J. Am. Stat. Assoc. 102 (2007) 359, section 4; for weights, Gneiting & Ranjan,
J. Bus. Econ. Stat. 29 (2011) 411, section 3.
"""

from collections.abc import Mapping

import tensorflow as tf

from caloscale.models.layers.plain import SMALLEST_SUM
from caloscale.spec import LossWeights

PROBABILITY_MARGIN = 1e-7
"""Probabilities are kept this far from 0 and 1, so that their logarithm is finite (as Keras does)."""

SMALLEST_TARGET = 1e-7
"""Least target that a percentage is taken of (as Keras does)."""

SMALLEST_COUNT = 1.0
"""Least count that a percentage is taken of: an empty bin counts as one cell (as published)."""


PUBLISHED = ("energy", "angle", "ecal_sum")
"""Terms of the published loss that are scores where `train.energyScoreWeight` is above 0."""

PROFILES = ("layers", "transverse", "depth", "counts", "hits")
"""Outputs that only the compact discriminator has, with a term each."""

SMALLEST_SHARE = 1e-4
"""Added to a share of the energy below the root: its derivative at 0 stays finite."""

SMALLEST_SQUARE = 1e-6
"""Added below the root of a sum of squares: its derivative at 0 stays finite."""


def binary_crossentropy(label: tf.Tensor, probability: tf.Tensor) -> tf.Tensor:
    """-(y ln p + (1 - y) ln(1 - p)), shape as given; p is a probability, not a logit."""
    p = tf.clip_by_value(probability, PROBABILITY_MARGIN, 1 - PROBABILITY_MARGIN)
    return -(label * tf.math.log(p) + (1 - label) * tf.math.log1p(-p))


def absolute_percentage_error(target: tf.Tensor, output: tf.Tensor, smallest: float = SMALLEST_TARGET) -> tf.Tensor:
    """100 |target - output| / |target|, percent of the target, shape as given."""
    return 100 * tf.abs(target - output) / tf.maximum(tf.abs(target), smallest)


def adversarial_loss(
    outputs: Mapping[str, tf.Tensor], targets: Mapping[str, tf.Tensor], labels: tf.Tensor, weights: LossWeights
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
        output = tf.convert_to_tensor(outputs[name])
        if output.dtype != tf.float64:
            output = tf.cast(output, tf.float32)  # half precision: 1 - 1e-7 is 1 there
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


def distance(name: str, one: Mapping[str, tf.Tensor], other: Mapping[str, tf.Tensor], energy: tf.Tensor) -> tf.Tensor:
    """Distance of two showers of the same primary in one of their outputs, per shower (B,).

    one, other: float32 outputs of the discriminator by name, (B, n) each. energy: of the primaries (B,), in units of
    the output ``energy``.
    energy: percent of the primary's. angle: rad. ecal_sum, counts: percent (of differences of logarithms).
    layers, transverse: Euclidean distance of the roots of shares of the shower's own energy, percent. depth:
    Euclidean, percentage points. hits: mean difference of the roots.
    """
    if name in ("layers", "transverse"):
        # Roots of shares: the fringe of a profile counts as much as in a chi-squared.
        first, second = (tf.sqrt(s[name] / (s["ecal_sum"] + SMALLEST_SUM) + SMALLEST_SHARE) for s in (one, other))
    elif name == "ecal_sum":
        first, second = (tf.math.log(shower[name] + SMALLEST_SUM) for shower in (one, other))
    else:
        first, second = one[name], other[name]
    difference = first - second
    if name in ("layers", "transverse", "depth"):
        return 100 * tf.sqrt(tf.reduce_sum(difference * difference, axis=-1) + SMALLEST_SQUARE)
    mean = tf.reduce_mean(tf.abs(difference), axis=-1)
    if name == "energy":
        return 100 * mean / energy
    return mean if name in ("angle", "hits") else 100 * mean


def generator_loss(
    outputs: Mapping[str, tf.Tensor],
    targets: Mapping[str, tf.Tensor],
    labels: tf.Tensor,
    weights: LossWeights,
    *,
    real: Mapping[str, tf.Tensor],
    partner: Mapping[str, tf.Tensor],
    energy_score_weight: float,
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Loss of each generated shower (B,), and its terms before they are weighted, each (B,).

    outputs, targets, labels, weights: as for `losses.adversarial_loss`. real, partner: outputs for the real showers
    and for other generated ones of the same energies and angles, taken as constants. energy_score_weight: the share of
    the distance to the partner that is subtracted, 0 to 1. With 0 and without profiles this is `adversarial_loss`.
    Above 0 the terms of `PUBLISHED` are distances to the real shower too: the energy of the primary itself as the
    target of the energy head would be met best by showers without fluctuations.
    """
    total, terms = adversarial_loss(outputs, targets, labels, weights)
    energy = tf.maximum(tf.reshape(tf.cast(targets["energy"], tf.float32), (-1,)), SMALLEST_TARGET)
    sides = (outputs, real, partner)
    one, true, other = ({name: tf.cast(value, tf.float32) for name, value in side.items()} for side in sides)
    true, other = tf.nest.map_structure(tf.stop_gradient, (true, other))
    for name in (*(PUBLISHED if energy_score_weight else ()), *PROFILES):
        if name not in outputs:
            continue
        score = distance(name, one, true, energy)
        if energy_score_weight:
            score = score - energy_score_weight * distance(name, one, other, energy)
        total = total + getattr(weights, name) * (score - terms[name] if name in terms else score)
        terms[name] = score
    return total, terms
