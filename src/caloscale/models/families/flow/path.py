"""Flow matching on a circle: x(a) = cos(a) noise + sin(a) data, the angle a from 0 to pi/2 (Lipman et al.,
arXiv:2210.02747; Albergo & Vanden-Eijnden, arXiv:2209.15571).

The velocity dx/da is 0 in the mean where the data are independent normal numbers, as the noise is: a network learns the
difference from that alone, and few steps suffice where the difference is small.
"""

from __future__ import annotations

import math

import tensorflow as tf

END = math.pi / 2
ANGLE_FEATURES = 5


def interpolate(noise: tf.Tensor, data: tf.Tensor, angle: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Point and velocity of the path from noise to data (B, ...) at the angle (B, 1, ...)."""
    cosine, sine = tf.cos(angle), tf.sin(angle)
    return cosine * noise + sine * data, cosine * data - sine * noise


def angle_features(angle: tf.Tensor) -> tf.Tensor:
    """Angle (..., 1) as a network's input (..., 5)."""
    waves = [tf.sin(angle), tf.cos(angle), tf.sin(2 * angle), tf.cos(2 * angle), tf.sin(4 * angle)]
    return tf.concat(waves, axis=-1)
