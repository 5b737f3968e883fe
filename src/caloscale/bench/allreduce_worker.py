"""A worker process of the all-reduce bench: TF_CONFIG in its environment, settings as JSON in its argument.

Worker 0 prints the seconds of every round.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import tensorflow as tf

from caloscale.models.optimizers import pack, unpack

WARM_UP = 3


def main(settings: dict[str, Any]) -> dict[str, list[float]]:
    """Reduce tensors of these shapes, packed and each on its own, in turn."""
    ring = tf.distribute.experimental.CommunicationImplementation.RING
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(implementation=ring)
    )
    tapes = [[tf.zeros(shape) + 1.0 for shape in tape] for tape in settings["tapes"]]
    workers = strategy.num_replicas_in_sync

    def packed(tensors: Any) -> Any:
        context = tf.distribute.get_replica_context()
        return unpack(context.all_reduce(tf.distribute.ReduceOp.SUM, pack(tensors)), tensors)

    def separate(tensors: Any) -> Any:
        context = tf.distribute.get_replica_context()
        return [context.all_reduce(tf.distribute.ReduceOp.SUM, tensor) for tensor in tensors]

    def step(reduce: Any) -> Any:
        @tf.function(autograph=False)
        def run() -> Any:
            def replica() -> Any:
                # A tape begins when the one before is done, as its weights are needed.
                total = tf.zeros(())
                for tape in tapes:
                    with tf.control_dependencies([total]):
                        reduced = reduce([tf.identity(tensor) for tensor in tape])
                    total = tf.add_n([tensor[(0,) * len(tensor.shape)] for tensor in reduced])
                return total

            return strategy.run(replica)

        return run

    methods = {"packed": step(packed), "perVariable": step(separate)}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for number in range(WARM_UP + settings["rounds"]):
        for name, method in methods.items():
            clock = time.perf_counter()
            total = float(method())
            if number >= WARM_UP:
                seconds[name].append(time.perf_counter() - clock)
            expected = workers * len(tapes[-1])
            if total != expected:
                raise ValueError(f"the all-reduce of ones gave {total}, not {expected}")
    return seconds


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))), flush=True)
