"""``make base-image``: a base from Debian's packages, where no registry of images can be reached."""

import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.images.buildah import image_id, program
from tools.images.targets import ImageError

SUITE = "bookworm"
IMAGE = f"localhost/caloscale/debian-base:{SUITE}"
MIRROR = "http://deb.debian.org/debian"
SOURCES = "deb {mirror} {suite} main\ndeb {mirror} {suite}-updates main\ndeb {security} {suite}-security main\n"
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What an image does not read, by glob in its root.
UNUSED = ("var/cache/apt/archives/*.deb", "var/lib/apt/lists/*", "usr/share/doc/*", "usr/share/man/*", "var/log/*")


def make_base(*, refresh: bool = False) -> None:
    """Make the image from Debian's packages, with today's security updates.

    Does nothing when it is there, unless ``refresh``. Raises ImageError: not root, no debootstrap, or a step failed.
    """
    if image_id(IMAGE) and not refresh:
        print(f"{IMAGE}: is there")
        return
    if os.geteuid() != 0:
        raise ImageError("debootstrap needs root", remedy="sudo make base-image, or give BASE_IMAGE=...")
    if shutil.which("debootstrap") is None:
        raise ImageError("debootstrap is not installed", remedy="apt-get install debootstrap")
    with TemporaryDirectory(prefix="caloscale-base-", dir="/var/tmp") as folder:
        root = Path(folder) / "root"
        mirrors = find_mirrors(_index_targets())
        command = ["debootstrap", "--variant=minbase", SUITE, str(root), mirrors["mirror"]]
        if code := subprocess.run(command, check=False).returncode:  # it shows its own progress
            raise ImageError(f"debootstrap failed (exit code {code})", remedy="read its messages above")
        (root / "etc/apt/sources.list").write_text(SOURCES.format(suite=SUITE, **mirrors), encoding="utf-8")
        _commit(root)
    print(f"{IMAGE}: made")


def find_mirrors(index_targets: str) -> dict[str, str]:
    """Debian's mirrors that this machine uses, from lines `address suite`; Debian's own where it uses none."""
    mirrors = {"mirror": MIRROR, "security": f"{MIRROR}-security"}
    for line in index_targets.splitlines():
        address, _, suite = line.strip().partition(" ")
        if suite == SUITE:
            mirrors["mirror"] = address.rstrip("/")
        elif suite == f"{SUITE}-security":
            mirrors["security"] = address.rstrip("/")
    return mirrors


def _index_targets() -> str:
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Origin: Debian"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


def _commit(root: Path) -> None:
    """The folder as an image, after Debian's security updates."""
    container = _run("from", "scratch").strip()
    try:
        _run("copy", container, str(root), "/")
        options = ["--network=host", "--isolation=chroot"]
        update = "apt-get update && apt-get --yes upgrade && apt-get clean"
        _run("run", *options, container, "--", "sh", "-ec", update)
        mounted = Path(_run("mount", container).strip())
        for pattern in UNUSED:
            for path in mounted.glob(pattern):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        _run("umount", container)
        _run("config", "--cmd=sh", f"--env=PATH={SEARCH_PATH}", container)
        # One layer: what was removed is not below.
        _run("commit", "--squash", container, IMAGE)
    finally:
        _run("rm", container)


def _run(*arguments: str) -> str:
    done = subprocess.run([program(), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        output = "\n".join((done.stdout + done.stderr).strip().splitlines()[-10:])
        raise ImageError(f"buildah {arguments[0]} failed:\n{output}", remedy="read the message above")
    return done.stdout
