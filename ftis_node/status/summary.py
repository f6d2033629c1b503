"""From the nodes' answers to the health document. Pure: answers in, document out.

An answer may be a lie. Two nodes that answered are connected if both say so; of one that can't be asked the word of
others has to do; and no node can name more such than an honest one could have connections.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ftis_node.status.judgement import Judgement, Level, judge
from ftis_node.status.partitions import Contact, partitions_of
from ftis_node.status.shares import bounded_shares, weighted_sum
from ftis_node.status.snapshot import LATELY_MS, NodeStatus, PeerStatus
from ftis_node.status.state import duration, model_text, state_kind, state_text, training_of
from ftis_node.status.swarm_judgement import judge_swarm
from ftis_node.status.swarm_view import (
    Bounds,
    Failure,
    HealthDocument,
    LevelName,
    NodeView,
    Reach,
    SeenByOthers,
    SwarmSummary,
)

MOST_VOUCHED = 100
MOST_KEYS = 50
CLOCK_MS = 5_000
_PEER_ID = re.compile(r"[0-9a-f]{64}")
_NAMES: Mapping[Level, LevelName] = {
    Level.HEALTHY: "healthy",
    Level.DEGRADED: "degraded",
    Level.UNREACHABLE: "unreachable",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of asking one node. ``peer_id`` is proved if there is a status, else expected.

    ``failure`` says to people why there is no status, ``cause`` to programs.
    """

    asked: str
    named: bool
    peer_id: str | None
    status: NodeStatus | None
    failure: str = ""
    clock_ahead_ms: int | None = None
    faults: tuple[str, ...] = ()
    cause: Failure | None = None


@dataclass(frozen=True, slots=True)
class _Word:
    """What one node that answered says of a peer; ``silent_ms`` by its own clock."""

    by: str
    peer: PeerStatus
    silent_ms: int | None


def health_document(answers: Sequence[Answer], *, asked_at_ms: int, bounds: Bounds | None) -> HealthDocument:
    """``bounds`` are those of a walk; without one the nodes were asked for themselves and there is no swarm."""
    if bounds is None:
        nodes = tuple(_node(answer, None) for answer in answers)
        return HealthDocument(asked_at_ms=asked_at_ms, nodes=nodes, swarm=None, bounds=None)
    answered = _distinct(answers)
    words = _words(answered.values())
    named = {answer.peer_id for answer in answers if answer.named}
    silent = [peer for peer in _known_from_others(words, answered) if peer not in named]
    views = [_node(answer, _seen(words[peer], len(answered) - 1)) for peer, answer in answered.items()]
    in_vain = [a for a in answers if not _answers(a) and a.peer_id not in answered and a.peer_id not in silent]
    views += [_node(answer, None) for answer in in_vain if answer.named]
    asked = {answer.peer_id for answer in answers}
    views += [
        _silent(peer, _seen(words[peer], len(answered)), asked=bounds.stopped_by is None or peer in asked)
        for peer in silent
    ]
    swarm = _summary(views, answered, words, len(in_vain), bounds)
    nodes = tuple(_without_strangers(view) for view in views)
    return HealthDocument(asked_at_ms=asked_at_ms, nodes=nodes, swarm=swarm, bounds=bounds)


def _answers(answer: Answer) -> bool:
    """The store of a home whose daemon is down can be read, but that node is not in the swarm."""
    return answer.status is not None and answer.status.daemon_running


def _distinct(answers: Iterable[Answer]) -> dict[str, Answer]:
    """One answer per node, though it may have been asked at two addresses; a named one before others."""
    found: dict[str, Answer] = {}
    for answer in answers:
        if _answers(answer) and answer.peer_id is not None:
            held = found.get(answer.peer_id)
            if held is None or (answer.named and not held.named):
                found[answer.peer_id] = answer
    return found


def _words(answered: Iterable[Answer]) -> defaultdict[str, list[_Word]]:
    words: defaultdict[str, list[_Word]] = defaultdict(list)
    for answer in answered:
        assert answer.status is not None
        assert answer.peer_id is not None
        for peer in {p.peer_id: p for p in answer.status.peers}.values():
            if peer.peer_id != answer.peer_id and _PEER_ID.fullmatch(peer.peer_id):
                silent = answer.status.at_ms - peer.last_contact_ms if peer.last_contact_ms else None
                words[peer.peer_id].append(_Word(answer.peer_id, peer, silent))
    return words


