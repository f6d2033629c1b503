"""One party that goes at its own pace: what it has done of the round under way, and what came meanwhile."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pydantic import BaseModel, ConfigDict

from ftis_node.filling import Filling, Places
from ftis_node.inbox.content import CheckedGroup
from ftis_node.manifest import Run
from ftis_node.rollout.engine import GenerationStats
from ftis_node.round_report import RoundClock
from ftis_node.simulation.figures import EvaluationLine, Reasons
from ftis_node.simulation.mailbox import Arrivals, Mailbox, MailboxState
from ftis_node.simulation.node import OwnGroup, Published, SimulatedNode
from ftis_node.simulation.specification import SimulatedParty
from ftis_node.store.authors import Measurement
from ftis_node.tasks.task import Task
from ftis_node.types import RolloutPayload
from ftis_node.wire.codec import decode_payload, encode_payload


class PacedNode(SimulatedNode):
    """Keeps what it sampled for the round under way, and sends what a daemon does."""

    def __init__(self, spec: SimulatedParty, run: Run, *, seed: int, tasks: Mapping[str, Task]) -> None:
        super().__init__(spec, run, seed=seed, tasks=tasks, common_prompts=None)
        self.sampled: list[tuple[RolloutPayload, int]] = []
        """Payloads of the round under way as they came out of the codec, with their windows."""

    def takes_place(self, group: CheckedGroup) -> bool:
        """In a step of this party."""
        return group.spread > 0 or self.party.config.training.places == "any"

    def _to_send(self, payload: RolloutPayload, groups: Sequence[OwnGroup]) -> RolloutPayload:
        if self.party.config.training.places == "any":
            return payload
        in_vain = {own.checked.group.slot for own in groups if not any(own.checked.rewards)}
        return replace(payload, groups=tuple(group for group in payload.groups if group.slot not in in_vain))

    def _read(self, payload: RolloutPayload, window: int) -> list[OwnGroup]:
        self.sampled.append((payload, window))
        return super()._read(payload, window)

    def read_again(self, sampled: Sequence[tuple[RolloutPayload, int]]) -> list[OwnGroup]:
        """After a resume."""
        self.sampled = []
        return [group for payload, window in sampled for group in self._read(payload, window)]


class _State(BaseModel):
    model_config = ConfigDict(extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")


class PacedLetter(_State):
    """A signed batch on its way to one party. ``arrives_at``: simulated seconds."""

    arrives_at: float
    data: bytes


class Sampled(_State):
    """A payload of the round under way."""

    data: bytes
    window: int


class Generated(_State):
    """``GenerationStats`` of the round under way, without what is a time."""

    tokens: int
    mean_rows: float


class ArrivalsState(_State):
    accepted_sequences: int
    rejected_batches: Reasons
    rejected_groups: Reasons
    unusable_groups: Reasons


class PacerState(_State):
    """What a party remembers beside its weights."""

    time: float
    round: int
    own_tokens: int
    done: bool
    published: Published
    mailbox: MailboxState
    measurements: list[Measurement]
    letters: list[PacedLetter]
    sampled: list[Sampled]
    generated: list[Generated]
    generated_sequences: int
    arrivals: ArrivalsState
    evaluations: int
    found: list[EvaluationLine]
    found_at_an_end: bool


class Pacer:
    """``time`` is how far it has come, in simulated seconds; ``round`` counts its whole rounds.

    ``evaluations`` is how many are done, and ``found`` what the last of them came to if no step was taken since.
    """

    def __init__(self, node: PacedNode, mailbox: Mailbox, places: Places) -> None:
        self.node = node
        self.mailbox = mailbox
        self.places = places
        self.time = 0.0
        self.round = 0
        self.own_tokens = 0
        self.done = False
        self.letters: list[PacedLetter] = []
        self.own: list[OwnGroup] = []
        self.clock = RoundClock()
        self.arrivals = Arrivals()
        self.evaluations = 0
        self.found: list[EvaluationLine] = []
        self.found_at_an_end = False

    @property
    def filling(self) -> Filling:
        return Filling(sampled=len(self.own), own=len(self.placed))

    @property
    def placed(self) -> list[OwnGroup]:
        """Own groups that take a place in the step."""
        return [own for own in self.own if self.node.takes_place(own.checked)]

    @property
    def reads(self) -> bool:
        """Whether its steps have room for others at all."""
        return self.places.own_groups < self.places.groups_per_step

    def look(self, at_ms: int, epoch_ms: int, max_age_ms: int) -> None:
        """Open what has arrived; it is judged by the time of its arrival, however busy this party was."""
        due = sorted((letter for letter in self.letters if letter.arrives_at <= self.time), key=_arrival)
        self.letters = [letter for letter in self.letters if letter.arrives_at > self.time]
        for letter in due:
            now_ms = epoch_ms + int(letter.arrives_at * 1000)
            with self.clock.phase("exchanging"):
                accepted = self.mailbox.verify(letter.data, now_ms=now_ms, arrivals=self.arrivals)
            if accepted is not None:
                with self.clock.phase("checking"):
                    self.mailbox.check(
                        accepted, letter.data, now_ms=now_ms, round_number=self.round + 1, arrivals=self.arrivals
                    )
        self.mailbox.forget(round_number=self.round + 1, created_since_ms=at_ms - max_age_ms)

    def begin_round(self) -> None:
        self.round += 1
        self.own, self.node.sampled = [], []
        self.clock, self.arrivals = RoundClock(), Arrivals()

    # --- checkpoint -------------------------------------------------------------------------

    def state(self) -> PacerState:
        return PacerState(
            time=self.time,
            round=self.round,
            own_tokens=self.own_tokens,
            done=self.done,
            published=self.node.published,
            mailbox=self.mailbox.state(),
            measurements=self.node.measurements,
            letters=self.letters,
            sampled=[Sampled(data=encode_payload(payload), window=window) for payload, window in self.node.sampled],
            generated=[Generated(tokens=s.tokens, mean_rows=s.mean_rows) for s in self.clock.generation],
            generated_sequences=self.clock.generated_sequences,
            arrivals=_arrivals_state(self.arrivals),
            evaluations=self.evaluations,
            found=self.found,
            found_at_an_end=self.found_at_an_end,
        )

    def restore(self, state: PacerState) -> None:
        """Raises CheckpointError, WireError."""
        self.time, self.round, self.own_tokens, self.done = state.time, state.round, state.own_tokens, state.done
        self.node.published, self.node.measurements = state.published, list(state.measurements)
        self.mailbox.restore(state.mailbox)
        self.letters = list(state.letters)
        self.own = self.node.read_again([(decode_payload(part.data), part.window) for part in state.sampled])
        self.clock = RoundClock()
        self.clock.generation = [GenerationStats(part.tokens, 0.0, part.mean_rows) for part in state.generated]
        self.clock.generated_sequences = state.generated_sequences
        self.arrivals = Arrivals(
            state.arrivals.accepted_sequences,
            *(
                _counters(reasons)
                for reasons in (
                    state.arrivals.rejected_batches, state.arrivals.rejected_groups, state.arrivals.unusable_groups
                )
            ),
        )  # fmt: skip
        self.evaluations, self.found = state.evaluations, list(state.found)
        self.found_at_an_end = state.found_at_an_end


def _arrival(letter: PacedLetter) -> float:
    return letter.arrives_at


def _arrivals_state(arrivals: Arrivals) -> ArrivalsState:
    return ArrivalsState(
        accepted_sequences=arrivals.accepted_sequences,
        rejected_batches={author: dict(counts) for author, counts in arrivals.rejected_batches.items()},
        rejected_groups={author: dict(counts) for author, counts in arrivals.rejected_groups.items()},
        unusable_groups={author: dict(counts) for author, counts in arrivals.unusable_groups.items()},
    )


def _counters(reasons: Reasons) -> defaultdict[str, Counter[str]]:
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    found.update((author, Counter(counts)) for author, counts in reasons.items())
    return found
