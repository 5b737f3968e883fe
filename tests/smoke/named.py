"""A cluster of somebody's, as it is, in the place of one that the tests start."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tools.cluster.access import Access, kubectl_program
from tools.cluster.errors import ClusterError

NEEDED = {"tfjobs.kubeflow.org": "training-operator", "jobsets.jobset.x-k8s.io": "jobset"}
"""Kinds that must be known, and the folder of manifests/third-party that brings them."""


class NamedCluster(Access):
    """``with NamedCluster("my-context") as cluster`` takes the context of the user's kubeconfig; nothing is started."""

    def __init__(self, context: str) -> None:
        self.context = context

    def start(self) -> None:
        """Look whether it answers and knows what is needed; raises ClusterError with what is missing."""
        self.folder = Path(tempfile.mkdtemp(prefix="caloscale-named-"))
        with self.stopped_on_failure():
            self._note_context()
            kinds = self.kubectl("get", "customresourcedefinitions", "--output=name")
            missing = [folder for kind, folder in NEEDED.items() if f"/{kind}" not in kinds]
            if missing:
                commands = " && ".join(
                    f"kubectl apply --context {self.context} --server-side -k manifests/third-party/{folder}"
                    for folder in missing
                )
                raise ClusterError(f"{self.context} does not have {', '.join(missing)}", remedy=commands)

    def stop(self) -> None:
        """Forget it; what runs there runs on."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def kubeconfig(self) -> Path:
        """A copy of the user's kubeconfig with this context alone."""
        return self.folder / "kubeconfig"

    @property
    def nodes(self) -> list[str]:
        """Names of its nodes."""
        return [str(node["metadata"]["name"]) for node in self.get("nodes")["items"]]

    def import_image(self, archive: Path, *, nodes: Iterable[str] | None = None) -> list[str]:
        """Nothing: its nodes pull images, or have them."""
        del archive, nodes
        return []

    def _note_context(self) -> None:
        command = [kubectl_program(), "config", "view", "--minify", "--flatten", "--raw", f"--context={self.context}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterError(f"context {self.context}: {done.stderr.strip()}", remedy="kubectl config get-contexts")
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(done.stdout, encoding="utf-8")
