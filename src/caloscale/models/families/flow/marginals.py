"""Stage 2, first part: the distribution of each cell given the layers and the moments.

The parameters of `scores` are sums of products of a function of x, a function of y, both in the frame of the shower
(its axis moved to the barycentre and slope that stage 1 gives), and an amplitude for each layer. In a cylinder, whose
frame is fixed, they are a function of the azimuth relative to the barycentre, and one of the radius.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from caloscale.models.families.flow.detector import Detector
from caloscale.models.families.flow.scores import BINS, PARAMETERS
from caloscale.models.layers.dropout import EventDropout
from caloscale.models.layers.plain import PlainLayer, centred, fourier_features, wavelengths_of

HIDDEN = 64
"""Units of the dense layer behind the numbers of the shower."""
POSITION_HIDDEN = 32
"""Units of the dense layers that make the functions of x and y."""
_BLOCK = 16
"""Cells of a layer whose parameters are one product."""
_START = (-3.0, -3.0, -3.0, -2.5, *(PARAMETERS - 4) * [-0.5])
"""Parameters of a cell where the training begins."""
_START_BY_ENERGY = (0.3, *(PARAMETERS - 1) * [0.0])
"""How they follow the logarithm of the energy of the layer."""
_START_OF_CORE = (1.0, *(PARAMETERS - 1) * [-1.0])
_CORE = 5.0
"""What these count in the cell on the axis. Its energy is a large share of the layer's, so that all hazards below are
small: from one cell of a layer that is learnt slowly."""
_CORE_CELLS = 0.6
"""Distance from the axis where it counts half."""
_AZIMUTH_FEATURES = 5


class Factors(NamedTuple):
    """Parameters of all cells: of cell (x, y, l) hazard k is sum_t along_x[l, x, t] amplitude[l, k, t] along_y[l, y, t]
    + offset[l, k], its logarithm, and the logit of a hit likewise. The last t is that of the core."""

    along_x: tf.Tensor
    """(B, L, X, T)"""
    along_y: tf.Tensor
    """(B, L, Y, T)"""
    logit_amplitude: tf.Tensor
    """(B, L, 1, T)"""
    logit_offset: tf.Tensor
    """(B, L, 1)"""
    amplitude: tf.Tensor
    """(B, L, K, T)"""
    offset: tf.Tensor
    """(B, L, K)"""

    def logits(self) -> tf.Tensor:
        """Logits of a hit of all cells (B, L, X, Y)."""
        scaled = self.along_x * self.logit_amplitude
        return tf.matmul(scaled, self.along_y, transpose_b=True) + self.logit_offset[..., None]

    def core(self) -> tf.Tensor:
        """1 for the cell on the axis of the shower, 0 far from it (B, L, X, Y)."""
        return tf.matmul(self.along_x[..., -1:], self.along_y[..., -1:], transpose_b=True)

    def of_all_cells(self) -> tf.Tensor:
        """Logarithms of the hazards of all cells (B, L, K, X Y)."""
        depth, cells_x, terms = self.along_x.shape[1:]
        products = tf.expand_dims(self.along_x, 3) * tf.expand_dims(self.along_y, 2)
        products = tf.reshape(products, (-1, depth, cells_x * self.along_y.shape[2], terms))
        return tf.matmul(self.amplitude, products, transpose_b=True) + self.offset[..., None]

    def of_some(self, cells: tf.Tensor) -> tf.Tensor:
        """Logarithms of the hazards of some cells (N, K). cells (N, 4): numbers of shower, layer, x, y, in their
        order."""
        cells = tf.cast(cells, tf.int32)
        depth, terms = self.amplitude.shape[1], self.amplitude.shape[3]
        layer = cells[:, 0] * depth + cells[:, 1]
        along = [
            tf.gather(tf.reshape(values, (-1, terms)), layer * values.shape[2] + cells[:, at])
            for values, at in ((self.along_x, 2), (self.along_y, 3))
        ]
        # The cells of a layer fill blocks: a product for each block is three times as fast as one for each cell.
        counts = tf.math.unsorted_segment_sum(tf.ones_like(layer), layer, tf.shape(self.amplitude)[0] * depth)
        blocks = (counts + (_BLOCK - 1)) // _BLOCK
        before = tf.cumsum(blocks, exclusive=True) * _BLOCK - tf.cumsum(counts, exclusive=True)
        place = tf.range(tf.shape(layer)[0]) + tf.gather(before, layer)
        of_block = tf.repeat(tf.range(tf.shape(counts)[0]), blocks)
        filled = tf.scatter_nd(place[:, None], along[0] * along[1], (tf.shape(of_block)[0] * _BLOCK, terms))
        amplitude = tf.gather(tf.reshape(self.amplitude, (-1, BINS, terms)), of_block)
        values = tf.matmul(tf.reshape(filled, (-1, _BLOCK, terms)), amplitude, transpose_b=True)
        values = tf.gather(tf.reshape(values, (-1, BINS)), place)
        return values + tf.gather(tf.reshape(self.offset, (-1, BINS)), layer)


class Marginals(PlainLayer):
    """The parameters of the cells (`Factors`) from numbers, energies of the layers and primary."""

    def __init__(
        self, detector: Detector, numbers: int, style: int, terms: int, dropout: float, **options: Any
    ) -> None:
        super().__init__(**options)
        self.detector, self.numbers, self.style, self.terms = detector, numbers, style, terms
        cells_x, cells_y, depth = self.detector.shape
        self.wavelengths = wavelengths_of(cells_x, cells_y)

        def dense(units: int, name: str, **options: Any) -> Any:
            return tf.keras.layers.Dense(units, dtype="float32", name=name, **options)

        small = tf.keras.initializers.RandomNormal
        self.first, self.second = dense(HIDDEN, "numbers", activation="silu"), dense(self.style, "style")
        self.drop_numbers = EventDropout(dropout / 2, dtype="float32", name="dropout_numbers")
        self.drop_hidden = EventDropout(dropout, dtype="float32", name="dropout_hidden")
        self.positions = [
            (
                dense(POSITION_HIDDEN, f"{axis}1"),
                dense(POSITION_HIDDEN, f"{axis}1_layer", use_bias=False),
                dense(POSITION_HIDDEN, f"{axis}1_style", use_bias=False),
                dense(POSITION_HIDDEN, f"{axis}2"),
                dense(self.terms, f"{axis}3"),
            )
            for axis in "xy"
        ]
        self.x1, self.x1_layer, self.x1_style, self.x2, self.x3 = self.positions[0]
        self.y1, self.y1_layer, self.y1_style, self.y2, self.y3 = self.positions[1]
        self.amplitude = dense(
            depth * PARAMETERS * self.terms,
            "amplitude",
            kernel_initializer=small(stddev=0.004),
            bias_initializer=small(stddev=0.06),
        )
        self.offset = dense(depth * PARAMETERS, "offset", kernel_initializer=small(stddev=0.01))

    @property
    def style_size(self) -> int:
        """Numbers from which the parameters of the cells of a shower follow: those of `style` and its primary."""
        return self.style + self.detector.primary_size

    def build(self, _: Any = None) -> None:
        depth, primary = self.detector.shape[2], self.detector.primary_size
        of_distance = 2 * len(self.wavelengths) + 2
        features = (_AZIMUTH_FEATURES if self.detector.cylinder else of_distance, of_distance)
        self.first.build((None, self.numbers + primary + depth))
        self.second.build((None, HIDDEN))
        for layers, size_of_features in zip(self.positions, features):
            sizes = (size_of_features, depth, self.style_size, POSITION_HIDDEN, POSITION_HIDDEN)
            for layer, size in zip(layers, sizes):
                layer.build((None, size))
        self.amplitude.build((None, self.style_size))
        self.offset.build((None, self.style_size))
        self.by_energy = self.started("by_energy", np.tile(_START_BY_ENERGY, (depth, 1)), trainable=True)
        self.core = self.started("core", np.tile(_START_OF_CORE, (depth, 1)), trainable=True)
        self.built = True

    def call(
        self,
        whitened: tf.Tensor,
        moments: tf.Tensor,
        layers: tf.Tensor,
        primary: tf.Tensor,
        axis: tf.Tensor,
        training: bool = False,
    ) -> Factors:
        """Whitened numbers (B, D), moments (B, 12), energies of the layers in GeV (B, L), primary (B, P), axis
        (B, 2, L)."""
        depth = self.detector.shape[2]
        logarithms = tf.math.log(tf.maximum(layers / self.detector.floor_gev, 1e-3))
        inputs = tf.concat([whitened, primary, logarithms / 3 - 1], axis=1)
        hidden = self.first(self.drop_numbers(inputs, training=training))
        style = tf.concat([self.second(self.drop_hidden(hidden, training=training)), primary], axis=1)
        number = tf.constant(centred(depth) * (2 / depth))[None]
        share = layers / tf.reduce_sum(layers, axis=1, keepdims=True)
        behind = number - tf.reduce_sum(share * number, axis=1, keepdims=True)
        centres = [
            axis[:, at] + moments[:, 4 * at : 4 * at + 1] + moments[:, 4 * at + 1 : 4 * at + 2] * behind
            for at in (0, 1)
        ]
        along = []
        for at, networks in enumerate(self.positions):
            features, of_core = self._features(at, centres, moments)
            along.append(tf.concat([self._along(networks, features, style), of_core], axis=3))
        amplitude = tf.reshape(self.amplitude(style), (-1, depth, PARAMETERS, self.terms))
        core = tf.zeros_like(amplitude[..., :1]) + _CORE * self.core[None, ..., None]
        amplitude = tf.concat([amplitude, core], axis=3)
        offset = tf.reshape(self.offset(style), (-1, depth, PARAMETERS)) + tf.constant([[_START]])
        offset = offset + self.by_energy[None] * (logarithms - 6)[..., None]
        parts = [tf.split(values, (1, BINS), axis=2) for values in (amplitude, offset)]
        return Factors(along[0], along[1], parts[0][0], parts[1][0], parts[0][1], parts[1][1])

    def _features(self, at: int, centres: list[tf.Tensor], moments: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Of the places along x (at 0) or y (1): features (B, L, n, F), and part in the core (B, L, n, 1). centres: of
        the layers along x and y, (B, L) each."""
        cells = self.detector.shape[at]
        if not self.detector.cylinder:
            distance = tf.constant(centred(cells))[None, None] - centres[at][:, :, None]
        elif at:
            distance = tf.constant(centred(cells) + cells / 2)[None, None] + tf.zeros_like(centres[at])[:, :, None]
        else:
            features = self._azimuth_features(centres, moments)
            return features, tf.ones_like(features[..., :1])
        logarithm = tf.math.log(distance[..., None] ** 2 + 0.1) / 2
        of_core = (distance[..., None] / _CORE_CELLS) ** 2
        features = tf.concat([fourier_features(distance, self.wavelengths, cells), logarithm], axis=-1)
        return features, 1 / (1 + (of_core * of_core) ** 2)

    def _azimuth_features(self, centres: list[tf.Tensor], moments: tf.Tensor) -> tf.Tensor:
        """What turns with a shower (B, L, X, F): the centre of a layer along each azimuth, the squares of that and of
        its part across, the skewness along it, and the difference of the widths."""
        azimuths = self.detector.shape[0]
        azimuth = (np.arange(azimuths) + 0.5) * (2 * math.pi / azimuths) - math.pi
        cosine, sine, twice = (tf.constant(of(azimuth), tf.float32) for of in (np.cos, np.sin, lambda a: np.cos(2 * a)))
        x, y = (centre[:, :, None] for centre in centres)
        bound = 4 * tf.math.rsqrt(1 + x * x + y * y)
        along, across = (x * cosine + y * sine) * bound, (y * cosine - x * sine) * bound
        skewness, widths = (
            moments[:, 3:4] * cosine + moments[:, 7:8] * sine,
            (moments[:, 2:3] - moments[:, 6:7]) * twice,
        )
        whole = [values[:, None] + tf.zeros_like(along) for values in (skewness, widths)]
        return tf.stack([along, along * along, across * across, *whole], axis=3)

    def _along(self, networks: tuple[Any, ...], features: tf.Tensor, style: tf.Tensor) -> tf.Tensor:
        """Functions of the features of places (B, L, n, F) -> (B, L, n, T)."""
        first, of_layer, of_style, second, third = networks
        depth, cells = features.shape[1:3]
        # Added to one another first: the gradient sums over the cells, then over layers and over showers. And dense
        # layers of matrices have their bias merged by TensorFlow.
        of_others = (of_layer.kernel[None] + of_style(style)[:, None])[:, :, None]
        value = tf.reshape(first(tf.reshape(features, (-1, features.shape[3]))), (-1, depth, cells, POSITION_HIDDEN))
        value = tf.reshape(tf.nn.leaky_relu(value + of_others, 0.2), (-1, POSITION_HIDDEN))
        value = third(tf.nn.leaky_relu(second(value), 0.2))
        return tf.reshape(value, (-1, depth, cells, self.terms))

    def arithmetic(self) -> int:
        """Floating-point operations for one shower."""
        cells_x, cells_y, depth = self.detector.shape
        dense = [self.first, self.second, self.amplitude, self.offset, self.x1_style, self.y1_style]
        count = sum(int(layer.kernel.shape[0]) * int(layer.kernel.shape[1]) for layer in dense)
        for cells, layers in zip((cells_x, cells_y), self.positions):
            kernels = [layers[at].kernel.shape for at in (0, 3, 4)]
            count += depth * cells * sum(int(first) * int(last) for first, last in kernels)
        return 2 * (count + PARAMETERS * depth * cells_x * (cells_y + 1) * self.terms)
