"""The learner's check of a group: ids against text, rewards from the own task, copies against log-probs."""

import math
import statistics
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftis_node.inbox.content import CheckedGroup, check_group
from ftis_node.inbox.verify import Rejected, RejectReason
from ftis_node.types import Group, RolloutPayload
from tests.builders import ALICE, BOB, EOS, NOW_MS, RUN, TASKS, VOCABULARY, completion, group, payload

WINDOW = RUN.window(NOW_MS)


def check(group: Group, content: RolloutPayload | None = None, author=ALICE) -> CheckedGroup | Rejected:
    return check_group(
        group, content or payload(group), run=RUN, author=author.peer_id, window=WINDOW, vocabulary=VOCABULARY,
        tasks=TASKS,
    )  # fmt: skip


def answer(author=ALICE, slot: int = 0) -> bytes:
    return TASKS["addition"].item(RUN.assigned_index(author.peer_id, WINDOW, slot)).answer.encode()


def test_rewards_come_from_the_item_that_the_author_was_assigned() -> None:
    right = answer()
    result = check(Group("addition", 0, (completion(right), completion(b"1000"))))
    assert isinstance(result, CheckedGroup)
    assert result.rewards == (1.0, 0.0)
    assert result.same_tokenizer


def test_another_author_has_another_item_in_the_same_slot() -> None:
    items = {RUN.assigned_index(author.peer_id, WINDOW, 0) for author in (ALICE, BOB)}
    assert len(items) == 2


def test_text_that_is_not_what_the_ids_decode_to() -> None:
    """Mallory sends the ids of one completion with the text of a right answer."""
    forged = replace(completion(b"99"), text=answer())
    result = check(Group("addition", 0, (forged, completion(b"1"))))
    assert isinstance(result, Rejected)
    assert result.reason is RejectReason.TEXT


def test_byte_lengths_that_are_not_those_of_the_tokens() -> None:
    forged = replace(completion(b"99"), token_byte_lengths=(2, 0, 0))
    result = check(Group("addition", 0, (forged, completion(b"1"))))
    assert isinstance(result, Rejected)
    assert result.reason is RejectReason.TEXT


def test_an_id_outside_the_vocabulary() -> None:
    forged = replace(completion(b"99"), token_ids=(57, 5000, EOS))
    result = check(Group("addition", 0, (forged, completion(b"1"))))
    assert isinstance(result, Rejected)
    assert result.reason is RejectReason.VOCABULARY


def test_broken_utf8_scores_nothing_and_breaks_nothing() -> None:
    result = check(Group("addition", 0, (completion(b"\xff\xfe"), completion(answer()))))
    assert isinstance(result, CheckedGroup)
    assert result.rewards == (0.0, 1.0)


def test_foreign_ids_are_not_decoded() -> None:
    foreign = replace(completion(answer()), token_ids=(*range(90_000, 90_000 + len(answer())), 90_003))
    group = Group("addition", 0, (foreign, completion(b"1")))
    result = check(group, replace(payload(group), tokenizer_fingerprint=b"f" * 32))
    assert isinstance(result, CheckedGroup)
    assert not result.same_tokenizer
    assert result.rewards == (1.0, 0.0)


def test_the_same_improbable_completion_many_times_is_a_copy() -> None:
    """Mallory copies one right answer into the whole group and keeps its honest, small log-probs."""
    copies = tuple(completion(answer(), logprob=-5.0) for _ in range(8))
    result = check(Group("addition", 0, copies))
    assert isinstance(result, Rejected)
    assert result.reason is RejectReason.IMPLAUSIBLE_LOGPROBS


@pytest.mark.parametrize("copies", [2, 5, 8])
def test_a_probable_completion_may_come_again_and_again(copies: int) -> None:
    texts = [completion(b"24", logprob=-0.1)] * copies + [completion(b"%d" % i) for i in range(8 - copies)]
    assert isinstance(check(Group("addition", 0, tuple(texts))), CheckedGroup)


def test_honest_samples_of_a_spread_distribution_are_never_refused() -> None:
    """1,000 groups of 8 from 20 equally likely answers: copies are common, and all are plausible."""
    import random

    rng = random.Random(0)
    logprob = math.log(1 / 20) / 3
    for _ in range(1000):
        members = tuple(completion(b"%d" % rng.randrange(10, 30), logprob=logprob) for _ in range(8))
        assert isinstance(check(Group("addition", 0, members)), CheckedGroup)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=16))
def test_spread_is_zero_where_all_rewards_are_equal_and_only_there(rewards: list[float]) -> None:
    checked = CheckedGroup(group(), TASKS["addition"].item(0), tuple(rewards), same_tokenizer=True)
    assert (checked.spread == 0) == (len(set(rewards)) == 1) or max(rewards) - min(rewards) < 1e-150
    assert checked.spread == pytest.approx(statistics.pstdev(rewards), abs=1e-9)
    assert 0 <= checked.spread <= 0.5 + 1e-12
    assert checked.reward == pytest.approx(statistics.fmean(rewards))
