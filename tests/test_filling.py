"""When a node samples on and when it steps: it fills its places, ends, and never waits."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ftis_node.filling import Filling, Places, next_chunk, places_for_peers

places = st.integers(1, 64).flatmap(lambda total: st.builds(Places, st.just(total), st.integers(1, total)))
fillings = st.integers(0, 80).flatmap(lambda sampled: st.builds(Filling, st.just(sampled), st.integers(0, sampled)))


@settings(max_examples=300, deadline=None)
@given(fillings, places)
def test_peers_never_get_the_floor_nor_what_own_groups_take(filling: Filling, of: Places) -> None:
    peers = places_for_peers(filling, of)
    assert 0 <= peers <= of.groups_per_step - of.own_groups
    assert peers == 0 or peers + filling.own <= of.groups_per_step


@settings(max_examples=300, deadline=None)
@given(fillings, places, st.integers(0, 64))
def test_a_chunk_is_never_more_than_is_missing(filling: Filling, of: Places, offered: int) -> None:
    peers = min(offered, places_for_peers(filling, of))
    chunk = next_chunk(filling, peers, of)
    assert chunk >= 0
    assert filling.sampled + chunk <= max(of.groups_per_step, filling.sampled)
    if filling.sampled >= of.own_groups:
        assert chunk <= max(1, of.own_groups // 2)
        assert chunk + filling.own + peers <= max(of.groups_per_step, filling.own)
    full = peers == places_for_peers(filling, of)
    assert (chunk == 0) == (filling.sampled >= of.own_groups and (full or filling.sampled >= of.groups_per_step))


@settings(max_examples=300, deadline=None)
@given(places, st.data())
def test_a_step_is_reached_whatever_comes(of: Places, data: st.DataObject) -> None:
    """Own groups teach or don't, peers send or don't: not more is sampled than a node alone would."""
    filling, peers, chunks = Filling(), 0, 0
    while chunk := next_chunk(filling, peers, of):
        chunks += 1
        assert chunks <= of.groups_per_step
        own = filling.own + data.draw(st.integers(0, chunk))
        filling = Filling(filling.sampled + chunk, own)
        sent = data.draw(st.integers(peers, 64))
        peers = min(sent, places_for_peers(filling, of))
    assert of.own_groups <= filling.sampled <= of.groups_per_step
    assert filling.own + peers <= of.groups_per_step


def test_the_daemons_defaults() -> None:
    of = Places(24, 6)
    assert next_chunk(Filling(), 0, of) == 6
    assert next_chunk(Filling(4, 4), 9, of) == 2  # resumed: the floor first, whatever peers sent
    assert next_chunk(Filling(6, 5), 18, of) == 0  # peers fill the rest
    assert next_chunk(Filling(6, 5), 10, of) == 3
    assert next_chunk(Filling(9, 0), 17, of) == 1
    assert next_chunk(Filling(24, 0), 0, of) == 0  # it teaches nothing: the step is skipped, and the next one tried
    assert next_chunk(Filling(24, 24), 0, of) == 0


def test_a_node_that_trains_alone_samples_all_at_once() -> None:
    assert next_chunk(Filling(), 0, Places(24, 24)) == 24
    assert places_for_peers(Filling(24, 3), Places(24, 24)) == 0
