"""Measured events from the truth and from HDF5, and the share of a rank."""

import sys
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from scipy import stats

from caloscale.errors import ConfigurationError, InputError
from caloscale.random import EventDraws
from caloscale.sagips.data import _drawn, fraction_of_rank, measured_events, sample_of
from caloscale.sagips.environment import EVENTS
from caloscale.spec import DataSet, load_solver_run
from tests.sagips.toy import Normal

FIELD = "solver.dataSets.0.environment"
NORMAL = {"environment": "tests.sagips.toy.Normal", "options": {"truth": [0.65, 0.4]}}


def data(**fields: object) -> DataSet:
    return DataSet.model_validate({**NORMAL, **fields})


def test_events_of_the_truth_have_the_distribution_of_the_truth() -> None:
    events = measured_events(data(events=20_500), 0, 1)
    assert events.shape == (20_500, 1)
    assert stats.kstest(events[:, 0], stats.norm(4 * 0.65 - 2, 0.2 + 1.8 * 0.4).cdf).pvalue > 0.01
    for index, seed in ((0, 2), (1, 1), (1, 0)):  # another seed, another data set of the run, that of another seed
        assert not np.array_equal(events, measured_events(data(events=20_500), index, seed))


def test_a_pipeline_is_recognised_by_its_events_or_by_its_code_where_it_draws_numbers_of_its_own(
    monkeypatch, tmp_path: Path
) -> None:
    """By events with numbers of its own it would be taken for another one when a run resumes."""

    def sample(name: str) -> tuple[float, ...]:
        return sample_of(toy, name, 20, FIELD)

    toy, random, make = Normal(20), np.random.default_rng(1), Normal.__call__
    assert sample("mine.Toy") == sample("mine.Toy") and len(sample("mine.Toy")) == 2 + 1 + 16
    monkeypatch.setattr(Normal, "__call__", lambda *given: {EVENTS: make(*given)[EVENTS] + random.normal()})
    (tmp_path / "mine.py").write_text("SHIFT = 1")
    monkeypatch.setitem(sys.modules, "mine.detector", SimpleNamespace(__file__=str(tmp_path / "mine.py")))
    before = sample("mine.Toy")
    assert before == sample("mine.Toy") and before[:2] == (0.65, 0.4)
    (tmp_path / "mine.py").write_text("SHIFT = 2")
    assert not np.allclose(before, sample("mine.Toy"), rtol=1e-3)


@pytest.mark.parametrize(
    ("made", "shape"),
    [
        (lambda events: {EVENTS: events[:, :, 0]}, r"\(1, 20\)"),
        (lambda events: {EVENTS: events[:, 1:]}, r"\(1, 19, 1\)"),
        (lambda events: {"event": events}, "None"),
    ],
)
def test_events_of_another_shape_are_named(monkeypatch, made, shape: str) -> None:
    make = Normal.__call__
    monkeypatch.setattr(Normal, "__call__", lambda *given: made(make(*given)[EVENTS]))
    with pytest.raises(ConfigurationError, match=rf"^{FIELD}: makes events of the shape {shape}.*not \(1, 20, 1\)"):
        sample_of(Normal(20), "tests.sagips.toy.Normal", 20, FIELD)


