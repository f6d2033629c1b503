"""Hostile payloads that the encoder refuses to make."""

import pytest
import zstandard

from ftis_node.wire import limits
from ftis_node.wire.codec import encode_payload
from ftis_node.wire.v1 import rollout_pb2 as pb
from tests.builders import payload


@pytest.fixture
def not_a_number_payload() -> bytes:
    message = pb.RolloutPayload.FromString(zstandard.decompress(encode_payload(payload())))
    message.behavior_logprobs = b"\xff" * len(message.behavior_logprobs)
    return zstandard.compress(message.SerializeToString())


@pytest.fixture
def bomb() -> bytes:
    return zstandard.compress(b"\0" * (64 * limits.MAX_INFLATED_BYTES))
