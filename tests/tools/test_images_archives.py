"""Images as files."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from tools.images import ImageError
from tools.images.archives import names_in, write_archive


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "text").write_text("hello", encoding="utf-8")
    (tmp_path / "link").symlink_to("text")
    files = {"/opt/x/program": program, "/opt/x/data/text": tmp_path / "link"}
    return write_archive(tmp_path / "a.tar", "caloscale/x:1", files, entrypoint=["/opt/x/program"], user="65532")


def test_a_written_image_is_one_of_docker_save(archive: Path) -> None:
    with tarfile.open(archive) as tar:
        (listed,) = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]
        assert listed["RepoTags"] == ["docker.io/caloscale/x:1"]
        configuration = json.load(tar.extractfile(listed["Config"]))  # type: ignore[arg-type]
        (path,) = listed["Layers"]
        layer = tar.extractfile(path).read()  # type: ignore[union-attr]
    assert configuration["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    assert configuration["config"]["Entrypoint"] == ["/opt/x/program"]
    assert configuration["config"]["User"] == "65532"
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        members = {member.name: member for member in tar}
        assert list(members) == ["tmp", "opt", "opt/x", "opt/x/data", "opt/x/data/text", "opt/x/program"]
        assert members["opt/x"].isdir()
        assert members["tmp"].isdir() and members["tmp"].mode == 0o1777
        assert members["opt/x/program"].mode == 0o755
        assert (members["opt/x/data/text"].mode, members["opt/x/data/text"].uid) == (0o644, 0)
        assert tar.extractfile("opt/x/data/text").read() == b"hello"  # type: ignore[union-attr]


def test_the_same_files_make_the_same_bytes(archive: Path, tmp_path: Path) -> None:
    files = {"/opt/x/data/text": tmp_path / "text", "/opt/x/program": tmp_path / "program"}
    again = write_archive(tmp_path / "b.tar", "caloscale/x:1", files, entrypoint=["/opt/x/program"], user="65532")
    assert again.read_bytes() == archive.read_bytes()


def write_tar(path: Path, **files: object) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, document in files.items():
            data = json.dumps(document).encode()
            about = tarfile.TarInfo(f"{name}.json")
            about.size = len(data)
            tar.addfile(about, io.BytesIO(data))
    return path


def test_names_of_archives_by_engines(archive: Path, tmp_path: Path) -> None:
    assert names_in(archive) == ["docker.io/caloscale/x:1"]
    docker = [{"Config": "c.json", "RepoTags": ["localhost/caloscale/x:1", "caloscale/x:2"], "Layers": []}]
    assert names_in(write_tar(tmp_path / "d.tar", manifest=docker)) == ["localhost/caloscale/x:1", "caloscale/x:2"]


def test_what_is_no_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no archive", encoding="utf-8")
    with pytest.raises(ImageError, match="not an image's archive"):
        names_in(tmp_path / "text")
    with pytest.raises(ImageError, match="has no name\n  remedy: save it by its name"):
        names_in(write_tar(tmp_path / "n.tar", manifest=[{"RepoTags": None}]))
    with pytest.raises(ImageError, match="not an image's archive"):
        names_in(write_tar(tmp_path / "e.tar", other={}))
    with pytest.raises(ImageError, match="not an image's archive"):
        names_in(tmp_path / "missing")
