"""Rollout batches to bytes and back. Any bytes give a value or a WireError, in bounded memory."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import zstandard
from google.protobuf.message import DecodeError, Message

from ftis_node.errors import WireError
from ftis_node.identity import BATCH_DOMAIN, Identity
from ftis_node.types import (
    BatchHeader,
    BatchName,
    Completion,
    FinishReason,
    Group,
    PeerId,
    RolloutPayload,
    RunId,
    SamplingParams,
    SignedBatch,
)
from ftis_node.wire import limits
from ftis_node.wire.columns import (
    Numbers,
    logprobs_of,
    pack,
    pack_planes,
    quantise_logprobs,
    unpack,
    unpack_planes,
)
from ftis_node.wire.v1 import rollout_pb2 as pb

M = TypeVar("M", bound=Message)

ZSTD_LEVEL = 9
ID_PLANES, LOGPROB_PLANES, LENGTH_PLANES = 3, 2, 2
_FINISH = (FinishReason.STOP, FinishReason.LENGTH)


class InflationError(WireError):
    """A payload that would become larger than allowed when decompressed."""


# --- payload ------------------------------------------------------------------------------------


def encode_payload(payload: RolloutPayload) -> bytes:
    """Compressed bytes. Raises WireError when something can't be encoded or a limit is passed."""
    tasks = list(dict.fromkeys(group.task for group in payload.groups))
    completions = [completion for group in payload.groups for completion in group.completions]
    for completion in completions:
        if not len(completion.token_ids) == len(completion.behavior_logprobs) == len(completion.token_byte_lengths):
            raise WireError("a completion has different numbers of ids, log-probs and byte lengths")
    chain = itertools.chain.from_iterable
    ids = np.fromiter(chain(c.token_ids for c in completions), dtype=np.int64)
    logprobs = np.fromiter(chain(c.behavior_logprobs for c in completions), dtype=np.float64)
    lengths = np.fromiter(chain(c.token_byte_lengths for c in completions), dtype=np.int64)
    sampling = payload.sampling
    message = pb.RolloutPayload(
        model=payload.model[: limits.MAX_MODEL_NAME],
        tokenizer_fingerprint=payload.tokenizer_fingerprint,
        eos_token_ids=pack(payload.eos_token_ids, "<u4", "eos_token_ids"),
        sampling=pb.Sampling(temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k),
        tasks="\n".join(tasks),
        group_slots=pack([group.slot for group in payload.groups], "<u4", "slots"),
        group_tasks=pack([tasks.index(group.task) for group in payload.groups], "u1", "tasks"),
        group_sizes=pack([len(group.completions) for group in payload.groups], "<u2", "group sizes"),
        token_counts=pack([len(c.token_ids) for c in completions], "<u4", "token counts"),
        text_lengths=pack([len(c.text) for c in completions], "<u4", "text lengths"),
        finish_reasons=pack([_FINISH.index(c.finish_reason) for c in completions], "u1", "finish reasons"),
        token_ids=pack_planes(ids, ID_PLANES, "token_ids"),
        behavior_logprobs=pack_planes(quantise_logprobs(logprobs), LOGPROB_PLANES, "behavior_logprobs"),
        token_byte_lengths=pack_planes(lengths, LENGTH_PLANES, "token_byte_lengths"),
        text=b"".join(c.text for c in completions),
    )
    data = message.SerializeToString()
    if len(data) > limits.MAX_INFLATED_BYTES:
        raise WireError(f"a payload of {len(data)} bytes; at most {limits.MAX_INFLATED_BYTES} are allowed")
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=True).compress(data)


