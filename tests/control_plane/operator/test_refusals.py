"""What the API server refuses before anybody plans anything, and that it says what the parser says."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kubernetes.client.exceptions import ApiException

from caloscale.client.runs import manifest_of, submit_checked
from caloscale.cluster import names
from caloscale.connection import Connection, message_of
from caloscale.errors import ConfigurationError, InputError
from caloscale.spec import build_any_run, build_run
from tests.control_plane.operator.conftest import SPEC, Runs
from tests.control_plane.operator.process import OperatorProcess
from tests.spec.test_limits import PLACES
from tests.tools.test_custom_resource import DOCUMENTS
from tools.cluster import ControlPlane
from tools.custom_resource import custom_resource_definition

V100 = {"accelerator": "nvidia-tesla-v100"}
REFUSED: list[tuple[str, dict[str, Any] | None, str]] = [
    ("hardware", None, "a run on a cluster needs a hardware block; remedy: add hardware: {}"),
    ("hardware", {"count": 12, "perNode": 8}, "count is not a multiple of perNode; remedy"),
    ("hardware", {"count": 12, "acceleratorsPerWorker": 8}, "count is not a multiple of acceleratorsPerWorker"),
    ("hardware", {"count": 16, "perNode": 8, "nodes": 3}, "count is not nodes x perNode; remedy"),
    ("hardware", {"count": 16, "acceleratorsPerWorker": 8, "workers": 3}, "count is not workers x accelerators"),
    ("hardware", {"nodes": 2, "workers": 4}, "workers differ from nodes with placement Aligned; remedy"),
    ("hardware", {"perNode": 8, "acceleratorsPerWorker": 4}, "differ from perNode with placement Aligned"),
    ("hardware", {"topology": "4x4", "count": 8}, "count is not the number of chips of topology"),
    ("hardware", {"topology": "2x2x2", "count": 4}, "count is not the number of chips of topology"),
    ("hardware", {"topology": "4x4", "nodes": 2, "perNode": 4}, "nodes (hosts) x perNode (chips of a host)"),
    ("hardware", {"topology": "four"}, "spec.hardware.topology"),
    ("hardware", {"capacityType": "cheap"}, 'supported values: "spot", "on-demand"'),
    ("hardware", {"placement": "aligned"}, 'supported values: "Aligned", "Free"'),
    ("hardware", {"cloud": "aws"}, 'supported values: "gcp", "azure"'),
    ("hardware", {"count": 0}, "spec.hardware.count"),
    ("hardware", {"maxNodes": 5000}, "should be less than or equal to 1024"),
    ("hardware", {"count": "sixteen"}, "spec.hardware.count"),
    ("hardware", {"provisioning": "soon"}, "is not a duration; remedy: write it as 90s, 10m"),
    ("budget", {"deadline": "0h"}, "is not a duration; remedy: write it as 90s, 10m"),
    ("budget", {"deadline": "6 hours"}, "is not a duration; remedy: write it as 90s, 10m"),
    ("budget", {"deadline": "9999999d"}, "is longer than ten years; remedy: write 3650d or less"),
    ("budget", {"deadline": "3650d1s"}, "is longer than ten years; remedy"),
    ("recovery", {"elastic": {"scaleUpAfter": "99999999999999999999s"}}, "is longer than ten years; remedy"),
    ("budget", {"maxUsd": 0}, "spec.budget.maxUsd"),
    ("budget", {"maxUsd": "0.00"}, "is not an amount of US dollars; remedy: write it as 400 or"),
    ("budget", {"maxUsd": "ten"}, "is not an amount of US dollars; remedy: write it as 400 or"),
    ("recovery", {"waitForCapacity": "5x"}, "is not a duration; remedy: write it as 90s, 10m"),
    ("recovery", {"elastic": {"minNodes": 0}}, "spec.recovery.elastic.minNodes"),
    ("recovery", {"maxRestarts": -1}, "spec.recovery.maxRestarts"),
    ("data", {"energyGev": [200, 100]}, "energyGev is not a range; remedy: 0 < lower <= upper"),
    ("data", {"energyGev": [0, 100]}, "energyGev is not a range; remedy: 0 < lower <= upper"),
    ("data", {"angleDeg": [60, 170]}, "angleDeg is not a range; remedy: 20 <= lower"),
    (
        "data",
        {"geometry": {"cells": [51, 51, 24], "layers": [{"count": 25, "absorberMm": 2.4}]}},
        "layers do not add up to cells[2] times layersPerCell; remedy",
    ),
    ("data", {"validationFraction": 1}, "spec.data.validationFraction"),
    ("train", {"epochs": 0}, "spec.train.epochs"),
    ("train", {"learningRate": 0}, "spec.train.learningRate"),
    ("cluster", {"backend": "Deployment"}, 'supported values: "auto", "TFJob", "JobSet"'),
    (
        "cluster",
        {"workspace": "az://x"},
        "is no path and no address of a bucket that works here; remedy: write the path",
    ),
    ("cluster", {"workspace": "/workspace/x"}, "workspace is neither in a bucket nor below /workspace with cluster.v"),
    ("cluster", {"workspace": "/workspace/../x", "volumeClaim": "c"}, "workspace is neither in a bucket nor below"),
    ("cluster", {"workspace": "/x", "volumeClaim": "c"}, "workspace is neither in a bucket nor below /workspace"),
    ("cluster", {"dataset": "/data/shards"}, "dataset is neither in a bucket nor below /workspace with cluster.volum"),
    ("checkpoint", {"uri": "/workspace/c"}, "checkpoint.uri is neither in a bucket nor below /workspace with"),
    ("cluster", {"dataset": ""}, "is no path and no address of a bucket"),
    ("checkpoint", {"uri": "GS://b"}, "is no path and no address of a bucket"),
    ("data", {"source": "file:///x"}, "is no path and no address of a bucket"),
    ("train", {"startFrom": "~/x"}, "is no path and no address of a bucket"),
    ("cluster", {"terminationGracePeriodSeconds": 5}, "should be greater than or equal to 30"),
    ("modle", {"preset": "compact"}, "field not declared in schema"),
]


RANKS = {"solver": {"ranks": 4}, "hardware": {}, "cluster": {"volumeClaim": "shared"}}
REFUSED_SOLVERS: list[tuple[dict[str, Any], str]] = [
    ({"model": {"preset": "compact"}}, "either model or solver, not both; remedy: remove solver, or"),
    ({"train": {"epochs": 3}}, "either model or solver, not both; remedy: remove solver, or"),
    ({"cluster": {}}, "cluster.volumeClaim is absent: launcher and ranks of a solver save in one folder; remedy"),
    ({"cluster": {"volumeClaim": "c", "workspace": "gs://b/run"}}, "cluster.workspace is not below /workspace"),
    ({"cluster": {"volumeClaim": "c", "dataset": "shards"}}, "dataset is neither in a bucket nor below /workspace"),
    ({"cluster": {"volumeClaim": "c", "backend": "TFJob"}}, "cluster.backend MPIJob is for the ranks of a solver"),
    ({"hardware": {**V100, "placement": "Free"}}, "the ranks of a solver have whole nodes"),
    ({"hardware": {"topology": "2x2"}}, "the ranks of a solver have whole nodes"),
    ({"hardware": {**V100, "count": 8}}, "hardware.count is not solver.ranks"),
    ({"hardware": {"count": 5}}, "hardware.count is not solver.ranks"),
    ({"hardware": {**V100, "perNode": 3}}, "solver.ranks is not a multiple of hardware.perNode"),
    ({"solver": {"ranks": 2, "groups": 3}}, "groups is more than ranks; remedy: a group needs a rank"),
    ({"solver": {"ranks": 0}}, "spec.solver.ranks"),
    ({"solver": {"exchange": "tree"}}, 'supported values: "none", "all-reduce"'),
]


@pytest.fixture(scope="module")
def server(operator: object, control_plane: ControlPlane) -> Connection:
    return Connection(control_plane.client())


def manifest(spec: dict[str, Any], namespace: str = "default") -> dict[str, Any]:
    metadata = {"name": "gan", "namespace": namespace}
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": spec}


@pytest.mark.parametrize(("block", "fields", "message"), REFUSED, ids=[f"{b}-{f}"[:60] for b, f, _ in REFUSED])
def test_bad_documents_are_refused_with_the_remedy(
    block: str, fields: dict[str, Any] | None, message: str, server: Connection
) -> None:
    """Whoever skips `caloscale submit` reads the same; and what the server refuses, the parser refuses too."""
    spec = {key: value for key, value in SPEC.items() if key != "hardware"} | {"hardware": {**V100}}
    if fields is None:
        del spec[block]
    else:
        spec[block] = {**spec.get(block, {}), **fields}
    with pytest.raises(ApiException) as refused:
        server.apply(manifest(spec), dry_run=True)
    assert message in message_of(refused.value)
    if fields is not None:
        with pytest.raises(ConfigurationError):
            manifest_of(build_run(spec), "gan", "default")


@pytest.mark.parametrize(("blocks", "message"), REFUSED_SOLVERS, ids=[str(b)[:60] for b, _ in REFUSED_SOLVERS])
def test_bad_solver_runs_are_refused_with_the_remedy(blocks: dict[str, Any], message: str, server: Connection) -> None:
    with pytest.raises(ApiException) as refused:
        server.apply(manifest({**RANKS, **blocks}), dry_run=True)
    assert message in message_of(refused.value)
    with pytest.raises(ConfigurationError):
        manifest_of(build_any_run({**RANKS, **blocks}), "inverse", "default")


def test_places_that_last_are_taken(server: Connection) -> None:
    on_claim = {"volumeClaim": "c", "workspace": "/workspace/run", "dataset": "/workspace/shards"}
    for cluster, uri in (
        (on_claim, "/workspace/c"),
        ({"workspace": "s3://b/run", "dataset": "minio://b/d"}, "gs://b/c"),
    ):
        spec = {**SPEC, "cluster": cluster, "checkpoint": {"uri": uri}}
        server.apply(manifest(spec), dry_run=True)
        manifest_of(build_run(spec), "gan", "default")


def test_a_training_is_no_mpijob(server: Connection) -> None:
    with pytest.raises(ApiException, match="MPIJob is for the ranks of a solver"):
        server.apply(manifest({**SPEC, "cluster": {"backend": "MPIJob"}}), dry_run=True)
    with pytest.raises(ConfigurationError, match="MPIJob is for the ranks of a solver"):
        build_any_run({**SPEC, "cluster": {"backend": "MPIJob"}})


@pytest.mark.parametrize("name", ["Gan", "gan.1", "1gan", "a" * 41])
def test_names_that_pods_cannot_bear(name: str, server: Connection) -> None:
    made = manifest(SPEC)
    made["metadata"]["name"] = name
    with pytest.raises(ApiException):
        server.apply(made, dry_run=True)


@pytest.mark.parametrize("block", ["model", "data", "train", "hardware", "validation"])
def test_blocks_that_checkpoints_belong_to_stay(block: str, server: Connection, runs: Runs) -> None:
    spec = copy.deepcopy(SPEC) | {"data": {"showers": 1000}, "train": {"epochs": 2}, "validation": {"showers": 100}}
    spec["cluster"] = {"suspend": True}
    server.apply(manifest(spec, runs.namespace))
    changes = {
        "model": {"preset": "compact"},
        "data": {"showers": 2000},
        "train": {"epochs": 3},
        "hardware": {**SPEC["hardware"], "count": 32},
        "validation": {"showers": 200},
    }
    with pytest.raises(ApiException) as refused:
        server.apply(manifest({**spec, block: changes[block]}, runs.namespace))
    assert f"{block} cannot be changed: checkpoints and bill belong to it; remedy" in message_of(refused.value)
    for block, field, value in (
        ("checkpoint", "uri", "gs://other/run"),
        ("cluster", "workspace", "gs://other/run"),
        ("cluster", "volumeClaim", "other"),
        ("cluster", "backend", "JobSet"),
    ):
        with pytest.raises(ApiException) as refused:
            server.apply(manifest({**spec, block: {**spec.get(block, {}), field: value}}, runs.namespace))
        assert f"{field} cannot be changed" in message_of(refused.value)
    changed = {**spec, "budget": {"maxUsd": "5.50"}, "recovery": {"maxRestarts": 1}}
    assert server.apply(manifest(changed, runs.namespace))["metadata"]["generation"] == 2


def test_of_two_submissions_of_a_name_one_is_refused(server: Connection, runs: Runs) -> None:
    submit_checked(server, manifest(SPEC, runs.namespace), None)
    with pytest.raises(InputError, match="was made"):
        submit_checked(server, manifest(SPEC, runs.namespace), None)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(DOCUMENTS)
def test_the_server_and_the_parser_agree(server: Connection, document: dict[str, Any]) -> None:
    """What the parser takes the server takes, and stores it as the same run."""
    claim = {"volumeClaim": "shared", **document.get("cluster", {})}
    document = {**document, "hardware": document.get("hardware", {}), "cluster": claim}
    try:
        run = build_any_run(document)
        manifest_of(run, "gan", "default")
    except ConfigurationError:
        return
    stored = server.apply(manifest(document), dry_run=True)["spec"]
    assert build_any_run(stored) == run


ON_CLAIM = st.builds("/{}".format, st.lists(st.sampled_from(["workspace", "..", ".", "a..", "...", ""])).map("/".join))


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(ON_CLAIM, st.sampled_from([("cluster", "workspace"), ("cluster", "dataset"), ("checkpoint", "uri")]))
def test_the_server_and_the_parser_agree_on_what_is_on_the_claim(
    server: Connection, place: str, where: tuple[str, str]
) -> None:
    spec = {**SPEC, "cluster": {"volumeClaim": "c"}}
    spec = {**spec, where[0]: {**spec.get(where[0], {}), where[1]: place}}
    try:
        manifest_of(build_run(spec), "gan", "default")
    except ConfigurationError:
        with pytest.raises(ApiException, match=f"{where[1]} is neither in a bucket nor below /workspace"):
            server.apply(manifest(spec), dry_run=True)
    else:
        server.apply(manifest(spec), dry_run=True)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(PLACES)
def test_the_server_and_the_parser_take_the_same_places(server: Connection, place: str) -> None:
    spec = {**SPEC, "data": {"source": place}}
    try:
        build_run(spec)
    except ConfigurationError:
        with pytest.raises(ApiException, match="is no path and no address of a bucket"):
            server.apply(manifest(spec), dry_run=True)
    else:
        server.apply(manifest(spec), dry_run=True)


def test_custom_resources_of_an_older_version_are_named_by_operator_and_run(
    operator: OperatorProcess, control_plane: ControlPlane, runs: Runs, add_nodes: Callable[..., list[str]]
) -> None:
    add_nodes("v100", 2)
    runs.fake_pods(None)
    present, older = custom_resource_definition(), custom_resource_definition()
    schema = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["status"]["properties"]["placement"]

    def published() -> bool:
        status = runs.server.schemas(names.API_VERSION)[names.KIND]["properties"]["status"]["properties"]
        return "placement" not in status

    operator.stop()
    control_plane.apply([older])
    try:
        control_plane.wait_until(published, "the older custom resource is published")
        operator.start(wait=False)
        runs.create("gan")
        status = runs.until("gan", lambda status: bool(status.get("conditions")), "a status that is refused")
        (condition,) = status["conditions"]
        assert (condition["type"], condition["reason"]) == ("StatusWritten", "Refused")
        assert ".status.placement: field not declared in schema; remedy: install" in condition["message"]
        notes = [event["note"] for event in runs.server.each("Event", runs.namespace) if event["reason"] == "Refused"]
        assert notes == [condition["message"]] and not operator.is_ready()
        assert "lack TrainingRun status.placement; remedy: install" in operator.log.read_text()
    finally:
        control_plane.apply([present])
    control_plane.wait_until(operator.is_ready, "the operator is ready")
    assert "StatusWritten" not in {each["type"] for each in runs.phase("gan", "Running")["conditions"]}
