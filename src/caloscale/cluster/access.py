"""What a run's workers may do on the cluster: write into one ConfigMap, and nothing else."""

from __future__ import annotations

from caloscale.cluster import names
from caloscale.cluster.launch import Launch, Manifest, Owner

PROGRESS_KEY = "progress.json"
"""Key of the ConfigMap that holds `caloscale.status.RunProgress`."""


def access_objects(launch: Launch) -> list[Manifest]:
    """The account, role and binding that let the workers write into a ConfigMap, and that ConfigMap.

    It comes last: where it is, all the others are, also when the operator ended in between.
    """
    owner = launch.owner
    account = launch.run.cluster.service_account
    name = names.progress_name(owner.name)
    rbac = "rbac.authorization.k8s.io"
    objects: list[Manifest] = []
    if account is None:
        objects.append(
            {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": _metadata(owner, launch),
                "automountServiceAccountToken": False,
            }
        )
    objects += [
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "Role",
            "metadata": _metadata(owner, launch),
            "rules": [{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["patch"]}],
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": _metadata(owner, launch),
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": account or name, "namespace": owner.namespace}],
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(owner, launch)},
    ]
    return objects


def _metadata(owner: Owner, launch: Launch) -> Manifest:
    labels = {label: value for label, value in launch.labels.items() if label != names.ATTEMPT_LABEL}
    return {
        "name": names.progress_name(owner.name),
        "namespace": owner.namespace,
        "labels": {**labels, "app.kubernetes.io/component": "progress"},
        "ownerReferences": [owner.reference],
    }
