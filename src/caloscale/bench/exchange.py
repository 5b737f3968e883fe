"""The bench of the solver's exchanges: ranks on this machine, and a model of them on many."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from caloscale.bench.machine import describe_machine
from caloscale.bench.results import (
    ExchangeBench,
    ExchangeCounts,
    ExchangeLinks,
    ExchangeScaling,
    ExchangeTime,
    SolverEpoch,
)
from caloscale.bench.rounds import Contender, interleave, timing
from caloscale.errors import BenchError
from caloscale.progress import bar
from caloscale.sagips.exchange import COMPARED, METHODS
from caloscale.sagips.groups import groups_of_sizes
from caloscale.sagips.mpi import mpi_environment, mpiexec_command
from caloscale.sagips.scaling import ExchangePlan, Link, Network, Outcome, simulate, straggling_times
from caloscale.spec import load_solver_run

TENSORS = (768, 16_384, 16_384, 16_384, 768)
"""Weights of the layers of the published generator: 50,688 floats without biases."""
GROUP, OUTER_EVERY = 4, 5
RANKS = (4, 8, 12)
SWEEPS, ROUNDS, EXCHANGES = 3, 3, 10
"""All numbers of ranks are measured so many times, with so many rounds of so many exchanges."""
IMITATED_EPOCHS = 100
COMPUTING = {"mean_seconds": 0.02, "width": 0.3, "share": 0.02, "factor": 4.0}
"""Imitated epochs: 20 ms, log-normal with a width of 30%, one in 50 four times as long."""
LONGEST_SECONDS = 1200.0
"""Time after which ranks that do not end are ended."""

EPOCH_SECONDS = 60.0
"""Time for the epochs at the published batch, s."""

MODELLED_RANKS = (4, 40, 400, 4000)
MODELLED_EPOCHS = 30
MODELLED_COMPUTING = ({"mean_seconds": 0.585}, {"mean_seconds": 0.02})
"""An epoch at the published batch, as it took in TensorFlow on two cores, and a short one, as on an accelerator."""
MODELLED_STRAGGLERS = {"width": 0.05, "share": 0.01, "factor": 2.0}
ASSUMED_NETWORK = Link(alpha_seconds=10e-6, bytes_per_second=10e9)
"""Messages between nodes: assumed, not measured."""

FLOAT_BYTES = 4


def bench_exchange(
    *,
    ranks: Sequence[int] = RANKS,
    rounds: int | None = None,
    modelled: Sequence[int] = MODELLED_RANKS,
    epoch_overrides: Sequence[str] = (),
) -> ExchangeBench:
    """Time the exchanges, count with stragglers, and compare with the model; time epochs of a solver.

    epoch_overrides: of the preset proxy-paper, in whose epochs an exchange is. Raises BenchError when a rank fails.
    """
    machine = describe_machine()
    epochs = _time_epochs(epoch_overrides, rounds)
    steps = 1 + SWEEPS * len(ranks) + len(ranks) + len(modelled)
    with bar("bench exchange", steps, "jobs") as shown:

        def job(count: int, **settings: Any) -> Any:
            found = _run_ranks(count, {"outerEvery": OUTER_EVERY, "floats": sum(TENSORS), **settings})
            shown.update(1)
            return found

        links = ExchangeLinks.model_validate(job(2, part="links"))
        contenders = _contenders()
        found: dict[int, list[list[dict[str, Any]]]] = {count: [] for count in ranks}
        for _ in range(SWEEPS):
            for count in ranks:
                settings = {"groups": _groups(count), "rounds": rounds or ROUNDS, "exchanges": EXCHANGES}
                found[count].append(job(count, part="times", contenders=contenders, **settings))
        counts: list[ExchangeCounts] = []
        for count in ranks:
            settings = {"groups": _groups(count), "epochs": IMITATED_EPOCHS, "computing": COMPUTING}
            counts += _compare(count, job(count, part="stragglers", **settings), links)
        scaling: list[ExchangeScaling] = []
        for count in modelled:
            scaling += _scale(count, links)
            shown.update(1)
    return ExchangeBench(
        tensors=TENSORS,
        group=GROUP,
        outer_every=OUTER_EVERY,
        links=links,
        times=tuple(
            ExchangeTime(
                ranks=count,
                method=contender["method"],
                tensors=len(contender["sizes"]),
                in_step=contender["inStep"],
                spread=timing([seconds for sweep in sweeps for seconds in sweep[index]["seconds"]]),
                new_share=sweeps[-1][index]["newShare"],
            )
            for count, sweeps in found.items()
            for index, contender in enumerate(contenders)
        ),
        counts=tuple(counts),
        scaling=tuple(scaling),
        epochs=epochs,
        machine=machine,
    )


def _time_epochs(overrides: Sequence[str], rounds: int | None) -> tuple[SolverEpoch, ...]:
    """Epochs and large matrix products by turns, all on the same core."""
    precisions = ("float32", "bfloat16")
    core = sorted(os.sched_getaffinity(0))[:1]
    runs = [
        load_solver_run(preset="proxy-paper", overrides=["solver.ranks=1", f"solver.precision={name}", *overrides])
        for name in precisions
    ]
    with ExitStack() as stack:
        epochs = [
            Contender(
                "epoch " + name,
                "solver-epoch",
                {"configuration": run.model_dump(mode="json", by_alias=True)},
                cores=core,
            )
            for name, run in zip(precisions, runs)
        ]
        products = [Contender("product " + name, "product", {"precision": name}, cores=core) for name in precisions]
        for contender in (*epochs, *products):
            stack.enter_context(contender)
        interleave([*epochs, *products], "bench solver epochs", EPOCH_SECONDS, rounds)
    return tuple(
        SolverEpoch(
            precision=name,
            events=run.solver.events_per_rank,
            flop=epoch.facts["flop"],
            spread=epoch.timing(),
            product_flop_per_second=product.facts["flop"] / product.timing().median,
        )
        for name, run, epoch, product in zip(precisions, runs, epochs, products)
    )


def _contenders() -> list[dict[str, Any]]:
    """Every method with one fused vector; those of the paper also per tensor; remote memory also with barriers."""
    fused = [sum(TENSORS)]
    exchanging = METHODS[1:]
    return [
        *({"method": method, "sizes": fused, "inStep": False} for method in (*exchanging, *COMPARED)),
        {"method": "grouped-rma", "sizes": fused, "inStep": True},
        *({"method": method, "sizes": TENSORS, "inStep": False} for method in exchanging),
    ]


def _groups(ranks: int) -> list[int]:
    """Sizes: `GROUP` ranks each, and a smaller group for the rest."""
    return [min(GROUP, ranks - first) for first in range(0, ranks, GROUP)]


def _run_ranks(count: int, settings: dict[str, Any]) -> Any:
    with TemporaryDirectory() as folder:
        target = Path(folder) / "result.json"
        arguments = ["-m", "caloscale.bench.exchange_worker", json.dumps(settings), str(target)]
        try:
            ended = subprocess.run(
                mpiexec_command(count, arguments),
                env={"OPENBLAS_NUM_THREADS": "1", **mpi_environment()},
                capture_output=True,
                stdin=subprocess.DEVNULL,
                text=True,
                timeout=LONGEST_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"{count} ranks did not end within {LONGEST_SECONDS:.0f} s") from error
        if ended.returncode:
            problem = " ".join(ended.stderr.split()[-80:])
            raise BenchError(f"{count} ranks ended with exit code {ended.returncode}: {problem}")
        return json.loads(target.read_text(encoding="utf-8"))


def _plan(method: str, ranks: int) -> ExchangePlan:
    groups = groups_of_sizes(_groups(ranks), ranks)
    return ExchangePlan(method, groups, FLOAT_BYTES * sum(TENSORS), outer_every=OUTER_EVERY)


def _network(links: ExchangeLinks, between: Link | None = None) -> Network:
    within = Link(links.message_seconds, links.message_bytes_per_second)
    return Network(within, between or within, Link(links.window_seconds, links.window_bytes_per_second))


def _compare(ranks: int, found: dict[str, dict[str, Any]], links: ExchangeLinks) -> list[ExchangeCounts]:
    """What was measured with stragglers, and what the model gives for the computing times that really passed."""
    compared = []
    for method, one in found.items():
        computing = np.array(one["computing"]).T
        made = simulate(_plan(method, ranks), computing, _network(links))
        measured = Outcome(
            ended=np.array([one["ended"]]),
            computing=computing.sum(0, keepdims=True),
            contributions=one["contributions"],
            stale=one["stale"],
            repeated=one["repeated"],
            missing=one["missing"],
        )
        remote = method == "grouped-rma"
        compared.append(
            ExchangeCounts(
                ranks=ranks,
                method=method,
                computing_seconds=float(computing.mean()),
                epoch_seconds=measured.seconds_per_epoch / len(computing),
                modelled_epoch_seconds=made.seconds_per_epoch,
                stale_share=measured.stale / made.slots if remote else None,
                modelled_stale_share=made.stale / made.slots if remote else None,
                repeated_share=(measured.repeated + measured.missing) / made.slots if remote else None,
                modelled_repeated_share=(made.repeated + made.missing) / made.slots if remote else None,
            )
        )
    return compared


def _scale(ranks: int, links: ExchangeLinks) -> list[ExchangeScaling]:
    """The model on many ranks: links within a node as measured here, those between nodes and stragglers assumed."""
    made = []
    for computing in MODELLED_COMPUTING:
        times = straggling_times(MODELLED_EPOCHS, ranks, seed=1, **computing, **MODELLED_STRAGGLERS)
        for method in METHODS:
            outcome = simulate(_plan(method, ranks), times, _network(links, ASSUMED_NETWORK))
            made.append(
                ExchangeScaling(
                    ranks=ranks,
                    method=method,
                    computing_seconds=float(times.mean()),
                    # The mean rank: without exchange the slowest one would count as waiting.
                    epoch_seconds=float(outcome.ended[-1].mean()) / len(times),
                    stale_share=outcome.stale / outcome.slots if outcome.slots else None,
                )
            )
    return made
