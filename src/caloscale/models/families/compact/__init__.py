"""The compact networks: a GAN for showers of any shape that trains in minutes on two cores (`network`)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from caloscale.models.families.family import FastForm, Networks
from caloscale.models.families.gan import Gan
from caloscale.spec import Data, Model, Run

if TYPE_CHECKING:
    import tensorflow as tf

    from caloscale.models.families.gan.step import Computed

log = logging.getLogger(__name__)


class Compact(Gan):
    """The family of the presets compact and par04."""

    presets = ("compact", "par04")
    short_operations = True
    updates_overlap = True  # a step needs as little memory then, and is 3% faster
    batch_of_measurements = 32

    def build(self, model: Model, data: Data, *, synchronized: bool = False) -> Networks:
        """Generator and discriminator; they have no batch normalisation."""
        from caloscale.models.families.compact.network import build_compact

        return build_compact(model, data)

    def load_layers(self) -> None:
        import caloscale.models.families.compact.network  # noqa: F401

    def for_training(self, networks: Networks) -> Computed:
        """In the fused form of `training`, where the networks have its layers."""
        from caloscale.models.families.compact.training import compact_for_training

        try:
            return compact_for_training(networks)
        except ValueError as reason:
            log.info("the step is computed layer by layer: %s", reason)
            return super().for_training(networks)

    def fast_form(self, network: tf.keras.Model, run: Run, runtime: str, precision: str) -> FastForm:
        """Layers and weights merged, in the layout of the runtime (`merged`)."""
        from caloscale.models.families.compact.merged import FORMS, merged_compact

        if run.data.spans:
            raise ValueError("the layers of a further condition cannot be merged")
        return FastForm(merged_compact(network, run.data, FORMS[runtime], precision), "GeV")
