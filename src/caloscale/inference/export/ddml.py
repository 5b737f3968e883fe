"""A file for DDML (key4hep), the fast simulation by networks in ddsim: its class RegularGridGANModel.

Source: https://github.com/key4hep/DDML, commit a908dfb, src/RegularGridGANModel.cc, src/ONNXInference.cc.
- Two inputs, in this order: numbers uniform in (-1, 1), (1, 100, 1, 1, 1), and the energy in GeV, (1, 1, 1, 1, 1).
  The shapes are constants of the class: LatentVectorSize changes the numbers that are drawn, not the shape.
- Output layer, x, y, in Geant4's unit of energy, MeV. Cell i of n lies at (i - floor(n / 2) + 1/2) cell sizes, half a
  cell from its own position when n is odd. Along such an axis each cell is written as two halves.
- No angle: it is 90 degrees in the graph. With CorrectForAngles, DDML shifts the layers along the direction.

A generator that takes more than 100 numbers gets its first ones of the first `_DIRECT`. The others are values of a
polynomial over the integers modulo a prime, whose coefficients are made of the last numbers: any 8 of them are
independent (Wegman & Carter, J. Comput. Syst. Sci. 22 (1981) 265, doi:10.1016/0022-0000(81)90033-7).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from caloscale.errors import InputError
from caloscale.inference.export.target import Target, clamp, first_particle, text_of
from caloscale.inference.runtime import runtime_of
from caloscale.models.card import ModelCard
from caloscale.showers.primaries import Floats

if TYPE_CHECKING:
    from caloscale.inference.generator import Generator

NUMBERS = 100
"""Random numbers that DDML passes, whatever LatentVectorSize says."""
_COEFFICIENTS = 8
_DIRECT = NUMBERS - 2 * _COEFFICIENTS
_PRIME = 2**26 - 5
"""A product of two numbers below it is exact in double precision, as ONNX Runtime computes it."""
_STEPS = 2**24
"""Values that a uniform number is rounded to."""
PERPENDICULAR_DEG = 90.0
_NEAREST_TO_ONE = float(np.nextafter(np.float32(1), np.float32(0)))
_CENTRE = [
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
    -0.00417768164, 0.246640727, 1.50140941,
]  # fmt: skip
_TAIL = [
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
    0.00943887047, 1.00167406, 2.83297682,
]  # fmt: skip
_APPLICABLE = {"e-": ("e-", "e+")}
"""Particles for which Geant4 calls the generator, by primary; absent: the primary alone."""


class Ddml(Target):
    """RegularGridGANModel of DDML, computed by its class ONNXInference."""

    name, program = "ddml", "DDML"

    def __init__(self, card: ModelCard, noise_size: int) -> None:
        if card.geometry.cell_shape == "cylinder":
            problem = "is not a grid of cells, and DDML places a regular grid"
            remedy = "use --target par04 or onnx"
            raise InputError(problem, field="data.geometry.cellShape", value=card.geometry.cell_shape, remedy=remedy)
        least, most = card.angle_deg
        if not least <= PERPENDICULAR_DEG <= most:
            problem = "does not contain 90 degrees, and DDML passes no angle"
            remedy = "train with a data.angleDeg that contains 90, or use --target onnx"
            raise InputError(problem, field="data.angleDeg", value=list(card.angle_deg), remedy=remedy)
        super().__init__(card, noise_size)
        x, y, layers = card.shape
        self._halved = (1 + x % 2, 1 + y % 2)
        self.units_per_gev = 1000 / math.prod(self._halved)
        self.cells = (x * self._halved[0], y * self._halved[1], layers)
        """NCellsX, NCellsY, NCellsZ."""
        self.cell_mm = tuple(
            card.geometry.cell_mm * card.preprocessing.rebin[axis] / self._halved[axis] for axis in (0, 1)
        )
        """CellSizeX, CellSizeY."""

    def graph(self, generator: Generator) -> Any:
        """From uniform numbers and GeV to MeV (1, layer, x, y)."""
        import tensorflow as tf

        traced, card, size = generator.graph(runtime_of(self.format)), self.card, self.noise_size
        x, y, layers = card.shape
        halved_x, halved_y = self._halved

        def cells_mev(uniform: Any, energy_gev: Any) -> dict[str, Any]:
            noise = normal_of_uniform(expanded(tf.reshape(uniform, (1, NUMBERS)), size))
            angle_rad = tf.constant([math.radians(PERPENDICULAR_DEG)], tf.float32)
            fixed = {name: tf.constant([value], tf.float32) for name, value in self.fixed.items()}
            given = {"energy_gev": tf.reshape(energy_gev, (1,)), "angle_rad": angle_rad, **fixed}
            primaries, scale = clamp(given, card)
            cells = traced(noise, *(primaries[name] for name in card.columns)) * (scale * self.units_per_gev)
            cells = tf.reshape(tf.transpose(cells, (0, 3, 1, 2)), (1, layers, x, 1, y, 1))
            cells = tf.tile(cells, (1, 1, 1, halved_x, 1, halved_y))
            return {"cells_mev": tf.reshape(cells, (1, layers, x * halved_x, y * halved_y))}

        signature = (
            tf.TensorSpec((1, NUMBERS, 1, 1, 1), tf.float32, name="uniform"),
            tf.TensorSpec((1, 1, 1, 1, 1), tf.float32, name="energy_gev"),
        )
        return tf.function(cells_mev, input_signature=signature, autograph=False)

    def inputs(self, noise: Floats, primary: Mapping[str, float]) -> list[Floats]:
        """As RegularGridGANModel::prepareInput passes them."""
        return [noise.reshape(1, NUMBERS, 1, 1, 1), np.full((1, 1, 1, 1, 1), primary["energy_gev"], np.float32)]

    def deposits(self, output: NDArray[np.floating], energy_gev: float) -> Floats:
        """MeV as they are, as ONNXInference::runInference and convertOutput read them."""
        return output.reshape(-1)[: math.prod(self.cells)].astype(np.float32)

    def expected(self, cells_gev: Floats, primary: Mapping[str, float]) -> Floats:
        """MeV by layer, x, y; halves of cells along axes with an odd number of them."""
        halves = cells_gev.repeat(self._halved[0], axis=0).repeat(self._halved[1], axis=1)
        return (halves.transpose(2, 0, 1) * self.units_per_gev).reshape(-1).astype(np.float32)

    def noise(self, count: int) -> Floats:
        """Uniform numbers (count, 100)."""
        uniform = np.random.default_rng(0).uniform(-1, 1, (count, NUMBERS)).astype(np.float32)
        return uniform.clip(-_NEAREST_TO_ONE, _NEAREST_TO_ONE)

    def noise_of_network(self, noise: Floats) -> Floats:
        """In integers and double precision."""
        from scipy.special import erfinv

        uniform = noise[:, : self.noise_size]
        if self.noise_size > NUMBERS:
            whole = np.minimum((noise[:, _DIRECT:].astype(np.float64) + 1) * (_STEPS // 2), _STEPS - 1).astype(np.int64)
            places, value = np.arange(1, self.noise_size - _DIRECT + 1), np.int64(0)
            for first, second in zip(whole[:, 0::2].T, whole[:, 1::2].T, strict=True):
                value = (value * places + (4 * first + second)[:, None]) % _PRIME
            others = ((2 * value + 1 - _PRIME) / _PRIME).astype(np.float32)
            uniform = np.concatenate([noise[:, :_DIRECT], others], axis=1)
        inside = uniform.astype(np.float64).clip(-_NEAREST_TO_ONE, _NEAREST_TO_ONE)
        return (math.sqrt(2) * erfinv(inside)).astype(np.float32)

    def primaries(self, count: int) -> dict[str, Floats]:
        """All energies, 90 degrees, and what is fixed in the graph."""
        return {**super().primaries(count), "angle_rad": np.full(count, math.radians(PERPENDICULAR_DEG), np.float32)}

    def properties(self) -> dict[str, str]:
        """Inputs and output."""
        x, y, layers = self.cells
        return {
            "caloscale.units.uniform": f"uniform random numbers in (-1, 1), (1, {NUMBERS}, 1, 1, 1); "
            f"{'all' if self.noise_size > NUMBERS else f'the first {self.noise_size}'} are used; the inverse normal "
            "distribution function is part of the graph",
            "caloscale.units.energy_gev": "kinetic energy of the primary, GeV, (1, 1, 1, 1, 1)",
            "caloscale.units.cells_mev": f"energy deposited in each cell, MeV, (1, layer {layers}, x {x}, y {y})",
            "caloscale.cellMm": f"{self.cell_mm[0]:g} {self.cell_mm[1]:g}",
            "caloscale.angle": "90 degrees, in the graph: DDML passes no angle",
        }

    def usage(self, file: str) -> str:
        """Lines for ddsim's steering file."""
        low, high = self.card.energy_gev
        halves = " and ".join(name for name, factor in zip("xy", self._halved) if factor == 2)
        halved = (
            f"- The network has an odd number of cells along {halves}. DDML would put them half a cell off, so each is "
            "written as two halves.\n"
            if halves
            else ""
        )
        particle = first_particle(self.card)
        particles = [f'"{name}"' for name in _APPLICABLE.get(particle, (particle,))]
        return text_of(
            "ddml",
            file=file,
            particles=", ".join(particles),
            triggers=", ".join(f"{name}: {low:g} * GeV" for name in particles),
            numbers=NUMBERS,
            cells=self.cells,
            cell_mm=self.cell_mm,
            low=low,
            high=high,
            halved=halved,
        )


