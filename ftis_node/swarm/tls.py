"""Each node's own certificate, and pinning those of others.

gRPC can't verify a certificate by callback, so a client fetches the server's certificate first and then
passes it as the only root. Names in certificates mean nothing here: who a node is, is said by its Ed25519
identity, which signs the certificate's hash (``swarm.records``).
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ftis_node.errors import DialError, HomeError
from ftis_node.identity import write_private_file
from ftis_node.swarm.addresses import Address

CERTIFICATE_FILE = "tls.pem"
NAME = "ftis-node"
LIFETIME = datetime.timedelta(days=3650)
FETCH_SECONDS = 10.0
MAX_CERTIFICATE_BYTES = 8192


@dataclass(frozen=True)
class Certificate:
    """A node's own certificate with its private key, both PEM."""

    pem: bytes
    key_pem: bytes

    @property
    def sha256(self) -> bytes:
        """Hash of the certificate (DER), which the node record names."""
        return certificate_sha256(self.pem)

    @property
    def public_key_sha256(self) -> bytes:
        """Hash of the public key, to which a client's hello is bound."""
        return public_key_sha256(self.pem)

    def server_credentials(self) -> grpc.ServerCredentials:
        """No client certificate is asked for: strangers must be able to say who they are in their hello."""
        return grpc.ssl_server_credentials([(self.key_pem, self.pem)])


def load_or_create_certificate(home: Path) -> Certificate:
    """The home's certificate, made on the first start. Raises HomeError when the file is damaged."""
    path = home / CERTIFICATE_FILE
    if path.exists():
        key_pem, separator, pem = path.read_bytes().partition(b"-----BEGIN CERTIFICATE-----")
        certificate = Certificate(separator + pem, key_pem)
        try:
            serialization.load_pem_private_key(key_pem, None)
            _ = certificate.sha256
        except (ValueError, TypeError) as error:
            raise HomeError(f"{path}: damaged; delete it, and the node makes a new one") from error
        return certificate
    certificate = make_certificate()
    write_private_file(path, certificate.key_pem + certificate.pem)
    return certificate


def make_certificate() -> Certificate:
    """ECDSA P-256, because TLS stacks refuse Ed25519 certificates. It may not sign others."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=2))  # others' clocks may be behind
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Certificate(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def certificate_sha256(pem: bytes) -> bytes:
    return hashlib.sha256(x509.load_pem_x509_certificate(pem).public_bytes(serialization.Encoding.DER)).digest()


def public_key_sha256(pem: bytes) -> bytes:
    key = x509.load_pem_x509_certificate(pem).public_key()
    encoded = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(encoded).digest()


async def fetch_certificate(address: Address, seconds: float = FETCH_SECONDS) -> bytes:
    """The certificate (PEM) that answers there; nothing about it is believed yet.

    Raises DialError when nobody answers or the answer isn't TLS.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # it is pinned and compared with a signed record afterwards
    context.set_alpn_protocols(["h2"])
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
    except TimeoutError as error:
        raise silent(seconds) from error
    except (OSError, UnicodeError) as error:
        raise _dial_error(error) from error
    try:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.transport.abort()
    if not der or len(der) > MAX_CERTIFICATE_BYTES:
        raise DialError("not a node", f"shows a certificate of {len(der or b'')} bytes")
    return ssl.DER_cert_to_PEM_cert(der).encode()


def silent(seconds: float) -> DialError:
    """What is thought of an address where nothing is said in time."""
    return DialError("silent", f"does not answer within {seconds:.3g} s")


def unresolved() -> DialError:
    return DialError("unresolved", "can't be reached: its name does not resolve")


def _dial_error(error: OSError | UnicodeError) -> DialError:
    """Why there is no TLS connection. ``status.judgement`` knows ``can't be reached`` by its beginning."""
    if isinstance(error, ssl.SSLError | ConnectionResetError | BrokenPipeError):
        return DialError("not a node", "answers, but not with TLS: is it an ftis-node?")
    if isinstance(error, socket.gaierror | UnicodeError):  # the latter for a name that can't be one
        return unresolved()
    if isinstance(error, ConnectionRefusedError):
        return DialError("refused", "can't be reached: connection refused, nothing listens there")
    # Of several addresses asyncio tells all failures in one text and leaves the number out.
    reason = os.strerror(error.errno).lower() if error.errno else str(error)
    return DialError("unreachable", f"can't be reached: {reason[:120]}")


def pinned_credentials(pem: bytes) -> grpc.ChannelCredentials:
    """Credentials that accept this one certificate."""
    return grpc.ssl_channel_credentials(root_certificates=pem)


def name_in(pem: bytes) -> str:
    """The name under which TLS must look for the pinned certificate. Raises DialError when it has none."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise DialError("not a node", "shows a certificate that can't be used: is it an ftis-node?") from error
    found = names.get_values_for_type(x509.DNSName)
    if NAME not in found:
        raise DialError("not a node", "shows a certificate of something else: is it an ftis-node?")
    return NAME
