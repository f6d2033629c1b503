"""Going on where a run was stopped, and refusing to where that would not give the same numbers."""

import errno
import os
from pathlib import Path

import pytest

from ftis_node.errors import CheckpointError, ConfigError, HomeError, StoreError
from ftis_node.simulation.results import open_results, read_results
from ftis_node.simulation.runner import prepare, simulate
from ftis_node.simulation.specification import SimulationSpec, read_specification
from tests.simulations import make_spec, numbers, party, write_study

LARGE = {"model": {"name": "builtin:large-steps"}, "lora": {"rank": 4}}

SHORT = {"model": {"name": "builtin:small", "dtype": "bfloat16"}}


@pytest.mark.parametrize(
    "spec",
    [
        # Batches on their way, groups that caps leave for later, scores and bans.
        make_spec(
            party("ann", caps={"author_share": 0.25}), party("eve", harm="copies", harm_share=1.0), party("bob"),
            staleness=1, rounds=5,
        ),
        make_spec(party("ann", training={"agreement_every": 2}), party("bob", node=LARGE), rounds=3),
        # What the filter and the weights have learned of peers.
        make_spec(
            party("ann", training={"agreement_every": 1, "peer_weighting": "usefulness"},
                  node={"ftis": {"kl_threshold": "auto"}}),
            party("bob", node=LARGE), party("eve", harm="noise"), rounds=6,
        ),
        make_spec(party("ann"), party("bob", harm="noise"), collaboration="horizontal", rounds=3),
        # Float32 masters beside the weights.
        make_spec(party("ann", node=SHORT), party("bob", node=SHORT), rounds=3),
    ],
    ids=["stale", "agreement", "weighting", "horizontal", "bfloat16"],
)  # fmt: skip
def test_a_run_that_is_stopped_after_every_round_ends_with_the_same_numbers(
    spec: SimulationSpec, tmp_path: Path
) -> None:
    study = prepare(spec)
    once = simulate(study, 0, tmp_path / "once")
    assert once is not None
    stops = 0
    while simulate(study, 0, tmp_path / "often", stop=iter([False, True]).__next__) is None:
        stops += 1
    assert stops == spec.rounds - 1
    assert numbers(tmp_path / "often" / once.name) == numbers(once)


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = prepare(read_specification(write_study(tmp_path), rounds=2))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(HomeError, match=r"study-seed1\.jsonl: can't be written: No space left on device"):
            simulate(study, 1, tmp_path)
    path = simulate(study, 1, tmp_path)
    assert path is not None
    assert read_results(path).done is not None


def test_what_belongs_to_another_run_is_not_touched(tmp_path: Path) -> None:
    spec = read_specification(write_study(tmp_path), rounds=1)
    path = tmp_path / "study-seed1.jsonl"
    assert simulate(prepare(spec), 1, tmp_path) == path
    whole = path.read_bytes()
    other = prepare(spec.model_copy(update={"eval_every": 1}))
    with pytest.raises(ConfigError, match=r"was made with another specification \(eval_every\): give another --output"):
        simulate(other, 1, tmp_path)
    assert path.read_bytes() == whole
    for text in ("something else\n", "something else"):
        path.write_text(text)
        with pytest.raises(StoreError, match="line 1 is none of a simulation's results"):
            simulate(other, 1, tmp_path)
        assert path.read_text() == text


def test_a_run_goes_on_only_where_it_gives_the_same_numbers(tmp_path: Path) -> None:
    study = prepare(read_specification(write_study(tmp_path), rounds=2))
    assert simulate(study, 1, tmp_path, stop=lambda: True) is None, "stopped before the first round"
    path, checkpoint = tmp_path / "study-seed1.jsonl", tmp_path / "study-seed1.checkpoint"
    begun = path.read_text()
    version = read_results(path).run.environment.torch
    path.write_text(begun.replace(f'"torch":"{version}"', '"torch":"1.0"'))
    with pytest.raises(ConfigError, match=r"was begun with torch 1\.0, here it is .* delete it to start anew"):
        simulate(study, 1, tmp_path)
    path.write_text(begun[:-10])
    with pytest.raises(StoreError, match="is shorter than its checkpoint says"):
        simulate(study, 1, tmp_path)
    path.write_text(begun)
    whole = checkpoint.read_bytes()
    for damaged in (b"", b"nothing that torch knows", whole[: len(whole) // 2]):
        checkpoint.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"study-seed1\.checkpoint: can't be read: .*; delete it and"):
            simulate(study, 1, tmp_path)
        assert path.read_text() == begun
    checkpoint.write_bytes(whole)
    assert simulate(study, 1, tmp_path) == path
    assert read_results(path).done is not None


def test_two_simulations_do_not_write_one_file(tmp_path: Path) -> None:
    study = prepare(read_specification(write_study(tmp_path), rounds=1))
    with open_results(tmp_path / "study-seed1.jsonl"), pytest.raises(HomeError, match="another simulation is writing"):
        simulate(study, 1, tmp_path)
