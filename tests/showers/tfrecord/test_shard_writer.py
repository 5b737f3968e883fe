from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caloscale.showers.tfrecord.records import SCALARS, Prepared, read_batches
from caloscale.showers.tfrecord.shards import ShardPlan, ShardWriter, plan_shards


@given(st.integers(1, 2_000_000), st.sampled_from([(17, 17, 25), (51, 51, 25), (2, 2, 2)]))
def test_plan_holds_all_showers_in_shards_of_bounded_size(showers: int, shape: tuple[int, int, int]) -> None:
    for part in ("train", "validation"):
        plan = plan_shards(part, showers, shape)
        assert plan.shards * plan.showers_per_shard >= showers
        assert plan.showers_per_shard * 4 * np.prod(shape) <= 128 * 2**20 + 4 * np.prod(shape)
        assert 1 <= plan.shards <= showers


@pytest.mark.parametrize(("showers", "shards"), [(1, 1), (5, 5), (1440, 8), (8000, 16), (124_950, 256)])
def test_training_shards_divide_among_workers(showers: int, shards: int) -> None:
    assert plan_shards("train", showers, (51, 51, 25)).shards == shards


@pytest.mark.parametrize(
    ("plan", "count", "expected"),
    [
        (ShardPlan(8, 3), 24, [3] * 8),
        (ShardPlan(8, 3), 22, [3] * 6 + [2] * 2),
        (ShardPlan(20, 2), 40, [2] * 20),  # more than a group
        (ShardPlan(20, 2), 35, [2] * 16 + [1] * 3),  # fewer came than planned
        (ShardPlan(8, 3), 5, [1] * 5),
    ],
)
def test_showers_are_spread_evenly(tmp_path: Path, plan: ShardPlan, count: int, expected: list[int]) -> None:
    numbers = np.arange(count, dtype=np.float32)
    showers = Prepared(np.ones((count, 1, 1, 1), np.float32), dict.fromkeys(SCALARS, numbers))
    with ShardWriter(tmp_path, "train", plan) as writer:
        for part in np.array_split(np.random.default_rng(1).permutation(count), 2):
            writer.write(showers[part], part)
        shards = writer.finish()
    assert [shard.showers for shard in shards] == expected
    names = [f"train-{index:05d}-of-{len(expected):05d}.tfrecord" for index in range(len(expected))]
    assert [shard.file for shard in shards] == names == sorted(path.name for path in tmp_path.iterdir())
    found = [next(read_batches(tmp_path / shard.file, (1, 1, 1)))["ecal_sum"] for shard in shards]
    assert sorted(np.concatenate(found)) == numbers.tolist()
    group = np.concatenate(found[:16])
    assert sorted(group) == list(range(len(group))), "the first group of shards holds the first showers"
