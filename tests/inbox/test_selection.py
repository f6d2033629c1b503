"""Which groups a step takes: the more informative first, then the newest, under every cap."""

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ftis_node.config import CapsConfig
from ftis_node.inbox.selection import Candidate, Source, information_level, plenty, select
from ftis_node.types import BatchName, PeerId


def peer(number: int) -> PeerId:
    return PeerId(bytes([number]) * 32)


def candidate(
    number: int,
    *,
    author: int = 1,
    neighbour: int = 1,
    network: str = "10.0.0.0/24",
    age: int = 0,
    groups: int = 1000,
    information: float = 0.5,
) -> Candidate:
    return Candidate(
        batch=BatchName(number.to_bytes(32, "big")), group_index=0, author=peer(author), neighbour=peer(neighbour),
        address_range=network, received_at_ms=number, age=age, author_groups=groups, information=information,
    )  # fmt: skip


candidates = st.lists(
    st.builds(
        candidate,
        number=st.integers(0, 200),
        author=st.integers(1, 5),
        neighbour=st.integers(1, 3),
        network=st.sampled_from(["10.0.0.0/24", "10.0.1.0/24"]),
        age=st.integers(0, 12),
        groups=st.integers(0, 40),
        information=st.floats(0, 0.5),
    ),
    max_size=60,
)
shares = st.floats(0.01, 1)
caps = st.builds(
    CapsConfig, author_share=shares, neighbour_share=shares, range_share=shares, newcomer_share=shares,
    newcomer_groups=st.integers(0, 30), max_age_rounds=st.integers(0, 10),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(candidates, st.integers(0, 24), caps)
def test_no_cap_is_ever_passed(offered: list[Candidate], wanted: int, limits: CapsConfig) -> None:
    chosen = select(offered, wanted, groups_per_step=24, caps=limits)
    assert len(chosen) <= wanted
    for share, key in (
        (limits.author_share, lambda c: c.author),
        (limits.neighbour_share, lambda c: c.neighbour),
        (limits.range_share, lambda c: c.address_range),
    ):
        most = max(Counter(map(key, chosen)).values(), default=0)
        assert most <= max(1, int(share * 24))
    newcomers = [c for c in chosen if c.author_groups < limits.newcomer_groups]
    assert len(newcomers) <= max(1, int(limits.newcomer_share * 24))
    assert all(c.age <= limits.max_age_rounds for c in chosen)


@settings(max_examples=100, deadline=None)
@given(candidates, st.integers(1, 24), caps)
def test_the_more_informative_level_goes_first_and_of_an_author_the_newest(
    offered: list[Candidate], wanted: int, limits: CapsConfig
) -> None:
    """Whatever order they are offered in."""
    chosen = select(offered, wanted, groups_per_step=24, caps=limits)
    again = select(list(reversed(offered)), wanted, groups_per_step=24, caps=limits)
    levels = list(map(level, chosen))
    assert levels == list(map(level, again)) == sorted(levels, reverse=True)
    for key in {(c.author, level(c)) for c in chosen}:
        came = [c.received_at_ms for c in chosen if (c.author, level(c)) == key]
        assert came == sorted(came, reverse=True)


level = information_level


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 60), st.integers(1, 24), st.integers(0, 1000))
def test_authors_take_turns_however_much_one_of_them_sends(many: int, wanted: int, newer: int) -> None:
    """Mallory's are all newer; Alice's one is in the step with the first two places."""
    alice = candidate(7, author=1)
    mallory = [candidate(8 + newer + i, author=2, neighbour=2, network="10.0.1.0/24") for i in range(many)]
    chosen = select([alice, *mallory], wanted, groups_per_step=24, caps=CapsConfig())
    assert (alice in chosen) is (wanted >= 2)
    assert len(chosen) == min(wanted, 1 + min(many, 12))


@settings(max_examples=200, deadline=None)
@given(
    st.floats(0, 0.5), st.floats(0, 0.5), st.binary(min_size=32, max_size=32), st.integers(0, 255), st.integers(0, 99)
)
def test_nothing_that_mallory_can_claim_moves_it_ahead(
    honest: float, hostile: float, name: bytes, index: int, newer: int
) -> None:
    """A ground name and a place in the batch decide nothing; nor does sending late, against a higher level."""
    alice = candidate(7, information=honest)
    mallory = replace(
        candidate(7 + newer, author=2, neighbour=2, network="10.0.1.0/24", information=hostile),
        batch=BatchName(name), group_index=index,
    )  # fmt: skip
    (first,) = select([mallory, alice], 1, groups_per_step=8, caps=CapsConfig())
    if level(alice) > level(mallory) or (newer == 0 and level(alice) == level(mallory) and honest > hostile):
        assert first is alice
    if level(mallory) > level(alice):
        assert first is mallory


def test_imagined_groups_come_last_and_only_fill_up() -> None:
    """What nobody looked into yet is worth looking into where it adds something, and only there."""
    sources = [Source(peer(2), peer(2), "10.0.2.0/24", 1000)]
    real = [candidate(number, information=0.1) for number in range(3)]
    chosen = select([*plenty(sources, 5), *real], 5, groups_per_step=10, caps=CapsConfig())
    assert chosen[:3] == [real[2], real[1], real[0]]
    assert [c.author for c in chosen[3:]] == [peer(2)] * 2


def test_most_informative_first() -> None:
    """Of eight completions: four right before one right, however much newer that is."""
    chosen = select(
        [candidate(1, information=0.5), candidate(2, information=0.48), candidate(9, information=0.33)], 2,
        groups_per_step=8, caps=CapsConfig(),
    )  # fmt: skip
    assert [c.received_at_ms for c in chosen] == [2, 1]


def test_newest_first() -> None:
    chosen = select([candidate(1), candidate(3), candidate(2)], 2, groups_per_step=8, caps=CapsConfig())
    assert [c.received_at_ms for c in chosen] == [3, 2]


def test_many_identities_of_mallory_share_the_newcomers_cap() -> None:
    sybils = [candidate(number, author=number + 10, groups=0) for number in range(100)]
    honest = [candidate(number, author=1, neighbour=2) for number in range(8)]
    chosen = select([*sybils, *honest], 16, groups_per_step=16, caps=CapsConfig())
    assert sum(c.author_groups == 0 for c in chosen) == 4
    assert sum(c.author == peer(1) for c in chosen) == 8
