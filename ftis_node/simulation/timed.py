"""All parties, each at its own pace, on a simulated clock. Nobody waits for anybody:

    whoever is least far acts next: opens what has arrived -> samples on and sends it, or takes its step -> pays

A party's action begins at its own time and is paid for in simulated seconds. What it sends leaves when the sampling is
done, so that all that has arrived at the one that acts was sent by somebody who acted before. Nothing is drawn from
anywhere but the seed; of parties that are equally far the first in the specification's order acts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from pydantic import BaseModel

from ftis_node.filling import next_chunk, places_for_peers
from ftis_node.manifest import Run
from ftis_node.round import OWN
from ftis_node.simulation.engine import Evaluate, Moment
from ftis_node.simulation.figures import EvaluationLine, RoundLine, round_line
from ftis_node.simulation.lockstep import EPOCH, START_MS
from ftis_node.simulation.mailbox import Mailbox, PeerGroup
from ftis_node.simulation.node import identity_of
from ftis_node.simulation.pace import places_of
from ftis_node.simulation.pacer import PacedLetter, PacedNode, Pacer, PacerState
from ftis_node.simulation.specification import SimulationSpec
from ftis_node.tasks.task import Task
from ftis_node.training.collate import TrainingGroup
from ftis_node.usefulness import weighted

Lines = list[RoundLine | EvaluationLine]


class TimedState(BaseModel):
    """For a checkpoint, beside weights and optimizers."""

    round: int
    parties: dict[str, PacerState]


class Timed:
    """The parties of one run. Raises ConfigError, ModelError, TaskError where they can't be built."""

    def __init__(
        self, spec: SimulationSpec, run: Run, tasks: Mapping[str, Task], evaluate: Evaluate, *, seed: int
    ) -> None:
        self._spec = spec
        self._evaluate = evaluate
        self.round = 0
        self._max_age_ms = int(run.manifest.limits.max_age_seconds * 1000)
        self.nodes = tuple(PacedNode(party, run, seed=seed, tasks=tasks) for party in spec.parties)
        prompts_of = {node.peer_id: node.prompts_of for node in self.nodes}
        self._pacers = tuple(
            Pacer(
                node, Mailbox(node.party, prompts_of=prompts_of, scores=spec.scores == "on"), places_of(spec, node.spec)
            )
            for node in self.nodes
        )
        self._names = {identity_of(seed, party.name).peer_id.hex(): party.name for party in spec.parties}

    # --- state ------------------------------------------------------------------------------

    def dump(self) -> str:
        parties = {pacer.node.spec.name: pacer.state() for pacer in self._pacers}
        return TimedState(round=self.round, parties=parties).model_dump_json()

    def load(self, text: str) -> None:
        """Raises CheckpointError, ValueError, WireError."""
        state = TimedState.model_validate_json(text)
        self.round = state.round
        for pacer in self._pacers:
            pacer.restore(state.parties[pacer.node.spec.name])

    @property
    def done(self) -> bool:
        return all(pacer.done for pacer in self._pacers)

    @property
    def most_rounds(self) -> int:
        return max(pacer.round for pacer in self._pacers)

    @property
    def progress(self) -> int:
        return int(self._spec.rounds * min(map(self._share_done, self._pacers)))

    def _share_done(self, pacer: Pacer) -> float:
        if pacer.done:
            return 1.0
        of_time = pacer.time / self._spec.seconds if self._spec.seconds else 0.0
        return max(of_time, pacer.round / self._spec.rounds)

    # --- events -----------------------------------------------------------------------------

    def advance(self) -> Lines:
        """As many rounds as there are parties, whoever takes them; a line for each, and for each evaluation."""
        self.round += 1
        lines: Lines = []
        while not self.done and sum(isinstance(line, RoundLine) for line in lines) < len(self._pacers):
            lines += self._act(min((pacer for pacer in self._pacers if not pacer.done), key=_time))
        return lines

    def _act(self, pacer: Pacer) -> Lines:
        """One piece of sampling, or a step; the evaluations that are due before it ends come first."""
        now_ms = START_MS + int(pacer.time * 1000)
        room = places_for_peers(pacer.filling, pacer.places)
        peers: list[PeerGroup] = []
        if pacer.reads:
            pacer.look(now_ms, START_MS, self._max_age_ms)
            peers = pacer.mailbox.offered(room, pacer.round + 1, pacer.node.takes_place)
        count = next_chunk(pacer.filling, len(peers), pacer.places)
        costs, size = pacer.node.spec.costs, self._spec.run.group_size
        if count:
            end = pacer.time + count * size * costs.generation
        else:
            end = pacer.time + _trained(pacer, peers) * costs.training
        if self._spec.seconds is not None and end > self._spec.seconds:
            return self._finish(pacer)
        lines = self._evaluations(pacer, before=end)
        if count:
            self._sample(pacer, count, now_ms=now_ms, end=end)
            return lines
        lines.append(self._step(pacer, room, end=end))
        every = 0 if self._spec.eval_seconds is not None else self._spec.eval_every
        if pacer.round == self._spec.rounds:
            lines += self._finish(pacer)
        elif every and pacer.round % every == 0:
            lines += self._evaluated(pacer, pacer.time, at_an_end=False)
        return lines

    def _sample(self, pacer: Pacer, count: int, *, now_ms: int, end: float) -> None:
        before = sum(stats.tokens for stats in pacer.clock.generation)
        own, batches = pacer.node.sample(
            count, round_number=pacer.round + 1, now_ms=now_ms, epoch=EPOCH, clock=pacer.clock
        )
        pacer.own += own
        pacer.own_tokens += sum(stats.tokens for stats in pacer.clock.generation) - before
        pacer.time = end
        if self._spec.collaboration == "alone":
            return
        letters = [PacedLetter(arrives_at=end + self._spec.latency_seconds, data=data) for data in batches]
        for other in self._pacers:
            if other is not pacer and other.reads and not other.done:
                other.letters += letters

    def _step(self, pacer: Pacer, room: int, *, end: float) -> RoundLine:
        node, number = pacer.node, pacer.round + 1
        with pacer.clock.phase("checking"):
            chosen = pacer.mailbox.choose(room, number, node.takes_place) if pacer.reads else []
            peers = [node.as_training(group) for group in chosen]
        # Where nothing teaches, the step says itself why it is none.
        own = [group.training for group in (pacer.placed or (pacer.own if not peers else []))]
        weights = node.weights()
        groups = weighted([*own, *peers], weights)
        agreements = node.agreements(groups, number, pacer.clock)
        step = node.step(groups, pacer.clock)
        node.remember(step, agreements, number)
        line = round_line(
            number,
            node.spec.name,
            step=step,
            groups=groups,
            origins=[(self._origin(group),) * len(group.sequences) for group in groups],
            own_rewards=[reward for group in pacer.own for reward in group.checked.rewards],
            arrivals=pacer.arrivals,
            agreements=agreements,
            weights=weights,
            names=self._names,
            clock=pacer.clock,
            mismatch_known=True,
        ).model_copy(update={"time": end})
        pacer.time = end
        pacer.begin_round()
        pacer.found = pacer.found if not step.stepped else []
        return line

    def _origin(self, group: TrainingGroup) -> str:
        return OWN if group.origin == OWN else self._names[group.origin]

    # --- evaluations ------------------------------------------------------------------------

    def _evaluations(self, pacer: Pacer, *, before: float) -> Lines:
        """Those that are due before this time, for the weights are still the same."""
        lines: Lines = []
        if pacer.evaluations == 0:
            lines += self._evaluated(pacer, 0.0, at_an_end=True)
        every, end = self._spec.eval_seconds, self._spec.seconds or math.inf
        if every is not None:
            while (at := pacer.evaluations * every) < min(before, end):
                lines += self._evaluated(pacer, at, at_an_end=False)
        return lines

    def _finish(self, pacer: Pacer) -> Lines:
        """Its weights stay as they are until the end of the run."""
        pacer.done = True
        end = pacer.time if self._spec.seconds is None else self._spec.seconds
        return [*self._evaluations(pacer, before=end), *self._evaluated(pacer, end, at_an_end=True)]

    def _evaluated(self, pacer: Pacer, at: float, *, at_an_end: bool) -> Lines:
        pacer.evaluations += 1
        if pacer.node.spec.harm is not None:
            return []
        moment = Moment(pacer.round, at_an_end=at_an_end, time=at, own_tokens=pacer.own_tokens)
        if pacer.found and (pacer.found_at_an_end or not at_an_end):
            known = {"round": pacer.round, "time": at, "own_tokens": pacer.own_tokens, "seconds": 0.0}
            pacer.found = [line.model_copy(update=known) for line in pacer.found]
        else:
            pacer.found, pacer.found_at_an_end = self._evaluate(pacer.node, moment), at_an_end
        return list(pacer.found)


def _trained(pacer: Pacer, peers: list[PeerGroup]) -> int:
    """Sequences that a step now would compute with: a group without advantages costs nothing."""
    groups = (*(own.checked for own in pacer.own), *(peer.checked for peer in peers))
    return sum(len(group.rewards) for group in groups if group.spread > 0)


def _time(pacer: Pacer) -> float:
    return pacer.time
