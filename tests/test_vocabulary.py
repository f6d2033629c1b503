"""Ids, bytes and fingerprints without a tokenizer."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftis_node.errors import WireError
from tests.builders import EOS, VOCABULARY


def test_special_tokens_give_no_bytes() -> None:
    assert VOCABULARY.decode([50, 52, EOS]) == (b"24", (1, 1, 0))


@pytest.mark.parametrize("token", [-1, 258, 10**9])
def test_ids_outside_are_errors(token: int) -> None:
    with pytest.raises(WireError, match="outside the vocabulary of 258"):
        VOCABULARY.decode([50, token])


@given(st.lists(st.integers(0, 257)))
def test_lengths_sum_to_the_text(ids: list[int]) -> None:
    text, lengths = VOCABULARY.decode(ids)
    assert sum(lengths) == len(text)
    assert len(lengths) == len(ids)


def test_the_fingerprint_tells_what_ids_mean_and_nothing_else() -> None:
    same = replace(VOCABULARY, eos_token_ids=(257,))
    moved = replace(VOCABULARY, token_bytes=(b"x", *VOCABULARY.token_bytes[1:]))
    special = replace(VOCABULARY, special_ids=VOCABULARY.special_ids | {0})
    longer = replace(VOCABULARY, token_bytes=(*VOCABULARY.token_bytes, b"new"))
    assert same.fingerprint == VOCABULARY.fingerprint
    assert len({v.fingerprint for v in (VOCABULARY, moved, special, longer)}) == 4