def split_payload(payload: RolloutPayload) -> Iterator[tuple[bytes, int]]:
    """(compressed payload, groups in it), as many as the size limit asks for, groups in order.

    Raises WireError when a single group is too large.
    """
    if not payload.groups:
        return
    try:
        data = encode_payload(payload)
    except WireError:
        if len(payload.groups) == 1:
            raise
        data = b""
    if data and len(data) <= limits.MAX_PAYLOAD_BYTES and len(payload.groups) <= limits.MAX_GROUPS:
        yield data, len(payload.groups)
        return
    if len(payload.groups) == 1:
        raise WireError(f"one group takes {len(data)} bytes; at most {limits.MAX_PAYLOAD_BYTES} are allowed")
    half = len(payload.groups) // 2
    for groups in (payload.groups[:half], payload.groups[half:]):
        yield from split_payload(
            RolloutPayload(
                payload.model, payload.tokenizer_fingerprint, payload.eos_token_ids, payload.sampling, groups
            )
        )


def decode_payload(data: bytes) -> RolloutPayload:
    """Raises WireError (InflationError for a bomb). Structure only: ``inbox.verify`` judges the values."""
    message = _parse(pb.RolloutPayload(), _inflate(data), "payload")
    tasks = message.tasks.split("\n") if message.tasks else []
    if len(tasks) > limits.MAX_TASKS or len(message.model) > limits.MAX_MODEL_NAME:
        raise WireError(f"{len(tasks)} task names or a model name of {len(message.model)} characters: too many")
    eos = unpack(message.eos_token_ids, "<u4", "eos_token_ids")
    slots = unpack(message.group_slots, "<u4", "slots")
    ordinals = unpack(message.group_tasks, "u1", "tasks")
    sizes = unpack(message.group_sizes, "<u2", "group sizes")
    if not len(slots) == len(ordinals) == len(sizes) or not 0 < len(slots) <= limits.MAX_GROUPS:
        raise WireError(f"{len(slots)} slots, {len(ordinals)} tasks, {len(sizes)} group sizes")
    if len(eos) > limits.MAX_EOS_IDS or (ordinals >= len(tasks)).any():
        raise WireError("too many end-of-sequence ids, or a task that isn't named")
    completions = _decode_completions(message)
    if int(sizes.sum()) != len(completions):
        raise WireError(f"the groups hold {int(sizes.sum())} completions, {len(completions)} came")
    ends = np.cumsum(sizes)
    sampling = message.sampling
    return RolloutPayload(
        model=message.model,
        tokenizer_fingerprint=message.tokenizer_fingerprint,
        eos_token_ids=tuple(eos.tolist()),
        sampling=SamplingParams(sampling.temperature, sampling.top_p, sampling.top_k),
        groups=tuple(
            Group(tasks[int(task)], int(slot), tuple(completions[int(end - size) : int(end)]))
            for task, slot, size, end in zip(ordinals, slots, sizes, ends, strict=True)
        ),
    )


def _decode_completions(message: pb.RolloutPayload) -> list[Completion]:
    counts = unpack(message.token_counts, "<u4", "token counts")
    text_lengths = unpack(message.text_lengths, "<u4", "text lengths")
    finish = unpack(message.finish_reasons, "u1", "finish reasons")
    if not len(counts) == len(text_lengths) == len(finish) or (finish >= len(_FINISH)).any():
        raise WireError(f"{len(counts)} token counts, {len(text_lengths)} texts, {len(finish)} finish reasons")
    tokens = int(counts.sum())
    if int(text_lengths.sum()) != len(message.text):
        raise WireError(f"{len(message.text)} bytes of text, {int(text_lengths.sum())} are announced")
    ids = unpack_planes(message.token_ids, ID_PLANES, tokens, "token_ids").tolist()
    steps = unpack_planes(message.behavior_logprobs, LOGPROB_PLANES, tokens, "behavior_logprobs")
    logprobs = logprobs_of(steps).tolist()
    lengths = unpack_planes(message.token_byte_lengths, LENGTH_PLANES, tokens, "token_byte_lengths").tolist()
    completions = []
    for count, start, size, text_start, reason in zip(
        counts.tolist(), _starts(counts), text_lengths.tolist(), _starts(text_lengths), finish.tolist(), strict=True
    ):
        part = slice(start, start + count)
        completions.append(
            Completion(
                token_ids=tuple(ids[part]),
                behavior_logprobs=tuple(logprobs[part]),
                text=message.text[text_start : text_start + size],
                token_byte_lengths=tuple(lengths[part]),
                finish_reason=_FINISH[reason],
            )
        )
    return completions


