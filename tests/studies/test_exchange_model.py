"""The alpha-beta model against simulations message by message, and its limits."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caloscale.studies import contenders
from caloscale.studies.exchange_model import model_nodes, model_step

LINKS = {
    "gradientBytes": [1e8],
    "computeSeconds": 0.2,
    "latencySeconds": 5e-5,
    "bytesPerSecond": 1.25e9,
    "insideLatencySeconds": 5e-6,
    "insideBytesPerSecond": 1e10,
    "perNode": 4,
}


def simulated_ring(values, latency, bandwidth):
    """An all-reduce of one chunk a member, message by message: seconds and what each member has in the end.

    values: of each member its chunks, numbers. A chunk has size 1; in a step each member sends one chunk to the next.
    """
    members, clock = len(values), 0.0
    held = [list(chunks) for chunks in values]
    for step in range(2 * (members - 1)):
        sent = [(member, (member - step) % members) for member in range(members)]
        moved = [(member, chunk, held[member][chunk]) for member, chunk in sent]
        for member, chunk, value in moved:
            target = held[(member + 1) % members]
            target[chunk] = target[chunk] + value if step < members - 1 else value
        clock += latency + 1 / bandwidth
    return clock, held


@given(st.integers(2, 9), st.floats(1e-6, 1e-2), st.floats(1.0, 1e6))
def test_a_ring_takes_what_its_messages_take(members, latency, bandwidth):
    values = [[100 * member + chunk for chunk in range(members)] for member in range(members)]
    seconds, held = simulated_ring(values, latency, bandwidth)
    assert all(chunks == [sum(column) for column in zip(*values)] for chunks in held)
    asked = {**LINKS, "perNode": 1, "gradientBytes": [members], "workers": members}
    found = model_step({**asked, "latencySeconds": latency, "bytesPerSecond": bandwidth})
    assert found["exchangeSeconds"] == pytest.approx(seconds)


def test_a_hierarchical_ring_has_its_latency_in_nodes_and_a_flat_ring_in_workers():
    flat, hierarchical = (
        [model_step({**LINKS, "method": method, "workers": n}) for n in (64, 128, 4096)]
        for method in ("ring", "hierarchical")
    )
    for one, other, workers in zip(flat, hierarchical, (64, 128, 4096)):
        assert one["exchangeLatencySeconds"] == pytest.approx(2 * (workers - 1) * 5e-5)
        assert other["exchangeLatencySeconds"] == pytest.approx(2 * (workers // 4 - 1) * 5e-5 + 2 * 3 * 5e-6)
    assert flat[-1]["samplesPerSecond"] < hierarchical[-1]["samplesPerSecond"]


@pytest.mark.parametrize("method", ["ring", "hierarchical", "parameter-server"])
def test_one_worker_exchanges_nothing_and_more_wait_for_the_slowest(method):
    alone = model_step({**LINKS, "method": method, "workers": 1, "spreadSeconds": 0.01})
    assert alone["exchangeSeconds"] == alone["waitSeconds"] == 0 and alone["efficiency"] == 1
    many = model_step({**LINKS, "method": method, "workers": 16, "spreadSeconds": 0.01, "batchPerWorker": 8})
    assert many["waitSeconds"] == pytest.approx(0.01 * math.sqrt(2 * math.log(16)))
    assert many["samplesPerSecond"] * many["stepSeconds"] == pytest.approx(16 * 8)


def test_parameter_servers_are_limited_by_their_links():
    """With one server all gradients and weights cross one link; with as many servers as nodes each node's own does."""
    one, many = (
        model_step({**LINKS, "method": "parameter-server", "workers": 32, "servers": servers}) for servers in (1, 32)
    )
    assert one["exchangeTransferSeconds"] == pytest.approx(2 * 32 * 1e8 / 1.25e9)
    assert many["exchangeTransferSeconds"] == pytest.approx(2 * 4 * 1e8 / 1.25e9)


NODES = {
    "model.preset": "fixed-angle",
    "train.batchPerReplica": 8,
    "processes": 2,
    "showers": 180000,
    "latencySeconds": 2e-6,
    "bytesPerSecond": 1.25e10,
}


def test_nodes_are_modelled_from_one_measured_step(tmp_path, monkeypatch):
    """946,210 weights are exchanged twice by rings; 128 nodes of 2 processes and a batch of 8 make 88 steps."""
    asked = []
    figures = {"meanStepSeconds": 2.0, "cv": 0.01}
    monkeypatch.setattr(contenders, "time_steps", lambda inputs: asked.append(inputs) or figures)
    one, many = (model_nodes({**NODES, "nodes": nodes, "processes": 1}, tmp_path) for nodes in (1, 256))
    assert one["stepSeconds"] == 2.0 and one["epochMinutes"] == pytest.approx(22500 * 2 / 60) and one["workers"] == 1
    assert many["stepsPerEpoch"] == 88 and many["workers"] == 256
    assert many["exchangeTransferSeconds"] == pytest.approx(2 * 2 * 255 / 256 * 4 * 946210 / 1.25e10)
    assert many["exchangeLatencySeconds"] == pytest.approx(4 * 2 * 255 * 2e-6)
    assert many["waitSeconds"] == pytest.approx(0.02 * math.sqrt(2 * math.log(256)))
    assert len(asked) == 1 and "nodes" not in asked[0] and asked[0]["model.preset"] == "fixed-angle"
    model_nodes({**NODES, "nodes": 256}, tmp_path)
    assert len(asked) == 2  # two processes are another step


@pytest.mark.integration
def test_an_epoch_on_nodes_like_this_machine(tmp_path):
    inputs = {**NODES, "model.preset": "compact", "processes": 1, "steps": 2, "nodes": 4}
    found = model_nodes(inputs, tmp_path)
    assert found["measuredStepSeconds"] > 0 and found["stepSeconds"] > found["measuredStepSeconds"]
    assert 0 < found["efficiency"] < 1
