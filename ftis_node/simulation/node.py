"""One simulated party: it generates, publishes, and trains on own and others' groups."""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ftis_node.agreement import agreement_of_round
from ftis_node.errors import ConfigError, RolloutError
from ftis_node.held_out import is_measured
from ftis_node.identity import Identity
from ftis_node.inbox.content import CheckedGroup
from ftis_node.inbox.verify import Rejected
from ftis_node.manifest import Run
from ftis_node.round import (
    OWN,
    Party,
    build_party,
    check,
    derived_seed,
    free_slots,
    generate,
    train,
    training_group,
)
from ftis_node.round_report import RoundClock, count_by_author
from ftis_node.simulation.harm import Adversary
from ftis_node.simulation.mailbox import PeerGroup
from ftis_node.simulation.specification import SimulatedParty
from ftis_node.store.authors import KEPT_AUTHOR_ROUNDS, Measurement, measurements_of
from ftis_node.tasks.task import Task
from ftis_node.training.collate import TrainingGroup, TrainingSequence
from ftis_node.training.step import StepReport
from ftis_node.types import PeerId, RolloutPayload
from ftis_node.usefulness import weight_factors
from ftis_node.wire.codec import decode_payload, encode_batch, sign_batch, split_payload

GENERATIONS_IN_VAIN = 3
MOST_SEEDS = 2**62
"""As in ``training.seed``."""


def seed_of(seed: int, party: str) -> int:
    """A party's own seed, the same in every simulation with a party of this name."""
    return derived_seed(seed, zlib.crc32(party.encode())) % MOST_SEEDS


def identity_of(seed: int, party: str) -> Identity:
    """Likewise its identity, on which its prompts depend."""
    return Identity.from_seed(b"".join(derived_seed(seed_of(seed, party), i).to_bytes(8, "big") for i in range(4)))


@dataclass
class Published:
    """How far a party is with its prompts and batches: part of a checkpoint."""

    sequence: int = 0
    window: int = -1
    next_slot: int = 0


@dataclass(frozen=True)
class OwnGroup:
    """An own group as it came out of the codec."""

    checked: CheckedGroup
    training: TrainingGroup


