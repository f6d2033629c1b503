"""``ftis-node identity``: show, and a key that goes out under a passphrase and comes back."""

import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftis_node.errors import ConfigError, HomeError
from ftis_node.identity import KEY_FILE, Identity, load_or_create_identity, lock_home, write_private_file
from ftis_node.key_backup import LONGEST_PASSPHRASE, SHORTEST_PASSPHRASE, open_backup, seal_identity
from tests.builders import ALICE, BOB
from tests.test_cli import ftis_node

PASSPHRASE = "correct horse battery"


@pytest.fixture
def secret(tmp_path: Path) -> str:
    file = tmp_path / "passphrase"
    file.write_text(PASSPHRASE + "\n")
    return str(file)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    write_private_file(home / KEY_FILE, ALICE.seed())
    return home


def exported(home: Path, secret: str, target: Path) -> Path:
    done = ftis_node("identity", "export", str(target), "--home", str(home), "--passphrase-file", secret)
    assert done.returncode == 0, done.stderr
    return target


def one_line(done: subprocess.CompletedProcess[str], code: int) -> str:
    assert done.returncode == code, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


def test_show(home: Path) -> None:
    done = ftis_node("identity", "show", "--home", str(home))
    assert done.returncode == 0
    assert ALICE.peer_id.hex() in done.stdout
    assert f"short     {ALICE.peer_id.hex()[:12]}" in done.stdout
    assert f"{home / KEY_FILE} (mode 0600, written 20" in done.stdout
    assert "warning" not in done.stdout
    (home / KEY_FILE).chmod(0o640)
    warned = ftis_node("identity", "show", "--home", str(home))
    assert f"others can read the private key; run: chmod 600 {home / KEY_FILE}" in warned.stdout
    shown = json.loads(ftis_node("identity", "show", "--home", str(home), "--json").stdout)
    assert shown["schema_version"] == 1
    assert shown["peer_id"] == ALICE.peer_id.hex()
    assert (shown["mode"], shown["file"]) == ("0640", str(home / KEY_FILE))
    assert "chmod 600" in shown["warning"]


def test_show_without_an_identity_and_with_something_else_in_its_place(tmp_path: Path) -> None:
    assert "there is no identity here yet" in one_line(ftis_node("identity", "show", "--home", str(tmp_path)), 1)
    (tmp_path / KEY_FILE).mkdir()
    assert "can't be read: Is a directory" in one_line(ftis_node("identity", "show", "--home", str(tmp_path)), 1)


def test_an_identity_moves_to_another_home(home: Path, tmp_path: Path, secret: str) -> None:
    backup = exported(home, secret, tmp_path / "alice.backup")
    assert backup.stat().st_mode & 0o777 == 0o600
    assert f"# peer id: {ALICE.peer_id.hex()}" in backup.read_text()
    assert ALICE.seed() not in backup.read_bytes()
    done = ftis_node("identity", "import", str(backup), "--home", str(tmp_path / "new"), "--passphrase-file", secret)
    assert done.returncode == 0, done.stderr
    assert f"imported {ALICE.peer_id.hex()}" in done.stdout
    assert load_or_create_identity(tmp_path / "new").seed() == ALICE.seed()
    assert (tmp_path / "new" / KEY_FILE).stat().st_mode & 0o777 == 0o600


def test_export_warns_of_two_daemons_and_never_overwrites(home: Path, tmp_path: Path, secret: str) -> None:
    target = tmp_path / "out"
    done = ftis_node("identity", "export", str(target), "--home", str(home), "--passphrase-file", secret)
    assert "Never run two daemons with one identity at once" in done.stdout
    before = target.read_bytes()
    again = ftis_node("identity", "export", str(target), "--home", str(home), "--passphrase-file", secret)
    assert "exists already and is not overwritten" in one_line(again, 1)
    assert target.read_bytes() == before


def test_export_of_a_key_that_others_can_read_is_refused(home: Path, tmp_path: Path, secret: str) -> None:
    (home / KEY_FILE).chmod(0o604)
    done = ftis_node("identity", "export", str(tmp_path / "out"), "--home", str(home), "--passphrase-file", secret)
    assert f"run: chmod 600 {home / KEY_FILE}" in one_line(done, 1)
    assert not (tmp_path / "out").exists()


def test_import_refuses_a_home_with_an_identity_or_a_daemon(home: Path, tmp_path: Path, secret: str) -> None:
    backup = exported(home, secret, tmp_path / "alice.backup")
    other = tmp_path / "other"
    other.mkdir()
    write_private_file(other / KEY_FILE, BOB.seed())
    arguments = ("identity", "import", str(backup), "--passphrase-file", secret, "--home")
    assert f"has an identity already, {BOB.peer_id.hex()}" in one_line(ftis_node(*arguments, str(other)), 1)
    assert load_or_create_identity(other).seed() == BOB.seed()
    with lock_home(tmp_path / "running"):
        refused = one_line(ftis_node(*arguments, str(tmp_path / "running")), 1)
    assert f"another node (process {os.getpid()}) runs on it" in refused
    assert not (tmp_path / "running" / KEY_FILE).exists()


def test_a_wrong_passphrase_is_one_line_and_imports_nothing(home: Path, tmp_path: Path, secret: str) -> None:
    backup = exported(home, secret, tmp_path / "alice.backup")
    Path(secret).write_text("incorrect horse battery")
    done = ftis_node("identity", "import", str(backup), "--home", str(tmp_path / "new"), "--passphrase-file", secret)
    assert "the passphrase is wrong, or the file was changed" in one_line(done, 1)
    assert not (tmp_path / "new" / KEY_FILE).exists()


