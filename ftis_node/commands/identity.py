"""``ftis-node identity``: who this node is, and its key as a file to keep elsewhere or to move."""

from __future__ import annotations

import datetime
import getpass
import json
import os
import stat
import warnings
from pathlib import Path

from ftis_node.errors import ConfigError, HomeError
from ftis_node.identity import (
    KEY_FILE,
    Identity,
    lock_home,
    peek_key_file,
    read_key_file,
    refuse_second_identity,
    sync_directory,
    why_unsafe,
    write_private_file,
)
from ftis_node.key_backup import LONGEST_PASSPHRASE, check_passphrase, open_backup, seal_identity
from ftis_node.types import short_id

SHOW_SCHEMA = 1


def run_show(home: Path, *, as_json: bool) -> int:
    """Print who the node is and how its key lies. Raises HomeError when there is no key or it is damaged."""
    path = home / KEY_FILE
    identity = peek_key_file(path)
    status = path.stat()
    mode = f"{stat.S_IMODE(status.st_mode):04o}"
    written = datetime.datetime.fromtimestamp(int(status.st_mtime), datetime.UTC).isoformat()
    warning = why_unsafe(path)
    if as_json:
        shown = {
            "schema_version": SHOW_SCHEMA,
            "peer_id": identity.peer_id.hex(),
            "short_id": short_id(identity.peer_id),
            "file": str(path),
            "mode": mode,
            "written_at": written,
            "warning": warning,
        }
        print(json.dumps(shown, indent=2))
        return 0
    print(f"peer id   {identity.peer_id.hex()}")
    print(f"short     {short_id(identity.peer_id)}")
    print(f"key file  {path} (mode {mode}, written {written})")
    if warning is not None:
        print(f"warning: {warning}")
    return 0


def run_export(home: Path, target: Path, *, passphrase_file: Path | None) -> int:
    """Write the encrypted key; refuses to overwrite. Works while the node runs. Raises HomeError, ConfigError."""
    identity = read_key_file(home / KEY_FILE)
    if target.exists():  # before anybody types a passphrase
        raise HomeError(f"{target}: exists already and is not overwritten")
    text = seal_identity(identity, _new_passphrase(passphrase_file))
    _write_new(target, text)
    print(f"wrote the key of {identity.peer_id.hex()} to {target}, encrypted; without its passphrase it is lost")
    print(
        "Never run two daemons with one identity at once: they contradict each other, and peers reject their samples"
        " and may ban the identity. Stop this node for good before another one starts with it."
    )
    return 0


def run_import(home: Path, source: Path, *, passphrase_file: Path | None) -> int:
    """Give a home without identity the one of a backup. Raises HomeError, ConfigError."""
    path = home / KEY_FILE
    if not home.exists():  # a mistake must not leave half a home
        identity = open_backup(source, _known_passphrase(passphrase_file, source))
        with lock_home(home):
            return _take_in(home, path, identity)
    with lock_home(home):  # no daemon may start and make an identity meanwhile
        refuse_second_identity(home)  # before anybody types a passphrase
        return _take_in(home, path, open_backup(source, _known_passphrase(passphrase_file, source)))


def _take_in(home: Path, path: Path, identity: Identity) -> int:
    """With the home locked."""
    refuse_second_identity(home)
    write_private_file(path, identity.seed())
    held = read_key_file(path)
    if held.peer_id != identity.peer_id:
        raise HomeError(f"{path}: reads back as another key than was written; is the disk sound?")
    print(f"imported {held.peer_id.hex()} into {path}")
    print("Start it here only when no other daemon runs with this identity, and none will again.")
    return 0


def _new_passphrase(file: Path | None) -> str:
    if file is not None:
        return _read_passphrase(file)
    passphrase = _ask("New passphrase: ")
    check_passphrase(passphrase)
    if _ask("The same again: ") != passphrase:
        raise ConfigError("passphrase: the two differ; nothing was written")
    return passphrase


def _known_passphrase(file: Path | None, source: Path) -> str:
    return _read_passphrase(file) if file is not None else _ask(f"Passphrase of {source}: ")


def _ask(prompt: str) -> str:
    """Without echo, and never from a pipe, where it would be visible or wait for ever."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", getpass.GetPassWarning)
            return getpass.getpass(prompt)
    except (getpass.GetPassWarning, EOFError) as error:
        raise ConfigError("passphrase: there is no terminal to ask on; give --passphrase-file FILE") from error
    except UnicodeDecodeError as error:
        raise ConfigError("passphrase: what was typed is not text in this terminal's encoding") from error


def _read_passphrase(file: Path) -> str:
    """The first line of a file."""
    try:
        with file.open(encoding="utf-8") as content:
            return content.readline(LONGEST_PASSPHRASE + 2).rstrip("\r\n")
    except OSError as error:
        raise ConfigError(f"--passphrase-file {file}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--passphrase-file {file}: is not text") from error


def _write_new(target: Path, text: str) -> None:
    """Durably, for the owner alone, and never in place of another file; without links, which sticks don't have."""
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise HomeError(f"{target}: exists already and is not overwritten") from error
    except OSError as error:
        raise HomeError(f"{target}: can't be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        sync_directory(target.parent)
    except OSError as error:
        target.unlink()
        raise HomeError(f"{target}: can't be written: {error.strerror}") from error
