"""What the demo measures at the end, as JSON and on screen."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.table import Table

from ftis_node.clock import now_ms
from ftis_node.commands.demo_gain import Effort, Gain, RewardAt, gain, rewards_over_time
from ftis_node.commands.demo_swarm import DemoParty, party_config
from ftis_node.evaluate import Evaluation, greedy_accuracy
from ftis_node.models import LoadedModel, load_model
from ftis_node.rollout.transformers import TransformersEngine
from ftis_node.status.pace import Pace, pace_of
from ftis_node.status.snapshot import read_status
from ftis_node.store.reader import StoreReader
from ftis_node.store.reports import PhaseSeconds, RoundReport, SequenceCounts
from ftis_node.tasks.registry import TaskSources, build_task
from ftis_node.training.checkpoint import load_newest
from ftis_node.wire.codec import decode_batch, decode_payload

IN_DISTRIBUTION = {"terms": 3, "largest": 19}
OUT_OF_DISTRIBUTION = {"terms": 3, "largest": 29}
MAX_TOKENS = 48
KEPT_ROUNDS = 10_000


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class Accuracy(_Part):
    """Greedy accuracy on test items with its 95 % interval."""

    accuracy: float
    low: float
    high: float


class Accuracies(_Part):
    """In distribution: three numbers to 19, unseen ones. Out of distribution: three numbers to 29."""

    in_distribution: Accuracy
    out_of_distribution: Accuracy


class NodeResult(_Part):
    """One party. ``own`` and ``peers`` count sequences of the joint phase.

    ``received_bytes`` is all that peers sent, ``peer_tokens`` those of their tokens that were trained on;
    ``bytes_per_useful_token`` is the one by the other. ``own_groups`` were sampled.
    """

    name: str
    model: str
    parameters: int
    trainable_parameters: int
    start: Accuracies
    alone: Accuracies
    together: Accuracies
    gain: Gain | None
    own: SequenceCounts
    peers: SequenceCounts
    rejected: dict[str, int]
    published_bytes: int
    published_tokens: int
    bytes_per_token: float
    received_bytes: int
    peer_tokens: int
    bytes_per_useful_token: float | None
    own_groups: int
    pace: Pace
    seconds: PhaseSeconds
    seconds_alone: PhaseSeconds
    rewards_together: tuple[RewardAt, ...]
    rewards_alone: tuple[RewardAt, ...]


class DemoReport(_Part):
    """``report.json``."""

    schema_version: int = 2
    rounds: int
    evaluation_items: int
    seconds: float
    nodes: tuple[NodeResult, ...]


def measure(party: DemoParty, together: Path, alone: Path, *, items: int) -> NodeResult:
    """Evaluate a party's start and its two ends, and read what its daemon counted."""
    config = party_config(party)
    loaded = load_model(config.model, config.lora, seed=party.seed)
    start = _accuracies(loaded, items)
    ends = {}
    for home in (together, alone):
        load_newest(home / "checkpoints", model=loaded.model)
        ends[home] = _accuracies(loaded, items)
    status, status_alone = read_status(together), read_status(alone)
    assert status.last_round is not None
    assert status_alone.last_round is not None
    published_bytes, tokens = _traffic(together)
    totals = status.last_round.totals
    received_bytes, pace = _received(together)
    return NodeResult(
        name=party.name,
        model=status.model,
        parameters=status.parameters,
        trainable_parameters=status.trainable_parameters,
        start=start,
        alone=ends[alone],
        together=ends[together],
        gain=gain(_rounds(alone), _rounds(together)),
        own=totals.own,
        peers=totals.peers,
        rejected=_rejected(together),
        published_bytes=published_bytes,
        published_tokens=tokens,
        bytes_per_token=published_bytes / tokens,
        received_bytes=received_bytes,
        peer_tokens=totals.peer_tokens,
        bytes_per_useful_token=received_bytes / totals.peer_tokens if totals.peer_tokens else None,
        own_groups=totals.own_sampled,
        pace=pace,
        seconds=totals.seconds,
        seconds_alone=status_alone.last_round.totals.seconds,
        rewards_together=rewards_over_time(_rounds(together)),
        rewards_alone=rewards_over_time(_rounds(alone)),
    )


def _accuracies(loaded: LoadedModel, items: int) -> Accuracies:
    engine = TransformersEngine(loaded.model, loaded.vocabulary, pad_id=loaded.pad_id, decode_rows=items)
    near, far = (
        greedy_accuracy(
            engine, loaded, build_task("addition:test", parameters, TaskSources()), limit=items, max_tokens=MAX_TOKENS
        )
        for parameters in (IN_DISTRIBUTION, OUT_OF_DISTRIBUTION)
    )
    return Accuracies(in_distribution=_accuracy(near), out_of_distribution=_accuracy(far))