def _known_from_others(words: Mapping[str, Sequence[_Word]], answered: Mapping[str, Answer]) -> list[str]:
    """Nodes that did not answer but that others are connected with; those that only one vouches for are bounded."""
    vouched: Counter[str] = Counter()
    silent = []
    for peer, said in words.items():
        by = {word.by for word in said if word.peer.connected}
        if peer in answered or not by:
            continue
        if len(by) == 1:
            vouched.update(by)
            if vouched[min(by)] > MOST_VOUCHED:
                continue
        silent.append(peer)
    return silent


def _node(answer: Answer, seen: SeenByOthers | None) -> NodeView:
    status = answer.status
    silence = Judgement(Level.UNREACHABLE, (answer.failure, *answer.faults))
    judgement = silence if status is None else judge(status)
    reach: Reach = "answers" if _answers(answer) else "no answer"
    return NodeView(
        asked=answer.asked,
        named=answer.named,
        peer_id=answer.peer_id,
        reach=reach,
        level=_NAMES[judgement.level],
        reasons=judgement.reasons,
        failure=answer.cause,
        notes=(*judgement.notes, *_clock(answer.clock_ahead_ms)),
        state="does not answer" if status is None else state_text(status),
        training=None if status is None else training_of(status),
        bytes_in=None if status is None else sum(peer.bytes_in for peer in status.peers),
        bytes_out=None if status is None else sum(peer.bytes_out for peer in status.peers),
        clock_ahead_seconds=None if answer.clock_ahead_ms is None else answer.clock_ahead_ms / 1000,
        seen=seen,
        status=status,
    )


def _clock(ahead_ms: int | None) -> tuple[str, ...]:
    if ahead_ms is None or abs(ahead_ms) < CLOCK_MS:
        return ()
    return (f"its clock is {duration(abs(ahead_ms))} {'ahead of' if ahead_ms > 0 else 'behind'} this machine's",)


def _silent(peer: str, seen: SeenByOthers, *, asked: bool) -> NodeView:
    """A node that is known from those it is connected with; ``asked``: in vain, or it has no address."""
    return NodeView(
        asked="", named=False, peer_id=peer, reach="behind NAT" if asked else "not asked", level="healthy",
        reasons=(), notes=(),
        state=f"seen by {seen.connected_to} of {seen.asked} nodes", training=None, bytes_in=None, bytes_out=None,
        clock_ahead_seconds=None, seen=seen, status=None,
    )  # fmt: skip


def _seen(said: Sequence[_Word], asked: int) -> SeenByOthers:
    peers = [word.peer for word in said]
    connected = [peer for peer in peers if peer.connected]
    silent = [word.silent_ms for word in said if word.silent_ms is not None]
    verdicts = Counter(peer.agreement.verdict for peer in peers if peer.sequences or peer.agreement.measured)
    lately = [peer.batches_lately for peer in peers if peer.batches_lately]
    checked = bounded_shares([peer.accepted_groups + peer.rejected_groups for peer in peers])
    used = bounded_shares([peer.sequences for peer in peers])
    return SeenByOthers(
        asked=asked,
        connected_to=len(connected),
        dialled_by=sum(peer.direction == "out" for peer in connected),
        last_contact_seconds=max(0, min(silent)) / 1000 if silent else None,
        score=statistics.median(peer.score for peer in peers) if peers else None,
        model=_most(peer.model for peer in peers),
        version=_most(peer.version for peer in peers),
        batches_per_minute=statistics.median(lately) * 60_000 / LATELY_MS if lately else 0.0,
        accepted_groups=weighted_sum((peer.accepted_groups for peer in peers), checked),
        rejected_groups=weighted_sum((peer.rejected_groups for peer in peers), checked),
        sequences=weighted_sum((peer.sequences for peer in peers), used),
        trained=weighted_sum((min(peer.trained, peer.sequences) for peer in peers), used),
        filtered=weighted_sum((min(peer.filtered, peer.sequences) for peer in peers), used),
        helps=verdicts["helps"],
        harms=verdicts["harms"],
        unknown=verdicts["unknown"],
    )


