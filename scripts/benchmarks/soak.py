"""Three nodes at many rounds a second, their metrics scraped every second: does anything grow?

    python -m scripts.benchmarks.soak MINUTES [SETTLING_MINUTES]

Prints one JSON document: for every process the slope of its resident memory after the settling time, and how many
files and threads it had at the least and at the most; for every node the sizes of store and log.
"""

from __future__ import annotations

import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ftis_node.commands.init import run_toml

PROCESSES = ("network", "learner")
MODELS = ("builtin:small", "builtin:large", "builtin:small")
START_SECONDS = 90.0
SCRAPE_SECONDS = 1.0
MIB = 2**20
# Live batches age out within a minute, so that the store reaches its size long before the end.
SHORT_LIFE = {"max_age_seconds = 1800": "max_age_seconds = 60", "quota = 4096": "quota = 65536"}
SETS = (
    "training.groups_per_step=4", "training.collect_timeout=2", "training.torch_threads=1",
    "training.checkpoint_every=20", "training.agreement_every=20",
)  # fmt: skip


@dataclass(frozen=True)
class Held:
    """What a process held after the settling time; ``files`` and ``threads`` at the least and at the most."""

    resident_mib: float
    resident_slope_mib_per_minute: float
    files_least: float
    files_most: float
    threads_least: float
    threads_most: float


@dataclass(frozen=True)
class NodeReport:
    """Of one node; its sizes are those of its store with all files beside it, and of its log."""

    rounds: float
    peers_sequences_trained: float
    processes: dict[str, Held]
    store_mib_at_settling: float
    store_mib_most: float
    log_kib: float
    exit_code: int


@dataclass(frozen=True)
class SoakReport:
    minutes: float
    settling_minutes: float
    scrapes: int
    slowest_scrape_seconds: float
    nodes: dict[str, NodeReport]


@dataclass
class Samples:
    """Of one process; ``seconds`` since the start."""

    seconds: list[float] = field(default_factory=list)
    resident: list[float] = field(default_factory=list)
    files: list[float] = field(default_factory=list)
    threads: list[float] = field(default_factory=list)

    def since(self, begin: float) -> Samples:
        keep = [i for i, at in enumerate(self.seconds) if at >= begin]
        return Samples(*([values[i] for i in keep] for values in vars(self).values()))

    def report(self) -> Held:
        slope = statistics.linear_regression(self.seconds, self.resident).slope
        return Held(
            resident_mib=statistics.median(self.resident) / MIB,
            resident_slope_mib_per_minute=slope * 60 / MIB,
            files_least=min(self.files),
            files_most=max(self.files),
            threads_least=min(self.threads),
            threads_most=max(self.threads),
        )


class Node:
    """One daemon, its log in a file beside its home."""

    def __init__(self, home: Path, model: str, *arguments: str) -> None:
        self.home, self.log = home, home.with_suffix(".log")
        sets = [part for value in SETS for part in ("--set", value)]
        line = [sys.executable, "-m", "ftis_node", "join", "--home", str(home), "--model", model, "--no-dht"]
        line += ["--listen", "127.0.0.1:0", "--status-address", "127.0.0.1:0", "--until-stdin-closes", *arguments]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([*line, *sets], stdin=subprocess.PIPE, stdout=log, stderr=log)
        self.samples = {name: Samples() for name in PROCESSES}

    def said(self, pattern: str) -> str:
        """What the log says, once it does."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            if (found := re.search(pattern, self.log.read_text())) is not None:
                return found[1]
            time.sleep(0.1)
        raise SystemExit(f"{self.home.name} did not say {pattern!r}:\n{self.log.read_text()[-2000:]}")

    def scrape(self, at: float) -> dict[str, float]:
        """One reading of /metrics, by name with labels."""
        with urllib.request.urlopen(f"{self.page}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        values = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}
        for name, samples in self.samples.items():
            label = f'{{process="{name}"}}'
            if f"ftis_resident_memory_bytes{label}" in values:
                samples.seconds.append(at)
                samples.resident.append(values[f"ftis_resident_memory_bytes{label}"])
                samples.files.append(values[f"ftis_open_files{label}"])
                samples.threads.append(values[f"ftis_threads{label}"])
        return values

    def start(self) -> None:
        self.page = self.said(r"status page: (http://\S+)").rstrip("/")

    def end(self) -> None:
        """However it is; its learner ends with it."""
        if self.process.poll() is None:
            self.process.kill()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def soak(folder: Path, minutes: float, settling: float) -> SoakReport:
    """Run the nodes and watch them."""
    run = folder / "run.toml"
    text = run_toml("soak").replace("group_size = 8", "group_size = 4")
    for old, new in SHORT_LIFE.items():
        text = text.replace(old, new)
    run.write_text(text)
    nodes = [Node(folder / "node-0", MODELS[0], "--run", str(run))]
    try:
        seed = nodes[0].said(r"listens on (\S+)")
        nodes += [Node(folder / f"node-{i}", model, "--peers", seed) for i, model in enumerate(MODELS[1:], 1)]
        for node in nodes:
            node.start()
        return _watch(nodes, minutes, settling)
    finally:
        for node in nodes:
            node.end()


def _watch(nodes: list[Node], minutes: float, settling: float) -> SoakReport:
    started, slowest, values = time.monotonic(), 0.0, [dict[str, float]() for _ in nodes]
    sizes: list[tuple[float, list[float]]] = []
    while (at := time.monotonic() - started) < minutes * 60:
        for index, node in enumerate(nodes):
            before = time.monotonic()
            values[index] = node.scrape(at)
            slowest = max(slowest, time.monotonic() - before)
        sizes.append((at, [value["ftis_store_bytes"] for value in values]))
        time.sleep(max(0.0, SCRAPE_SECONDS - (time.monotonic() - started - at)))
    later = [size for at, size in sizes if at >= settling * 60]
    return SoakReport(
        minutes=minutes,
        settling_minutes=settling,
        scrapes=len(sizes),
        slowest_scrape_seconds=slowest,
        nodes={
            node.home.name: NodeReport(
                rounds=values[index]["ftis_round"],
                peers_sequences_trained=values[index]['ftis_sequences_total{origin="peers",outcome="trained"}'],
                processes={name: samples.since(settling * 60).report() for name, samples in node.samples.items()},
                store_mib_at_settling=later[0][index] / MIB,
                store_mib_most=max(size[index] for size in later) / MIB,
                log_kib=node.log.stat().st_size / 1024,
                exit_code=node.stop(),
            )
            for index, node in enumerate(nodes)
        },
    )


def main() -> None:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    settling = float(sys.argv[2]) if len(sys.argv) > 2 else 5.0
    with tempfile.TemporaryDirectory(prefix="ftis-node-soak-") as folder:
        print(json.dumps(asdict(soak(Path(folder), minutes, settling)), indent=2))


if __name__ == "__main__":
    main()
