"""A run that is interrupted, event by event: the independent truth of the formulas in spot.py."""

import math
import random


def simulated_run(work, nodes, per_node_rate, save, start_up, tau, lifetime, seed, provisioning=0.0, lost=1):
    """Seconds, interruptions and seconds of waiting of one run; ``lost`` nodes go with each one that is taken away.

    A node has its own clock, from when it is there: ``provisioning`` after the one before was lost, of all nodes where
    they have reached their lifetime. An interruption throws away what was done since the last checkpoint, and the
    start-up begins anew when all nodes are there, at whatever time it comes.
    """
    chance = random.Random(seed)
    now, done, interruptions, waited = 0.0, 0.0, 0, 0.0
    there = [0.0] * nodes
    while True:
        begun = max(now, *there)
        ends = [max(now, t) + (chance.expovariate(per_node_rate) if per_node_rate else math.inf) for t in there]
        taken = min(*ends, begun + lifetime)
        waited += min(begun, taken) - now
        clock = begun + (start_up if interruptions else 0.0)
        while done < work:
            piece = min(tau, work - done)
            clock += piece + (save if done + piece < work else 0.0)
            if clock > taken:
                break
            done += piece
        if done >= work and clock <= taken:
            return clock, interruptions, waited
        now, interruptions = taken, interruptions + 1
        first = ends.index(taken) if taken in ends else 0
        gone = range(nodes) if taken not in ends else [(first + i) % nodes for i in range(lost)]
        for node in gone:
            there[node] = now + provisioning


def mean_run(runs, **setup):
    """Mean seconds, interruptions and seconds of waiting of many runs."""
    results = [simulated_run(**setup, seed=seed) for seed in range(runs)]
    return tuple(sum(values) / runs for values in zip(*results))
