"""The step by JAX against that of the product, and the parts that it needs."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from caloscale.bench.work import synthetic_batch
from caloscale.models import build
from caloscale.spec import load_run
from tools import jax_step
from tools.jax_step import CASE, QUIET, TABLE, Layers, Packed, check, listed, sparse, step_of_product

jax = pytest.importorskip("jax")


def by_products(x, kernel, pads):
    """A convolution as matrix products of shifted volumes: XLA's own takes minutes on a processor."""
    jnp, (kx, ky, kz, channels, filters) = jax.numpy, kernel.shape
    x = jnp.pad(x, [(0, 0), *pads, (0, 0)])
    cells = [n - k + 1 for n, k in zip(x.shape[1:4], (kx, ky, kz))]

    @jax.checkpoint
    def one(total, shift):
        number, products = shift
        corner = (0, number // ky, number % ky, 0, 0)
        part = jax.lax.dynamic_slice(x, corner, (len(x), *cells[:2], x.shape[3], channels))
        columns = jnp.concatenate([part[:, :, :, z : z + cells[2]] for z in range(kz)], -1)
        return total + columns @ products, None

    shifts = (jnp.arange(kx * ky), kernel.reshape(kx * ky, kz * channels, filters))
    return jax.lax.scan(one, jnp.zeros((len(x), *cells, filters), x.dtype), shifts)[0]


def packed(preset, folder):
    """Synthetic showers and fresh networks as `pack` writes them, with a step of the product."""
    run = load_run(preset=preset, overrides=QUIET)
    batch = {name: np.asarray(value) for name, value in synthetic_batch(run, CASE).items()}
    arrays = {f"train_{name}": batch[name] for name in TABLE} | sparse("train", batch["cells"], np.float16)
    arrays["run"] = np.array(run.model_dump_json(by_alias=True))
    tf.keras.utils.set_random_seed(3)
    for role, network in build(run.model, run.data).items():
        arrays |= listed(role, network.get_weights())
    np.savez(folder / "packed.npz", **arrays)
    arrays |= step_of_product(run, Packed(folder / "packed.npz"))
    np.savez(folder / "packed.npz", **arrays)
    return Packed(folder / "packed.npz")


@pytest.mark.long
@pytest.mark.integration
@pytest.mark.parametrize(
    ("preset", "form", "of_gradients"),
    # Batch normalisation with an epsilon of 1e-6 in float32: the product's gradients are 2.5% from double precision.
    [("fixed-angle", "plain", 2e-3), ("fixed-angle", "banded", 2e-3), ("variable-angle", "folded", 4e-2)],
)
def test_a_step_of_the_product(preset, form, of_gradients, tmp_path, monkeypatch):
    monkeypatch.setattr(jax_step, "convolution", by_products)
    away = check(packed(preset, tmp_path), form=form)
    assert away["showers"] < 1e-4 and away["losses"] < 5e-3
    assert max(away["generator"], away["discriminator"]) < of_gradients


@pytest.mark.parametrize("way", [jax_step.banded_convolution, jax_step.patch_products])
@pytest.mark.parametrize("pads", [[(2, 2), (1, 1), (0, 3)], [(0, 0), (0, 0), (1, 1)]])
def test_ways_of_a_convolution(way, pads):
    """Values and both gradients against XLA's own convolution."""
    random = np.random.default_rng(1)
    x = random.normal(size=(2, 5, 6, 7, 3)).astype(np.float32)
    kernel = random.normal(size=(4, 3, 2, 3, 4)).astype(np.float32)

    def computed(convolution):
        y, backward = jax.vjp(lambda *given: convolution(*given, pads), x, kernel)
        return [y, *backward(jax.numpy.sin(y))]

    for found, truth in zip(computed(way), computed(jax_step.convolution), strict=True):
        np.testing.assert_allclose(found, truth, atol=1e-5 * np.abs(truth).max())


def test_a_convolution_after_an_upsampling_needs_no_repeated_cells():
    random = np.random.default_rng(1)
    x = random.normal(size=(2, 3, 3, 4, 2)).astype(np.float32)
    weights = [random.normal(size=(4, 4, 5, 2, 3)).astype(np.float32), random.normal(size=3).astype(np.float32)]
    folded, plain = (Layers(weights, np.float32, training=False, epsilon=1e-3) for _ in range(2))
    truth = np.asarray(plain.conv(jax_step.repeated(x, 3, 3, 3)))
    assert truth.shape == (2, 6, 6, 8, 3)
    np.testing.assert_allclose(folded.upsampled_conv(x, 3), truth, atol=1e-5 * np.abs(truth).max())


def test_sparse_showers_are_the_showers(tmp_path):
    run = load_run(preset="variable-angle")
    cells = np.zeros((3, *run.data.shape), np.float32)
    cells[0, 1, 2, 3], cells[2, 50, 50, 24], cells[2, 0, 0, 0] = 0.5, 2, 4
    table = {f"train_{name}": np.ones(3, np.float32) for name in TABLE}
    arrays = sparse("train", cells, np.float16) | table
    np.savez(tmp_path / "p.npz", run=run.model_dump_json(by_alias=True), **arrays)
    read = Packed(tmp_path / "p.npz")
    assert np.array_equal(read.cells("train"), cells)
    assert np.array_equal(read.cells("train", slice(1, 3)), cells[1:])
