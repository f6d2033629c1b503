"""What the others' batches come to at one party: verified, checked, kept until used, chosen under the caps.

It does what ``exchange``, ``peer_groups`` and the store do for a daemon, with the same functions and a given time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict

from ftis_node.errors import CheckpointError
from ftis_node.inbox.content import CheckedGroup
from ftis_node.inbox.selection import Candidate, select
from ftis_node.inbox.verify import Accepted, Blame, Known, Rejected, open_batch, verify
from ftis_node.round import Party, check
from ftis_node.swarm.peers import BAN_MS, Score, charged, must_be_banned, rewarded
from ftis_node.types import BatchName, LocalProfile, PeerId
from ftis_node.wire.codec import decode_payload


class _State(BaseModel):
    model_config = ConfigDict(extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")


class KeptBatch(_State):
    """A batch with groups that are not used yet, as it came."""

    data: bytes
    created_at_ms: int
    received_at_ms: int
    arrived_round: int
    unused: tuple[int, ...]


class AuthorState(_State):
    """What is remembered of one author."""

    accepted_groups: int = 0
    score: float = 0.0
    score_at_ms: int = 0
    banned_until_ms: int = 0
    window: int = -1
    used_slots: dict[int, int] = {}


class MailboxState(_State):
    """All of a mailbox, for a checkpoint. Authors by hex id."""

    batches: list[KeptBatch] = []
    authors: dict[str, AuthorState] = {}


@dataclass
class Arrivals:
    """What came in one round: rejections by author (hex id) and reason."""

    accepted_sequences: int = 0
    rejected_batches: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    rejected_groups: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    unusable_groups: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))


@dataclass(frozen=True)
class PeerGroup:
    """A checked group of somebody else."""

    author: PeerId
    checked: CheckedGroup


Wanted = Callable[[CheckedGroup], bool]


def any_group(group: CheckedGroup) -> bool:
    del group
    return True


class Mailbox:
    """One party's. ``prompts_of`` says whose prompts a peer was asked: its own, or those that all have in common."""

    def __init__(self, party: Party, *, prompts_of: Mapping[PeerId, PeerId], scores: bool) -> None:
        self._party = party
        self._prompts_of = prompts_of
        self._scores = scores
        vocabulary = party.loaded.vocabulary
        self._profile = LocalProfile(vocabulary.fingerprint, vocabulary.size)
        self._state = MailboxState()
        self._groups: dict[tuple[BatchName, int], PeerGroup] = {}
        self._names: dict[BatchName, KeptBatch] = {}

    # --- arrival ----------------------------------------------------------------------------

    def verify(self, data: bytes, *, now_ms: int, arrivals: Arrivals) -> Accepted | None:
        """What the network half of a daemon does with a batch that comes from its author directly."""
        opened = open_batch(data)
        if isinstance(opened, Rejected):
            # Signatures are made here, by the codec that opens them: whoever sends something else is a fault of ours.
            raise CheckpointError(f"a simulated batch can't be opened: {opened.detail}")
        author = opened.header.author
        state = self._author(author)
        window = self._party.run.window(opened.header.created_at_ms)
        known = Known(
            used_slots=state.used_slots if window == state.window else {},
            author_banned=now_ms < state.banned_until_ms,
        )
        result = verify(opened, run=self._party.run, known=known, now_ms=now_ms, profile=self._profile)
        if isinstance(result, Rejected):
            arrivals.rejected_batches[author.hex()][result.reason.value] += 1
            if result.blame is not Blame.NOBODY:
                self._charge(state, result.reason.value, now_ms)
            return None
        if window != state.window:
            state.window, state.used_slots = window, {}
        state.used_slots.update((group.slot, opened.header.epoch) for group in result.payload.groups)
        return result

    def check(self, accepted: Accepted, data: bytes, *, now_ms: int, round_number: int, arrivals: Arrivals) -> None:
        """What a daemon's learner does with it: texts, rewards, and whether its groups can be used at all."""
        author = accepted.header.author
        state = self._author(author)
        good = []
        for index, group in enumerate(accepted.payload.groups):
            checked = check(self._party, self._prompts_of[author], accepted.window, accepted.payload, index)
            if isinstance(checked, Rejected):
                arrivals.rejected_groups[author.hex()][checked.reason.value] += 1
                self._charge(state, checked.reason.value, now_ms)
            elif (reason := self._why_unusable(checked)) is not None:
                arrivals.unusable_groups[author.hex()][reason] += 1
            else:
                arrivals.accepted_sequences += len(group.completions)
                self._groups[accepted.name, index] = PeerGroup(author, checked)
                good.append(index)
        state.accepted_groups += len(good)
        if self._scores and good:
            score = rewarded(Score(state.score, state.score_at_ms), len(good), now_ms)
            state.score, state.score_at_ms = score.value, score.at_ms
        kept = KeptBatch(
            data=data, created_at_ms=accepted.header.created_at_ms, received_at_ms=now_ms, arrived_round=round_number,
            unused=tuple(good),
        )  # fmt: skip
        self._names[accepted.name] = kept

    def _why_unusable(self, checked: CheckedGroup) -> str | None:
        if not checked.same_tokenizer and self._party.config.cross_tokenizer == "off":
            return "foreign_tokenizer"
        task = checked.group.task
        if self._party.held_out.contains(task, self._party.tasks[task].size, checked.item.prompt):
            return "held_out"
        return None

    def _charge(self, state: AuthorState, reason: str, now_ms: int) -> None:
        if not self._scores:
            return
        score = charged(Score(state.score, state.score_at_ms), reason, now_ms)
        state.score, state.score_at_ms = score.value, score.at_ms
        if must_be_banned(score, now_ms):
            state.banned_until_ms = now_ms + BAN_MS

    def _author(self, author: PeerId) -> AuthorState:
        return self._state.authors.setdefault(author.hex(), AuthorState())

    # --- choice -----------------------------------------------------------------------------

    def choose(self, count: int, round_number: int, wanted: Wanted = any_group) -> list[PeerGroup]:
        """Groups by ``select``, of those that are ``wanted``; they are used with that."""
        return self._take(self._selected(count, round_number, wanted))

    def offered(self, count: int, round_number: int, wanted: Wanted) -> list[PeerGroup]:
        """What ``choose`` would give."""
        return [self._groups[key] for key in self._selected(count, round_number, wanted)]

    def _selected(self, count: int, round_number: int, wanted: Wanted) -> list[tuple[BatchName, int]]:
        caps = self._party.config.caps
        candidates = [
            Candidate(
                batch=name,
                group_index=index,
                author=self._groups[name, index].author,
                # Everybody delivers what is its own, from a network of its own.
                neighbour=self._groups[name, index].author,
                address_range=self._groups[name, index].author.hex(),
                received_at_ms=kept.received_at_ms,
                age=round_number - kept.arrived_round,
                author_groups=self._author(self._groups[name, index].author).accepted_groups,
                spread=self._groups[name, index].checked.spread,
            )
            for name, kept in self._names.items()
            for index in kept.unused
            if wanted(self._groups[name, index].checked)
        ]
        per_step = self._party.config.training.groups_per_step
        return [(c.batch, c.group_index) for c in select(candidates, count, groups_per_step=per_step, caps=caps)]

    def take_all(self) -> list[PeerGroup]:
        """Every group that is here; they are used with that."""
        return self._take([(name, index) for name, kept in self._names.items() for index in kept.unused])

    def _take(self, chosen: Sequence[tuple[BatchName, int]]) -> list[PeerGroup]:
        taken = []
        for name, index in chosen:
            kept = self._names[name]
            self._names[name] = kept.model_copy(update={"unused": tuple(i for i in kept.unused if i != index)})
            taken.append(self._groups.pop((name, index)))
        return taken

    def forget(self, *, round_number: int, created_since_ms: int = 0) -> None:
        """Groups that are too old for a step from now on, and batches without an unused one."""
        oldest = round_number - self._party.config.caps.max_age_rounds
        gone = [
            name
            for name, kept in self._names.items()
            if not kept.unused or kept.arrived_round < oldest or kept.created_at_ms < created_since_ms
        ]
        for name in gone:
            for index in self._names.pop(name).unused:
                del self._groups[name, index]

    # --- checkpoint -------------------------------------------------------------------------

    def state(self) -> MailboxState:
        return MailboxState(batches=list(self._names.values()), authors=self._state.authors)

    def restore(self, state: MailboxState) -> None:
        """Raises CheckpointError when what is kept doesn't pass the checks that it passed before."""
        self._state, self._names, self._groups = MailboxState(authors=state.authors), {}, {}
        for kept in state.batches:
            opened = open_batch(kept.data)
            if isinstance(opened, Rejected):
                raise CheckpointError(f"a batch of the checkpoint can't be opened: {opened.detail}")
            author, window = opened.header.author, self._party.run.window(opened.header.created_at_ms)
            payload = decode_payload(opened.payload)
            self._names[opened.name] = kept
            for index in kept.unused:
                checked = check(self._party, self._prompts_of[author], window, payload, index)
                if isinstance(checked, Rejected):
                    raise CheckpointError(f"a group of the checkpoint is not good any more: {checked.detail}")
                self._groups[opened.name, index] = PeerGroup(author, checked)
