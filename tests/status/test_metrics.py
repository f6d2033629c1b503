"""/metrics: what is exported is what docs/metrics.md lists, both ways, and Prometheus can read it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from ftis_node import __version__
from ftis_node.identity import lock_home
from ftis_node.status.figures import Figures, look
from ftis_node.status.history import History, RoundSeries, TrafficSeries
from ftis_node.status.metrics import INBOX_STATES, exposition
from ftis_node.status.processes import process_figures
from ftis_node.store.learner import LearnerStore
from ftis_node.store.network import NetworkStore
from tests.status.nodes import OWN_ID, empty_home, trained_home

DOCUMENT = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
ROW = re.compile(r"^\| `(ftis_\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)
UNITS = {
    "_seconds": "s", "_seconds_total": "s", "_bytes": "bytes", "_bytes_total": "bytes", "_tokens_total": "tokens",
    "_tokens_per_second": "tokens/s",
}  # fmt: skip


def figures_of(home: Path, learner_pid: int | None = None) -> Figures:
    with lock_home(home):
        return look(home, lambda: learner_pid)


def families(figures: Figures) -> dict[str, Metric]:
    """By the name with which its samples are exported."""
    body, content_type = exposition(figures)
    assert content_type.startswith("text/plain; version=")
    return {family.samples[0].name: family for family in parse(body.decode())}


def samples(figures: Figures) -> dict[str, float]:
    """``name{label=value,…}`` and what it is."""
    found = {}
    for family in families(figures).values():
        for sample in family.samples:
            labels = ",".join(f"{label}={value}" for label, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


@pytest.fixture
def full(tmp_path: Path) -> Figures:
    """Of a node that knows everything that there is to know."""
    home = trained_home(tmp_path / "home", rounds=7, peers=12)
    return figures_of(home, os.getpid())


def labels_of(cell: str) -> dict[str, set[str]]:
    """Labels and, where they are fixed, their values: ```outcome` = stepped / skipped``."""
    return {
        label: {value.strip() for value in values.split("/") if value.strip()}
        for label, values in re.findall(r"`(\w+)`(?: = ([^,`]*))?", cell)
    }


def test_the_document_lists_what_is_exported_and_nothing_else(full: Figures) -> None:
    listed = {row[0]: row[1:] for row in ROW.findall(DOCUMENT)}
    exported = families(full)
    assert listed.keys() == exported.keys()
    for name, (kind, _, labels, meaning) in listed.items():
        family = exported[name]
        assert (kind, meaning) == (family.type, family.documentation), name
        for sample in family.samples:
            assert sample.labels.keys() == labels_of(labels).keys(), name
            for label, values in labels_of(labels).items():
                assert not values or sample.labels[label] in values, name


@pytest.mark.parametrize(("suffix", "unit"), UNITS.items())
def test_units_are_those_in_the_names(suffix: str, unit: str) -> None:
    found = [row[2] for row in ROW.findall(DOCUMENT) if row[0].endswith(suffix)]
    assert found
    assert set(found) == {unit}


def test_history_is_documented_field_by_field() -> None:
    for model in (History, RoundSeries, TrafficSeries):
        for name in model.model_fields:
            assert f"`{name}`" in DOCUMENT, name


def test_openmetrics_is_valid_too(full: Figures) -> None:
    body, content_type = exposition(full, accept="application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert {family.name for family in parse_openmetrics(body.decode())} >= {"ftis_steps", "ftis_round"}


def test_the_values_are_those_of_the_status(full: Figures) -> None:
    found = samples(full)
    assert found[f"ftis_build_info{{model={full.status.model},peer_id={OWN_ID.hex()},version={__version__}}}"] == 1
    assert found["ftis_round"] == 8
    assert found["ftis_steps_total{outcome=stepped}"] == 7
    assert found["ftis_phase_seconds_total{phase=generating}"] == pytest.approx(7 * 5.2)
    assert found["ftis_sequences_total{origin=own,outcome=trained}"] == 7 * 40
    assert found["ftis_sequences_total{origin=peers,outcome=excluded}"] == 7 * 8
    assert found["ftis_peers{state=known}"] == 12
    assert found["ftis_peer_bytes_total{direction=in}"] == sum(peer.bytes_in for peer in full.status.peers)
    assert found["ftis_rejected_groups_total{reason=wrong_prompt}"] == 3
    assert found["ftis_learner_running"] == 1
    assert found["ftis_resident_memory_bytes{process=learner}"] > 1e6
    assert found["ftis_threads{process=network}"] >= 1


def test_what_is_not_known_is_absent(tmp_path: Path) -> None:
    found = samples(figures_of(empty_home(tmp_path)))
    for name in ("ftis_round", "ftis_last_round_timestamp_seconds", "ftis_own_reward", "ftis_loss", "ftis_peer_reward"):
        assert name not in found
    assert not any(name.startswith(("ftis_peer_bytes", "ftis_rejected")) or "learner}" in name for name in found)
    assert found["ftis_steps_total{outcome=stepped}"] == 0, "no step was taken: that is known"
    assert found["ftis_health_level"] == 1
    assert {f"ftis_inbox_groups{{state={state}}}" for state in INBOX_STATES} <= found.keys()


def test_a_relay_has_no_rounds(tmp_path: Path) -> None:
    store = NetworkStore(empty_home(tmp_path))
    store.put("learner", b"%d none: this is a relay" % os.getpid())
    store.close()
    found = samples(figures_of(tmp_path))
    assert "ftis_learner_running" not in found
    assert not any(name.startswith("ftis_steps") for name in found)
    assert found["ftis_health_level"] == 0


def test_bytes_are_counted_on_when_a_peer_is_forgotten(tmp_path: Path) -> None:
    home = trained_home(tmp_path, rounds=1, peers=4)
    before = samples(figures_of(home))["ftis_peer_bytes_total{direction=out}"]
    store = NetworkStore(home)
    store._db.execute("DELETE FROM peers")
    store.close()
    after = samples(figures_of(home))
    assert after["ftis_peers{state=known}"] == 0
    assert after["ftis_peer_bytes_total{direction=out}"] == before > 0


def test_counters_never_fall_when_the_learner_starts_again(tmp_path: Path) -> None:
    home = trained_home(tmp_path, rounds=4)
    LearnerStore(home).close()
    assert samples(figures_of(home))["ftis_steps_total{outcome=stepped}"] == 4


def test_figures_of_a_process_are_those_of_the_system() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        figures = process_figures(child.pid)
        assert figures is not None
        status = Path(f"/proc/{child.pid}/status").read_text()
        assert figures.threads == int(re.search(r"Threads:\s+(\d+)", status)[1])  # type: ignore[index]
    finally:
        assert child.stdin is not None
        child.stdin.close()
        child.wait(10)
    assert process_figures(child.pid) is None
