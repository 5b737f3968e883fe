"""Node pools of GKE as gcloud commands."""

import re
import shlex

import pytest
from typer.testing import CliRunner

from caloscale.cli.main import app
from caloscale.cluster.capacity.gke_pools import NodePool, catalogue_pools, gcloud_command

POOLS = catalogue_pools()


def options(pool: NodePool) -> dict[str, str]:
    """Options of the gcloud command, as a shell reads it."""
    words = shlex.split(gcloud_command(pool, cluster="one", location="europe-west4-a").replace("\\\n", " "))
    assert words[:5] == ["gcloud", "container", "node-pools", "create", pool.name]
    return {key.removeprefix("--"): value for key, _, value in (word.partition("=") for word in words[5:])}


def test_there_are_pools_of_every_kind() -> None:
    have = {(pool.kind.accelerator, pool.kind.per_node, pool.capacity_type) for pool in POOLS}
    for accelerator in ("nvidia-tesla-v100", "nvidia-tesla-a100", "nvidia-l4"):
        assert {(accelerator, gpus, how) for gpus in (1, 2, 4, 8) for how in ("spot", "on-demand")} <= have
    # Google sells a part of an H100 host as spot only.
    assert {("nvidia-h100-80gb", gpus, "spot") for gpus in (1, 2, 4, 8)} <= have
    assert ("nvidia-h100-80gb", 8, "on-demand") in have
    assert ("nvidia-h100-80gb", 4, "on-demand") not in have
    assert {f"tpu-{generation}" for generation in ("v3", "v4", "v5e", "v5p", "v6e")} <= {
        p.kind.accelerator for p in POOLS
    }


def test_names_are_those_that_gke_takes_and_all_different() -> None:
    names = [pool.name for pool in POOLS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z][a-z0-9-]{0,38}[a-z0-9]", name) for name in names)


@pytest.mark.parametrize("pool", POOLS, ids=lambda pool: pool.name)
def test_the_command_has_what_the_pool_is(pool: NodePool) -> None:
    given = options(pool)
    assert (given["cluster"], given["location"], given["machine-type"]) == (
        "one",
        "europe-west4-a",
        pool.kind.machine_type,
    )
    several_hosts = pool.kind.topology is not None and pool.max_nodes > 1
    bounds = ("min-nodes", "max-nodes") if several_hosts else ("total-min-nodes", "total-max-nodes")
    assert [given[key] for key in ("num-nodes", *bounds)] == ["0", "0", str(pool.max_nodes)]
    assert len([key for key in given if key.endswith(("min-nodes", "max-nodes"))]) == 2
    spot = {"spot": "", "node-taints": "cloud.google.com/gke-spot=true:NoSchedule"}
    assert {key: given[key] for key in spot.keys() & given} == (spot if pool.capacity_type == "spot" else {})
    if pool.kind.topology is None:
        assert given["accelerator"].startswith(f"type={pool.kind.accelerator},count={pool.kind.per_node},")
        assert "enable-fast-socket" in given
    else:
        assert "accelerator" not in given and pool.max_nodes == pool.kind.hosts
        assert given.get("tpu-topology") == (pool.kind.topology if pool.max_nodes > 1 else None)


def test_old_gpu_hosts_are_not_placed_close_together() -> None:
    """n1 machines know no compact placement, a2 machines do."""
    compact = {pool.kind.machine_type for pool in POOLS if "placement-type" in options(pool)}
    assert "a2-highgpu-8g" in compact and "n1-standard-64" not in compact


def test_the_command_prints_the_pool_of_a_run(tmp_path) -> None:
    run = tmp_path / "run.yaml"
    run.write_text(
        "model: {preset: variable-angle}\n"
        "hardware: {accelerator: nvidia-tesla-v100, count: 32, perNode: 8, region: europe-west4, capacityType: spot}\n"
    )
    arguments = ["node-pools", str(run), "--as-of", "2026-11-21", "--location", "europe-west4-a"]
    printed = CliRunner().invoke(app, arguments)
    assert printed.exit_code == 0
    assert "node-pools create v100-8-spot" in printed.output and "--total-max-nodes=4" in printed.output
    assert "--disk-size=100 " in printed.output
    elsewhere = CliRunner().invoke(app, [*arguments[:-1], "us-central1-a"])
    assert elsewhere.exit_code != 0 and elsewhere.exception and "hardware.region" in str(elsewhere.exception)
    here, there = (
        CliRunner().invoke(app, [*arguments[:-1], zone, "--set", "hardware.region=null"]).output.splitlines()[0]
        for zone in ("europe-west4-a", "us-central1-a")
    )
    assert here == printed.output.splitlines()[0] != there  # the price of the region in which the pool is made


def test_the_disk_is_the_one_that_is_billed() -> None:
    command = gcloud_command(POOLS[0], cluster="one", location="europe-west4-a", disk_gib=499.5)
    assert "--disk-size=500 " in command
