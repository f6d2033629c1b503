"""A foreign tokenization and the own one of the same text, cut into minimal chunks."""

import json
import math
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ftis_node.config import FtisConfig
from ftis_node.token_bytes import vocabulary_of
from ftis_node.training.alignment import Aligned, Unaligned, align, chunk_ids
from ftis_node.training.ftis import LossInputs, ftis_loss
from ftis_node.types import Completion, FinishReason
from ftis_node.vocabulary import Vocabulary
from tests.builders import EOS, VOCABULARY

CORPUS = ["the quick brown fox 12 + 13 = 25 and 0 4 6 7 8 9 so on, naïve café 你好 👩‍👩‍👧"] * 10
HARD = (
    "24",
    " 24",
    "\n24",
    "12+13=25",
    "  two  spaces ",
    "e\u0301 combining",
    "👩‍👩‍👧 family",
    "你好",
    "tab\tend",
    "\n",
)


def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    trainer: Any
    if kind == "unigram":
        made = Tokenizer(models.Unigram())
        trainer = trainers.UnigramTrainer(
            vocab_size=300, special_tokens=["</s>", "<unk>"], unk_token="<unk>", show_progress=False
        )
    else:
        alphabet = [f"<0x{byte:02X}>" for byte in range(256)] if kind == "sentencepiece" else []
        made = Tokenizer(models.BPE(byte_fallback=bool(alphabet)))
        trainer = trainers.BpeTrainer(
            vocab_size=400, special_tokens=["</s>", *alphabet], show_progress=False,
            initial_alphabet=[] if alphabet else pre_tokenizers.ByteLevel.alphabet(),
        )  # fmt: skip
    if kind == "byte-level":
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        made.decoder = decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback(), decoders.Fuse()])
    made.train_from_iterator(CORPUS, trainer)
    # As in real vocabularies, the pieces for single bytes are ordinary tokens.
    spelled = json.loads(made.to_str())
    spelled["added_tokens"] = [entry for entry in spelled["added_tokens"] if not entry["content"].startswith("<0x")]
    made = Tokenizer.from_str(json.dumps(spelled))
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>")


TOKENIZERS = {kind: tokenizer(kind) for kind in ("byte-level", "sentencepiece", "unigram")}
VOCABULARIES = {kind: vocabulary_of(made, name=kind) for kind, made in TOKENIZERS.items()}


def to_own(completion: Completion, kind: str) -> Aligned | Unaligned:
    made = TOKENIZERS[kind]
    return align(
        completion, tokenize=lambda text: made.encode(text, add_special_tokens=False), vocabulary=VOCABULARIES[kind]
    )


def by_bytes(completion: Completion) -> Aligned | Unaligned:
    return align(completion, tokenize=lambda text: list(text.encode()), vocabulary=VOCABULARY)


def foreign(text: bytes, lengths: list[int], *, ended: bool = True) -> Completion:
    """The author's tokens are known by their lengths alone."""
    count = len(lengths) + ended
    return Completion(
        token_ids=tuple(range(count)),
        behavior_logprobs=tuple(-0.25 * (1 + index) for index in range(count)),
        text=text,
        token_byte_lengths=(*lengths, *([0] if ended else [])),
        finish_reason=FinishReason.STOP if ended else FinishReason.LENGTH,
    )


@st.composite
def completions(draw: st.DrawFn) -> Completion:
    """Any text, cut anywhere, within characters too."""
    text = draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(HARD)).encode()
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(text) - 1)))) & set(range(1, len(text))))
    bounds = [0, *cuts, len(text)] if text else [0]
    return foreign(text, [b - a for a, b in pairwise(bounds)], ended=draw(st.booleans()))


def test_what_ends_with_a_stop_string_has_text_to_its_end() -> None:
    stopped = replace(foreign(b"24\n", [2, 1], ended=False), finish_reason=FinishReason.STOP)
    assert by_bytes(stopped) == Aligned(tuple(b"24\n"), (-0.25, 0.0, -0.5), (0, 0, 1))


def test_the_example() -> None:
    aligned = by_bytes(foreign(b"24+3", [2, 2]))
    assert aligned == Aligned(
        token_ids=(*b"24+3", EOS), behavior_logprobs=(-0.25, 0.0, -0.5, 0.0, -0.75), chunk_ids=(0, 0, 1, 1, 2)
    )


