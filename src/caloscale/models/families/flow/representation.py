"""A shower as few numbers: energies of its layers, and moments across.

B showers, X and Y cells across, L layers. Energies in GeV of the cells. The L numbers of the layers are the logarithm
of the weighted response, a logit for each further group of layers with equal absorber, and logits of a stick-breaking
within each group: the share of a layer in what it and the layers behind it have. The layers follow from them exactly.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from caloscale.detector.geometry import cylinder_mm
from caloscale.models.families.flow.detector import MOMENTS, Detector
from caloscale.models.layers.plain import SMALLEST_CELL, centred

ODD_X, ODD_Y = (0, 1, 3), (4, 5, 7)
"""Moments that change their sign when a shower is mirrored across x, across y."""
EMPTY_GAP, EMPTY_WIDTH = 1.0, 1.5
"""Logarithms that empty layers get lie so far below the faintest cell, half a normal distribution of this width: a flow
cannot make many showers with the same value, and it blurs a cut where many values are."""
LEAST_LAYER = 2.0
"""A layer with less than this many faintest cells is empty: few real ones have so little."""
ROUNDED = 0.1
"""Added to the square of a radius, in cells: a cell of finite size."""
_ROUNDING = 1e-3


def energies(shower: tf.Tensor, detector: Detector) -> tf.Tensor:
    """Cells in network units -> GeV, 0 below the faintest cell; the same shape."""
    cells = tf.exp(tf.math.log(tf.maximum(shower, SMALLEST_CELL)) / detector.power) / detector.units
    return cells * tf.cast(cells >= detector.floor_gev * (1 - _ROUNDING), tf.float32)


def describe_primary(latent: tf.Tensor, detector: Detector) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Energy in GeV (B,), primary as a network's input (B, P), and axis: cells between it and the middle of the window
    in each layer along x and along y (B, 2, L).

    latent: [E / energyScaleGev, angle in rad, condition, ...] (B, 2 + condition or more). The direction at the angle a
    and the azimuth p has the slopes cot a cos p and cot a sin p.
    """
    energy = tf.maximum(latent[:, 0] * detector.energy_scale_gev, 1e-6)
    cotangent = tf.cos(latent[:, 1]) / tf.maximum(tf.sin(latent[:, 1]), 1e-3)
    further = tf.unstack(latent[:, 2 : 2 + detector.condition], axis=1) if detector.condition else []
    none = tf.zeros_like(energy)
    cosine, sine = (further.pop(0), further.pop(0)) if detector.azimuth else (none + 1, none)
    entry_x, entry_y = (further.pop(0), further.pop(0)) if detector.entry else (none, none)
    slope_x, slope_y = cotangent * cosine, cotangent * sine
    logarithm = (tf.math.log(energy) - detector.centre) / detector.width
    inclination = 8 * cotangent * cotangent - 1
    primary = tf.stack([logarithm, 2 * slope_x, 2 * slope_y, inclination, entry_x, entry_y, *further], axis=1)
    axis = tf.stack(
        [
            slope_x[:, None] * tf.constant([detector.shift_x]) + entry_x[:, None],
            slope_y[:, None] * tf.constant([detector.shift_y]) + entry_y[:, None],
        ],
        axis=1,
    )
    return energy, primary, axis


def mirror_primary(primary: tf.Tensor, across_x: bool, across_y: bool) -> tf.Tensor:
    """The primary (B, P) of a mirrored shower."""
    signs = [1.0, -1.0 if across_x else 1.0, -1.0 if across_y else 1.0, 1.0]
    signs += [signs[1], signs[2], *[1.0] * (primary.shape[1] - 6)]
    return primary * tf.constant([signs])


def expectation_terms(primary: tf.Tensor) -> tf.Tensor:
    """What the mean of a number is linear in (B, 2 P + 2): the primary, its products with ln E, and (ln E)^3."""
    energy = primary[:, :1]
    return tf.concat([tf.ones_like(energy), primary, energy * primary, energy**3], axis=1)


def layer_numbers(layers: tf.Tensor, energy: tf.Tensor, detector: Detector) -> tf.Tensor:
    """Energies of the layers (B, L), all above 0, of primaries of this energy (B,) -> numbers (B, L)."""
    weighted = layers * tf.constant([detector.layer_weight])
    parts = [tf.reduce_sum(weighted[:, first:last], axis=1, keepdims=True) for first, last in detector.groups]
    numbers = [tf.math.log(tf.add_n(parts) / energy[:, None])]
    for at in range(len(parts) - 1):
        numbers.append(tf.math.log(parts[at] / tf.add_n(parts[at + 1 :])))
    for first, last in detector.groups:
        behind = tf.cumsum(layers[:, first:last], axis=1, reverse=True, exclusive=True)[:, :-1]
        numbers.append(tf.math.log(layers[:, first : last - 1] / behind))
    return tf.concat(numbers, axis=1)


