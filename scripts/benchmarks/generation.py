"""Tokens per second: our engine against ``model.generate`` on the same model, prompts and distribution."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from ftis_node.allocator import tune_malloc

tune_malloc()

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from ftis_node.rollout.transformers import TransformersEngine
from ftis_node.types import SamplingParams
from ftis_node.vocabulary import Vocabulary

PROMPTS, COUNT, PROMPT_TOKENS, NEW_TOKENS, VOCABULARY = 8, 8, 32, 64, 49_152


def build() -> Any:
    """A Llama of 60 M parameters whose end token never comes: both sides generate the same number of tokens."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=512, intermediate_size=1536, num_hidden_layers=10, num_attention_heads=8,
        num_key_value_heads=8, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def main(variant: str) -> None:
    transformers_logging.set_verbosity_error()
    model = build()
    prompts = torch.randint(1, VOCABULARY - 1, (PROMPTS, PROMPT_TOKENS), generator=torch.Generator().manual_seed(1))

    def ours() -> int:
        table = (b"a",) * VOCABULARY
        engine = TransformersEngine(
            model, Vocabulary(table, frozenset(), (VOCABULARY,)), pad_id=0, decode_rows=PROMPTS * COUNT
        )
        rollouts = engine.generate(
            [tuple(row) for row in prompts.tolist()], count=COUNT, sampling=SamplingParams(1.0),
            max_tokens=NEW_TOKENS, seed=0,
        )  # fmt: skip
        return rollouts.stats.tokens

    def reference() -> int:
        output = model.generate(
            prompts, attention_mask=torch.ones_like(prompts), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            num_return_sequences=COUNT, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS,
        )  # fmt: skip
        return int(output[:, PROMPT_TOKENS:].numel())

    run = ours if variant == "ours" else reference
    run()  # the first call pays for setting up
    started = time.monotonic()
    tokens = run()
    seconds = time.monotonic() - started
    print(json.dumps({"tokens_per_second": tokens / seconds}))


if __name__ == "__main__":
    main(sys.argv[1])