@pytest.mark.parametrize("length", [0, 1, SHORTEST_PASSPHRASE - 1, LONGEST_PASSPHRASE + 1])
def test_a_passphrase_of_a_length_that_is_not_allowed(length: int) -> None:
    with pytest.raises(ConfigError, match=rf"has {length} characters; allowed are 12 to 1024"):
        seal_identity(ALICE, "x" * length)


def test_a_passphrase_file_that_is_empty_or_not_there(home: Path, tmp_path: Path, secret: str) -> None:
    target = tmp_path / "out"
    Path(secret).write_text("\n")
    done = ftis_node("identity", "export", str(target), "--home", str(home), "--passphrase-file", secret)
    assert "has 0 characters; allowed are 12 to 1024" in one_line(done, 2)
    done = ftis_node("identity", "export", str(target), "--home", str(home), "--passphrase-file", "/nowhere")
    assert "--passphrase-file /nowhere: can't be read" in one_line(done, 2)
    assert not target.exists()


def changed(text: str, part: str, by: str) -> str:
    assert part in text
    return text.replace(part, by, 1)


def test_a_backup_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "backup"
    text = seal_identity(ALICE, PASSPHRASE)
    body = text.splitlines()[3]
    cases = {
        "the passphrase is wrong, or the file was changed": changed(text, ALICE.peer_id.hex(), BOB.peer_id.hex()),
        "the backup is damaged": changed(text, body, body[:-8]),
        "is not a backup": changed(text, "-----BEGIN", "-----BEGUN"),
        "is not a backup as": "x" * 100_000,
    }
    for message, content in cases.items():
        path.write_text(content)
        with pytest.raises(HomeError, match=message):
            open_backup(path, PASSPHRASE)
    path.write_text(changed(text, body, ("A" if body[0] != "A" else "B") + body[1:]))
    with pytest.raises(HomeError, match="the passphrase is wrong, or the file was changed"):
        open_backup(path, PASSPHRASE)
    path.write_text(text.replace("\n", "\r\n"))  # a mail program may do that
    assert open_backup(path, PASSPHRASE).peer_id == ALICE.peer_id


def test_two_exports_of_one_key_have_nothing_in_common() -> None:
    one, two = (seal_identity(ALICE, PASSPHRASE).splitlines()[3:-1] for _ in range(2))
    assert not set(one) & set(two)


def typed(arguments: list[str], *answers: str) -> tuple[int, str]:
    """Run on a terminal, typing an answer at every prompt; exit code and all that the terminal showed."""
    process, terminal = pty.fork()
    if process == 0:
        os.execv(sys.executable, [sys.executable, "-m", "ftis_node", *arguments])
    shown, waiting, deadline = b"", list(answers), time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
        if waiting and shown.rstrip(b"\r\n").endswith(b": "):
            time.sleep(0.05)  # until the echo is off
            os.write(terminal, waiting.pop(0).encode(errors="surrogateescape") + b"\n")
    _, status = os.waitpid(process, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), shown.decode()


def test_the_passphrase_is_asked_twice_and_not_shown(home: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    arguments = ["identity", "export", str(target), "--home", str(home)]
    code, shown = typed(arguments, PASSPHRASE, "something else")
    assert (code, target.exists()) == (2, False)
    assert "the two differ" in shown
    code, shown = typed(arguments, PASSPHRASE, PASSPHRASE)
    assert code == 0, shown
    assert PASSPHRASE not in shown
    assert re.search(r"New passphrase: .*The same again: ", shown, re.DOTALL)
    code, shown = typed(["identity", "import", str(target), "--home", str(tmp_path / "new")], PASSPHRASE)
    assert code == 0, shown
    assert PASSPHRASE not in shown
    assert load_or_create_identity(tmp_path / "new").seed() == ALICE.seed()


def test_what_is_typed_in_another_encoding_is_one_line(home: Path, tmp_path: Path) -> None:
    arguments = ["identity", "export", str(tmp_path / "backup"), "--home", str(home)]
    code, shown = typed(arguments, "\udcff" * SHORTEST_PASSPHRASE)
    assert code == 2
    assert "not text in this terminal's encoding" in shown
    assert "Traceback" not in shown
    assert not (tmp_path / "backup").exists()


def test_without_a_terminal_the_passphrase_is_not_read_from_a_pipe(home: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ftis_node", "identity", "export", str(tmp_path / "out"), "--home", str(home)],
        input=f"{PASSPHRASE}\n{PASSPHRASE}\n", capture_output=True, text=True, start_new_session=True, check=False,
        timeout=30,
    )  # fmt: skip
    assert done.returncode == 2
    assert "there is no terminal to ask on; give --passphrase-file FILE" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_backup_that_holds_another_key_than_it_says(tmp_path: Path) -> None:
    forged = Identity(BOB.peer_id, ALICE._key)
    path = tmp_path / "backup"
    path.write_text(seal_identity(forged, PASSPHRASE))
    with pytest.raises(HomeError, match="holds the key of"):
        open_backup(path, PASSPHRASE)


def test_an_import_that_fails_leaves_no_half_made_home(tmp_path: Path) -> None:
    from ftis_node.commands.identity import run_import
    from ftis_node.errors import HomeError

    (tmp_path / "backup").write_text("no backup")
    (tmp_path / "passphrase").write_text("correct horse battery staple")
    with pytest.raises(HomeError, match="is not a backup"):
        run_import(tmp_path / "home", tmp_path / "backup", passphrase_file=tmp_path / "passphrase")
    assert not (tmp_path / "home").exists()
