"""What a Hugging Face tokenizer's ids stand for, as bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ftis_node.errors import ModelError
from ftis_node.vocabulary import Vocabulary

SENTENCEPIECE_SPACE = "\u2581"


def vocabulary_of(tokenizer: Any, generation_ends: Sequence[int] = (), *, name: str) -> Vocabulary:
    """Bytes of every token, by the tokenizer's own decoder. Raises ModelError for an unknown kind.

    End tokens are the tokenizer's own and those special ones of ``generation_ends``.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(f"--model {name}: its tokenizer has no fast version (tokenizer.json), which is needed")
    spelled = json.loads(backend.to_str())
    added = {entry["id"]: entry for entry in spelled["added_tokens"]}
    to_bytes = _token_reader(spelled.get("decoder"), name)
    vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocabulary.values()) + 1)
    special = set(range(len(table))) - set(vocabulary.values())  # holes stand for nothing
    for token, token_id in vocabulary.items():
        if token_id in added:
            table[token_id] = token.encode()
            if added[token_id]["special"]:
                special.add(token_id)
        else:
            table[token_id] = to_bytes(token)
    own = tokenizer.eos_token_id
    if own is not None:
        special.add(int(own))  # whatever else it stands for, here it gives no text
    ends = dict.fromkeys([] if own is None else [int(own)])
    ends |= dict.fromkeys(end for end in generation_ends if end in special and end in vocabulary.values())
    if not ends:
        raise ModelError(
            f"--model {name}: has no end-of-sequence token: neither its tokenizer (eos_token in tokenizer_config.json)"
            " nor its generation_config.json names one"
        )
    return Vocabulary(
        token_bytes=tuple(b"" if token_id in special else token for token_id, token in enumerate(table)),
        special_ids=frozenset(special),
        eos_token_ids=tuple(ends),
    )


def _token_reader(decoder: dict[str, Any] | None, name: str) -> Any:
    """How a token's text in the vocabulary becomes the bytes that it stands for."""
    parts = [] if decoder is None else decoder.get("decoders", [decoder])
    kinds = [part["type"] for part in parts]
    if "ByteLevel" in kinds:
        stand_ins = {character: byte for byte, character in byte_level_alphabet().items()}
        return lambda token: bytes(stand_ins[character] for character in token)
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        return _sentencepiece_bytes
    raise ModelError(f"--model {name}: its tokenizer decodes by {kinds or 'nothing'}, which is not supported")


def _sentencepiece_bytes(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace(SENTENCEPIECE_SPACE, " ").encode()


def byte_level_alphabet() -> dict[int, str]:
    """The printable stand-in of each byte in byte-level vocabularies (as in GPT-2)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
