"""The published 3DGANs on one accelerator by JAX: the time of a step and of a shower, and a training.

What runs there needs JAX and this package without TensorFlow. The step is that of the product, written again for JAX:
`check` holds it against the product's losses, gradients and showers, which `pack` computed by TensorFlow.

    python -m tools.jax_step pack --preset variable-angle --shards DATASET --into packed.npz   # here
    python -m tools.jax_step check | time | train --packed packed.npz --into FOLDER            # on the accelerator
    python -m tools.jax_step release --packed packed.npz --shards DATASET --trained FOLDER --into RUN   # here
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from caloscale.detector.angle import FAINT_LAYER, SMALLEST_DISTANCE_MM2
from caloscale.detector.geometry import sensor_depth_mm
from caloscale.showers.preprocessing import to_gev
from caloscale.spec import Run, build_run, load_run

try:
    jax: Any = import_module("jax")
    jnp: Any = import_module("jax.numpy")
    lax: Any = import_module("jax.lax")
except ImportError:  # `pack` and `release` do without
    jax = jnp = lax = None

SLOPE, MOMENTUM, EMPTY_SUM = 0.3, 0.99, 1e-6
PRECISIONS = {"float32": "float32", "tf32": "tensorfloat32", "bfloat16": "tensorfloat32"}
"""Arithmetic of products of float32 numbers, by precision of the layers."""
TABLE = ("energy_gev", "angle_rad", "measured_angle_rad", "ecal_sum")
Net = dict[str, list[Any]]
"""weights, in the order of Keras, and squares of the optimiser, of the same shapes."""


class Layers:
    """A passage through a network: its layers take the weights one after the other; moved: those after batch norm."""

    def __init__(
        self, weights: list[Any], dtype: Any, *, training: bool, epsilon: float, banded: bool = False, key: Any = None
    ) -> None:
        self.left, self.dtype, self.training, self.epsilon = iter(weights), dtype, training, epsilon
        self.convolution = banded_convolution if banded else convolution
        self.moved, self.key = list(weights), key
        self.number = 0

    def take(self) -> Any:
        """The next weight."""
        self.number += 1
        return next(self.left)

    def dense(self, x: Any, dtype: Any) -> Any:
        """Kernel and bias."""
        kernel, bias = self.take(), self.take()
        return x.astype(dtype) @ kernel.astype(dtype) + bias.astype(dtype)

    def conv(self, x: Any, pad: Any = (0, 0, 0), *, bias: bool = True) -> Any:
        """A convolution of volumes; pad: zeros on both sides of each axis, or SAME."""
        kernel = self.take().astype(self.dtype)
        same = [((k - 1) // 2, k // 2) for k in kernel.shape[:3]]
        x = self.convolution(x, kernel, same if pad == "SAME" else [(p, p) for p in pad])
        return x + self.take().astype(self.dtype) if bias else x

    def upsampled_conv(self, x: Any, by: int) -> Any:
        """`conv` of a volume whose cells are repeated ``by`` times along each axis, on the volume as it is.

        A cell of the result, number by q + p along an axis, depends on the few cells from q on: a convolution with by^3
        times as many filters, one for each p.
        """
        kernel, bias = self.take(), self.take().astype(self.dtype)
        selections, sizes = [], []
        for size in kernel.shape[:3]:
            reach = (by - 1 + size - 1) // by + 1
            p, k = np.ogrid[:by, :size]
            selections.append(((p + k) // by)[..., None] == np.arange(reach))
            sizes.append(reach)
        one, two, three = (jnp.asarray(s, jnp.float32) for s in selections)
        folded = jnp.einsum("pka,qlb,rmc,klmio->abcipqro", one, two, three, kernel, precision="highest")
        folded = folded.reshape(*sizes, kernel.shape[3], -1).astype(self.dtype)
        cells = [n * by - k + 1 for n, k in zip(x.shape[1:4], kernel.shape)]
        wanted = [-(-n // by) for n in cells]
        pads = [(0, w + r - 1 - n) for w, r, n in zip(wanted, sizes, x.shape[1:4])]
        y = patch_products(x, folded, pads)
        y = y.reshape(len(x), *wanted, by, by, by, kernel.shape[4]).transpose(0, 1, 4, 2, 5, 3, 6, 7)
        y = y.reshape(len(x), *(w * by for w in wanted), kernel.shape[4])
        return y[:, : cells[0], : cells[1], : cells[2]] + bias

    def norm(self, x: Any) -> Any:
        """Batch normalisation, in float32."""
        first = self.number
        gamma, beta, mean, variance = (self.take() for _ in range(4))
        wide = x.astype(jnp.float32)
        if self.training:
            seen = mean_of_channels(wide)
            spread = mean_of_channels(jnp.square(wide - seen))
            self.moved[first + 2] = MOMENTUM * mean + (1 - MOMENTUM) * seen
            self.moved[first + 3] = MOMENTUM * variance + (1 - MOMENTUM) * spread
            mean, variance = seen, spread
        return ((wide - mean) * (gamma * lax.rsqrt(variance + self.epsilon)) + beta).astype(x.dtype)

    def dropout(self, x: Any, rate: float) -> Any:
        """In training."""
        if not (self.training and rate):
            return x
        self.key, key = jax.random.split(self.key)
        return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0).astype(x.dtype)


def convolution(x: Any, kernel: Any, pads: list[tuple[int, int]]) -> Any:
    """(B, X, Y, Z, C) with zeros around, and (kx, ky, kz, C, D): (B, X', Y', Z', D)."""
    return lax.conv_general_dilated(x, kernel, (1, 1, 1), pads, dimension_numbers=("NDHWC", "DHWIO", "NDHWC"))


def banded_convolution(x: Any, kernel: Any, pads: list[tuple[int, int]]) -> Any:
    """`convolution` with all depths as channels: in two dimensions, from Z C to Z' D channels.

    The kernel for depth z of x and z' of the result is that of z - z' + the zeros before: 0 outside of the kernel. With
    25 depths this has 4 to 7 times the products, in a form that fills the matrix units of an accelerator.
    """
    rows, columns, height = x.shape[1:4]
    before, after = pads[2]
    depths = height + before + after - kernel.shape[2] + 1
    z, made, k = np.ogrid[:height, :depths, : kernel.shape[2]]
    place = jnp.asarray(z - made + before == k, kernel.dtype)
    band = jnp.einsum("zwk,xykcd->xyzcwd", place, kernel).reshape(*kernel.shape[:2], height * kernel.shape[3], -1)
    y = lax.conv_general_dilated(
        x.reshape(len(x), rows, columns, -1), band, (1, 1), pads[:2], dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return y.reshape(*y.shape[:3], depths, kernel.shape[4])


def patch_products(x: Any, kernel: Any, pads: list[tuple[int, int]]) -> Any:
    """`convolution` as one matrix product of the patches, for few cells and many filters."""
    x = jnp.pad(x, [(0, 0), *pads, (0, 0)])
    a, b, c = (n - k + 1 for n, k in zip(x.shape[1:4], kernel.shape))
    patches = [x[:, i : i + a, j : j + b, k : k + c] for i, j, k in np.ndindex(kernel.shape[:3])]
    return jnp.concatenate(patches, -1) @ kernel.reshape(-1, kernel.shape[4])


def mean_of_channels(x: Any) -> Any:
    """(B, X, Y, Z, C): (C,). Depths and channels are one axis first: short last axes are summed slowly."""
    return x.reshape(-1, x.shape[3] * x.shape[4]).mean(0).reshape(x.shape[3:]).mean(0)


def leaky(x: Any) -> Any:
    """LeakyReLU with the slope of TensorFlow at 0, where convolutions of empty cells are before the first step."""
    return jnp.where(x > 0, x, SLOPE * x)


def repeated(x: Any, *by: int) -> Any:
    """Cells repeated along each axis."""
    for axis, times in enumerate(by, start=1):
        x = jnp.repeat(x, times, axis)
    return x


class Published:
    """Networks, losses and step of a run of the preset variable-angle or fixed-angle.

    dtype: of the layers. form: plain; folded, where the convolution after the large upsampling does not
    repeat cells; or banded, where the other convolutions have all depths as channels, too.
    """

    def __init__(self, run: Run, dtype: Any, form: str) -> None:
        self.run, self.dtype, self.folded, self.banded = run, dtype, form != "plain", form == "banded"
        self.variable = run.model.preset == "variable-angle"
        self.updates = run.train.generator_updates

    def layers(self, weights: list[Any], *, training: bool, key: Any = None) -> Layers:
        """A passage through a network with these weights."""
        epsilon = 1e-6 if self.variable else 1e-3
        return Layers(weights, self.dtype, training=training, epsilon=epsilon, banded=self.banded, key=key)

    def generator(self, weights: list[Any], latent: Any, *, training: bool) -> tuple[Any, list[Any]]:
        """Showers (B, X, Y, Z), and weights with new running statistics."""
        net = self.layers(weights, training=training)
        x = net.dense(latent, self.dtype)
        if self.variable:
            x = x.reshape(-1, 9, 9, 8, 8)
            x = net.upsampled_conv(x, 6) if self.folded else net.conv(repeated(x, 6, 6, 6))
            x = net.norm(jax.nn.relu(x))
            for pad in ((2, 2, 1), (2, 2, 1), (2, 2, 1), (1, 1, 0)):
                x = net.norm(jax.nn.relu(net.conv(x, pad)))
            x = net.conv(jax.nn.relu(net.conv(x, (1, 1, 0))))
        else:
            x = net.norm(leaky(net.conv(x.reshape(-1, 7, 7, 8, 8), "SAME")))
            x = net.norm(leaky(net.conv(repeated(x, 2, 2, 2), (2, 2, 0))))
            x = net.conv(leaky(net.conv(repeated(x, 2, 2, 3), (1, 0, 3))), bias=False)
        return jax.nn.relu(x)[..., 0].astype(jnp.float32), net.moved

    def discriminator(self, weights: list[Any], cells: Any, key: Any) -> tuple[dict[str, Any], list[Any]]:
        """Outputs (B, 1) for showers (B, X, Y, Z) in training, and weights with new running statistics."""
        rate = self.run.model.dropout
        net = self.layers(weights, training=True, key=key)
        x = net.dropout(leaky(net.conv(cells[..., None].astype(self.dtype), "SAME")), rate)
        for pad in ((0, 0, 1), (0, 0, 1), (0, 0, 0)) if self.variable else ((2, 2, 2), (2, 2, 2), (1, 1, 1)):
            x = net.dropout(net.norm(leaky(net.conv(x, pad))), rate)
        half = [n // 2 for n in x.shape[1:4]]
        x = x[:, : 2 * half[0], : 2 * half[1], : 2 * half[2]]
        x = x.reshape(len(x), half[0], 2, half[1], 2, half[2], 2, -1).mean((2, 4, 6)).reshape(len(x), -1)
        energy = net.dense(x, jnp.float32)  # Keras orders outputs by name
        real_fake = jax.nn.sigmoid(net.dense(x, jnp.float32))
        return {"real_fake": real_fake, "energy": energy, **self.constraints(cells)}, net.moved

    def constraints(self, shower: Any) -> dict[str, Any]:
        """Measured angle and sum of the cells, see `models.layers.constraints`."""
        data = self.run.data
        cells, power = jax.nn.relu(shower), data.preprocessing.power
        cells = cells if power == 1 else jnp.power(cells, 1 / power)
        layers = cells.sum((1, 2))
        total = layers.sum(1, keepdims=True)
        hit_shower = total > EMPTY_SUM
        hit = (layers > FAINT_LAYER * total) & hit_shower
        in_layer, in_all = jnp.where(hit, layers, 1.0), jnp.where(hit_shower, total, 1.0)
        z = jnp.asarray(sensor_depth_mm(data.geometry), jnp.float32)[None]
        dz = z - (layers * z).sum(1, keepdims=True) / in_all
        sides = []
        for axis in (2, 1):
            profile = cells.sum(axis)
            at = (jnp.arange(profile.shape[1]) - (profile.shape[1] - 1) / 2) * data.geometry.cell_mm
            moment = jnp.einsum("bnz,n->bz", profile, at, precision="highest")
            sides.append(moment / in_layer - moment.sum(1, keepdims=True) / in_all)
        distance = jnp.sqrt(jnp.maximum(sides[1] ** 2 + dz * dz, SMALLEST_DISTANCE_MM2))
        angles = math.pi / 2 - jnp.arctan(jnp.sign(dz) * sides[0] / distance)
        weights = hit * (jnp.arange(layers.shape[1]) + 0.5)
        mean = (weights * angles).sum(1, keepdims=True) / jnp.maximum(weights.sum(1, keepdims=True), 0.5)
        return {"angle": jnp.where(hit_shower, mean, 100.0), "ecal_sum": total}

    def loss(self, outputs: dict[str, Any], targets: dict[str, Any], labels: Any) -> tuple[Any, dict[str, Any]]:
        """Mean over the batch, and its terms before they are weighted."""

        def percent(name: str) -> Any:
            return (100 * jnp.abs(targets[name] - outputs[name]) / jnp.maximum(jnp.abs(targets[name]), 1e-7)).mean()

        p, weights = jnp.clip(outputs["real_fake"], 1e-7, 1 - 1e-7), self.run.train.loss_weights
        terms = {
            "real_fake": -(labels * jnp.log(p) + (1 - labels) * jnp.log1p(-p)).mean(),
            "energy": percent("energy"),
            "angle": jnp.abs(targets["angle"] - outputs["angle"]).mean(),
            "ecal_sum": percent("ecal_sum"),
        }
        return sum(weight * terms[name] for name in terms if (weight := getattr(weights, name))), terms

    def latent(self, noise: Any, energy: Any, angle: Any) -> Any:
        """Input of the generator from noise (B, n) and primaries (B, 1)."""
        energy = energy / self.run.data.preprocessing.energy_scale_gev
        return jnp.concatenate([energy, angle, noise], axis=1) if self.variable else noise * energy

    def draw(self, key: Any, size: int) -> dict[str, Any]:
        """Random numbers of a step of ``size`` showers."""
        noise, energy, flips, dropout = jax.random.split(key, 4)
        passes = 1 + self.updates
        drawn = {
            "noise": jax.random.normal(noise, (passes, size, self.run.model.latent_size - 2 * self.variable)),
            "flips": jax.random.uniform(flips, (2, size, 1)) < self.run.train.label_flip,
            "dropout": jax.random.split(dropout, 2 + self.updates),
        }
        if self.run.train.primaries == "uniform":
            low, high = self.run.data.energy_gev
            drawn["energy_gev"] = low + (high - low) * jax.random.uniform(energy, (passes, size, 1))
        return drawn

    def step(
        self, nets: dict[str, Net], batch: dict[str, Any], drawn: dict[str, Any], factor: Any
    ) -> tuple[dict[str, Net], dict[str, Any]]:
        """One step; its losses by the names of `gan.step`. factor: on the learning rate."""
        train, preprocessing = self.run.train, self.run.data.preprocessing
        rate, d_rate = train.learning_rate * factor, (train.discriminator_learning_rate or train.learning_rate) * factor
        columns = {name: batch[name][:, None] for name in TABLE}
        of_real = {
            "energy": columns["energy_gev"] / preprocessing.energy_scale_gev,
            "angle": columns["measured_angle_rad"],
            "ecal_sum": columns["ecal_sum"],
        }

        def generate(weights: list[Any], number: int, *, training: bool) -> tuple[Any, list[Any], dict[str, Any]]:
            energy, targets = columns["energy_gev"], of_real
            if "energy_gev" in drawn:
                energy = drawn["energy_gev"][number]
                scaled = energy / preprocessing.energy_scale_gev
                ratio = jnp.polyval(jnp.asarray(train.ecal_sum_fit), scaled)
                targets = {**of_real, "energy": scaled, "ecal_sum": ratio * scaled * preprocessing.units_per_gev}
            inputs = self.latent(drawn["noise"][number], energy, columns["angle_rad"])
            return *self.generator(weights, inputs, training=training), targets

        g, d = nets["generator"], nets["discriminator"]
        fake, _, of_fake = generate(g["weights"], 0, training=False)
        seen = []
        for number, (cells, targets) in enumerate(((batch["cells"], of_real), (fake, of_fake))):
            labels = jnp.where(drawn["flips"][number], number, 1 - number).astype(jnp.float32)

            def of_discriminator(weights: list[Any], number=number, cells=cells, targets=targets, labels=labels) -> Any:  # type: ignore[no-untyped-def]
                outputs, moved = self.discriminator(weights, cells, drawn["dropout"][number])
                total, terms = self.loss(outputs, targets, labels)
                return total, (moved, terms)

            (total, (moved, terms)), gradient = jax.value_and_grad(of_discriminator, has_aux=True)(d["weights"])
            d = updated(d, gradient, moved, d_rate)
            seen.append({"loss": total, **terms})
        for number in range(self.updates):

            def of_generator(weights: list[Any], number=number, d=d) -> Any:  # type: ignore[no-untyped-def]
                showers, moved, targets = generate(weights, 1 + number, training=True)
                outputs, d_moved = self.discriminator(d["weights"], showers, drawn["dropout"][2 + number])
                total, terms = self.loss(outputs, targets, jnp.ones_like(outputs["real_fake"]))
                return total, (moved, d_moved, terms)

            (total, (moved, d_moved, terms)), gradient = jax.value_and_grad(of_generator, has_aux=True)(g["weights"])
            g, d = updated(g, gradient, moved, rate), {**d, "weights": d_moved}
        real, of_generated = seen
        losses = {
            "discriminator_real": real["loss"],
            "discriminator_fake": of_generated["loss"],
            "discriminator_real_fake": (real["real_fake"] + of_generated["real_fake"]) / 2,
            "discriminator_energy": real["energy"],
            "generator": total,
            **{f"generator_{name}": value for name, value in terms.items()},
        }
        return {"generator": g, "discriminator": d}, losses


def updated(net: Net, gradient: list[Any], moved: list[Any], rate: Any) -> Net:
    """RMSprop. Running statistics have no gradient: they move with the passage."""
    squares = [0.9 * square + 0.1 * one * one for square, one in zip(net["squares"], gradient)]
    change = [rate * one * lax.rsqrt(square + 1e-7) for one, square in zip(gradient, squares)]
    return {"weights": [weight - one for weight, one in zip(moved, change)], "squares": squares}


class Packed:
    """The file that `pack` wrote: run configuration, weights before the first step, showers, and a step of the product.

    Cells are sparse: numbers of the cells with energy and their values. Those to train on have float16 (network units).
    """

    def __init__(self, path: Path) -> None:
        self.arrays = dict(np.load(path))
        self.run = build_run(json.loads(str(self.arrays["run"])))
        self.table = {name: self.arrays[f"train_{name}"] for name in TABLE}

    def cells(self, split: str, rows: slice = slice(None)) -> np.ndarray:
        """(N, X, Y, Z) float32."""
        shape, ends = self.run.data.shape, np.cumsum(self.arrays[f"{split}_counts"])
        numbers = range(*rows.indices(len(ends)))
        cells = np.zeros((len(numbers), math.prod(shape)), np.float32)
        for row, number in enumerate(numbers):
            part = slice(ends[number] - self.arrays[f"{split}_counts"][number], ends[number])
            cells[row, self.arrays[f"{split}_index"][part]] = self.arrays[f"{split}_values"][part]
        return cells.reshape(-1, *shape)

    def list_of(self, name: str) -> list[np.ndarray]:
        """Arrays that were packed as a list."""
        return [self.arrays[key] for key in sorted(self.arrays) if key.startswith(f"{name}:")]

    def moved(self, role: str) -> list[np.ndarray]:
        """Weights of a network as those before the first step, multiplied and shifted a little.

        Before it biases are 0: cells without energy are at the corner of a LeakyReLU, where rounding chooses the slope.
        """
        random = np.random.default_rng(7)
        shifts = ((random.uniform(0.9, 1.1, w.shape), random.uniform(0, 0.1)) for w in self.list_of(role))
        return [(w * f + s * (w.ndim == 1)).astype(np.float32) for w, (f, s) in zip(self.list_of(role), shifts)]

    def nets(self, weights_of: Callable[[str], list[np.ndarray]] | None = None) -> dict[str, Net]:
        """Both networks, before the first step or with other weights."""
        weights_of = weights_of or self.list_of
        weights = {role: [jnp.array(w) for w in weights_of(role)] for role in ("generator", "discriminator")}
        return {role: {"weights": ws, "squares": [jnp.zeros_like(w) for w in ws]} for role, ws in weights.items()}


def listed(name: str, arrays: Any) -> dict[str, Any]:
    """A list of arrays by names that `Packed.list_of` finds."""
    return {f"{name}:{number:03d}": np.asarray(array) for number, array in enumerate(arrays)}


def sparse(split: str, cells: np.ndarray, dtype: Any) -> dict[str, Any]:
    """Showers (N, X, Y, Z) as `Packed.cells` reads them."""
    flat = cells.reshape(len(cells), -1).astype(dtype)
    row, index = np.nonzero(flat)
    counts = np.bincount(row, minlength=len(flat))
    unsigned = np.uint16 if flat.shape[1] <= 2**16 else np.uint32
    return {f"{split}_counts": counts, f"{split}_index": index.astype(unsigned), f"{split}_values": flat[row, index]}


def pack(preset: str, overrides: list[str], shards: Path, into: Path) -> None:
    """Write showers, weights and a step of the product for `Packed`."""
    from caloscale.showers.tfrecord.records import read_batches
    from caloscale.showers.tfrecord.shard_folder import ShardFolder
    from caloscale.tensorflow_import import load_tensorflow_quietly

    load_tensorflow_quietly()
    from caloscale.training.selection import selection_showers
    from caloscale.training.state import TrainingState

    run = load_run(preset=preset, overrides=overrides)
    folder = ShardFolder(shards)
    manifest = folder.manifest
    parts: dict[str, list[Any]] = {}
    for shard in manifest.shards_of("train"):
        for batch in read_batches(shards / shard.file, manifest.shape, manifest.spans):
            for name, part in {**{n: batch[n] for n in TABLE}, **sparse("train", batch["cells"], np.float16)}.items():
                parts.setdefault(name if name.startswith("train") else f"train_{name}", []).append(part)
    arrays: dict[str, Any] = {name: np.concatenate(part) for name, part in parts.items()}
    held_out = folder.read("validation", selection_showers([s.showers for s in manifest.shards_of("validation")]))
    arrays |= sparse("selection", held_out.cells_gev, np.float32)
    arrays |= {"selection_energy_gev": held_out.energy_gev, "selection_angle_rad": held_out.angle_rad}
    networks = TrainingState(run.model_copy(update={"train": run.train.model_copy(update={"precision": "float32"})}))
    for role, network in networks.networks.items():
        arrays |= listed(role, network.get_weights())
    arrays["run"] = np.array(run.model_dump_json(by_alias=True))
    np.savez(into, **arrays)
    arrays |= step_of_product(load_run(preset=preset, overrides=[*overrides, *QUIET]), Packed(into))
    with into.open("wb") as stream:
        np.savez_compressed(stream, **arrays)


QUIET = ("model.dropout=0", "train.learningRate=1e-12", "train.labelFlip=0.4", "train.precision=float32")
"""Dropout draws within the layers. RMSprop's first step is as long for a gradient that is rounding as for any other:
with a small rate the later tapes have equal weights."""
CASE = 2
"""Showers of the step that is compared."""


def step_of_product(run: Run, packed: Packed) -> dict[str, Any]:
    """Run, random numbers, losses, squares of the optimisers and showers of the first step of the product."""
    import tensorflow as tf

    from caloscale.models import build, family_of, latent, noise_size
    from caloscale.models.families.step import Step, StepContext, build_optimizers
    from caloscale.models.optimizers import Schedule, unpack
    from caloscale.random import EventDraws

    def section(number: int) -> EventDraws:
        return EventDraws(run.train.seed, tf.constant(0, tf.int64), number, tf.constant(0, tf.int64), CASE)

    noise, energy = [], []
    for number in (0, *range(3, 3 + run.train.generator_updates)):
        random = section(number)
        noise.append(random.normal((noise_size(run.model, run.data),)))
        low, high = run.data.energy_gev
        energy.append(low + (high - low) * random.uniform((1,)) if run.train.primaries == "uniform" else tf.zeros(0))
    flips = [section(number).uniform((1,)) < run.train.label_flip for number in (1, 2)]
    networks = build(run.model, run.data)
    for role, network in networks.items():
        network.set_weights(packed.moved(role))
    batch = {name: tf.constant(column[:CASE]) for name, column in packed.table.items()}
    inputs = latent(noise[0], batch, run.model, run.data)
    showers = networks["generator"](inputs, training=False)[..., 0]
    batch["cells"] = tf.constant(packed.cells("train", slice(CASE)))
    optimizers, family = build_optimizers(run, networks), family_of(run.model)
    context = StepContext(tf.constant(0, tf.int64), tf.constant(0.0), tf.constant(0, tf.int64), CASE)
    losses = family.train_step(Step(family, run, networks, optimizers, batch, context, Schedule(0, "constant")))
    squares = {role: unpack(optimizers[role].square, network.trainable_variables) for role, network in networks.items()}
    return {
        "case_run": np.array(run.model_dump_json(by_alias=True)),
        **listed("case_noise", noise),
        **listed("case_energy", energy),
        **listed("case_flips", flips),
        "case_inputs": np.asarray(inputs),
        "case_showers": np.asarray(showers),
        "case_losses": np.array(json.dumps({name: float(value) for name, value in losses.items()})),
        **{k: v for role, values in squares.items() for k, v in listed(f"case_{role}", values).items()},
    }


def check(packed: Packed, precision: str = "float32", form: str = "plain") -> dict[str, float]:
    """Largest relative differences from the product's step: of a loss, of the gradients of a variable of each network
    (root mean squares; gradients are the roots of the optimiser's squares), of showers."""
    run = build_run(json.loads(str(packed.arrays["case_run"])))
    drawn = {
        "noise": np.stack(packed.list_of("case_noise")),
        "flips": np.stack(packed.list_of("case_flips")),
        "dropout": jax.random.split(jax.random.key(0), 2 + run.train.generator_updates),
    }
    if run.train.primaries == "uniform":
        drawn["energy_gev"] = np.stack(packed.list_of("case_energy"))
    batch = {name: column[:CASE] for name, column in packed.table.items()}
    batch["cells"] = packed.cells("train", slice(CASE))
    with jax.default_matmul_precision(PRECISIONS[precision]):
        model = Published(run, jnp.bfloat16 if precision == "bfloat16" else jnp.float32, form)
        nets = packed.nets(packed.moved)
        made, _ = jax.jit(partial(model.generator, training=False))(
            nets["generator"]["weights"], packed.arrays["case_inputs"]
        )
        nets, losses = jax.jit(model.step)(nets, batch, drawn, 1.0)
    truth = json.loads(str(packed.arrays["case_losses"]))
    away = {"losses": max(abs(float(losses[n]) - truth[n]) / max(abs(truth[n]), 1e-3) for n in losses)}
    for role, net in nets.items():
        expected, found = packed.list_of(f"case_{role}"), [np.asarray(s) for s in net["squares"] if np.asarray(s).any()]
        assert [e.shape for e in expected] == [f.shape for f in found], role
        roots = [(np.sqrt(e.astype(np.float64)), np.sqrt(f.astype(np.float64))) for e, f in zip(expected, found)]
        away[role] = max(float(np.sqrt(np.mean((e - f) ** 2)) / max(np.sqrt(np.mean(e**2)), 1e-3)) for e, f in roots)
    expected = packed.arrays["case_showers"]
    away["showers"] = float(np.abs(np.asarray(made) - expected).max() / expected.max())
    return away


class Trained:
    """The training of a packed run, step by step."""

    def __init__(self, packed: Packed, precision: str, form: str) -> None:
        self.packed, self.run, self.precision = packed, packed.run, precision
        self.model = Published(self.run, jnp.bfloat16 if precision == "bfloat16" else jnp.float32, form)
        self.nets = packed.nets()
        self.key = jax.random.key(self.run.train.seed)
        self.data = {name: jnp.asarray(column) for name, column in packed.table.items()}
        self.data["cells"] = jnp.asarray(packed.cells("train"))

        def step(nets: Any, data: Any, rows: Any, key: Any, factor: Any) -> Any:
            batch = {name: column[rows] for name, column in data.items()}
            return self.model.step(nets, batch, self.model.draw(key, len(rows)), factor)

        self.compiled = jax.jit(step, donate_argnums=0)
        self.generate = jax.jit(lambda weights, inputs: self.model.generator(weights, inputs, training=False)[0])

    def step(self, rows: np.ndarray, number: int, factor: float = 1.0) -> dict[str, Any]:
        """One step on these showers; losses on the device."""
        with jax.default_matmul_precision(PRECISIONS[self.precision]):
            key = jax.random.fold_in(self.key, number)
            self.nets, losses = self.compiled(self.nets, self.data, jnp.asarray(rows), key, factor)
        return losses  # type: ignore[no-any-return]

    def showers(self, inputs: np.ndarray) -> Any:
        """Generated showers in network units."""
        with jax.default_matmul_precision(PRECISIONS[self.precision]):
            return self.generate(self.nets["generator"]["weights"], inputs)


def timings(packed: Packed, works: list[str], seconds: float) -> Iterator[dict[str, Any]]:
    """Seconds of steps and of batches of generation, medians of 4 to 29 after the first. works: precision:batch, with
    /FORM, see `Published`; none is begun after ``seconds``: the first step is compiled for a minute."""
    end = time.perf_counter() + seconds
    for text in works:
        if time.perf_counter() > end:
            yield {"left out": text}
            continue
        precision, batch = text.split(":")[0], int(text.partition("/")[0].split(":")[1])
        trained = Trained(packed, precision, text.partition("/")[2] or "plain")
        rows = np.arange(batch) % len(packed.table["ecal_sum"])
        inputs = jnp.asarray(np.abs(np.random.default_rng(0).standard_normal((batch, packed.run.model.latent_size))))
        for name, work in (
            ("step", partial(trained.step, rows)),
            ("generation", lambda _, t=trained, i=inputs: t.showers(i)),
        ):  # type: ignore[misc]
            found: list[float] = []
            while len(found) < 30 and (len(found) < 5 or sum(found[1:]) < 2):
                clock = time.perf_counter()
                jax.block_until_ready(work(len(found)))
                found.append(time.perf_counter() - clock)
            median = float(np.median(found[1:]))
            yield {
                "preset": packed.run.model.preset,
                "of": text,
                "work": name,
                "seconds": median,
                "least": min(found[1:]),
                "most": max(found[1:]),
                "first": found[0],
                "showersPerSecond": batch / median,
                "peakBytes": (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use"),
            }


def train(packed: Packed, precision: str, form: str, into: Path, *, epochs: int, seconds: float, keep: int) -> None:
    """Train until ``epochs`` or ``seconds`` are over; weights of some epochs, and all losses, in ``into``.

    After each epoch the product's figure of merit on the showers that select is computed. Kept are the epoch that its
    rule selects, the last one, and the ``keep`` with the least figure.
    """
    from caloscale.showers.arrays import Showers
    from caloscale.training.record import add_point
    from caloscale.training.selection import is_selected, physics_deviation

    begin = time.perf_counter()
    trained, run = Trained(packed, precision, form), packed.run
    arrays, batch = packed.arrays, run.train.replica_batch(1)
    energy, angle = arrays["selection_energy_gev"], arrays["selection_angle_rad"]
    real = Showers(packed.cells("selection"), energy, angle, "geant4")
    # The noise that the product's own selection generates from.
    noise = np.random.default_rng(run.train.seed).standard_normal(
        (len(real), run.model.latent_size - 2 * trained.model.variable), np.float32
    )
    inputs = np.asarray(trained.model.latent(jnp.asarray(noise), energy[:, None], angle[:, None]))
    inputs = np.resize(inputs, (128, inputs.shape[1]))  # two equal batches: one compilation
    showers = len(packed.table["energy_gev"])
    per_epoch = showers // batch
    warmup = run.train.warmup_epochs * per_epoch
    curves: dict[str, Any] = {"validation": {}}
    checks: list[dict[str, Any]] = []
    kept: dict[int, list[np.ndarray]] = {}
    selected, number, first = 0, 0, 0.0

    def write() -> None:
        """Everything so far."""
        over = time.perf_counter() - begin
        about = {
            "jax": jax.__version__,
            "precision": precision,
            "machine": {
                "processor": jax.devices()[0].device_kind,
                "cores": os.cpu_count(),
                "memoryGib": round(psutil.virtual_memory().total / 2**30, 1),
            },
            "record": {
                "steps": number,
                "epochs": len(checks),
                "showers": number * batch,
                "seconds": over,
                "coreSeconds": time.process_time(),
                "secondsFirstStep": first,
                "showersPerSecond": (number - 1) * batch / (over - first),
                "globalBatchSize": batch,
                "selectedEpoch": selected,
                "selectedDeviation": next((c["deviation"] for c in checks if c["epoch"] == selected), 0.0),
                "showersLeftOut": showers - per_epoch * batch,
            },
            "history": curves,
        }
        into.mkdir(parents=True, exist_ok=True)
        (into / "training.json").write_text(json.dumps(about))
        np.savez(into / "discriminator.npz", **listed("", trained.nets["discriminator"]["weights"]))
        for old in into.glob("epoch*.npz"):
            old.unlink()
        for one, weights in kept.items():
            np.savez(into / f"epoch{one}.npz", **listed("", weights))

    written = time.perf_counter()
    for epoch in range(1, epochs + 1):
        bits = np.random.Philox(key=np.array([run.train.seed, epoch - 1], np.uint64)).random_raw(showers)
        order = np.argsort(bits, kind="stable")  # as training.input.epoch_order
        of_epoch = []
        for step in range(per_epoch):
            factor = min(1.0, (number + 1) / warmup) if warmup else 1.0
            of_epoch.append(trained.step(order[step * batch : (step + 1) * batch], number, factor))
            number += 1
            if number == 1:
                jax.block_until_ready(of_epoch)
                first = time.perf_counter() - begin
        read = jax.device_get(of_epoch)
        means = {name: float(np.mean([one[name] for one in read])) for name in read[0]}
        add_point(curves, {"step": number, **means})
        made = np.concatenate([np.asarray(trained.showers(part)) for part in np.split(inputs, 2)])[: len(real)]
        generated = Showers(to_gev(made, run.data.preprocessing), energy, angle, "generated")
        figures = physics_deviation(real, generated, hits_threshold_gev=run.validation.hits_threshold_gev)
        earlier = {one["epoch"]: one["deviation"] for one in checks}
        checks.append({"epoch": epoch, **figures})
        add_point(curves["validation"], checks[-1])
        if selected == 0 or is_selected(figures["deviation"], earlier, run.train):
            selected = epoch
        kept[epoch] = [np.asarray(w) for w in trained.nets["generator"]["weights"]]
        best = [one["epoch"] for one in sorted(checks, key=lambda one: one["deviation"])[:keep]]
        kept = {one: weights for one, weights in kept.items() if one in (selected, epoch, *best)}
        print(
            f"epoch {epoch} {time.perf_counter() - begin:.1f} s",
            {n: round(v, 3) for n, v in {**means, **figures}.items()},
            flush=True,
        )
        over = time.perf_counter() - begin > seconds or not all(map(math.isfinite, means.values()))
        if over or epoch == epochs or time.perf_counter() - written > 60:
            write()
            written = time.perf_counter()
        if over:
            break


def release(packed: Packed, overrides: list[str], shards: Path, trained: Path, into: Path) -> None:
    """The selected generator of `train` as the run folder ``into`` of the product, to be validated and reported.

    overrides: of the run configuration as it was packed, such as budget.pricedAs, the machine that the bill counts.
    """
    from datetime import UTC, datetime

    from caloscale.showers.tfrecord.manifest import read_manifest
    from caloscale.stages.record import StageMachine, StageRecord, write_record
    from caloscale.stages.showers import figures_of
    from caloscale.stages.workspace import open_workspace
    from caloscale.tensorflow_import import load_tensorflow_quietly

    load_tensorflow_quietly()
    from caloscale.models import build
    from caloscale.training.checkpoint.metadata import Progress
    from caloscale.training.release import parameters, versions
    from caloscale.training.release import release as write_model

    about = json.loads((trained / "training.json").read_text())
    made, manifest = about["record"], read_manifest(shards)
    precision = "bfloat16" if about["precision"] == "bfloat16" else "float32"
    trained_as = [f"train.epochs={made['epochs']}", f"train.precision={precision}"]
    (trained / "run.json").write_text(packed.run.model_dump_json(by_alias=True))
    run = load_run(trained / "run.json", overrides=[*trained_as, *overrides])
    networks = build(run.model, run.data)
    for role, name in (("generator", f"epoch{made['selectedEpoch']}"), ("discriminator", "discriminator")):
        with np.load(trained / f"{name}.npz") as saved:
            networks[role].set_weights([saved[key] for key in sorted(saved.files)])
    selected = Progress(
        step=made["steps"],
        seconds=made["seconds"],
        core_seconds=made["coreSeconds"],
        selected_epoch=made["selectedEpoch"],
        selected_step=made["selectedEpoch"] * (made["steps"] // made["epochs"]),
        selected_deviation=made["selectedDeviation"],
    )
    here = {
        "strategy": "one-device",
        "loop": "custom",
        "device": "GPU",
        "workers": 1,
        "replicas": 1,
        "stopped": "epochs",
    }
    saved = {"resumedFromStep": None, "restarts": 0, "stepsLost": 0, "saves": 0, "secondsSaving": 0, "savedBytes": 0}
    figures = {
        **made,
        **here,
        **saved,
        "parameters": parameters(networks),
        "source": manifest.source,
        "versions": {**versions(), "jax": about["jax"]},
        "data": figures_of(manifest),
    }
    with open_workspace(into, run) as folder:
        output = folder / "training"
        output.mkdir(exist_ok=True)
        write_model(output / "model", networks, run, manifest, selected)
        (output / "history.json").write_text(json.dumps(about["history"]))
        stage = StageRecord(
            stage="train",
            outcome="succeeded",
            started=datetime.fromtimestamp((trained / "training.json").stat().st_mtime - made["seconds"], UTC),
            seconds=made["seconds"],
            core_seconds=made["coreSeconds"],
            peak_memory_mib=0.0,
            machine=StageMachine.model_validate(about["machine"], by_alias=True),
            figures=figures,
        )
        write_record(stage, folder)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("pack", "check", "time", "train", "release"))
    parser.add_argument("--preset", default="variable-angle")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--shards", type=Path)
    parser.add_argument("--packed", type=Path)
    parser.add_argument("--into", type=Path)
    parser.add_argument("--trained", type=Path)
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--form", choices=("plain", "folded", "banded"), default="plain")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--keep", type=int, default=3)
    parser.add_argument("--works", nargs="*", default=[])
    options = parser.parse_args()
    if options.action == "pack":
        return pack(options.preset, options.set, options.shards, options.into)
    packed = Packed(options.packed)
    if options.action == "release":
        return release(packed, options.set, options.shards, options.trained, options.into)
    if options.action == "train":
        limits = {"epochs": options.epochs, "seconds": options.seconds, "keep": options.keep}
        return train(packed, options.precision, options.form, options.into, **limits)
    if options.action == "check":
        for precision, _, form in (work.partition("/") for work in options.works):
            print(precision, form, json.dumps(check(packed, precision, form or "plain")), flush=True)
    else:
        for row in timings(packed, options.works, options.seconds):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
