"""A party's round in one process: own samples travel through the codec and come out fit for training."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from ftis_node.commands.init import run_toml
from ftis_node.config import (
    CrossTokenizer,
    DataConfig,
    FtisConfig,
    LoraConfig,
    ModelConfig,
    NodeConfig,
    RolloutConfig,
    TrainingConfig,
    load_node_config,
)
from ftis_node.errors import ConfigError
from ftis_node.evaluate import greedy_accuracy, wilson_interval
from ftis_node.inbox.content import CheckedGroup
from ftis_node.inbox.verify import Accepted, Known, Opened, open_batch, verify
from ftis_node.manifest import parse_run
from ftis_node.round import OWN, Party, build_party, check, generate, train, training_group
from ftis_node.tasks.registry import TaskSources, build_task
from ftis_node.types import Completion, FinishReason, LocalProfile, PeerId
from ftis_node.wire.codec import decode_payload, encode_batch, encode_payload
from tests.builders import NOW_MS, make_run, signed

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


def test_a_plain_answer_ends_with_its_line_from_sampling_to_training(tmp_path: Path) -> None:
    """Byte-level models seldom write a line end, so one of their digits stands in for it."""
    file = tmp_path / "sums.jsonl"
    file.write_text("".join(f'{{"question": "{n}+2=", "answer": {n + 2}}}\n' for n in range(20)))
    sources = TaskSources(files={"jsonl:sums": str(file)})
    text = run_toml("sums", "jsonl:sums", {"format": "plain", "stop": ("1", "\n")}, sources)
    run = parse_run(text.replace("group_size = 8", "group_size = 4").encode(), source="run.toml")
    config = NodeConfig(data=DataConfig(files=dict(sources.files)), training=TrainingConfig(learning_rate=3e-4))
    mine = build_party(run, config, seed=1)
    payload, _ = generate(mine, ME, 5, range(6), seed=3)
    signed_batch = encode_batch(signed(payload, run=run))
    opened = open_batch(signed_batch)
    assert isinstance(opened, Opened)
    profile = LocalProfile(mine.loaded.vocabulary.fingerprint, mine.loaded.vocabulary.size)
    accepted = verify(opened, run=run, known=Known(), now_ms=NOW_MS, profile=profile)
    assert isinstance(accepted, Accepted)
    completions = [c for group in accepted.payload.groups for c in group.completions]
    ended = [c for c in completions if c.text.endswith(b"1")]
    assert ended
    assert all(b"1" not in c.text[:-1] for c in completions)
    assert all(c.finish_reason is FinishReason.STOP for c in ended)
    groups = []
    for index in range(len(accepted.payload.groups)):
        checked = check(mine, ME, 5, accepted.payload, index)
        assert isinstance(checked, CheckedGroup)
        groups.append(training_group(mine, checked, OWN))
    mismatch = train(mine, groups).own_logprob_mismatch
    assert mismatch is None or mismatch < 0.5 / 1024 + 1e-4


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


def test_a_weak_machine_samples_smaller_groups_within_the_run_s_range() -> None:
    text = RUN.data.replace(b"group_size = 4", b"group_size = { smallest = 2, largest = 4 }")
    run = parse_run(text, source="run.toml")
    sizes = {}
    for wanted in (None, 2):
        config = NodeConfig(model=ModelConfig(name="builtin:small"), rollout=RolloutConfig(group_size=wanted))
        mine = build_party(run, config, seed=1)
        payload, _ = generate(mine, ME, 5, range(2), seed=3)
        sizes[wanted] = {len(group.completions) for group in payload.groups}
        assert isinstance(check(mine, ME, 5, payload, 0), CheckedGroup)
    assert sizes == {None: {4}, 2: {2}}
    with pytest.raises(ConfigError, match=r"rollout.group_size = 5: this run has groups of 2 to 4"):
        build_party(run, NodeConfig(rollout=RolloutConfig(group_size=5)), seed=1)


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
    task = build_task("addition:test", {"terms": 3, "largest": 19}, TaskSources())
    result = greedy_accuracy(mine.engine, mine.loaded, task, limit=200, max_tokens=48)
    assert 0.15 < result.accuracy < 0.6
    assert result.low < result.accuracy < result.high


def test_wilson_intervals() -> None:
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson_interval(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson_interval(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)


@pytest.mark.parametrize(("mode", "excluded"), [("all", set()), ("positives", {"foreign_negative"})])
def test_groups_of_a_foreign_tokenizer_are_learned_from(mode: CrossTokenizer, excluded: set[str]) -> None:
    """Their author cuts the same texts into pairs of bytes; here every byte is a token."""
    mine = party()
    mine = replace(mine, config=mine.config.model_copy(update={"training": TrainingConfig(cross_tokenizer=mode)}))
    payload, _ = generate(party("builtin:large-steps"), OTHER, 5, range(24), seed=3)
    foreign = replace(
        payload,
        tokenizer_fingerprint=b"f" * 32,
        groups=tuple(replace(g, completions=tuple(map(in_pairs, g.completions))) for g in payload.groups),
    )
    groups = []
    for index in range(len(foreign.groups)):
        checked = check(mine, OTHER, 5, foreign, index)
        assert isinstance(checked, CheckedGroup)
        assert not checked.same_tokenizer
        groups.append(training_group(mine, checked, OTHER.hex()))
    report = train(mine, groups)
    assert report.stepped
    assert sum(group.trained for group in report.groups) > 0
    reasons = [reason for group in report.groups for reason in group.excluded]
    assert set(reasons) - {"broken_text"} == excluded  # a sampled text may end within a character
    for group in report.groups:
        assert group.sequences == group.trained + group.filtered + group.zero_advantage + len(group.excluded)


@pytest.mark.parametrize(("author", "reader"), [("merged", "small"), ("small", "merged")])
def test_built_in_models_with_different_tokenizers_learn_from_each_other(author: str, reader: str) -> None:
    mine = party(f"builtin:{reader}")
    payload, _ = generate(party(f"builtin:{author}"), OTHER, 5, range(12), seed=3)
    groups = []
    for index in range(len(payload.groups)):
        checked = check(mine, OTHER, 5, payload, index)
        assert isinstance(checked, CheckedGroup)
        assert not checked.same_tokenizer
        groups.append(training_group(mine, checked, OTHER.hex()))
    report = train(mine, groups)
    assert report.stepped
    assert sum(group.trained for group in report.groups) > 0
    # By default only what was right is learned from a foreign tokenizer.
    assert {reason for group in report.groups for reason in group.excluded} - {"broken_text"} == {"foreign_negative"}


def in_pairs(completion: Completion) -> Completion:
    """Two bytes to a token, with the sum of their log-probs."""
    length, ended = len(completion.text), completion.finish_reason is FinishReason.STOP
    ends = [*range(0, length, 2), length] if length else [0]
    sizes = tuple(b - a for a, b in pairwise(ends))
    sums = tuple(sum(completion.behavior_logprobs[a:b]) for a, b in pairwise(ends))
    return replace(
        completion,
        token_ids=tuple(int.from_bytes(completion.text[a:b]) for a, b in pairwise(ends)) + ((9,) if ended else ()),
        behavior_logprobs=sums + completion.behavior_logprobs[length:],
        token_byte_lengths=sizes + ((0,) if ended else ()),
    )


def test_a_vis_method_cannot_learn_from_foreign_tokenizers() -> None:
    assert NodeConfig(ftis=FtisConfig(method="f-vis")).cross_tokenizer == "off"
    assert NodeConfig().cross_tokenizer == "positives"
    with pytest.raises(ConfigError, match=r"training\.cross_tokenizer must be 'off'"):
        load_node_config(None, ("ftis.method='vis'", "training.cross_tokenizer='all'"))


def test_prompts_that_are_too_long_are_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    """The run allows 64 tokens, but this model has positions for 60 only, and a completion may take 48 of them."""
    mine = party()
    mine.loaded.model.config.max_position_embeddings = 48 + 7
    payload, _ = generate(mine, ME, 5, range(16), seed=3)
    kept = [group.slot for group in payload.groups]
    assert 0 < len(kept) < 16
    for slot in range(16):
        item = mine.tasks["addition"].item(RUN.assigned_index(ME, 5, slot))
        assert (slot in kept) == (len(item.prompt) <= 7)
    assert "are left out (the longest has" in caplog.text
    # The same prompts from a peer with more positions can't be scored here; they keep their group's baseline.
    theirs, _ = generate(party(), ME, 5, range(16), seed=3)
    mine.loaded.model.config.max_position_embeddings = 8
    checked = check(mine, ME, 5, theirs, 0)
    assert isinstance(checked, CheckedGroup)
    group = training_group(mine, checked, OTHER.hex())
    assert {sequence.excluded for sequence in group.sequences} == {"too_long"}


def test_a_completion_of_nothing_but_the_end_token_is_an_answer_that_is_wrong() -> None:
    mine = party()
    payload, _ = generate(mine, ME, 5, range(1), seed=3)
    (end,) = mine.loaded.vocabulary.eos_token_ids
    empty = Completion((end,), (-0.5,), b"", (0,), FinishReason.STOP)
    first = payload.groups[0]
    changed = replace(payload, groups=(replace(first, completions=(empty, *first.completions[1:])),))
    checked = check(mine, ME, 5, decode_payload(encode_payload(changed)), 0)
    assert isinstance(checked, CheckedGroup)
    assert checked.rewards[0] == 0.0
    step = train(mine, [training_group(mine, checked, OWN)])
    assert not step.offending
