"""Physics constraints as layers: quantities of a shower, computed without trained parameters.

All of them read cell energies (B, X, Y, Z, 1) as `CellEnergy` gives them: deposited energy in units of
1 / preprocessing.unitsPerGev GeV. They compute in float32 whatever the policy of the network, because sums
over 65,025 cells and differences of barycentres do not survive bfloat16.
"""

import math

import tensorflow as tf

from caloscale.detector.angle import EMPTY_ANGLE_RAD, FAINT_LAYER, SMALLEST_DISTANCE_MM2
from caloscale.detector.geometry import cylinder_mm, sensor_depth_mm
from caloscale.models.layers.plain import PlainLayer, centred
from caloscale.spec import Data

PUBLISHED_BIN_EDGES = (0.05, 0.03, 0.02, 0.0125, 0.008, 0.003)
"""Edges of the ranges of cell energy of the published bin counts, in units of 1/50 GeV."""

PUBLISHED_UNITS_PER_GEV = 50.0
"""Units per GeV of the published arrays, to which the edges belong."""

EMPTY_SUM = 1e-6
"""Showers with a smaller sum (2e-8 GeV in the published units) count as empty."""


class CellEnergy(PlainLayer):
    """Cell energies of a shower in network units: x^(1/power), same shape.

    Differentiable everywhere for power < 1: the derivative at 0 is 0. Negative cells count as 0.
    """

    power: float = 0.85

    def call(self, shower: tf.Tensor) -> tf.Tensor:
        positive = tf.nn.relu(shower)
        return positive if self.power == 1 else tf.pow(positive, 1 / self.power)


