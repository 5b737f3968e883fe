"""A clear word on what is missing."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tools.cluster.__main__ import app
from tools.cluster.errors import ClusterError
from tools.cluster.native import requirements

CGROUPS_READ_ONLY = (
    "for each in $(awk '$3 ~ /cgroup/ {print $2}' /proc/mounts); do mount -o remount,bind,ro $each; done; "
)


def test_missing_packages_come_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(requirements, "SYSTEM_FOLDERS", ())
    monkeypatch.setattr(requirements, "CNI_FOLDERS", (tmp_path,))
    monkeypatch.setenv("CALOSCALE_CACHE", str(tmp_path))
    with pytest.raises(ClusterError) as raised:
        requirements.check()
    assert (
        "apt-get install --no-install-recommends conntrack containerd containernetworking-plugins hostname iproute2 "
        "iptables mount runc util-linux\n" in str(raised.value)
    )
    assert "python -m tools.cluster build --nodes" in str(raised.value)


def test_plugins_and_commands_are_found_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "CNI_FOLDERS", (tmp_path / "none", tmp_path))
    assert requirements.cni_folder() is None
    for name in requirements.CNI_PLUGINS:
        (tmp_path / name).touch()
    assert requirements.cni_folder() == tmp_path
    (tmp_path / "runc").touch(mode=0o755)
    monkeypatch.setattr(requirements, "SYSTEM_FOLDERS", (str(tmp_path),))
    monkeypatch.setenv("PATH", "/nowhere")
    assert requirements.where("runc") == str(tmp_path / "runc")


def test_who_is_not_root_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALOSCALE_CACHE", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (shown,) = (problem for problem in requirements.missing_of_machine() if "only root" in problem)
    assert shown.endswith(f"sudo CALOSCALE_CACHE={tmp_path} make cluster-up")


@pytest.mark.skipif(bool(requirements.missing_of_machine()), reason="needs root with all rights, to take some away")
@pytest.mark.parametrize(
    ("without", "shown"),
    [
        (("setpriv", "--bounding-set=-sys_admin"), "unshare: unshare failed: Operation not permitted"),
        (("unshare", "--mount", "sh", "-c", CGROUPS_READ_ONLY + 'exec "$@"', "-"), "Read-only file system"),
    ],
)
def test_root_without_the_rights_is_told(without: Sequence[str], shown: str) -> None:
    """As in a container: real processes without a capability, or with cgroups that they may only read."""
    code = "from tools.cluster.native.requirements import missing_of_machine; print(*missing_of_machine(), sep='\\n')"
    done = subprocess.run([*without, sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.search(rf"root may not make a node here \([^)]*{shown}\)", done.stdout), done.stdout
    assert not list(Path("/sys/fs/cgroup").rglob("caloscale-probe-*"))


def test_ready_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALOSCALE_CACHE", str(tmp_path))
    lacking = CliRunner().invoke(app, ["ready"])
    assert lacking.exit_code != 0 and "are not built" in str(lacking.exception)
    monkeypatch.setattr(requirements, "check", lambda: None)
    assert CliRunner().invoke(app, ["ready"]).exit_code == 0
