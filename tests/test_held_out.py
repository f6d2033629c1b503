"""Prompts that are kept for measuring."""

from __future__ import annotations

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from ftis_node.held_out import SHARE, SMALLEST_TASK, HeldOut, is_measured

SIZE = 100_000


@given(seed=st.integers(0, 2**62 - 1), every=st.integers(1, 50), block=st.integers(0, 1000))
def test_one_round_in_so_many_is_measured(seed: int, every: int, block: int) -> None:
    rounds = range(block * every + 1, (block + 1) * every + 1)
    assert sum(is_measured(number, every, seed=seed) for number in rounds) == 1


def test_mallory_can_t_tell_from_a_node_s_round_when_it_measures() -> None:
    """She would send good samples then, harmful ones otherwise, and be said to help."""
    rounds = [{n for n in range(1, 401) if is_measured(n, 20, seed=seed)} for seed in (1, 2)]
    assert len(rounds[0] & rounds[1]) < 10
    assert len({n % 20 for n in rounds[0]}) > 5
    assert not any(is_measured(number, 0, seed=1) for number in range(50))


def question(index: int) -> str:
    return f"what is {index}?"


@given(seed=st.integers(0, 2**62 - 1), nonce=st.integers(0, 1000))
def test_what_is_drawn_is_held_out_and_distinct(seed: int, nonce: int) -> None:
    held_out = HeldOut(seed)
    drawn = list(islice(held_out.draw("t", SIZE, question, nonce=nonce), 8))
    assert len(set(drawn)) == 8
    assert all(held_out.contains("t", SIZE, question(index)) for index in drawn)


def test_one_prompt_in_sixty_four_is_held_out_and_each_node_has_its_own() -> None:
    mine = {index for index in range(SIZE) if HeldOut(1).contains("t", SIZE, question(index))}
    others = {index for index in range(SIZE) if HeldOut(2).contains("t", SIZE, question(index))}
    assert 0.8 < len(mine) * SHARE / SIZE < 1.2
    assert len(mine & others) < len(mine) / 16


def test_nothing_is_held_out_of_a_small_task_or_where_nothing_is_measured() -> None:
    for held_out, size in ((HeldOut(1), SMALLEST_TASK - 1), (HeldOut(1, active=False), SIZE)):
        assert not any(held_out.contains("t", size, question(index)) for index in range(size))
        assert list(held_out.draw("t", size, question, nonce=0)) == []


def test_a_question_under_many_numbers_is_drawn_once() -> None:
    """As reasoning-gym's generators have them: a thousand million items, a hundred questions."""

    def few(index: int) -> str:
        return question(index % 100)

    held_out = next(h for h in map(HeldOut, range(99)) if any(h.contains("t", SIZE, question(i)) for i in range(100)))
    expected = {question(i) for i in range(100) if held_out.contains("t", SIZE, question(i))}
    drawn = [few(index) for index in held_out.draw("t", 10**9, few, nonce=1)]
    assert len(drawn) == len(set(drawn))
    assert set(drawn) == expected
