"""What a program that loads a generator asks of its file: the base of all targets, and targets for the user's program
(noise, energy and angle in, GeV per cell out, any batch)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from caloscale.errors import InputError
from caloscale.inference.runtime import BATCH, Format, runtime_of
from caloscale.models.card import ModelCard
from caloscale.random import latent_noise
from caloscale.showers.primaries import FURTHER, Floats
from caloscale.spec.data import HADRONS, PDG_CODES, Particle

if TYPE_CHECKING:
    from caloscale.inference.generator import Generator


class Target(ABC):
    """A program that loads a generator, and the generator's place of use in it: one primary at a time."""

    name: ClassVar[str]
    format: ClassVar[Format] = "onnx"
    program: ClassVar[str] = ""
    """Name of a program that passes energy and angle at most: the other columns are constants of the graph."""
    units_per_gev: float = 1.0
    """Of the deposits."""

    def __init__(self, card: ModelCard, noise_size: int) -> None:
        """Raises InputError when the target cannot hold this generator."""
        self.card, self.noise_size = card, noise_size
        self.fixed = fixed_columns(card, self.program) if self.program else {}

    @property
    def constants(self) -> str:
        """What a file says of columns that are constants of its graph; empty: there are none."""
        values = ", ".join(f"{name} {value:g}" for name, value in self.fixed.items())
        return f"constants of the graph, which {self.program} does not pass: {values}" if values else ""

    @abstractmethod
    def graph(self, generator: Generator) -> Any:
        """The graph of the file: a tf.function with an input signature that returns its output by name."""

    @abstractmethod
    def inputs(self, noise: Floats, primary: Mapping[str, float]) -> list[Floats]:
        """What the target's own code passes for one primary, in the order of the file's inputs. noise: a row of
        `noise`."""

    @abstractmethod
    def deposits(self, output: NDArray[np.floating], energy_gev: float) -> Floats:
        """What the target's own code makes of the file's output for one primary, flat, in its units."""

    @abstractmethod
    def expected(self, cells_gev: Floats, primary: Mapping[str, float]) -> Floats:
        """The same from the cells of the network (X, Y, Z), GeV."""

    @abstractmethod
    def properties(self) -> dict[str, str]:
        """What the metadata say about inputs and output: names, shapes, units."""

    @abstractmethod
    def usage(self, file: str) -> str:
        """How the file is used (Markdown): the lines to paste and the limits."""

    def noise(self, count: int) -> Floats:
        """Random numbers for the check, (count, n), such as the target passes: normal, n the generator's."""
        return latent_noise(0, 0, count, self.noise_size)

    def noise_of_network(self, noise: Floats) -> Floats:
        """Normal numbers (count, noise_size) that the graph makes of these random numbers (count, n)."""
        return noise

    def primaries(self, count: int) -> dict[str, Floats]:
        """A table of primaries over all that was trained on, for the check, with what is constant in the graph."""
        table = spread(self.card, count)
        return {name: np.full_like(column, self.fixed.get(name, column)) for name, column in table.items()}


def text_of(name: str, **values: object) -> str:
    """A text of the folder `usage`, with these values in the place of their names in braces."""
    file = resources.files("caloscale.inference.export").joinpath("usage", f"{name}.txt")
    return file.read_text(encoding="utf-8").format(**values)


def spread(card: ModelCard, count: int) -> dict[str, Floats]:
    """A table of ``count`` primaries that covers the trained ranges evenly. count: not a multiple of 37."""
    order = np.arange(count) * 37 % count
    table = {
        "energy_gev": np.geomspace(*card.energy_gev, count),
        "angle_rad": np.radians(np.linspace(*card.angle_deg, count))[order],
    }
    for number, (name, span) in enumerate(card.spans.items(), start=1):
        table[name] = np.roll(np.linspace(*span, count)[order], number)
    if "pdg" in table:
        table["pdg"] = np.resize([PDG_CODES[particle] for particle in card.particles], count)
    return {name: column.astype(np.float32) for name, column in table.items()}


def clamp(primaries: Mapping[str, Any], card: ModelCard) -> tuple[dict[str, Any], Any]:
    """Tensors of a table of primaries within the trained ranges, and the factor that scales the shower to its energy.

    Azimuths count modulo a turn, positrons as electrons; another primary that was not trained as the first that was.
    """
    import tensorflow as tf

    if "azimuth_rad" in primaries:
        from_middle = primaries["azimuth_rad"] - sum(card.spans["azimuth_rad"]) / 2
        turned = primaries["azimuth_rad"] - 2 * math.pi * tf.round(from_middle / (2 * math.pi))
        primaries = {**primaries, "azimuth_rad": turned}
    low, high = (math.radians(angle) for angle in card.angle_deg)
    spans = {"energy_gev": card.energy_gev, "angle_rad": (low, high), **card.spans}
    clamped = {name: tf.clip_by_value(column, *spans[name]) for name, column in primaries.items() if name != "pdg"}
    if "pdg" in primaries:
        codes = tf.constant([PDG_CODES[particle] for particle in card.particles], tf.float32)
        electron = tf.constant(PDG_CODES["e-"], tf.float32)
        pdg = tf.where(tf.equal(primaries["pdg"], -electron), electron, primaries["pdg"])
        clamped["pdg"] = tf.where(tf.reduce_any(tf.equal(pdg[:, None], codes), axis=1), pdg, codes[0])
    return clamped, primaries["energy_gev"] / clamped["energy_gev"]


