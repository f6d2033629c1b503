"""The studies' starts: made once, the same every time, and schooled on nothing that is evaluated."""

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ftis_node.config import LoraConfig, ModelConfig
from ftis_node.models import load_model
from ftis_node.tasks.registry import TaskSources, build_task
from ftis_node.tasks.task import Item
from scripts.schooling import Start, solution
from scripts.studies import starts
from scripts.studies.sets import evaluation_sets
from scripts.studies.starts import STARTS, make_starts


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> dict[str, Start]:
    """All starts with two steps a stage."""
    recipes = tuple(replace(start, stages=tuple(replace(stage, steps=2) for stage in start.stages)) for start in STARTS)
    monkeypatch.setattr(starts, "STARTS", recipes)
    return {start.name: start for start in recipes}


def test_a_start_is_the_same_every_time_and_is_made_once(short: dict[str, Start], tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    first, again = (make_starts(tmp_path / name, ["small"])["small"] for name in ("one", "two"))
    assert first.name == again.name
    weights, others = (load_file(folder / "model.safetensors") for folder in (first, again))
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    before = (first / "model.safetensors").stat().st_mtime_ns
    assert make_starts(tmp_path / "one", ["small"])["small"] == first
    assert (first / "model.safetensors").stat().st_mtime_ns == before
    assert [path.name for path in (tmp_path / "one").iterdir()] == [first.name], "nothing unfinished is left"
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == (threads, False)


@pytest.mark.parametrize("name", [start.name for start in STARTS])
def test_a_start_is_loaded_like_any_model(short: dict[str, Start], tmp_path: Path, name: str) -> None:
    folder = make_starts(tmp_path, [name])[name]
    loaded = load_model(ModelConfig(name=str(folder), device="cpu"), LoraConfig(), seed=0)
    assert loaded.model.config.hidden_size == short[name].hidden
    assert len(loaded.tokenize("24+13")) == (3 if name == "merged" else 5)


def test_who_is_second_with_a_start_keeps_the_first_ones(short: dict[str, Start], tmp_path: Path) -> None:
    first = make_starts(tmp_path, ["small"])["small"]
    before = (first / "model.safetensors").stat().st_ino
    starts._make(short["small"], first)
    assert (first / "model.safetensors").stat().st_ino == before
    assert [path.name for path in tmp_path.iterdir()] == [first.name]


def test_another_recipe_is_another_folder() -> None:
    changed = replace(STARTS[0], seed=STARTS[0].seed + 1000)
    assert len({starts._recipe_hash(start) for start in (*STARTS, changed)}) == len(STARTS) + 1


def test_an_unknown_start_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no start 'huge'; there are small, small-b, large"):
        make_starts(tmp_path, ["huge"])


def test_nothing_that_is_evaluated_was_shown() -> None:
    """No item of any evaluation set is among the items of any stage."""
    kinds = {(kind.task, tuple(kind.parameters.items())) for s in STARTS for stage in s.stages for kind in stage.kinds}
    shown: set[str] = set()
    for task_name, parameters in kinds:
        task = build_task(task_name, dict(parameters), TaskSources())
        shown |= {task.item(index).prompt for index in range(task.size)}
    for one in evaluation_sets(2000):
        test = build_task(one.task, one.parameters, TaskSources())
        assert test.size >= 2000, one.name
        assert not shown & {test.item(index).prompt for index in range(test.size)}, one.name


@pytest.mark.parametrize(("prompt", "answer"), [("17+8+5=", "30"), ("39-8-5=", "26"), ("3+4+5+6=", "18")])
def test_worked_answers_get_the_reward_and_wrong_ones_do_not(prompt: str, answer: str) -> None:
    item, task = Item(prompt=prompt, answer=answer), build_task("arithmetic", {}, TaskSources())
    right, wrong = (
        replace(STARTS[0].stages[0], step_by_step=0.5, wrong_direct=share, wrong_steps=share) for share in (0.0, 1.0)
    )
    rng = random.Random(0)
    worked = [solution(item, rng, right) for _ in range(50)]
    assert all(task.reward(item, text) == 1.0 for text in worked)
    assert {"=" in text for text in worked} == {True, False}
    longest = max(worked, key=len)
    assert longest.count("=") == len(re.findall(r"\d+", prompt)) - 2
    assert all(task.reward(item, solution(item, rng, wrong)) == 0.0 for _ in range(50))