class EcalSum(PlainLayer):
    """Sum of the cells (B, 1). Its gradient is 1 in every cell."""

    def call(self, cells: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(cells, axis=(1, 2, 3))


class BinCounts(PlainLayer):
    """Numbers of cells in ranges of energy (B, len(edges) + 2).

    With the published six edges the eight numbers are: cells of at least edge 0, of edge 1 up to edge 0, ..., above
    zero up to the last edge, and cells without energy. They add up to the number of cells (the published code leaves a
    cell exactly on an edge out). Counts are constant almost everywhere: they have no gradient, as published.
    """

    edges: list[float] = [*PUBLISHED_BIN_EDGES]

    def call(self, cells: tf.Tensor) -> tf.Tensor:
        above = [tf.reduce_sum(tf.cast(cells >= edge, cells.dtype), axis=(1, 2, 3)) for edge in self.edges]
        above.append(tf.reduce_sum(tf.cast(cells > 0, cells.dtype), axis=(1, 2, 3)))
        all_cells = tf.ones_like(above[0]) * tf.cast(tf.reduce_prod(tf.shape(cells)[1:]), cells.dtype)
        totals = tf.concat([tf.zeros_like(above[0]), *above, all_cells], axis=1)
        return totals[:, 1:] - totals[:, :-1]

    @classmethod
    def of(cls, data: Data) -> "BinCounts":
        """The layer for the units of a run's showers."""
        scale = data.preprocessing.units_per_gev / PUBLISHED_UNITS_PER_GEV
        return cls([edge * scale for edge in PUBLISHED_BIN_EDGES], name="bins")


class MeasuredAngle(PlainLayer):
    r"""Angle between the axis of the shower and the face in the x-z plane, rad (B, 1).

    With the barycentre (x0, y0, z0) of the shower and (xi, yi) of layer i at depth zi, lengths in mm:

        tan(pi/2 - angle_i) = sign(zi - z0) (xi - x0) / sqrt((yi - y0)^2 + (zi - z0)^2)
        angle = sum_i wi angle_i / sum_i wi,   wi = i + 1/2 (i = 0 in front), layers without energy left out

    A shower without energy has `empty_rad`. The formula, the weights and 100 rad are those of the public code
    of the variable-angle 3DGAN, which counts in cells; lengths in mm make it an angle in space for any
    binning. cell_mm: sizes of a cell along x and y; depth_mm: depth of each layer. cylinder: the cells count azimuth
    and radius instead, and the second of cell_mm is their size along the radius.
    """

    cell_mm: list[float]
    depth_mm: list[float]
    empty_rad: float = EMPTY_ANGLE_RAD
    cylinder: bool = False

    def call(self, cells: tf.Tensor) -> tf.Tensor:
        return self.of_moments(tf.reduce_sum(cells, axis=(1, 2, 4)), *self._moments(cells))

    def of_moments(self, per_layer: tf.Tensor, *moments: tf.Tensor) -> tf.Tensor:
        """The angle (B, 1) from the sum of each layer and its first moments along x and y, mm: (B, Z) each."""
        dtype = per_layer.dtype
        total = tf.reduce_sum(per_layer, axis=1, keepdims=True)
        hit_shower = total > EMPTY_SUM
        hit = tf.logical_and(per_layer > FAINT_LAYER * total, hit_shower)
        # Divisors of what is left out are 1: a division by zero would put NaN into the gradient.
        layer_divisor = tf.where(hit, per_layer, tf.ones_like(per_layer))
        divisor = tf.where(hit_shower, total, tf.ones_like(total))

        z = tf.constant([self.depth_mm], dtype)
        dz = z - tf.reduce_sum(per_layer * z, axis=1, keepdims=True) / divisor
        dx, dy = (moment / layer_divisor - tf.reduce_sum(moment, axis=1, keepdims=True) / divisor for moment in moments)
        distance = tf.sqrt(tf.maximum(dy * dy + dz * dz, SMALLEST_DISTANCE_MM2))
        angles = math.pi / 2 - tf.atan(tf.sign(dz) * dx / distance)

        weights = tf.cast(hit, dtype) * (tf.range(len(self.depth_mm), dtype=dtype) + 0.5)
        weight = tf.reduce_sum(weights, axis=1, keepdims=True)
        mean = tf.reduce_sum(weights * angles, axis=1, keepdims=True) / tf.maximum(weight, 0.5)
        return tf.where(hit_shower, mean, tf.fill(tf.shape(mean), tf.constant(self.empty_rad, dtype)))

    def _moments(self, cells: tf.Tensor) -> list[tf.Tensor]:
        """First moments of each layer along x and y from the middle of the window: (B, X, Y, Z, 1) -> two (B, Z)."""
        if self.cylinder:
            positions = cylinder_mm(cells.shape[1], cells.shape[2], self.cell_mm[1])
            return [tf.einsum("bxyzc,xy->bz", cells, tf.constant(at, cells.dtype)) for at in positions]
        # From the middle of the window, not its edge: smaller numbers, smaller rounding errors.
        moments = []
        for profile, size_mm in zip((tf.reduce_sum(cells, axis=axes) for axes in ((2, 4), (1, 4))), self.cell_mm):
            at = tf.constant(centred(profile.shape[1]), profile.dtype) * size_mm
            moments.append(tf.einsum("bnz,n->bz", profile, at))
        return moments

    @classmethod
    def of(cls, data: Data) -> "MeasuredAngle":
        """The layer for the re-binned showers of a run."""
        geometry, (rebin_x, rebin_y, rebin_z) = data.geometry, data.preprocessing.rebin
        return cls(
            cell_mm=(geometry.cell_mm * rebin_x, geometry.cell_mm * rebin_y),
            depth_mm=sensor_depth_mm(geometry, rebin_z),
            cylinder=geometry.cell_shape == "cylinder",
            name="angle",
        )


def constraints(shower: tf.Tensor, data: Data, *, bin_counts: bool) -> dict[str, tf.Tensor]:
    """The outputs of a discriminator that follow from the shower alone: angle, ecal_sum and, if asked, bins.

    shower: symbolic input (B, X, Y, Z, 1) in network units, re-binned as `data` says.
    """
    cells = CellEnergy(data.preprocessing.power, name="cell_energy")(shower)
    outputs = {"angle": MeasuredAngle.of(data)(cells), "ecal_sum": EcalSum(name="ecal_sum")(cells)}
    if bin_counts:
        outputs["bins"] = BinCounts.of(data)(cells)
    return outputs
