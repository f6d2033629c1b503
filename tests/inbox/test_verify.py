"""The network half's judgement: every reason of refusal, and nothing refused without one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftis_node.admission import accept_invitation, make_invitation
from ftis_node.inbox.verify import (
    Accepted,
    Blame,
    Known,
    Opened,
    Rejected,
    RejectReason,
    equivocation_proof,
    open_batch,
    verify,
)
from ftis_node.manifest import parse_run
from ftis_node.types import FinishReason, Group, LocalProfile, RolloutPayload, SamplingParams
from ftis_node.wire import limits
from ftis_node.wire.codec import encode_batch, encode_payload
from tests.builders import (
    ALICE,
    BOB,
    EOS,
    EPOCH,
    MALLORY,
    NOW_MS,
    PROFILE,
    RUN,
    completion,
    group,
    make_run,
    payload,
    signed,
    with_completion,
)

UNKNOWN = Known()


def judge(
    data: bytes, *, known: Known = UNKNOWN, now_ms: int = NOW_MS, profile: LocalProfile | None = PROFILE
) -> Accepted | Rejected:
    opened = open_batch(data)
    if isinstance(opened, Rejected):
        return opened
    return verify(opened, run=RUN, known=known, now_ms=now_ms, profile=profile)


def reason_of(result: Accepted | Rejected) -> RejectReason:
    assert isinstance(result, Rejected), "the batch was accepted"
    return result.reason


def test_an_honest_batch_is_accepted_with_its_window() -> None:
    result = judge(encode_batch(signed()))
    assert isinstance(result, Accepted)
    assert result.header.author == ALICE.peer_id
    assert result.payload == payload()
    assert result.window == RUN.window(NOW_MS)


def test_a_flipped_bit_in_any_byte_is_refused() -> None:
    """Mallory changes one bit of a batch on its way: nothing of it passes, wherever it is."""
    honest = encode_batch(signed())
    for position in range(len(honest)):
        for bit in (0, 7):
            changed = bytearray(honest)
            changed[position] ^= 1 << bit
            result = open_batch(bytes(changed))
            if isinstance(result, Opened):
                # An unknown protobuf field number may hide the change; then nothing signed has changed.
                original = open_batch(honest)
                assert isinstance(original, Opened)
                assert (result.header_bytes, result.payload) == (original.header_bytes, original.payload)
            else:
                assert result.blame is Blame.NEIGHBOUR


def test_mallory_can_not_sign_in_alices_name() -> None:
    forged = signed(author=MALLORY)
    stolen = replace(forged, header=signed().header)
    assert reason_of(judge(encode_batch(stolen))) is RejectReason.BAD_SIGNATURE


def test_mallory_can_not_put_another_payload_under_alices_signature() -> None:
    swapped = replace(signed(), payload=encode_payload(payload(group(texts=(b"1", b"2")))))
    assert reason_of(judge(encode_batch(swapped))) is RejectReason.BAD_SIGNATURE


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=500))
def test_random_bytes_are_refused_and_charged_to_the_neighbour(data: bytes) -> None:
    result = judge(data)
    assert isinstance(result, Rejected)
    assert result.blame is Blame.NEIGHBOUR


def test_too_large() -> None:
    result = judge(b"\0" * (limits.MAX_BATCH_BYTES + 1))
    assert reason_of(result) is RejectReason.TOO_LARGE


def test_wrong_run_is_the_authors_fault() -> None:
    result = judge(encode_batch(signed(run=make_run("other"))))
    assert reason_of(result) is RejectReason.WRONG_RUN
    assert isinstance(result, Rejected)
    assert result.blame is Blame.AUTHOR


def test_an_author_who_is_no_member_and_one_who_is() -> None:
    """The proof travels in the signed header: a receiver needs to know nothing of the author."""
    run = make_run(membership=f'{{ admission_key = "{BOB.peer_id.hex()}" }}')
    token = make_invitation(BOB, run.run_id, expires_at_ms=NOW_MS + 1000)
    proof = accept_invitation(token, ALICE.peer_id, run, now_ms=NOW_MS)

    def judged(**changes: Any) -> Accepted | Rejected:
        opened = open_batch(encode_batch(signed(run=run, **changes)))
        assert isinstance(opened, Opened)
        return verify(opened, run=run, known=UNKNOWN, now_ms=NOW_MS, profile=PROFILE)

    assert isinstance(judged(membership=proof), Accepted)
    for stranger in (judged(), judged(membership=b"x" * 168), judged(membership=proof, author=MALLORY)):
        assert reason_of(stranger) is RejectReason.NOT_A_MEMBER


def test_replay_is_free() -> None:
    result = judge(encode_batch(signed()), known=Known(name_seen=True))
    assert reason_of(result) is RejectReason.REPLAY
    assert isinstance(result, Rejected)
    assert result.blame is Blame.NOBODY


def test_equivocation_carries_the_proof() -> None:
    first = signed(payload(group(0)))
    second = signed(payload(group(1)))
    known = Known(other_header=first.header, other_signature=first.signature)
    result = judge(encode_batch(second), known=known)
    assert reason_of(result) is RejectReason.EQUIVOCATION
    assert isinstance(result, Rejected)
    assert result.proof == equivocation_proof((first.header, first.signature), (second.header, second.signature))


def test_banned() -> None:
    assert reason_of(judge(encode_batch(signed()), known=Known(author_banned=True))) is RejectReason.BANNED


@pytest.mark.parametrize(
    ("now_ms", "expected"),
    [
        (NOW_MS + 1_829_000, None),
        (NOW_MS + 1_831_000, RejectReason.TOO_OLD),
        (NOW_MS - 29_000, None),
        (NOW_MS - 31_000, RejectReason.FROM_THE_FUTURE),
    ],
)
def test_age_and_skew_cost_nothing(now_ms: int, expected: RejectReason | None) -> None:
    result = judge(encode_batch(signed()), now_ms=now_ms)
    if expected is None:
        assert isinstance(result, Accepted)
    else:
        assert reason_of(result) is expected
        assert isinstance(result, Rejected)
        assert result.blame is Blame.NOBODY


@pytest.mark.parametrize("epoch", [0, NOW_MS + 2 * 86_400_000])
def test_implausible_epoch(epoch: int) -> None:
    assert reason_of(judge(encode_batch(signed(epoch=epoch)))) is RejectReason.IMPLAUSIBLE_EPOCH


def _long() -> RolloutPayload:
    return with_completion(payload(), completion(b"1" * 60))


CONTENTS: list[tuple[str, Callable[[], RolloutPayload], RejectReason]] = [
    ("temperature", lambda: replace(payload(), sampling=SamplingParams(0.7)), RejectReason.SAMPLING),
    ("top-k", lambda: replace(payload(), sampling=SamplingParams(1.0, top_k=5)), RejectReason.SAMPLING),
    ("small group", lambda: payload(group(texts=(b"1",))), RejectReason.GROUP_SIZE),
    ("large group", lambda: payload(group(texts=(b"1", b"2", b"3"))), RejectReason.GROUP_SIZE),
    ("wrong task", lambda: payload(Group("gsm8k", 0, group().completions)), RejectReason.WRONG_SLOT),
    ("slot twice", lambda: payload(group(3), group(3)), RejectReason.WRONG_SLOT),
    ("beyond quota", lambda: payload(group(4096)), RejectReason.QUOTA),
    ("too long", _long, RejectReason.TOO_LONG),
    (
        "no tokens",
        lambda: with_completion(payload(), completion(b"", stopped=False)),
        RejectReason.LENGTH_MISMATCH,
    ),
    (
        "byte lengths",
        lambda: with_completion(payload(), replace(completion(b"12"), token_byte_lengths=(1, 0, 0))),
        RejectReason.LENGTH_MISMATCH,
    ),
    (
        "id outside the vocabulary",
        lambda: with_completion(payload(), replace(completion(b"12"), token_ids=(49, 300, EOS))),
        RejectReason.VOCABULARY,
    ),
    ("end id outside", lambda: replace(payload(), eos_token_ids=(EOS, 999)), RejectReason.VOCABULARY),
    ("fingerprint", lambda: replace(payload(), tokenizer_fingerprint=b"short"), RejectReason.FINGERPRINT),
    (
        "stopped without end token",
        lambda: with_completion(payload(), replace(completion(b"12", stopped=False), finish_reason=FinishReason.STOP)),
        RejectReason.END_OF_SEQUENCE,
    ),
    (
        "goes on behind the end",
        lambda: with_completion(
            payload(), replace(completion(b"12"), token_ids=(49, EOS, EOS), token_byte_lengths=(2, 0, 0))
        ),
        RejectReason.END_OF_SEQUENCE,
    ),
    (
        "end token but not stopped",
        lambda: with_completion(payload(), replace(completion(b"12"), finish_reason=FinishReason.LENGTH)),
        RejectReason.END_OF_SEQUENCE,
    ),
]


def stopped(text: bytes, sizes: tuple[int, ...], *, end: bool = False, reason: FinishReason = FinishReason.STOP) -> Any:
    """A completion of a foreign tokenizer, whose tokens are known by their lengths."""
    ids = tuple(range(len(sizes))) + ((EOS,) if end else ())
    return replace(
        completion(text), token_ids=ids, behavior_logprobs=(-0.5,) * len(ids), text=text,
        token_byte_lengths=sizes + ((0,) if end else ()), finish_reason=reason,
    )  # fmt: skip


LENGTH = FinishReason.LENGTH


@pytest.mark.parametrize(
    ("changed", "accepted"),
    [
        (stopped(b"12\n", (2, 1)), True),
        (stopped(b"12\nQ", (2, 2)), True),
        (stopped(b"\n12\n", (1, 2, 1)), True),
        (stopped(b"12", (2,), end=True), True),
        (stopped(b"12", (2,), reason=LENGTH), True),
        (stopped(b"\n", (1,), reason=LENGTH), True),
        (stopped(b"12", (2,)), False),
        (stopped(b"12\n", (2, 1), reason=LENGTH), False),
        (stopped(b"12\nQ", (2, 1, 1)), False),
        (stopped(b"12\nQ", (2, 1, 1), reason=LENGTH), False),
        (stopped(b"12\n", (2, 1), end=True), False),
        (stopped(b"\n", (1,)), False),
    ],
)
def test_where_the_run_has_stop_strings_a_completion_ends_with_one_or_goes_on(changed: Any, accepted: bool) -> None:
    manifest = RUN.data.replace(b"terms = 3", b'terms = 3, format = "plain"')
    assert manifest != RUN.data
    run = parse_run(manifest, source="run.toml")
    opened = open_batch(encode_batch(signed(with_completion(payload(), changed), run=run)))
    assert isinstance(opened, Opened)
    result = verify(opened, run=run, known=UNKNOWN, now_ms=NOW_MS, profile=PROFILE)
    if accepted:
        assert isinstance(result, Accepted)
    else:
        assert reason_of(result) is RejectReason.END_OF_SEQUENCE


@pytest.mark.parametrize(("content", "expected"), [c[1:] for c in CONTENTS], ids=[c[0] for c in CONTENTS])
def test_content(content: Callable[[], RolloutPayload], expected: RejectReason) -> None:
    result = judge(encode_batch(signed(content())))
    assert reason_of(result) is expected
    assert isinstance(result, Rejected)
    assert result.blame is Blame.AUTHOR


def test_a_slot_that_was_used_in_an_earlier_batch() -> None:
    result = judge(encode_batch(signed(payload(group(5)))), known=Known(used_slots={5: EPOCH}))
    assert reason_of(result) is RejectReason.REUSED_SLOT
    assert isinstance(result, Rejected)
    assert result.blame is Blame.AUTHOR


def test_an_owner_whose_home_was_restored_from_a_backup_fills_slots_again_and_is_not_blamed() -> None:
    result = judge(encode_batch(signed(payload(group(5)))), known=Known(used_slots={5: EPOCH - 1}))
    assert reason_of(result) is RejectReason.REUSED_SLOT
    assert isinstance(result, Rejected)
    assert result.blame is Blame.NOBODY


def test_log_probs_that_are_not_numbers(not_a_number_payload: bytes) -> None:
    assert reason_of(judge(encode_batch(signed(not_a_number_payload)))) is RejectReason.LOGPROBS


def test_malformed_payload_under_a_good_signature() -> None:
    assert reason_of(judge(encode_batch(signed(b"not compressed")))) is RejectReason.MALFORMED


def test_a_bomb_under_a_good_signature(bomb: bytes) -> None:
    assert reason_of(judge(encode_batch(signed(bomb)))) is RejectReason.INFLATION


def test_without_a_profile_ids_are_left_to_the_learner() -> None:
    """A relay, or a node whose model isn't loaded yet, has no vocabulary to hold ids against."""
    content = with_completion(payload(), replace(completion(b"12"), token_ids=(49, 300, EOS)))
    assert isinstance(judge(encode_batch(signed(content)), profile=None), Accepted)


