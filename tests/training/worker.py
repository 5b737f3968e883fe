"""A worker as a process of its own: a few steps by the public parts of the distribution; its state goes into a file.

`work` is called in a process that has TensorFlow, see `forked.py`.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from caloscale.spec import load_run


@dataclass
class Job:
    """What a worker does: the cases one after the other, each from the same weights."""

    cases: dict[str, list[str]]
    """Overrides of the compact preset, by name."""
    shards: str
    output: str
    steps: int = 3
    processors: int = 1
    """Logical devices that the processor is split into."""


def normalised(model, data, *, synchronized=False):
    """Networks of the variable-angle family in small: convolutions, batch normalisation, dropout, all four outputs."""
    import tensorflow as tf

    from caloscale.models.layers.constraints import constraints
    from caloscale.models.layers.dropout import EventDropout
    from caloscale.models.layers.normalization import batch_normalization

    layers = tf.keras.layers
    x_cells, y_cells, z_cells = data.shape
    latent = tf.keras.Input((model.latent_size,), name="latent")
    x = layers.Dense(x_cells * y_cells * z_cells, name="dense")(latent)
    x = layers.Reshape((*data.shape, 1), name="reshape")(x)
    x = layers.Conv3D(3, 3, padding="same", activation="relu", name="conv1")(x)
    x = batch_normalization(synchronized=synchronized, epsilon=1e-6, name="norm1")(x)
    x = layers.Conv3D(1, 2, padding="same", activation="softplus", name="shower")(x)
    shower = tf.keras.Input((*data.shape, 1), name="shower")
    y = layers.Conv3D(4, 3, name="conv1")(shower)
    y = layers.LeakyReLU(0.3, name="leaky1")(y)
    y = batch_normalization(synchronized=synchronized, epsilon=1e-6, name="norm")(y)
    y = EventDropout(model.dropout, name="dropout")(y)
    y = layers.Flatten(name="flatten")(y)
    outputs = {
        "real_fake": layers.Dense(1, activation="sigmoid", name="real_fake")(y),
        "energy": layers.Dense(1, name="energy")(y),
        **constraints(shower, data, bin_counts=False),
    }
    return {
        "generator": tf.keras.Model(latent, x, name="generator"),
        "discriminator": tf.keras.Model(shower, outputs, name="discriminator"),
    }


def work(job: Job) -> None:
    """All cases; the state after them goes into <output>-<case>-<worker>.npz, what was seen into .json beside it."""
    runs = {name: load_run(preset="compact", overrides=overrides) for name, overrides in job.cases.items()}
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * job.processors)
    for name, run in runs.items():
        train_case(job, name, run)


def train_case(job, name, run):
    import numpy as np

    from caloscale.models.optimizers import Schedule
    from caloscale.showers.tfrecord.manifest import read_manifest
    from caloscale.training.input import TrainingShowers
    from caloscale.training.loop import fit
    from caloscale.training.state import TrainingState, make_steps
    from caloscale.training.strategy import divide, open_context

    distribution = open_context(run, os.environ)
    place, train = distribution.placement, run.train
    shards = Path(job.shards)
    batch = divide(run, place)
    showers = TrainingShowers(
        shards, read_manifest(shards), batch, train.seed, run.data.mirror, place.workers, place.worker
    )
    state = TrainingState(run, distribution, normalised)
    set_weights(state)
    losses = []
    make = fit if train.loop == "builtin" else make_steps
    make(
        state,
        Schedule(2, "cosine"),
        distribution.distribute(showers.batches(start=0, stop=job.steps, slices=place.replicas_per_worker)),
        job.steps,
        # Workers differ in their clocks.
        before=lambda: 0.25 + 0.1 * (place.worker - (place.workers - 1) / 2),
        after=lambda found: losses.append({key: float(value) for key, value in found.items()}) or True,
    )
    facts = {
        "loaded": [name for name in ("matplotlib", "sklearn") if name in sys.modules],
        "strategy": place.strategy,
        "replicas": place.replicas,
        "losses": losses,
        "packing": packing_error(distribution),
        "copies": [
            len({copy.numpy().tobytes() for copy in distribution.strategy.experimental_local_results(variable)})
            for variable in state.variables().values()
        ],
    }
    output = f"{job.output}-{name}-{place.worker}"
    np.savez(f"{output}.npz", **{key: variable.numpy() for key, variable in state.variables().items()})
    Path(f"{output}.json").write_text(json.dumps(facts))


def set_weights(state) -> None:
    """Everyone begins with these."""
    import numpy as np

    random = np.random.default_rng(7)
    for name, variable in state.variables().items():
        value = variable.numpy()
        if name.partition("/")[0] in ("generator", "discriminator") and value.ndim > 1:
            variable.assign(random.standard_normal(value.shape).astype(np.float32) / np.sqrt(value[..., 0].size))


def packing_error(distribution):
    """Largest difference between sums of gradients over replicas in one all-reduce and in one for each variable."""
    import tensorflow as tf

    from caloscale.models.optimizers import pack, unpack

    strategy = distribution.strategy

    @tf.function(autograph=False)
    def compare():
        def one():
            context = tf.distribute.get_replica_context()
            replica = tf.cast(context.replica_id_in_sync_group, tf.float32) + 1
            values = [tf.sin(replica * tf.range(1.0, 1 + size)) for size in (1, 7, 300)]
            values = [*values, tf.reshape(values[2], (3, 10, 10))]
            plain = [context.all_reduce(tf.distribute.ReduceOp.SUM, value) for value in values]
            packed = unpack(context.all_reduce(tf.distribute.ReduceOp.SUM, pack(values)), values)
            errors = [tf.reduce_max(tf.abs(a - b)) for a, b in zip(plain, packed)]
            return tf.reduce_max(tf.stack(errors))

        return strategy.experimental_local_results(strategy.run(one))[0]

    return float(compare())
