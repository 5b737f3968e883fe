"""What a family of generators is: its networks, the step that trains them, and the input of its generator.

A family is a class that a package names as an entry point of the group ``caloscale.families``; `model.family` of the
run configuration chooses it (`caloscale.spec.family`). The class is loaded where there is no TensorFlow, too: its
module imports TensorFlow in methods only.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from caloscale.errors import ConfigurationError, InputError, InvalidValueError
from caloscale.spec import Data, Model, Run
from caloscale.spec.block import Block
from caloscale.spec.data import PDG_CODES
from caloscale.spec.family import find_family

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.types.experimental import TensorLike

    from caloscale.models.families.step import Losses, Step

Networks = dict[str, "tf.keras.Model"]
"""Keras models by role. The role "generator" is there always: from its input (B, `Family.latent_size`) to showers
(B, X, Y, Z, 1) in network units. It is released, exported, and averaged where train.averageDecay asks for it."""
GENERATOR = "generator"
Table = Mapping[str, NDArray[np.float32]]
"""Showers: cells (N, X, Y, Z) in network units, and the columns of the table of primaries (N,)."""
Draw = Callable[[int], Table]
"""From a number to at most that number of training showers, the same ones at every call."""
Weights = Sequence[NDArray[np.float32]]


class FastForm(NamedTuple):
    """The function of a generator, computed by fewer operations."""

    cells: Callable[[tf.Tensor], tf.Tensor]
    """From the generator's input (B, `Family.latent_size`) to cells (B, X, Y, Z), with its present weights."""
    unit: Literal["network", "GeV"]
    """Network units, or GeV before the threshold is applied."""


class Arithmetic(NamedTuple):
    """Sizes of a training step that the planner needs."""

    gflop_per_shower: float
    """Of a step for each of its showers, GFLOP; a multiply-add counts 2."""
    reduced_megabytes: tuple[float, ...]
    """Sizes of the all-reduces of a step, MB: 4e-6 times the numbers of weights."""
    activation_mib: float
    """Outputs of the layers of a step for each shower, stored once in float32, MiB."""


class Family(ABC):
    """A family of generators. An object of it is made without arguments, once in a process, and keeps no state.

    model, data: these blocks of the run configuration; cells and columns of primaries follow from data.
    """

    name: str
    """Name of its entry point; set when it is found."""
    Settings: ClassVar[type[Block]] = Block
    """Its parameters: the block `model.settings` of the run configuration."""
    fields: ClassVar[frozenset[str]] = frozenset({"model.latentSize", "train.precision"})
    """Which of `caloscale.spec.family.OPTIONAL_FIELDS` it uses. A run that sets another one to a value that neither its
    preset nor a default gives is refused."""
    phases: ClassVar[tuple[str, ...]] = (GENERATOR,)
    """Names of the phases of its step (`step.phase_scope`), in their order, for the profile."""
    losses_shown: ClassVar[tuple[str, ...]] = (GENERATOR,)
    """Names of the losses that the progress bar shows, where a step returns them."""
    short_operations: ClassVar[bool] = False
    """Operations of its networks are so short that two cores compute two at the same time rather than share one."""
    updates_overlap: ClassVar[bool] = False
    """What an update does not need of the one before it may be computed at once with it: faster, with more memory."""
    trains_on_tpus: ClassVar[bool] = True
    """XLA can compile its step, which a TPU needs: the planner offers TPUs."""
    batch_of_measurements: ClassVar[int] = 8
    """Showers of a batch of a bench or a profile for which the user gives no number."""

    def settings(self, model: Model) -> Any:
        """The settings of a run, an object of `Settings`."""
        return self.Settings.model_validate(model.settings)

    def check(self, model: Model, data: Data) -> None:
        """Raise InvalidValueError, with a remedy, for showers or fields that the networks cannot be made for."""
        if self.noise_size(model, data) < 1:
            describing = model.latent_size - self.noise_size(model, data)
            problem = f"model.latentSize {model.latent_size} leaves no random numbers in addition to the "
            problem += f"{describing} that describe the primary"
            raise InvalidValueError(problem, remedy=f"write at least {describing + 8} in model.latentSize")

    @abstractmethod
    def build(self, model: Model, data: Data, *, synchronized: bool = False) -> Networks:
        """The networks by role, with fresh weights in the precision of Keras' global policy.

        synchronized: batch normalisation uses the showers of all replicas
        (`models.layers.normalization.batch_normalization`). Weights have the same order in every precision.
        """

    @abstractmethod
    def train_step(self, step: Step) -> Losses:
        """One step of a replica on its batch: updates weights by the methods of ``step``; returns the losses that
        `Step.finish` returns, of any names.

        All random numbers are drawn by `Step.draws`.
        """

    def latent_size(self, model: Model, data: Data) -> int:
        """Length of the generator's input."""
        return model.latent_size

    def noise_size(self, model: Model, data: Data) -> int:
        """Normal random numbers that a shower takes."""
        return self.latent_size(model, data) - data.condition_size - 2

    def latent(self, noise: TensorLike, primaries: Mapping[str, TensorLike], model: Model, data: Data) -> tf.Tensor:
        """Input of the generator (B, latent_size): [E / energyScaleGev, angle in rad, condition, noise].

        noise: normal with mean 0 and width 1, (B, noise_size); primaries: the columns of the run's table of primaries,
        (B,) or (B, 1) each. ValueError for noise of another size.
        """
        import tensorflow as tf

        noise = self._checked_noise(noise, model, data)
        return tf.concat([*first_columns(primaries, data, noise.dtype), noise], axis=1)

    def _checked_noise(self, noise: TensorLike, model: Model, data: Data) -> tf.Tensor:
        import tensorflow as tf

        noise, size = tf.convert_to_tensor(noise), self.noise_size(model, data)
        if noise.shape[-1] != size:
            raise ValueError(f"noise must have {size} columns for {model.network}, got {noise.shape}")
        return noise

    def adapted_weights(self, network: tf.keras.Model) -> list[tf.Variable]:
        """Weights of a network that `adapt` sets and no step changes, such as means of the showers; not trainable."""
        return []

    def adapt(self, run: Run, networks: Networks, draw: Draw) -> Mapping[str, Weights]:
        """By role the values of `adapted_weights`, in their order, from training showers.

        Called before the first step of a training, by one worker, whose values all others get; never on resuming: they
        are in the checkpoint. It must not draw random numbers.
        """
        return {}

    def calibrate(self, run: Run, network: tf.keras.Model, draw: Draw) -> Weights:
        """Values of `adapted_weights` of the trained generator that is released, in their order.

        Called each time a training is at its end, by worker 0, with the weights of the selected epoch. Random numbers
        follow from the seed of the training.
        """
        return [weight.numpy() for weight in self.adapted_weights(network)]

    def load_layers(self) -> None:  # noqa: B027
        """Import what registers the layers of the networks with Keras, before a file of a network is read."""

    def fast_form(self, network: tf.keras.Model, run: Run, runtime: str, precision: str) -> FastForm:
        """The generator in the form that is fastest in a runtime: tensorflow, onnx or openvino.

        precision: float32 or bfloat16. Raises ValueError with the reason where there is none: the Keras model itself
        is then computed, in float32.
        """
        raise ValueError(f"the family {self.name} has no other form of its generator")

    def step_flops(self, run: Run, networks: Networks, *, folded: bool = True) -> int:
        """Floating-point operations of a training step for each of its showers.

        Without an own definition: a forward pass of each network and its two gradients. folded: as
        `models.arithmetic.flops`.
        """
        from caloscale.models.arithmetic import flops

        return 3 * sum(flops(network, folded=folded) for network in networks.values())

    def reduced_roles(self, run: Run) -> tuple[str, ...]:
        """Roles whose gradients a step sums over the replicas, one entry for each update."""
        return (GENERATOR,)

    def arithmetic(self, model: Model, data: Data) -> Arithmetic | None:
        """Sizes of a training step, without TensorFlow; None: the planner refuses a run that has no row in its
        catalogue."""
        return None


