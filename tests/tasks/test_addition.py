"""The built-in task: the same everywhere, disjoint splits, and no reward for rambling."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftis_node.errors import ConfigError
from ftis_node.manifest import parse_run
from ftis_node.tasks.registry import TaskSources, build_task, check_task
from ftis_node.tasks.task import Item
from tests.builders import RUN

SOURCES = TaskSources()
TASK = build_task("addition", {"terms": 3, "largest": 19}, SOURCES)
ITEM = Item(prompt="3+14+8=", answer="25")


@pytest.mark.parametrize("text", ["25", "25\n", "17+8=25", "3+22=25", "3+14+8=17+8=25", " 25"])
def test_right_answers(text: str) -> None:
    assert TASK.reward(ITEM, text) == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "", "24", "025", "25=24", "24 25", "the answer is 25", "25.0", "25 26", "25=", "=", "17+8=25=", "-25", "+25",
        "17+8=24", "25,", "२५", "25" + "0" * 5000, "25\0", "1 2 3 ... 25 26", "25\n26",
    ],
)  # fmt: skip
def test_rambling_and_wrong_answers(text: str) -> None:
    assert TASK.reward(ITEM, text) == 0.0


@given(st.text(max_size=200))
def test_any_text_has_a_reward(text: str) -> None:
    assert TASK.reward(ITEM, text) in (0.0, 1.0)


def test_training_and_test_items_are_disjoint_and_together_complete() -> None:
    test = build_task("addition:test", {"terms": 3, "largest": 19}, SOURCES)
    train_prompts = {TASK.item(i).prompt for i in range(TASK.size)}
    test_prompts = {test.item(i).prompt for i in range(test.size)}
    assert not train_prompts & test_prompts
    assert len(train_prompts | test_prompts) == 20**3
    assert 0.15 < test.size / 20**3 < 0.25


def test_a_training_item_of_one_range_is_no_test_item_of_a_larger_one() -> None:
    far = build_task("addition:test", {"terms": 3, "largest": 29}, SOURCES)
    train_prompts = {TASK.item(i).prompt for i in range(TASK.size)}
    assert not train_prompts & {far.item(i).prompt for i in range(far.size)}


def test_items_and_rewards_do_not_depend_on_the_process() -> None:
    code = (
        "from ftis_node.tasks.registry import TaskSources, build_task\n"
        "for name in ('addition', 'addition:test'):\n"
        "    task = build_task(name, {'terms': 3, 'largest': 19}, TaskSources())\n"
        "    items = [task.item(i) for i in range(0, task.size, 97)]\n"
        "    print(task.size, task.data_hash, items, [task.reward(item, '25') for item in items])\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True, text=True
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(outputs) == 1


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("subtraction", {}, "task 'subtraction': there is no such task; allowed: addition"),
        ("addition", {"digits": 3}, "unknown parameter 'digits'"),
        ("addition", {"terms": 1}, "terms = 1; allowed are whole numbers from 2 to 8"),
        ("addition", {"terms": 2.5}, "terms = 2.5"),
        ("addition", {"largest": True}, "largest = True"),
        ("addition", {"terms": 8, "largest": 999}, "at most 2000000"),
    ],
)
def test_bad_parameters_are_named(name: str, parameters: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_task(name, parameters, SOURCES)


def test_a_manifest_with_other_data_is_refused_with_both_values() -> None:
    text = RUN.data.decode().replace("size = 6", "size = 7", 1)
    other = parse_run(text.encode(), source="run.toml")
    if other.manifest.tasks[0].size == TASK.size:
        pytest.fail("the manifest was not changed")
    with pytest.raises(ConfigError, match=rf"size = {other.manifest.tasks[0].size}.*size = {TASK.size}"):
        check_task(other.manifest.tasks[0], SOURCES)