def _starts(lengths: Numbers) -> list[int]:
    starts: list[int] = (np.cumsum(lengths) - lengths).tolist()
    return starts


def _inflate(data: bytes) -> bytes:
    """Bounded before anything is allocated: the frame says its size, and a lie ends at the limit."""
    try:
        size = zstandard.frame_content_size(data)
        if size > limits.MAX_INFLATED_BYTES:
            raise InflationError(f"would inflate to {size} bytes; at most {limits.MAX_INFLATED_BYTES} are allowed")
        if size < 0:
            raise WireError("the compressed payload does not say its size")
        return zstandard.ZstdDecompressor(max_window_size=limits.MAX_INFLATED_BYTES).decompress(
            data, max_output_size=limits.MAX_INFLATED_BYTES, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise WireError(f"the payload can't be decompressed: {error}") from error


# --- header and batch ---------------------------------------------------------------------------


def encode_header(header: BatchHeader) -> bytes:
    """The bytes that are signed."""
    return pb.BatchHeader(
        run_id=header.run_id,
        author=header.author,
        epoch=header.epoch,
        sequence=header.sequence,
        created_at_ms=header.created_at_ms,
        payload_sha256=header.payload_sha256,
        membership=header.membership,
    ).SerializeToString(deterministic=True)


def decode_header(data: bytes) -> BatchHeader:
    """Raises WireError."""
    if len(data) > limits.MAX_HEADER_BYTES:
        raise WireError(f"a header of {len(data)} bytes; at most {limits.MAX_HEADER_BYTES} are allowed")
    message = _parse(pb.BatchHeader(), data, "header")
    if not len(message.run_id) == len(message.author) == len(message.payload_sha256) == 32:
        raise WireError("a header whose run id, author or payload hash is not 32 bytes long")
    if len(message.membership) > limits.MAX_MEMBERSHIP_BYTES:
        raise WireError(f"a header with a proof of membership of {len(message.membership)} bytes")
    if max(message.epoch, message.sequence, message.created_at_ms) >= 2**63:
        raise WireError("a header with a number beyond 63 bits")
    return BatchHeader(
        run_id=RunId(message.run_id),
        author=PeerId(message.author),
        epoch=message.epoch,
        sequence=message.sequence,
        created_at_ms=message.created_at_ms,
        payload_sha256=message.payload_sha256,
        membership=message.membership,
    )


def batch_name(header: bytes) -> BatchName:
    """SHA-256 of the header bytes."""
    return BatchName(hashlib.sha256(header).digest())


def sign_batch(
    payload: bytes,
    *,
    identity: Identity,
    run_id: RunId,
    epoch: int,
    sequence: int,
    created_at_ms: int,
    membership: bytes = b"",
) -> SignedBatch:
    """Header and signature around a compressed payload."""
    header = encode_header(
        BatchHeader(
            run_id, identity.peer_id, epoch, sequence, created_at_ms, hashlib.sha256(payload).digest(), membership
        )
    )
    return SignedBatch(header=header, signature=identity.sign(BATCH_DOMAIN, header), payload=payload)


def encode_batch(batch: SignedBatch) -> bytes:
    return pb.SignedBatch(header=batch.header, signature=batch.signature, payload=batch.payload).SerializeToString()


def decode_batch(data: bytes) -> SignedBatch:
    """Raises WireError."""
    if len(data) > limits.MAX_BATCH_BYTES:
        raise WireError(f"a batch of {len(data)} bytes; at most {limits.MAX_BATCH_BYTES} are allowed")
    message = _parse(pb.SignedBatch(), data, "batch")
    return SignedBatch(header=message.header, signature=message.signature, payload=message.payload)


def _parse(message: M, data: bytes, what: str) -> M:
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise WireError(f"malformed {what}: {error}") from error
    return message
