"""Parties that each go at their own pace: who acts when, what it pays, and what it has by then."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from ftis_node.errors import ConfigError
from ftis_node.inbox.content import CheckedGroup
from ftis_node.round import OWN
from ftis_node.simulation.figures import EvaluationLine, RoundLine
from ftis_node.simulation.pacer import Pacer
from ftis_node.simulation.results import read_results
from ftis_node.simulation.runner import prepare, simulate
from ftis_node.simulation.specification import SimulationSpec
from ftis_node.simulation.timed import Timed
from tests.simulations import make_spec, numbers, party

LARGE = {"model": {"name": "builtin:large-steps"}, "lora": {"rank": 4}}
SUMS = {"name": "sums", "task": "addition:test", "parameters": {"terms": 3, "largest": 19}, "items": 20}
LONG_LIVED: dict[str, Any] = {
    "tasks": [{"name": "addition", "parameters": {"terms": 3, "largest": 19}}],
    "group_size": 4,
    "limits": {"prompt_tokens": 64, "completion_tokens": 48, "max_age_seconds": 100_000},
}
GROUPS, FLOOR, SIZE = 8, 2, 4


def timed_spec(*parties: Any, **rest: Any) -> SimulationSpec:
    quarter = {"min_own_share": FLOOR / GROUPS}
    parties = parties or (party("ann", training=quarter), party("bob", training=quarter, node=LARGE))
    return make_spec(*parties, **{"pace": "costs", "run": LONG_LIVED, **rest})


def engine(spec: SimulationSpec, *, seed: int = 0) -> Timed:
    study = prepare(spec)
    return Timed(spec, study.run, study.tasks, lambda node, moment: [], seed=seed)


def lines_of(spec: SimulationSpec, *, seed: int = 0) -> dict[str, list[RoundLine]]:
    simulation = engine(spec, seed=seed)
    lines: defaultdict[str, list[RoundLine]] = defaultdict(list)
    while not simulation.done:
        for line in simulation.advance():
            assert isinstance(line, RoundLine)
            lines[line.party].append(line)
    return lines


def in_step(line: RoundLine) -> int:
    """Sequences of groups that teach, by what became of them."""
    fates = line.sequences.values()
    return sum(f.trained + f.filtered + f.zero_advantage + sum(f.excluded.values()) for f in fates)


def test_a_party_pays_for_what_it_samples_and_trains() -> None:
    costs = {"generation": 3.0, "training": 0.5}
    lines = lines_of(timed_spec(party("ann", costs=costs), party("bob", costs=costs), rounds=3))
    for mine in lines.values():
        paid = 0.0
        for line in mine:
            paid += 3.0 * line.generated_sequences + 0.5 * in_step(line)
            assert line.time == paid
            assert line.stepped


def test_alone_a_step_samples_all_its_groups_and_trains_on_those_that_teach() -> None:
    lines = lines_of(timed_spec(rounds=2, collaboration="alone"))
    for mine in lines.values():
        for line in mine:
            assert line.generated_sequences == GROUPS * SIZE
            assert set(line.sequences) == {OWN}
            assert 0 < in_step(line) <= GROUPS * SIZE
            assert line.sequences[OWN].zero_advantage < SIZE, "a group that teaches has an advantage"


def test_a_faster_party_takes_more_steps_and_nobody_waits() -> None:
    quick, slow = {"generation": 1.0, "training": 0.25}, {"generation": 10.0, "training": 2.5}
    quarter = {"min_own_share": 0.25}
    spec = timed_spec(
        party("ann", training=quarter, costs=slow, caps={"author_share": 1.0}),
        party("bob", training=quarter, costs=quick),
        rounds=1000, seconds=800.0,
    )  # fmt: skip
    lines = lines_of(spec)
    assert len(lines["bob"]) >= 3 * len(lines["ann"]) > 6
    assert all(line.time is not None and line.time <= 800.0 for mine in lines.values() for line in mine)
    # Bob samples as if he were alone; what he made meanwhile lets Ann take her step with fewer own samples.
    assert all(line.generated_sequences >= (GROUPS - 2) * SIZE for line in lines["bob"])
    assert all(line.generated_sequences < (GROUPS - 2) * SIZE for line in lines["ann"])
    assert all(line.sequences["bob"].trained > 0 for line in lines["ann"])


def test_what_was_not_published_yet_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is opened before its latency is over, and nothing by the one that made it."""
    spec = timed_spec(rounds=3, latency_seconds=50.0)
    looked: list[tuple[float, float]] = []
    real = Pacer.look

    def look(self: Pacer, *arguments: int) -> None:
        before = list(self.letters)
        real(self, *arguments)
        looked.extend((self.time, letter.arrives_at) for letter in before if letter not in self.letters)

    monkeypatch.setattr(Pacer, "look", look)
    delayed = lines_of(spec)
    assert looked
    assert all(arrived <= now for now, arrived in looked)
    at_once = lines_of(timed_spec(rounds=3))
    first = {name: [line.generated_sequences for line in run["ann"]] for name, run in
             (("delayed", delayed), ("at once", at_once))}  # fmt: skip
    assert first["delayed"][0] >= first["at once"][0]


