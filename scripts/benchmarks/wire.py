"""Bytes per token on the wire for English text in the Qwen vocabulary (151,643 tokens and the special ones).

Log-probs are those of an interpolated bigram model of the text itself, so that they have the spread of a
language model's: many near 0, some far below.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise
from pydoc_data import topics

import tiktoken
from tiktoken.load import load_tiktoken_bpe

from ftis_node.types import Completion, FinishReason, Group, RolloutPayload, SamplingParams
from ftis_node.wire.codec import encode_payload

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
COMPLETION_TOKENS, GROUP_SIZE, GROUPS = 256, 8, 12


def encoding() -> tiktoken.Encoding:
    path = files("dashscope") / "resources" / "qwen.tiktoken"
    return tiktoken.Encoding("qwen", pat_str=PATTERN, mergeable_ranks=load_tiktoken_bpe(str(path)), special_tokens={})


def bigram_logprobs(ids: list[int]) -> list[float]:
    pairs, singles = Counter(pairwise(ids)), Counter(ids)
    logprobs = [math.log(singles[ids[0]] / len(ids))]
    for before, token in pairwise(ids):
        mixed = 0.8 * pairs[before, token] / singles[before] + 0.2 * singles[token] / len(ids)
        logprobs.append(math.log(mixed))
    return logprobs


def payload() -> RolloutPayload:
    """96 completions of 256 tokens."""
    qwen = encoding()
    ids = qwen.encode("\n".join(topics.topics.values()))
    logprobs = bigram_logprobs(ids)
    completions = []
    for number in range(GROUPS * GROUP_SIZE):
        part = slice(number * COMPLETION_TOKENS, (number + 1) * COMPLETION_TOKENS)
        pieces = [qwen.decode_single_token_bytes(token) for token in ids[part]]
        completions.append(
            Completion(
                tuple(ids[part]), tuple(logprobs[part]), b"".join(pieces), tuple(map(len, pieces)), FinishReason.LENGTH
            )
        )
    groups = tuple(
        Group("gsm8k", slot, tuple(completions[slot * GROUP_SIZE : (slot + 1) * GROUP_SIZE])) for slot in range(GROUPS)
    )
    return RolloutPayload("Qwen/Qwen2.5-1.5B-Instruct", b"f" * 32, (151_645,), SamplingParams(1.0), groups)


def bytes_per_token() -> dict[str, float]:
    """With everything, and with ids and log-probs alone."""
    whole = payload()
    bare = replace(
        whole,
        groups=tuple(
            replace(
                group,
                completions=tuple(
                    replace(c, text=b"", token_byte_lengths=(0,) * len(c.token_ids)) for c in group.completions
                ),
            )
            for group in whole.groups
        ),
    )
    tokens = GROUPS * GROUP_SIZE * COMPLETION_TOKENS
    return {
        "tokens": tokens,
        "bytes_per_token": len(encode_payload(whole)) / tokens,
        "bytes_per_token_ids_and_logprobs": len(encode_payload(bare)) / tokens,
    }


if __name__ == "__main__":
    print(json.dumps(bytes_per_token()))
