"""Seconds and peak memory of scoring and one optimizer step on a vocabulary of 150,000.

The reference does the same by the book: all logits of a micro-batch, ``log_softmax``, ``gather``, the same
loss, clipping and Adam, in the same micro-batches and with the same allocator settings. Every sequence has
an advantage.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

from ftis_node.allocator import tune_malloc

tune_malloc()

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ftis_node.config import FtisConfig, TrainingConfig
from ftis_node.training.collate import TrainingGroup, TrainingSequence, collate, split_rows
from ftis_node.training.ftis import LossInputs, ftis_loss, group_advantages
from ftis_node.training.trainer import Trainer

VOCABULARY, GROUPS, GROUP_SIZE, PROMPT_TOKENS, COMPLETION_TOKENS, MICRO_BATCH_TOKENS = 150_000, 4, 4, 32, 96, 1024
RATE = 1e-6


def build() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=768, num_hidden_layers=8, num_attention_heads=4,
        num_key_value_heads=4, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def samples() -> list[TrainingGroup]:
    generator = torch.Generator().manual_seed(1)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(1, VOCABULARY, (count,), generator=generator).tolist())

    return [
        TrainingGroup(
            "own",
            tuple(
                TrainingSequence(prompt, ids(COMPLETION_TOKENS), (-11.9,) * COMPLETION_TOKENS, float(member % 2))
                for member in range(GROUP_SIZE)
            ),
        )
        for prompt in (ids(PROMPT_TOKENS) for _ in range(GROUPS))
    ]


class Reference:
    """Scoring and one step with full logits."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._optimizer = torch.optim.Adam(model.parameters(), lr=RATE, betas=(0.9, 0.999))

    def step(self, groups: list[TrainingGroup]) -> None:
        sequences = [sequence for group in groups for sequence in group.sequences]
        group_ids = torch.arange(len(groups)).repeat_interleave(GROUP_SIZE)
        advantages = group_advantages(torch.tensor([s.reward for s in sequences]), group_ids, "std")
        for rows in split_rows([s.length for s in sequences], MICRO_BATCH_TOKENS):
            batch = collate(sequences, [[row] for row in rows], pad_id=0, device=torch.device("cpu"))
            logits = self._model(
                input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False
            ).logits.float()
            every = torch.log_softmax(logits, dim=-1)
            policy = every[torch.arange(len(rows)).unsqueeze(1), batch.gather, batch.targets]
            policy = policy.masked_fill(~batch.loss_mask, 0.0)
            weights = torch.full((len(rows),), 1 / len(sequences))
            inputs = LossInputs(
                policy,
                policy.detach(),
                batch.behavior_logprobs,
                batch.loss_mask,
                advantages[torch.tensor(rows)],
                weights,
            )
            ftis_loss(inputs, FtisConfig()).loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


def main(variant: str) -> None:
    model, groups = build(), samples()
    if variant == "ours":
        trainer: Any = Trainer(
            model, training=TrainingConfig(micro_batch_tokens=MICRO_BATCH_TOKENS), ftis=FtisConfig(),
            learning_rate=RATE, temperature=1.0, pad_id=0,
        )  # fmt: skip
    else:
        trainer = Reference(model)
    trainer.step(groups)  # the first step makes the optimizer's state
    started = time.monotonic()
    trainer.step(groups)
    seconds = time.monotonic() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "peak_mebibytes": peak}))


if __name__ == "__main__":
    main(sys.argv[1])
