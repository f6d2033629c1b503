"""Sums and differences: on the same side as in ``addition``, never negative, the same everywhere."""

import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftis_node.errors import ConfigError
from ftis_node.manifest import Parameter
from ftis_node.tasks.registry import TaskSources, build_task
from ftis_node.tasks.task import Item, Task

SOURCES = TaskSources()
MIXED: dict[str, Parameter] = {"terms": 3, "largest": 9, "operations": "+-"}
ITEM = Item(prompt="17-8+5=", answer="14")


def build(name: str, **parameters: Parameter) -> Task:
    return build_task(name, parameters, SOURCES)


def items(task: Task) -> list[Item]:
    return [task.item(index) for index in range(task.size)]


@pytest.mark.parametrize("text", ["14", "14\n", "9+5=14", "17-3=14", "17-8+5=9+5=14"])
def test_right_answers(text: str) -> None:
    assert build("arithmetic").reward(ITEM, text) == 1.0


@pytest.mark.parametrize("text", ["", "13", "-14", "014", "14=13", "9+5=", "9*5=14", "14" + "0" * 5000, "13 14", "१४"])
def test_wrong_answers(text: str) -> None:
    assert build("arithmetic").reward(ITEM, text) == 0.0


@given(st.text(max_size=200) | st.text("0123456789+-=", max_size=5000))
def test_any_text_has_a_reward(text: str) -> None:
    assert build("arithmetic").reward(ITEM, text) in (0.0, 1.0)


@pytest.mark.parametrize("operations", ["+", "-", "+-"])
def test_every_item_is_right_and_no_partial_result_is_negative(operations: str) -> None:
    seen = set()
    for name in ("arithmetic", "arithmetic:test"):
        for item in items(build(name, terms=3, largest=9, operations=operations)):
            first, *others = re.findall(r"[+-]?\d+", item.prompt)
            result = int(first)
            for term in others:
                assert term[0] in operations
                result += int(term)
                assert result >= 0, item
            assert item.answer == str(result)
            assert item.prompt not in seen, "training and test items are disjoint, and none is there twice"
            seen.add(item.prompt)
    differences = sum(1 for a in range(10) for b in range(10) for c in range(10) if a >= b + c)
    mixed = sum(1 for a in range(10) for b in range(a + 1) for c in range(10))  # a-b+c
    mixed += sum(1 for a in range(10) for b in range(10) for c in range(10) if a + b >= c)  # a+b-c
    assert len(seen) == {"+": 1000, "-": differences, "+-": 1000 + differences + mixed}[operations]


def test_sums_are_on_the_same_side_as_in_addition() -> None:
    for suffix in ("", ":test"):
        sums = {item.prompt for item in items(build("addition" + suffix, terms=3, largest=9))}
        mixed = {item.prompt for item in items(build("arithmetic" + suffix, **MIXED))}
        assert {prompt for prompt in mixed if "-" not in prompt} == sums
        pure = build("arithmetic" + suffix, terms=3, largest=9)
        assert {item.prompt for item in items(pure)} == sums


def test_a_fifth_is_for_evaluation() -> None:
    train, test = build("arithmetic", **MIXED), build("arithmetic:test", **MIXED)
    assert 0.17 < test.size / (test.size + train.size) < 0.23


def test_addition_is_what_it_was() -> None:
    """Its hash is in the manifests of runs that are under way."""
    task = build("addition", terms=3, largest=19)
    assert task.size == 6293
    assert task.data_hash == "4e9b9494920ee628d25b72815220ef6ce407892ba579f0e2d650afcc2e577962"


def test_the_hash_covers_every_parameter() -> None:
    base: dict[str, Parameter] = {"terms": 3, "smallest": 1, "largest": 9, "operations": "+-"}
    changes: list[dict[str, Parameter]] = [
        {}, {"terms": 2}, {"smallest": 0}, {"largest": 8}, {"operations": "-"}, {"operations": "+"}
    ]  # fmt: skip
    hashes = [build("arithmetic", **(base | change)).data_hash for change in changes]
    assert len({*hashes, build("arithmetic:test", **base).data_hash}) == len(hashes) + 1


def test_items_do_not_depend_on_the_process() -> None:
    code = (
        "from ftis_node.tasks.registry import TaskSources, build_task\n"
        "for name in ('arithmetic', 'arithmetic:test'):\n"
        "    task = build_task(name, {'largest': 9, 'operations': '+-'}, TaskSources())\n"
        "    items = [task.item(i) for i in range(0, task.size, 97)]\n"
        "    print(task.size, task.data_hash, items, [task.reward(item, '9') for item in items])\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True, text=True
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(outputs) == 1


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"digits": 3}, "unknown parameter 'digits'; allowed: largest, operations, smallest, terms"),
        ({"terms": 6}, "terms = 6; allowed are whole numbers from 2 to 5"),
        ({"operations": "*"}, r"operations = '\*'; allowed are \+, -, \+-"),
        ({"operations": "-+"}, r"operations = '-\+'; allowed are"),
        ({"operations": 1}, r"operations = 1; allowed are"),
        ({"terms": 5, "operations": "+-"}, "give 51200000 combinations; at most 2000000"),
        ({"operations": "-", "smallest": 10}, "19 less 2 times 10 is negative; .* largest must be at least 20"),
    ],
)
def test_bad_parameters_are_named(parameters: dict[str, Parameter], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build("arithmetic", **parameters)
