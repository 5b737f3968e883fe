"""Generation as work: a runtime, and the plain network."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from caloscale.bench.reference_networks import build_reference
from caloscale.bench.worker import Work
from caloscale.inference import open_runtime
from caloscale.inference.generator import limit_threads
from caloscale.models import Networks, build, latent, noise_size
from caloscale.models.card import CARD, GENERATOR, ModelCard
from caloscale.models.network_files import load_network
from caloscale.showers.primaries import draw_table
from caloscale.spec import Run, build_run
from caloscale.training.release import parameters, versions


def write_untrained(run: Run, folder: Path) -> None:
    """A model folder with the generator of a run as it is before its first step."""
    networks: Networks = build(run.model, run.data)
    card = ModelCard.of(run, source="parametrised", versions=versions(), parameters=parameters(networks))
    folder.mkdir(parents=True, exist_ok=True)
    networks["generator"].save(folder / GENERATOR)
    (folder / CARD).write_text(card.model_dump_json(by_alias=True), encoding="utf-8")


def runtime_work(
    configuration: dict[str, Any],
    folder: str,
    runtime: str,
    precision: str,
    batch: int,
    streams: int,
    threads: int | None = None,
) -> tuple[Work, dict[str, Any]]:
    """Batches of a model folder in a runtime; a unit is a batch for each of ``streams`` threads.

    runtime: also keras, the layers of the network one after the other, without a graph. threads: of all streams
    together; absent: one for each core.
    """
    run = build_run(configuration)
    noise, primaries = _inputs(run, batch)
    if runtime == "keras":
        network = load_network(Path(folder) / GENERATOR, run.model)

        def generate() -> Any:
            return network(latent(noise, primaries, run.model, run.data), training=False).numpy()

    else:
        opened = open_runtime(folder, runtime, precision=precision, streams=streams, threads=threads)

        def generate() -> Any:
            return opened.generate_batch(noise, **primaries)

    def work(units: int) -> None:
        with ThreadPoolExecutor(streams) as pool:
            for made in pool.map(lambda _: generate(), range(units * streams)):
                _must_be_finite(made)

    return work, {}


def reference_work(
    configuration: dict[str, Any], batch: int, threads: int | None = None
) -> tuple[Work, dict[str, Any]]:
    """The published generator in plain Keras, in one tf.function, showers in network units."""
    if threads is not None:
        limit_threads(threads)
    run = build_run(configuration)
    generator = build_reference(run.model, run.data)["generator"]
    noise, primaries = _inputs(run, batch)

    @tf.function(autograph=False)
    def generate(noise: Any, primaries: dict[str, Any]) -> Any:
        return generator(latent(noise, primaries, run.model, run.data), training=False)

    def work(units: int) -> None:
        for _ in range(units):
            _must_be_finite(generate(noise, primaries).numpy())

    return work, {}


def _inputs(run: Run, batch: int) -> tuple[Any, dict[str, Any]]:
    random = np.random.default_rng(1)
    noise = random.standard_normal((batch, noise_size(run.model, run.data)), np.float32)
    return noise, draw_table(run.data, batch, random)


def _must_be_finite(cells: Any) -> None:
    if not np.isfinite(cells[0]).all():
        raise FloatingPointError("a generated shower is not finite")
