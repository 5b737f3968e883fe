"""Exchanges between real ranks: exact on known vectors, waiting for nobody where they say so, with faults."""

import pickle
import subprocess
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from caloscale.sagips.exchange import equal_groups, leaders
from caloscale.sagips.launch import mpi_environment, rank_command
from caloscale.spec.solver import SYNCHRONOUS, Exchange
from tests.sagips.vectors import BROKEN_EPOCH, BROKEN_RANK, EPOCHS, PLANS, gradient, groups_of_sizes

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "sagips" / "ranks.py"


def start(ranks, scenarios, target="-"):
    environment = {**mpi_environment(), "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    command = rank_command(ranks, [str(PROGRAM), scenarios, str(target)], environment)
    return subprocess.run(command, env=environment, text=True, capture_output=True, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What 9 ranks found: one start for all numbers of ranks."""
    target = tmp_path_factory.mktemp("ranks") / "found.pickle"
    ended = start(9, "sums,equal,free,slow", target)
    # A job that is aborted may end before mpiexec has passed on what its ranks wrote.
    errors = [file.read_text(encoding="utf-8") for file in sorted(target.parent.glob("rank-*.txt"))]
    assert ended.returncode == 0, "\n".join([f"exit code {ended.returncode}", ended.stdout, ended.stderr, *errors])
    return pickle.loads(target.read_bytes())


def expected(plan, ranks):
    """Averages [rank][epoch], and the gradients that each rank's averages leave out: straight from the definitions."""
    vectors = [[gradient(rank, epoch, plan.size).astype(float) for epoch in range(EPOCHS)] for rank in range(ranks)]
    groups = plan.groups(ranks)
    averages, dropped = [[] for _ in range(ranks)], [0] * ranks
    for epoch in range(EPOCHS):
        leading = leaders(groups, epoch, plan.leader, plan.seed)
        for rank in range(ranks):
            if plan.method not in SYNCHRONOUS and (epoch == 0 or plan.method == "none"):
                heard = [rank]
            elif plan.method.startswith("grouped") and ((epoch + 1) % plan.outer_every or rank not in leading):
                heard = next(group for group in groups if rank in group)
            else:
                heard = range(ranks)
            finite = [vectors[other][epoch] for other in heard if np.isfinite(vectors[other][epoch]).all()]
            averages[rank].append(np.mean(finite, axis=0) if finite else np.zeros(plan.size))
            dropped[rank] += len(heard) - len(finite)
    return averages, dropped


@pytest.mark.parametrize("name", PLANS)
def test_averages_of_known_vectors_are_exact_for_every_number_of_ranks_and_a_broken_gradient_is_left_out(found, name):
    assert not np.isfinite(gradient(BROKEN_RANK, BROKEN_EPOCH, PLANS[name].size)).all()
    made = {size: ranks for plan, size, ranks in found["sums"] if plan == name}
    assert sorted(made) == list(range(1, 10))
    for ranks, results in made.items():
        averages, dropped = expected(PLANS[name], ranks)
        for rank, (got, left_out) in enumerate(results):
            np.testing.assert_allclose(got, averages[rank], rtol=2e-6, atol=2e-5, err_msg=f"{name} {rank}/{ranks}")
            assert left_out == dropped[rank], (name, rank, ranks)


def test_after_a_synchronous_exchange_all_ranks_have_the_same_bits_from_the_first_epoch_on(found):
    assert found["equal"] == {(method, ranks): True for method in SYNCHRONOUS for ranks in range(1, 10)}


def origins(averages, own, first_epoch=1):
    """Epoch of the gradient of each rank in each average, 0 where it has none: (epochs, ranks)."""
    low, high = np.moveaxis(np.array(averages), 1, 0)
    # Each segment has one value: no vector was read while it was written.
    np.testing.assert_array_equal(low, high)
    epochs = np.arange(first_epoch, first_epoch + len(low))
    summands = np.rint(epochs / low[:, own])
    of = low * summands[:, None]
    np.testing.assert_allclose(of, np.rint(of), atol=1e-3)
    of = np.rint(of).astype(int)
    np.testing.assert_array_equal((of > 0).sum(1), summands)
    np.testing.assert_array_equal(of[:, own], epochs)
    return of


def check_counts(of, own, counts):
    """What an exchange counts agrees with what is in its averages."""
    epochs, ranks = of.shape
    others = np.delete(of, own, axis=1)
    used = others > 0
    assert counts["exchanges"] == epochs and counts["dropped"] == 0
    assert counts["contributions"] == used.sum()
    assert counts["stale"] == (used & (others < of[:, own, None])).sum()
    assert counts["age"] == np.maximum(of[:, own, None] - others, 0)[used].sum()
    assert counts["contributions"] + counts["repeated"] + counts["missing"] == epochs * (ranks - 1)
    for column in others.T:
        # Each gradient is used at most once, and an older one never after a newer.
        assert (np.diff(column[column > 0]) > 0).all()


def test_remote_memory_without_waiting_uses_each_gradient_once_and_whole_and_knows_what_is_stale(found):
    assert sorted(map(len, found["free"])) == [4, 5, 9]
    for part in found["free"]:
        for rank, (averages, counts) in enumerate(part):
            check_counts(origins(averages, rank), rank, counts)


def test_nobody_waits_for_a_slow_rank(found):
    made = found["slow"]
    # Rank 0 had these messages before its second exchange.
    assert made["done"] == [30, 30, 30]
    contents = [origins(averages, rank) for rank, (averages, _) in enumerate(made["ranks"])]
    for rank, (_, counts) in enumerate(made["ranks"]):
        check_counts(contents[rank], rank, counts)
    # The gradient of its first epoch is all that the others had of it, once at most, and of ranks behind it as well.
    for rank in (1, 2, 3):
        assert set(contents[rank][:, 0]) <= {0, 1} and (contents[rank][:, 0] == 1).sum() <= 1
    # What rank 1 reads stands still after the first epoch: each of the three slots is new once at most.
    of_one = made["ranks"][1][1]
    assert of_one["contributions"] <= 3 and of_one["repeated"] + of_one["missing"] >= 3 * 30 - 3


@pytest.mark.parametrize("method", ["ring", "grouped-rma"])
def test_a_killed_rank_ends_the_job_and_is_named(method):
    ended = start(3, f"endless,{method},kill")
    assert ended.returncode != 0
    assert "signal 9" in ended.stderr and "rank 1" in ended.stderr


def test_an_error_of_one_rank_ends_the_job_and_is_shown():
    ended = start(2, "endless,ring,error")
    assert ended.returncode != 0
    assert "RuntimeError: no data file on this rank" in ended.stderr


def test_leaders():
    groups = groups_of_sizes([1, 3, 2])
    assert leaders(groups, 7, "first", 1) == (0, 1, 4)
    drawn = [leaders(groups, epoch, "random", 1) for epoch in range(200)]
    assert drawn == [leaders(groups, epoch, "random", 1) for epoch in range(200)]
    assert [set(ranks) for ranks in zip(*drawn)] == [{0}, {1, 2, 3}, {4, 5}]
    assert drawn != [leaders(groups, epoch, "random", 2) for epoch in range(200)]


def test_the_exchanges_of_the_configuration_are_those_that_are_tested():
    assert {plan.method for plan in PLANS.values()} == set(get_args(Exchange))


def test_equal_groups_are_as_equal_as_possible():
    assert equal_groups(3, 7) == ((0, 1, 2), (3, 4), (5, 6)) and equal_groups(1, 2) == ((0, 1),)
