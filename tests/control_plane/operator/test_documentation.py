"""The commands of the pages that need a cluster, on the control plane: as shown, but for what waits for a person."""

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes import client

from tests.control_plane import faults
from tests.control_plane.operator.conftest import SPEC, Runs
from tests.pipelines.conftest import ROOT, commands

WAITS = ("--watch", "-f")
"""Options with which a command ends by Ctrl-C, or with the run."""


def block_of(page: str) -> list[list[str]]:
    """The commands of the block with which a page submits a run."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)
    return commands(next(block for block in blocks if "caloscale submit" in block))


@pytest.fixture
def folder(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the pages name; the context of the kubeconfig is in the test's namespace."""
    configuration = yaml.safe_load(runs.plane.kubeconfig.read_text(encoding="utf-8"))
    for context in configuration["contexts"]:
        context["context"]["namespace"] = runs.namespace
    (kubeconfig := tmp_path / "kubeconfig").write_text(yaml.safe_dump(configuration), encoding="utf-8")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(SPEC), encoding="utf-8")
    page = (ROOT / "docs/tutorials/thirty-two-gpus.md").read_text(encoding="utf-8")
    (big,) = re.findall(r"<!-- file: big.yaml -->\n```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "big.yaml").write_text(big, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("page", "run", "gpus"), [("operator.md", "my-run", 16), ("tutorials/thirty-two-gpus.md", "big", 32)]
)
def test_the_commands_of_a_page_work(
    page: str,
    run: str,
    gpus: int,
    runs: Runs,
    folder: Path,
    add_nodes: Callable[..., list[str]],
    command: Callable,
    api: client.ApiClient,
) -> None:
    add_nodes(pool="v100", count=gpus // 8, spot=True)
    runs.fake_pods(None)
    done: dict[str, str] = {}
    for words in block_of(page):
        if words[0] == "kubectl":
            done[shlex.join(words)] = runs.plane.kubectl(*words[1:], kubeconfig=folder / "kubeconfig")
            continue
        if words[1] == "fetch" and page.startswith("tutorials"):
            break  # from a bucket
        given = [word for word in words[1:] if word not in WAITS] + (["--yes"] if words[1] == "submit" else [])
        result = command(*given)
        assert result.code == 0, f"{shlex.join(words)}\n{result.err}"
        done[words[1]] = result.out
        if words[1] == "submit":
            runs.phase(run, "Running")
        elif words[1] == "stop":
            runs.phase(run, "Suspended")
            assert command("stop", run, "--resume").code == 0
            runs.phase(run, "Running")
            faults.end_pods(api, runs.namespace)
            runs.phase(run, "Succeeded")
    assert run in done["status"] and "Running" in done["status"]
    if page == "operator.md":
        assert "gcloud" in done["node-pools"] and (folder / "runs" / run / "usage.json").is_file()
        assert next(_lines(done, "kubectl explain")).startswith("GROUP:")
        assert "condition met" in "".join(_lines(done, "kubectl wait"))


def _lines(done: dict[str, str], start: str) -> Iterator[str]:
    return (line for name, text in done.items() if name.startswith(start) for line in text.splitlines())
