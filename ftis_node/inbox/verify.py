"""The network half's judgement of a batch: bytes in, Accepted or Rejected out. Pure.

``open_batch`` needs nothing but the bytes; what it finds wrong is the fault of whoever delivered them.
``verify`` holds what the signature vouches for against the run, the clock and what was seen before;
what it finds wrong is the author's fault, unless it is nobody's: age, clock skew, duplicates.
"""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ftis_node.admission import why_not_a_member
from ftis_node.errors import WireError
from ftis_node.identity import BATCH_DOMAIN, verify_signature
from ftis_node.manifest import Run
from ftis_node.tasks.stopping import stop_strings, tokens_until_stop
from ftis_node.types import (
    BatchHeader,
    BatchName,
    Completion,
    FinishReason,
    Group,
    LocalProfile,
    PeerId,
    RolloutPayload,
    short_id,
)
from ftis_node.vocabulary import FINGERPRINT_BYTES
from ftis_node.wire import limits
from ftis_node.wire.codec import InflationError, batch_name, decode_batch, decode_header, decode_payload

CLOCK_START_MS = 1_577_836_800_000
"""2020-01-01: no honest epoch, which is a time in ms, lies before it."""


class RejectReason(enum.Enum):
    """Why a batch or a group is refused. The values are what health and the logs show."""

    TOO_LARGE = "too_large"
    MALFORMED = "malformed"
    INFLATION = "inflation"
    BAD_SIGNATURE = "bad_signature"
    WRONG_RUN = "wrong_run"
    NOT_A_MEMBER = "not_a_member"
    REPLAY = "replay"
    BANNED = "banned"
    EQUIVOCATION = "equivocation"
    TOO_OLD = "too_old"
    FROM_THE_FUTURE = "from_the_future"
    IMPLAUSIBLE_EPOCH = "implausible_epoch"
    SAMPLING = "sampling"
    GROUP_SIZE = "group_size"
    WRONG_SLOT = "wrong_slot"
    REUSED_SLOT = "reused_slot"
    QUOTA = "quota"
    LENGTH_MISMATCH = "length_mismatch"
    TOO_LONG = "too_long"
    LOGPROBS = "logprobs"
    FINGERPRINT = "fingerprint"
    VOCABULARY = "vocabulary"
    END_OF_SEQUENCE = "end_of_sequence"
    TEXT = "text"
    IMPLAUSIBLE_LOGPROBS = "implausible_logprobs"
    TWIN = "twin"
    NO_ROOM = "no_room"


class Blame(enum.Enum):
    """Whose score a rejection costs."""

    NEIGHBOUR = "neighbour"
    AUTHOR = "author"
    NOBODY = "nobody"


@dataclass(frozen=True)
class Rejected:
    """``proof`` holds the two signed headers of an equivocation, as ``equivocation_proof`` lays them out.

    ``author`` is known as soon as the signature holds.
    """

    reason: RejectReason
    detail: str
    blame: Blame
    proof: bytes | None = None
    author: PeerId | None = None


@dataclass(frozen=True)
class Opened:
    """A batch whose signature holds. ``signature`` and ``header_bytes`` are as they came."""

    name: BatchName
    header: BatchHeader
    header_bytes: bytes
    signature: bytes
    payload: bytes


@dataclass(frozen=True)
class Known:
    """What the node remembers about this batch, its sequence number and its author's slots.

    ``used_slots`` maps the author's slots in this window to the epoch in which they were filled.
    """

    name_seen: bool = False
    other_header: bytes | None = None
    other_signature: bytes | None = None
    used_slots: Mapping[int, int] = field(default_factory=dict)
    author_banned: bool = False


@dataclass(frozen=True)
class Accepted:
    """A batch that may be kept and passed on; texts and rewards are still to be checked."""

    name: BatchName
    header: BatchHeader
    payload: RolloutPayload
    window: int