def family_of(model: Model) -> Family:
    """The family of a run. Raises ConfigurationError where it is not installed."""
    return find_family(model.family)


def build(model: Model, data: Data, *, synchronized: bool = False) -> Networks:
    """The networks of a run by role, with fresh weights. Raises ConfigurationError as `family_of`, and for showers that
    the networks are not made for; InputError where the process has set Keras to other numbers or another order of axes.
    """
    import tensorflow as tf

    family = family_of(model)
    backend = tf.keras.backend
    for setting, value, needed in (
        ("floatx", backend.floatx(), "float32"),
        ("image_data_format", backend.image_data_format(), "channels_last"),
    ):
        if value != needed:
            problem = "is set for Keras in this process, and the networks would be others"
            remedy = f"call keras.config.set_{setting}({needed!r}) before"
            raise InputError(problem, field=f"keras.config.{setting}", value=value, remedy=remedy)
    try:
        family.check(model, data)
    except InvalidValueError as error:
        raise ConfigurationError(error.problem, field="model", remedy=error.remedy) from error
    return family.build(model, data, synchronized=synchronized)


def noise_size(model: Model, data: Data) -> int:
    """Random numbers that the generator of a run takes for each shower."""
    return family_of(model).noise_size(model, data)


def latent(noise: TensorLike, primaries: Mapping[str, TensorLike], model: Model, data: Data) -> tf.Tensor:
    """Input of the generator of a run, see `Family.latent`."""
    return family_of(model).latent(noise, primaries, model, data)


def first_columns(
    primaries: Mapping[str, TensorLike], data: Data, dtype: str | tf.DType = "float32"
) -> list[tf.Tensor]:
    """Columns of the generator's input that follow from the primaries: E / energyScaleGev, angle in rad, and the
    `condition`."""
    energy = column(primaries["energy_gev"], dtype) / data.preprocessing.energy_scale_gev
    return [energy, column(primaries["angle_rad"], dtype), *condition(primaries, data, dtype)]


def condition(primaries: Mapping[str, TensorLike], data: Data, dtype: str | tf.DType = "float32") -> list[tf.Tensor]:
    """What networks take of the further columns of a table of primaries, (B, n) each, n adding up to
    `Data.condition_size`; nothing where the run has energies and angles only.

    Cosine and sine of the azimuth, which continue over a full turn; entries in re-binned cells; 1 for the primary and 0
    for the others.
    """
    import tensorflow as tf

    parts = []
    for name in data.spans:
        values = column(primaries[name], dtype)
        if name == "azimuth_rad":
            parts += [tf.cos(values), tf.sin(values)]
        elif name == "pdg":
            codes = tf.constant([[PDG_CODES[particle] for particle in data.particles]], dtype)
            parts.append(tf.cast(tf.equal(values, codes), dtype))
        else:
            axis = 0 if name == "entry_x_mm" else 1
            parts.append(values / (data.geometry.cell_mm * data.preprocessing.rebin[axis]))
    return parts


def column(values: TensorLike, dtype: str | tf.DType) -> tf.Tensor:
    """A column of a table of primaries as (B, 1)."""
    import tensorflow as tf

    return tf.reshape(tf.cast(values, dtype), (-1, 1))


def count_parameters(network: tf.keras.Model) -> int:
    """Trainable parameters of a Keras model."""
    return sum(math.prod(weight.shape) for weight in network.trainable_weights)