class SimulatedNode:
    """``prompts_of`` names whose prompt assignment this party follows: its own, or one that all have in common."""

    def __init__(
        self, spec: SimulatedParty, run: Run, *, seed: int, tasks: Mapping[str, Task], common_prompts: PeerId | None
    ) -> None:
        self.spec = spec
        self.seed = seed_of(seed, spec.name)
        self.identity = identity_of(seed, spec.name)
        self.party: Party = build_party(run, spec.node, seed=self.seed, tasks=tasks)
        self.prompts_of = common_prompts or self.identity.peer_id
        self.published = Published()
        self.measurements: list[Measurement] = []
        loaded = self.party.loaded
        self._adversary = spec.harm and Adversary(
            harm=spec.harm,
            share=spec.harm_share,
            claim=spec.harm_logprob,
            vocabulary=loaded.vocabulary,
            tokenize=loaded.tokenize,
            tasks=tasks,
            most_tokens=run.manifest.limits.completion_tokens,
        )

    @property
    def peer_id(self) -> PeerId:
        return self.identity.peer_id

    # --- own groups -------------------------------------------------------------------------

    def sample(
        self, count: int, *, round_number: int, now_ms: int, epoch: int, clock: RoundClock
    ) -> tuple[list[OwnGroup], list[bytes]]:
        """``count`` own groups, and the signed batches that others get.

        Raises ConfigError when the window has no prompts left, RolloutError when nothing usable is sampled.
        """
        own: list[OwnGroup] = []
        batches: list[bytes] = []
        vain = 0
        while len(own) < count:
            payload, window = self._generate(count - len(own), round_number, now_ms, clock)
            own_parts = [part for part, _ in split_payload(payload)]
            with clock.phase("checking"):
                fresh = [group for part in own_parts for group in self._read(decode_payload(part), window)]
            with clock.phase("exchanging"):
                sent = self._to_send(payload, fresh)
                spoiled = self._spoiled(sent, window, round_number)
                parts = own_parts if spoiled is payload else [part for part, _ in split_payload(spoiled)]
                batches += [self._sign(part, now_ms=now_ms, epoch=epoch) for part in parts]
            own += fresh
            for group in fresh:
                self.party.trainer.observe_own(group.checked.group.task, group.checked.reward)
            vain = 0 if fresh else vain + 1
            if vain == GENERATIONS_IN_VAIN:
                raise RolloutError(
                    f"party {self.spec.name!r}: {vain} generations in a row gave nothing usable in round"
                    f" {round_number}: are all prompts too long for its model, or its weights damaged?"
                )
        return own, batches

    def _generate(self, count: int, round_number: int, now_ms: int, clock: RoundClock) -> tuple[RolloutPayload, int]:
        run = self.party.run
        window = run.window(now_ms)
        if window != self.published.window:
            self.published.window, self.published.next_slot = window, 0
        first = self.published.next_slot
        slots = free_slots(self.party, self.prompts_of, window, first=first, count=count)
        if not slots:
            raise ConfigError(
                f"run.assignment.quota = {run.manifest.assignment.quota}: party {self.spec.name!r} has used up its"
                f" prompts of the window in round {round_number}; raise it, or what a round takes of the simulated time"
            )
        with clock.phase("generating"):
            seed = derived_seed(self.seed, round_number, window, first)
            payload, stats = generate(self.party, self.prompts_of, window, slots, seed=seed)
        self.published.next_slot = slots[-1] + 1
        clock.generation.append(stats)
        clock.generated_sequences += sum(len(group.completions) for group in payload.groups)
        return payload, window

    def _to_send(self, payload: RolloutPayload, groups: Sequence[OwnGroup]) -> RolloutPayload:
        """What of a payload others get, of which ``groups`` were read: nobody learns from what is wrong throughout."""
        if self.party.config.training.places == "any":
            return payload
        in_vain = {own.checked.group.slot for own in groups if not any(own.checked.rewards)}
        return replace(payload, groups=tuple(group for group in payload.groups if group.slot not in in_vain))

    def _spoiled(self, payload: RolloutPayload, window: int, round_number: int) -> RolloutPayload:
        """What is published: of a hostile party something else than it trains on itself."""
        if not self._adversary:
            return payload
        run, tasks = self.party.run, self.party.tasks
        items = [
            tasks[group.task].item(run.assigned_index(self.prompts_of, window, group.slot)) for group in payload.groups
        ]
        first = payload.groups[0].slot if payload.groups else 0
        rng = random.Random(derived_seed(self.seed, round_number, window, first, 1))
        return self._adversary.spoil(payload, items, rng)

    def _sign(self, part: bytes, *, now_ms: int, epoch: int) -> bytes:
        sequence, self.published.sequence = self.published.sequence, self.published.sequence + 1
        batch = sign_batch(
            part, identity=self.identity, run_id=self.party.run.run_id, epoch=epoch, sequence=sequence,
            created_at_ms=now_ms,
        )  # fmt: skip
        return encode_batch(batch)

    def _read(self, payload: RolloutPayload, window: int) -> list[OwnGroup]:
        """As the daemon does: own groups are used as they come out of the codec."""
        groups = []
        for index in range(len(payload.groups)):
            checked = check(self.party, self.prompts_of, window, payload, index)
            if not isinstance(checked, Rejected):
                groups.append(OwnGroup(checked, training_group(self.party, checked, OWN)))
        return groups

    # --- the step ---------------------------------------------------------------------------

    def agreements(self, groups: Sequence[TrainingGroup], round_number: int, clock: RoundClock) -> dict[bytes, float]:
        """In some rounds, as the daemon measures whose samples help; by peer id and ``store.authors``."""
        training = self.party.config.training
        if not is_measured(round_number, training.agreement_every, seed=self.seed):
            return {}
        with clock.phase("measuring"):
            return agreement_of_round(self.party, groups, round_number=round_number, seed=self.seed)

    def weights(self) -> dict[str, float]:
        """What peers' samples weigh by what was measured so far; by hex id, empty where all weigh alike."""
        if self.party.config.training.peer_weighting == "uniform":
            return {}
        return weight_factors(self.measurements)

    def remember(self, step: StepReport, agreements: Mapping[bytes, float], round_number: int) -> None:
        """What a daemon keeps in its store."""
        self.measurements += measurements_of(count_by_author(step, agreements), round_number)
        oldest = round_number - KEPT_AUTHOR_ROUNDS
        self.measurements = [measured for measured in self.measurements if measured.round > oldest]

    def step(self, groups: Sequence[TrainingGroup], clock: RoundClock) -> StepReport:
        with clock.phase("training"):
            return train(self.party, groups)

    def as_training(self, group: PeerGroup) -> TrainingGroup:
        return training_group(self.party, group.checked, group.author.hex())


def merged_by_prompt(
    own: Sequence[OwnGroup], peers: Sequence[tuple[PeerGroup, TrainingGroup]]
) -> list[tuple[TrainingGroup, tuple[str, ...]]]:
    """Horizontal collaboration: one group per prompt, with the origin of each of its sequences.

    To the trainer the group is an own one: that every party samples every prompt is what horizontal means.
    """
    merged: dict[tuple[str, int], tuple[list[TrainingSequence], list[str]]] = {}
    for checked, training in (
        *((group.checked, group.training) for group in own),
        *((group.checked, training) for group, training in peers),
    ):
        sequences, origins = merged.setdefault((checked.group.task, checked.group.slot), ([], []))
        sequences += training.sequences
        origins += [training.origin] * len(training.sequences)
    return [(TrainingGroup(OWN, tuple(sequences)), tuple(origins)) for sequences, origins in merged.values()]