def test_groups_that_teach_nothing_take_no_place_and_all_wrong_ones_are_not_sent() -> None:
    simulation = engine(timed_spec(rounds=4))
    given: list[tuple[float, ...]] = []
    for node in simulation.nodes:

        def step(groups, clock, node=node, real=node.step):
            given.extend(tuple(s.reward for s in group.sequences) for group in groups)
            return real(groups, clock)

        node.step = step  # type: ignore[method-assign]
    sent: list[CheckedGroup] = []
    for pacer in simulation._pacers:

        def check(*arguments, mailbox=pacer.mailbox, real=pacer.mailbox.check, **named):
            real(*arguments, **named)
            sent.extend(group.checked for group in mailbox._groups.values())

        pacer.mailbox.check = check  # type: ignore[method-assign]
    lines: list[RoundLine | EvaluationLine] = []
    while not simulation.done:
        lines += simulation.advance()
    assert given
    assert all(len(set(rewards)) > 1 for rewards in given)
    assert all(any(group.rewards) for group in sent)
    assert any(group.spread > 0 for group in sent)
    own = [line.reward for line in lines if isinstance(line, RoundLine)]
    assert all(reward is not None and reward < 1 for reward in own), "rewards are of all that was sampled"


def test_evaluations_come_at_simulated_times_with_own_tokens(tmp_path: Path) -> None:
    spec = timed_spec(rounds=1000, seconds=300.0, eval_seconds=100.0, evaluations=[SUMS])
    path = simulate(prepare(spec), 0, tmp_path)
    assert path is not None
    results = read_results(path)
    for name in ("ann", "bob"):
        mine = [line for line in results.evaluations if line.party == name]
        assert [line.time for line in mine] == [0.0, 100.0, 200.0, 300.0]
        rounds = [line for line in results.rounds if line.party == name]
        for line in mine:
            assert line.round == sum(r.time is not None and line.time is not None and r.time <= line.time
                                     for r in rounds)  # fmt: skip
            assert line.own_tokens is not None
            assert line.own_tokens >= sum(r.generated_tokens for r in rounds[: line.round])
    assert results.done is not None
    assert results.done.rounds == max(line.round for line in results.rounds)


def test_without_a_time_evaluations_come_in_own_rounds(tmp_path: Path) -> None:
    path = simulate(prepare(timed_spec(rounds=5, eval_every=2, evaluations=[SUMS])), 0, tmp_path)
    assert path is not None
    found = [line.round for line in read_results(path).evaluations if line.party == "bob"]
    assert found == [0, 2, 4, 5]


def test_the_same_seed_gives_the_same_numbers_and_another_one_others() -> None:
    spec = timed_spec(rounds=2)
    first, again, other = (
        [line.model_copy(update={"seconds": {}}) for mine in lines_of(spec, seed=seed).values() for line in mine]
        for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    "spec",
    [
        timed_spec(
            party("ann", training={"min_own_share": 0.25}, caps={"author_share": 0.25}),
            party("eve", harm="noise"), party("bob", training={"min_own_share": 0.25}, costs={"generation": 9.0}),
            rounds=4, latency_seconds=30.0, eval_every=2, evaluations=[SUMS], checkpoint_every=1000,
        ),
        timed_spec(rounds=100, seconds=900.0, eval_seconds=200.0, evaluations=[{**SUMS, "items_between": 10}]),
    ],
    ids=["rounds", "seconds"],
)  # fmt: skip
def test_a_run_that_is_stopped_again_and_again_ends_with_the_same_numbers(spec: SimulationSpec, tmp_path: Path) -> None:
    study = prepare(spec)
    once = simulate(study, 0, tmp_path / "once")
    assert once is not None
    stops = 0
    while simulate(study, 0, tmp_path / "often", stop=iter([False, True]).__next__) is None:
        stops += 1
    assert stops >= 3
    assert numbers(tmp_path / "often" / once.name) == numbers(once)
    assert any(json.loads(line).get("time") for line in numbers(once))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"collaboration": "horizontal"}, "collaboration = 'horizontal': a group is of one round of all"),
        ({"staleness": 1}, "staleness: has no meaning with pace = 'costs'"),
        ({"round_seconds": 5}, "round_seconds: has no meaning with pace = 'costs'"),
        ({"pace": "lockstep", "seconds": 5.0}, "seconds: has no meaning with pace = 'lockstep'"),
        ({"pace": "lockstep", "parties": [party("ann", costs={"training": 2.0})]}, "costs: have no meaning"),
        ({"parties": [party("ann", costs={"generation": 0.0})]}, "generation = 0.0: input should be greater than 0"),
        ({"parties": [party("ann", costs={"training": float("inf")})]}, "training = inf: input should be a finite"),
        ({"latency_seconds": 1e5}, r"party 'ann': its batches are 100032 s old when they arrive, and live for"),
        ({"run": {**LONG_LIVED, "assignment": {"quota": 20}}},
         r"quota = 20: party 'ann' samples up to \d+ groups in a window of 600 s; raise it"),
    ],
)  # fmt: skip
def test_a_specification_that_means_nothing_is_refused_in_one_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        timed_spec(**({"rounds": 2} | fields)) if "parties" not in fields else timed_spec(
            *fields["parties"], rounds=2, **{k: v for k, v in fields.items() if k != "parties"}
        )
    assert "\n" not in str(raised.value)
