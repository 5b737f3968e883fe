"""What a program that loads a generator asks of its file: the base of all targets."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from caloscale.inference.export.runtimes import Format
from caloscale.inference.runtime import Floats
from caloscale.models.card import ModelCard
from caloscale.random import latent_noise

if TYPE_CHECKING:
    from caloscale.inference.generator import Generator


class Target(ABC):
    """A program that loads a generator, and the generator's place of use in it: one primary at a time."""

    name: ClassVar[str]
    format: ClassVar[Format] = "onnx"

    def __init__(self, card: ModelCard, noise_size: int) -> None:
        """Raises InputError when the target cannot hold this generator."""
        self.card, self.noise_size = card, noise_size

    @abstractmethod
    def graph(self, generator: Generator) -> Any:
        """The graph of the file: a tf.function with an input signature that returns its output by name."""

    @abstractmethod
    def inputs(self, noise: Floats, energy_gev: float, angle_rad: float) -> list[Floats]:
        """What the target's own code passes for one primary, in the order of the file's inputs.

        noise: (noise_size,), normal with mean 0 and width 1.
        """

    @abstractmethod
    def deposits(self, output: NDArray[np.floating], energy_gev: float) -> Floats:
        """What the target's own code makes of the file's output for one primary, flat, in its units."""

    @abstractmethod
    def expected(self, cells_gev: Floats, energy_gev: float, angle_rad: float) -> Floats:
        """The same from the cells of the network (X, Y, Z), GeV."""

    @abstractmethod
    def threshold(self) -> float:
        """The threshold of a cell in the unit of the deposits."""

    @abstractmethod
    def properties(self) -> dict[str, str]:
        """What the metadata say about inputs and output: names, shapes, units."""

    @abstractmethod
    def usage(self, file: str) -> str:
        """How the file is used (Markdown): the lines to paste and the limits."""

    def noise(self, count: int) -> Floats:
        """Normal random numbers for the check, (count, noise_size), such as the target can pass."""
        return latent_noise(0, 0, count, self.noise_size)

    def primaries(self, count: int) -> tuple[Floats, Floats]:
        """Energies, GeV, and angles, rad, (count,), over all that was trained on, for the check."""
        low, high = self.card.energy_gev
        energy = np.geomspace(low, high, count).astype(np.float32)
        order = np.arange(count) * 37 % count if math.gcd(37, count) == 1 else np.arange(count)
        angle = np.radians(np.linspace(*self.card.angle_deg, count))[order]
        return energy, angle.astype(np.float32)


def clamp(energy_gev: Any, angle_rad: Any, card: ModelCard) -> tuple[Any, Any, Any]:
    """Tensors of energy and angle within the trained ranges, and the factor that scales the shower to its energy."""
    import tensorflow as tf

    clamped = tf.clip_by_value(energy_gev, *card.energy_gev)
    angle = tf.clip_by_value(angle_rad, *(math.radians(angle) for angle in card.angle_deg))
    return clamped, angle, energy_gev / clamped


def ranges(card: ModelCard) -> str:
    """The trained ranges in a sentence (Markdown)."""
    (coldest, hottest), (least, most) = card.energy_gev, card.angle_deg
    angles = f"{least:g} degrees" if least == most else f"{least:g} to {most:g} degrees"
    return f"{coldest:g} to {hottest:g} GeV, {angles} between direction and face (90: perpendicular)"
