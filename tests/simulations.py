"""Small simulations for tests, as Python values and as a file."""

import json
from pathlib import Path
from typing import Any

from ftis_node.sections import parse_section
from ftis_node.simulation.figures import EvaluationLine, RoundLine
from ftis_node.simulation.lockstep import Lockstep
from ftis_node.simulation.results import read_results
from ftis_node.simulation.runner import Study, prepare
from ftis_node.simulation.specification import SimulationSpec

STUDY = """\
rounds = 8
eval_every = 2
checkpoint_every = 2

[run]
tasks = [{ name = "addition", parameters = { terms = 3, largest = 19 } }]
group_size = 4
limits = { prompt_tokens = 64, completion_tokens = 48 }

[node]
model.name = "builtin:small"
training = { groups_per_step = 8, min_own_share = 0.5, agreement_every = 0, learning_rate = 3e-4 }
caps = { newcomer_groups = 0 }

[[parties]]
name = "ann"

[[parties]]
name = "bob"
node.model.name = "builtin:large-steps"
node.lora.rank = 4

[[evaluations]]
name = "sums"
task = "addition:test"
parameters = { terms = 3, largest = 19 }
items = 20
"""


def write_study(folder: Path, text: str = STUDY) -> Path:
    path = folder / "study.toml"
    path.write_text(text)
    return path


def party(name: str, *, training: dict[str, Any] | None = None, caps: dict[str, Any] | None = None, **rest: Any) -> Any:
    """A party with a small model as raw values; every group takes a place, so that counts are known beforehand."""
    settings = {
        "groups_per_step": 8, "min_own_share": 0.5, "agreement_every": 0, "learning_rate": 3e-4, "places": "any",
    }  # fmt: skip
    node = {
        "model": {"name": "builtin:small"},
        "training": {**settings, **(training or {})},
        "caps": {"newcomer_groups": 0, **(caps or {})},
        **rest.pop("node", {}),
    }
    return {"name": name, "node": node, **rest}


def make_spec(*parties: Any, **rest: Any) -> SimulationSpec:
    """A simulation of these parties (Ann and Bob if none is given) on sums of three numbers."""
    data = {
        "name": "test",
        "rounds": 3,
        "run": {
            "tasks": [{"name": "addition", "parameters": {"terms": 3, "largest": 19}}],
            "group_size": 4,
            "limits": {"prompt_tokens": 64, "completion_tokens": 48},
        },
        "parties": parties or (party("ann"), party("bob")),
        **rest,
    }
    return parse_section(SimulationSpec, data, source="test")


def lockstep(spec: SimulationSpec, *, seed: int = 0) -> Lockstep:
    study: Study = prepare(spec)
    return Lockstep(spec, study.run, study.tasks, seed=seed)


def rounds_of(spec: SimulationSpec, *, seed: int = 0) -> dict[str, list[RoundLine]]:
    """Every party's lines."""
    simulation = lockstep(spec, seed=seed)
    lines = [line for _ in range(spec.rounds) for line in simulation.advance()]
    return {party.name: [line for line in lines if line.party == party.name] for party in spec.parties}


def numbers(path: Path) -> list[str]:
    """All lines of a result file without what is a time."""
    read_results(path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [json.dumps({k: v for k, v in line.items() if k not in ("seconds", "made_at")}) for line in lines]


def accuracies(path: Path, round_number: int) -> list[EvaluationLine]:
    return [line for line in read_results(path).evaluations if line.round == round_number]
