"""Who this node is: an Ed25519 key in its home, signatures with domain tags, and the home's lock.

The key never leaves the network half. Its public half is the peer id.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ftis_node.errors import HomeError
from ftis_node.types import PeerId

KEY_FILE = "identity.key"
LOCK_FILE = "node.lock"
LOCK_ATTEMPTS = 5
SEED_BYTES = 32

BATCH_DOMAIN = b"ftis-node/batch/1\0"
RECORD_DOMAIN = b"ftis-node/record/1\0"
HELLO_DOMAIN = b"ftis-node/hello/1\0"


@dataclass(frozen=True)
class Identity:
    """A private key and the peer id that follows from it."""

    peer_id: PeerId
    _key: Ed25519PrivateKey

    @classmethod
    def generate(cls) -> Identity:
        return cls._from_key(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """The identity of a 32-byte private seed: what the key file holds."""
        return cls._from_key(Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def _from_key(cls, key: Ed25519PrivateKey) -> Identity:
        public = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        return cls(PeerId(public), key)

    def seed(self) -> bytes:
        """The 32 private bytes."""
        return self._key.private_bytes(
            serialization.Encoding.Raw, serialization.PrivateFormat.Raw, serialization.NoEncryption()
        )

    def sign(self, domain: bytes, data: bytes) -> bytes:
        """64-byte signature over ``domain + data``; the domain keeps one use from passing as another."""
        return self._key.sign(domain + data)


def verify_signature(peer_id: PeerId, domain: bytes, data: bytes, signature: bytes) -> bool:
    """Whether ``signature`` is the peer's over ``domain + data``; malformed keys count as no."""
    try:
        Ed25519PublicKey.from_public_bytes(peer_id).verify(signature, domain + data)
    except (InvalidSignature, ValueError):
        return False
    return True


def load_or_create_identity(home: Path) -> Identity:
    """Read the node's key, or make one on the first start. Raises HomeError."""
    path = home / KEY_FILE
    return read_key_file(path) if path.exists() else create_key_file(path)


def read_key_file(path: Path) -> Identity:
    """Raises HomeError when the key is damaged or others may read it."""
    if (reason := why_unsafe(path)) is not None:
        raise HomeError(reason)
    return peek_key_file(path)


def peek_key_file(path: Path) -> Identity:
    """Whose key it is, even if others may read it: for looking only. Raises HomeError."""
    try:
        seed = path.read_bytes()
    except FileNotFoundError as error:
        raise HomeError(f"{path}: there is no identity here yet; the first `ftis-node join` makes one") from error
    except OSError as error:
        raise HomeError(f"{path}: can't be read: {error.strerror}") from error
    if len(seed) != SEED_BYTES:
        raise HomeError(f"{path}: damaged: {len(seed)} bytes instead of {SEED_BYTES}; restore it from a backup")
    return Identity.from_seed(seed)


def why_unsafe(path: Path) -> str | None:
    """Why a private file must not be used as it is, and what to run; None if only its owner has access, or none is
    there.

    It isn't repaired: who could read it until now is for its owner to judge.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    return f"{path}: others can read the private key; run: chmod 600 {path}" if mode & 0o077 else None


def refuse_second_identity(home: Path) -> None:
    """Raises HomeError when the home has an identity: another would replace it."""
    path = home / KEY_FILE
    if path.exists():
        raise HomeError(
            f"{path}: this home has an identity already, {peek_key_file(path).peer_id.hex()}; use another --home"
        )


def create_key_file(path: Path) -> Identity:
    """A new key. The file is written whole before it gets its name: a crash never leaves half a key."""
    identity = Identity.generate()
    write_private_file(path, identity.seed())
    return identity


def write_private_file(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, durably and all at once. Raises HomeError."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        sync_directory(path.parent)
    except OSError as error:
        raise HomeError(f"{path}: can't be written: {error.strerror}") from error


def sync_directory(directory: Path) -> None:
    """Bring names to disk: a new file's name is its directory's content. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def lock_home(home: Path) -> Iterator[None]:
    """Make the home this process's alone, until the end of the block or of the process.

    Raises HomeError when another node holds it.
    """
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = open(home / LOCK_FILE, "a+")  # noqa: SIM115 - held until the end of the block
    except OSError as error:
        raise HomeError(f"--home {home}: can't be used: {error.strerror}") from error
    with file:
        if not _acquire(file):
            raise HomeError(
                f"--home {home}: another node (process {_lock_holder(home)}) runs on it; stop it or use another --home"
            )
        try:
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        except OSError as error:
            raise HomeError(f"--home {home}: can't be written: {error.strerror}") from error
        yield


def _acquire(file: TextIO) -> bool:
    # `health` takes the lock for a moment when it asks whether a daemon runs: don't fail over that.
    for attempt in range(LOCK_ATTEMPTS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if attempt + 1 < LOCK_ATTEMPTS:
                time.sleep(0.1)
        else:
            return True
    return False


def daemon_of(home: Path) -> int | None:
    """The process id of the daemon that runs on this home right now; None when there is none. Raises HomeError."""
    try:
        with open(home / LOCK_FILE) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _lock_holder(home)
        return int(holder) if holder.isdigit() else 0
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HomeError(f"--home {home}: can't be used: {error.strerror}") from error
    return None


def _lock_holder(home: Path) -> str:
    return (home / LOCK_FILE).read_text().strip() or "unknown"