def fixed_columns(card: ModelCard, target: str) -> dict[str, float]:
    """The further columns of a target that passes none of them: an entry and an azimuth of 0, and the first primary for
    which a detector simulation calls a generator. Raises InputError for ranges without 0."""
    fixed: dict[str, float] = {}
    for name, (low, high) in card.spans.items():
        if name == "pdg":
            fixed[name] = PDG_CODES[first_particle(card)]
            continue
        if not low <= 0 <= high:
            field, span = FURTHER[name].field, card.azimuth_deg if name == "azimuth_rad" else card.entry_mm
            problem = f"does not contain 0, and {target} passes no {name}"
            remedy = f"train with a {field} that contains 0, or use --target onnx"
            raise InputError(problem, field=field, value=list(span or ()), remedy=remedy)
        fixed[name] = 0.0
    return fixed


def first_particle(card: ModelCard) -> Particle:
    """The primary of a file for a program that does not pass it: the first that is no hadron, else the first."""
    return next((particle for particle in card.particles if particle not in HADRONS), card.particles[0])


def ranges(card: ModelCard) -> str:
    """The trained ranges in a sentence (Markdown)."""
    (coldest, hottest), (least, most) = card.energy_gev, card.angle_deg
    angles = f"{least:g} degrees" if least == most else f"{least:g} to {most:g} degrees"
    text = f"{coldest:g} to {hottest:g} GeV, {angles} between direction and face (90: perpendicular)"
    if card.azimuth_deg is not None:
        text += ", azimuths of {:g} to {:g} degrees".format(*card.azimuth_deg)
    if card.entry_mm is not None:
        text += ", displacements of {:g} to {:g} mm along x and y".format(*card.entry_mm)
    return text


class Onnx(Target):
    """ONNX Runtime in the user's program."""

    name = "onnx"

    def graph(self, generator: Generator) -> Any:
        """From noise (batch, n) and the columns of the table of primaries (batch,) to GeV (batch, X, Y, Z)."""
        import tensorflow as tf

        traced, card = generator.graph(runtime_of(self.format)), self.card

        def cells_gev(noise: Any, *columns: Any) -> dict[str, Any]:
            primaries, scale = clamp(dict(zip(card.columns, columns)), card)
            cells = traced(noise, *(primaries[name] for name in card.columns))
            return {"cells_gev": cells * tf.reshape(scale, (-1, 1, 1, 1))}

        return tf.function(cells_gev, input_signature=traced.input_signature, autograph=False)

    def inputs(self, noise: Floats, primary: Mapping[str, float]) -> list[Floats]:
        """noise (1, n), energy_gev (1,), angle_rad (1,), and the further columns."""
        return [noise[None], *(np.array([primary[name]], np.float32) for name in self.card.columns)]

    def deposits(self, output: NDArray[np.floating], energy_gev: float) -> Floats:
        """GeV per cell as they are."""
        return output.reshape(-1).astype(np.float32)

    def expected(self, cells_gev: Floats, primary: Mapping[str, float]) -> Floats:
        """GeV per cell as they are."""
        return cells_gev.reshape(-1)

    def properties(self) -> dict[str, str]:
        """Inputs and output."""
        x, y, layers = self.card.shape
        units = {
            "noise": f"normal random numbers, mean 0, standard deviation 1, ({BATCH}, {self.noise_size})",
            "energy_gev": f"energy of the primary, GeV, ({BATCH},)",
            "angle_rad": f"angle between direction and face, rad, ({BATCH},)",
            **{name: f"{FURTHER[name].meaning}, ({BATCH},)" for name in self.card.spans},
            "cells_gev": f"energy deposited in each cell, GeV, ({BATCH}, x {x}, y {y}, layer {layers})",
        }
        return {f"caloscale.units.{name}": text for name, text in units.items()}

    def usage(self, file: str) -> str:
        """Lines of Python."""
        passed = ", ".join(f'"{name}": {name}' for name in ("noise", *self.card.columns))
        return text_of(runtime_of(self.format), file=file, inputs=self._inputs_of_ten(), passed=passed)

    def _inputs_of_ten(self) -> str:
        """Lines of Python: random numbers, and a column of ten equal values for each quantity of the primary."""
        values = {"energy_gev": self.card.energy_gev, "angle_rad": self.card.angle_deg, **self.card.spans}
        columns = {
            name: f"np.full(10, {round((low + high) / 2, 3):g}, np.float32)" for name, (low, high) in values.items()
        }
        columns["angle_rad"] = f"np.radians({columns['angle_rad']})"
        if "pdg" in columns:
            columns["pdg"] = f"np.full(10, {PDG_CODES[self.card.particles[0]]}, np.float32)"
        columns = {"noise": f"np.random.default_rng(1).standard_normal((10, {self.noise_size}), np.float32)", **columns}
        return "".join(f"{name} = {value}\n" for name, value in columns.items())


class OpenVino(Onnx):
    """OpenVINO in the user's program. Its format has two files: `generator.xml` and `generator.bin`."""

    name = "openvino"
    format: ClassVar[Format] = "openvino"


class OpenVinoInt8(OpenVino):
    """As `OpenVino`, with convolutions in int8: another generator, which the gates have judged."""

    name = "openvino-int8"
    format = "openvino-int8"
