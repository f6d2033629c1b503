"""The command line as a user meets it: every mistake is one line, exit code 2, no traceback."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ftis_node import __version__
from ftis_node.commands.init import run_toml
from ftis_node.config import load_node_config
from ftis_node.manifest import load_run
from ftis_node.tasks.registry import TaskSources, check_task

QUESTIONS = Path(__file__).parent / "data" / "questions.jsonl"


def ftis_node(*arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ftis_node", *arguments], capture_output=True, text=True, timeout=timeout, check=False,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
    )  # fmt: skip


def test_version() -> None:
    assert ftis_node("version").stdout.strip() == __version__


def test_init_writes_files_that_join_and_people_can_read(tmp_path: Path) -> None:
    home = tmp_path / "home"
    done = ftis_node("init", str(home))
    assert done.returncode == 0, done.stderr
    check_task(load_run(home / "run.toml").manifest.tasks[0], TaskSources())
    assert "# groups_per_step = 24" in (home / "node.toml").read_text()
    again = ftis_node("init", str(home))
    assert again.returncode == 1
    assert "exists already and is not overwritten" in again.stderr


def test_init_for_a_file_of_questions(tmp_path: Path) -> None:
    home = tmp_path / "home"
    done = ftis_node("init", str(home), "--task", f"jsonl:{QUESTIONS}", "--parameter", "format=plain")
    assert done.returncode == 0, done.stderr
    config = load_node_config(home / "node.toml")
    spec = load_run(home / "run.toml").manifest.tasks[0]
    assert spec.name == "jsonl:questions"
    assert str(QUESTIONS) not in (home / "run.toml").read_text(), "a manifest names no path"
    assert "ftis-node join --peers THIS-HOST:47100 --data jsonl:questions=FILE\n" in done.stdout
    check_task(spec, TaskSources(files=config.data.files))


def test_eval_ends_with_figures_and_completions_to_read(tmp_path: Path) -> None:
    arguments = ["--model", "builtin:small", "--task", "addition:test", "--limit", "30", "--max-tokens", "24"]
    done = ftis_node("eval", *arguments, "--output", str(tmp_path / "out"), "--json", "--batch", "16")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["total"] == 30
    assert summary["low"] <= summary["accuracy"] <= summary["high"]
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert sum(answer["right"] for answer in results["answers"]) == summary["correct"] > 0
    assert "right (expected " in (tmp_path / "out" / "completions.txt").read_text()
    people = ftis_node("eval", *arguments, "--output", str(tmp_path / "out"))
    assert json.loads((tmp_path / "out" / "results-1.json").read_text()) == results, "nothing is replaced"
    assert (tmp_path / "out" / "completions-1.txt").exists()
    assert f"earlier evaluation are kept: {tmp_path / 'out' / 'results-1.json'}" in people.stdout
    assert f"({summary['correct']} of 30), 95 % interval" in people.stdout, "greedy: the same every time, in any batch"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "gsm9k"], "task 'gsm9k': there is no such task"),
        (["--task", "jsonl:/nowhere/q.jsonl"], "/nowhere/q.jsonl: can't be read: No such file"),
        (["--task", "gsm8k:test", "--data", "gsm8k"], "--data gsm8k: must look like TASK=FILE"),
        (["--task", "addition", "--parameter", "terms"], "--parameter terms: must look like KEY=VALUE"),
        (["--task", "addition", "--parameter", "terms=99"], "terms = 99; allowed are whole numbers from 2 to 8"),
        (["--task", "addition", "--device", "tpu"], "device = 'tpu'"),
        (["--task", "addition", "--max-tokens", "5000"], "lower --max-tokens"),
    ],
)
def test_what_eval_can_not_use_is_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = ftis_node("eval", "--model", "builtin:small", "--output", str(tmp_path / "out"), *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


RUN = run_toml("test")
MISTAKES = [
    ("no run", [], "", "no run: give --peers host:port to join a swarm, or --run"),
    ("status address", ["--status-address", "foo"], "", "--status-address: 'foo' is not an address; write host:port,"),
    ("no such folder", ["--model", "./nowhere"], RUN, "--model ./nowhere: there is no such folder or GGUF file"),
    ("no such data", ["--data", "gsm8k=/nowhere.jsonl"], RUN, "/nowhere.jsonl: can't be read: No such file"),
    ("jsonl without data", [], RUN.replace('"addition"', '"jsonl:q"', 1), "say where it lies with --data jsonl:q=FILE"),
    ("unknown key", ["--set", "training.groupsize=3"], "", "training.groupsize"),
    ("did you mean", ["--set", "training.learning_rat=3"], "", "learning_rate"),
    ("wrong type", ["--set", "training.groups_per_step='many'"], "", "training.groups_per_step = 'many'"),
    ("negative rate", ["--set", "training.learning_rate=-1.0"], "", "training.learning_rate = -1.0"),
    ("estimator without g", ["--set", "ftis.kl_estimator='k1_sum'"], "", "kl_threshold must be set"),
    ("vis", ["--set", "ftis.method='vis'", "--set", "training.update_epochs=2"], "", "update_epochs must be 1"),
    ("malformed override", ["--set", "training"], "", "must look like section.key=value"),
    ("address", ["--peers", "nowhere"], "", "--peers: 'nowhere' is not an address"),
    ("port", ["--peers", "host:99999"], "", "the port must be from 1 to 65535"),
    ("built-in run", ["--run", "builtin:poetry"], "", "allowed are builtin:addition, or a file"),
    ("run id", ["--run-id", "abc"], "", "--run-id: 'abc' is not a run id"),
    ("log level", ["--log-level", "loud"], "", "--log-level: 'loud'"),
    ("no such config", ["--config", "/nowhere/node.toml"], "", "/nowhere/node.toml: can't be read"),
    ("group size", [], RUN.replace("group_size = 8", "group_size = 1"), "group_size"),
    ("manifest key", [], RUN + "\n[sampling2]\nx = 1\n", "sampling2"),
    ("not TOML", [], "name = ", "not valid TOML"),
    ("unknown task", [], RUN.replace('name = "addition"', 'name = "chess"', 1), "chess"),
    ("ceiling", [], RUN.replace("completion_tokens = 48", "completion_tokens = 10000"), "ceilings.completion_tokens"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "run", "message"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path: Path, arguments: list[str], run: str, message: str) -> None:
    command = ["join", "--home", str(tmp_path / "home"), "--listen", "127.0.0.1:0", *arguments]
    if run:
        (tmp_path / "run.toml").write_text(run)
        command += ["--run", str(tmp_path / "run.toml")]
    done = ftis_node(*command)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    last = [line for line in done.stderr.splitlines() if "ftis-node: " in line or "ERROR" in line]
    assert len(last) == 1, done.stderr
    assert message in last[0]


def test_a_model_that_is_not_there_ends_the_node_with_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(RUN)
    done = ftis_node(
        "join", "--home", str(tmp_path / "home"), "--listen", "127.0.0.1:0", "--run", str(tmp_path / "run.toml"),
        "--model", "builtin:huge",
    )  # fmt: skip
    assert done.returncode == 2
    assert "there is no such built-in model; there are builtin:large" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("room", [0, 2000, 5500])
def test_a_first_start_on_a_full_disk_leaves_no_half_settings(tmp_path: Path, room: int) -> None:
    """Of node.toml or of run.toml: later starts would take what is there for all of it."""

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    home = tmp_path / "home"
    line = [sys.executable, "-m", "ftis_node", "relay", "--home", str(home), "--run", "builtin:addition", "--no-dht"]
    line += ["--listen", "127.0.0.1:0", "--status-address", "off"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False, preexec_fn=full)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ftis-node: ")
    assert "Traceback" not in done.stderr
    whole = {"node.toml": 4000, "run.toml": 1000}
    assert [path.name for path in home.glob("*.toml*") if path.stat().st_size < whole[path.name]] == []


@pytest.mark.parametrize(
    ("listen", "message"),
    [
        ("foo", "--listen: 'foo' is not an address; write host:port, for example 0.0.0.0:47100"),
        ("192.0.2.1:4000", "Cannot assign requested address; this machine doesn't have that address"),
        ("nobody.invalid:4000", "nobody.invalid:4000: can't listen there: "),
    ],
)
def test_where_a_node_can_not_listen_is_one_line(tmp_path: Path, listen: str, message: str) -> None:
    done = ftis_node("join", "--home", str(tmp_path / "home"), "--run", "builtin:addition", "--listen", listen)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_what_is_named_wrongly_leaves_nothing_that_hurts_the_next_start(tmp_path: Path) -> None:
    """Neither settings nor a run are kept of a start that could not be; nothing was announced."""
    home, weightless = tmp_path / "home", tmp_path / "weightless"
    weightless.mkdir()
    for file in ("config.json", "tokenizer.json"):
        (weightless / file).write_text("{}")
    for option in (["--model", str(weightless)], ["--listen", "192.0.2.1:1"], ["--data", "jsonl:q=/nowhere"]):
        done = ftis_node("join", "--home", str(home), "--run", "builtin:addition", *option)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1, done.stderr
        assert not (home / "node.toml").exists()
        assert not (home / "run.toml").exists()
    (tmp_path / "other.toml").write_text(run_toml("other").replace("addition", "jsonl:q", 1))
    done = ftis_node("join", "--home", str(home), "--run", str(tmp_path / "other.toml"))
    assert "--data jsonl:q=FILE" in done.stderr, "and not that the home belongs to another run"


def test_another_run_in_a_home_is_refused(tmp_path: Path) -> None:
    from ftis_node.store.network import NetworkStore

    home = tmp_path / "home"
    home.mkdir()
    store = NetworkStore(home)
    store.put("manifest", RUN.encode())
    store.close()
    (tmp_path / "other.toml").write_text(run_toml("other"))
    done = ftis_node("join", "--home", str(home), "--run", str(tmp_path / "other.toml"), "--listen", "127.0.0.1:0")
    assert done.returncode == 2
    assert "use another --home for another run" in done.stderr


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    import socket

    (tmp_path / "run.toml").write_text(RUN)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = ftis_node(
            "join", "--home", str(tmp_path / "home"), "--run", str(tmp_path / "run.toml"), "--listen",
            f"127.0.0.1:{port}",
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, "neither gRPC's own line nor a status page that nobody will see"
    assert f"127.0.0.1:{port}: can't listen there: Address already in use; stop what holds it" in done.stderr


def test_health_of_nothing_is_exit_code_2(tmp_path: Path) -> None:
    done = ftis_node("health", "--home", str(tmp_path))
    assert done.returncode == 2
    assert "there is no store here" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["init", "home", "--task", "math500"], "a local copy is taken with --data math500=FILE"),
        (["eval", "--model", "nonexist/nonexist", "--task", "addition:test"], "there is no such folder here"),
    ],
)
def test_a_hub_that_is_not_there_is_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], advice: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    done = ftis_node(*arguments)
    assert done.returncode == 2
    said = done.stderr.strip().splitlines()[-1]
    assert "http://127.0.0.1:1 does not answer (Connection refused; tried once)" in said
    assert advice in said
    assert "Retrying" not in done.stderr