def _accuracy(evaluation: Evaluation) -> Accuracy:
    return Accuracy(accuracy=evaluation.accuracy, low=evaluation.low, high=evaluation.high)


def _rejected(home: Path) -> dict[str, int]:
    """Refused batches and groups by reason."""
    counts: Counter[str] = Counter()
    with StoreReader(home) as store:
        for row in store.rejections():
            counts[row.reason] += row.count
    return dict(counts)


def _traffic(home: Path) -> tuple[int, int]:
    """Bytes of the own batches as they travel, and the tokens in them."""
    with StoreReader(home) as store:
        batches = store.published_batches()
    tokens = sum(
        len(completion.token_ids)
        for data in batches
        for group in decode_payload(decode_batch(data).payload).groups
        for completion in group.completions
    )
    return sum(map(len, batches)), tokens


def _received(home: Path) -> tuple[int, Pace]:
    """All bytes that came from peers, and the pace over all rounds."""
    with StoreReader(home) as store:
        sums = store.network_sums(now_ms())
        return sums.bytes_in or 0, pace_of(store.recent_rounds(KEPT_ROUNDS))


def _rounds(home: Path) -> list[RoundReport]:
    with StoreReader(home) as store:
        return store.rounds()


def print_report(console: Console, report: DemoReport) -> None:
    """Some short tables; first what everybody asks."""
    gained = _table("What each node gained: until its samples are as good as they get alone")
    for column in ("node", "reward", "alone", "together", "groups that teach a minute: alone", "together"):
        gained.add_column(column)
    for node in report.nodes:
        if node.gain is not None:
            gained.add_row(
                node.name, f"{node.gain.reward:.2f}", _effort(node.gain.alone),
                "not reached" if node.gain.together is None else _effort(node.gain.together),
                f"{node.gain.alone_a_minute:.0f}", f"{node.gain.together_a_minute:.0f}",
            )  # fmt: skip
    accuracy = _table("Greedy accuracy on unseen sums (95 % interval about ±0.05)")
    for column in ("node", "parameters", "sums", "start", "alone", "together"):
        accuracy.add_column(column)
    for node in report.nodes:
        for label, field in (("to 19 (trained)", "in_distribution"), ("to 29 (not trained)", "out_of_distribution")):
            values = [getattr(part, field).accuracy for part in (node.start, node.alone, node.together)]
            first = field == "in_distribution"
            accuracy.add_row(
                node.name if first else "", f"{node.trainable_parameters:,}" if first else "", label,
                *(f"{value:.3f}" for value in values),
            )  # fmt: skip
    sequences = _table("Sequences while training together")
    for column in ("node", "generated", "own trained", "received", "rejected", "peers' filtered", "peers' trained"):
        sequences.add_column(column)
    for node in report.nodes:
        rejected = ", ".join(f"{count} {reason}" for reason, count in sorted(node.rejected.items())) or "0"
        sequences.add_row(
            node.name, f"{node.own.arrived:,}", f"{node.own.trained:,}", f"{node.peers.arrived:,}", rejected,
            f"{node.peers.filtered:,}", f"{node.peers.trained:,}",
        )  # fmt: skip
    phases = ("generating", "scoring", "training", "measuring", "waiting")
    seconds = _table("Seconds while training together, and their shares")
    for column in ("node", *phases):
        seconds.add_column(column)
    for node in report.nodes:
        spent = node.seconds.model_dump()
        total = sum(spent.values()) or 1.0
        seconds.add_row(node.name, *(f"{spent[phase]:.1f} ({spent[phase] / total:.0%})" for phase in phases))
    groups = _table("Groups with information while training together, and bytes on the wire")
    for column in ("node", "own a minute", "peers' a minute", "published", "a token", "received", "a token of use"):
        groups.add_column(column)
    for node in report.nodes:
        useful = node.bytes_per_useful_token
        groups.add_row(
            node.name, _rate(node.pace.own_informative), _rate(node.pace.peer_informative),
            f"{node.published_bytes / 1024:,.0f} KiB", f"{node.bytes_per_token:.2f} B",
            f"{node.received_bytes / 1024:,.0f} KiB", "–" if useful is None else f"{useful:.2f} B",
        )  # fmt: skip
    for table in (gained, accuracy, sequences, seconds, groups):
        console.print()
        console.print(table)
    console.print()
    console.print(f"{report.rounds} rounds together and alone, {report.seconds:.0f} s in all.")


def _effort(effort: Effort) -> str:
    return f"{effort.seconds:.0f} s, {effort.own_tokens:,} own tokens"


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def _table(title: str) -> Table:
    return Table(title=title, box=None, header_style="bold", padding=(0, 2, 0, 0), title_justify="left")