def test_events_are_read_from_hdf5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a sorted file: a sample of all events, in random order, the same for the same seed."""
    monkeypatch.setattr("caloscale.sagips.data._BLOCK", 300)
    written = np.arange(2000, dtype=np.float32)[:, np.newaxis]
    with h5py.File(tmp_path / "events.h5", "w") as file:
        file["measured"] = written
    source = {"source": str(tmp_path / "events.h5"), "dataset": "measured"}
    some, every = (measured_events(data(**source, events=events), 0, 1)[:, 0] for events in (400, None))
    np.testing.assert_array_equal(np.sort(every), written[:, 0])
    assert len(np.unique(some)) == 400
    for part in (some, some[:100], every[:100], every[1::4]):
        assert stats.kstest(part, stats.uniform(0, 2000).cdf).pvalue > 0.01
    np.testing.assert_array_equal(measured_events(data(**source, events=400), 0, 1)[:, 0], some)
    assert not np.array_equal(measured_events(data(**source, events=400), 0, 2)[:, 0], some)


@pytest.mark.parametrize(
    ("array", "name", "words"),
    [
        (np.zeros((5, 2)), "events", "the shape"),
        (np.full((5, 1), np.nan), "events", "not finite"),
        (np.zeros((5, 1)), "others", "has no array"),
    ],
)
def test_a_file_that_does_not_fit_is_named(array: np.ndarray, name: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "events.h5"
    with h5py.File(file, "w") as opened:
        opened[name] = array
    with pytest.raises(InputError, match=words) as caught:
        measured_events(data(source=str(file)), 0, 1)
    assert caught.value.file == str(file) and caught.value.remedy


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("no HDF5")
    with pytest.raises(InputError, match="is truncated or damaged"):
        measured_events(data(source=str(tmp_path / "text.h5")), 0, 1)


@pytest.mark.parametrize(("rows", "events", "ranks"), [(2000, None, 3), (2000, 700, 4), (7, None, 4)])
def test_shards_of_a_file_are_disjoint_and_together_all_events(
    tmp_path: Path, rows: int, events: int | None, ranks: int
) -> None:
    """Each is a sample of all parts of the sorted file."""
    written = np.arange(rows, dtype=np.float64)[:, np.newaxis]
    with h5py.File(tmp_path / "events.h5", "w") as file:
        file["events"] = written
    source = data(source=str(tmp_path / "events.h5"), events=events)
    shards = [measured_events(source, 0, 1, rank, ranks)[:, 0] for rank in range(ranks)]
    together = np.concatenate(shards)
    assert len(np.unique(together)) == len(together) == (events or rows)
    assert set(together) <= set(written[:, 0])
    assert all(len(shard) > len(together) / ranks - 40 for shard in shards)
    if rows == 2000:
        assert all(stats.kstest(shard, stats.uniform(0, rows).cdf).pvalue > 0.01 for shard in shards)


def test_a_shard_is_all_that_a_rank_reads() -> None:
    class Counted:
        shape = (1000, 1)

        def __len__(self) -> int:
            return 1000

        def __getitem__(self, rows: slice) -> np.ndarray:
            read.update(range(*rows.indices(1000)))
            return np.zeros((rows.stop - rows.start, 1))

    read: set[int] = set()
    shard = _drawn(Counted(), 1000, np.random.default_rng(1), rank=2, ranks=4)
    assert len(read) == len(shard) == 249  # 83 of the 334 blocks of 3 rows


def test_shards_of_the_truth_are_those_of_all_events() -> None:
    everything = measured_events(data(events=3_001), 0, 1)
    shards = [measured_events(data(events=3_001), 0, 1, rank, 4) for rank in range(4)]
    np.testing.assert_allclose(np.concatenate(shards), everything, rtol=1e-6)
    assert {len(shard) for shard in shards} == {750, 751}


def test_a_shard_is_all_that_a_rank_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    class Counted(EventDraws):
        def __init__(self, seed: int, step: int, section: int, first: int, count: int) -> None:
            super().__init__(seed, step, section, first, count)
            made.append(count)

    monkeypatch.setattr("caloscale.sagips.data.EventDraws", Counted)
    measured_events(data(events=40_000), 0, 1, rank=3, ranks=4)
    assert made == [10]


def test_a_fraction_is_drawn_without_replacement_and_differs_between_ranks() -> None:
    events = np.arange(1000, dtype=np.float32)[:, np.newaxis]
    solver = load_solver_run(preset="proxy", overrides=["solver.dataFraction=0.25"]).solver
    one, other = (fraction_of_rank(events, solver, rank, np.random.default_rng(rank)) for rank in range(2))
    assert len(np.unique(one)) == len(np.unique(other)) == 250
    assert not np.array_equal(one, other)


def test_a_rank_without_events_is_refused() -> None:
    solver = load_solver_run(preset="proxy", overrides=["solver.ranks=4", "solver.data=sharded"]).solver
    shard = measured_events(data(events=3), 0, 1, rank=0, ranks=4)
    with pytest.raises(ConfigurationError, match="leaves rank 0 no measured events"):
        fraction_of_rank(shard, solver, 0, np.random.default_rng(1))
