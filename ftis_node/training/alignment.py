"""A completion of a foreign tokenizer in the own one's tokens, aligned at shared byte boundaries.

Both sides cut the same bytes. Where both have a cut, a *chunk* ends; between two such cuts neither tokenization can
be told from the other, so a chunk's log-probs are summed on either side. An end-of-sequence token has no bytes: it is
a chunk of its own, aligned with the other side's. Example, the text ``24+3``::

    theirs   | 24 | +3 |         -0.5  -1.0
    own      | 2 | 4 | + | 3 |   chunk_ids 0 0 1 1, behavior_logprobs -0.5 0 -1.0 0
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ftis_node.errors import WireError
from ftis_node.types import Completion, FinishReason
from ftis_node.vocabulary import Vocabulary

LEADS = ("", "\n", "=", ".", "x")
"""Stand before a text whose tokenizer puts a space at the start: the first that is cut off from the text will do."""


class Unaligned(enum.Enum):
    """Why a sequence contributes nothing, while its reward stays in its group's baseline."""

    BROKEN_TEXT = "broken_text"  # its bytes are not UTF-8: cut within a character, most likely
    SPECIAL_TOKENS = "special_tokens"  # a token without text before the end
    ROUND_TRIP = "round_trip"  # the own tokenizer changes the text
    EMPTY = "empty"  # neither text nor an end


@dataclass(frozen=True, slots=True)
class Aligned:
    """Own token ids; per token its chunk, and at each chunk's first token the sum of the author's log-probs."""

    token_ids: tuple[int, ...]
    behavior_logprobs: tuple[float, ...]
    chunk_ids: tuple[int, ...]


def align(
    completion: Completion, *, tokenize: Callable[[str], Sequence[int]], vocabulary: Vocabulary
) -> Aligned | Unaligned:
    """``tokenize`` and ``vocabulary`` are the own tokenizer's; the completion's lengths sum to its text's length."""
    lengths = completion.token_byte_lengths
    # What ends with a stop string has text to its end.
    ended = completion.finish_reason is FinishReason.STOP and lengths[-1] == 0
    with_text = lengths[:-1] if ended else lengths
    if 0 in with_text:
        return Unaligned.SPECIAL_TOKENS
    try:
        text = completion.text.decode("utf-8")
    except UnicodeDecodeError:
        return Unaligned.BROKEN_TEXT
    own = _own_tokens(text, tokenize, vocabulary)
    if own is None:
        return Unaligned.ROUND_TRIP
    token_ids, own_lengths = own
    chunks = chunk_ids(with_text, own_lengths)
    sums = chunk_sums(completion.behavior_logprobs, chunks[0])
    ends = ((vocabulary.eos_token_ids[0],), (len(sums),)) if ended else ((), ())
    token_ids, own_chunks = token_ids + ends[0], chunks[1] + ends[1]
    if not token_ids:
        return Unaligned.EMPTY
    if ended:
        sums = (*sums, completion.behavior_logprobs[-1])
    first = [index == 0 or own_chunks[index - 1] != chunk for index, chunk in enumerate(own_chunks)]
    behavior = tuple(sums[chunk] if begins else 0.0 for chunk, begins in zip(own_chunks, first, strict=True))
    return Aligned(token_ids, behavior, own_chunks)


def chunk_ids(theirs: Sequence[int], own: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Number of the minimal chunk that each token of either side is in, from the tokens' byte lengths.

    All lengths are above 0 and both sides sum to the same.
    """
    cuts = sorted(set(accumulate(theirs)) & set(accumulate(own)))
    return _numbered(theirs, cuts), _numbered(own, cuts)


def _numbered(lengths: Sequence[int], cuts: Sequence[int]) -> tuple[int, ...]:
    numbers, chunk = [], 0
    for end in accumulate(lengths):
        numbers.append(chunk)
        chunk += end == cuts[chunk]
    return tuple(numbers)


def chunk_sums(logprobs: Sequence[float], chunks: Sequence[int]) -> tuple[float, ...]:
    """Sums over each chunk; log-probs beyond the numbered tokens are left out."""
    sums = [0.0] * (chunks[-1] + 1 if chunks else 0)
    for chunk, logprob in zip(chunks, logprobs, strict=False):
        sums[chunk] += logprob
    return tuple(sums)


def _own_tokens(
    text: str, tokenize: Callable[[str], Sequence[int]], vocabulary: Vocabulary
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Token ids and byte lengths of a text in the middle of another; None if the tokenizer changes it."""
    if not text:
        return (), ()
    wanted = text.encode()
    for lead in LEADS:
        ids = tuple(tokenize(lead + text))
        try:
            found, lengths = vocabulary.decode(ids)
        except WireError:
            return None
        skipped = len(found) - len(wanted)
        ends = list(accumulate(lengths, initial=0))
        if 0 not in lengths and found[skipped:] == wanted and skipped in ends and _is_lead(found[:skipped], lead):
            first = ends.index(skipped)
            return ids[first:], lengths[first:]
    return None


def _is_lead(before: bytes, lead: str) -> bool:
    """What came out before the text must be the lead, or the lead behind the space that some tokenizers add."""
    return before in (lead.encode(), b" " + lead.encode())
