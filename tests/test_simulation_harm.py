"""What hostile parties publish meets the real codec, verification, content check and filter: what gets through."""

import math
import random
from collections import Counter
from dataclasses import replace

import pytest

from ftis_node.errors import ConfigError
from ftis_node.identity import Identity
from ftis_node.inbox.verify import RejectReason
from ftis_node.round_report import RoundClock
from ftis_node.simulation.figures import Fates, RoundLine
from ftis_node.simulation.harm import Adversary
from ftis_node.simulation.lockstep import EPOCH, Lockstep
from ftis_node.simulation.mailbox import Arrivals
from ftis_node.simulation.specification import Harm
from ftis_node.types import Completion, RolloutPayload
from ftis_node.wire.codec import decode_batch, decode_payload, encode_batch, encode_payload, sign_batch
from tests.builders import TASKS, VOCABULARY, completion, group, payload
from tests.simulations import lockstep, make_spec, party

SIZE, GROUPS = 8, 16
ITEM = TASKS["addition"].item(5)


def adversary(harm: Harm, share: float = 0.5) -> Adversary:
    return Adversary(harm, share, None, VOCABULARY, lambda text: list(text.encode()), TASKS, 48)


def spoiled(harm: Harm, texts: tuple[bytes, ...], share: float = 0.5) -> tuple[Completion, ...]:
    content = payload(group(texts=texts))
    return adversary(harm, share).spoil(content, [ITEM], random.Random(1)).groups[0].completions


def reward(one: Completion) -> float:
    return TASKS["addition"].reward(ITEM, one.text.decode("utf-8", "replace"))


RIGHT, WRONG = ITEM.answer.encode(), b"9999"


def test_half_of_a_group_is_replaced_and_the_rest_stays() -> None:
    for harm in ("noise", "rambling"):
        after = spoiled(harm, (WRONG,) * 8)
        assert sum(one.text == WRONG for one in after) == 4


def test_wrong_answers_are_wrong_and_claim_what_was_sampled() -> None:
    after = spoiled("wrong", (RIGHT,) * 8, share=1.0)
    assert [reward(one) for one in after] == [0.0] * 8
    assert {one.behavior_logprobs for one in after} <= {(-0.5,) * n for n in range(2, 6)}
    assert spoiled("wrong", (WRONG,) * 8, share=1.0) == (completion(WRONG),) * 8


def test_rambling_is_right_and_as_long_as_the_run_allows() -> None:
    after = spoiled("rambling", (WRONG,) * 8, share=1.0)
    assert [reward(one) for one in after] == [1.0] * 8
    assert all(48 - 2 <= len(one.token_ids) <= 48 for one in after)
    assert len({one.text for one in after}) == 8, "or the check for copies would find them"


def test_copies_are_of_the_best() -> None:
    after = spoiled("copies", (WRONG, WRONG, RIGHT, WRONG), share=1.0)
    assert [one.text for one in after] == [RIGHT] * 4


def test_a_task_on_which_one_can_not_ramble_is_named() -> None:
    with pytest.raises(ConfigError, match="with task addition there is no long way to say the right thing"):
        replace(adversary("rambling"), most_tokens=2).spoil(payload(group()), [ITEM], random.Random(1))


# --- met by others --------------------------------------------------------------------------------


def against(
    harm: Harm | None, *, share: float = 0.5, method: str = "f-tis", scores: str = "on", claim: float | None = None,
    bound: float = 20.0,
) -> Lockstep:  # fmt: skip
    training = {"groups_per_step": 2 * GROUPS, "claim_bound": bound}
    ann = party("ann", node={"ftis": {"method": method}}, training=training)
    eve = party("eve", training={"groups_per_step": 2 * GROUPS}, harm=harm, harm_share=share, harm_logprob=claim)
    run = {
        "tasks": [{"name": "addition", "parameters": {"terms": 3, "largest": 19}}],
        "group_size": SIZE,
        "limits": {"prompt_tokens": 64, "completion_tokens": 48},
    }
    return lockstep(make_spec(ann, eve, run=run, scores=scores))


def met(harm: Harm, **options: object) -> RoundLine:
    """What Ann reports of her first round with Eve."""
    line, _ = against(harm, **options).advance()  # type: ignore[arg-type]
    return line


def all_of(fates: Fates) -> int:
    return fates.trained + fates.filtered + fates.zero_advantage + sum(fates.excluded.values())


def test_nothing_but_noise_passes_all_checks_and_has_no_effect() -> None:
    """All rewards of a group are 0, so there is no advantage: it takes places in the step, and that is all."""
    line = met("noise", share=1.0)
    assert not line.rejected_batches
    assert not line.rejected_groups
    assert line.sequences["eve"] == Fates(zero_advantage=GROUPS * SIZE)
    assert line.rewards["eve"] == 0.0


def test_noise_among_samples_is_what_the_filter_is_for() -> None:
    """With A < 0 it lies far from what Ann's model finds likely; without the filter she would train on it."""
    line = met("noise")
    assert not line.rejected_groups
    fates = line.sequences["eve"]
    noise_with_advantage = fates.filtered
    assert noise_with_advantage > 0
    assert line.divergence["eve"]["negative"].largest > 1000
    unfiltered = met("noise", method="tis").sequences["eve"]
    assert unfiltered.filtered == 0
    assert unfiltered.trained == fates.trained + fates.filtered
    # Every second sample is noise, and nothing else of Eve's is filtered: she has Ann's own model.
    honest = against(None).advance()[0].sequences["eve"]
    assert honest.filtered == 0
    mixed = noise_with_advantage + fates.trained
    assert noise_with_advantage == pytest.approx(mixed / 2, abs=1)


