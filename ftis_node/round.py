"""One party's round, without store and without socket: draw prompts, generate, check, train.

The learner process and the simulation both call these, so that what is studied is what runs.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from ftis_node.allocator import trim_malloc
from ftis_node.config import NodeConfig
from ftis_node.errors import ConfigError
from ftis_node.held_out import HeldOut
from ftis_node.inbox.content import CheckedGroup, check_group
from ftis_node.inbox.verify import Rejected
from ftis_node.manifest import Run
from ftis_node.memory import MemoryPlan, plan
from ftis_node.model_files import model_source
from ftis_node.models import LoadedModel, load_model, render_prompt
from ftis_node.rollout.engine import GenerationStats, RolloutEngine
from ftis_node.rollout.transformers import TransformersEngine
from ftis_node.rollout.vllm import VllmEngine
from ftis_node.tasks.registry import TaskSources, check_task
from ftis_node.tasks.task import Item, Task
from ftis_node.training.alignment import Unaligned, align
from ftis_node.training.collate import TrainingGroup, TrainingSequence
from ftis_node.training.step import StepReport
from ftis_node.training.trainer import Trainer, default_learning_rate
from ftis_node.types import Completion, Group, PeerId, RolloutPayload

log = logging.getLogger(__name__)

OWN = "own"

FEWEST_HELD_OUT = 4
"""Held-out prompts in one measurement of agreement."""

MISMATCH_ALARM = 0.05
"""Engine and trainer should not differ by more per token on own samples."""


@dataclass(frozen=True)
class Party:
    """A model with everything that it needs for rounds of one run."""

    run: Run
    config: NodeConfig
    loaded: LoadedModel
    engine: RolloutEngine
    trainer: Trainer
    tasks: Mapping[str, Task]
    held_out: HeldOut


def load_tasks(run: Run, config: NodeConfig) -> Mapping[str, Task]:
    """The tasks of a run, from this machine's files or the hub. Raises ConfigError, TaskError."""
    log.info("loading %s", ", ".join(spec.name for spec in run.manifest.tasks))
    sources = TaskSources(files=config.data.files)
    return {spec.name: check_task(spec, sources) for spec in run.manifest.tasks}


def build_party(run: Run, config: NodeConfig, *, seed: int, tasks: Mapping[str, Task] | None = None) -> Party:
    """Load the model, and the tasks of a run if they aren't there yet. Raises ModelError, ConfigError."""
    group_size(run, config)  # refused before the model is loaded
    # Either may wait for the hub.
    tasks = load_tasks(run, config) if tasks is None else tasks
    log.info("loading the model %s", config.model.name)
    loaded = load_model(config.model, config.lora, seed=seed)
    rate = config.training.learning_rate
    return Party(
        run=run,
        config=config,
        loaded=loaded,
        engine=_build_engine(run, config, loaded),
        trainer=Trainer(
            loaded.model,
            training=config.training,
            ftis=config.ftis,
            learning_rate=rate if rate is not None else default_learning_rate(lora=config.lora.enabled),
            temperature=run.manifest.sampling.temperature,
            pad_id=loaded.pad_id,
        ),
        tasks=tasks,
        held_out=HeldOut(seed, active=config.training.agreement_every > 0),
    )


def _build_engine(run: Run, config: NodeConfig, loaded: LoadedModel) -> RolloutEngine:
    rows = config.rollout.decode_rows
    if config.rollout.engine == "transformers":
        return TransformersEngine(loaded.model, loaded.vocabulary, pad_id=loaded.pad_id, decode_rows=rows)
    limits = run.manifest.limits
    longest = limits.prompt_tokens + limits.completion_tokens
    return VllmEngine(
        loaded.model,
        loaded.vocabulary,
        source=model_source(config.model.name),
        revision=config.model.revision,
        lora=config.lora,
        decode_rows=rows,
        longest=longest if loaded.positions is None else min(longest, loaded.positions),
        memory_share=config.rollout.vllm_memory_share,
    )


