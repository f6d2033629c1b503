"""Prompts that are kept for measuring."""

from __future__ import annotations

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from ftis_node.held_out import SHARE, SMALLEST_TASK, HeldOut

SIZE = 100_000


@given(seed=st.integers(0, 2**62 - 1), nonce=st.integers(0, 1000))
def test_what_is_drawn_is_held_out_and_distinct(seed: int, nonce: int) -> None:
    held_out = HeldOut(seed)
    drawn = list(islice(held_out.draw("t", SIZE, nonce=nonce), 8))
    assert len(set(drawn)) == 8
    assert all(held_out.contains("t", SIZE, index) for index in drawn)


def test_one_item_in_sixty_four_is_held_out_and_each_node_has_its_own() -> None:
    mine = {index for index in range(SIZE) if HeldOut(1).contains("t", SIZE, index)}
    others = {index for index in range(SIZE) if HeldOut(2).contains("t", SIZE, index)}
    assert 0.8 < len(mine) * SHARE / SIZE < 1.2
    assert len(mine & others) < len(mine) / 16


def test_nothing_is_held_out_of_a_small_task_or_where_nothing_is_measured() -> None:
    for held_out, size in ((HeldOut(1), SMALLEST_TASK - 1), (HeldOut(1, active=False), SIZE)):
        assert not any(held_out.contains("t", size, index) for index in range(size))
        assert list(held_out.draw("t", size, nonce=0)) == []


def test_a_task_with_fewer_held_out_items_than_wanted_ends() -> None:
    held_out = HeldOut(3)
    every = {index for index in range(SMALLEST_TASK) if held_out.contains("t", SMALLEST_TASK, index)}
    assert set(held_out.draw("t", SMALLEST_TASK, nonce=1)) == every
