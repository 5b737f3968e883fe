"""The workflows of the hosted runner: small rights, pinned parts, and commands that exist."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.images.targets import TARGETS

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


def read(path: Path) -> dict[Any, Any]:
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


RIGHTS = {"images": {"contents": "read", "packages": "write", "id-token": "write"}}
"""Of the one workflow that publishes: to push images, and to sign them by the identity of the workflow."""


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_read_only_and_ends(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job.get("permissions") == RIGHTS.get(path.stem)
        assert 0 < job["timeout-minutes"] <= 120
    secrets = re.findall(r"secrets\.(\w+)", path.read_text(encoding="utf-8"))
    assert secrets == (["GITHUB_TOKEN"] if path.stem in RIGHTS else [])
    if path.stem in RIGHTS:
        assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML reads the key `on` as true


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_a_commit(path: Path) -> None:
    """A tag can be moved; the comment names the version for people and for dependency updates."""
    lines = re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))
    assert lines
    assert all(re.fullmatch(r"[a-z-]+/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line) for line in lines), lines
    checkouts = [step for step in steps(path) if step.get("uses", "").startswith("actions/checkout@")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_commands_are_targets_that_there_are(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    called = re.findall(r"\bmake ([a-z-]+)", " ".join(step.get("run", "") for step in steps(path)))
    assert called
    assert set(called) <= targets


def test_an_action_has_one_version_in_all_workflows() -> None:
    used = {line for path in WORKFLOWS for line in re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))}
    assert len({line.partition("@")[0] for line in used}) == len(used)


def test_images_are_signed_by_digest_with_a_list_of_packages() -> None:
    made = steps(ROOT / ".github" / "workflows" / "images.yaml")
    order = [
        index
        for index, step in enumerate(made)
        if "image" in step.get("with", {}) or "cosign sign" in step.get("run", "")
    ]
    (listed, signed) = (made[index] for index in order)
    digest = "${{ steps.pushed.outputs.image }}"
    assert listed["with"]["image"] == signed["env"]["IMAGE"] == digest
    assert f"--predicate {listed['with']['output-file']}" in signed["run"]
    (job,) = read(ROOT / ".github" / "workflows" / "images.yaml")["jobs"].values()
    assert job["strategy"]["matrix"]["target"] == list(TARGETS)


def test_dependency_updates_cover_every_folder_with_pins() -> None:
    updates = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text(encoding="utf-8"))["updates"]
    modules = {f"/{path.parent.relative_to(ROOT)}" for path in (ROOT / "tools").glob("*/go.mod")}
    assert {each["directory"] for each in updates if each["package-ecosystem"] == "gomod"} == modules
    assert {each["package-ecosystem"] for each in updates} == {"github-actions", "docker", "pip", "gomod"}
