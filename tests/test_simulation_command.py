"""``ftis-node simulate`` as a user meets it: result files, kills, Ctrl-C, several seeds, mistakes in one line."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ftis_node.commands.simulate import parse_seeds, run_simulations
from ftis_node.errors import ConfigError, HomeError
from ftis_node.simulation.results import open_results, read_results
from ftis_node.simulation.specification import read_specification
from tests.simulations import STUDY, accuracies, make_spec, numbers, write_study

SECONDS = 120.0


def command(study: Path, output: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "ftis_node", "simulate", str(study), "--output", str(output), *arguments]


ENVIRONMENT = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}


def simulate(study: Path, output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(study, output, *arguments), capture_output=True, text=True, timeout=SECONDS, check=False,
        env=ENVIRONMENT,
    )  # fmt: skip


def interrupted(study: Path, output: Path, number: int, when: Callable[[], bool], *arguments: str) -> tuple[int, str]:
    """Start it, send a signal as soon as ``when`` says so; returns exit code and standard error."""
    with subprocess.Popen(
        command(study, output, *arguments), stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, start_new_session=True
    ) as process:
        deadline = time.monotonic() + SECONDS
        while not when():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(number)
        _, errors = process.communicate(timeout=SECONDS)
        return process.returncode, errors


def rounds_in(path: Path) -> int:
    return path.read_bytes().count(b'{"kind":"round"') if path.exists() else 0


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result file of seed 1."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    done = simulate(write_study(folder), folder / "out", "--seeds", "1")
    assert done.returncode == 0, done.stderr
    return folder / "out" / "study-seed1.jsonl"


def test_a_result_file_says_what_was_done_and_is_whole(uninterrupted: Path) -> None:
    results = read_results(uninterrupted)
    assert results.run.seed == 1
    assert results.run.specification == read_specification(write_study(uninterrupted.parent.parent))
    assert results.run.environment.torch
    assert [(line.round, line.party) for line in results.rounds] == [
        (number, party) for number in range(1, 9) for party in ("ann", "bob")
    ]
    assert sorted({line.round for line in results.evaluations}) == [0, 2, 4, 6, 8]
    assert {line.total for line in results.evaluations} == {20}
    assert results.done is not None
    assert not uninterrupted.with_suffix(".checkpoint").exists()
    start, end = accuracies(uninterrupted, 0), accuracies(uninterrupted, 8)
    assert [line.party for line in start] == [line.party for line in end] == ["ann", "bob"]


def test_two_processes_get_the_same_bits_and_a_whole_file_is_left_as_it_is(uninterrupted: Path, tmp_path: Path) -> None:
    study, output = write_study(tmp_path), tmp_path / "out"
    done = simulate(study, output, "--seeds", "1,2", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert "2 result files in" in done.stderr
    first, second = (output / f"study-seed{seed}.jsonl" for seed in (1, 2))
    assert numbers(first) == numbers(uninterrupted)
    assert numbers(second)[1:] != numbers(first)[1:]
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in (first, second)]
    assert run_simulations([read_specification(study)], (1, 2), output) == 0
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in (first, second)] == before


@pytest.mark.parametrize("lines", [pytest.param(1, marks=pytest.mark.slow), 5, pytest.param(7, marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_to_the_same_result(uninterrupted: Path, tmp_path: Path, lines: int) -> None:
    """Killed with so many lines of rounds in its file: before there is a checkpoint, after round 2's, at round 4's."""
    study, output = write_study(tmp_path), tmp_path / "out"
    path = output / "study-seed1.jsonl"
    code, _ = interrupted(study, output, signal.SIGKILL, lambda: rounds_in(path) >= lines, "--seeds", "1")
    assert code == -signal.SIGKILL
    assert b'"done"' not in path.read_bytes()
    done = simulate(study, output, "--seeds", "1")
    assert done.returncode == 0, done.stderr
    assert numbers(path) == numbers(uninterrupted)


def test_ctrl_c_ends_after_the_round_and_says_how_to_go_on(uninterrupted: Path, tmp_path: Path) -> None:
    study, output = write_study(tmp_path), tmp_path / "out"
    path = output / "study-seed1.jsonl"
    code, errors = interrupted(study, output, signal.SIGINT, lambda: rounds_in(path) >= 1, "--seeds", "1")
    assert code == 130
    assert f"Stopped. The same command goes on from the checkpoints in {output}." in errors
    assert "Traceback" not in errors
    assert path.with_suffix(".checkpoint").exists()
    assert read_results(path).done is None
    assert rounds_in(path) % 2 == 0, "whole rounds"
    assert simulate(study, output, "--seeds", "1").returncode == 0
    assert numbers(path) == numbers(uninterrupted)


@pytest.mark.slow
def test_ctrl_c_stops_all_jobs(uninterrupted: Path, tmp_path: Path) -> None:
    study, output = write_study(tmp_path), tmp_path / "out"
    path = output / "study-seed1.jsonl"
    arguments = ("--seeds", "1,2", "--jobs", "2", "--rounds", "1000")
    code, errors = interrupted(study, output, signal.SIGINT, lambda: rounds_in(path) >= 1, *arguments)
    assert code == 130, errors
    assert "Traceback" not in errors
    assert read_results(path).done is None
    assert path.with_suffix(".checkpoint").exists()


@pytest.mark.slow
def test_jobs_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    study, output = write_study(tmp_path), tmp_path / "out"
    path = output / "study-seed1.jsonl"
    arguments = ("--seeds", "1,2", "--jobs", "2", "--rounds", "1000000")
    interrupted(study, output, signal.SIGKILL, lambda: rounds_in(path) >= 1, *arguments)
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            with open_results(path):
                break
        except HomeError:
            assert time.monotonic() < deadline, "a job goes on without its parent"
            time.sleep(0.2)
    assert path.with_suffix(".checkpoint").exists()


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rounds = 8", "rounds = 0", "rounds = 0: input should be greater than or equal to 1"),
        ("eval_every = 2", "eval_evry = 2", "unknown key 'eval_evry': did you mean 'eval_every'?"),
        ("learning_rate = 3e-4", "learning_rat = 3e-4", "unknown key 'parties.0.node.training.learning_rat'"),
        ('name = "bob"', 'name = "ann"', "parties: 'ann' is there twice"),
        ('name = "bob"', 'name = "own"', "parties.1: name = 'own'"),
        ('name = "bob"', 'name = "bob"\nharm = "nosie"', "parties.1.harm = 'nosie'"),
        ('name = "bob"', 'name = "bob"\nharm = "noise"\nharm_share = 2', "parties.1.harm_share = 2"),
        ('"addition:test"', '"addition"', "training items; for evaluation take 'addition:test'"),
        ("eval_every = 2", "eval_every = 2\nstaleness = 40", "staleness = 40 rounds of 60 s are 2400 s"),
        (
            "eval_every = 2",
            'eval_every = 2\nstaleness = 1\ncollaboration = "horizontal"',
            "staleness must be 0 with collaboration = 'horizontal'",
        ),
        (
            "agreement_every = 0",
            "max_rounds = 3",
            "node.training.max_rounds: has no meaning",
        ),
        ("[node]", '[node]\nnetwork.dht = "off"', "node.network: has no meaning for a party of a simulation"),
        (
            "eval_every = 2\ncheckpoint_every = 2\n\n",
            'collaboration = "horizontal"\n\n[node.ftis]\nkl_threshold = "auto"\n\n',
            "node.ftis.kl_threshold must be a number with collaboration = 'horizontal'",
        ),
        (
            "agreement_every = 0",
            'agreement_every = 0, peer_weighting = "usefulness"',
            "peer_weighting = 'usefulness' needs measurements: agreement_every must be at least 1",
        ),
        ("[node]", '[node]\nftis.kl_estimator = "k1_sum"', "kl_threshold must be set for kl_estimator = 'k1_sum'"),
        ("[run]", "[run", "not valid TOML"),
    ],
)
def test_a_bad_specification_is_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in STUDY
    with pytest.raises(ConfigError) as caught:
        read_specification(write_study(tmp_path, STUDY.replace(old, new, 1)))
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "study.toml"))
    assert "\n" not in str(caught.value)


def test_a_mistake_that_shows_later_is_one_line_too(tmp_path: Path) -> None:
    """In the data, with one process; in the model, with two."""
    study = write_study(tmp_path, STUDY.replace("terms = 3", "terms = 30"))
    done = simulate(study, tmp_path / "out")
    assert done.returncode == 2
    assert "task addition: terms = 30; allowed are whole numbers from 2 to 8" in done.stderr
    study = write_study(tmp_path, STUDY.replace("builtin:small", "builtin:smal"))
    done = simulate(study, tmp_path / "out", "--seeds", "1-2", "--jobs", "2")
    assert done.returncode == 2
    assert "builtin:smal: there is no such built-in model" in done.stderr
    assert "Traceback" not in done.stderr
    with pytest.raises(ConfigError, match=r"nowhere\.toml: can't be read: No such file"):
        read_specification(tmp_path / "nowhere.toml")


def test_settings_of_all_parties_and_of_one(tmp_path: Path) -> None:
    spec = read_specification(write_study(tmp_path), rounds=7)
    ann, bob = spec.parties
    assert spec.rounds == 7
    assert spec.name == "study"
    assert ann.node.model.name == "builtin:small"
    assert bob.node.model.name == "builtin:large-steps"
    assert ann.node.training == bob.node.training
    assert (ann.node.lora.rank, bob.node.lora.rank) == (0, 4)


def test_a_study_in_python_runs_several_specifications(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    together = make_spec(rounds=1)
    alone = together.model_copy(update={"name": "alone", "collaboration": "alone"})
    assert run_simulations([together, alone], [3, 4], tmp_path) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{name}-seed{seed}.jsonl" for name in ("alone", "test") for seed in (3, 4)
    ]
    assert "4 result files in" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="two are called 'test'"):
        run_simulations([together, together], [3], tmp_path)


def test_seeds() -> None:
    assert parse_seeds("0,1, 5-8") == (0, 1, 5, 6, 7, 8)
    for wrong in ("", "a", "3-1", "1,1", "1-", "-1", "0-99999", "1.5"):
        with pytest.raises(ConfigError, match="--seeds"):
            parse_seeds(wrong)
