"""caloscale doctor: what this machine and its cluster can do, and the command that gets what is missing."""

from __future__ import annotations

from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import typer

from caloscale.cli.options import Context, Json, Namespace
from caloscale.errors import CaloscaleError
from caloscale.installation import install_command

MEMORY_GIB = 8
"""What `make run` needs."""
CLUSTER_SECONDS = 5.0
"""Time-out of a question to the cluster, s."""


class Check(NamedTuple):
    """One thing that was looked for."""

    what: str
    found: str
    """What is there; empty when it is missing."""
    remedy: str = ""
    """The command that gets it; empty when nothing is missing."""


def command(context: Context = None, namespace: Namespace = None, as_json: Json = False) -> None:
    """Show what this machine can do: processor, memory, TensorFlow, Geant4, cluster; and how to get what is missing."""
    checks = [*_machine(), _tensorflow(), *_overridden(), *_packages(), *_cluster(context, namespace)]
    if as_json:
        import json

        typer.echo(json.dumps([check._asdict() for check in checks], indent=2))
        return
    for check in checks:
        typer.echo(f"{check.what:<14} {check.found or 'missing'}")
        if check.remedy:
            typer.echo(f"{'':<14} get it: {check.remedy}")


def _machine() -> list[Check]:
    from caloscale.bench.machine import describe_machine

    machine = describe_machine()
    vectors = ", ".join(sorted(i for i in machine.instructions if i in ("avx", "avx2", "avx512f") or "amx" in i))
    small = machine.memory_gib < MEMORY_GIB
    return [
        Check("cores", f"{machine.cores}, {machine.processor}"),
        Check("instructions", vectors or "no AVX: training is slow"),
        Check("memory", f"{machine.memory_gib:.0f} GiB", f"a machine with {MEMORY_GIB} GiB" if small else ""),
    ]


def _tensorflow() -> Check:
    try:
        from caloscale.tensorflow_import import load_tensorflow_quietly

        load_tensorflow_quietly()
        import tensorflow as tf
    except ImportError:
        return Check(
            "TensorFlow", "", f"{install_command('train', 'cpu')}; NVIDIA GPU: {install_command('train', 'gpu')}"
        )
    kinds = [device.device_type for device in tf.config.list_physical_devices()]
    counted = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
    return Check("TensorFlow", f"{tf.__version__}, devices: {counted}")


def _overridden() -> list[Check]:
    from caloscale.tensorflow_import import OVERRIDDEN

    return [Check("overridden", f"{', '.join(OVERRIDDEN)}: Keras 3 with TensorFlow, float32")] if OVERRIDDEN else []


def _packages() -> list[Check]:
    wanted = {
        "Geant4": ("calzone", "simulate"),
        "Kubeflow": ("kfp", "pipeline"),
        "ONNX Runtime": ("onnxruntime", "infer"),
        "OpenVINO": ("openvino", "infer"),
        "Azure ML": ("azure-ai-ml", "azure"),
    }
    checks = []
    for what, (package, extra) in wanted.items():
        try:
            checks.append(Check(what, f"{package} {version(package)}"))
        except PackageNotFoundError:
            checks.append(Check(what, "", install_command(extra)))
    return checks


def _cluster(context: str | None, namespace: str | None) -> list[Check]:
    """Whether a cluster answers, and what its user may do with training runs."""
    from caloscale.client.runs import ask
    from caloscale.cluster.names import API_VERSION, GROUP, PLURAL
    from caloscale.connection import active_namespace, connect

    try:
        connection = connect(context, seconds=CLUSTER_SECONDS)
        where = namespace or active_namespace(context)
    except CaloscaleError as error:
        return [Check("cluster", "", f"{error.problem}; {error.remedy}")]
    server = connection.api.configuration.host
    allowed: list[str] = []
    refused: list[str] = []
    review: dict[str, Any] = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    try:
        for verb in ("create", "get", "delete"):
            attributes = {"group": GROUP, "resource": PLURAL, "verb": verb, "namespace": where}
            question = {**review, "metadata": {}, "spec": {"resourceAttributes": attributes}}
            answer = ask(partial(connection.create, question), server)
            (allowed if answer["status"]["allowed"] else refused).append(verb)
        known = ask(lambda: connection.serves(API_VERSION), server)
    except CaloscaleError as error:
        return [Check("cluster", "", f"kubectl cluster-info ({error.problem})")]
    right = f"kubectl create rolebinding caloscale --clusterrole=edit --user=YOU -n {where}" if refused else ""
    return [
        Check("cluster", server),
        Check("rights", f"{', '.join(allowed) or 'none'} {PLURAL} in {where}", right),
        Check("operator", API_VERSION if known else "", "" if known else "make deploy OVERLAY=... CONTEXT=..."),
    ]
