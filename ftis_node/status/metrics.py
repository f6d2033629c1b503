"""``/metrics``: one look at a node in Prometheus' words. docs/metrics.md is the same list as a table.

A value that isn't known is absent. Counters are sums over the home's whole life and go on after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ftis_node.status.figures import Figures
from ftis_node.store.reports import RoundReport, SequenceCounts, Totals

INBOX_STATES = ("ready", "used", "rejected", "expired", "quarantined")

Samples = dict[tuple[str, ...], float | None]
"""Values by the values of their labels; what is None isn't exported."""


def exposition(figures: Figures, *, accept: str = "") -> tuple[bytes, str]:
    """The text and its content type: OpenMetrics for whoever accepts it, else Prometheus' own."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(figures))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Collected(Collector):
    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        for part in (_of_node, _of_rounds, _of_peers, _of_processes):
            yield from (metric for metric in part(self._figures) if metric.samples)


def _of_node(figures: Figures) -> Iterator[Metric]:
    status = figures.status
    build = ("version", "model", "peer_id")
    yield _gauge(
        "ftis_build_info", "Always 1; what runs is in the labels.", build,
        {(status.version, status.model, status.peer_id): 1},
    )  # fmt: skip
    yield _gauge("ftis_health_level", "0 healthy, 1 degraded.", (), {(): int(figures.level)})
    yield _gauge(
        "ftis_learner_running", "1 while the learner runs, or has finished all its rounds.", (),
        {(): _learner_running(status.learner)},
    )  # fmt: skip
    yield _gauge("ftis_round", "The round that the learner is in.", (), {(): status.round or None})
    at_ms = status.last_round_at_ms
    yield _gauge(
        "ftis_last_round_timestamp_seconds", "When the last round was finished, since the Unix epoch.", (),
        {(): None if at_ms is None else at_ms / 1000},
    )  # fmt: skip
    yield _gauge(
        "ftis_inbox_groups", "Peers' groups that the learner has checked and still remembers.", ("state",),
        {(state,): status.inbox.get(state, 0) for state in INBOX_STATES},
    )  # fmt: skip
    yield _gauge(
        "ftis_published_batches", "Own batches that peers may still ask for.", (), {(): status.published_batches}
    )
    yield _gauge("ftis_received_batches", "Batches of peers in the store.", (), {(): status.received_batches})


def _learner_running(learner: str) -> float | None:
    return None if learner.startswith("none") else float(learner in ("running", "finished"))


def _of_rounds(figures: Figures) -> Iterator[Metric]:
    report = figures.status.last_round
    if report is not None:
        yield from _of_last_round(report)
    if report is not None or not figures.status.learner.startswith("none"):
        yield from _of_totals(Totals() if report is None else report.totals)


def _of_last_round(report: RoundReport) -> Iterator[Metric]:
    for name, text, value in (
        (
            "ftis_generation_tokens_per_second",
            "Tokens generated per second of generating, last round.",
            report.tokens_per_second,
        ),
        ("ftis_decode_rows", "Completions sampled at the same time on average, last round.", report.mean_decode_rows),
        ("ftis_own_reward", "Mean reward of own sequences, last round.", report.own_reward),
        ("ftis_peer_reward", "Mean reward of peers' sequences, last round.", report.peer_reward),
        (
            "ftis_importance_weight",
            "Mean weight of the tokens trained on, last round.",
            report.importance_weight,
        ),
        ("ftis_truncated_share", "Share of these tokens at the upper bound C of the weight.", report.truncated_share),
        ("ftis_clipped_share", "Share of tokens whose policy ratio was clipped.", report.clipped_share),
        (
            "ftis_kl_threshold",
            "Divergence above which the filter drops sequences with a negative advantage, last step.",
            report.kl_threshold,
        ),
        ("ftis_peer_weight", "Mean factor on the loss of peers' groups, last step.", report.peer_weight),
        (
            "ftis_peer_divergence",
            "Mean divergence of the peers' policies from the own one on their sequences.",
            report.peer_divergence,
        ),
        (
            "ftis_own_logprob_mismatch",
            "Mean difference between engine and trainer in log-probs of own tokens.",
            report.own_logprob_mismatch,
        ),
        ("ftis_gradient_norm", "Norm of the gradient before it is scaled down, last step.", report.gradient_norm),
        ("ftis_loss", "Loss of the last step.", report.loss),
    ):
        yield _gauge(name, text, (), {(): value})


def _of_totals(totals: Totals) -> Iterator[Metric]:
    yield _counter(
        "ftis_steps", "Rounds by whether they ended with an optimizer step.", ("outcome",),
        {("stepped",): totals.steps, ("skipped",): totals.skipped_steps},
    )  # fmt: skip
    yield _counter(
        "ftis_phase_seconds", "Where the rounds' time went.", ("phase",),
        {(phase,): seconds for phase, seconds in totals.seconds.model_dump().items()},
    )  # fmt: skip
    yield _counter("ftis_generated_tokens", "Tokens generated here.", (), {(): totals.generated_tokens})
    yield _counter("ftis_own_groups_sampled", "Own groups sampled.", (), {(): totals.own_sampled})
    yield _counter(
        "ftis_informative_groups", "Groups with unequal rewards that took a place in a step.", ("origin",),
        {("own",): totals.own_informative, ("peers",): totals.peer_informative},
    )  # fmt: skip
    yield _counter(
        "ftis_peer_tokens", "Tokens of peers' completions that were trained on.", (), {(): totals.peer_tokens}
    )
    samples: Samples = {}
    for origin, counts in (("own", totals.own), ("peers", totals.peers)):
        samples |= {(origin, outcome): value for outcome, value in _by_outcome(counts).items()}
    yield _counter("ftis_sequences", "Sequences by origin and by what became of them.", ("origin", "outcome"), samples)


def _by_outcome(counts: SequenceCounts) -> dict[str, float]:
    return {
        "arrived": counts.arrived,
        "trained": counts.trained,
        "filtered": counts.filtered,
        "zero_advantage": counts.zero_advantage,
        "excluded": sum(counts.excluded.values()),
    }


def _of_peers(figures: Figures) -> Iterator[Metric]:
    sums = figures.sums
    yield _gauge(
        "ftis_peers", "Peers in the store; those connected and those banned are known too.", ("state",),
        {("connected",): sums.connected, ("known",): sums.known, ("banned",): sums.banned},
    )  # fmt: skip
    yield _counter(
        "ftis_peer_bytes", "Bytes exchanged with all peers together.", ("direction",),
        {("in",): sums.bytes_in, ("out",): sums.bytes_out},
    )  # fmt: skip
    yield _counter(
        "ftis_rejected_groups", "Groups and batches of peers that were refused.", ("reason",),
        {(reason,): count for reason, count in sums.rejected.items()},
    )  # fmt: skip


def _of_processes(figures: Figures) -> Iterator[Metric]:
    found = figures.processes
    yield _gauge(
        "ftis_resident_memory_bytes", "Resident memory.", ("process",),
        {(name,): process.resident_bytes for name, process in found.items()},
    )  # fmt: skip
    yield _gauge(
        "ftis_open_files", "Open file descriptors.", ("process",),
        {(name,): process.open_files for name, process in found.items()},
    )  # fmt: skip
    yield _gauge(
        "ftis_threads", "Threads.", ("process",), {(name,): process.threads for name, process in found.items()}
    )
    yield _gauge("ftis_store_bytes", "Size of the store on disk.", (), {(): figures.store_bytes})


def _gauge(name: str, text: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples.items():
        if value is not None:
            family.add_metric(values, value)
    return family


def _counter(name: str, text: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    """``name`` without the ``_total`` that it is exported with."""
    family = CounterMetricFamily(name, text, labels=labels)
    for values, value in samples.items():
        if value is not None:
            family.add_metric(values, value)
    return family