def test_foreign_tokenizers_are_not_held_against_the_own_vocabulary() -> None:
    content = replace(
        with_completion(payload(), replace(completion(b"12"), token_ids=(49, 300, EOS))),
        tokenizer_fingerprint=b"f" * 32,
    )
    assert isinstance(judge(encode_batch(signed(content))), Accepted)


def test_every_reason_of_the_network_half_has_a_test() -> None:
    left_to_the_learner = {RejectReason.TEXT, RejectReason.IMPLAUSIBLE_LOGPROBS}
    left_to_the_exchange = {RejectReason.TWIN, RejectReason.NO_ROOM}  # tests/test_exchange.py
    tested = {reason for _, _, reason in CONTENTS} | {
        RejectReason.TOO_LARGE, RejectReason.MALFORMED, RejectReason.INFLATION, RejectReason.BAD_SIGNATURE,
        RejectReason.NOT_A_MEMBER, RejectReason.WRONG_RUN, RejectReason.REPLAY,
        RejectReason.BANNED, RejectReason.EQUIVOCATION,
        RejectReason.TOO_OLD, RejectReason.FROM_THE_FUTURE, RejectReason.IMPLAUSIBLE_EPOCH,
        RejectReason.REUSED_SLOT, RejectReason.LOGPROBS,
    }  # fmt: skip
    assert set(RejectReason) - left_to_the_learner - left_to_the_exchange == tested
