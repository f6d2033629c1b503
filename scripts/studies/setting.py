"""The sizes in which every study runs: which models, tasks, rounds, items and seeds stand behind its words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ftis_node.sections import parse_section
from ftis_node.simulation.pace import Costs
from ftis_node.simulation.specification import EvaluationSet, SimulationSpec
from scripts.studies.sets import TASKS, evaluation_sets

Size = Literal["tiny", "paper", "miniature"]
SIZES: tuple[Size, ...] = ("tiny", "paper", "miniature")


@dataclass(frozen=True)
class Model:
    """What a party trains. ``rank`` is that of its LoRA adapter; 0 trains all weights."""

    name: str
    learning_rate: float
    rank: int = 0

    @property
    def sections(self) -> dict[str, Any]:
        lora = {"rank": self.rank, "alpha": 2.0 * self.rank} if self.rank else {}
        return {"model": {"name": self.name}, "lora": lora, "training": {"learning_rate": self.learning_rate}}


@dataclass(frozen=True)
class Seeds:
    """How many seeds: in study 1, where a claim is made, elsewhere, and where the learning rate is chosen."""

    headline: range
    claim: range
    other: range
    choice: range

    def at_most(self, count: int) -> Seeds:
        return Seeds(self.headline[:count], self.claim[:count], self.other[:count], self.choice[:count])


@dataclass(frozen=True)
class Setting:
    """``models`` by the words of the studies: small, large, large-lora, adder, subtracter, merged and so on.

    ``tasks`` are what is trained on, ``skills`` what the parties of different expertise are.
    """

    size: Size
    models: Mapping[str, Model]
    tasks: tuple[Mapping[str, Any], ...]
    skills: tuple[Mapping[str, Any], ...]
    evaluations: tuple[EvaluationSet, ...]
    skill_evaluations: tuple[EvaluationSet, ...]
    limits: Mapping[str, Any]
    seeds: Seeds
    rounds: int
    eval_every: int
    group_size: int
    groups_per_step: int
    decode_rows: int
    learning_rates: tuple[float, ...]
    targets: Mapping[str, float]
    """Accuracy in distribution that study 6 waits for, by model: about what ``alone`` has after half of its rounds, on
    the seeds that the learning rate was chosen with."""

    data: Mapping[str, str] = field(default_factory=dict)

    def simulation(
        self, name: str, parties: Mapping[str, str], *, ftis: Mapping[str, Any] | None = None,
        training: Mapping[str, Any] | None = None, caps: Mapping[str, Any] | None = None,
        harm: Mapping[str, Mapping[str, Any]] | None = None, costs: Mapping[str, Costs] | None = None,
        skills: bool = False, **fields: Any,
    ) -> SimulationSpec:  # fmt: skip
        """``parties`` maps names to models; ``harm`` has what is hostile about one. The batch is shared out evenly.

        ``fields`` are the specification's own, and go before what is said here.
        """
        evaluations = self.skill_evaluations if skills else self.evaluations
        spec = {
            "name": name,
            "rounds": self.rounds,
            "eval_every": self.eval_every,
            "run": {
                "tasks": self.skills if skills else self.tasks, "group_size": self.group_size, "limits": self.limits
            },
            "parties": [
                {"name": party, "node": self._node(model, share, ftis, training, caps), **hostile, **cost}
                for party, model in parties.items()
                for hostile in [(harm or {}).get(party, {})]
                # Who harms samples whole batches of its own: it learns from nobody, and sends the others several times
                # what they expect.
                for share in [1.0 if hostile else 1 / len(parties)]
                for cost in [{"costs": costs[party]} if costs else {}]
            ],
            "evaluations": evaluations,
            "data": {"files": dict(self.data)},
            **fields,
        }  # fmt: skip
        return parse_section(SimulationSpec, spec, source=f"study, simulation {name}")

    @property
    def evaluated_inside(self) -> Mapping[str, Any]:
        """Fields for studies of many arms, which ask for the accuracy in distribution alone, and for that seldom."""
        inside = tuple(wanted for wanted in self.evaluations if wanted.distribution == "in")
        return {"evaluations": inside, "eval_every": 4 * self.eval_every}

    def _node(
        self, model: str, own_share: float, ftis: Mapping[str, Any] | None, training: Mapping[str, Any] | None,
        caps: Mapping[str, Any] | None,
    ) -> dict[str, Any]:  # fmt: skip
        sections = self.models[model].sections
        sections["training"] |= {
            "groups_per_step": self.groups_per_step, "min_own_share": own_share, "agreement_every": 0,
            "places": "any", **(training or {}),
        }  # fmt: skip
        # Who takes part is fixed: nobody is a newcomer.
        sections["caps"] = {"newcomer_groups": 0, **(caps or {})}
        sections["rollout"] = {"decode_rows": self.decode_rows}
        sections["ftis"] = dict(ftis or {})
        return sections


def _tasks(*names: str) -> tuple[Mapping[str, Any], ...]:
    return tuple({"name": TASKS[name][0], "parameters": TASKS[name][1]} for name in names)


def _with_both_skills(sets: tuple[EvaluationSet, ...]) -> tuple[EvaluationSet, ...]:
    """Where parties of different expertise are trained on both operations, both are in distribution."""
    return tuple(
        wanted.model_copy(update={"distribution": "in"}) if wanted.name == "other-operation" else wanted
        for wanted in sets
    )


def tiny(starts: Mapping[str, Path]) -> Setting:
    """Starts are made by ``starts.py``; the rates are those that ``learning_rate.py`` found best."""
    sets = evaluation_sets(2000, {"in": 500, "out": 100})
    return Setting(
        size="tiny",
        models={
            name: Model(str(folder), SMALL_RATE if name.startswith(("small", "merged")) else LARGE_RATE)
            for name, folder in starts.items()
        }
        | {"large-lora": Model(str(starts["large"]), LORA_RATE, rank=16)},
        tasks=_tasks("in"),
        skills=_tasks("in", "other-operation"),
        evaluations=sets,
        skill_evaluations=_with_both_skills(sets),
        limits={"prompt_tokens": 64, "completion_tokens": 48},
        seeds=Seeds(range(10), range(5), range(3), range(1000, 1003)),
        rounds=60,
        eval_every=5,
        group_size=8,
        groups_per_step=24,
        decode_rows=256,
        learning_rates=(1e-4, 3e-4, 1e-3),
        targets={"small": 0.85, "large": 0.93},
    )  # fmt: skip


SMALL_RATE = 3e-4
LARGE_RATE = 1e-4
LORA_RATE = 1e-3


def miniature() -> Setting:
    """Of the same form, for tests: it shows that everything runs, and nothing else."""
    sets = evaluation_sets(20)
    shipped = {
        "small": "small", "small-b": "small", "large": "large", "large-b": "large-steps", "adder": "large",
        "subtracter": "large-steps", "merged": "merged",
    }  # fmt: skip
    return Setting(
        size="miniature",
        models={name: Model(f"builtin:{model}", 3e-4) for name, model in shipped.items()}
        | {"large-lora": Model("builtin:large", 1e-3, rank=4)},
        tasks=_tasks("in"),
        skills=_tasks("in", "other-operation"),
        evaluations=sets[:2],
        skill_evaluations=_with_both_skills(sets),
        limits={"prompt_tokens": 64, "completion_tokens": 32},
        seeds=Seeds(range(2), range(1), range(1), range(1)),
        rounds=1,
        eval_every=0,
        group_size=4,
        groups_per_step=4,
        decode_rows=256,
        learning_rates=(3e-4,),
        targets={"small": 0.01, "large": 0.01},
    )


def paper(stand_in: str | None = None, data: Mapping[str, str] | None = None, rounds: int = 50) -> Setting:
    """The paper's models and parameters, for those who have the GPUs. ``stand_in`` takes the place of all models."""
    qwen = "Qwen/Qwen2.5"
    models = {
        "small": Model(f"{qwen}-1.5B-Instruct", 1e-6), "small-b": Model(f"{qwen}-Math-1.5B-Instruct", 1e-6),
        "large": Model(f"{qwen}-3B-Instruct", 1e-6), "large-b": Model(f"{qwen}-Coder-3B-Instruct", 1e-6),
        "adder": Model(f"{qwen}-Coder-1.5B-Instruct", 1e-6), "subtracter": Model(f"{qwen}-3B-Instruct", 1e-6),
        "merged": Model("HuggingFaceTB/SmolLM2-1.7B-Instruct", 1e-6),
        "large-lora": Model(f"{qwen}-3B-Instruct", 1e-4, rank=128),
    }  # fmt: skip
    if stand_in is not None:
        models = {name: Model(stand_in, model.learning_rate, model.rank) for name, model in models.items()}
    gsm8k = EvaluationSet(name="gsm8k", distribution="in", task="gsm8k:test", items=1319, items_between=200)
    math500 = EvaluationSet(name="math500", distribution="out", task="math500", items=500, items_between=100)
    return Setting(
        size="paper",
        models=models,
        tasks=({"name": "gsm8k"},),
        skills=({"name": "gsm8k"},),
        evaluations=(gsm8k, math500),
        skill_evaluations=(gsm8k, math500),
        limits={"prompt_tokens": 1024, "completion_tokens": 1024, "max_age_seconds": 86_400},
        seeds=Seeds(range(10), range(5), range(3), range(1000, 1003)),
        rounds=rounds,
        eval_every=10,
        group_size=12,
        groups_per_step=24,
        decode_rows=256,
        learning_rates=(3e-7, 1e-6, 3e-6),
        targets={"small": 0.7, "large": 0.8},
        data=data or {},
    )