def open_batch(data: bytes) -> Opened | Rejected:
    """Structure, payload hash and signature."""
    if len(data) > limits.MAX_BATCH_BYTES:
        detail = f"{len(data)} bytes; at most {limits.MAX_BATCH_BYTES} are allowed"
        return Rejected(RejectReason.TOO_LARGE, detail, Blame.NEIGHBOUR)
    try:
        batch = decode_batch(data)
        header = decode_header(batch.header)
    except WireError as error:
        return Rejected(RejectReason.MALFORMED, str(error), Blame.NEIGHBOUR)
    if not verify_signature(header.author, BATCH_DOMAIN, batch.header, batch.signature):
        return Rejected(RejectReason.BAD_SIGNATURE, "the signature is not the author's", Blame.NEIGHBOUR)
    if hashlib.sha256(batch.payload).digest() != header.payload_sha256:
        return Rejected(RejectReason.BAD_SIGNATURE, "the payload is not the one that was signed", Blame.NEIGHBOUR)
    return Opened(batch_name(batch.header), header, batch.header, batch.signature, batch.payload)


def verify(opened: Opened, *, run: Run, known: Known, now_ms: int, profile: LocalProfile | None) -> Accepted | Rejected:
    """Everything that can be said without a model. ``profile`` is the own tokenizer's, once it is known."""
    rejected = _check_header(opened, run, known, now_ms)
    if rejected is not None:
        return rejected
    try:
        payload = decode_payload(opened.payload)
    except InflationError as error:
        return _author(RejectReason.INFLATION, str(error))
    except WireError as error:
        return _author(RejectReason.MALFORMED, str(error))
    rejected = _check_payload(payload, run, profile) or _check_slots(payload, run, known, opened.header.epoch)
    if rejected is not None:
        return rejected
    stops = {task.name: stop_strings(task.parameters) for task in run.manifest.tasks}
    for group in payload.groups:
        for completion in group.completions:
            rejected = _check_completion(completion, payload, run, profile) or _check_end(
                completion, payload.eos_token_ids, stops[group.task]
            )
            if rejected is not None:
                return rejected
    return Accepted(opened.name, opened.header, payload, run.window(opened.header.created_at_ms))


def _author(reason: RejectReason, detail: str) -> Rejected:
    return Rejected(reason, detail, Blame.AUTHOR)


def _check_header(opened: Opened, run: Run, known: Known, now_ms: int) -> Rejected | None:
    header, bounds = opened.header, run.manifest.limits
    if known.name_seen:
        return Rejected(RejectReason.REPLAY, "this batch came before", Blame.NOBODY)
    if known.author_banned:
        return Rejected(RejectReason.BANNED, "its author is banned", Blame.NOBODY)
    if header.run_id != run.run_id:
        return _author(RejectReason.WRONG_RUN, f"it belongs to run {short_id(header.run_id)}")
    if known.other_header is not None:
        detail = f"two batches are signed with epoch {header.epoch}, sequence {header.sequence}"
        proof = equivocation_proof(
            (known.other_header, known.other_signature or b""), (opened.header_bytes, opened.signature)
        )
        return Rejected(RejectReason.EQUIVOCATION, detail, Blame.AUTHOR, proof)
    skew_ms = bounds.clock_skew_seconds * 1000
    # Held against the time at which the batch was made: what a member published stays good for its lifetime.
    if (reason := why_not_a_member(run, header.author, header.membership, now_ms=header.created_at_ms)) is not None:
        return _author(RejectReason.NOT_A_MEMBER, reason)
    if header.created_at_ms > now_ms + skew_ms:
        ahead = (header.created_at_ms - now_ms) / 1000
        return Rejected(RejectReason.FROM_THE_FUTURE, f"made {ahead:.0f} s from now: a clock is wrong", Blame.NOBODY)
    age_ms = now_ms - header.created_at_ms
    if age_ms > bounds.max_age_seconds * 1000 + skew_ms:
        detail = f"made {age_ms / 1000:.0f} s ago; {bounds.max_age_seconds:.0f} s are allowed"
        return Rejected(RejectReason.TOO_OLD, detail, Blame.NOBODY)
    # An epoch is the time at which its author started, so it can't lie beyond the present either.
    if not CLOCK_START_MS <= header.epoch <= now_ms + 86_400_000:
        return _author(RejectReason.IMPLAUSIBLE_EPOCH, f"epoch {header.epoch} is no time at which a node could start")
    return None


def equivocation_proof(first: tuple[bytes, bytes], second: tuple[bytes, bytes]) -> bytes:
    """Two (header, signature) pairs, each part with a 4-byte big-endian length: what convicts an author."""
    return b"".join(len(part).to_bytes(4, "big") + part for pair in (first, second) for part in pair)


