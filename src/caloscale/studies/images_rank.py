"""A worker of the classifier of images, started by mpiexec: gradients by TensorFlow, averages by MPI."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from caloscale.studies.images import CLASSES, IMAGE_SIZES, RESULT_FILE, build_classifier
from caloscale.tensorflow_import import load_tensorflow_quietly


def _time(world: MPI.Intracomm, steps: int, step: Callable[[], float]) -> tuple[float, float]:
    """Mean seconds of a step, and of the part that it returns; the first one compiles."""
    seconds = part = 0.0
    for index in range(steps + 1):
        world.Barrier()
        start = time.perf_counter()
        returned = step()
        if index:
            seconds, part = seconds + time.perf_counter() - start, part + returned
    return seconds / steps, part / steps


def main(settings: dict[str, Any], folder: Path) -> None:
    """Time the steps; rank 0 writes the result."""
    load_tensorflow_quietly()
    import tensorflow as tf

    world = MPI.COMM_WORLD
    tf.keras.utils.set_random_seed(1)
    network = build_classifier(settings["network"])
    variables = network.trainable_variables
    optimizer = tf.keras.optimizers.SGD(0.01, momentum=0.9)
    size, batch = IMAGE_SIZES[settings["network"]], settings["batch"]
    rng = np.random.default_rng(world.rank)
    images = tf.constant(rng.standard_normal((batch, size, size, 3), np.float32))
    labels = tf.constant(rng.integers(0, CLASSES, batch))
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(autograph=False)
    def gradients() -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, network(images, training=True))
        found = tape.gradient(loss, [variable.value for variable in variables])
        return tf.concat([tf.reshape(one, [-1]) for one in found], 0)

    @tf.function(autograph=False)
    def apply(vector: Any) -> None:
        parts = tf.split(vector, [int(np.prod(variable.shape)) for variable in variables])
        optimizer.apply([tf.reshape(part, v.shape) for part, v in zip(parts, variables)], variables)

    def averaged_step() -> float:
        """A step; the seconds of its exchange."""
        vector = np.array(gradients())
        clock = time.perf_counter()
        world.Allreduce(MPI.IN_PLACE, vector)
        vector /= world.size
        waited = time.perf_counter() - clock
        apply(tf.constant(vector))
        return waited

    optimizer.build(variables)
    if settings["exchange"] == "horovod":
        import horovod.tensorflow as hvd

        hvd.init()

        @tf.function(autograph=False)
        def distributed_step() -> None:
            with tf.GradientTape() as tape:
                loss = loss_of(labels, network(images, training=True))
            found = hvd.DistributedGradientTape(tape).gradient(loss, [variable.value for variable in variables])
            optimizer.apply(found, variables)

        alone = _time(world, settings["steps"], lambda: apply(gradients()) or 0.0)[0]
        hvd.broadcast_variables([variable.value for variable in (*network.variables, *optimizer.variables)], 0)
        seconds = _time(world, settings["steps"], lambda: distributed_step() or 0.0)[0]
        exchanged = seconds - alone
    else:
        seconds, exchanged = _time(world, settings["steps"], averaged_step)
    first = np.concatenate([np.array(variable).ravel()[:16] for variable in variables])
    every = world.gather((seconds, exchanged, first))
    if every is not None:
        slowest = max(every, key=lambda one: one[0])
        found = {
            "stepSeconds": slowest[0],
            "exchangeSeconds": slowest[1],
            "computeSeconds": slowest[0] - slowest[1],
            "parameters": network.count_params(),
            "weightsAgree": all(np.array_equal(one[2], every[0][2]) for one in every),
        }
        (folder / RESULT_FILE).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
