"""Membership: open, by list, by invitation; what strangers, thieves and latecomers are told."""

from pathlib import Path

import pytest

from ftis_node.admission import PROOF_BYTES, accept_invitation, make_invitation, why_not_a_member
from ftis_node.clock import now_ms
from ftis_node.commands.init import run_toml
from ftis_node.commands.invite import run_invite
from ftis_node.errors import ConfigError, HomeError
from ftis_node.identity import read_key_file
from ftis_node.manifest import load_run, parse_run
from tests.builders import ALICE, BOB, MALLORY, NOW_MS, make_run
from tests.daemons import Daemon, write_run

OWNER = BOB
RUN = make_run(membership=f'{{ admission_key = "{OWNER.peer_id.hex()}" }}')
END = NOW_MS + 3_600_000
TOKEN = make_invitation(OWNER, RUN.run_id, expires_at_ms=END)
PROOF = accept_invitation(TOKEN, ALICE.peer_id, RUN, now_ms=NOW_MS)


def with_membership(text: str, membership: str) -> str:
    return text.replace('membership = "open"', f"membership = {membership}")


def test_an_open_run_asks_for_nothing() -> None:
    assert why_not_a_member(make_run(), MALLORY.peer_id, b"", now_ms=NOW_MS) is None


def test_a_list_of_peers() -> None:
    run = make_run(membership=f'{{ peers = ["{ALICE.peer_id.hex()}"] }}')
    assert why_not_a_member(run, ALICE.peer_id, b"", now_ms=NOW_MS) is None
    assert why_not_a_member(run, MALLORY.peer_id, b"", now_ms=NOW_MS) == (
        "this run is for a list of peers, and you are not on it"
    )


def test_an_invitation_holds_until_it_expires() -> None:
    assert len(PROOF) == PROOF_BYTES == 168
    assert why_not_a_member(RUN, ALICE.peer_id, PROOF, now_ms=END) is None
    late = why_not_a_member(RUN, ALICE.peer_id, PROOF, now_ms=END + 7_200_000)
    assert late == "the invitation expired 2.0 hours ago: ask for a new one"


def test_mallory_uses_the_proof_that_she_saw_in_alices_hello() -> None:
    assert why_not_a_member(RUN, MALLORY.peer_id, PROOF, now_ms=NOW_MS) == "the invitation was accepted by another peer"


def test_mallory_invites_herself() -> None:
    forged = make_invitation(MALLORY, RUN.run_id, expires_at_ms=END)
    with pytest.raises(ConfigError, match="the invitation is not for this run"):
        accept_invitation(forged, MALLORY.peer_id, RUN, now_ms=NOW_MS)


def test_an_invitation_to_another_run() -> None:
    other = make_run("other", membership=f'{{ admission_key = "{OWNER.peer_id.hex()}" }}')
    with pytest.raises(ConfigError, match="the invitation is not for this run"):
        accept_invitation(TOKEN, ALICE.peer_id, other, now_ms=NOW_MS)


def test_a_proof_with_any_bit_changed_is_none() -> None:
    for position in range(len(PROOF)):
        changed = bytearray(PROOF)
        changed[position] ^= 1
        assert why_not_a_member(RUN, ALICE.peer_id, bytes(changed), now_ms=NOW_MS) is not None


@pytest.mark.parametrize("token", ["", "ftis-invitation-", "ftis-invitation-äö", TOKEN[:-5], "hello"])
def test_what_is_no_invitation(token: str) -> None:
    with pytest.raises(ConfigError, match="--invitation: "):
        accept_invitation(token, ALICE.peer_id, RUN, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("membership", "named"),
    [
        ('"closed"', "membership = 'closed': must be"),
        ("{ peers = [] }", "membership.peers = []: "),
        ('{ peers = ["abc"] }', "membership.peers.0 = 'abc': "),
        ('{ admission_key = "abc" }', "membership.admission_key = 'abc': "),
        ("{ }", "membership: must be"),
    ],
)
def test_memberships_that_are_none_are_named(membership: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_run(with_membership(run_toml("test"), membership).encode(), source="run.toml")
    assert named in str(caught.value)


def test_invite_makes_a_key_then_invitations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, run_file = tmp_path / "admission.key", tmp_path / "run.toml"
    assert run_invite(key, run_file=None, days=1) == 0
    line = capsys.readouterr().out.strip().splitlines()[-1]
    assert key.stat().st_mode & 0o077 == 0
    run_file.write_text(run_toml("test"))
    with pytest.raises(ConfigError, match="must have membership"):
        run_invite(key, run_file=run_file, days=1)
    run_file.write_text(run_toml("test").replace('membership = "open"', line))
    assert run_invite(key, run_file=run_file, days=1) == 0
    token = capsys.readouterr().out.strip()
    accept_invitation(token, ALICE.peer_id, load_run(run_file), now_ms=now_ms())
    with pytest.raises(HomeError, match="exists already"):
        run_invite(key, run_file=None, days=1)
    with pytest.raises(HomeError, match="there is no such key"):
        run_invite(tmp_path / "other.key", run_file=run_file, days=1)


def test_daemons_of_a_run_by_invitation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The invited node trains with the owner's; the stranger is told why it can't."""
    key = tmp_path / "admission.key"
    run_invite(key, run_file=None, days=1)
    line = capsys.readouterr().out.strip().splitlines()[-1]
    run_file = write_run(tmp_path)
    run_file.write_text(run_file.read_text().replace('membership = "open"', line))
    run, admission = load_run(run_file), read_key_file(key)

    def invitation() -> tuple[str, ...]:
        return ("--invitation", make_invitation(admission, run.run_id, expires_at_ms=now_ms() + 600_000))

    with Daemon(tmp_path / "owner", run=run_file, command="relay", arguments=invitation()) as owner:
        address = (owner.address(),)
        with Daemon(tmp_path / "stranger", peers=address, command="relay") as stranger:
            assert stranger.process.wait(30) == 2
            assert "this run is by invitation: ask its owner for one" in stranger.log
        invited = invitation()
        with Daemon(tmp_path / "guest", peers=address, arguments=invited) as guest:
            owner.until(lambda s: s.received_batches > 0, "a batch of the guest arrives")
            assert guest.terminate() == 0
        with Daemon(tmp_path / "guest") as again:  # the accepted invitation is remembered
            again.until(lambda s: any(peer.connected for peer in s.peers), "the guest is back")
            assert again.terminate() == 0
        with Daemon(tmp_path / "guest", arguments=invited) as kept:  # as in a unit file that nobody edits
            kept.until(lambda s: any(peer.connected for peer in s.peers), "the guest is back once more")
            assert "already a member by this invitation: --invitation isn't needed any more" in kept.log
            assert kept.terminate() == 0
        assert owner.terminate() == 0
