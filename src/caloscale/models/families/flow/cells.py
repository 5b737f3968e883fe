"""Numbers of the cells of showers: of all cells (B, L, X, Y), or of some of them (N,)."""

from __future__ import annotations

import tensorflow as tf

from caloscale.models.families.flow.marginals import Factors
from caloscale.models.families.flow.scores import hit_energies


class AllCells:
    """All cells of showers; shapes follow from the batch. like (B, L, X, Y). cylinder: no two cells of a layer have the
    same place along x or y, so that values of places are (B, L, X Y)."""

    def __init__(self, like: tf.Tensor, *, cylinder: bool = False) -> None:
        self._shape, self._cylinder = tf.shape(like), cylinder
        self._flat = (-1, like.shape[1], like.shape[2] * like.shape[3])

    def of(self, values: tf.Tensor) -> tf.Tensor:
        """Values of all cells (B, L, X, Y) -> values of these cells."""
        return values

    def energies(self, depths: tf.Tensor, factors: Factors, widths: tf.Tensor) -> tf.Tensor:
        """`scores.hit_energies` of their depths. widths: of the bins in each layer (B, L, K)."""
        hazards = factors.of_all_cells()
        flat = tf.reshape(depths, (-1, *hazards.shape[1:2], hazards.shape[3]))
        return tf.reshape(hit_energies(flat, hazards, widths[..., None]), self._shape)

    def of_layers(self, values: tf.Tensor) -> tf.Tensor:
        """For each cell the value of its layer. values (B, L)."""
        return values[..., None, None]

    def of_showers(self, values: tf.Tensor) -> tf.Tensor:
        """For each cell the value of its shower. values (B, 1)."""
        return self.of_layers(values)

    def of_lines(self, values: tf.Tensor, at: int) -> tf.Tensor:
        """For each cell the value of its place along x (at 0) or y (1). values (B, L, X) or (B, L, Y)."""
        return tf.reshape(values, self._shape) if self._cylinder else tf.expand_dims(values, 3 - at)

    def sum_layers(self, values: tf.Tensor) -> tf.Tensor:
        """Sums over the cells of each layer (B, L)."""
        return tf.reduce_sum(values, axis=(2, 3))

    def sum_along(self, values: tf.Tensor, at: int) -> tf.Tensor:
        """Sums over the other axis than x (at 0) or y (1): (B, L, X) or (B, L, Y)."""
        return tf.reshape(values, self._flat) if self._cylinder else tf.reduce_sum(values, axis=3 - at)

    def whole(self, values: tf.Tensor) -> tf.Tensor:
        """Showers (B, X, Y, L)."""
        return tf.transpose(values, (0, 2, 3, 1))


class SomeCells(AllCells):
    """The cells where chosen (B, L, X, Y) is true: so few that it pays to name them."""

    def __init__(self, chosen: tf.Tensor, *, cylinder: bool = False) -> None:
        self._cells = tf.where(chosen)
        self._batch, (_, self._depth, *self._across) = tf.shape(chosen)[0], chosen.shape
        shower, layer, *place = tf.unstack(tf.cast(self._cells, tf.int32), axis=1)
        self._shower, self._layer = shower, shower * self._depth + layer
        self._counts, places = self._across, place
        if cylinder:
            self._counts = [self._across[0] * self._across[1]] * 2
            places = [place[0] * self._across[1] + place[1]] * 2
        self._lines = [self._layer * count + number for count, number in zip(self._counts, places)]
        self._number = ((shower * self._across[0] + place[0]) * self._across[1] + place[1]) * self._depth + layer

    def of(self, values: tf.Tensor) -> tf.Tensor:
        return tf.gather_nd(values, self._cells)

    def energies(self, depths: tf.Tensor, factors: Factors, widths: tf.Tensor) -> tf.Tensor:
        widths = tf.gather(tf.reshape(widths, (-1, widths.shape[2])), self._layer)
        return hit_energies(depths, tf.transpose(factors.of_some(self._cells)), tf.transpose(widths))

    def of_layers(self, values: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.reshape(values, (-1,)), self._layer)

    def of_showers(self, values: tf.Tensor) -> tf.Tensor:
        return tf.gather(values[:, 0], self._shower)

    def of_lines(self, values: tf.Tensor, at: int) -> tf.Tensor:
        return tf.gather(tf.reshape(values, (-1,)), self._lines[at])

    def sum_layers(self, values: tf.Tensor) -> tf.Tensor:
        sums = tf.math.unsorted_segment_sum(values, self._layer, self._batch * self._depth)
        return tf.reshape(sums, (-1, self._depth))

    def sum_along(self, values: tf.Tensor, at: int) -> tf.Tensor:
        shape = (-1, self._depth, self._counts[at])
        sums = tf.math.unsorted_segment_sum(values, self._lines[at], self._batch * shape[1] * shape[2])
        return tf.reshape(sums, shape)

    def whole(self, values: tf.Tensor) -> tf.Tensor:
        shape = (*self._across, self._depth)
        size = shape[0] * shape[1] * shape[2]
        flat = tf.scatter_nd(self._number[:, None], values, (self._batch * size,))
        return tf.reshape(flat, (-1, *shape))
