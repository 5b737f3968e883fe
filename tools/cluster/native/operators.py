"""The upstream operators as pods: their own manifests, in images made of the programs that were built."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tools.cluster.certificates import Authority
from tools.cluster.native.images import program_archive
from tools.cluster.upstream import objects_of, tfjobs_only, webhook_secret

# Upstream's probes wait 15 s and more, although the operators are ready within one.
_SOON = MappingProxyType({"initialDelaySeconds": 1, "periodSeconds": 1})


@dataclass(frozen=True)
class Operator:
    """An operator as its manifest describes it."""

    name: str
    namespace: str
    deployment: str
    entrypoint: str
    """Where its manifest takes the program to lie in the image."""
    authority: str = ""
    """Name by which it knows its authority; empty: it has no webhooks."""
    service: str = ""
    secret: str = ""


OPERATORS = MappingProxyType(
    {
        each.name: each
        for each in (
            Operator(
                "training-operator",
                namespace="kubeflow",
                deployment="training-operator",
                entrypoint="/manager",
                authority="training-operator-ca",
                service="training-operator",
                secret="training-operator-webhook-cert",  # noqa: S106
            ),
            Operator(
                "jobset",
                namespace="jobset-system",
                deployment="jobset-controller-manager",
                entrypoint="/manager",
                authority="jobset-ca",
                service="jobset-webhook-service",
                secret="jobset-webhook-server-cert",  # noqa: S106
            ),
            Operator(
                "mpi-operator",
                namespace="mpi-operator",
                deployment="mpi-operator",
                entrypoint="/opt/mpi-operator",
            ),
        )
    }
)


def operator_objects(operator: Operator, folder: Path) -> list[dict[str, Any]]:
    """What to apply; keys of its webhooks are made in `folder`.

    Left to themselves the operators make their certificates, and wait up to a minute until the kubelet shows them.
    """
    objects = objects_of(operator.name)
    if operator.name == "training-operator":
        objects = tfjobs_only(objects)
        _container(objects)["args"] = ["--enable-scheme=tfjob"]
    container = _container(objects)
    if "readinessProbe" in container:
        container["readinessProbe"] |= _SOON
    if not operator.secret:
        return objects
    authority = Authority(folder, operator.authority)
    host = f"{operator.service}.{operator.namespace}.svc"
    secret = webhook_secret(operator.secret, operator.namespace, authority, authority.issue("tls", host, hosts=[host]))
    bundle = base64.b64encode(authority.certificate.read_bytes()).decode()
    for each in objects:
        for hook in each.get("webhooks", []):
            hook["clientConfig"]["caBundle"] = bundle
    return [*(each for each in objects if each["kind"] != "Secret"), secret]


def operator_archive(operator: Operator) -> Path:
    """Its image as an archive, under the name that its manifest asks for."""
    return program_archive(
        operator.name, _container(objects_of(operator.name))["image"], entrypoint=operator.entrypoint
    )


def _container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (deployment,) = (each for each in objects if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = container
    return found
