"""What a simulation is to do: one TOML file, or plain Python values. No torch here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ftis_node.config import DataConfig, NetworkConfig, NodeConfig, StatusConfig, TrackingConfig, TrainingConfig
from ftis_node.errors import ConfigError
from ftis_node.manifest import (
    MAX_GROUP_SIZE,
    AssignmentSpec,
    LimitsSpec,
    Parameter,
    Run,
    RunManifest,
    SamplingSpec,
    TaskSpec,
)
from ftis_node.sections import Section, parse_section, read_toml
from ftis_node.simulation.pace import Costs, Pace, check_pace
from ftis_node.tasks.registry import EVALUATION_ONLY, FILE_PREFIX, TEST_SUFFIX, TaskSources, build_task, check_task

Harm = Literal["noise", "wrong", "rambling", "copies"]
Collaboration = Literal["vertical", "horizontal", "alone"]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]

OF_A_DAEMON = ("max_rounds", "collect_timeout", "start_peers", "checkpoint_every", "seed", "torch_threads")
"""Settings of ``training`` that only a daemon has."""


class SimulatedTask(Section):
    """A task to train on; its size and hash are worked out."""

    name: str = Field(description="as in run.toml")
    parameters: dict[str, Parameter] = Field(default_factory=dict, description="the task's own")


class SimulatedRun(Section):
    """What all parties have in common, as in ``run.toml``."""

    tasks: tuple[SimulatedTask, ...] = Field(min_length=1, max_length=32)
    group_size: int = Field(default=8, ge=2, le=MAX_GROUP_SIZE, description="completions that a party samples a prompt")
    sampling: SamplingSpec = SamplingSpec()
    limits: LimitsSpec = LimitsSpec()
    assignment: AssignmentSpec = AssignmentSpec()


class EvaluationSet(Section):
    """Items that are answered greedily, none of which is trained on."""

    name: Name = Field(description="in the results")
    distribution: Literal["in", "out"] = Field(default="in", description="whether training is on items of this kind")
    task: str = Field(description="with :test where the task has a training set")
    parameters: dict[str, Parameter] = Field(default_factory=dict, description="the task's own")
    items: int = Field(default=2000, ge=1, description="at the start and at the end, spread evenly over the task")
    items_between: int | None = Field(default=None, ge=1, description="in the rounds between; as many if not set")
    max_tokens: int | None = Field(default=None, ge=1, description="longest answer; the run's limit if not set")

    @model_validator(mode="after")
    def _not_trained_on(self) -> Self:
        if not (self.task.endswith(TEST_SUFFIX) or self.task in EVALUATION_ONLY or self.task.startswith(FILE_PREFIX)):
            raise ValueError(f"task = {self.task!r}: training items; for evaluation take {self.task + TEST_SUFFIX!r}")
        return self


class SimulatedParty(Section):
    """One learner. What a daemon does with ``node`` is done here too."""

    name: Name = Field(description="in the results; seeds and prompts follow from it")
    node: NodeConfig = NodeConfig()
    costs: Costs = Field(default=Costs(), description="with pace = 'costs'")
    harm: Harm | None = Field(default=None, description="what it publishes instead of what it sampled")
    harm_share: float = Field(
        default=0.5, gt=0, le=1, description="of each group's completions; if all are alike, none has an advantage"
    )
    harm_logprob: float | None = Field(
        default=None, ge=-60, le=0, description="what it claims per token; not set: what an honest author would"
    )

    @model_validator(mode="after")
    def _nothing_in_vain(self) -> Self:
        if self.name == "own":
            raise ValueError("name = 'own': is what a party's own samples are called in the results")
        for section, default in (
            ("network", NetworkConfig()), ("status", StatusConfig()), ("tracking", TrackingConfig()),
            ("data", DataConfig()),
        ):  # fmt: skip
            if getattr(self.node, section) != default:
                raise ValueError(f"node.{section}: has no meaning for a party of a simulation")
        for key in OF_A_DAEMON:
            if getattr(self.node.training, key) != getattr(TrainingConfig(), key):
                raise ValueError(f"node.training.{key}: has no meaning for a party of a simulation")
        if self.node.rollout.engine != "transformers":
            raise ValueError("node.rollout.engine: a simulation generates with 'transformers'")
        return self


class SimulationSpec(Section):
    """One simulation; a seed makes it a run.

    ``collaboration``: ``vertical`` is what the daemon does, ``alone`` gives every party own groups only, and with
    ``horizontal`` all parties sample ``group_size`` completions each of the same ``groups_per_step`` prompts, and those
    of one prompt make one group, whoever sampled them (caps on selection don't apply).

    ``pace``: in ``lockstep`` all take each step together. With ``costs`` nobody waits for anybody: a party pays
    simulated seconds for what it samples and trains, sends each piece of its samples as soon as it is done, and takes
    its step when ``filling`` says so, with what has come by then; ``node.training.places`` has a meaning here alone. It
    ends after ``rounds`` of its own, or before what it could not finish within ``seconds``.
    """

    name: Name
    run: SimulatedRun
    rounds: int = Field(ge=1, le=1_000_000, description="with pace = 'costs': the most of any party")
    pace: Pace = "lockstep"
    seconds: float | None = Field(
        default=None, gt=0, le=1e9, description="with pace = 'costs': simulated time of the run; no bound if not set"
    )
    parties: tuple[SimulatedParty, ...] = Field(min_length=1, max_length=64)
    evaluations: tuple[EvaluationSet, ...] = Field(default=(), max_length=32)
    eval_every: int = Field(
        default=10, ge=0, description="rounds (with pace = 'costs' a party's own); 0: at the start and at the end only"
    )
    eval_seconds: float | None = Field(
        default=None, gt=0, le=1e9, description="with pace = 'costs': simulated seconds, in the place of eval_every"
    )
    latency_seconds: float = Field(
        default=0.0, ge=0, le=1e6, description="with pace = 'costs': from publishing to arrival"
    )
    collaboration: Collaboration = "vertical"
    staleness: int = Field(default=0, ge=0, le=1000, description="rounds after which peers' batches arrive")
    scores: Literal["on", "off"] = Field(default="on", description="on: who is rejected too often is banned")
    round_seconds: int = Field(default=60, ge=1, le=86_400, description="of the simulated clock")
    checkpoint_every: int = Field(default=10, ge=1, description="rounds that a kill may cost")
    torch_threads: int = Field(default=1, ge=1, le=1024, description="with more than one, results may differ in a bit")
    data: DataConfig = DataConfig()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for what, names in (
            ("parties", [party.name for party in self.parties]),
            ("evaluations", [evaluation.name for evaluation in self.evaluations]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{what}: {twice[0]!r} is there twice; each needs a name of its own")
        check_pace(self)
        age, limit = self.staleness * self.round_seconds, self.run.limits.max_age_seconds
        if age > limit:
            raise ValueError(
                f"staleness = {self.staleness} rounds of {self.round_seconds} s are {age} s; batches live for"
                f" run.limits.max_age_seconds = {limit:.0f}"
            )
        if self.collaboration == "horizontal":
            self._check_horizontal()
        return self

    def _check_horizontal(self) -> None:
        if self.staleness:
            raise ValueError("staleness must be 0 with collaboration = 'horizontal': a group is of one round")
        if len({party.node.training.groups_per_step for party in self.parties}) > 1:
            raise ValueError("node.training.groups_per_step must be the same for all with collaboration = 'horizontal'")
        if any(party.node.ftis.filters and party.node.ftis.kl_threshold == "auto" for party in self.parties):
            raise ValueError(
                "node.ftis.kl_threshold must be a number with collaboration = 'horizontal': in a group of all parties'"
                " samples peers' ones can't be told apart"
            )
        if any(party.node.ftis.guidance != "off" for party in self.parties):
            raise ValueError(
                "node.ftis.guidance must be 'off' with collaboration = 'horizontal': a group of all parties' samples"
                " has a baseline of its own"
            )
        if any(party.node.training.agreement_every for party in self.parties):
            raise ValueError(
                "node.training.agreement_every must be 0 with collaboration = 'horizontal': prompts that one party"
                " holds out are the others' too"
            )

    def sources(self) -> TaskSources:
        """What tasks need of this machine."""
        return TaskSources(files=self.data.files)

    def build_run(self) -> Run:
        """The run manifest that all parties share. Raises ConfigError, TaskError.

        Its name is not this simulation's: prompts follow from the manifest's hash, and simulations that are compared
        with each other must not differ in them.
        """
        specs = []
        for task in self.run.tasks:
            built = build_task(task.name, task.parameters, self.sources())
            spec = TaskSpec(name=task.name, parameters=task.parameters, size=built.size, data_hash=built.data_hash)
            check_task(spec, self.sources())
            specs.append(spec)
        group_size = {"smallest": self.run.group_size, "largest": self.run.group_size}
        manifest = parse_section(
            RunManifest,
            {
                "name": "simulation", "tasks": specs, "group_size": group_size, "sampling": self.run.sampling,
                "limits": self.run.limits, "assignment": self.run.assignment,
            },
            source="run",
        )  # fmt: skip
        return Run(manifest, manifest.model_dump_json().encode())


def read_specification(path: Path, *, rounds: int | None = None) -> SimulationSpec:
    """Read a study's TOML file. Its ``[node]`` holds for all parties, ``[[parties]]`` may say otherwise.

    ``rounds`` stands in for the file's. Raises ConfigError in one line.
    """
    data = read_toml(path)
    data.setdefault("name", path.stem)
    if rounds is not None:
        data["rounds"] = rounds
    common, parties = data.pop("node", {}), data.get("parties", [])
    if not isinstance(common, dict) or not isinstance(parties, list):
        raise ConfigError(f"{path}: [node] must be a table, and [[parties]] a list of tables")
    for party in parties:
        if isinstance(party, dict) and isinstance(party.get("node", {}), dict):
            party["node"] = _merged(common, party.get("node", {}))
    return parse_section(SimulationSpec, data, source=str(path))


def _merged(common: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Tables within tables; ``own`` goes first."""
    merged = dict(common)
    for key, value in own.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged
