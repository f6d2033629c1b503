"""Tasks by name, and the check that a manifest's task is the one that is here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeVar, get_args

from ftis_node.errors import ConfigError, TaskError
from ftis_node.manifest import Parameter, TaskSpec
from ftis_node.tasks.addition import Addition
from ftis_node.tasks.answer_format import LONGEST_SYSTEM_PROMPT, MOST_SHOTS, AnswerFormat, FormatName
from ftis_node.tasks.arithmetic import OPERATIONS, Arithmetic
from ftis_node.tasks.checker import AnswerChecker
from ftis_node.tasks.gym import build_gym_task
from ftis_node.tasks.questions import Questions
from ftis_node.tasks.sources import questions_from, read_gsm8k, read_math500, read_question
from ftis_node.tasks.stopping import LONGEST_STOP, MOST_STOPS, stop_strings
from ftis_node.tasks.task import Split, Task

TASK_NAMES = ("addition", "arithmetic", "gsm8k", "math500", "reasoning-gym:GENERATOR", "jsonl:NAME")
EVALUATION_ONLY = ("math500",)
TEST_SUFFIX = ":test"
GYM_PREFIX, FILE_PREFIX = "reasoning-gym:", "jsonl:"
MOST_SUMS = 2_000_000
LARGEST_GYM_NUMBER = 10**6

Parameters = Mapping[str, Parameter]
C = TypeVar("C", bound=str)
FORMAT_KEYS = {"format", "shots", "stop", "system"}
FORMATS: tuple[FormatName, ...] = get_args(FormatName)


@dataclass(frozen=True)
class TaskSources:
    """What tasks need of this machine: files by task name, and who checks answers."""

    files: Mapping[str, str] = field(default_factory=dict)
    checker: AnswerChecker = field(default_factory=AnswerChecker)


def build_task(full_name: str, parameters: Parameters, sources: TaskSources) -> Task:
    """The task ``name`` or ``name:test``.

    Raises ConfigError for a task or parameter that doesn't exist, naming what is allowed; TaskError for data that
    can't be read.
    """
    name = full_name.removesuffix(TEST_SUFFIX)
    split: Split = "test" if full_name.endswith(TEST_SUFFIX) else "train"
    if name == "arithmetic":
        return _arithmetic(parameters, split)
    if name == "addition":
        return _addition(parameters, split)
    if name.startswith(GYM_PREFIX):
        return _gym(name, parameters, split, sources)
    if name == "gsm8k" or ((name == "math500" or name.startswith(FILE_PREFIX)) and split == "train"):
        return _questions(full_name, parameters, sources)
    raise ConfigError(
        f"task {full_name!r}: there is no such task; allowed: {', '.join(TASK_NAMES)}, and some with :test"
    )


def check_task(spec: TaskSpec, sources: TaskSources) -> Task:
    """The task that a manifest names. Raises ConfigError when this node's copy isn't the same data."""
    if spec.name in EVALUATION_ONLY or spec.name.endswith(TEST_SUFFIX):
        raise ConfigError(f"task {spec.name}: is for evaluation; a run can't train on it")
    task = build_task(spec.name, spec.parameters, sources)
    if task.size != spec.size or task.data_hash != spec.data_hash:
        raise ConfigError(
            f"task {spec.name}: the manifest has size = {spec.size}, data_hash = {spec.data_hash!r}; this node's copy"
            f" has size = {task.size}, data_hash = {task.data_hash!r}"
        )
    return task


def check_files(names: Iterable[str], files: Mapping[str, str]) -> None:
    """That the tasks' files are there, before anything is read. Raises TaskError, with what to do."""
    for name in names:
        if name.startswith(FILE_PREFIX) and name not in files:
            raise TaskError(
                f"task {name}: is a file that ftis-node doesn't have; get it from whoever started the run, and say"
                f" where it lies with --data {name}=FILE"
            )
        if name not in files:
            continue
        try:
            with Path(files[name]).expanduser().open("rb"):
                pass
        except OSError as error:
            raise TaskError(f"task {name}: --data {files[name]}: can't be read: {error.strerror}") from error


def _addition(parameters: Parameters, split: Split) -> Addition:
    _refuse_unknown("addition", parameters, {"terms", "smallest", "largest"})
    terms = _whole_number("addition", parameters, "terms", default=3, low=2, high=8)
    largest = _whole_number("addition", parameters, "largest", default=19, low=1, high=999)
    smallest = _whole_number("addition", parameters, "smallest", default=0, low=0, high=largest - 1)
    sums = (largest - smallest + 1) ** terms
    if sums > MOST_SUMS:
        raise ConfigError(
            f"task addition: {terms} terms from {smallest} to {largest} give {sums} items; at most {MOST_SUMS}"
            " are allowed"
        )
    return _the_addition(terms, smallest, largest, split)


