# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""One authority, what it signs, and kubeconfigs. Everything is valid for a day and readable by its owner only."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import os
import pathlib
import typing as t

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID = datetime.timedelta(days=1)
_SKEW = datetime.timedelta(minutes=5)


class Pair(t.NamedTuple):
    """Paths of a certificate and its key, both PEM."""

    certificate: pathlib.Path
    key: pathlib.Path


class Authority:
    """A certificate authority whose files lie in a folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "control-plane-test")])
        builder = self._builder(self._name, self._key.public_key()).add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        builder = builder.add_extension(_signs_certificates(), True)
        self.certificate = folder / "ca.crt"
        _write(self.certificate, builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(self._name, subject, public, x509.random_serial_number(), now - _SKEW, now + _VALID)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False).add_extension(issuer, False)

    def issue(self, name: str, user: str, groups: t.Sequence[str] = ()) -> Pair:
        """A certificate for user in groups, good for a client and for a server on loopback. name: of its files."""
        key = ec.generate_private_key(ec.SECP256R1())
        words = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*words, x509.NameAttribute(NameOID.COMMON_NAME, user)])
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = (
            self._builder(subject, key.public_key())
            .add_extension(x509.SubjectAlternativeName(names), False)
            .add_extension(x509.ExtendedKeyUsage(usages), False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        )
        pair = Pair(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        _write(pair.certificate, builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        _write(pair.key, _pem(key))
        return pair

    def signing_key(self, name: str) -> pathlib.Path:
        """A key that signs tokens."""
        path = self.folder / f"{name}.key"
        _write(path, _pem(ec.generate_private_key(ec.SECP256R1())))
        return path


def _signs_certificates() -> x509.KeyUsage:
    names = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(key_cert_sign=True, crl_sign=True, **dict.fromkeys(names, False))


def write_kubeconfig(path: pathlib.Path, server: str, authority: pathlib.Path, user: Pair) -> pathlib.Path:
    """A kubeconfig that needs no other file."""
    credentials = {"client-certificate-data": _base64(user.certificate), "client-key-data": _base64(user.key)}
    name = "control-plane-test"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": _base64(authority)}}],
        "users": [{"name": name, "user": credentials}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    _write(path, json.dumps(config, indent=1).encode())
    return path


def _base64(path: pathlib.Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.TraditionalOpenSSL  # the server reads the public half of a token key from no other form
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write(path: pathlib.Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
