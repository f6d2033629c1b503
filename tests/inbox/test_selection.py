"""Which groups a step takes: newest first, under every cap."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from ftis_node.config import CapsConfig
from ftis_node.inbox.selection import Candidate, Source, attainable, overdue, select
from ftis_node.types import BatchName, PeerId


def peer(number: int) -> PeerId:
    return PeerId(bytes([number]) * 32)


def candidate(
    number: int, *, author: int = 1, neighbour: int = 1, network: str = "10.0.0.0/24", age: int = 0, groups: int = 1000
) -> Candidate:
    return Candidate(
        batch=BatchName(number.to_bytes(32, "big")), group_index=0, author=peer(author), neighbour=peer(neighbour),
        address_range=network, received_at_ms=number, age=age, author_groups=groups,
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
def test_what_is_left_out_is_older_or_capped(offered: list[Candidate], wanted: int, limits: CapsConfig) -> None:
    """Adding a left-out candidate that is newer than a chosen one would pass a cap."""
    chosen = select(offered, wanted, groups_per_step=24, caps=limits)
    again = select(list(reversed(offered)), wanted, groups_per_step=24, caps=limits)
    assert [c.received_at_ms for c in chosen] == [c.received_at_ms for c in again]
    assert [c.received_at_ms for c in chosen] == sorted((c.received_at_ms for c in chosen), reverse=True)


def test_newest_first() -> None:
    chosen = select([candidate(1), candidate(3), candidate(2)], 2, groups_per_step=8, caps=CapsConfig())
    assert [c.received_at_ms for c in chosen] == [3, 2]


def test_many_identities_of_mallory_share_the_newcomers_cap() -> None:
    sybils = [candidate(number, author=number + 10, groups=0) for number in range(100)]
    honest = [candidate(number, author=1, neighbour=2) for number in range(8)]
    chosen = select([*sybils, *honest], 16, groups_per_step=16, caps=CapsConfig())
    assert sum(c.author_groups == 0 for c in chosen) == 4
    assert sum(c.author == peer(1) for c in chosen) == 8


def source(author: int, groups: int = 1000) -> Source:
    return Source(peer(author), peer(author), f"10.0.{author}.0/24", groups)


def test_waiting_is_worth_what_the_caps_allow() -> None:
    def most(*sources: Source) -> int:
        return attainable(sources, 18, groups_per_step=24, caps=CapsConfig())

    assert most() == 0
    assert most(source(1)) == 12  # half of the step from one author
    assert most(source(1), source(2)) == 18
    assert most(source(1, groups=0), source(2, groups=0)) == 6  # newcomers share a quarter


def test_an_author_is_overdue_by_its_own_pace() -> None:
    fast, slow, new = (PeerId(bytes([number]) * 32) for number in (1, 2, 3))
    arrivals = [
        *((fast, 10_000 + 500 * step) for step in range(10)),
        *((slow, 20_000 * step) for step in range(4)),
        *((new, 100 + step) for step in range(3)),
    ]
    assert overdue(arrivals, 14_600) == set()
    assert overdue(arrivals, 17_000) == {fast}
    assert overdue(arrivals, 60_000 + 79_000) == {fast}
    assert overdue(arrivals, 60_000 + 81_000) == {fast, slow}
    assert overdue([], 1) == set()
