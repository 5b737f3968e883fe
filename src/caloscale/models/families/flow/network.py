"""The generator as one Keras model, and the losses that train its three networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from caloscale.models.families.flow import scores
from caloscale.models.families.flow.cells import AllCells, SomeCells
from caloscale.models.families.flow.detector import MOMENTS, Detector
from caloscale.models.families.flow.layer_flow import END, FaintLayers, LayerFlow, Whitening
from caloscale.models.families.flow.marginals import Factors, Marginals
from caloscale.models.families.flow.neighbours import coefficient_count, correlate
from caloscale.models.families.flow.representation import (
    LEAST_LAYER,
    describe_primary,
    energies,
    filled,
    layer_numbers,
    layers_of_numbers,
    moments,
)
from caloscale.models.families.flow.targets import hold_cells, hold_hits, hold_moments, hold_sums
from caloscale.models.layers.plain import PlainLayer, compressed
from caloscale.random import EventDraws

REPETITIONS = 24
"""Points of the path of the layers' flow for each shower of a batch: they cost little compared with its cells."""
_LIKELIHOOD_UNIT = 300.0
"""Logarithm of the likelihood of a shower's cells is divided by this: the loss is then of the order of the others."""

_HITS = 2
"""Corrections of the number of hits: the layer's energy that follows takes .3% of them away again."""
_RAMP = 1e-3
"""Depth over which a cell rises from nothing to its energy: a jump would make rounding visible."""


class Finish(NamedTuple):
    """What `training.calibrate` measures on finished showers."""

    neighbours: Any
    """Coefficients of `neighbours.correlate`."""
    core: Any
    """Its logarithms of the spreads of the scores of the core (L,)."""
    counts: Any
    """Logarithms of the spreads of the numbers of hits for `targets.hold_cells` (L,)."""
    hazards: Any
    """Added to the logarithms of the hazards of all cells (K,)."""


