"""Prometheus' configuration, alerts and the dashboard: their expressions ask for metrics and labels that exist."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from tests.compose import DOCKER, compose, node_services

OUTCOMES = frozenset({"arrived", "trained", "filtered", "zero_advantage", "excluded"})
PROCESSES = frozenset({"network", "learner"})
ANY: frozenset[str] = frozenset()
"""A label whose values are not known beforehand."""

# The metrics that a node exports: every label with the values that it may have.
METRICS: dict[str, dict[str, frozenset[str]]] = {
    "ftis_build_info": {"version": ANY, "model": ANY, "peer_id": ANY},
    "ftis_health_level": {},
    "ftis_round": {},
    "ftis_last_round_timestamp_seconds": {},
    "ftis_steps_total": {"outcome": frozenset({"stepped", "skipped"})},
    "ftis_phase_seconds_total": {"phase": frozenset({"generating", "scoring", "training", "waiting"})},
    "ftis_generated_tokens_total": {},
    "ftis_generation_tokens_per_second": {},
    "ftis_decode_rows": {},
    "ftis_own_reward": {},
    "ftis_peer_reward": {},
    "ftis_importance_weight": {},
    "ftis_truncated_share": {},
    "ftis_clipped_share": {},
    "ftis_kl_threshold": {},
    "ftis_peer_weight": {},
    "ftis_peer_divergence": {},
    "ftis_own_logprob_mismatch": {},
    "ftis_gradient_norm": {},
    "ftis_loss": {},
    "ftis_sequences_total": {"origin": frozenset({"own", "peers"}), "outcome": OUTCOMES},
    "ftis_inbox_groups": {"state": frozenset({"ready", "used", "rejected", "expired", "quarantined"})},
    "ftis_published_batches": {},
    "ftis_received_batches": {},
    "ftis_peers": {"state": frozenset({"connected", "known", "banned"})},
    "ftis_peer_bytes_total": {"direction": frozenset({"in", "out"})},
    "ftis_rejected_groups_total": {"reason": ANY},
    "ftis_learner_running": {},
    "ftis_resident_memory_bytes": {"process": PROCESSES},
    "ftis_open_files": {"process": PROCESSES},
    "ftis_threads": {"process": PROCESSES},
    "ftis_store_bytes": {},
}

# What Prometheus itself adds, by prometheus.yml.
ROLES = frozenset({"party", "relay"})
TARGET: dict[str, frozenset[str]] = {"job": frozenset({"ftis-node"}), "instance": ANY, "role": ROLES}
OF_PROMETHEUS: dict[str, dict[str, frozenset[str]]] = {
    "up": {},
    "ALERTS": {"alertstate": frozenset({"pending", "firing"}), "alertname": ANY},
}


@dataclass(frozen=True)
class Query:
    """One expression, where it stands, and the labels that its legend or text shows."""

    where: str
    expression: str
    shown: frozenset[str]


def shown_in(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"{{\s*(?:\$labels\.)?(\w+)\s*}}", text))


def dashboard() -> dict[str, Any]:
    content = json.loads((DOCKER / "grafana" / "dashboards" / "ftis-node.json").read_text())
    assert isinstance(content, dict)
    return content


def queries() -> Iterator[Query]:
    content = dashboard()
    for panel in content["panels"]:
        for target in panel.get("targets", ()):
            yield Query(f"panel {panel['title']!r}", target["expr"], shown_in(target["legendFormat"]))
    for annotation in content["annotations"]["list"]:
        yield Query("annotation", annotation["expr"], shown_in(annotation["titleFormat"] + annotation["textFormat"]))
    for group in yaml.safe_load((DOCKER / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            yield Query(rule["alert"], rule["expr"], shown_in(" ".join(rule["annotations"].values())))


def selectors(expression: str) -> list[promql_parser.VectorSelector]:
    """Every series that the expression reads. Raises ValueError where it isn't PromQL."""
    found: list[promql_parser.VectorSelector] = []

    def look(part: promql_parser.Expr) -> bool:
        if isinstance(part, promql_parser.VectorSelector):
            found.append(part)
        return True

    promql_parser.walk(promql_parser.parse(expression), look)
    return found


