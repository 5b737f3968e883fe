"""Events of the cluster, handed on. kopf watches; what follows from an event is decided elsewhere."""

from __future__ import annotations

from typing import Any

import kopf

from caloscale.cluster import names
from caloscale.operator.controller import Controller

OURS = {names.RUN_LABEL: kopf.PRESENT}


def register(controller: Controller) -> kopf.OperatorRegistry:
    """The handlers of all kinds that are followed; none of them writes anything."""
    registry = kopf.OperatorRegistry()

    def follow(kind: str, *resource: str, labels: Any = None) -> None:
        def handler(body: kopf.Body, type: str | None, **_: Any) -> None:
            controller.notice(kind, dict(body), gone=type == "DELETED")

        kopf.on.event(*resource, id=f"follow-{kind.lower()}", labels=labels, registry=registry)(handler)

    follow(names.KIND, names.GROUP, names.VERSION, names.PLURAL)
    follow("Node", "", "v1", "nodes")
    follow("Pod", "", "v1", "pods")
    follow("ConfigMap", "", "v1", "configmaps", labels=OURS)
    follow("TFJob", "kubeflow.org", "v1", "tfjobs", labels=OURS)
    follow("JobSet", "jobset.x-k8s.io", "v1alpha2", "jobsets", labels=OURS)

    @kopf.on.login(registry=registry)
    def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**arguments) or kopf.login_with_kubeconfig(**arguments)

    return registry


def kopf_settings() -> kopf.OperatorSettings:
    """kopf writes nothing of its own: no events, no finalizers, no annotations, no peering."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.persistence.finalizer = f"{names.GROUP}/finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=names.GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=names.GROUP)
    settings.queueing.idle_timeout = 1.0
    return settings
