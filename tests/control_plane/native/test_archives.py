"""Images as files."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from tools.cluster.errors import ClusterError
from tools.cluster.native.archives import Entry, full_name, names_in, write_archive


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "text").write_text("hello", encoding="utf-8")
    (tmp_path / "link").symlink_to("text")
    entries = [Entry(program, "/opt/x/program"), Entry(tmp_path / "link", "/opt/x/data/text")]
    return write_archive(tmp_path / "a.tar", "caloscale/x:1", entries, entrypoint=["/opt/x/program"], user="65532")


def blob(tar: tarfile.TarFile, described: dict[str, object]) -> bytes:
    """A part of an image, with its checksum and size compared with what is said of it."""
    digest = str(described["digest"])
    member = tar.extractfile(f"blobs/{digest.replace(':', '/')}")
    assert member is not None
    data = member.read()
    assert (f"sha256:{hashlib.sha256(data).hexdigest()}", len(data)) == (digest, described["size"])
    return data


def test_a_written_image_is_what_the_specification_asks_for(archive: Path) -> None:
    with tarfile.open(archive) as tar:
        layout, index = (json.load(tar.extractfile(name)) for name in ("oci-layout", "index.json"))  # type: ignore[arg-type]
        assert layout == {"imageLayoutVersion": "1.0.0"}
        (listed,) = index["manifests"]
        manifest = json.loads(blob(tar, listed))
        configuration = json.loads(blob(tar, manifest["config"]))
        (described,) = manifest["layers"]
        layer = blob(tar, described)
    # An uncompressed layer: its two checksums are one.
    assert configuration["rootfs"]["diff_ids"] == [described["digest"]]
    assert configuration["config"]["Entrypoint"] == ["/opt/x/program"]
    assert configuration["config"]["User"] == "65532"
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        members = {member.name: member for member in tar}
        assert list(members) == ["opt", "opt/x", "opt/x/data", "opt/x/data/text", "opt/x/program"]
        assert members["opt/x"].isdir()
        assert members["opt/x/program"].mode == 0o755
        assert (members["opt/x/data/text"].mode, members["opt/x/data/text"].uid) == (0o644, 0)
        assert tar.extractfile("opt/x/data/text").read() == b"hello"  # type: ignore[union-attr]


def test_the_same_files_make_the_same_bytes(archive: Path, tmp_path: Path) -> None:
    entries = [Entry(tmp_path / "text", "/opt/x/data/text"), Entry(tmp_path / "program", "/opt/x/program")]
    again = write_archive(tmp_path / "b.tar", "caloscale/x:1", entries, entrypoint=["/opt/x/program"], user="65532")
    assert again.read_bytes() == archive.read_bytes()


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("caloscale/trainer:0.1.0", "docker.io/caloscale/trainer:0.1.0"),
        ("localhost/caloscale/trainer:0.1.0", "docker.io/caloscale/trainer:0.1.0"),
        ("busybox:1", "docker.io/library/busybox:1"),
        ("ghcr.io/a/b:1", "ghcr.io/a/b:1"),
        ("registry:5000/a:1", "registry:5000/a:1"),
    ],
)
def test_names_as_kubernetes_completes_them(name: str, full: str) -> None:
    assert full_name(name) == full
    assert full_name(full) == full


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
    annotations = {"org.opencontainers.image.ref.name": "localhost/caloscale/x:1"}
    index = {"manifests": [{"annotations": annotations}]}
    assert names_in(write_tar(tmp_path / "o.tar", index=index)) == ["localhost/caloscale/x:1"]
    # docker save writes both; of the second the name is only the tag.
    both = write_tar(
        tmp_path / "b.tar",
        index={"manifests": [{"annotations": {"org.opencontainers.image.ref.name": "2"}}]},
        manifest=[{"RepoTags": ["caloscale/x:2"]}],
    )
    assert names_in(both) == ["caloscale/x:2"]


def test_what_is_no_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no archive", encoding="utf-8")
    with pytest.raises(ClusterError, match="not an image's archive"):
        names_in(tmp_path / "text")
    with pytest.raises(ClusterError, match="has no name\n  remedy: save it by its name"):
        names_in(write_tar(tmp_path / "n.tar", manifest=[{"RepoTags": None}]))
    with pytest.raises(ClusterError, match="has no name"):
        names_in(write_tar(tmp_path / "e.tar", other={}))
    with pytest.raises(ClusterError, match="not an image's archive"):
        names_in(tmp_path / "missing")
