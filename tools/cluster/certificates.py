"""Keys and certificates of a throw-away cluster, and kubeconfigs made of them.

trustme does not suffice: its authorities have no alternative name, which training-operator looks for, and its
certificates have one organisation, where a client of Kubernetes has one for each of its groups.
"""

import base64
import datetime as dt
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey
LIFETIME = dt.timedelta(days=365)


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
        # training-operator reads its authority's key, and only an RSA key in the old format (PKCS 1).
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._name = _name(name)
        builder = _builder(self._name, self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
        # training-operator looks for its authority's name among the alternative names.
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        self.files = _write(folder, name, builder.sign(self._key, hashes.SHA256()), self._key)

    @property
    def certificate(self) -> Path:
        """Certificate by which the authority's certificates are checked."""
        return self.files.certificate

    def issue(
        self, file: str, name: str, *, groups: Sequence[str] = (), hosts: Sequence[str] = ("localhost",)
    ) -> KeyPair:
        """A certificate for a server on `hosts` (names and addresses) that is also a client called `name`."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name, groups), self._name, key.public_key())
        builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        return _write(self._folder, file, builder.sign(self._key, hashes.SHA256()), key)


def write_signing_key(folder: Path) -> KeyPair:
    """The key that signs the tokens of service accounts, and its public half."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = folder / "service-accounts.pub"
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return KeyPair(public, _write_key(folder / "service-accounts.key", key))


def embedded(pair: KeyPair) -> dict[str, str]:
    """A client's credentials for a kubeconfig that is read where the files are not."""
    return {"client-certificate-data": encoded(pair.certificate), "client-key-data": encoded(pair.key)}


def write_kubeconfig(
    path: Path, server: str, authority: Authority, credentials: Mapping[str, str], *, context: str
) -> Path:
    """A kubeconfig with one cluster, one user and one context, all named `context`."""
    cluster = {"server": server, "certificate-authority-data": encoded(authority.certificate)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": cluster}],
        "users": [{"name": context, "user": dict(credentials)}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
        "current-context": context,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def encoded(file: Path) -> str:
    """A file as Kubernetes wants it within an object."""
    return base64.b64encode(file.read_bytes()).decode()


def _name(name: str, groups: Sequence[str] = ()) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: PublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    # An hour back: clocks of machines differ.
    return builder.not_valid_before(now - dt.timedelta(hours=1)).not_valid_after(now + LIFETIME)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(folder: Path, name: str, certificate: x509.Certificate, key: PrivateKey) -> KeyPair:
    path = folder / f"{name}.crt"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return KeyPair(path, _write_key(folder / f"{name}.key", key))


def _write_key(path: Path, key: PrivateKey) -> Path:
    path.touch(mode=0o600)
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    path.write_bytes(encoded)
    return path
