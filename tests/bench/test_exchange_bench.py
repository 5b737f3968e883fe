"""The bench of the exchanges from beginning to end, with two ranks."""

from __future__ import annotations

import pytest

from caloscale.bench.exchange import TENSORS, bench_exchange
from caloscale.bench.results import ExchangeBench
from caloscale.bench.tables import bench_tables
from caloscale.sagips.exchange import COMPARED, METHODS


@pytest.mark.long
def test_exchanges_are_measured_counted_and_modelled():
    made = bench_exchange(ranks=(2,), rounds=1, modelled=(8,), epoch_overrides=["solver.parameterSamples=8"])
    assert ExchangeBench.model_validate_json(made.model_dump_json(by_alias=True)) == made
    assert sum(TENSORS) == 50_688
    fused = [one.method for one in made.times if one.tensors == 1 and not one.in_step]
    assert fused == [*METHODS[1:], *COMPARED]
    for one in made.times:
        assert (one.new_share is None) == (one.method != "grouped-rma") and 0 <= (one.new_share or 0) <= 1
    assert [one.method for one in made.counts] == list(METHODS)
    for one in made.counts:
        # No rank ends its epochs before it has computed, in the model as well.
        assert min(one.epoch_seconds, one.modelled_epoch_seconds) >= one.computing_seconds
        if one.method == "grouped-rma":
            for stale, repeated in (
                (one.stale_share, one.repeated_share),
                (one.modelled_stale_share, one.modelled_repeated_share),
            ):
                assert stale >= 0 and repeated >= 0 and stale + repeated <= 1
    assert {one.ranks for one in made.scaling} == {8}
    # Two passes forward and backward of 256 + 3 * 128 * 128 + 128 weights, and one forward and back to the events.
    assert [(one.precision, one.events, one.flop) for one in made.epochs] == [
        (precision, 800, 16 * 49_536 * 800) for precision in ("float32", "bfloat16")
    ]
    epochs, times, counts, scaling = bench_tables(made)
    assert len(epochs.rows) == 2
    assert len(times.rows) == len(made.times) and len(counts.rows) == len(METHODS)
    assert "Not measured" in scaling.note
