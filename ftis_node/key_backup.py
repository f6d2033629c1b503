"""An identity as a file to keep elsewhere: encrypted with a passphrase, readable text around it.

    # ftis-node identity, encrypted with a passphrase
    # peer id: 64 hex digits
    -----BEGIN FTIS-NODE IDENTITY 1-----
    base64 of: salt (16 bytes), nonce (12), AES-256-GCM of the 32 private bytes (48)
    -----END FTIS-NODE IDENTITY 1-----

The key of the cipher is scrypt's of the passphrase, because OpenSSL's PKCS #8 files stretch it by 2,048 rounds only.
The peer id is authenticated with the rest: a changed line is noticed.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import textwrap
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from ftis_node.errors import ConfigError, HomeError
from ftis_node.identity import Identity
from ftis_node.types import PeerId, short_id

SHORTEST_PASSPHRASE = 12
LONGEST_PASSPHRASE = 1024
LARGEST_FILE = 16_384

_LABEL = "FTIS-NODE IDENTITY 1"
_DOMAIN = b"ftis-node/identity-backup/1\0"
_SALT_BYTES, _NONCE_BYTES, _SEALED_BYTES = 16, 12, 48
_SCRYPT_COST = 2**17  # with r = 8: 128 MiB and about half a second for every guess
_FORM = re.compile(
    r"^# peer id: (?P<peer>[0-9a-f]{64})\s*"
    rf"^-----BEGIN {_LABEL}-----\s(?P<body>[A-Za-z0-9+/=\s]*)-----END {_LABEL}-----\s*$",
    re.MULTILINE,
)


def check_passphrase(passphrase: str) -> None:
    """Raises ConfigError for one that is too easy to guess, or absurdly long."""
    if not SHORTEST_PASSPHRASE <= len(passphrase) <= LONGEST_PASSPHRASE:
        raise ConfigError(
            f"passphrase: has {len(passphrase)} characters; allowed are {SHORTEST_PASSPHRASE} to {LONGEST_PASSPHRASE}"
        )


def seal_identity(identity: Identity, passphrase: str) -> str:
    """The text of a backup file. Raises ConfigError for an unusable passphrase."""
    check_passphrase(passphrase)
    salt, nonce = os.urandom(_SALT_BYTES), os.urandom(_NONCE_BYTES)
    sealed = _cipher(passphrase, salt).encrypt(nonce, identity.seed(), _DOMAIN + identity.peer_id)
    body = "\n".join(textwrap.wrap(base64.b64encode(salt + nonce + sealed).decode(), 64))
    return (
        "# ftis-node identity, encrypted with a passphrase; `ftis-node identity import` reads it.\n"
        f"# peer id: {identity.peer_id.hex()}\n"
        f"-----BEGIN {_LABEL}-----\n{body}\n-----END {_LABEL}-----\n"
    )


def open_backup(path: Path, passphrase: str) -> Identity:
    """The identity in a backup file. Raises HomeError when the file can't be used or the passphrase is wrong."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise HomeError(f"{path}: can't be read: {error.strerror}") from error
    peer_id, packed = _parse(path, content)
    salt, nonce, sealed = (
        packed[:_SALT_BYTES],
        packed[_SALT_BYTES : _SALT_BYTES + _NONCE_BYTES],
        packed[-_SEALED_BYTES:],
    )
    try:
        seed = _cipher(passphrase, salt).decrypt(nonce, sealed, _DOMAIN + peer_id)
    except InvalidTag as error:
        raise HomeError(
            f"{path}: the passphrase is wrong, or the file was changed (it is for peer id {peer_id.hex()})"
        ) from error
    identity = Identity.from_seed(seed)
    if identity.peer_id != peer_id:
        raise HomeError(f"{path}: holds the key of {short_id(identity.peer_id)}, but says it is of {short_id(peer_id)}")
    return identity


def _parse(path: Path, content: bytes) -> tuple[PeerId, bytes]:
    found = _FORM.search(content.decode("ascii", "replace")) if len(content) <= LARGEST_FILE else None
    if found is None:
        raise HomeError(f"{path}: is not a backup as `ftis-node identity export` writes it")
    try:
        packed = base64.b64decode("".join(found["body"].split()), validate=True)
    except binascii.Error:
        packed = b""
    if len(packed) != _SALT_BYTES + _NONCE_BYTES + _SEALED_BYTES:
        raise HomeError(f"{path}: the backup is damaged: its text has been cut or changed")
    return PeerId(bytes.fromhex(found["peer"])), packed


def _cipher(passphrase: str, salt: bytes) -> AESGCM:
    return AESGCM(Scrypt(salt=salt, length=32, n=_SCRYPT_COST, r=8, p=1).derive(passphrase.encode()))
