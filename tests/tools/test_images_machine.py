"""pip's settings and the certificates of a machine reach a build; real pip writes and reads them."""

import os
import subprocess
from pathlib import Path

import pytest

from tools.images.base import find_mirrors
from tools.images.machine import IN_THE_BUILD, pip_settings, revision, secrets, wheel_folders

INDEX = "https://user:pa%40ss@index.example/simple"


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with an index of its own."""
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "a-1-py3-none-any.whl").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "ca.pem").write_text("authorities")
    (tmp_path / "pip.conf").write_text(
        f"[global]\nindex-url = {INDEX}\nextra-index-url =\n  https://one.example\n  https://two.example\n"
        f"find-links = {tmp_path}/wheels {tmp_path}/empty https://wheels.example\n"
        f"cert = {tmp_path}/ca.pem\nuser = false\ntimeout = 3\n[install]\ntrusted-host = index.example\n"
    )
    usual = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        usual.pop(name, None)
    return {**usual, "HOME": str(tmp_path), "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "PIP_DEFAULT_TIMEOUT": "77"}


def test_a_build_gets_the_settings_of_this_machine_s_pip(machine: dict[str, str], tmp_path: Path) -> None:
    settings = pip_settings(machine)
    with secrets(settings, machine) as files:
        assert files["certificates.pem"].read_text() == "authorities"
        assert files["pip.conf"].stat().st_mode & 0o077 == 0 or files["pip.conf"].parent.stat().st_mode & 0o077 == 0
        # As pip in the build reads the file.
        read = pip_settings({"PATH": machine["PATH"], "HOME": "/nowhere", "PIP_CONFIG_FILE": str(files["pip.conf"])})
        text = files["pip.conf"].read_text()
    assert not files["pip.conf"].exists()
    assert read["index-url"] == INDEX
    assert read["extra-index-url"].split() == ["https://one.example", "https://two.example"]
    assert read["find-links"].split() == [f"{tmp_path}/wheels", "https://wheels.example"]
    assert (read["timeout"], read["trusted-host"], read["cert"]) == ("77", "index.example", IN_THE_BUILD)
    assert "user" not in text.replace(INDEX, ""), "where it installs is the build's own affair"
    assert wheel_folders(settings) == (tmp_path / "wheels",)


def test_a_machine_without_settings_gives_none(tmp_path: Path) -> None:
    with secrets({}, {}) as files:
        assert files["pip.conf"].read_text() == "[global]\n"
        assert set(files) == {"pip.conf"}
    (tmp_path / "ca.pem").write_text("authorities")
    with secrets({"cert": "/not/there"}, {"SSL_CERT_FILE": str(tmp_path / "ca.pem")}) as files:
        assert files["certificates.pem"] == tmp_path / "ca.pem"


def test_the_base_comes_from_the_machine_s_own_mirrors() -> None:
    lines = (
        "http://mirror.example/debian/ bookworm\nhttp://mirror.example/debian/ bookworm-updates\n"
        "http://security.example/debian-security/ bookworm-security\nhttp://other.example/debian/ trixie\n"
    )
    assert find_mirrors(lines) == {
        "mirror": "http://mirror.example/debian",
        "security": "http://security.example/debian-security",
    }
    assert find_mirrors("") == {
        "mirror": "http://deb.debian.org/debian",
        "security": "http://deb.debian.org/debian-security",
    }


def test_the_revision_says_when_files_differ_from_the_commit(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        return subprocess.run(
            ["git", *author, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout.strip()

    assert revision(tmp_path) == "unknown"
    git("init", "--quiet")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("1")
    git("add", ".")
    git("commit", "--quiet", "--message=a")
    commit = git("rev-parse", "HEAD")
    assert revision(tmp_path) == commit
    (tmp_path / "notes").write_text("not in the image")
    assert revision(tmp_path) == commit
    git("add", ".")
    git("commit", "--quiet", "--message=b")
    assert revision(tmp_path) == commit != git("rev-parse", "HEAD"), "the image is the same"
    (tmp_path / "src" / "a.py").write_text("2")
    assert revision(tmp_path) == f"{commit}-modified"