def _most(texts: Iterable[str]) -> str:
    """What most say."""
    return next((text for text, _ in Counter(text for text in texts if text).most_common(1)), "")


def _summary(
    views: Sequence[NodeView], answered: Mapping[str, Answer], words: Mapping[str, Sequence[_Word]], in_vain: int,
    bounds: Bounds,
) -> SwarmSummary:  # fmt: skip
    statuses = [answer.status for answer in answered.values() if answer.status is not None]
    silent = [view for view in views if view.reach in ("behind NAT", "not asked")]
    by_node = [
        (sum(p.accepted_groups for p in status.peers), sum(p.rejected_groups for p in status.peers))
        for status in statuses
    ]
    shares = bounded_shares([sum(counts) for counts in by_node])
    accepted, rejected = (weighted_sum((counts[kind] for counts in by_node), shares) for kind in (0, 1))
    rejections: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    of_rejections = bounded_shares([sum(rejection.count for rejection in status.rejections) for status in statuses])
    for status, share in zip(statuses, of_rejections, strict=True):
        for rejection in status.rejections:
            counted = rejections if rejection.blame != "nobody" else left_out
            counted[rejection.reason] += round(rejection.count * share)
    runs = _counted(status.run_id or "none yet" for status in statuses)
    partitions = partitions_of(
        {peer: answer.status.run_id for peer, answer in answered.items() if answer.status and answer.status.run_id},
        {view.peer_id for view in silent if view.peer_id is not None},
        [
            Contact(peer, said.peer_id, complete=len(answer.status.peers) < bounds.peers_per_node)
            for peer, answer in answered.items()
            if answer.status is not None
            for said in answer.status.peers
            if said.connected
        ],
    )
    verdicts = Counter(s.peers_agreement.verdict for s in statuses if not s.learner.startswith("none"))
    lately = sum(status.published_lately for status in statuses) * 60_000 / LATELY_MS
    level, reasons = judge_swarm(views, runs, partitions)
    return SwarmSummary(
        level=_NAMES[level],
        reasons=tuple(reasons),
        answered=len(answered),
        behind_nat=sum(view.reach == "behind NAT" for view in silent),
        no_answer=in_vain,
        known_by_name=len(words.keys() - answered.keys()) - len(silent),
        states=_counted(state_kind(status) for status in statuses),
        models=_counted(
            [model_text(s) for s in statuses] + [v.seen.model or "relay" for v in silent if v.seen is not None]
        ),
        versions=_counted([s.version for s in statuses] + [v.seen.version for v in silent if v.seen is not None]),
        runs=runs,
        tokenizers=_counted(s.tokenizer_fingerprint[:12] for s in statuses if s.tokenizer_fingerprint),
        batches_per_minute=lately + sum(v.seen.batches_per_minute for v in silent if v.seen is not None),
        accepted_groups=accepted,
        rejected_groups=rejected,
        rejected_share=rejected / (accepted + rejected) if accepted + rejected else None,
        rejections=dict(rejections.most_common(MOST_KEYS)),
        left_out=dict(left_out.most_common(MOST_KEYS)),
        partitions=partitions,
        swarm_helps=verdicts["helps"],
        swarm_harms=verdicts["harms"],
        swarm_unknown=verdicts["unknown"],
    )


def _counted(keys: Iterable[str]) -> dict[str, int]:
    return dict(Counter(keys).most_common(MOST_KEYS))


def _without_strangers(view: NodeView) -> NodeView:
    """In a swarm everybody is in the document: a node's own list of everybody needn't be too."""
    if view.status is None:
        return view
    connected = tuple(peer for peer in view.status.peers if peer.connected)
    status = view.status.model_copy(update={"peers": connected, "addresses": (), "rejections": ()})
    return view.model_copy(update={"status": status})


def level_of(document: HealthDocument) -> Level:
    """The exit code: the swarm's where there is one, else that of the node that is worst."""
    names = [document.swarm.level] if document.swarm is not None else [node.level for node in document.nodes]
    levels = {name: level for level, name in _NAMES.items()}
    return max(levels[name] for name in names)