def longest_sequence(party: Party) -> int:
    """Tokens of the longest prompt and completion that the run and the model allow."""
    limits, positions = party.run.manifest.limits, party.loaded.positions
    longest = limits.prompt_tokens + limits.completion_tokens
    return longest if positions is None else min(longest, positions)


def plan_memory(party: Party) -> MemoryPlan:
    """Budgets by a measurement. Raises ModelError when a step can't fit, and says what to change."""
    longest = longest_sequence(party)
    return plan(
        party.trainer.needs(longest=longest),
        longest=longest,
        micro_batch_tokens=party.config.training.micro_batch_tokens,
        decode_rows=party.config.rollout.decode_rows,
    )


def group_size(run: Run, config: NodeConfig) -> int:
    """Completions per prompt that this party samples. Raises ConfigError when the run doesn't allow it."""
    smallest, largest = run.manifest.group_sizes
    wanted = config.rollout.group_size or largest
    if not smallest <= wanted <= largest:
        raise ConfigError(f"rollout.group_size = {wanted}: this run has groups of {smallest} to {largest}")
    return wanted


def prompt_ids(loaded: LoadedModel, item: Item) -> tuple[int, ...]:
    """An item as this model is asked it."""
    return render_prompt(loaded, item.prompt, system=item.system, raw=item.raw)


def derived_seed(*parts: int) -> int:
    """A 63-bit seed for one generation, so that a repeated round samples the same completions."""
    text = ",".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def free_slots(party: Party, author: PeerId, window: int, *, first: int, count: int) -> list[int]:
    """The next ``count`` slots from ``first`` on within the window's quota, without those of held-out prompts."""
    every = range(first, party.run.manifest.assignment.quota)
    return list(islice((slot for slot in every if not _held_out(party, author, window, slot)), count))


def _held_out(party: Party, author: PeerId, window: int, slot: int) -> bool:
    spec = party.run.task_for_slot(slot)
    if not party.held_out.active:
        return False
    item = party.tasks[spec.name].item(party.run.assigned_index(author, window, slot))
    return party.held_out.contains(spec.name, spec.size, item.prompt)


def generate(
    party: Party, author: PeerId, window: int, slots: Sequence[int], *, seed: int
) -> tuple[RolloutPayload, GenerationStats]:
    """Sample one group for each assignment slot of this party.

    A slot whose prompt is too long for this model is left out, and so is a group with a completion that can't be
    published: one of no tokens (an id that the tokenizer doesn't know came first), or one whose log-probs are not
    finite.
    """
    run, manifest = party.run, party.run.manifest
    items = {slot: _assigned_item(party, author, window, slot) for slot in slots}
    prompts = {slot: prompt_ids(party.loaded, item) for slot, item in items.items()}
    usable = {slot: prompt for slot, prompt in prompts.items() if fits(party, prompt)}
    if len(usable) < len(prompts):
        longest = max(len(prompt) for slot, prompt in prompts.items() if slot not in usable)
        log.warning(
            "%d of %d prompts are too long for this model or run and are left out (the longest has %d tokens, %d are"
            " allowed)", len(prompts) - len(usable), len(prompts), longest, _longest_prompt(party),
        )  # fmt: skip
    sampling = manifest.sampling.params()
    rollouts = party.engine.generate(
        list(usable.values()),
        count=group_size(party.run, party.config),
        sampling=sampling,
        max_tokens=manifest.limits.completion_tokens,
        seed=seed,
        stops=[items[slot].stop for slot in usable],
    )
    groups = zip(usable, rollouts.completions, strict=True)
    payload = RolloutPayload(
        model=party.config.model.label,
        tokenizer_fingerprint=party.loaded.vocabulary.fingerprint,
        eos_token_ids=party.loaded.vocabulary.eos_token_ids,
        sampling=sampling,
        groups=tuple(
            Group(run.task_for_slot(slot).name, slot, members)
            for slot, members in groups
            if all(map(_publishable, members))
        ),
    )
    return payload, rollouts.stats


