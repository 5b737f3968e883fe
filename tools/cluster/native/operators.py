"""The upstream operators as pods: their own manifests, in images made of the programs that were built."""

from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from tools.cluster.certificates import Authority, encoded
from tools.cluster.native.images import program_archive
from tools.cluster.upstream import Operator, kueue_configuration, kueue_objects, objects_of, tfjobs_only, webhook_secret

# Upstream's probes wait 15 s and more, although the operators are ready within one.
_SOON = MappingProxyType({"initialDelaySeconds": 1, "periodSeconds": 1})


def operator_objects(operator: Operator, folder: Path) -> list[dict[str, Any]]:
    """What to apply; keys of its webhooks are made in `folder`.

    Left to themselves the operators make their certificates, and wait up to a minute until the kubelet shows them.
    """
    objects = objects_of(operator.name)
    if operator.name == "training-operator":
        objects = tfjobs_only(objects)
        _container(objects)["args"] = ["--enable-scheme=tfjob"]
    if operator.name == "kueue":
        objects = kueue_objects()
        (configuration,) = (each for each in objects if each["kind"] == "ConfigMap")
        ports = {"webhook": {"port": 9443}, "health": {"healthProbeBindAddress": ":8081"}}
        text = yaml.safe_dump({**kueue_configuration(), **ports})
        configuration["data"] = {"controller_manager_config.yaml": text}
        # Its image is in the node, and the node is small.
        _container(objects).update(imagePullPolicy="IfNotPresent", resources={})
    container = _container(objects)
    if "readinessProbe" in container:
        container["readinessProbe"] |= _SOON
    if not operator.secret:
        return objects
    authority = Authority(folder, operator.authority)
    host = f"{operator.service}.{operator.namespace}.svc"
    secret = webhook_secret(operator.secret, operator.namespace, authority, authority.issue("tls", host, hosts=[host]))
    bundle = encoded(authority.certificate)
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
