"""A party's round in one process: own samples travel through the codec and come out fit for training."""

import pytest
import torch

from ftis_node.config import LoraConfig, ModelConfig, NodeConfig, TrainingConfig
from ftis_node.evaluate import greedy_accuracy, wilson_interval
from ftis_node.inbox.content import CheckedGroup
from ftis_node.round import OWN, Party, build_party, check, generate, train, training_group
from ftis_node.tasks.registry import build_task
from ftis_node.types import PeerId
from ftis_node.wire.codec import decode_payload, encode_payload
from tests.builders import make_run

RUN = make_run(group_size=4)
ME, OTHER = PeerId(b"m" * 32), PeerId(b"o" * 32)


def party(model: str = "builtin:small", rank: int = 0) -> Party:
    config = NodeConfig(
        model=ModelConfig(name=model), lora=LoraConfig(rank=rank), training=TrainingConfig(learning_rate=3e-4)
    )
    return build_party(RUN, config, seed=1)


@pytest.mark.parametrize(("model", "rank"), [("builtin:small", 0), ("builtin:large-steps", 4)])
def test_peers_of_another_size_learn_from_each_other(model: str, rank: int) -> None:
    mine, theirs = party(), party(model, rank)
    payload, stats = generate(theirs, OTHER, 5, range(16), seed=3)
    assert stats.tokens > 0
    arrived = decode_payload(encode_payload(payload))
    groups = []
    for index in range(len(arrived.groups)):
        checked = check(mine, OTHER, 5, arrived, index)
        assert isinstance(checked, CheckedGroup)
        groups.append(training_group(mine, checked, OTHER.hex()))
    before = [p.clone() for p in mine.loaded.model.parameters()]
    report = train(mine, groups)
    assert report.stepped
    assert any(not torch.equal(old, new) for old, new in zip(before, mine.loaded.model.parameters(), strict=True))


def test_own_samples_agree_with_the_trainer_after_the_codec() -> None:
    mine = party()
    payload, _ = generate(mine, ME, 5, range(4), seed=3)
    arrived = decode_payload(encode_payload(payload))
    groups = []
    for index in range(4):
        checked = check(mine, ME, 5, arrived, index)
        assert isinstance(checked, CheckedGroup)
        groups.append(training_group(mine, checked, OWN))
    mismatch = train(mine, groups).own_logprob_mismatch
    assert mismatch is not None
    assert mismatch < 0.5 / 1024 + 1e-4  # half a step of the wire's grid


def test_a_model_with_broken_weights_publishes_nothing() -> None:
    mine = party()
    with torch.no_grad():
        next(mine.loaded.model.parameters()).fill_(float("nan"))
    payload, _ = generate(mine, ME, 5, range(2), seed=3)
    assert payload.groups == ()


def test_the_same_seed_draws_the_same_group() -> None:
    first, again = (generate(party(), ME, 5, range(2), seed=9)[0] for _ in range(2))
    assert first == again


def test_greedy_accuracy_of_a_builtin_start_is_mediocre() -> None:
    mine = party()
    task = build_task("addition", {"terms": 3, "largest": 19}, "test")
    result = greedy_accuracy(mine.engine, mine.loaded, task, limit=200, max_tokens=48)
    assert 0.15 < result.accuracy < 0.6
    assert result.low < result.accuracy < result.high


def test_wilson_intervals() -> None:
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson_interval(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson_interval(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
