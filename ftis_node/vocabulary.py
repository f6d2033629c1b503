"""What a tokenizer's ids stand for, as bytes: comparison, decoding and bounds without the tokenizer itself."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ftis_node.errors import WireError

FINGERPRINT_BYTES = 32


@dataclass(frozen=True)
class Vocabulary:
    """Bytes of every token by id; ids that the tokenizer doesn't define and special tokens have none.

    Example: a byte-level vocabulary has ``token_bytes[50] == b"2"`` and ``special_ids == {256, 257}``.
    """

    token_bytes: tuple[bytes, ...]
    special_ids: frozenset[int]
    eos_token_ids: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of ids; every id of a completion is below it."""
        return len(self.token_bytes)

    @cached_property
    def fingerprint(self) -> bytes:
        """SHA-256 of the sorted list of (id, token bytes, special or not): 32 bytes.

        It doesn't depend on the file format or on library versions, only on what the ids mean.
        """
        digest = hashlib.sha256(b"ftis-node/vocabulary/1\0")
        for token_id, token in enumerate(self.token_bytes):
            special = token_id in self.special_ids
            digest.update(struct.pack("<II?", token_id, len(token), special))
            digest.update(token)
        return digest.digest()

    def bytes_of(self, token_id: int) -> bytes:
        """What a token gives to a text: nothing if it is special, or an id that the tokenizer doesn't know."""
        return b"" if token_id >= self.size or token_id in self.special_ids else self.token_bytes[token_id]

    def decode(self, token_ids: Iterable[int]) -> tuple[bytes, tuple[int, ...]]:
        """The text (special tokens left out) and how many of its bytes each token gave.

        Raises WireError when an id is outside the vocabulary.
        """
        pieces = []
        for token_id in token_ids:
            if not 0 <= token_id < len(self.token_bytes):
                raise WireError(f"token id {token_id} is outside the vocabulary of {len(self.token_bytes)}")
            pieces.append(self.bytes_of(token_id))
        return b"".join(pieces), tuple(len(piece) for piece in pieces)
