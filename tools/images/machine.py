"""What a build needs of this machine and the image must not keep: pip's settings, certificates, the revision."""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

# Of pip's settings, those that say where packages come from.
KEPT = ("index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "proxy", "timeout", "retries")
CERTIFICATES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
# Files of which images are made.
FILES = ("src", "docker", "pyproject.toml", "constraints.txt", "constraints-tpu.txt", "LICENSE", "NOTICE", "README.md")
IN_THE_BUILD = "/run/secrets/certificates.pem"


@contextmanager
def secrets(settings: Mapping[str, str], environment: Mapping[str, str]) -> Iterator[dict[str, Path]]:
    """Files for the steps of a build that fetch packages, by name, for as long as the context lasts.

    pip.conf: ``settings``, those of this machine's pip, which may hold the password of an index; certificates.pem: the
    authorities that this machine trusts, where they are configured (a proxy that looks into TLS has its own).
    """
    certificates = certificate_file(settings, environment)
    with TemporaryDirectory(prefix="caloscale-build-") as folder:
        files = {"pip.conf": Path(folder) / "pip.conf"}
        files["pip.conf"].write_text(pip_conf(settings, certificates is not None), encoding="utf-8")
        if certificates is not None:
            files["certificates.pem"] = certificates
        yield files


def pip_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Configuration of this machine's pip by its files and variables: option and value."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False)
    lines = [line.partition("=") for line in done.stdout.splitlines() if "=" in line]
    settings = {}
    # What a later section says goes before; variables (:env:) before all files.
    for section in ("global", "install", ":env:"):
        for key, _, value in lines:
            if key.startswith(f"{section}."):
                # `default-timeout` is another name of timeout.
                name = key.removeprefix(f"{section}.").removeprefix("default-")
                settings[name] = str(ast.literal_eval(value))
    return settings


def certificate_file(settings: Mapping[str, str], environment: Mapping[str, str]) -> Path | None:
    """The authorities that this machine is configured to trust; None when none are configured."""
    named = [settings.get("cert"), *(environment.get(name) for name in CERTIFICATES)]
    return next((Path(each) for each in named if each and Path(each).is_file()), None)


def pip_conf(settings: Mapping[str, str], certificates: bool) -> str:
    """The file of settings for pip in a build; folders of wheels that hold none are left out."""
    lines = ["[global]"]
    folders = {str(path) for path in wheel_folders(settings)}
    for name in KEPT:
        values = settings.get(name, "").split()
        if name == "find-links":
            values = [each for each in values if "://" in each or each in folders]
        if values:
            lines.append(f"{name} = " + "\n    ".join(values))
    if certificates:
        lines.append(f"cert = {IN_THE_BUILD}")
    return "\n".join(lines) + "\n"


def wheel_folders(settings: Mapping[str, str]) -> tuple[Path, ...]:
    """Folders of wheels on this machine that its pip looks into, and that hold any."""
    named = [Path(each) for each in settings.get("find-links", "").split() if "://" not in each]
    return tuple(path for path in named if path.is_dir() and any(path.iterdir()))


def revision(root: Path) -> str:
    """The last commit that changed files of the images, ``-modified`` when these differ; ``unknown`` outside a clone.

    A later commit builds the same image, and Buildah then takes the whole of it from its cache, label and all.
    """

    def git(*arguments: str) -> str | None:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    try:
        commit = git("log", "--max-count=1", "--format=%H", "--", *FILES)
    except OSError:
        return "unknown"
    if not commit:
        return "unknown"
    changed = git("status", "--porcelain", "--", *FILES)
    return f"{commit}-modified" if changed else commit
