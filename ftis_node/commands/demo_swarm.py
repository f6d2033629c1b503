"""The demo's node daemons: real `ftis-node join` processes with homes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from ftis_node.config import NodeConfig, load_node_config
from ftis_node.errors import FtisError, StoreError
from ftis_node.status.snapshot import NodeStatus, read_status

START_SECONDS = 60.0
STOP_SECONDS = 8.0
POLL_SECONDS = 0.2


class DemoError(FtisError):
    """A daemon of the demo ended or did not start."""


@dataclass(frozen=True)
class DemoParty:
    """One party of the demo: its model and what it may choose for itself."""

    name: str
    model: str
    learning_rate: float
    lora_rank: int = 0

    @property
    def seed(self) -> int:
        """Of the adapter's first weights and of all sampling."""
        return zlib.crc32(self.name.encode())

    def settings(self) -> list[str]:
        """What holds in every phase, as ``--set`` values."""
        return [
            f"model.name='{self.model}'",
            f"training.learning_rate={self.learning_rate}",
            f"training.seed={self.seed}",
            "training.torch_threads=1",
            f"lora.rank={self.lora_rank}",
            f"lora.alpha={2.0 * max(self.lora_rank, 1)}",
        ]


def party_config(party: DemoParty) -> NodeConfig:
    """The party's configuration without what concerns a phase."""
    return load_node_config(None, tuple(party.settings()))


def phase_settings(parties: int, *, rounds: int, own_groups: int, together: bool) -> list[str]:
    """How long a phase's nodes train, as ``--set`` values: alone as together, but for the peers."""
    groups = own_groups * parties
    return [
        f"training.max_rounds={rounds}",
        f"training.checkpoint_every={rounds}",
        f"training.groups_per_step={groups}",
        f"training.min_own_share={own_groups / groups!r}",
        # A third for each: else the fastest node, whose model is the weakest, would fill what the caps allow.
        f"caps.author_share={own_groups / groups!r}",
        f"network.dht='{'on' if together else 'off'}'",
        # All nodes are of one owner and on one machine: nobody is a newcomer, and there is one range.
        "caps.range_share=1.0",
        "caps.newcomer_groups=0",
    ]


class DemoNode:
    """A daemon, its home and its log."""

    def __init__(
        self, party: DemoParty, folder: Path, settings: list[str], *, run_file: Path, peers: str | None
    ) -> None:
        self.party = party
        self.home = folder / party.name
        self.log_file = folder / f"{party.name}.log"
        command = [sys.executable, "-m", "ftis_node", "join", "--home", str(self.home), "--run", str(run_file)]
        command += ["--listen", "127.0.0.1:0", "--until-stdin-closes"]
        command += [part for setting in settings for part in ("--set", setting)]
        if peers is not None:
            command += ["--peers", peers]
        with self.log_file.open("wb") as log:
            # A session of its own: Ctrl-C reaches the demo alone, which then ends its nodes in order.
            # The pipe is the lifeline: if the demo dies in whatever way, its nodes end too.
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip

    def status(self) -> NodeStatus | None:
        """What ``health`` would show; None while there is no store yet. Raises DemoError when the daemon ended."""
        if self.process.poll() is not None:
            tail = self.log_file.read_text(errors="replace").strip().splitlines()[-5:]
            raise DemoError(f"node {self.party.name!r} ended with code {self.process.returncode}: " + " | ".join(tail))
        try:
            return read_status(self.home)
        except StoreError:
            return None

    def address(self) -> str:
        """Where it listens; waits until it does."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            status = self.status()
            if status is not None and status.listening is not None:
                return status.listening
            time.sleep(POLL_SECONDS)
        raise DemoError(f"node {self.party.name!r} does not listen after {START_SECONDS:.0f} s; see {self.log_file}")


def start_nodes(
    parties: tuple[DemoParty, ...], folder: Path, *, run_file: Path, rounds: int, own_groups: int, together: bool
) -> list[DemoNode]:
    """Start one daemon per party: dialling the first one, or each for itself."""
    folder.mkdir(parents=True, exist_ok=True)
    nodes: list[DemoNode] = []
    try:
        phase = phase_settings(len(parties), rounds=rounds, own_groups=own_groups, together=together)
        for party in parties:
            peers = nodes[0].address() if together and nodes else None
            nodes.append(DemoNode(party, folder, [*party.settings(), *phase], run_file=run_file, peers=peers))
    except BaseException:  # Ctrl-C too: no daemon may outlive a start that did not succeed
        stop_nodes(nodes)
        raise
    return nodes


def stop_nodes(nodes: list[DemoNode]) -> None:
    """End all daemons: in order, and by force after ``STOP_SECONDS`` or at a second Ctrl-C."""
    try:
        for node in nodes:
            if node.process.poll() is None:
                node.process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for node in nodes:
            node.process.wait(max(0.1, deadline - time.monotonic()))
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        for node in nodes:
            # The daemon's learner ends with it: its lifeline closes.
            node.process.send_signal(signal.SIGKILL)
    for node in nodes:
        node.process.wait()
        if node.process.stdin is not None:
            node.process.stdin.close()
