"""Evaluations of a simulation's parties; a start is evaluated once in a process, however many runs begin with it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping

import torch

from ftis_node.evaluate import greedy_accuracy
from ftis_node.simulation.figures import EvaluationLine, evaluation_line
from ftis_node.simulation.node import SimulatedNode
from ftis_node.simulation.specification import EvaluationSet, SimulationSpec
from ftis_node.tasks.task import Task


class Evaluator:
    """Remembers what it found before the first round: other seeds and methods begin with the same weights."""

    def __init__(self) -> None:
        self._starts: dict[str, EvaluationLine] = {}

    def evaluate(
        self, spec: SimulationSpec, node: SimulatedNode, wanted: EvaluationSet, task: Task, *, round_number: int,
        at_an_end: bool,
    ) -> EvaluationLine:  # fmt: skip
        """Greedy accuracy after this round; ``at_an_end``, that is at the start and the end, on more items."""
        started = time.monotonic()
        key = _key(spec, node, wanted) if round_number == 0 and at_an_end else None
        line = self._starts.get(key) if key is not None else None
        if line is None:
            found = greedy_accuracy(
                node.party.engine,
                node.party.loaded,
                task,
                limit=wanted.items if at_an_end or wanted.items_between is None else wanted.items_between,
                max_tokens=_max_tokens(spec, wanted),
            )
            line = evaluation_line(round_number, node.spec.name, wanted, found, time.monotonic() - started)
            if key is not None:
                self._starts[key] = line
        return line.model_copy(
            update={"party": node.spec.name, "seconds": round(time.monotonic() - started, 4)},
        )


def evaluation_due(spec: SimulationSpec, round_number: int) -> bool:
    """In lockstep: after this round."""
    return round_number in (0, spec.rounds) or bool(spec.eval_every and round_number % spec.eval_every == 0)


def _max_tokens(spec: SimulationSpec, wanted: EvaluationSet) -> int:
    return wanted.max_tokens or spec.run.limits.completion_tokens


def _key(spec: SimulationSpec, node: SimulatedNode, wanted: EvaluationSet) -> str:
    """Of all that an evaluation depends on."""
    node_config = node.spec.node
    said = (node_config.model, node_config.lora, node_config.rollout, spec.data, wanted)
    digest = hashlib.sha256("\n".join(section.model_dump_json() for section in said).encode())
    digest.update(f"\n{_max_tokens(spec, wanted)} {spec.torch_threads}\n".encode())
    digest.update(_weights_digest(node.party.loaded.model.state_dict()))
    return digest.hexdigest()


def _weights_digest(weights: Mapping[str, torch.Tensor]) -> bytes:
    digest = hashlib.sha256()
    for name, tensor in weights.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()