@settings(max_examples=300, deadline=None)
@given(completions(), st.sampled_from(["bytes", *TOKENIZERS]))
def test_chunks_cover_every_token_once_in_order_and_keep_the_sum(completion: Completion, kind: str) -> None:
    aligned = by_bytes(completion) if kind == "bytes" else to_own(completion, kind)
    vocabulary = VOCABULARY if kind == "bytes" else VOCABULARIES[kind]
    if isinstance(aligned, Unaligned):
        if kind in ("bytes", "byte-level"):  # they spell every text
            assert aligned is Unaligned.EMPTY
            assert not completion.token_ids
        return
    assert vocabulary.decode(aligned.token_ids)[0] == completion.text
    assert len(aligned.token_ids) == len(aligned.behavior_logprobs) == len(aligned.chunk_ids)
    steps = [after - before for before, after in pairwise(aligned.chunk_ids)]
    assert aligned.chunk_ids[0] == 0
    assert set(steps) <= {0, 1}
    assert math.isclose(sum(aligned.behavior_logprobs), sum(completion.behavior_logprobs), rel_tol=1e-12)
    for index, logprob in enumerate(aligned.behavior_logprobs):
        assert (logprob != 0) == (index == 0 or steps[index - 1] == 1)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=20), st.randoms())
def test_chunks_are_minimal(theirs: list[int], rng) -> None:
    own = theirs[:]
    rng.shuffle(own)
    left, right = chunk_ids(theirs, own)
    shared = set(accumulate(theirs)) & set(accumulate(own))
    assert left[-1] == right[-1] == len(shared) - 1


@settings(deadline=None)
@given(completions(), st.integers(0, 2**31), st.sampled_from([-1.0, 1.0]))
def test_an_equal_tokenization_gives_bit_identical_results(completion: Completion, seed: int, advantage: float) -> None:
    ones = foreign(completion.text, [1] * len(completion.text))
    if (aligned := by_bytes(ones)) is Unaligned.BROKEN_TEXT:
        return
    assert isinstance(aligned, Aligned)
    assert aligned.behavior_logprobs == ones.behavior_logprobs
    assert aligned.chunk_ids == tuple(range(len(ones.token_ids)))
    policy = -torch.rand(1, len(ones.token_ids), generator=torch.Generator().manual_seed(seed)) * 5
    results = []
    for chunks in (None, torch.tensor([aligned.chunk_ids])):
        leaf = policy.clone().requires_grad_()
        outputs = ftis_loss(
            LossInputs(
                leaf, leaf.detach(), torch.tensor([aligned.behavior_logprobs]), torch.ones_like(policy).bool(),
                torch.tensor([advantage]), torch.ones(1), chunks,
            ),
            FtisConfig(kl_threshold=3.0),
        )  # fmt: skip
        outputs.loss.backward()
        results.append((outputs.loss.detach(), leaf.grad, outputs.keep_mask, outputs.divergence))
    for plain, chunked in zip(*results, strict=True):
        assert plain is not None
        assert chunked is not None
        assert torch.equal(plain, chunked)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_leading_space_is_neither_added_nor_lost(kind: str) -> None:
    for text in ("24", " 24", "12 + 13"):
        aligned = to_own(foreign(text.encode(), [1] * len(text)), kind)
        assert isinstance(aligned, Aligned), (kind, text)
        assert VOCABULARIES[kind].decode(aligned.token_ids)[0] == text.encode()
        assert aligned.token_ids[-1] == VOCABULARIES[kind].eos_token_ids[0]


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        (foreign(b"\xe4\xbd", [2], ended=False), Unaligned.BROKEN_TEXT),
        (foreign(b"24", [1, 0, 1]), Unaligned.SPECIAL_TOKENS),
        (foreign(b"24", [1, 1, 0], ended=False), Unaligned.SPECIAL_TOKENS),
        (foreign(b"", [], ended=False), Unaligned.EMPTY),
        (foreign(b"24</s>", [1] * 6), Unaligned.ROUND_TRIP),
    ],
)
def test_what_cannot_be_aligned_says_why(completion: Completion, reason: Unaligned) -> None:
    assert to_own(completion, "byte-level") is reason


def test_a_tokenizer_that_normalises_changes_no_text_unseen() -> None:
    made = tokenizer("byte-level")
    made.backend_tokenizer.normalizer = normalizers.NFKC()
    vocabulary: Vocabulary = vocabulary_of(made, name="nfkc")
    ligature = "ﬁ".encode()
    assert align(foreign(ligature, [3]), tokenize=made.encode, vocabulary=vocabulary) is Unaligned.ROUND_TRIP
