"""A run that is interrupted, event by event: the independent truth of the formulas in spot.py."""

import heapq
import random


def simulated_run(work, nodes, per_node_rate, save, restart, tau, lifetime, seed, provisioning=0.0):
    """Seconds, interruptions and seconds of waiting of one run; nodes are taken away one by one, each replaced anew.

    Every node has its own clock. An interruption throws away what was done since the last checkpoint, and the
    restart (waiting for the machine, ``provisioning``, and first step) begins anew, at whatever time it comes.
    """
    chance = random.Random(seed)
    now, done, interruptions, waited = 0.0, 0.0, 0, 0.0
    first = True
    while True:
        ends = [now + (chance.expovariate(per_node_rate) if per_node_rate else float("inf")) for _ in range(nodes)]
        heapq.heapify(ends)
        taken = min(heapq.heappop(ends), now + lifetime)
        clock = now + (0.0 if first else restart)
        waited += 0.0 if first else min(provisioning, taken - now)
        first = False
        while done < work:
            piece = min(tau, work - done)
            clock += piece + (save if done + piece < work else 0.0)
            if clock > taken:
                break
            done += piece
        if done >= work and clock <= taken:
            return clock, interruptions, waited
        now, interruptions = taken, interruptions + 1


def mean_run(runs, **setup):
    """Mean seconds, interruptions and seconds of waiting of many runs."""
    results = [simulated_run(**setup, seed=seed) for seed in range(runs)]
    return tuple(sum(values) / runs for values in zip(*results))
