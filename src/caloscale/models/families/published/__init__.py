"""The two published 3DGANs, for 51 x 51 x 25 and 25 x 25 x 25 cells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from caloscale.errors import InvalidValueError
from caloscale.models.families.family import FastForm, Networks, column, condition
from caloscale.models.families.gan import Gan
from caloscale.spec import Data, Model, Run

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.types.experimental import TensorLike


class _Published(Gan):
    """What both have in common."""

    fields = Gan.fields | {"model.filters"}
    shape: ClassVar[tuple[int, int, int]]
    """Cells of the showers that the networks are made for."""

    def check(self, model: Model, data: Data) -> None:
        super().check(model, data)
        if data.shape != self.shape:
            problem = f"the {self.name} network is made for showers of {' x '.join(map(str, self.shape))} cells, "
            problem += f"data.geometry.cells over data.preprocessing.rebin is {list(data.shape)}"
            remedy = f"set data.geometry.cells to {list(self.shape)} and data.preprocessing.rebin to [1, 1, 1], "
            remedy += "or model.preset to compact (--preset compact)"
            raise InvalidValueError(problem, remedy=remedy)

    def build(self, model: Model, data: Data, *, synchronized: bool = False) -> Networks:
        from caloscale.models.families.published.networks import build_published, own_layers

        return build_published(model, data, own_layers(synchronized=synchronized))

    def load_layers(self) -> None:
        import caloscale.models.families.published.networks  # noqa: F401

    def fast_form(self, network: tf.keras.Model, run: Run, runtime: str, precision: str) -> FastForm:
        """Layers merged, convolutions folded or in blocks of depths."""
        from caloscale.models.families.published.merged import merged

        in_network_units = merged(network, precision, rounded_later=runtime == "openvino")
        return FastForm(lambda inputs: in_network_units(inputs)[..., 0], "network")


class VariableAngle(_Published):
    """The variable-angle 3DGAN: energy and angle given."""

    shape = (51, 51, 25)


class FixedAngle(_Published):
    """The fixed-angle 3DGAN: energy given. The generator's input is [condition, noise E / energyScaleGev]."""

    shape = (25, 25, 25)

    def check(self, model: Model, data: Data) -> None:
        """Showers of several angles, which the generator is not given."""
        super().check(model, data)
        low, high = data.angle_deg
        if low != high or (data.mirror and low != 90):
            mirrored = " with data.mirror" if data.mirror else ""
            problem = f"the {self.name} network is not given the angle, data.angleDeg is {[low, high]}{mirrored}"
            remedy = "set data.angleDeg to [90, 90], or to another single angle with data.mirror false; "
            remedy += "or use the preset variable-angle or compact"
            raise InvalidValueError(problem, remedy=remedy)

    def noise_size(self, model: Model, data: Data) -> int:
        """All but the condition."""
        return model.latent_size - data.condition_size

    def latent(self, noise: TensorLike, primaries: Mapping[str, TensorLike], model: Model, data: Data) -> tf.Tensor:
        """The angle is not used."""
        import tensorflow as tf

        noise = self._checked_noise(noise, model, data)
        energy = column(primaries["energy_gev"], noise.dtype) / data.preprocessing.energy_scale_gev
        return tf.concat([*condition(primaries, data, noise.dtype), noise * energy], axis=1)
