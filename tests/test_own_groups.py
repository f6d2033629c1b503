"""Own groups: what can't teach anybody stays here, a resume finds all of them, and used-up prompts hold nothing up."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ftis_node.config import ModelConfig, NodeConfig, TrainingConfig
from ftis_node.learner import Learner
from ftis_node.manifest import Run
from ftis_node.own_groups import OwnGroups
from ftis_node.round import build_party
from ftis_node.round_report import RoundClock
from ftis_node.store.learner import LearnerStore
from ftis_node.store.network import NetworkStore
from ftis_node.store.reader import StoreReader
from ftis_node.training.collate import TrainingGroup
from ftis_node.types import BatchName, PeerId
from ftis_node.wire.codec import decode_payload
from tests.builders import make_run

ME = PeerId(b"m" * 32)
SIZE = 4


@dataclass(frozen=True)
class Home:
    network: NetworkStore
    learner: LearnerStore
    config: NodeConfig
    run: Run

    def own_groups(self) -> OwnGroups:
        party = build_party(self.run, self.config, seed=1)
        return OwnGroups(self.learner, party, ME, seed=1, tell=lambda text, until_ms: None)


def home(folder: Path, *, quota: int = 4096, **training: object) -> Home:
    config = NodeConfig(
        model=ModelConfig(name="builtin:small"),
        training=TrainingConfig.model_validate({"agreement_every": 0, "seed": 1, **training}),
    )
    run = make_run(group_size=SIZE, quota=quota)
    network = NetworkStore(folder)
    network.put("manifest", run.data)
    network.put("peer_id", ME)
    return Home(network, LearnerStore(folder), config, run)


def published(store: NetworkStore) -> Iterator[int]:
    """Slots of what the network half would sign and send."""
    for entry in store.unsigned(100):
        yield from (group.slot for group in decode_payload(entry.payload).groups)
        store.publish(entry, 1, lambda number: (BatchName(number.to_bytes(32, "big")), b"signed"))


def all_wrong(group: TrainingGroup) -> bool:
    return not any(sequence.reward for sequence in group.sequences)


@pytest.mark.parametrize("places", ["informative", "any"])
def test_what_teaches_nobody_is_kept_and_found_again(places: str, tmp_path: Path) -> None:
    """Where every group takes a place, as in the paper, all are sent."""
    here = home(tmp_path, places=places)
    own = here.own_groups()
    own.begin(1)
    assert own.sample(8, RoundClock())
    assert own.sample(4, RoundClock())
    groups = own.sampled
    wrong = sum(map(all_wrong, groups))
    assert 0 < wrong < len(groups) == 12, "the test shows nothing"
    sent = list(published(here.network))
    assert len(sent) == 12 - (wrong if places == "informative" else 0)
    assert sorted(set(sent)) == sorted(sent)
    assert here.learner.next_slot(here.run.window(here.learner.own_payloads(1)[0].created_at_ms)) == 12

    again = here.own_groups()
    again.begin(1)
    assert again.sampled == groups  # the same numbers in the same order, though they lie in the outbox in another
    again.begin(2)
    assert again.sampled == []


def test_used_up_prompts_are_said_and_not_waited_for(tmp_path: Path) -> None:
    here = home(tmp_path, quota=5)
    own = here.own_groups()
    own.begin(1)
    clock = RoundClock()
    assert own.sample(3, clock)
    assert own.sample(3, clock)  # two are left
    assert len(own.sampled) == 5
    assert not own.sample(3, clock)
    assert clock.seconds["waiting"] == 0
    assert clock.generated_sequences == 5 * SIZE


def test_a_step_is_taken_with_what_the_window_gave(tmp_path: Path) -> None:
    here = home(tmp_path, quota=7, groups_per_step=24, max_rounds=1, micro_batch_tokens=16_384)
    with Learner(tmp_path, here.config, protected=contextlib.nullcontext) as learner:
        learner.run()
    report = here.learner.last_report()
    assert report is not None
    assert report.stepped
    assert report.own_sampled == 7
    assert report.own.arrived == 7 * SIZE
    assert 0 < report.own_groups == report.own_informative < 7
    # What took no place counts in what is said of own sequences: else the reward would be that of the lucky ones.
    assert report.own.zero_advantage == SIZE * (7 - report.own_informative)
    own = here.own_groups()
    own.begin(1)
    rewards = [sequence.reward for group in own.sampled for sequence in group.sequences]
    assert report.own_reward == pytest.approx(sum(rewards) / len(rewards))
    assert report.seconds.waiting == 0


def test_a_step_without_information_is_skipped_and_says_so(tmp_path: Path) -> None:
    """Of steps of one group some have one that teaches, and some one that doesn't."""
    here = home(tmp_path, groups_per_step=1, max_rounds=8, micro_batch_tokens=16_384)
    with Learner(tmp_path, here.config, protected=contextlib.nullcontext) as learner:
        learner.run()
    with StoreReader(tmp_path) as store:
        reports = store.rounds()
    assert {report.stepped for report in reports} == {True, False}, "the test shows nothing"
    for report in reports:
        assert (report.own_groups, report.own_sampled, report.own_informative) == (1, 1, int(report.stepped))
        assert report.skipped_reason == (None if report.stepped else "no sequence has an advantage")
        assert report.own.zero_advantage == (0 if report.stepped else SIZE)