def _arithmetic(parameters: Parameters, split: Split) -> Arithmetic:
    _refuse_unknown("arithmetic", parameters, {"terms", "smallest", "largest", "operations"})
    terms = _whole_number("arithmetic", parameters, "terms", default=3, low=2, high=5)
    largest = _whole_number("arithmetic", parameters, "largest", default=19, low=1, high=999)
    smallest = _whole_number("arithmetic", parameters, "smallest", default=0, low=0, high=largest - 1)
    operations = _choice("arithmetic", parameters, "operations", OPERATIONS)
    task = _the_arithmetic(terms, smallest, largest, operations, split)
    if task.combinations > MOST_SUMS:
        raise ConfigError(
            f"task arithmetic: {terms} terms from {smallest} to {largest} with operations = {operations!r} give"
            f" {task.combinations} combinations; at most {MOST_SUMS} are allowed"
        )
    if operations == "-" and largest < (terms - 1) * smallest:
        raise ConfigError(
            f"task arithmetic: {largest} less {terms - 1} times {smallest} is negative; with operations = '-', largest"
            f" must be at least {(terms - 1) * smallest}"
        )
    return task


# They never change, and working out their items takes up to some seconds: who asks for the same one again shares it.
_the_addition = lru_cache(maxsize=8)(Addition)
_the_arithmetic = lru_cache(maxsize=8)(Arithmetic)


def _questions(name: str, parameters: Parameters, sources: TaskSources) -> Questions:
    is_file = name.startswith(FILE_PREFIX)
    _refuse_unknown(name, parameters, FORMAT_KEYS | {"compare"} if is_file else FORMAT_KEYS)
    compare = _choice(name, parameters, "compare", ("math", "text"))
    answer_format, shots = _format(name, parameters)
    check_files([name] if is_file else [], {name: sources.files[name]} if name in sources.files else {})
    read = {"gsm8k": read_gsm8k, "gsm8k:test": read_gsm8k, "math500": read_math500}.get(name, read_question)
    questions = questions_from(name, sources.files.get(name), read)
    if len(questions) <= shots:
        raise TaskError(f"task {name}: has {len(questions)} questions; with shots = {shots} it needs more")
    # The first ones are the solved examples, and are not asked.
    answer_format = replace(answer_format, shots=questions[:shots])
    return Questions(name, questions[shots:], answer_format, sources.checker, math=compare == "math")


def _gym(name: str, parameters: Parameters, split: Split, sources: TaskSources) -> Task:
    answer_format, shots = _format(name, parameters)
    seed = _whole_number(name, parameters, "seed", default=0, low=0, high=2**31)
    for key, value in parameters.items():
        if key != "seed" and isinstance(value, int | float) and not abs(value) <= LARGEST_GYM_NUMBER:
            raise ConfigError(f"task {name}: {key} = {value!r}; at most {LARGEST_GYM_NUMBER} is allowed")
    return build_gym_task(
        name.removeprefix(GYM_PREFIX),
        {key: value for key, value in parameters.items() if key not in FORMAT_KEYS | {"seed"}},
        seed=seed, answer_format=answer_format, shots=shots, split=split, checker=sources.checker,
    )  # fmt: skip


def _format(task: str, parameters: Parameters) -> tuple[AnswerFormat, int]:
    """The format, still without its solved examples, and how many of them."""
    shots = _whole_number(task, parameters, "shots", default=0, low=0, high=MOST_SHOTS)
    name = _choice(task, parameters, "format", FORMATS)
    if shots and name != "plain":
        raise ConfigError(f'task {task}: shots = {shots} needs format = "plain"')
    system = parameters.get("system")
    if system is not None and name == "plain":
        raise ConfigError(f'task {task}: a system prompt needs format = "think" or "boxed": plain has no dialogue')
    if system is not None and (not isinstance(system, str) or len(system) > LONGEST_SYSTEM_PROMPT):
        raise ConfigError(
            f"task {task}: system = {system!r:.60}; allowed is a text of up to {LONGEST_SYSTEM_PROMPT} characters"
        )
    return AnswerFormat(name, system=system, stop=_stop(task, parameters)), shots


def _stop(task: str, parameters: Parameters) -> tuple[str, ...]:
    given = parameters.get("stop", ())
    texts = given if isinstance(given, tuple) else (given,)
    allowed = all(isinstance(text, str) and 0 < len(text) <= LONGEST_STOP for text in texts)
    if not allowed or len(texts) > MOST_STOPS:
        raise ConfigError(
            f"task {task}: stop = {given!r:.60}; allowed is a text of 1 to {LONGEST_STOP} characters, or a list of"
            f" up to {MOST_STOPS} of them"
        )
    return stop_strings(parameters)


def _refuse_unknown(task: str, parameters: Parameters, allowed: set[str]) -> None:
    unknown = sorted(set(parameters) - allowed)
    if unknown:
        raise ConfigError(f"task {task}: unknown parameter {unknown[0]!r}; allowed: {', '.join(sorted(allowed))}")


def _choice(task: str, parameters: Parameters, key: str, allowed: tuple[C, ...]) -> C:
    value = parameters.get(key, allowed[0])
    for choice in allowed:
        if value == choice:
            return choice
    raise ConfigError(f"task {task}: {key} = {value!r}; allowed are {', '.join(allowed)}")


def _whole_number(task: str, parameters: Parameters, key: str, *, default: int, low: int, high: int) -> int:
    value = parameters.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"task {task}: {key} = {value!r}; allowed are whole numbers from {low} to {high}")
    return value
