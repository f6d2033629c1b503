"""Real node daemons on loopback for tests: started, watched, stopped or killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ftis_node.commands.init import run_toml
from ftis_node.errors import StoreError
from ftis_node.status.snapshot import NodeStatus, read_status
from ftis_node.store.schema import STORE_FILE

START_SECONDS = 90.0


def write_run(folder: Path, name: str = "test", *, group_size: int = 4) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.toml"
    path.write_text(run_toml(name).replace("group_size = 8", f"group_size = {group_size}"))
    return path


class Daemon:
    """One ``ftis-node join`` process. Its log goes to ``HOME.log``."""

    def __init__(
        self, home: Path, *, run: Path | None = None, peers: tuple[str, ...] = (), sets: tuple[str, ...] = (),
        env: dict[str, str] | None = None, command: str = "join", listen: str = "127.0.0.1:0",
        arguments: tuple[str, ...] = (), dht: bool = False, prefix: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.home = home
        self.log_file = home.with_suffix(".log")
        line = [*prefix, sys.executable, "-m", "ftis_node", command, "--home", str(home), "--listen", listen]
        line += ["--until-stdin-closes", *arguments]
        line += [] if dht else ["--no-dht"]
        line += ["--run", str(run)] if run is not None else []
        line += ["--peers", ",".join(peers)] if peers else []
        line += [part for value in ("training.torch_threads=1", *sets) for part in ("--set", value)]
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                line, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            )  # fmt: skip

    def __enter__(self) -> "Daemon":
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.kill()
        if self.process.stdin is not None:
            self.process.stdin.close()

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def status(self) -> NodeStatus:
        return read_status(self.home)

    def until(self, condition: Callable[[NodeStatus], bool], what: str, seconds: float = START_SECONDS) -> NodeStatus:
        """Wait for something that the status shows."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if (self.home / STORE_FILE).exists():
                try:
                    status: NodeStatus | None = self.status()
                except StoreError:  # it is being made
                    status = None
                if status is not None and condition(status):
                    return status
            if self.process.poll() is not None:
                pytest.fail(f"the daemon ended with {self.process.returncode} before {what}:\n{self.log[-2000:]}")
            time.sleep(0.05)
        pytest.fail(f"not within {seconds:.0f} s: {what}\n{self.log[-3000:]}")

    def address(self) -> str:
        listening = self.until(lambda status: status.listening is not None, "it listens").listening
        assert listening is not None
        return listening

    def after_round(self, number: int, seconds: float = START_SECONDS) -> NodeStatus:
        return self.until(
            lambda s: s.last_round is not None and s.last_round.round >= number, f"round {number} is done", seconds
        )

    def finished(self) -> NodeStatus:
        return self.until(lambda status: status.learner == "finished", "all rounds are done")

    def terminate(self) -> int:
        """SIGTERM, as an operator stops a node; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(40)

    def kill(self) -> None:
        """SIGKILL to the network half; its learner must end by itself."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)


def processes(command_line: str) -> list[int]:
    """Ids of the running processes whose command line contains this; zombies don't run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            continue
        if command_line in line and state != "Z":
            found.append(int(folder.name))
    return found


def learners_of(home: Path) -> list[int]:
    return processes(f"ftis_node.commands.learner {home} ")


def wait_for_unlocked(home: Path) -> None:
    """Until no process of a killed daemon uses the store any more."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not learners_of(home):
            return
        time.sleep(0.05)
    pytest.fail("10 s after SIGKILL of the daemon its learner is still alive")
