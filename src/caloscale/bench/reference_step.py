"""The published networks and their step, written plainly: the truth for those that train, and what is compared with.

Plain layers of Keras, in the order of `published.networks`, which tests hold against the published figures; four tapes
one after the other, an update of every variable by its optimiser, all in one tf.function with TensorFlow's default
threads. What is random is an argument, so that two steps can be held together.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import tensorflow as tf

from caloscale.models import Networks, build, latent, noise_size
from caloscale.models.families.gan.conditions import judged
from caloscale.models.families.gan.losses import adversarial_loss, generator_loss
from caloscale.models.families.published.networks import Layers, build_published
from caloscale.models.layers.folding import Triple
from caloscale.spec import Data, Model, Run


def build_reference(model: Model, data: Data) -> Networks:
    """Plain networks of a run, with fresh weights. Of other families: those of `build`."""
    if model.family not in ("variable-angle", "fixed-angle"):
        return build(model, data)
    return build_published(
        model, data, Layers(_convolution, tf.keras.layers.BatchNormalization, tf.keras.layers.Dropout)
    )


def _convolution(
    x: tf.Tensor,
    filters: int,
    kernel: Triple,
    *,
    upsampling: Triple | None = None,
    pad: Triple | Literal["same"] = (0, 0, 0),
    slope: float = 1.0,
    initializer: str = "glorot_uniform",
    bias: bool = True,
    name: str,
) -> tf.Tensor:
    """As `convolution`, one layer after the other."""
    layers, padding = tf.keras.layers, "same" if pad == "same" else "valid"
    if upsampling is not None:
        x = layers.UpSampling3D(upsampling, name=f"{name}_upsampling")(x)
    if pad != "same" and any(pad):
        x = layers.ZeroPadding3D(pad, name=f"{name}_pad")(x)
    options = {"padding": padding, "kernel_initializer": initializer, "use_bias": bias}
    x = layers.Conv3D(filters, kernel, **options, name=name)(x)
    if slope == 1:
        return x
    return layers.LeakyReLU(slope, name=f"{name}_leaky")(x) if slope else layers.ReLU(name=f"{name}_relu")(x)


class Draws(NamedTuple):
    """The random numbers of a step."""

    fakes: Any
    """Noise of the showers that the discriminator sees, (B, noise_size)."""
    updates: tuple[Any, ...]
    """Noise of the showers of each update of the generator."""
    real_labels: Any
    """Labels of the real showers (B, 1), some flipped."""
    fake_labels: Any
    """Labels of the generated ones."""


def reference_optimizers(run: Run, networks: Networks) -> dict[str, Any]:
    """Keras' own optimisers of the run configuration by role, built, at its learning rates and without schedule."""
    train = run.train
    of_discriminator = train.discriminator_learning_rate or train.learning_rate
    optimizers = {}
    for role, rate in (("generator", train.learning_rate), ("discriminator", of_discriminator)):
        if train.optimizer == "adam":
            optimizers[role] = tf.keras.optimizers.Adam(rate, beta_1=0.5, beta_2=0.99)
        else:
            optimizers[role] = tf.keras.optimizers.RMSprop(rate, rho=0.9)
        optimizers[role].build(networks[role].trainable_variables)
    return optimizers


def draw(run: Run, size: int) -> Draws:
    """Fresh random numbers for a batch of ``size`` showers."""
    shape = (size, noise_size(run.model, run.data))

    def labels(value: float) -> Any:
        flips = tf.cast(tf.random.uniform((size, 1)) < run.train.label_flip, tf.float32)
        return value + (1 - 2 * value) * flips

    updates = tuple(tf.random.normal(shape) for _ in range(run.train.generator_updates))
    return Draws(tf.random.normal(shape), updates, labels(1.0), labels(0.0))


def reference_step(
    run: Run,
    networks: Networks,
    optimizers: Mapping[str, Any],
    batch: Mapping[str, Any],
    draws: Draws | None = None,
) -> None:
    """One step; updates weights and optimisers. draws: absent, they are drawn here."""
    draws = draws or draw(run, batch["cells"].shape[0])
    targets = {
        "energy": batch["energy_gev"][:, None] / run.data.preprocessing.energy_scale_gev,
        "angle": batch["measured_angle_rad"][:, None],
        "ecal_sum": batch["ecal_sum"][:, None],
    }
    fake = networks["generator"](latent(draws.fakes, batch, run.model, run.data), training=False)
    seen = []
    for cells, labels in ((batch["cells"][..., None], draws.real_labels), (fake, draws.fake_labels)):
        showers = judged(cells, batch, run.data)
        outputs, gradients = _discriminator_tape(run, networks, showers, labels, targets)
        seen.append(outputs)
        optimizers["discriminator"].apply_gradients(zip(gradients, networks["discriminator"].trainable_variables))
    for noise in draws.updates:
        gradients = _generator_tape(run, networks, batch, noise, targets, *seen)
        optimizers["generator"].apply_gradients(zip(gradients, networks["generator"].trainable_variables))


def _discriminator_tape(
    run: Run, networks: Networks, showers: Any, labels: Any, targets: dict[str, Any]
) -> tuple[Any, list[Any]]:
    with tf.GradientTape() as tape:
        outputs = dict(networks["discriminator"](showers, training=True))
        # What only the showers themselves can say (counts, profiles): the real ones come first and set the target.
        for name in outputs.keys() - targets.keys() - {"real_fake"}:
            targets[name] = outputs[name]
        per_shower, _ = adversarial_loss(outputs, targets, labels, run.train.loss_weights)
        loss = tf.reduce_mean(per_shower)
    return outputs, tape.gradient(loss, networks["discriminator"].trainable_variables)


def _generator_tape(
    run: Run,
    networks: Networks,
    batch: Mapping[str, Any],
    noise: Any,
    targets: Mapping[str, Any],
    real: Mapping[str, Any],
    partner: Mapping[str, Any],
) -> list[Any]:
    train = run.train
    with tf.GradientTape() as tape:
        fake = networks["generator"](latent(noise, batch, run.model, run.data), training=True)
        outputs = networks["discriminator"](judged(fake, batch, run.data), training=True)
        per_shower, _ = generator_loss(
            outputs,
            targets,
            tf.ones_like(outputs["real_fake"]),
            train.loss_weights,
            real=real,
            partner=partner,
            energy_score_weight=train.energy_score_weight,
        )
        loss = tf.reduce_mean(per_shower)
    return tape.gradient(loss, networks["generator"].trainable_variables)