def expanded(uniform: Any, size: int) -> Any:
    """As many numbers (B, size), uniform in (-1, 1), of 100 (B, 100), float32 tensors. See above."""
    import tensorflow as tf

    if size <= NUMBERS:
        return uniform[:, :size]
    doubles = tf.cast(uniform[:, _DIRECT:], tf.float64)
    whole = tf.floor(tf.minimum((doubles + 1) * (_STEPS // 2), _STEPS - 1))
    coefficients = tf.reduce_sum(tf.reshape(whole, (-1, _COEFFICIENTS, 2)) * tf.constant([4, 1], tf.float64), axis=2)
    places = tf.range(1, size - _DIRECT + 1, dtype=tf.float64)[None]
    value = coefficients[:, :1]
    for number in range(_COEFFICIENTS):
        if number:
            value = value * places + coefficients[:, number : number + 1]
        value = value - tf.floor(value / _PRIME) * _PRIME
    others = tf.cast((2 * value + (1 - _PRIME)) / _PRIME, tf.float32)
    return tf.concat([uniform[:, :_DIRECT], others], axis=1)


def normal_of_uniform(uniform: Any) -> Any:
    """Normal numbers of numbers uniform in (-1, 1): sqrt(2) erfinv(u), float32 tensors of any shape.

    A uniform number of type double may become -1 or 1 as float32: it counts as the nearest number within, so that the
    result lies within 5.5 standard deviations. Polynomials for single precision of M. Giles, "Approximating the
    erfinv function", GPU Computing Gems Jade Edition (2012), ch. 10, relative error 4e-7; ONNX has no such operator.
    """
    import tensorflow as tf

    u = tf.clip_by_value(uniform, -_NEAREST_TO_ONE, _NEAREST_TO_ONE)
    w = -tf.math.log((1 - u) * (1 + u))
    near = tf.math.polyval(_CENTRE, w - 2.5)
    far = tf.math.polyval(_TAIL, tf.sqrt(tf.maximum(w, 5.0)) - 3)
    return math.sqrt(2) * u * tf.where(w < 5, near, far)
