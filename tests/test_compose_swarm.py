"""The compose file's own commands, each on a machine of its own that finds the others by their service names.

What it can't show without a container engine: limits, read-only roots and networks.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from ftis_node.errors import StoreError
from ftis_node.status.judgement import judge
from ftis_node.status.snapshot import NodeStatus, read_status
from tests.compose import DOCKER, NodeService, node_services
from tests.netlab.hosts import Host, lab
from tests.test_machines import until

pytestmark = pytest.mark.slow

ENTRYPOINT = "ftis-node"
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


@dataclass(frozen=True)
class Container:
    """A service's process on its host; ``volume`` is what the container sees as /data, its HOME."""

    service: NodeService
    host: Host
    volume: Path
    log: Path
    process: subprocess.Popen[bytes]

    def check_health(self) -> int:
        """The health check as its container would run it, except where the volume lies."""
        text = self.service.health_check.replace("/data", str(self.volume))
        line = [*self.host.prefix, "env", f"PATH={PATH}", "sh", "-c", text]
        return subprocess.run(line, capture_output=True, check=False, timeout=20).returncode

    def status(self) -> NodeStatus | None:
        """None until there is a store that can be read."""
        try:
            return read_status(self.volume / ".ftis-node")
        except StoreError:
            return None


@contextlib.contextmanager
def up(service: NodeService, host: Host, folder: Path) -> Iterator[Container]:
    """Like `docker compose up` for one service; killed at the end if it still runs."""
    volume = folder / service.name
    volume.mkdir()
    log = folder / f"{service.name}.log"
    environment = {**os.environ, "PATH": PATH, "HOME": str(volume)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*host.prefix, ENTRYPOINT, *service.command], env=environment, stdin=subprocess.DEVNULL, stdout=output,
            stderr=output,
        )  # fmt: skip
    try:
        yield Container(service, host, volume, log, process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)


def trains_with_others(status: NodeStatus | None) -> bool:
    """Two rounds are done, and groups of peers were among them."""
    if status is None or status.last_round is None:
        return False
    return status.last_round.round >= 2 and status.last_round.totals.peers.trained > 0


def metrics_by_name(reader: Host, target: str) -> str:
    """What Prometheus would get, read from another host by the service's name."""
    program = f"import urllib.request as r; print(r.urlopen('http://{target}/metrics', timeout=10).read().decode())"
    return reader.run(sys.executable, "-c", program)


def test_the_services_of_the_compose_file_make_a_swarm(tmp_path: Path) -> None:
    """Up, two rounds with samples of others, healthy, read by Prometheus, and down in order within the grace period."""
    with lab() as machines, contextlib.ExitStack() as stack:
        hosts = {service.name: machines.host() for service in node_services()}
        machines.name(hosts)
        swarm = [stack.enter_context(up(service, hosts[service.name], tmp_path)) for service in node_services()]
        (relay,) = (container for container in swarm if container.service.command[0] == "relay")
        parties = [container for container in swarm if container is not relay]

        def logs() -> str:
            return "\n".join(f"{c.service.name}: {c.log.read_text()[-1500:]}" for c in swarm)

        def running_and(condition: bool) -> bool:
            assert [c.process.poll() for c in swarm] == [None] * len(swarm), logs()
            return condition

        until(
            lambda: running_and(all(trains_with_others(party.status()) for party in parties)),
            "every party trains on samples of others", 180, logs,
        )  # fmt: skip

        def in_dht() -> bool:
            status = relay.status()
            return status is not None and status.dht == f"on, {len(parties)} nodes known"

        until(in_dht, "the relay knows all parties in the DHT", 60, lambda: str(relay.status()))

        def healthy() -> bool:
            found = [container.status() for container in swarm]
            return all(status is not None and judge(status).level == 0 for status in found)

        until(healthy, "all are healthy", 60, logs)
        assert [container.check_health() for container in swarm] == [0] * len(swarm)

        (job, _) = yaml.safe_load((DOCKER / "prometheus.yml").read_text())["scrape_configs"]
        targets = [target for group in job["static_configs"] for target in group["targets"]]
        for target in targets:
            metrics = metrics_by_name(relay.host, target)
            assert "ftis_health_level 0.0" in metrics
            assert ("ftis_learner_running 1.0" in metrics) == (target.partition(":")[0] != relay.service.name)

        asked = time.monotonic()
        for container in swarm:
            container.process.terminate()
        for container in swarm:
            left = asked + container.service.stop_grace_seconds - time.monotonic()
            assert container.process.wait(left) == 0, logs()
            assert container.check_health() == 1, "a node that is stopped is unreachable"
