"""Makes ftis_node/builtin/: tiny models with a mediocre start on the addition task. See ``schooling.py``.

Usage: scripts/make-builtin-models [NAME ...]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from ftis_node.config import LoraConfig, ModelConfig
from ftis_node.evaluate import greedy_accuracy
from ftis_node.manifest import Parameter
from ftis_node.models import load_model
from ftis_node.rollout.transformers import TransformersEngine
from ftis_node.tasks.registry import TaskSources, build_task
from scripts.schooling import Kind, Stage, Start, school

TARGET = Path(__file__).resolve().parent.parent / "ftis_node" / "builtin"
NEAR: Mapping[str, Parameter] = {"terms": 3, "largest": 19}
FAR: Mapping[str, Parameter] = {"terms": 3, "largest": 29}
EVALUATED: Mapping[str, Mapping[str, Parameter]] = {
    "3 numbers to 19": NEAR,
    "3 numbers to 29": FAR,
    "3 numbers from 10 to 29": {"terms": 3, "smallest": 10, "largest": 29},
    "4 numbers to 19": {"terms": 4, "largest": 19},
    "2 numbers to 29": {"terms": 2, "largest": 29},
}


def sums(far: float) -> tuple[Kind, ...]:
    """Sums of three numbers up to 19, and this share of them up to 29."""
    return Kind(far, "addition", FAR), Kind(1 - far, "addition", NEAR)


# Tokens for the numbers from 10 to 99, and for a digit with the sign of equality behind it: 24+3=27 is 24 + 3= 27.
MERGES = (
    *((str(tens), str(ones)) for tens in range(1, 10) for ones in range(10)),
    *((str(digit), "=") for digit in range(10)),
)

SCHOOL_SMALL = Stage(2400, 2e-3, step_by_step=0.7, wrong_direct=0.1, wrong_steps=0.05, kinds=sums(0.3))
SCHOOL_LARGE = Stage(1400, 1e-3, step_by_step=0.7, wrong_direct=0.1, wrong_steps=0.05, kinds=sums(0.3))
SCHOOL_STEPS = Stage(620, 1e-3, step_by_step=0.9, wrong_direct=0.3, wrong_steps=0.3, kinds=sums(0.5))
HABIT_SMALL = Stage(100, 1e-3, step_by_step=0.15, wrong_direct=0.85, wrong_steps=0.05, kinds=sums(0.3))
HABIT_LARGE = Stage(50, 5e-4, step_by_step=0.15, wrong_direct=0.85, wrong_steps=0.05, kinds=sums(0.3))

STARTS = (
    Start("small", hidden=64, layers=2, seed=1, stages=(SCHOOL_SMALL, HABIT_SMALL)),
    Start("large", hidden=128, layers=4, seed=2, stages=(SCHOOL_LARGE, HABIT_LARGE)),
    Start("large-steps", hidden=128, layers=4, seed=3, stages=(SCHOOL_STEPS,)),
    Start("merged", hidden=64, layers=2, seed=4, stages=(SCHOOL_SMALL, HABIT_SMALL), merges=MERGES),
)


def print_accuracy(folder: Path, items: int = 500) -> None:
    """Greedy accuracy on test items."""
    loaded = load_model(ModelConfig(name=str(folder), device="cpu"), LoraConfig(), seed=0)
    engine = TransformersEngine(loaded.model, loaded.vocabulary, pad_id=loaded.pad_id, decode_rows=256)
    size = sum(parameter.numel() for parameter in loaded.model.parameters())
    for label, parameters in EVALUATED.items():
        task = build_task("addition:test", parameters, TaskSources())
        accuracy = greedy_accuracy(engine, loaded, task, limit=items, max_tokens=48).accuracy
        print(f"{folder.name}: {size} parameters, {label}: greedy accuracy {accuracy:.3f}", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    wanted = sys.argv[1:] or [start.name for start in STARTS]
    unknown = sorted(set(wanted) - {start.name for start in STARTS})
    if unknown:
        sys.exit(f"make-builtin-models: no model {unknown[0]!r}; there are {', '.join(start.name for start in STARTS)}")
    for start in STARTS:
        if start.name in wanted:
            model, tokenizer = school(start)
            model.save_pretrained(TARGET / start.name)
            tokenizer.save_pretrained(TARGET / start.name)
            print_accuracy(TARGET / start.name)


if __name__ == "__main__":
    main()
