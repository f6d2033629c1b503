"""The nouns of ftis-node, each with a worked example.

These types cross module boundaries. They hold plain Python values, so that the network half
can use them without torch.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NewType

PeerId = NewType("PeerId", bytes)
"""Ed25519 public key, 32 bytes. Shown as the first 12 hex digits: ``short_id(peer_id)``."""

RunId = NewType("RunId", bytes)
"""SHA-256 of the run manifest's bytes."""

BatchName = NewType("BatchName", bytes)
"""SHA-256 of a batch's header bytes as they travel."""


def short_id(digest: bytes) -> str:
    """First 12 hex digits of a peer id, run id or batch name: what people see."""
    return digest.hex()[:12]


class FinishReason(enum.Enum):
    """Why generation ended: an end-of-sequence token or a stop string of the task was sampled, or the limit reached."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The distribution that completions are drawn from; part of the run manifest.

    Example: ``SamplingParams(temperature=1.0)``. ``top_k == 0`` and ``top_p == 1.0`` mean off.
    """

    temperature: float
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled completion.

    Example with a byte-level vocabulary (id = byte value, 256 = end of sequence)::

        Completion(
            token_ids=(50, 52, 256),              # "2", "4", end of sequence
            behavior_logprobs=(-0.5, -0.25, 0.0), # under the distribution really sampled from
            text=b"24",                           # special tokens left out; may be broken UTF-8
            token_byte_lengths=(1, 1, 0),         # sums to len(text); 0 for special tokens
            finish_reason=FinishReason.STOP,
        )

    ``text`` is bytes because a sampled token sequence may end within a UTF-8 character.
    """

    token_ids: tuple[int, ...]
    behavior_logprobs: tuple[float, ...]
    text: bytes
    token_byte_lengths: tuple[int, ...]
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Group:
    """All completions that one node sampled for one prompt.

    The prompt is named by task and assignment slot; every receiver works out the item from its
    own copy of the task (``manifest.assigned_index``). Example:
    ``Group(task="addition", slot=3, completions=(a, b, c, d))``.
    """

    task: str
    slot: int
    completions: tuple[Completion, ...]


@dataclass(frozen=True, slots=True)
class RolloutPayload:
    """The unsigned content of a rollout batch.

    ``tokenizer_fingerprint`` is ``Vocabulary.fingerprint`` (32 bytes) of the author's tokenizer.
    """

    model: str
    tokenizer_fingerprint: bytes
    eos_token_ids: tuple[int, ...]
    sampling: SamplingParams
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """What the author signs. ``created_at_ms`` is when the batch's prompts were drawn.

    ``(author, epoch, sequence)`` is unique for an honest author; two different headers with the
    same three values prove equivocation.
    """

    run_id: RunId
    author: PeerId
    epoch: int
    sequence: int
    created_at_ms: int
    payload_sha256: bytes
    membership: bytes = b""


@dataclass(frozen=True, slots=True)
class SignedBatch:
    """A rollout batch as it travels: header bytes, their signature and the compressed payload."""

    header: bytes
    signature: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class LocalProfile:
    """What the learner tells the network half about its tokenizer, so that ids can be checked there."""

    tokenizer_fingerprint: bytes
    vocabulary_size: int
