"""What families with a generator and a discriminator share: their step, its losses and its arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from caloscale.errors import InvalidValueError
from caloscale.models.families.family import Family, Networks
from caloscale.spec import Data, Model, Run
from caloscale.spec.family import OPTIONAL_FIELDS

if TYPE_CHECKING:
    from caloscale.models.families.gan.step import Computed
    from caloscale.models.families.step import Losses, Step


class Gan(Family):
    """Roles: generator, and discriminator: showers (B, X, Y, Z, 1), and the condition where there is one
    (`conditions.judged`) -> real_fake (probability), energy (E / energyScaleGev), angle (rad), ecal_sum (units of
    1/unitsPerGev GeV), each (B, 1), and with model.binCounts bins (B, 8).
    """

    fields = frozenset(OPTIONAL_FIELDS) - {"model.filters"}
    phases = ("fakes", "discriminator_real", "discriminator_fake", "generator")
    losses_shown = ("generator", "discriminator_real", "discriminator_fake")
    presets: ClassVar[tuple[str, ...]] = ()
    """Presets of the networks; without any: the one of the family's name."""

    def check(self, model: Model, data: Data) -> None:
        """A preset of other networks: its fields would train these with the losses of those."""
        if model.preset not in (self.presets or (self.name,)):
            problem = f"model.family is {self.name}, and model.preset {model.preset} has other networks"
            remedy = f"leave model.family out, or set model.preset to {' or '.join(self.presets or (self.name,))}"
            raise InvalidValueError(problem, remedy=remedy)
        super().check(model, data)

    def train_step(self, step: Step) -> Losses:
        from caloscale.models.families.gan.step import train_step

        return train_step(step, self.for_training(step.networks))

    def for_training(self, networks: Networks) -> Computed:
        """The functions of the networks as a step computes them, with the networks' own weights."""
        import tensorflow as tf

        from caloscale.models.families.gan.step import Computed

        return Computed(networks["generator"], networks["discriminator"], tf.identity)

    def step_flops(self, run: Run, networks: Networks, *, folded: bool = True) -> int:
        """Generated showers: G. Discriminator on real and on generated ones: 3 D each. Each update of the generator:
        3 G, and 2 D, whose weights need no gradient there."""
        from caloscale.models.arithmetic import flops

        generator, discriminator = (flops(networks[role], folded=folded) for role in ("generator", "discriminator"))
        updates = run.train.generator_updates
        return generator + 6 * discriminator + updates * (3 * generator + 2 * discriminator)

    def reduced_roles(self, run: Run) -> tuple[str, ...]:
        """The discriminator twice, the generator for each of its updates."""
        return ("discriminator", "discriminator", *["generator"] * run.train.generator_updates)
