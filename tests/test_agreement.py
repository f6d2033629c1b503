"""Whose samples point where own held-out prompts do: with real models, rewards right and turned round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from ftis_node.agreement import MEASURED_AUTHORS, measure_agreement, sample_held_out
from ftis_node.config import ModelConfig, NodeConfig, TrainingConfig
from ftis_node.inbox.content import CheckedGroup
from ftis_node.round import OWN, Party, build_party, check, free_slots, generate, training_group
from ftis_node.store import authors
from ftis_node.training.collate import TrainingGroup
from ftis_node.types import PeerId
from tests.builders import make_run

RUN = make_run(group_size=8)
ME, OTHER = PeerId(b"m" * 32), PeerId(b"o" * 32)
HONEST, MALLORY = "aa" * 32, "bb" * 32


@pytest.fixture(scope="module")
def party() -> Party:
    config = NodeConfig(model=ModelConfig(name="builtin:small"), training=TrainingConfig(learning_rate=3e-4))
    return build_party(RUN, config, seed=1)


def sampled(party: Party, author: PeerId, count: int, *, origin: str, first: int = 0) -> list[TrainingGroup]:
    payload, _ = generate(party, author, 5, range(first, first + count), seed=first)
    checked = [check(party, author, 5, payload, index) for index in range(len(payload.groups))]
    return [training_group(party, c, origin) for c in checked if isinstance(c, CheckedGroup)]


def turned_round(group: TrainingGroup) -> TrainingGroup:
    """Mallory's samples have the rewards of the opposite: following them unlearns the task."""
    return replace(group, origin=MALLORY, sequences=tuple(replace(s, reward=1 - s.reward) for s in group.sequences))


def test_honest_samples_agree_and_mallorys_do_not(party: Party) -> None:
    held_out = sample_held_out(party, 24, nonce=1, seed=1)
    peers = sampled(party, OTHER, 24, origin=HONEST)
    groups = [*sampled(party, ME, 24, origin=OWN), *peers[:12], *map(turned_round, peers[12:])]
    before = [p.clone() for p in party.loaded.model.parameters()]
    found = measure_agreement(party, held_out, groups)
    assert found[authors.OWN] > 0.05
    assert found[bytes.fromhex(HONEST)] > 0.05
    assert found[bytes.fromhex(MALLORY)] < -0.05
    assert found[bytes.fromhex(MALLORY)] < found[authors.PEERS] < found[bytes.fromhex(HONEST)]
    unchanged = zip(before, party.loaded.model.parameters(), strict=True)
    assert all(torch.equal(old, new) for old, new in unchanged)
    assert all(p.grad is None for p in party.loaded.model.parameters())


def test_groups_without_a_gradient_say_nothing(party: Party) -> None:
    held_out = sample_held_out(party, 8, nonce=1, seed=1)
    peers = sampled(party, OTHER, 8, origin=HONEST)
    alike = [replace(g, sequences=tuple(replace(s, reward=1.0) for s in g.sequences)) for g in peers]
    assert measure_agreement(party, held_out, alike) == {}
    assert measure_agreement(party, [], peers) == {}
    assert measure_agreement(party, alike, peers) == {}


def test_mallory_s_gradient_that_is_no_number_takes_nobody_else_s_number_away(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_out = sample_held_out(party, 24, nonce=1, seed=1)
    peers = sampled(party, OTHER, 24, origin=HONEST)
    honest = party.trainer.gradient_sketch

    def overflowing(groups: Sequence[TrainingGroup]) -> torch.Tensor | None:
        gradient = honest(groups)
        return gradient * float("inf") if gradient is not None and groups[0].origin == MALLORY else gradient

    monkeypatch.setattr(party.trainer, "gradient_sketch", overflowing)
    found = measure_agreement(party, held_out, [*peers[:12], *map(turned_round, peers[12:])])
    assert set(found) == {bytes.fromhex(HONEST), authors.PEERS}
    assert found[authors.PEERS] == pytest.approx(found[bytes.fromhex(HONEST)], abs=1e-5)


def test_the_number_of_measured_authors_is_bounded(party: Party) -> None:
    held_out = sample_held_out(party, 16, nonce=1, seed=1)
    mixed = next(g for g in sampled(party, OTHER, 24, origin=OWN) if len({s.reward for s in g.sequences}) > 1)
    swarm = [replace(mixed, origin=f"{number:064x}") for number in range(MEASURED_AUTHORS + 9)]
    found = measure_agreement(party, held_out, [*swarm, *[replace(mixed, origin=HONEST)] * 2, mixed])
    assert {authors.OWN, authors.PEERS, bytes.fromhex(HONEST)} <= set(found)
    assert len(found) == MEASURED_AUTHORS + 2


def test_own_prompts_are_never_held_out_ones(party: Party) -> None:
    slots = free_slots(party, ME, 7, first=0, count=1000)
    task = party.tasks["addition"]
    left_out = set(range(slots[-1])) - set(slots)
    assert len(slots) == 1000
    assert left_out
    for slot in left_out:
        item = task.item(RUN.assigned_index(ME, 7, slot))
        assert party.held_out.contains(task.name, task.size, item.prompt)
    assert free_slots(party, ME, 7, first=4096, count=3) == []