@pytest.mark.parametrize("harm", ["noise", "rambling"])
def test_what_claims_to_be_unlikely_is_not_believed(harm: Harm) -> None:
    """The divergence weighs what a peer finds likelier than the own model; who claims less than that is near, and its
    weight is the truncation's, 2 per token. But nobody samples what is that unlikely.
    """
    believed = met(harm, claim=-30.0, bound=math.inf)
    line, honest = met(harm, claim=-30.0), met(harm)
    assert believed.sequences["eve"].filtered == 0
    assert believed.importance_weight is not None
    assert honest.importance_weight is not None
    assert believed.importance_weight > honest.importance_weight
    assert not honest.sequences["eve"].excluded
    fates = line.sequences["eve"]
    assert fates.excluded["claim"] > 0
    assert fates.trained + fates.excluded["claim"] == believed.sequences["eve"].trained
    assert line.importance_weight is not None
    assert line.importance_weight < believed.importance_weight


def test_copies_that_claim_to_be_certain_are_not_refused() -> None:
    """Who states a probability of 1 has an explanation for copies; it weighs less than what Ann would give them."""
    line = met("copies", share=1.0, claim=0.0)
    assert not line.rejected_groups
    assert line.sequences["eve"] == Fates(zero_advantage=GROUPS * SIZE)


def test_wrong_answers_with_honest_claims_pass() -> None:
    """They can't be told from mistakes. A group of nothing else has no advantage, one with others lowers its mean."""
    assert met("wrong", share=1.0).sequences["eve"] == Fates(zero_advantage=GROUPS * SIZE)
    line, honest = met("wrong"), against(None).advance()[0]
    assert not line.rejected_groups
    assert line.rewards["eve"] < honest.rewards["eve"]


def test_rambling_passes_and_is_rewarded() -> None:
    """Nothing can be held against it: its advantage is above 0, which the filter spares. Only caps bound it."""
    assert met("rambling", share=1.0).sequences["eve"] == Fates(zero_advantage=GROUPS * SIZE)
    line = met("rambling")
    assert not line.rejected_groups
    assert line.rewards["eve"] >= 0.5
    far = line.divergence["eve"]["positive"]
    assert far.q50 > 50, "so far away, and used nevertheless"
    fates = line.sequences["eve"]
    assert fates.filtered < fates.trained


def test_copies_are_refused_where_their_own_claims_make_them_too_unlikely() -> None:
    """And only there: of a model that is sure of itself, equal completions are no surprise."""
    line = met("copies", share=1.0, scores="off")
    refused = line.rejected_groups["eve"]
    assert set(refused) == {RejectReason.IMPLAUSIBLE_LOGPROBS.value}
    assert 0 < refused["implausible_logprobs"] < GROUPS
    passed = line.sequences["eve"]
    assert passed == Fates(zero_advantage=SIZE * (GROUPS - refused["implausible_logprobs"]))
    assert line.generated_sequences == SIZE * (GROUPS + refused["implausible_logprobs"]), "made up for by Ann's own"


def test_who_is_refused_too_often_is_banned_where_scores_count() -> None:
    reasons: dict[str, Counter[str]] = {}
    for scores in ("on", "off"):
        simulation = against("copies", share=1.0, scores=scores)
        reasons[scores] = Counter()
        for _ in range(4):
            line, _ = simulation.advance()
            reasons[scores].update(line.rejected_batches.get("eve", {}))
    assert reasons["on"]["banned"] > 0
    assert reasons["off"] == Counter()


def test_a_hostile_party_itself_learns_from_what_it_sampled() -> None:
    _, eve = against("noise", share=1.0).advance()
    _, honest = against(None).advance()
    assert eve.sequences["own"] == honest.sequences["own"]
    assert eve.reward == honest.reward


# --- what no kind of harm does: forged batches meet the same checks ---------------------------------


def test_bad_batches_are_charged_as_in_a_daemon() -> None:
    simulation = lockstep(make_spec())
    ann, bob = simulation.nodes
    simulation.round = 1
    now_ms = simulation._now_ms
    _, (data,) = bob.sample(4, round_number=1, now_ms=now_ms, epoch=EPOCH, clock=RoundClock())
    mailbox = simulation._mailboxes["ann"]

    def judged(batch: bytes, at_ms: int = now_ms) -> Counter[str]:
        arrivals = Arrivals()
        accepted = mailbox.verify(batch, now_ms=at_ms, arrivals=arrivals)
        assert (accepted is None) == bool(arrivals.rejected_batches)
        return arrivals.rejected_batches[bob.peer_id.hex()]

    def signed_again(content: RolloutPayload, identity: Identity = bob.identity, sequence: int = 99) -> bytes:
        batch = sign_batch(
            encode_payload(content), identity=identity, run_id=ann.party.run.run_id, epoch=EPOCH, sequence=sequence,
            created_at_ms=now_ms,
        )  # fmt: skip
        return encode_batch(batch)

    content = decode_payload(decode_batch(data).payload)
    long = replace(content.groups[0], completions=(completion(b"1" * 60),) * 4)
    assert judged(signed_again(replace(content, groups=(long,)))) == {"too_long": 1}
    few = replace(content.groups[0], completions=content.groups[0].completions[:2])
    assert judged(signed_again(replace(content, groups=(few,)))) == {"group_size": 1}
    assert judged(data, now_ms + 10**7) == {"too_old": 1}
    assert judged(data) == {}
    assert judged(signed_again(content, sequence=100)) == {"reused_slot": 1}
    assert mailbox.state().authors[bob.peer_id.hex()].score < -20
