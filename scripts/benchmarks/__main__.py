"""Runs benchmarks, every measurement in a fresh process, and prints their figures as one JSON document."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

RUNS = 3
PARTS = ("generation", "step", "trl", "wire", "swarm", "health")
# The last: a rate at which one process can receive all that 96 nodes send one another.
SWARMS = (("8",), ("32",), ("96",), ("96", "60"))


def measure(part: str, *arguments: str) -> dict[str, float]:
    """One run of one variant in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", f"scripts.benchmarks.{part}", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{part} {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def compare(part: str, variants: Sequence[str] = ("ours", "reference")) -> dict[str, Any]:
    """Medians over runs that alternate between ours and the references, and the ratios to each of these."""
    runs: dict[str, list[dict[str, float]]] = {variant: [] for variant in variants}
    for _ in range(RUNS):
        for variant, results in runs.items():
            results.append(measure(part, variant))
    medians = {
        variant: {key: statistics.median(result[key] for result in results) for key in results[0]}
        for variant, results in runs.items()
    }
    ratios = {
        f"ours_over_{reference}": {key: medians["ours"][key] / medians[reference][key] for key in medians["ours"]}
        for reference in variants[1:]
    }
    return {**medians, **ratios, "runs": RUNS}


def main() -> None:
    wanted = sys.argv[1:] or list(PARTS)
    unknown = sorted(set(wanted) - set(PARTS))
    if unknown:
        sys.exit(f"scripts/bench: there is no benchmark {unknown[0]!r}; there are {', '.join(PARTS)}")
    results: dict[str, Any] = {"machine": {"cpu_count": os.cpu_count(), "python": platform.python_version()}}
    for part in wanted:
        if part in ("wire", "health"):
            results[part] = measure(part)
        elif part == "swarm":
            results[part] = [measure(part, *arguments) for arguments in SWARMS]
        elif part == "trl":
            results[part] = compare(part, ("ours", "reference", "reference-malloc"))
        else:
            results[part] = compare(part)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