class ShowerFlow(PlainLayer):
    """Latent (B, N) -> shower (B, X, Y, Z, 1) in network units; see docs/flow.md.

    The latent has energy, angle and condition, then `numbers` normal numbers of stage 1 and one for each cell.
    """

    def __init__(self, detector: dict[str, Any], settings: dict[str, Any], **options: Any) -> None:
        super().__init__(**options)
        self.detector, self.settings = Detector.model_validate(detector), dict(settings)
        one = self.detector
        self.numbers = one.shape[2] + MOMENTS
        self.whitening = Whitening(self.numbers, 2 * one.primary_size + 2, name="whitening")
        self.faint = FaintLayers(one.shape[2], name="faint")
        width, dropout, steps = (settings[name] for name in ("width", "layer_dropout", "layer_steps"))
        self.layer_flow = LayerFlow(self.numbers, one.primary_size, width, dropout, steps, name="layer_flow")
        style, terms, dropout = (settings[name] for name in ("style", "terms", "cell_dropout"))
        self.marginals = Marginals(one, self.numbers, style, terms, dropout, name="marginals")

    def build(self, _: Any = None) -> None:
        for part in (self.whitening, self.faint, self.layer_flow, self.marginals):
            part.build()
        depth = self.detector.shape[2]
        sizes = Finish(coefficient_count(self.detector), core=depth, counts=depth, hazards=scores.BINS)._asdict()
        self.finish = Finish(
            *(self.add_weight(name=n, shape=(size,), initializer="zeros", trainable=False) for n, size in sizes.items())
        )
        self.built = True

    def call(self, latent: tf.Tensor) -> tf.Tensor:
        return compressed(self.cells_gev(latent, sparse=False) * self.detector.units, self.detector.power)[..., None]

    def compute_output_shape(self, latent: tf.TensorShape) -> tuple[int | None, ...]:
        """Keras would find it by tracing all operations, for the most part of a second."""
        return (latent[0], *self.detector.shape, 1)

    def make_numbers(self, noise: tf.Tensor, primary: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Stage 1: noise (B, D), primary (B, P) -> whitened numbers and numbers of a shower (B, D)."""
        whitened = self.whitening.within(self.layer_flow.call(noise, primary))
        return whitened, self.whitening.undo(whitened, primary)

    def cells_gev(
        self,
        latent: tf.Tensor,
        *,
        sparse: bool,
        finish: Finish | None = None,
        numbers: tuple[tf.Tensor, tf.Tensor] | None = None,
    ) -> tf.Tensor:
        """Latent (B, N) -> energies of the cells (B, X, Y, Z) in GeV. sparse: energies are computed for the cells that
        are hit, 3% of all, whose number differs from batch to batch; otherwise all shapes follow from the shape of
        the latent, as exported files need. finish: other values than the weights; numbers: other whitened numbers and
        numbers of a shower than those of stage 1."""
        detector = self.detector
        cells_x, cells_y, depth = detector.shape
        energy, primary, axis = describe_primary(latent, detector)
        start = 2 + detector.condition
        whitened, of_shower = numbers or self.make_numbers(latent[:, start : start + self.numbers], primary)
        layers, across = layers_of_numbers(of_shower[:, :depth], energy, detector), of_shower[:, depth:]
        layers = self.faint.call(layers / detector.floor_gev) * detector.floor_gev
        finish = Finish(*map(tf.convert_to_tensor, self.finish if finish is None else finish))
        factors = self.marginals.call(whitened, across, layers, primary, axis)
        factors = factors._replace(offset=factors.offset + finish.hazards)
        logits = factors.logits()
        independent = tf.reshape(latent[:, start + self.numbers :], (-1, cells_x, cells_y, depth))
        correlated = correlate(
            independent, logits, factors.core(), finish.neighbours, finish.core, cylinder=detector.cylinder
        )
        full = tf.cast(layers >= LEAST_LAYER * detector.floor_gev, tf.float32)
        reached = hold_cells(*scores.odds(scores.logistic_of_normal(correlated), logits), full, across, finish.counts)
        return self._deposit(reached, factors, layers, full, across, axis, sparse=sparse)

    def _deposit(
        self,
        reached: tf.Tensor,
        factors: Factors,
        layers: tf.Tensor,
        full: tf.Tensor,
        across: tf.Tensor,
        axis: tf.Tensor,
        *,
        sparse: bool,
    ) -> tf.Tensor:
        """What `targets.hold_cells` makes of the cells (B, L, X, Y), energies of the layers and 1 for those that have
        any (B, L), moments (B, 12), axis (B, 2, L) -> cells in GeV (B, X, Y, L), whose layers have these energies, and
        whose shower nearly has these moments: the likeliest cell is hit where no other is."""
        detector, floor = self.detector, self.detector.floor_gev
        highest = tf.reduce_max(reached, axis=(2, 3))
        if sparse:  # a comparison that what is not a number does not pass: it is seen then
            least = (tf.minimum(highest, 1.0) * (1 - 1e-6))[..., None, None]
            cells: AllCells = SomeCells(tf.not_equal(tf.minimum(reached, least), reached), cylinder=detector.cylinder)
        else:
            cells = AllCells(reached, cylinder=detector.cylinder)
        reached = cells.of(reached)
        beyond = tf.math.log(reached)
        widths = scores.widths(self._edges(layers))
        energy = cells.energies(beyond, factors, widths)
        likeliest = tf.cast(reached >= cells.of_layers(highest), tf.float32)
        share = tf.maximum(tf.clip_by_value(beyond / _RAMP, 0.0, 1.0), likeliest)
        # No cell has more than its layer, which the distribution of a single cell does not know.
        above = tf.nn.relu(tf.minimum(energy, cells.of_layers(layers / floor)) - 1) * share
        sums = layers * full / floor
        sums_above = tf.nn.relu(sums - cells.sum_layers(share))
        above = hold_moments(hold_sums(above, sums_above, cells), share, sums_above, across, axis, cells, detector)
        for _ in range(_HITS):
            energy = share + hold_hits(above, share, across, cells, detector)
            energy = energy * cells.of_layers(sums / cells.sum_layers(energy))
            above = tf.nn.relu(energy - share)
        return cells.whole(energy * floor)

    def losses_of(
        self, shower: tf.Tensor, latent: tf.Tensor, random: EventDraws
    ) -> tuple[tf.Tensor, Mapping[str, tf.Tensor]]:
        """Loss of each real shower (B,), and its terms.

        shower (B, X, Y, L) in network units; latent: its primary (B, n).
        """
        detector = self.detector
        depth = detector.shape[2]
        energy, primary, axis = describe_primary(latent, detector)
        cells = energies(shower, detector)
        layers = filled(tf.reduce_sum(cells, axis=(1, 2)), random.normal((depth,)), detector)
        across = moments(cells, axis, detector)
        numbers = tf.concat([layer_numbers(layers, energy, detector), across], axis=1)
        whitened = tf.stop_gradient(self.whitening.call(numbers, primary))
        of_layers = self.layer_flow.loss(
            whitened, primary, random.normal((REPETITIONS, self.numbers)), END * random.uniform((REPETITIONS, 1))
        )

        factors = self.marginals.call(whitened, across, layers, primary, axis, training=True)
        logits = factors.logits()
        hits, energies_of_hits = self._hits(tf.transpose(cells, (0, 3, 1, 2)), layers, factors)
        # For each cell the logarithm of the probability of no hit; for a hit the logit is added.
        of_hits = scores.log_density(*energies_of_hits) + tf.gather_nd(logits, hits)
        likelihood = tf.math.unsorted_segment_sum(of_hits, hits[:, 0], cells.shape[0])
        of_marginals = tf.reduce_sum(scores.softplus(logits), axis=(1, 2, 3)) - likelihood
        terms = {"layers": of_layers, "cell_energies": of_marginals / _LIKELIHOOD_UNIT}
        return tf.add_n(list(terms.values())), terms

    def _hits(
        self, by_layer: tf.Tensor, layers: tf.Tensor, factors: Factors
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
        """Numbers of the cells that are hit (N, 4), and what `scores.fill_bins` needs. by_layer (B, L, X, Y) in GeV."""
        detector = self.detector
        hits = tf.where(by_layer >= detector.floor_gev * (1 - 1e-3))
        ratio = tf.maximum(tf.gather_nd(by_layer, hits) / detector.floor_gev, 1.0)
        edges = tf.gather_nd(self._edges(layers), hits[:, :2])
        return hits, (ratio, factors.of_some(hits), edges)

    def _edges(self, layers: tf.Tensor) -> tf.Tensor:
        """`scores.edges` of layers (B, L): a share of a layer's energy means less where its core has more cells."""
        detector = self.detector
        core_share = 3 / detector.shape[0] if detector.cylinder else 1.0  # of its cells, over that of one on the axis
        return scores.edges(layers * core_share, detector.mip_gev, detector.floor_gev)

    def measure_scores(
        self, cells: tf.Tensor, numbers: tf.Tensor, latent: tf.Tensor, uniform: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Normal scores, logits of a hit and core of all cells (B, L, X, Y), and the sums of `scores.fill_bins` (2, K):
        hits in each bin, and as many as its hazard would make. cells (B, X, Y, L) in GeV, numbers (B, D): of the same
        showers; latent: their primaries (B, n); uniform (B, L, X, Y): place of the cells that are not hit."""
        depth = self.detector.shape[2]
        energy, primary, axis = describe_primary(latent, self.detector)
        layers = layers_of_numbers(numbers[:, :depth], energy, self.detector)
        whitened = self.whitening.call(numbers, primary)
        factors = self.marginals.call(whitened, numbers[:, depth:], layers, primary, axis)
        logits = factors.logits()
        hits, energies_of_hits = self._hits(tf.transpose(cells, (0, 3, 1, 2)), layers, factors)
        filled, bins = scores.fill_bins(*energies_of_hits)
        of_hits = scores.scores_of_hits(tf.reduce_sum(filled, axis=1), tf.gather_nd(logits, hits))
        logistic = tf.tensor_scatter_nd_update(scores.scores_of_others(uniform, logits), hits, of_hits)
        normal = scores.normal_of_logistic(logistic)
        normal = tf.clip_by_value(normal, -scores.LARGEST_SCORE, scores.LARGEST_SCORE)
        return normal, logits, factors.core(), tf.reduce_sum(tf.stack([bins, filled]), axis=1)

    def arithmetic(self) -> int:
        """Floating-point operations of a generated shower; elementwise work, which is as large, not counted."""
        return self.layer_flow.arithmetic() + self.marginals.arithmetic()

    def step_arithmetic(self) -> int:
        """Floating-point operations of a training step for each of its showers: of dense layers."""
        of_layers = self.layer_flow.arithmetic() // (2 * self.layer_flow.steps) * REPETITIONS
        return 3 * (of_layers + self.marginals.arithmetic())

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "detector": self.detector.model_dump(mode="json"), "settings": self.settings}


def build_generator(detector: Detector, settings: dict[str, Any], latent_size: int) -> tf.keras.Model:
    """Latent (B, latentSize) -> showers (B, X, Y, Z, 1)."""
    latent = tf.keras.Input((latent_size,), name="latent")
    shower = ShowerFlow(detector.model_dump(mode="json"), settings, name="flow")(latent)
    return tf.keras.Model(latent, shower, name="generator")
