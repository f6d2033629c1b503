"""Do these samples help? The gradient from each author's groups beside the gradient on own held-out prompts.

In one of ``training.agreement_every`` rounds the node samples completions for prompts it never trains on, and takes
the gradient of the objective on them: the direction in which its own model gets better at the task. An author whose
samples point the same way helps. One measurement is mostly noise; ``status.agreement`` puts an interval around many.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from torch import Tensor

from ftis_node.round import FEWEST_HELD_OUT, OWN, Party, derived_seed, fits, group_size, prompt_ids
from ftis_node.store import authors
from ftis_node.tasks.task import Task
from ftis_node.training.collate import TrainingGroup, TrainingSequence
from ftis_node.training.sketch import cosine

MEASURED_AUTHORS = 16
"""At most, those with the most groups in the step."""


def agreement_of_round(
    party: Party, groups: Sequence[TrainingGroup], *, round_number: int, seed: int
) -> dict[bytes, float]:
    """Sample held-out prompts and measure; ``seed`` is the party's."""
    count = max(FEWEST_HELD_OUT, party.config.training.own_groups)
    held_out = sample_held_out(party, count, nonce=round_number, seed=derived_seed(seed, round_number))
    return measure_agreement(party, held_out, groups)


def measure_agreement(
    party: Party, held_out: Sequence[TrainingGroup], groups: Sequence[TrainingGroup]
) -> dict[bytes, float]:
    """The cosine for each author in a step, for own groups (``authors.OWN``) and all peers' ones (``authors.PEERS``).

    Takes no step. An author whose groups have no gradient is left out; all are when the held-out ones have none. An
    author is measured as if its groups weighed 1, so that who weighs nothing can get better; in the sum over all peers
    they weigh what they do in the step.
    """
    direction = party.trainer.gradient_sketch(held_out) if held_out else None
    if direction is None:
        return {}
    by_author: defaultdict[str, list[TrainingGroup]] = defaultdict(list)
    for group in groups:
        by_author[group.origin].append(group)
    most = sorted(by_author, key=lambda origin: (origin != OWN, -len(by_author[origin])))[: MEASURED_AUTHORS + 1]
    agreements: dict[bytes, float] = {}
    of_peers: Tensor | None = None
    for origin in most:
        gradient = party.trainer.gradient_sketch([replace(group, weight=1.0) for group in by_author[origin]])
        value = None if gradient is None else cosine(direction, gradient)
        if gradient is None or value is None:  # nor does it make a number of all peers' that is none
            continue
        agreements[authors.OWN if origin == OWN else bytes.fromhex(origin)] = value
        if origin != OWN:
            # A gradient is a mean over its groups: back to the sum, in which every group counts by its weight.
            weighted = gradient * sum(group.weight for group in by_author[origin])
            of_peers = weighted if of_peers is None else of_peers + weighted
    value = None if of_peers is None else cosine(direction, of_peers)
    if value is not None:
        agreements[authors.PEERS] = value
    return agreements


def _prompt(task: Task, index: int) -> str:
    return task.item(index).prompt


def sample_held_out(party: Party, count: int, *, nonce: int, seed: int) -> list[TrainingGroup]:
    """Groups of own completions for ``count`` held-out prompts; fewer, or none, where the tasks have no more."""
    per_task = -(-count // len(party.tasks))
    items = []
    for name, task in party.tasks.items():
        prompt_of = functools.partial(_prompt, task)
        drawn = (task.item(index) for index in party.held_out.draw(name, task.size, prompt_of, nonce=nonce))
        usable = (item for item in drawn if fits(party, prompt_ids(party.loaded, item)))
        items += [(task, item) for item in islice(usable, per_task)]
    if not items:
        return []
    manifest = party.run.manifest
    prompts = [prompt_ids(party.loaded, item) for _, item in items]
    rollouts = party.engine.generate(
        prompts,
        count=group_size(party.run, party.config),
        sampling=manifest.sampling.params(),
        max_tokens=manifest.limits.completion_tokens,
        seed=seed,
        stops=[item.stop for _, item in items],
    )
    return [
        TrainingGroup(
            OWN,
            tuple(
                TrainingSequence(
                    prompt, c.token_ids, c.behavior_logprobs, task.reward(item, c.text.decode("utf-8", "replace"))
                )
                for c in completions
                if c.token_ids
            ),
        )
        for (task, item), prompt, completions in zip(items, prompts, rollouts.completions, strict=True)
    ]