def layers_of_numbers(numbers: tf.Tensor, energy: tf.Tensor, detector: Detector) -> tf.Tensor:
    """The inverse of `layer_numbers`: numbers (B, L), energy (B,) -> energies of the layers (B, L)."""
    groups = detector.groups
    total = numbers[:, :1] + tf.math.log(energy)[:, None]
    shares, left = [], tf.zeros_like(total)
    for at in range(1, len(groups)):
        logit = numbers[:, at : at + 1]
        shares.append(left - tf.nn.softplus(-logit))
        left = left - tf.nn.softplus(logit)
    shares.append(left)
    start, parts = len(groups), []
    for (first, last), share in zip(groups, shares):
        logits = numbers[:, start : start + last - first - 1]
        start += last - first - 1
        before = tf.concat([tf.zeros_like(share), -tf.cumsum(tf.nn.softplus(logits), axis=1)], axis=1)
        own = tf.concat([-tf.nn.softplus(-logits), tf.zeros_like(share)], axis=1)
        parts.append(tf.exp(total + share + before + own) / detector.layer_weight[first])
    return tf.concat(parts, axis=1)


def filled(layers: tf.Tensor, fill: tf.Tensor, detector: Detector) -> tf.Tensor:
    """Energies of the layers (B, L) with values below the faintest cell in empty ones. fill: normal numbers (B, L)."""
    floor = detector.floor_gev
    return tf.where(layers < floor * (1 - _ROUNDING), floor * tf.exp(-EMPTY_GAP - EMPTY_WIDTH * tf.abs(fill)), layers)


def moments(cells: tf.Tensor, axis: tf.Tensor, detector: Detector) -> tf.Tensor:
    """Cells (B, X, Y, L), axis (B, 2, L) -> moments (B, 12), in cells about the axis.

    For x and for y: barycentre, its slope over the depth, logarithm of the rms, asinh of the skewness. Then the
    logarithms of the mean distance from the barycentre, of the concentration (sum of squares over square of the sum),
    and of the numbers of cells with energy and of hits.
    """
    total = tf.reduce_sum(cells, axis=(1, 2, 3)) + 1e-12
    along = [sum_along(cells, at, detector) / total[:, None, None] for at in (0, 1)]
    depth = depth_positions(detector)
    mean_depth = tf.reduce_sum(along[0] * depth, axis=(1, 2))[:, None, None]
    variance_depth = tf.reduce_sum(along[0] * (depth - mean_depth) ** 2, axis=(1, 2)) + 1e-4
    numbers, distances = [], []
    for number, share in enumerate(along):
        distance = tf.constant(places(number, detector))[None, :, None] - axis[:, number : number + 1]
        mean = tf.reduce_sum(share * distance, axis=(1, 2))
        distance = distance - mean[:, None, None]
        slope = tf.reduce_sum(share * distance * (depth - mean_depth), axis=(1, 2)) / variance_depth
        variance = tf.reduce_sum(share * distance**2, axis=(1, 2)) + 1e-6
        third = tf.reduce_sum(share * distance**3, axis=(1, 2))
        numbers += [mean, slope, tf.math.log(variance) / 2, tf.asinh(third / variance**1.5)]
        distances.append(distance)
    if detector.cylinder:
        distances = [tf.reshape(distance, (-1, *detector.shape)) for distance in distances]
    else:
        distances = [distances[0][:, :, None], distances[1][:, None]]
    radius = tf.sqrt(distances[0] ** 2 + distances[1] ** 2 + ROUNDED)
    numbers.append(tf.math.log(tf.reduce_sum(cells * radius, axis=(1, 2, 3)) / total + 1e-3))
    numbers.append(tf.math.log(tf.reduce_sum(cells * cells, axis=(1, 2, 3)) / total**2 + 1e-6))
    for threshold in (detector.floor_gev * (1 - _ROUNDING), detector.hit_gev):
        numbers.append(tf.math.log1p(tf.reduce_sum(tf.cast(cells > threshold, tf.float32), axis=(1, 2, 3))))
    return tf.stack(numbers, axis=1)


def places(at: int, detector: Detector) -> NDArray[np.float32]:
    """Distances of cells from the middle of the window along x (at 0) or y (1), in cells: of the columns or rows of a
    grid; of all cells of a layer of a cylinder, (X Y,), in its cells along the radius."""
    if detector.cylinder:
        return cylinder_mm(*detector.shape[:2], 1.0)[at].reshape(-1).astype(np.float32)
    return centred(detector.shape[at])


def sum_along(cells: tf.Tensor, at: int, detector: Detector) -> tf.Tensor:
    """Cells (B, X, Y, L) summed over those in the same of `places`: (B, X, L), (B, Y, L) or (B, X Y, L)."""
    if detector.cylinder:
        return tf.reshape(cells, (-1, detector.shape[0] * detector.shape[1], detector.shape[2]))
    return tf.reduce_sum(cells, axis=2 - at)


def mirror_numbers(numbers: tf.Tensor, across_x: bool, across_y: bool) -> tf.Tensor:
    """The numbers (B, L + 12) of mirrored showers."""
    first = numbers.shape[1] - MOMENTS
    odd = [first + at for at in (ODD_X if across_x else ()) + (ODD_Y if across_y else ())]
    return numbers * tf.constant([[-1.0 if at in odd else 1.0 for at in range(numbers.shape[1])]])


def depth_positions(detector: Detector) -> tf.Tensor:
    """Numbers of the layers from -1 to 1 (1, 1, L)."""
    layers = detector.shape[2]
    return tf.constant(centred(layers) * (2 / layers))[None, None]
