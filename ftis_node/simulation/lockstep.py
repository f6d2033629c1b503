"""All parties, round by round, on a simulated clock:

    everybody samples own groups -> what is due arrives -> everybody chooses, fills up, and takes a step

Nothing is drawn from anywhere but the seed, and nothing is read from the wall clock but the seconds in the reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from ftis_node.filling import Filling, Places, next_chunk, places_for_peers
from ftis_node.manifest import Run
from ftis_node.round import OWN
from ftis_node.round_report import RoundClock
from ftis_node.simulation.figures import RoundLine, round_line
from ftis_node.simulation.mailbox import Arrivals, Mailbox, MailboxState
from ftis_node.simulation.node import OwnGroup, Published, SimulatedNode, identity_of, merged_by_prompt
from ftis_node.simulation.specification import SimulationSpec
from ftis_node.store.authors import Measurement
from ftis_node.tasks.task import Task
from ftis_node.training.collate import TrainingGroup
from ftis_node.types import PeerId
from ftis_node.usefulness import weighted

START_MS = 1_800_000_000_000
"""Of the simulated clock."""

EPOCH = START_MS
COMMON_PROMPTS = PeerId(b"horizontal".ljust(32, b"\0"))
"""Whose prompts everybody is asked with horizontal collaboration."""


class Letter(BaseModel):
    """A signed batch on its way. ``late``: made after its round's batches had been exchanged."""

    model_config = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64")

    author: str
    due_round: int
    late: bool
    data: bytes


class PartyState(BaseModel):
    """What a party remembers beside its weights."""

    published: Published
    mailbox: MailboxState
    measurements: list[Measurement] = []


class LockstepState(BaseModel):
    """What the simulation remembers beside weights and optimizers; for a checkpoint."""

    round: int
    letters: list[Letter]
    parties: dict[str, PartyState]


@dataclass
class _Desk:
    """One party while a round runs."""

    node: SimulatedNode
    mailbox: Mailbox
    clock: RoundClock
    arrivals: Arrivals
    own: list[OwnGroup]


