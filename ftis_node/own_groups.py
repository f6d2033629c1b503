"""Own groups of a round: sampled here, put out for peers, and used as peers get them.

What can't teach anybody, because every completion is wrong, stays here: it is kept for a resume, and not sent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from ftis_node.clock import now_ms
from ftis_node.errors import RolloutError
from ftis_node.inbox.content import CheckedGroup
from ftis_node.inbox.verify import Rejected
from ftis_node.round import OWN, Party, check, derived_seed, free_slots, generate, training_group
from ftis_node.round_report import RoundClock
from ftis_node.store.learner import LearnerStore
from ftis_node.training.collate import TrainingGroup
from ftis_node.types import Group, PeerId, RolloutPayload
from ftis_node.wire.codec import decode_payload, split_payload

log = logging.getLogger(__name__)

GENERATIONS_IN_VAIN = 3

Tell = Callable[[str, int | None], None]
"""What the learner does or waits for, and until when at most (ms)."""


class OwnGroups:
    """One per learner. ``seed`` is the home's."""

    def __init__(self, store: LearnerStore, party: Party, peer_id: PeerId, *, seed: int, tell: Tell) -> None:
        self._store = store
        self._party = party
        self._peer_id = peer_id
        self._seed = seed
        self._tell = tell
        self._round = 0
        self._vain = 0
        self._waited_for = -1
        self._groups: dict[tuple[int, int], TrainingGroup] = {}

    def begin(self, round_number: int) -> None:
        """A new round, with the groups that were sampled for it before a crash."""
        self._round, self._vain = round_number, 0
        self._groups = {}
        for entry in self._store.own_payloads(round_number):
            self._take(decode_payload(entry.payload), entry.window)

    @property
    def sampled(self) -> list[TrainingGroup]:
        """All of this round, by window and slot."""
        return [group for _, group in sorted(self._groups.items(), key=lambda item: item[0])]

    def sample(self, count: int, clock: RoundClock) -> bool:
        """Groups for the next ``count`` free slots of the current window, if it has so many; False: it has none.

        Raises RolloutError when generations give no group time and again.
        """
        created_at_ms = now_ms()
        window = self._party.run.window(created_at_ms)
        first = self._store.next_slot(window)
        slots = free_slots(self._party, self._peer_id, window, first=first, count=count)
        if not slots:
            return False
        before = len(self._groups)
        self._tell(f"generating {len(slots)} groups", None)
        with clock.phase("generating"):
            seed = derived_seed(self._seed, self._round, window, first)
            payload, stats = generate(self._party, self._peer_id, window, slots, seed=seed)
        clock.generation.append(stats)
        clock.generated_sequences += sum(len(group.completions) for group in payload.groups)
        self._put_out(payload, window, created_at_ms=created_at_ms, next_slot=slots[-1] + 1)
        self._vain = self._vain + 1 if len(self._groups) == before else 0
        if self._vain == GENERATIONS_IN_VAIN:
            nothing_sampled = not any(stats.tokens for stats in clock.generation)
            cause = "all prompts are too long for this model" if nothing_sampled else "are its weights damaged?"
            raise RolloutError(f"{self._vain} generations in a row gave no group that can be used: {cause}")
        return True

    def wait_for_prompts(self, clock: RoundClock) -> None:
        """A second at most, or until the next window begins: peers' groups may come meanwhile."""
        window = self._party.run.window(now_ms())
        begins_ms = self._party.run.window_begins_ms(window + 1)
        if window != self._waited_for:
            self._waited_for = window
            self._tell("waiting for new prompts: this window's quota is used up", begins_ms)
            log.info("this window's quota of prompts is used up; waiting %.0f s", (begins_ms - now_ms()) / 1000)
        with clock.phase("waiting"):
            time.sleep(max(0.0, min(1.0, (begins_ms - now_ms()) / 1000)))

    def _put_out(self, payload: RolloutPayload, window: int, *, created_at_ms: int, next_slot: int) -> None:
        """Into the outbox, durably. Used is what comes out of the codec: so all train on the same numbers."""
        sent: list[Group] = []
        kept: list[Group] = []
        for data, _ in split_payload(payload):
            decoded = decode_payload(data)
            for group, checked in zip(decoded.groups, self._take(decoded, window), strict=True):
                (sent if self._is_sent(checked) else kept).append(group)
        self._store.add_outbox(
            list(split_payload(replace(payload, groups=tuple(sent)))),
            kept=list(split_payload(replace(payload, groups=tuple(kept)))),
            round_number=self._round, created_at_ms=created_at_ms, window=window, next_slot=next_slot,
        )  # fmt: skip

    def _is_sent(self, checked: CheckedGroup | Rejected) -> bool:
        if isinstance(checked, Rejected):
            return False
        return any(checked.rewards) or self._party.config.training.places == "any"

    def _take(self, payload: RolloutPayload, window: int) -> list[CheckedGroup | Rejected]:
        """Groups of this round; returns what the check of each says."""
        results = [check(self._party, self._peer_id, window, payload, index) for index in range(len(payload.groups))]
        for group, checked in zip(payload.groups, results, strict=True):
            if isinstance(checked, Rejected):
                log.error("an own group fails the check and is not used: %s", checked.detail)
            else:
                self._groups[window, group.slot] = training_group(self._party, checked, OWN)
        return results
