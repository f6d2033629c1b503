"""Supervised training of tiny Llama models on sums and differences, up to a start that is mediocre on purpose.

First a stage that shows how to calculate, step by step as a rule; then a bad habit, guessing the answer at once and
often wrong. The result can do better than it does, and that is what reinforcement learning brings out. Deterministic
from the seed on one thread.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ftis_node.manifest import Parameter
from ftis_node.tasks.registry import TaskSources, build_task
from ftis_node.tasks.task import Item
from ftis_node.token_bytes import byte_level_alphabet

END_TOKEN, PAD_TOKEN = "<|end|>", "<|pad|>"
BATCH, WARMUP = 64, 50
ERRORS = (-10, -2, -1, 1, 2, 10)


@dataclass(frozen=True)
class Kind:
    """A share of a stage's examples: training items of this task."""

    share: float
    task: str
    parameters: Mapping[str, Parameter]


@dataclass(frozen=True)
class Stage:
    """So many steps on examples of this mixture. ``step_by_step``, ``wrong_direct`` and ``wrong_steps`` are shares.

    The last of ``kinds`` takes what the others' shares leave.
    """

    steps: int
    rate: float
    step_by_step: float
    wrong_direct: float
    wrong_steps: float
    kinds: tuple[Kind, ...]


@dataclass(frozen=True)
class Start:
    """Architecture and schooling of one model.

    ``merges`` are those of its byte-level BPE tokenizer, in order. With ``base``, a folder of a model of this
    architecture and tokenizer, schooling goes on from there.
    """

    name: str
    hidden: int
    layers: int
    seed: int
    stages: tuple[Stage, ...]
    merges: tuple[tuple[str, str], ...] = ()
    base: Path | None = None


def make_tokenizer(merges: Sequence[tuple[str, str]]) -> PreTrainedTokenizerFast:
    """One token per byte (id = byte value), one per merge, an end token and a padding token of its own."""
    alphabet = byte_level_alphabet()
    vocabulary = {alphabet[byte]: byte for byte in range(256)}
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END_TOKEN, special=True), AddedToken(PAD_TOKEN, special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_TOKEN, pad_token=PAD_TOKEN)


def solution(item: Item, rng: random.Random, stage: Stage) -> str:
    """A worked answer, or one in which a result is wrong."""
    terms = [int(term) for term in re.findall(r"[+-]?\d+", item.prompt)]
    step_by_step = rng.random() < stage.step_by_step
    wrong = rng.random() < (stage.wrong_steps if step_by_step else stage.wrong_direct)
    if not step_by_step:
        return str(sum(terms) + (rng.choice(ERRORS) if wrong else 0)).lstrip("-")
    slip = rng.randrange(len(terms) - 1) if wrong else -1
    lines: list[str] = []
    left = terms
    while len(left) > 1:
        error = rng.choice(ERRORS) if len(lines) == slip else 0
        left = [abs(left[0] + left[1] + error), *left[2:]]
        lines.append(str(left[0]) + "".join(f"{term:+d}" for term in left[1:]))
    return "=".join(lines)


def school(start: Start) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """The model after its stages, and its tokenizer."""
    torch.manual_seed(start.seed)
    rng = random.Random(start.seed)
    tokenizer = make_tokenizer(start.merges)
    model = LlamaForCausalLM.from_pretrained(start.base) if start.base else _fresh_model(start, tokenizer)
    model.train()
    for stage in start.stages:
        _run_stage(model, tokenizer, stage, rng, start.name)
    model.train(False)
    return model, tokenizer


def _fresh_model(start: Start, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=start.hidden, intermediate_size=3 * start.hidden,
            num_hidden_layers=start.layers, num_attention_heads=4, num_key_value_heads=4,
            max_position_embeddings=4096, tie_word_embeddings=True,
            bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        )
    )  # fmt: skip


def _run_stage(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, stage: Stage, rng: random.Random, name: str
) -> None:
    tasks = [build_task(kind.task, kind.parameters, TaskSources()) for kind in stage.kinds]
    optimizer = torch.optim.AdamW(model.parameters(), lr=stage.rate)
    # The rate stays constant to the end: annealed weights would lie in a minimum so narrow that the first
    # steps of reinforcement learning fall out of it.
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARMUP))
    for step in range(stage.steps):
        rows: list[tuple[list[int], list[int]]] = []
        for _ in range(BATCH):
            task = tasks[_draw([kind.share for kind in stage.kinds], rng)]
            item = task.item(rng.randrange(task.size))
            rows.append((tokenizer.encode(item.prompt), tokenizer.encode(solution(item, rng, stage))))
        loss = model(**_batch(rows, tokenizer)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 0 or step == stage.steps - 1:
            print(f"{name}: step {step}, loss {loss.item():.3f}", flush=True)


def _draw(shares: Sequence[float], rng: random.Random) -> int:
    drawn = rng.random()
    for index, share in enumerate(shares[:-1]):
        if drawn < share:
            return index
        drawn -= share
    return len(shares) - 1


def _batch(rows: Sequence[tuple[list[int], list[int]]], tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Token ids, attention mask and labels [rows, longest]; only completions and their end are learned."""
    length = max(len(prompt) + len(completion) + 1 for prompt, completion in rows)
    ids = torch.full((len(rows), length), tokenizer.pad_token_id)
    labels = torch.full((len(rows), length), -100)
    for row, (prompt, completion) in enumerate(rows):
        tokens = torch.tensor([*prompt, *completion, tokenizer.eos_token_id])
        ids[row, : len(tokens)] = tokens
        labels[row, len(prompt) : len(tokens)] = tokens[len(prompt) :]
    return {"input_ids": ids, "attention_mask": (ids != tokenizer.pad_token_id).long(), "labels": labels}
