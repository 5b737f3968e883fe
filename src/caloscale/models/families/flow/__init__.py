"""Flow: the layers of a shower by flow matching, then its cells given the layers (docs/flow.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import Field

from caloscale.errors import InvalidValueError, ShowerFileError
from caloscale.models.families.family import GENERATOR, Arithmetic, Draw, Family, FastForm, Networks, Weights
from caloscale.models.families.flow.detector import MOMENTS, Detector
from caloscale.spec import Data, Model, Run
from caloscale.spec.block import Block

if TYPE_CHECKING:
    import tensorflow as tf

    from caloscale.models.families.step import Losses, Step

_SHOWERS_OF_STATISTICS = 5000
"""Training showers behind the whitening, at most."""


class FlowSettings(Block):
    """Parameters of the networks of the family flow."""

    width: int = Field(128, ge=8, le=4096)
    """Units of the dense layers of the flow of the layers."""
    layer_dropout: float = Field(0.05, ge=0, lt=1)
    """Dropout rate of that flow: it sees few showers many times."""
    layer_steps: int = Field(8, ge=1, le=1000)
    """Steps of the midpoint rule from noise to layers."""
    style: int = Field(24, ge=1, le=4096)
    """Numbers that show the cells what shower they belong to. With 128 the likelihood of held-out cells got worse after
    500 steps."""
    terms: int = Field(24, ge=1, le=1024)
    """Products of a function of x and a function of y in each layer."""
    cell_dropout: float = Field(0.5, ge=0, lt=1)
    """Dropout rate before `style`, and half of it on the numbers of the shower: with less the network learns a thousand
    training showers by heart."""


class Flow(Family):
    """Role: generator alone, from [E / energyScaleGev, angle, condition, noise], with a random number for each cell."""

    Settings = FlowSettings
    fields = frozenset()
    losses_shown = ("layers", "cell_energies")
    short_operations = True
    trains_on_tpus = False
    batch_of_measurements = 32

    def check(self, model: Model, data: Data) -> None:
        """At least two layers; three azimuths of a cylinder, of which each has two neighbours; of a grid two cells
        along x and along y, as the width of a shower in one cell is no number to learn."""
        least, needed = (2, 2, 2), "two cells along x and along y"
        if data.geometry.cell_shape == "cylinder":
            least, needed = (3, 1, 2), "three azimuths"
        if any(cells < few for cells, few in zip(data.shape, least)):
            problem = f"model.family flow needs at least {needed} and two layers, data.geometry.cells has "
            problem += f"{' x '.join(map(str, data.shape))} re-binned"
            remedy = "lower data.preprocessing.rebin, use a geometry with more cells, or another family"
            raise InvalidValueError(problem, remedy=remedy)

    def latent_size(self, model: Model, data: Data) -> int:
        """Two for energy and angle, the condition, a number for each of stage 1 and for each cell."""
        cells_x, cells_y, depth = data.shape
        return 2 + data.condition_size + depth + MOMENTS + cells_x * cells_y * depth

    def build(self, model: Model, data: Data, *, synchronized: bool = False) -> Networks:
        """The generator; it has no batch normalisation."""
        from caloscale.models.families.flow.network import build_generator

        settings = self.settings(model).model_dump(mode="json")
        return {GENERATOR: build_generator(Detector.of(data), settings, self.latent_size(model, data))}

    def arithmetic(self, model: Model, data: Data) -> Arithmetic | None:
        """Of the default settings; for others the planner refuses. Sums over the matrices of the networks (a test
        compares)."""
        if self.settings(model) != FlowSettings():
            return None
        cells_x, cells_y, depth = data.shape
        of_distance = 2 * math.ceil(math.log2(2 * max(cells_x, cells_y, 2))) + 2
        of_first = 5 if data.geometry.cell_shape == "cylinder" else of_distance
        along = cells_x * (32 * of_first + 1792) + cells_y * (32 * of_distance + 1792)
        flop = 5.391e6 + depth * (123132 + 2736 * cells_x * (cells_y + 1) + 6 * along)
        parameters = 46100 + 15212 * depth + 32 * (of_first + of_distance)
        activation_mib = 3 * 4 * math.prod(data.shape) / 2**20
        return Arithmetic(flop / 1e9, reduced_megabytes=(4e-6 * parameters,), activation_mib=activation_mib)

    def load_layers(self) -> None:
        import caloscale.models.families.flow.network  # noqa: F401

    def fast_form(self, network: tf.keras.Model, run: Run, runtime: str, precision: str) -> FastForm:
        """In TensorFlow only cells that are hit get an energy; the others compute in shapes that they know."""
        if precision != "float32":
            raise ValueError("the family flow is computed in float32")
        flow = network.get_layer("flow")
        return FastForm(lambda latent: flow.cells_gev(latent, sparse=runtime == "tensorflow"), "GeV")

    def train_step(self, step: Step) -> Losses:
        """One update by the sum of two losses of different weights (`training`)."""
        from caloscale.models.families.flow.training import train_step

        return train_step(step)

    def adapted_weights(self, network: tf.keras.Model) -> list[tf.Variable]:
        flow = network.get_layer("flow")
        return [*flow.whitening.weights, *flow.finish, *flow.faint.weights]

    def adapt(self, run: Run, networks: Networks, draw: Draw) -> Mapping[str, Weights]:
        from caloscale.models.families.flow.training import measure_whitening

        network, showers = networks[GENERATOR], draw(_SHOWERS_OF_STATISTICS)
        terms, count = network.get_layer("flow").whitening.terms, len(showers["energy_gev"])
        if count <= terms:
            problem = f"holds too few training showers: the means of their layers have {terms} coefficients"
            remedy = "use hundreds of training showers or more (data.showers, data.validationFraction)"
            raise ShowerFileError(problem, field="splits.train", value=count, remedy=remedy)
        return {GENERATOR: measure_whitening(run, network, showers)}

    def calibrate(self, run: Run, network: tf.keras.Model, draw: Draw) -> Weights:
        from caloscale.models.families.flow.training import calibrate

        return calibrate(run, network, draw(_SHOWERS_OF_STATISTICS))

    def step_flops(self, run: Run, networks: Networks, *, folded: bool = True) -> int:
        """A forward pass and two gradients, with one point of each path instead of all. All parameters of all cells
        count, though those of cells that are not hit are computed for a generated shower only."""
        return int(networks[GENERATOR].get_layer("flow").step_arithmetic())