def _check_payload(payload: RolloutPayload, run: Run, profile: LocalProfile | None) -> Rejected | None:
    expected = run.manifest.sampling.params()
    if payload.sampling != expected:
        return _author(RejectReason.SAMPLING, f"sampled with {payload.sampling}, the run asks for {expected}")
    if len(payload.tokenizer_fingerprint) != FINGERPRINT_BYTES:
        detail = (
            f"a tokenizer fingerprint of {len(payload.tokenizer_fingerprint)} bytes; {FINGERPRINT_BYTES} are needed"
        )
        return _author(RejectReason.FINGERPRINT, detail)
    same = profile is not None and payload.tokenizer_fingerprint == profile.tokenizer_fingerprint
    if same and profile is not None and any(token >= profile.vocabulary_size for token in payload.eos_token_ids):
        return _author(RejectReason.VOCABULARY, "an end-of-sequence id is outside the vocabulary")
    smallest, largest = run.manifest.group_sizes
    for group in payload.groups:
        if not smallest <= len(group.completions) <= largest:
            detail = f"a group of {len(group.completions)}; {smallest} to {largest} are allowed"
            return _author(RejectReason.GROUP_SIZE, detail)
    return None


def _check_slots(payload: RolloutPayload, run: Run, known: Known, epoch: int) -> Rejected | None:
    taken: set[int] = set()
    for group in payload.groups:
        rejected = _check_slot(group, run, known, epoch, taken)
        if rejected is not None:
            return rejected
        taken.add(group.slot)
    return None


def _check_slot(group: Group, run: Run, known: Known, epoch: int, taken: set[int]) -> Rejected | None:
    quota = run.manifest.assignment.quota
    if group.slot >= quota:
        return _author(RejectReason.QUOTA, f"slot {group.slot}; a window has {quota}")
    expected = run.task_for_slot(group.slot).name
    if group.task != expected:
        return _author(RejectReason.WRONG_SLOT, f"slot {group.slot} belongs to task {expected!r}, not {group.task!r}")
    if group.slot in taken:
        return _author(RejectReason.WRONG_SLOT, f"slot {group.slot} twice in one batch")
    filled_in = known.used_slots.get(group.slot)
    if filled_in == epoch:
        return _author(RejectReason.REUSED_SLOT, f"slot {group.slot} was used in this window before")
    if filled_in is not None:
        # A home that was restored from a backup, or two daemons of one owner: useless, but no cheat.
        detail = f"slot {group.slot} was used in this window before its author started anew"
        return Rejected(RejectReason.REUSED_SLOT, detail, Blame.NOBODY)
    return None


def _check_completion(
    completion: Completion, payload: RolloutPayload, run: Run, profile: LocalProfile | None
) -> Rejected | None:
    ids = completion.token_ids
    if not ids or sum(completion.token_byte_lengths) != len(completion.text):
        detail = (
            f"{len(ids)} tokens with {sum(completion.token_byte_lengths)} bytes for a text of {len(completion.text)}"
        )
        return _author(RejectReason.LENGTH_MISMATCH, detail)
    if len(ids) > run.manifest.limits.completion_tokens:
        detail = f"{len(ids)} tokens; {run.manifest.limits.completion_tokens} are allowed"
        return _author(RejectReason.TOO_LONG, detail)
    if math.isnan(sum(completion.behavior_logprobs)):  # they are finite or not a number, as the codec reads them
        return _author(RejectReason.LOGPROBS, "a log-prob is not a number")
    if profile is not None and payload.tokenizer_fingerprint == profile.tokenizer_fingerprint:
        largest = max(ids)
        if largest >= profile.vocabulary_size:
            return _author(
                RejectReason.VOCABULARY, f"id {largest} is outside the vocabulary of {profile.vocabulary_size}"
            )
    return None


def _check_end(completion: Completion, eos_token_ids: tuple[int, ...], stops: tuple[str, ...]) -> Rejected | None:
    ids, ends = completion.token_ids, set(eos_token_ids)
    until_stop = tokens_until_stop(completion.text, completion.token_byte_lengths, stops)
    if not ends.isdisjoint(ids[:-1]) or (until_stop is not None and until_stop < len(ids)):
        return _author(RejectReason.END_OF_SEQUENCE, "it goes on behind its end")
    stopped = completion.finish_reason is FinishReason.STOP
    if stopped != (ids[-1] in ends or until_stop is not None):
        return _author(RejectReason.END_OF_SEQUENCE, "its last token does not fit the finish reason")
    return None
