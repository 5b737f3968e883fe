"""Keys and certificates of a throw-away cluster by OpenSSL (3.0 or newer), and kubeconfigs made of them."""

import base64
import ipaddress
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from tools.cluster.errors import ClusterError

CONTEXT = "caloscale"


@dataclass(frozen=True)
class KeyPair:
    """Files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority that lives in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        extensions = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,digitalSignature,keyCertSign,cRLSign")
        # training-operator looks for its authority's name among the alternative names, and reads its key, but only an
        # RSA key in the old format (PKCS 1).
        self.files = self._certify(name, f"/CN={name}", *extensions, f"subjectAltName=DNS:{name}", key=("rsa:2048",))
        _openssl("rsa", "-traditional", "-in", self.files.key, "-out", self.files.key)

    @property
    def certificate(self) -> Path:
        """Certificate by which the authority's certificates are checked."""
        return self.files.certificate

    def issue(
        self, file: str, name: str, *, groups: Sequence[str] = (), hosts: Sequence[str] = ("localhost",)
    ) -> KeyPair:
        """A certificate for a server on `hosts` (names and addresses) that is also a client called `name`."""
        subject = "".join(f"/O={group}" for group in groups) + f"/CN={name}"
        extensions = ("basicConstraints=critical,CA:FALSE", "keyUsage=critical,digitalSignature")
        usages = "extendedKeyUsage=serverAuth,clientAuth"
        alternatives = "subjectAltName=" + ",".join(map(_alternative, hosts))
        curve = ("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-CA", self.certificate, "-CAkey", self.files.key)
        return self._certify(file, subject, *extensions, usages, alternatives, key=curve)

    def _certify(self, file: str, subject: str, *extensions: str, key: Sequence[str | Path]) -> KeyPair:
        pair = KeyPair(self._folder / f"{file}.crt", self._folder / f"{file}.key")
        made = ("-newkey", *key, "-noenc", "-keyout", pair.key, "-out", pair.certificate)
        added = [word for extension in extensions for word in ("-addext", extension)]
        _openssl("req", "-x509", "-days", "365", "-config", "/dev/null", "-subj", subject, *made, *added)
        return pair


def _openssl(*arguments: str | Path) -> None:
    """Run OpenSSL, which makes files of keys that only their owner may read. Raises ClusterError."""
    try:
        done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ClusterError("openssl is missing", remedy="apt-get install openssl") from None
    if done.returncode:
        raise ClusterError(f"openssl {arguments[0]}: {done.stderr.strip()}", remedy="OpenSSL 3.0 or newer is needed")


def _alternative(host: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        return f"DNS:{host}"


def write_kubeconfig(path: Path, server: str, authority: Authority, user: KeyPair) -> Path:
    """A kubeconfig with one cluster, one user and one context, all named CONTEXT; it refers to no other files."""
    cluster = {"server": server, "certificate-authority-data": encoded(authority.certificate)}
    keys = {"client-certificate-data": encoded(user.certificate), "client-key-data": encoded(user.key)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT, "cluster": cluster}],
        "users": [{"name": CONTEXT, "user": keys}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT}}],
        "current-context": CONTEXT,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def encoded(file: Path) -> str:
    """A file as Kubernetes wants it within an object."""
    return base64.b64encode(file.read_bytes()).decode()
