"""Those who look at a node from outside: the status page, and the trackers that report its rounds elsewhere.

Nothing that they do, or fail to do, holds the node up: the page has a thread of its own, every tracker a process.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from ftis_node.config import DEFAULT_STATUS_ADDRESS, StatusConfig, TrackingConfig
from ftis_node.log import LogSettings
from ftis_node.status.figures import LearnerPid
from ftis_node.status.server import SPARE_PORTS, StatusServer, bind, warn_if_open
from ftis_node.swarm.addresses import parse_address
from ftis_node.tracking.process import TrackerProcess, check_installed

log = logging.getLogger(__name__)

OFF = "off"


def open_page(home: Path, config: StatusConfig, learner_pid: LearnerPid) -> StatusServer | None:
    """Begin to serve the status page, or say why there is none. Raises ConfigError for an address that can't be used.

    Only the default address may be taken, by another node on this machine: then a port behind it is used.
    """
    if config.address == OFF:
        return None
    address = parse_address(config.address, source="status.address", lowest_port=0)
    spare_ports = SPARE_PORTS if config.address == DEFAULT_STATUS_ADDRESS else 0
    listener = bind(address.host, address.port, spare_ports=spare_ports)
    if listener is None:
        last = address.port + spare_ports
        log.warning("no status page: ports %d to %d are taken; choose one with --status-address", address.port, last)
        return None
    page = StatusServer(home, address.host, listener, learner_pid)
    page.start()
    log.info("status page: %s", page.url)
    warn_if_open(address.host, page.url)
    return page


class Trackers:
    """One process for each that is configured. Raises ConfigError when a tracker's package isn't installed."""

    def __init__(self, home: Path, config: TrackingConfig, log_settings: LogSettings) -> None:
        targets = {"tensorboard": config.tensorboard, "wandb": config.wandb}
        wanted = {kind: target for kind, target in targets.items() if target != OFF}
        for kind in wanted:
            check_installed(kind)
        self._processes = [TrackerProcess(kind, target, home, log_settings) for kind, target in wanted.items()]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(process.run()) for process in self._processes]

    async def stop(self) -> None:
        """All at the same time, each within its limit."""
        await asyncio.gather(*(process.stop() for process in self._processes))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
