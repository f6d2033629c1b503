"""The codec: what goes in comes out, and hostile bytes end in a WireError, in bounded memory."""

import math
import random
import tracemalloc
from dataclasses import replace

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from ftis_node.errors import WireError
from ftis_node.types import BatchHeader, Completion, FinishReason, Group, PeerId, RolloutPayload, RunId, SamplingParams
from ftis_node.wire import limits
from ftis_node.wire.codec import (
    InflationError,
    decode_batch,
    decode_header,
    decode_payload,
    encode_batch,
    encode_header,
    encode_payload,
    split_payload,
)
from ftis_node.wire.v1 import rollout_pb2 as pb
from tests.builders import completion, group, payload, signed

GRID = 1024


@st.composite
def completions(draw: st.DrawFn) -> Completion:
    pieces = draw(st.lists(st.binary(max_size=4), max_size=12))
    ids = tuple(draw(st.integers(0, 2**24 - 1)) for _ in pieces)
    logprobs = tuple(-draw(st.integers(0, 65_534)) / GRID for _ in pieces)
    lengths = tuple(map(len, pieces))
    return Completion(ids, logprobs, b"".join(pieces), lengths, draw(st.sampled_from(FinishReason)))


@st.composite
def payloads(draw: st.DrawFn) -> RolloutPayload:
    groups = draw(
        st.lists(
            st.builds(
                Group,
                task=st.sampled_from(["addition", "gsm8k"]),
                slot=st.integers(0, 2**32 - 1),
                completions=st.lists(completions(), min_size=1, max_size=4).map(tuple),
            ),
            min_size=1,
            max_size=5,
        )
    )
    return RolloutPayload(
        model=draw(st.text(max_size=30)),
        tokenizer_fingerprint=draw(st.binary(min_size=32, max_size=32)),
        eos_token_ids=tuple(draw(st.lists(st.integers(0, 2**24), max_size=3))),
        sampling=SamplingParams(draw(st.floats(0.1, 2)), draw(st.floats(0.1, 1)), draw(st.integers(0, 100))),
        groups=tuple(groups),
    )


@settings(max_examples=150, deadline=None)
@given(payloads())
def test_a_payload_comes_back_as_it_went_in(content: RolloutPayload) -> None:
    assert decode_payload(encode_payload(content)) == content


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_a_payload_or_a_wire_error(data: bytes) -> None:
    for compressed in (data, zstandard.compress(data)):
        try:
            decode_payload(compressed)
        except WireError:
            continue


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_payload_with_one_changed_byte_is_a_payload_or_a_wire_error(data: st.DataObject) -> None:
    raw = bytearray(zstandard.decompress(encode_payload(payload(group(0), group(1)))))
    position = data.draw(st.integers(0, len(raw) - 1))
    raw[position] ^= data.draw(st.integers(1, 255))
    try:
        decode_payload(zstandard.compress(bytes(raw)))
    except WireError:
        return


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_a_batch_and_header_or_a_wire_error(data: bytes) -> None:
    for decode in (decode_batch, decode_header):
        try:
            decode(data)
        except WireError:
            continue


def test_header_and_batch_come_back() -> None:
    header = BatchHeader(RunId(b"r" * 32), PeerId(b"p" * 32), 2**62, 7, 1_800_000_000_000, b"h" * 32)
    assert decode_header(encode_header(header)) == header
    batch = signed()
    assert decode_batch(encode_batch(batch)) == batch


def test_log_probs_are_rounded_to_the_grid_and_clipped_to_what_it_holds() -> None:
    given_values = (-0.00049, -0.0003, -1.23456, -63.9, -500.0, -65_534 / GRID)
    content = payload(replace(group(), completions=(replace(completion(b"12345"), behavior_logprobs=given_values),)))
    read = decode_payload(encode_payload(content)).groups[0].completions[0].behavior_logprobs
    for value, back in zip(given_values[:4], read[:4], strict=True):
        assert abs(value - back) <= 0.5 / GRID
    assert read[4] == read[5] == -65_534 / GRID


@pytest.mark.parametrize("value", [math.nan, 0.5, math.inf, -math.inf])
def test_what_is_no_log_prob_can_not_be_sent(value: float) -> None:
    content = payload(replace(group(), completions=(replace(completion(b"1"), behavior_logprobs=(value, -0.5)),)))
    with pytest.raises(WireError, match="finite and not positive"):
        encode_payload(content)


def test_a_decompression_bomb_costs_no_memory() -> None:
    bomb = zstandard.compress(b"\0" * (64 * limits.MAX_INFLATED_BYTES))
    assert len(bomb) < limits.MAX_BATCH_BYTES
    tracemalloc.start()
    with pytest.raises(InflationError, match="would inflate"):
        decode_payload(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < limits.MAX_BATCH_BYTES


def test_a_bomb_that_does_not_say_its_size_is_refused() -> None:
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    bomb = compressor.compress(b"\0" * (8 * limits.MAX_INFLATED_BYTES)) + compressor.flush()
    with pytest.raises(WireError, match="does not say its size"):
        decode_payload(bomb)


def test_ids_beyond_three_bytes_can_not_be_sent() -> None:
    content = payload(replace(group(), completions=(replace(completion(b""), token_ids=(2**24,)),)))
    with pytest.raises(WireError, match="token_ids"):
        encode_payload(content)


def test_columns_that_do_not_fit_together_are_refused() -> None:
    message = pb.RolloutPayload.FromString(zstandard.decompress(encode_payload(payload())))
    message.token_ids = message.token_ids[:-1]
    with pytest.raises(WireError, match="token_ids"):
        decode_payload(zstandard.compress(message.SerializeToString()))


def test_large_payloads_are_split_and_nothing_is_lost() -> None:
    rng = random.Random(0)
    groups = tuple(
        Group("addition", slot, tuple(completion(rng.randbytes(20_000), stopped=False) for _ in range(4)))
        for slot in range(40)
    )
    content = payload(*groups)
    parts = list(split_payload(content))
    assert len(parts) > 1
    assert all(len(data) <= limits.MAX_PAYLOAD_BYTES for data, _ in parts)
    read = [decode_payload(data) for data, _ in parts]
    assert [len(part.groups) for part in read] == [count for _, count in parts]
    assert tuple(g for part in read for g in part.groups) == groups


def test_one_group_beyond_the_limit_is_an_error_that_says_so() -> None:
    rng = random.Random(0)
    huge = Group("addition", 0, tuple(completion(rng.randbytes(300_000), stopped=False) for _ in range(5)))
    with pytest.raises(WireError, match="at most"):
        list(split_payload(payload(huge)))
