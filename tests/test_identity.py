import os
import subprocess
import sys

import pytest

from ftis_node.errors import HomeError
from ftis_node.identity import KEY_FILE, Identity, daemon_of, load_or_create_identity, lock_home, verify_signature
from ftis_node.types import PeerId


def test_the_same_home_is_the_same_peer(tmp_path) -> None:
    first = load_or_create_identity(tmp_path)
    assert load_or_create_identity(tmp_path).peer_id == first.peer_id
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o777 == 0o600


def test_a_key_that_others_can_read_is_refused(tmp_path) -> None:
    load_or_create_identity(tmp_path)
    (tmp_path / KEY_FILE).chmod(0o644)
    with pytest.raises(HomeError, match="chmod 600"):
        load_or_create_identity(tmp_path)


def test_a_damaged_key_is_refused_and_not_replaced(tmp_path) -> None:
    load_or_create_identity(tmp_path)
    (tmp_path / KEY_FILE).write_bytes(b"short")
    with pytest.raises(HomeError, match="damaged: 5 bytes"):
        load_or_create_identity(tmp_path)
    assert (tmp_path / KEY_FILE).read_bytes() == b"short"


def test_signatures_hold_for_their_domain_and_data_only() -> None:
    alice, mallory = Identity.generate(), Identity.generate()
    signature = alice.sign(b"domain", b"data")
    assert verify_signature(alice.peer_id, b"domain", b"data", signature)
    assert not verify_signature(alice.peer_id, b"domai", b"ndata2", signature)
    assert not verify_signature(alice.peer_id, b"other", b"data", signature)
    assert not verify_signature(mallory.peer_id, b"domain", b"data", signature)
    assert not verify_signature(alice.peer_id, b"domain", b"data", signature[:-1])
    assert not verify_signature(PeerId(b"not a key"), b"domain", b"data", signature)


def test_a_second_daemon_on_the_same_home_is_refused(tmp_path) -> None:
    with lock_home(tmp_path):
        assert daemon_of(tmp_path) == os.getpid()
        script = (
            "import pathlib; from ftis_node.identity import lock_home;"
            f"lock_home(pathlib.Path({str(tmp_path)!r})).__enter__()"
        )
        second = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert second.returncode != 0
        assert "another node (process" in second.stderr
    assert daemon_of(tmp_path) is None


def test_the_lock_ends_with_the_process_that_held_it(tmp_path) -> None:
    script = (
        "import os, pathlib, signal; from ftis_node.identity import lock_home;"
        f"lock_home(pathlib.Path({str(tmp_path)!r})).__enter__(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script], check=False)
    with lock_home(tmp_path):
        pass
