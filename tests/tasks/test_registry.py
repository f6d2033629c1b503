"""Tasks from files and from reasoning-gym: the same everywhere, and every mistake in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ftis_node.errors import ConfigError, FtisError, TaskError
from ftis_node.manifest import TaskSpec
from ftis_node.tasks.gym import UNUSABLE
from ftis_node.tasks.registry import TaskSources, build_task, check_task
from ftis_node.tasks.task import Task

DATA = Path(__file__).parent.parent / "data"
FILES = {
    "gsm8k": str(DATA / "gsm8k.jsonl"),
    "gsm8k:test": str(DATA / "gsm8k.jsonl"),
    "math500": str(DATA / "math500.jsonl"),
}
SOURCES = TaskSources(files=FILES)
ONE_DIGIT = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def think(answer: str) -> str:
    return f"<think>because</think>\n<answer>{answer}</answer>"


def with_file(path: Path, *lines: object) -> TaskSources:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return TaskSources(files={"jsonl:mine": str(path)}, checker=SOURCES.checker)


@pytest.mark.parametrize("name", ["gsm8k", "gsm8k:test"])
def test_gsm8k_answers_stand_behind_the_mark(name: str) -> None:
    task = build_task(name, {}, SOURCES)
    assert [task.item(index).answer for index in range(task.size)] == ["30", "30", "3750", "14"]
    item = task.item(2)
    assert item.prompt.startswith("A farm sells")
    assert "<answer>" in item.system
    assert task.reward(item, think("3,750")) == 1.0
    assert task.reward(item, think("3750.00")) == 1.0
    for wrong in ("3750", think("375"), think("maybe 3750"), "The answer is " + think("3750")):
        assert task.reward(item, wrong) == 0.0, wrong


def test_math500_answers_are_expressions() -> None:
    task = build_task("math500", {}, SOURCES)
    for index, (right, wrong) in enumerate([("0.75", "4/3"), ("(-2,0)", "(0,-2)"), ("2(k+1)", "2k+1")]):
        assert task.reward(task.item(index), think(right)) == 1.0
        assert task.reward(task.item(index), think(wrong)) == 0.0


@pytest.mark.parametrize("name", ["addition", "arithmetic"])
def test_equal_generated_tasks_share_their_items(name: str) -> None:
    operations = {"operations": "-"} if name == "arithmetic" else {}
    one, same, other = (build_task(name, {"largest": largest, **operations}, SOURCES) for largest in (9, 9, 8))
    assert one is same
    assert other.data_hash != one.data_hash
    assert build_task(f"{name}:test", {"largest": 9, **operations}, SOURCES).data_hash != one.data_hash


def test_a_file_of_questions(tmp_path: Path) -> None:
    sources = with_file(
        tmp_path / "q.jsonl",
        {"question": "2+2?", "answer": 4},
        "",
        {"question": "Capital of France?", "answer": "Paris"},
    )
    task = build_task("jsonl:mine", {}, sources)
    assert [task.item(index).answer for index in range(task.size)] == ["4", "Paris"]
    text = build_task("jsonl:mine", {"compare": "text"}, sources)
    assert text.reward(text.item(1), think(" paris ")) == 1.0
    assert text.reward(text.item(1), think("Paris or London")) == 0.0
    assert text.data_hash != task.data_hash


def test_solved_examples_stand_before_the_question_and_are_not_asked() -> None:
    task = build_task("gsm8k", {"format": "plain", "shots": 2}, SOURCES)
    assert task.size == 2
    item = task.item(0)
    assert item.raw
    assert item.system == ""
    lines = item.prompt.splitlines()
    assert len(lines) == 3
    assert lines[0].endswith("left? 30")
    assert lines[2].startswith("A farm sells")
    assert task.reward(item, " 3750\nMia bakes") == 1.0
    assert task.reward(item, " 3750 or 12\n") == 0.0


@pytest.mark.parametrize("name", ["gsm8k", "reasoning-gym:chain_sum"])
def test_stop_strings_are_part_of_what_a_manifest_pins(name: str) -> None:
    tasks = [
        build_task(name, {"format": "plain", **stop}, SOURCES)
        for stop in ({}, {"stop": ()}, {"stop": "Q:"}, {"stop": ("Q:", "\n\n")})
    ]
    assert [task.item(0).stop for task in tasks] == [("\n",), (), ("Q:",), ("Q:", "\n\n")]
    assert len({task.data_hash for task in tasks}) == len(tasks)
    assert build_task(name, {}, SOURCES).item(0).stop == ()


@pytest.mark.parametrize("name", ["gsm8k", "reasoning-gym:chain_sum"])
def test_a_boxed_answer_and_a_system_prompt_are_part_of_what_a_manifest_pins(name: str) -> None:
    tasks = [
        build_task(name, parameters, SOURCES)
        for parameters in ({}, {"format": "boxed"}, {"format": "boxed", "system": "Box it."}, {"system": "Think."})
    ]
    assert len({task.data_hash for task in tasks}) == len(tasks)
    item = tasks[2].item(1)
    assert item.system == "Box it."
    assert not item.raw
    assert tasks[2].reward(item, f"So it must be \\boxed{{{item.answer}}}, I think.") == 1.0
    assert tasks[2].reward(item, f"So it must be {item.answer}") == 0.0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2 can't be used: it is not an object"),
        ({"question": "1+1?"}, "line 2 has no 'answer'"),
        ({"question": "", "answer": "1"}, "line 2 can't be used: its question is ''"),
        ({"question": "1+1?", "answer": None}, "line 2 can't be used: its answer is None"),
        ({"question": "1+1?", "answer": True}, "line 2 can't be used: its answer is True"),
        ("[" * 100_000, "line 2 is not JSON"),
        ('"\\ud800', "line 2 is not JSON"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: object, message: str) -> None:
    sources = with_file(tmp_path / "broken.jsonl", {"question": "1+1?", "answer": "2"}, line)
    with pytest.raises(TaskError, match=message) as caught:
        build_task("jsonl:mine", {}, sources)
    assert "broken.jsonl" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_gsm8k_line_without_the_mark(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n')
    with pytest.raises(TaskError, match=r"line 1 can't be used: its answer has no ####"):
        build_task("gsm8k", {}, TaskSources(files={"gsm8k": str(tmp_path / "train.jsonl")}))


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("gsm9k", {}, "there is no such task; allowed: addition, arithmetic, gsm8k"),
        ("math500:test", {}, "there is no such task"),
        ("gsm8k", {"terms": 2}, "unknown parameter 'terms'; allowed: format, shots, stop, system"),
        ("gsm8k", {"format": "free"}, "format = 'free'; allowed are think, plain, boxed"),
        ("gsm8k", {"shots": 2}, 'shots = 2 needs format = "plain"'),
        ("gsm8k", {"format": "boxed", "shots": 2}, 'shots = 2 needs format = "plain"'),
        ("gsm8k", {"system": 3}, "system = 3; allowed is a text of up to 4000 characters"),
        ("gsm8k", {"system": "a" * 4001}, "allowed is a text of up to 4000 characters"),
        ("gsm8k", {"format": "plain", "system": "Hi"}, 'a system prompt needs format = "think" or "boxed"'),
        ("gsm8k", {"stop": ""}, "stop = ''; allowed is a text of 1 to 100 characters, or a list of up to 8 of them"),
        ("gsm8k", {"stop": ("a", "")}, r"stop = \('a', ''\); allowed is a text"),
        ("gsm8k", {"stop": 3}, "stop = 3; allowed is a text"),
        ("gsm8k", {"stop": "a" * 101}, "allowed is a text of 1 to 100 characters"),
        ("gsm8k", {"stop": ("a",) * 9}, "or a list of up to 8"),
        ("reasoning-gym:chain_sum", {"format": "free"}, "format = 'free'; allowed are think, plain, boxed"),
        ("gsm8k", {"format": "plain", "shots": 4}, "has 4 questions; with shots = 4 it needs more"),
        ("jsonl:unknown", {}, "say where it lies with --data jsonl:unknown=FILE"),
        ("jsonl:mine", {"compare": "taste"}, "compare = 'taste'; allowed are math, text"),
        ("reasoning-gym:nothing", {}, "there is no such generator; allowed: ab, "),
        ("reasoning-gym:chain_sum", {"min_terms": 0}, "refuses its parameters {'min_terms': 0}"),
        ("reasoning-gym:chain_sum", {"terms": 2}, "refuses its parameters {'terms': 2}: .*unexpected keyword"),
        ("reasoning-gym:chain_sum", {"max_digits": 10**9}, "max_digits = 1000000000; at most 1000000 is allowed"),
    ],
)
def test_what_can_not_be_a_task(name: str, parameters: dict, message: str) -> None:
    with pytest.raises(FtisError, match=message) as caught:
        build_task(name, parameters, SOURCES)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_one_that_is_no_parquet(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"gone\.jsonl: can't be read: No such file"):
        build_task("gsm8k", {}, TaskSources(files={"gsm8k": str(tmp_path / "gone.jsonl")}))
    (tmp_path / "bad.parquet").write_bytes(b"not parquet")
    with pytest.raises(TaskError, match=r"bad\.parquet: can't be read as parquet"):
        build_task("gsm8k", {}, TaskSources(files={"gsm8k": str(tmp_path / "bad.parquet")}))


def test_parquet_holds_the_same_questions_as_json_lines(tmp_path: Path) -> None:
    from datasets import Dataset

    records = [json.loads(line) for line in (DATA / "gsm8k.jsonl").read_text().splitlines()]
    Dataset.from_list(records).to_parquet(str(tmp_path / "train.parquet"))
    same = build_task("gsm8k", {}, TaskSources(files={"gsm8k": str(tmp_path / "train.parquet")}))
    assert same.data_hash == build_task("gsm8k", {}, SOURCES).data_hash


@pytest.mark.slow
def test_a_hub_that_does_not_answer(tmp_path: Path) -> None:
    code = (
        "from ftis_node.tasks.registry import TaskSources, build_task\n"
        "build_task('gsm8k', {}, TaskSources())\n"
    )  # fmt: skip
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment, timeout=240
    )
    assert "TaskError: task gsm8k: openai/gsm8k can't be loaded from the hub" in done.stderr
    assert "--data gsm8k=FILE" in done.stderr.splitlines()[-1]


def spec(task: Task, name: str, **changes: object) -> TaskSpec:
    return TaskSpec.model_validate({"name": name, "size": task.size, "data_hash": task.data_hash, **changes})


def test_a_manifest_is_held_against_this_node_s_copy(tmp_path: Path) -> None:
    task = build_task("gsm8k", {}, SOURCES)
    assert check_task(spec(task, "gsm8k"), SOURCES).size == 4
    other = with_file(tmp_path / "other.jsonl", {"question": "1+1?", "answer": "#### 2"})
    with pytest.raises(ConfigError, match="this node's copy has size = 1"):
        check_task(spec(task, "gsm8k"), TaskSources(files={"gsm8k": other.files["jsonl:mine"]}))


@pytest.mark.parametrize("name", ["math500", "gsm8k:test", "reasoning-gym:chain_sum:test", "addition:test"])
def test_nobody_trains_on_what_is_for_evaluation(name: str) -> None:
    task = build_task("addition", {}, SOURCES)
    with pytest.raises(ConfigError, match="is for evaluation; a run can't train on it"):
        check_task(spec(task, name), SOURCES)


@pytest.mark.parametrize("generator", sorted(UNUSABLE))
def test_generators_that_peers_can_not_agree_on_are_refused(generator: str) -> None:
    task = build_task("addition", {}, SOURCES)
    with pytest.raises(ConfigError, match=r"can't be used in a swarm: (its items depend|it scores its own)"):
        check_task(spec(task, f"reasoning-gym:{generator}"), SOURCES)


def test_gym_items_of_the_two_sides_are_disjoint() -> None:
    train = build_task("reasoning-gym:chain_sum", ONE_DIGIT, SOURCES)
    test = build_task("reasoning-gym:chain_sum:test", ONE_DIGIT, SOURCES)
    train_questions = {train.item(index).prompt for index in range(0, train.size, 2500)}
    test_questions = {test.item(index).prompt for index in range(0, test.size, 25)}
    assert not train_questions & test_questions
    assert len(train_questions) > 100


@pytest.mark.parametrize(
    ("generator", "rambling"),
    [
        ("chain_sum", "it could be {answer}, or else 7"),
        ("gsm_symbolic", "definitely not {answer}, I think it is something else"),
        ("countdown", "I don't know"),
        ("prime_factorization", "2 x junk x {answer}"),
        ("simple_equations", "one of 1 2 3 4 5 6 7 8 9 {answer} 10 11 12"),
        ("calendar_arithmetic", "Monday Tuesday Wednesday Thursday Friday Saturday Sunday {answer}"),
    ],
)
def test_rambling_answers_that_fool_the_scorers(generator: str, rambling: str) -> None:
    """What the scorers would give, for a text that only mentions the answer, counts for nothing."""
    task = build_task(f"reasoning-gym:{generator}", {}, SOURCES)
    for index in range(3):
        item = task.item(index)
        assert task.reward(item, think(item.answer)) == 1.0, (item.prompt, item.answer)
        for text in (rambling, think("") + rambling, rambling + think(""), "<think>" + rambling + "</think>"):
            assert task.reward(item, text.format(answer=item.answer)) == 0.0
        assert task.reward(item, think("no idea")) == 0.0


AGREE = """
import hashlib, json, sys
from ftis_node.tasks.registry import TaskSources, build_task
sources = TaskSources(files=json.loads(sys.argv[1]))
digest = hashlib.sha256()
for name in ("gsm8k", "math500", "reasoning-gym:chain_sum", "reasoning-gym:simple_equations",
             "reasoning-gym:gsm_symbolic", "addition"):
    task = build_task(name, {}, sources)
    digest.update(task.data_hash.encode())
    for index in range(0, task.size, max(1, task.size // 8)):
        item = task.item(index)
        digest.update(f"{item}".encode())
        for answer in (item.answer, item.answer + " or 3", "{1, 2, 3}", "x=" + item.answer, "1/3"):
            for text in (answer, f"<think>a</think><answer>{answer}</answer>"):
                digest.update(str(task.reward(item, text)).encode())
print(digest.hexdigest())
"""


def test_items_and_rewards_do_not_depend_on_the_process() -> None:
    results = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", AGREE, json.dumps(FILES)], capture_output=True, text=True, check=True, timeout=200,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )  # fmt: skip
        results.add(done.stdout)
    assert len(results) == 1