@pytest.mark.parametrize("query", list(queries()), ids=lambda query: query.where)
def test_expressions_read_metrics_and_labels_that_exist(query: Query) -> None:
    known = METRICS | OF_PROMETHEUS
    read = selectors(query.expression)
    assert read
    shown = set(query.shown)
    for selector in read:
        assert selector.name in known, f"no such metric: {selector.name}"
        labels = known[selector.name] | TARGET
        for matcher in selector.matchers.matchers:
            assert matcher.name in labels, f"{selector.name} has no label {matcher.name}"
            wanted = set(matcher.value.split("|"))
            values = labels[matcher.name]
            assert not values or wanted <= values, f"{selector.name}: {matcher.name} is never {wanted - values}"
        shown -= set(labels)
    assert not shown, f"shows labels that nothing has: {shown}"


def test_the_dashboard_shows_every_metric() -> None:
    shown = {
        selector.name
        for query in queries()
        if query.where.startswith("panel")
        for selector in selectors(query.expression)
    }
    assert set(METRICS) - shown == set()


def test_panels_lie_side_by_side_and_know_their_data_source() -> None:
    panels = dashboard()["panels"]
    cells: dict[tuple[int, int], str] = {}
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in cells, f"{panel['title']} lies on {cells[x, y]}"
                cells[x, y] = panel["title"]
    provided = yaml.safe_load((DOCKER / "grafana" / "datasources" / "prometheus.yaml").read_text())["datasources"]
    used = {target["datasource"]["uid"] for panel in panels for target in panel.get("targets", ())}
    assert used == {source["uid"] for source in provided}


def test_prometheus_reads_every_node_where_it_gives_its_metrics() -> None:
    jobs = {job["job_name"]: job for job in yaml.safe_load((DOCKER / "prometheus.yml").read_text())["scrape_configs"]}
    groups = jobs["ftis-node"]["static_configs"]
    read = {target: group["labels"]["role"] for group in groups for target in group["targets"]}
    ports = {
        service: (service.option("--status-address") or "").removeprefix("0.0.0.0:") for service in node_services()
    }
    roles = {"join": "party", "relay": "relay"}
    assert read == {f"{service.name}:{port}": roles[service.command[0]] for service, port in ports.items()}


def test_what_the_compose_file_mounts_is_there_and_where_grafana_looks() -> None:
    services = compose()["services"]
    mounts = {}
    for name in ("prometheus", "grafana"):
        for volume in services[name]["volumes"]:
            source, target, *_ = volume.split(":")
            if source.startswith("."):
                assert (DOCKER / source).exists(), source
                mounts[target] = DOCKER / source
    assert list((mounts["/etc/grafana/provisioning/datasources"]).glob("*.yaml"))
    (provider,) = (mounts["/etc/grafana/provisioning/dashboards"]).glob("*.yaml")
    folder = yaml.safe_load(provider.read_text())["providers"][0]["options"]["path"]
    home = Path(services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == folder
    assert (mounts[folder] / home.name).exists()
    (source,) = yaml.safe_load((DOCKER / "grafana/datasources/prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"


def test_prometheus_takes_the_configuration_and_alerts_when_it_should(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("NOT TESTED HERE, when alerts fire: apt-get install prometheus")
    for file in (DOCKER / "prometheus.yml", DOCKER / "alerts.yml", Path(__file__).parent / "data" / "alerts_test.yml"):
        shutil.copy(file, tmp_path)
    for arguments in (("check", "config", "prometheus.yml"), ("test", "rules", "alerts_test.yml")):
        done = subprocess.run([promtool, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
