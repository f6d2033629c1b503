"""Whom a walk asks next: bounded, fair to those who tell the truth, and never into somebody's own network."""

import ipaddress

import pytest

from ftis_node.swarm.addresses import Address
from ftis_node.swarm.frontier import ADDRESSES_PER_PEER, HINTS_PER_TELLER, IN_VAIN_PER_HOST, Frontier, Hint, may_follow
from ftis_node.types import PeerId

HONEST, MALLORY = PeerId(b"h" * 32), PeerId(b"m" * 32)


def peer(number: int, port: int = 1) -> Address:
    return Address("127.0.0.1", port, PeerId(number.to_bytes(32, "big")))


def all_of(frontier: Frontier) -> list[Hint]:
    found = []
    while (hint := frontier.next()) is not None:
        found.append(hint)
    return found


def test_mallory_s_many_words_wait_for_the_honest_ones() -> None:
    frontier = Frontier(40)
    frontier.add([peer(n) for n in range(1000, 1400)], MALLORY)
    frontier.add([peer(n) for n in range(10)], HONEST)
    first = [frontier.next() for _ in range(4)]
    assert [hint.teller for hint in first if hint is not None] == [MALLORY, HONEST, MALLORY, HONEST]
    for hint in first:
        assert hint is not None
        if hint.teller == HONEST:
            assert hint.address.peer_id is not None
            frontier.answered(hint, hint.address.peer_id)
    after = [hint.teller for hint in all_of(frontier)]
    assert after[:3] == [HONEST, HONEST, MALLORY], "whose words come true goes first"
    assert after.count(HONEST) == 8
    assert frontier.asked == 40
    assert frontier.full
    assert frontier.not_asked == 370


def test_mallory_can_t_aim_the_asker_at_one_host() -> None:
    frontier = Frontier(500)
    frontier.add([Address("198.51.100.1", port, PeerId(port.to_bytes(32, "big"))) for port in range(1, 501)], MALLORY)
    frontier.add([Address("198.51.100.1", 47100, PeerId(b"v" * 32))], HONEST)
    dialled = []
    while (hint := frontier.next()) is not None:
        dialled.append(hint)
        frontier.in_vain(hint)
    assert sum(hint.teller == MALLORY for hint in dialled) == IN_VAIN_PER_HOST
    assert [hint.address.port for hint in dialled if hint.teller == HONEST] == [47100], "others' words hold"


def test_a_peer_is_asked_at_one_address_at_a_time_and_at_three_in_all() -> None:
    frontier = Frontier(10)
    frontier.add([peer(1, port) for port in range(1, 9)], HONEST)
    for _ in range(ADDRESSES_PER_PEER):
        hint = frontier.next()
        assert hint is not None
        assert frontier.next() is None, "it is being asked"
        frontier.in_vain(hint)
    assert frontier.next() is None
    assert frontier.asked == 1


def test_who_has_answered_is_not_asked_again_wherever_it_was_found() -> None:
    frontier = Frontier(10)
    frontier.add([Address("127.0.0.1", 1)], None)
    hint = frontier.next()
    assert hint is not None
    proved = peer(1).peer_id
    assert proved is not None
    frontier.answered(hint, proved)
    frontier.add([peer(1, 1), peer(1, 2), peer(2)], HONEST)
    assert [hint.address for hint in all_of(frontier)] == [peer(2)]
    known = Frontier(10)
    known.known_already(proved)
    known.add([peer(1)], HONEST)
    assert known.next() is None


def test_one_teller_is_heard_for_so_many_words_and_no_more() -> None:
    frontier = Frontier(100_000)
    frontier.add([peer(n) for n in range(10_000)], MALLORY)
    assert len(all_of(frontier)) == HINTS_PER_TELLER


@pytest.mark.parametrize(
    ("host", "told_at", "follow"),
    [
        ("8.8.8.8", "9.9.9.9", True),
        ("10.0.0.1", "9.9.9.9", False),
        ("127.0.0.1", "9.9.9.9", False),
        ("::ffff:127.0.0.1", "9.9.9.9", False),
        ("::1", "2001:4860::1", False),
        ("fd00::1", "2001:4860::1", False),
        ("169.254.169.254", "127.0.0.1", False),
        ("169.254.169.254", "10.0.0.1", False),
        ("0.0.0.0", "127.0.0.1", False),
        ("224.0.0.1", "127.0.0.1", False),
        ("240.0.0.1", "9.9.9.9", False),
        ("10.0.0.1", "192.168.1.1", True),
        ("8.8.8.8", "192.168.1.1", True),
        ("127.0.0.1", "10.0.0.1", False),
        ("127.0.0.1", "127.0.0.1", True),
        ("10.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", None, True),
        ("0.0.0.0", None, False),
    ],
)
def test_mallory_can_not_send_the_asker_into_its_own_network(host: str, told_at: str | None, follow: bool) -> None:
    teller = None if told_at is None else ipaddress.ip_address(told_at)
    assert may_follow(ipaddress.ip_address(host), teller) is follow