class Lockstep:
    """The parties of one run. Raises ConfigError, ModelError, TaskError where they can't be built."""

    def __init__(self, spec: SimulationSpec, run: Run, tasks: Mapping[str, Task], *, seed: int) -> None:
        self._spec = spec
        self.round = 0
        horizontal = spec.collaboration == "horizontal"
        common = COMMON_PROMPTS if horizontal else None
        self.nodes = tuple(
            SimulatedNode(party, run, seed=seed, tasks=tasks, common_prompts=common) for party in spec.parties
        )
        prompts_of = {node.peer_id: node.prompts_of for node in self.nodes}
        self._mailboxes = {
            node.spec.name: Mailbox(node.party, prompts_of=prompts_of, scores=spec.scores == "on")
            for node in self.nodes
        }
        self._names = {identity_of(seed, party.name).peer_id.hex(): party.name for party in spec.parties}
        self._letters: list[Letter] = []

    # --- state ------------------------------------------------------------------------------

    def state(self) -> LockstepState:
        parties = {
            node.spec.name: PartyState(
                published=node.published,
                mailbox=self._mailboxes[node.spec.name].state(),
                measurements=node.measurements,
            )
            for node in self.nodes
        }
        return LockstepState(round=self.round, letters=self._letters, parties=parties)

    def restore(self, state: LockstepState) -> None:
        """Weights and optimizers are restored apart. Raises CheckpointError."""
        self.round, self._letters = state.round, list(state.letters)
        for node in self.nodes:
            node.published = state.parties[node.spec.name].published
            node.measurements = list(state.parties[node.spec.name].measurements)
            self._mailboxes[node.spec.name].restore(state.parties[node.spec.name].mailbox)

    def dump(self) -> str:
        return self.state().model_dump_json()

    def load(self, text: str) -> None:
        self.restore(LockstepState.model_validate_json(text))

    @property
    def done(self) -> bool:
        return self.round >= self._spec.rounds

    @property
    def most_rounds(self) -> int:
        return self.round

    @property
    def progress(self) -> int:
        return self.round

    # --- one round --------------------------------------------------------------------------

    def advance(self) -> list[RoundLine]:
        """One round of all parties; a line for each."""
        self.round += 1
        desks = [_Desk(node, self._mailboxes[node.spec.name], RoundClock(), Arrivals(), []) for node in self.nodes]
        for desk in desks:
            self._sample(desk, self._own_groups(desk), late=False)
        due = [letter for letter in self._letters if letter.due_round <= self.round]
        self._letters = [letter for letter in self._letters if letter.due_round > self.round]
        for desk in desks:
            if self._reads(desk):
                self._deliver(desk, due)
        return [self._finish(desk) for desk in desks]

    @property
    def _now_ms(self) -> int:
        return START_MS + self.round * self._spec.round_seconds * 1000

    def _own_groups(self, desk: _Desk) -> int:
        training = desk.node.party.config.training
        return training.own_groups if self._spec.collaboration == "vertical" else training.groups_per_step

    def _reads(self, desk: _Desk) -> bool:
        """Whether a step of this party has room for others at all."""
        if self._spec.collaboration == "horizontal":
            return True
        return self._own_groups(desk) < desk.node.party.config.training.groups_per_step

    def _sample(self, desk: _Desk, count: int, *, late: bool) -> None:
        own, batches = desk.node.sample(
            count, round_number=self.round, now_ms=self._now_ms, epoch=EPOCH, clock=desk.clock
        )
        desk.own += own
        if self._spec.collaboration == "alone":
            return
        due = self.round + self._spec.staleness + late
        self._letters += [Letter(author=desk.node.spec.name, due_round=due, late=late, data=data) for data in batches]

    def _deliver(self, desk: _Desk, due: list[Letter]) -> None:
        for letter in due:
            if letter.author == desk.node.spec.name:
                continue
            # What was made first came first. Batches of one exchange come at once: their names decide who goes first.
            now_ms = self._now_ms - letter.late
            with desk.clock.phase("exchanging"):
                accepted = desk.mailbox.verify(letter.data, now_ms=now_ms, arrivals=desk.arrivals)
            if accepted is not None:
                with desk.clock.phase("checking"):
                    desk.mailbox.check(
                        accepted, letter.data, now_ms=now_ms, round_number=self.round, arrivals=desk.arrivals
                    )

    def _finish(self, desk: _Desk) -> RoundLine:
        """Choose, fill up what is missing with own groups as a daemon does, and take the step."""
        horizontal = self._spec.collaboration == "horizontal"
        groups, origins = self._merge(desk) if horizontal else self._fill(desk)
        node = desk.node
        weights = node.weights()
        groups = weighted(groups, weights)
        agreements = node.agreements(groups, self.round, desk.clock)
        step = node.step(groups, desk.clock)
        node.remember(step, agreements, self.round)
        desk.mailbox.forget(round_number=self.round + 1)
        return round_line(
            self.round,
            node.spec.name,
            step=step,
            groups=groups,
            origins=origins,
            own_rewards=[reward for group in desk.own for reward in group.checked.rewards],
            arrivals=desk.arrivals,
            agreements=agreements,
            weights=weights,
            names=self._names,
            clock=desk.clock,
            mismatch_known=not horizontal,
        )

    def _fill(self, desk: _Desk) -> tuple[list[TrainingGroup], list[tuple[str, ...]]]:
        places = Places(desk.node.party.config.training.groups_per_step, self._own_groups(desk))
        with desk.clock.phase("checking"):
            room = places_for_peers(self._filling(desk), places)
            peers = [desk.node.as_training(group) for group in desk.mailbox.choose(room, self.round)] if room else []
        while count := next_chunk(self._filling(desk), len(peers), places):
            self._sample(desk, count, late=True)
        # Where nothing teaches, the step says itself why it is none.
        own = self._placed(desk) if peers else self._placed(desk) or desk.own
        groups = [*(group.training for group in own), *peers]
        return groups, [(self._origin(group.origin),) * len(group.sequences) for group in groups]

    def _filling(self, desk: _Desk) -> Filling:
        return Filling(sampled=len(desk.own), own=len(self._placed(desk)))

    def _placed(self, desk: _Desk) -> list[OwnGroup]:
        """Own groups that take a place in the step."""
        any_place = desk.node.party.config.training.places == "any"
        return [own for own in desk.own if any_place or own.checked.spread]

    def _merge(self, desk: _Desk) -> tuple[list[TrainingGroup], list[tuple[str, ...]]]:
        with desk.clock.phase("checking"):
            peers = [(group, desk.node.as_training(group)) for group in desk.mailbox.take_all()]
        merged = merged_by_prompt(desk.own, peers)
        return [group for group, _ in merged], [tuple(map(self._origin, origins)) for _, origins in merged]

    def _origin(self, origin: str) -> str:
        return origin if origin == OWN else self._names[origin]
