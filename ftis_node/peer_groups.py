"""Peers' groups from the store to a step: checked once, and chosen under the caps. Only the first round waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from ftis_node.clock import now_ms
from ftis_node.errors import StoreError, WireError
from ftis_node.inbox.content import CheckedGroup
from ftis_node.inbox.selection import Candidate, Source, plenty, select
from ftis_node.inbox.verify import Rejected
from ftis_node.round import Party, check, training_group
from ftis_node.round_report import RoundClock
from ftis_node.store.inbox import GroupVerdict, ReadyGroup, ReceivedRow
from ftis_node.store.learner import LearnerStore
from ftis_node.training.collate import TrainingGroup
from ftis_node.types import BatchName, RolloutPayload
from ftis_node.wire.codec import decode_batch, decode_header, decode_payload

POLL_SECONDS = 0.05
CHECKS_AT_ONCE = 16
READY_LIMIT = 10_000

Tell = Callable[[str, int], None]
"""What the learner waits for, and until when at most (ms)."""


class PeerGroups:
    """One per learner. What a check found is kept until its group is used or too old."""

    def __init__(self, store: LearnerStore, party: Party, tell: Tell) -> None:
        self._store = store
        self._party = party
        self._config = party.config
        self._run = party.run
        self._tell = tell
        self._round = 0
        self._checked: dict[tuple[BatchName, int], CheckedGroup] = {}

    def begin(self, round_number: int) -> None:
        """A new round: what is too old by now is given up."""
        self._round = round_number
        self._expire()

    def await_first(self, clock: RoundClock) -> None:
        """Before the first step: until groups of ``start_peers`` authors are here, or the timeout is over."""
        training = self._config.training
        missing = training.start_peers - self._store.inbox.authors_heard()
        if missing <= 0:
            return
        deadline = time.monotonic() + training.collect_timeout
        self._tell(f"waiting for {missing} peers' groups", now_ms() + int(training.collect_timeout * 1000))
        with clock.phase("waiting"):
            while time.monotonic() < deadline and self._store.inbox.authors_heard() < training.start_peers:
                time.sleep(POLL_SECONDS)

    def collect(self, wanted: int, clock: RoundClock) -> list[ReadyGroup]:
        """Groups for this step out of those that are here now."""
        if wanted <= 0:
            return []
        chosen = self._choose(wanted)
        # Only what this step can use: a node that joins a busy swarm finds thousands of batches.
        while self._worth_checking(wanted, len(chosen)):
            self._check_some(clock)
            chosen = self._choose(wanted)
        return chosen

    def _worth_checking(self, wanted: int, chosen: int) -> bool:
        """Whether batches without a verdict could add to what is chosen, under the caps."""
        if chosen >= wanted:
            return False
        rows = self._store.inbox.unchecked_sources()
        sources = [Source(row.author, row.delivered_by, row.address_range, row.author_groups) for row in rows]
        imagined = plenty(sources, wanted)
        return bool(imagined) and len(self._select([*self._candidates(), *imagined], wanted)) > chosen

    def _check_some(self, clock: RoundClock) -> None:
        """Give the newest batches without a verdict theirs."""
        with clock.phase("scoring"):
            for row in self._store.inbox.unchecked(CHECKS_AT_ONCE):
                self._check_batch(row, clock)

    def _check_batch(self, row: ReceivedRow, clock: RoundClock) -> None:
        self._store.inbox.claim([row.name])
        payload, window, created_at_ms = self._open(row.data)
        verdicts = []
        for index, group in enumerate(payload.groups):
            checked = check(self._party, row.author, window, payload, index)
            if isinstance(checked, Rejected):
                verdict = GroupVerdict(index, 0, "rejected", checked.reason.value, checked.detail)
            elif not checked.same_tokenizer and self._config.cross_tokenizer == "off":
                verdict = GroupVerdict(index, 0, "unusable", "foreign_tokenizer", "the author's tokenizer is another")
            elif self._held_out(group.task, checked.item.prompt):
                verdict = GroupVerdict(index, 0, "unusable", "held_out", "its prompt is held out for measuring here")
            else:
                self._checked[row.name, index] = checked
                clock.received_sequences += len(group.completions)
                verdict = GroupVerdict(
                    index, len(group.completions), "accepted", reward=checked.reward, spread=checked.spread,
                    useful=any(checked.rewards) or self._any_place,
                )  # fmt: skip
            verdicts.append(verdict)
        self._store.inbox.record_check(row, verdicts, round_number=self._round, created_at_ms=created_at_ms)

    @property
    def _any_place(self) -> bool:
        return self._config.training.places == "any"

    def _held_out(self, task: str, prompt: str) -> bool:
        return self._party.held_out.contains(task, self._party.tasks[task].size, prompt)

    def _open(self, data: bytes) -> tuple[RolloutPayload, int, int]:
        """A stored batch: its payload, its assignment window and when it was created (ms)."""
        try:
            batch = decode_batch(data)
            header = decode_header(batch.header)
            return decode_payload(batch.payload), self._run.window(header.created_at_ms), header.created_at_ms
        except WireError as error:  # it was verified before it was stored
            raise StoreError(f"the store holds a batch that can't be decoded: {error}") from error

    def _choose(self, wanted: int) -> list[ReadyGroup]:
        """The most informative of the groups that are here, under the caps."""
        usable = self._usable()
        chosen = self._select(self._candidates(), wanted)
        return [usable[candidate.batch, candidate.group_index] for candidate in chosen]

    def _usable(self) -> dict[tuple[BatchName, int], ReadyGroup]:
        """Checked groups that may take a place; of the batches that a crash made suspect, one at most."""
        ready = [group if group.spread is not None else self._with_rewards(group) for group in self._ready()]
        suspect = next((group.name for group in ready if group.suspect), None)
        return {
            (g.name, g.group_index): g
            for g in ready
            if (g.spread or self._any_place) and (not g.suspect or g.name == suspect)
        }

    def _ready(self) -> list[ReadyGroup]:
        return self._store.inbox.ready(READY_LIMIT)

    def _with_rewards(self, group: ReadyGroup) -> ReadyGroup:
        """One that an earlier version checked, which didn't keep its rewards; they are kept from now on."""
        checked = self._check_again(group)
        reward, spread = (0.0, 0.0) if checked is None else (checked.reward, checked.spread)
        self._store.inbox.note_rewards(group.name, group.group_index, reward=reward, spread=spread)
        return replace(group, reward=reward, spread=spread)

    def _candidates(self) -> list[Candidate]:
        return [
            Candidate(
                batch=group.name,
                group_index=group.group_index,
                author=group.author,
                neighbour=group.delivered_by,
                address_range=group.address_range,
                received_at_ms=group.received_at_ms,
                age=self._round - group.arrived_round,
                author_groups=group.author_groups,
                spread=group.spread or 0.0,
            )
            for group in self._usable().values()
        ]

    def _select(self, candidates: list[Candidate], wanted: int) -> list[Candidate]:
        return select(candidates, wanted, groups_per_step=self._config.training.groups_per_step, caps=self._config.caps)

    def _expire(self) -> None:
        oldest_ms = now_ms() - int(self._run.manifest.limits.max_age_seconds * 1000)
        self._store.inbox.expire(oldest_live_ms=oldest_ms, oldest_round=self._round - self._config.caps.max_age_rounds)
        live = {(group.name, group.group_index) for group in self._ready()}
        self._checked = {key: checked for key, checked in self._checked.items() if key in live}

    def load(self, chosen: list[ReadyGroup]) -> list[tuple[ReadyGroup, TrainingGroup]]:
        """The chosen groups as the trainer takes them; one whose batch expired meanwhile is left out."""
        groups = []
        for ready in chosen:
            checked = self._checked.get((ready.name, ready.group_index)) or self._check_again(ready)
            if checked is not None:
                groups.append((ready, training_group(self._party, checked, ready.author.hex())))
        return groups

    def _check_again(self, ready: ReadyGroup) -> CheckedGroup | None:
        """After a restart the rewards of groups checked before are worked out anew."""
        data = self._store.inbox.load(ready.name)
        if data is None:
            return None
        payload, window, _ = self._open(data)
        checked = check(self._party, ready.author, window, payload, ready.group_index)
        return None if isinstance(checked, Rejected) else checked