def _assigned_item(party: Party, author: PeerId, window: int, slot: int) -> Item:
    return party.tasks[party.run.task_for_slot(slot).name].item(party.run.assigned_index(author, window, slot))


def _longest_prompt(party: Party) -> int:
    """In tokens: as the run allows, and so that a whole completion has positions behind it."""
    limits = party.run.manifest.limits
    positions = party.loaded.positions
    if positions is None:
        return limits.prompt_tokens
    return min(limits.prompt_tokens, positions - limits.completion_tokens)


def fits(party: Party, prompt: tuple[int, ...]) -> bool:
    """Whether a prompt is within the run's limit, and leaves this model room for a whole completion."""
    return 0 < len(prompt) <= _longest_prompt(party)


def _publishable(completion: Completion) -> bool:
    return bool(completion.token_ids) and all(map(math.isfinite, completion.behavior_logprobs))


def check(party: Party, author: PeerId, window: int, payload: RolloutPayload, index: int) -> CheckedGroup | Rejected:
    """Recompute everything about one group that can be computed here: item, text, rewards."""
    return check_group(
        payload.groups[index],
        payload,
        run=party.run,
        author=author,
        window=window,
        vocabulary=party.loaded.vocabulary,
        tasks=party.tasks,
    )


def training_group(party: Party, checked: CheckedGroup, origin: str) -> TrainingGroup:
    """The trainer's view of a checked group; ``origin`` is ``"own"`` or the author's hex id.

    A peer's group guides where it is known how often own completions are right: of ones observed before.
    """
    prompt = prompt_ids(party.loaded, checked.item)
    to_sequence = _same_tokens if checked.same_tokenizer else _foreign_tokens
    baseline = checked.reward
    return TrainingGroup(
        origin=origin,
        sequences=tuple(
            to_sequence(party, prompt, completion, reward, baseline)
            for completion, reward in zip(checked.group.completions, checked.rewards, strict=True)
        ),
        own_rate=None if origin == OWN else party.trainer.own_rate(checked.group.task),
    )


def _beyond_positions(party: Party, prompt: tuple[int, ...], completion: tuple[int, ...]) -> bool:
    positions = party.loaded.positions
    return positions is not None and len(prompt) + len(completion) > positions


def _same_tokens(
    party: Party, prompt: tuple[int, ...], completion: Completion, reward: float, _baseline: float
) -> TrainingSequence:
    if _beyond_positions(party, prompt, completion.token_ids):
        return TrainingSequence(prompt, (), (), reward, excluded="too_long")
    return TrainingSequence(prompt, completion.token_ids, completion.behavior_logprobs, reward)


def _foreign_tokens(
    party: Party, prompt: tuple[int, ...], completion: Completion, reward: float, baseline: float
) -> TrainingSequence:
    """In own tokens, or without any and with the reason."""
    if party.config.cross_tokenizer == "positives" and reward < baseline:
        return TrainingSequence(prompt, (), (), reward, excluded="foreign_negative")
    loaded = party.loaded
    aligned = align(completion, tokenize=loaded.tokenize, vocabulary=loaded.vocabulary)
    if isinstance(aligned, Unaligned):
        return TrainingSequence(prompt, (), (), reward, excluded=aligned.value)
    if _beyond_positions(party, prompt, aligned.token_ids):
        return TrainingSequence(prompt, (), (), reward, excluded="too_long")
    return TrainingSequence(prompt, aligned.token_ids, aligned.behavior_logprobs, reward, aligned.chunk_ids)


def train(party: Party, groups: Sequence[TrainingGroup]) -> StepReport:
    """One F-TIS step on exactly these groups."""
    report = party.trainer.step(groups)
    if report.stepped:
        party.engine.sync()
    trim_malloc()
    return report
