"""Learners in lockstep: what is reported, what arrives when, and that it is the daemon's own step."""

import contextlib
from pathlib import Path

import pytest
import torch

from ftis_node import learner, own_groups, peer_groups
from ftis_node.config import CapsConfig, ModelConfig, NodeConfig, TrainingConfig
from ftis_node.errors import ConfigError
from ftis_node.inbox.verify import Accepted, Known, Opened, open_batch, verify
from ftis_node.learner import Learner
from ftis_node.round import OWN
from ftis_node.round_report import RoundClock
from ftis_node.simulation.figures import Fates
from ftis_node.simulation.lockstep import EPOCH, START_MS, Lockstep
from ftis_node.simulation.mailbox import Arrivals
from ftis_node.simulation.node import SimulatedNode, identity_of, seed_of
from ftis_node.simulation.runner import prepare
from ftis_node.store.authors import Measurement
from ftis_node.store.network import NetworkStore, ReceivedBatch
from ftis_node.training.threshold import FLOOR_PER_TOKEN
from tests.simulations import lockstep, make_spec, party, rounds_of

GROUPS, SIZE = 8, 4


def count(fates: Fates) -> int:
    return fates.trained + fates.filtered + fates.zero_advantage + sum(fates.excluded.values())


def weights(node: SimulatedNode) -> list[torch.Tensor]:
    return [p.detach().clone() for p in node.party.loaded.model.parameters()]


def test_a_round_accounts_for_every_sequence() -> None:
    for name, lines in rounds_of(make_spec(rounds=2)).items():
        other = {"ann": "bob", "bob": "ann"}[name]
        for line in lines:
            assert set(line.sequences) == {OWN, other}
            assert all(count(fates) == GROUPS // 2 * SIZE for fates in line.sequences.values())
            for origin, fates in line.sequences.items():
                measured = sum(q.count for q in line.divergence[origin].values())
                assert measured == fates.trained + fates.filtered
            assert line.stepped
            assert line.gradient_norm
            assert line.generated_sequences == GROUPS // 2 * SIZE
            assert line.generated_tokens >= line.generated_sequences
            assert not line.rejected_batches
            assert not line.rejected_groups


def test_own_samples_are_close_and_those_of_another_model_are_not() -> None:
    large = {"model": {"name": "builtin:large"}}
    (line,) = rounds_of(make_spec(party("ann"), party("bob", node=large), rounds=1))["ann"]
    assert line.own_logprob_mismatch is not None
    assert line.own_logprob_mismatch < 0.5 / 1024 + 1e-4, "half a step of the wire's grid"
    own, peers = (line.divergence[origin]["negative"] for origin in (OWN, "bob"))
    assert own.largest < 1e-5 < peers.q10 <= peers.q50 <= peers.largest


def test_the_same_seed_gives_the_same_numbers_and_another_one_others() -> None:
    spec = make_spec(rounds=2)
    first, again, other = (rounds_of(spec, seed=seed) for seed in (3, 3, 4))
    without_seconds = [
        [line.model_copy(update={"seconds": {}}) for lines in run.values() for line in lines]
        for run in (first, again, other)
    ]
    assert without_seconds[0] == without_seconds[1]
    assert without_seconds[0] != without_seconds[2]


def test_what_is_compared_starts_from_the_same_prompts_and_samples() -> None:
    """Whatever the simulation is called, and whatever the parties do with their samples: a paired difference."""
    methods = [
        make_spec(*(party(name, node={"ftis": {"method": method}}) for name in ("ann", "bob")), name=method, rounds=2)
        for method in ("f-tis", "nois")
    ]
    ftis, nois = (rounds_of(spec)["ann"] for spec in methods)
    assert (ftis[0].rewards, ftis[0].generated_tokens) == (nois[0].rewards, nois[0].generated_tokens)
    assert ftis[0].gradient_norm != nois[0].gradient_norm


def test_a_party_alone_never_opens_a_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where all are alone, nor where one is among others; and its numbers are the same in both."""

    def refuse(*arguments: object, **named: object) -> None:
        raise AssertionError("a party that is alone was given a batch")

    lonely = party("ann", training={"min_own_share": 1.0})
    among_others = lockstep(make_spec(lonely, party("bob"), scores="off"))
    monkeypatch.setattr(among_others._mailboxes["ann"], "verify", refuse)
    ann, bob = among_others.advance()
    assert set(ann.sequences) == {OWN}
    assert ann.generated_sequences == GROUPS * SIZE
    assert set(bob.sequences) == {OWN, "ann"}
    all_alone = lockstep(make_spec(party("ann"), party("bob"), collaboration="alone"))
    for mailbox in all_alone._mailboxes.values():
        monkeypatch.setattr(mailbox, "verify", refuse)
    ann_again, bob_alone = all_alone.advance()
    assert set(bob_alone.sequences) == {OWN}
    assert all_alone.state().letters == []
    assert ann_again.gradient_norm == pytest.approx(ann.gradient_norm, abs=0), "her prompts and samples are the same"
    for mine, same in zip(weights(among_others.nodes[0]), weights(all_alone.nodes[0]), strict=True):
        assert torch.equal(mine, same)


@pytest.mark.parametrize("staleness", [1, 2])
def test_stale_batches_arrive_so_many_rounds_later(staleness: int, monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = lockstep(make_spec(staleness=staleness, rounds=4))
    mailbox = simulation._mailboxes["ann"]
    real, ages = mailbox.verify, []

    def note(data: bytes, *, now_ms: int, arrivals: Arrivals) -> Accepted | None:
        opened = open_batch(data)
        assert isinstance(opened, Opened)
        ages.append(-(-(now_ms - opened.header.created_at_ms) // 60_000))
        return real(data, now_ms=now_ms, arrivals=arrivals)

    monkeypatch.setattr(mailbox, "verify", note)
    for number in range(1, 5):
        ann, _ = simulation.advance()
        arrived = number > staleness
        assert ("bob" in ann.sequences) == arrived
        # Who gets nothing makes the missing groups itself, as a daemon does when it has waited long enough.
        assert ann.generated_sequences == (GROUPS // 2 if arrived else GROUPS) * SIZE
        # What Bob made for want of Ann's groups, after the exchange of its round, comes a round later.
        assert ages == [] if not arrived else staleness in ages and set(ages) <= {staleness, staleness + 1}
        ages.clear()


def test_horizontal_groups_hold_every_partys_completions_of_one_prompt() -> None:
    simulation = lockstep(make_spec(collaboration="horizontal"))
    groups: dict[str, list[tuple[str, ...]]] = {}
    for node in simulation.nodes:

        def step(given, clock, node=node, real=node.step):
            prompts = [{sequence.prompt_ids for sequence in group.sequences} for group in given]
            assert all(len(same) == 1 for same in prompts), "a group is of one prompt"
            assert len(set().union(*prompts)) == len(given)
            groups[node.spec.name] = sorted(
                tuple(sorted(bytes(t for t in s.completion_ids if t < 256).decode("latin1") for s in group.sequences))
                for group in given
            )
            return real(given, clock)

        node.step = step  # type: ignore[method-assign]
    ann, bob = simulation.advance()
    assert groups["ann"] == groups["bob"], "both train on the same groups"
    assert all(len(group) == 2 * SIZE for group in groups["ann"])
    assert len(groups["ann"]) == GROUPS
    for line, other in ((ann, "bob"), (bob, "ann")):
        for origin in (OWN, other):
            assert count(line.sequences[origin]) == GROUPS * SIZE
        assert line.generated_sequences == GROUPS * SIZE
        assert line.own_logprob_mismatch is None, "own and others' samples can't be told apart in a merged group"


def test_caps_hold_and_what_is_missing_is_made_by_oneself() -> None:
    spec = make_spec(party("ann", caps={"author_share": 0.25}), party("bob"), rounds=2)
    ann, bob = (lines[-1] for lines in rounds_of(spec).values())
    assert count(ann.sequences["bob"]) == 2 * SIZE
    assert ann.generated_sequences == 6 * SIZE
    assert bob.generated_sequences == 4 * SIZE


def test_newcomers_are_few_until_they_have_a_history() -> None:
    spec = make_spec(party("ann", caps={"newcomer_groups": 9}), party("bob"), rounds=4)
    taken = [count(line.sequences["bob"]) // SIZE for line in rounds_of(spec)["ann"]]
    # Four groups come a round: eight are known after the second, and with the third Bob is no newcomer any more.
    assert taken == [2, 2, 4, 4]


def test_agreement_is_measured_as_the_daemon_measures_it() -> None:
    large = {"model": {"name": "builtin:large"}}
    ann = party("ann", node=large, training={"agreement_every": 2, "groups_per_step": 16})
    lines = rounds_of(make_spec(ann, party("bob", node=large), rounds=2))["ann"]
    nothing, measured = sorted((line.agreement for line in lines), key=len)
    assert nothing == {}
    assert set(measured) == {"own", "peers", "bob"}
    assert all(-1 <= value <= 1 for value in measured.values())


def test_a_peer_that_is_measured_to_harm_loses_its_weight() -> None:
    """Ann learns next to nothing: the measurements are of one model."""
    settings = {"agreement_every": 1, "peer_weighting": "usefulness", "groups_per_step": 16, "learning_rate": 1e-9}
    ann = party("ann", training=settings, node={"ftis": {"kl_threshold": "auto", "kl_quantile": 0.5}})
    simulation = lockstep(make_spec(ann, party("bob"), scores="off"))
    node = simulation.nodes[0]
    bob = simulation.nodes[1].peer_id.hex()
    first = [line for _ in range(2) for line in simulation.advance() if line.party == "ann"]
    assert all(line.peer_weights == {} for line in first), "measured too seldom"
    assert first[0].kl_threshold == FLOOR_PER_TOKEN
    assert {m.origin for m in node.measurements} == {OWN, bob}
    assert [m.round for m in node.measurements if m.origin == OWN] == [1, 2]
    # As if they had been clear.
    node.measurements = [Measurement(o, r, a, 8) for r in range(-9, 1) for o, a in ((OWN, 0.3), (bob, -0.3))]
    (line,) = (line for line in simulation.advance() if line.party == "ann")
    assert line.peer_weights == {"bob": 0.0}
    assert line.sequences["bob"].trained == 0
    assert line.sequences["bob"].excluded["no_weight"] > 0
    assert count(line.sequences["bob"]) == 4 * SIZE
    assert line.agreement.keys() >= {"own", "bob"}, "it goes on being measured"


def test_a_window_without_prompts_left_is_one_line() -> None:
    spec = make_spec(rounds=3)
    run = spec.run.model_copy(update={"assignment": spec.run.assignment.model_copy(update={"quota": 4})})
    simulation = lockstep(spec.model_copy(update={"run": run, "round_seconds": 300}))
    # The second and the third round are of one window.
    simulation.advance()
    simulation.advance()
    with pytest.raises(ConfigError, match=r"quota = 4: party 'ann' has used up its prompts of the window in round 3"):
        simulation.advance()


# --- the daemon's own path ------------------------------------------------------------------------


def test_one_step_is_the_daemons_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon's learner with Ann's identity and seed, and Bob's batch in its store, ends with Ann's weights."""
    simulation, batches = _with_batches_of_bob()
    (ann, _), expected = simulation.advance(), simulation.nodes[0]
    now_ms = START_MS + 60_000
    for module in (learner, own_groups, peer_groups):
        monkeypatch.setattr(module, "now_ms", lambda: now_ms)
    config = NodeConfig(
        model=ModelConfig(name="builtin:small"),
        training=TrainingConfig(
            groups_per_step=GROUPS, min_own_share=0.5, agreement_every=0, learning_rate=3e-4, max_rounds=1,
            collect_timeout=0, places="any", seed=seed_of(0, "ann"), micro_batch_tokens=16_384,
        ),
        caps=CapsConfig(newcomer_groups=0),
    )  # fmt: skip
    run = expected.party.run
    store = NetworkStore(tmp_path)
    store.put("manifest", run.data)
    store.put("peer_id", identity_of(0, "ann").peer_id)
    for data in batches:
        opened = open_batch(data)
        assert isinstance(opened, Opened)
        accepted = verify(opened, run=run, known=Known(), now_ms=now_ms, profile=None)
        assert isinstance(accepted, Accepted)
        header = accepted.header
        store.accept(
            ReceivedBatch(
                name=opened.name, author=header.author, epoch=EPOCH, sequence=header.sequence,
                created_at_ms=header.created_at_ms, window=accepted.window,
                slots=tuple(group.slot for group in accepted.payload.groups),
                sequences=SIZE * len(accepted.payload.groups), header=opened.header_bytes, signature=opened.signature,
                data=data,
            ),
            delivered_by=header.author, address_range="here", keep_until_ms=now_ms + 10**6, max_bytes=10**8,
        )  # fmt: skip
    monkeypatch.setattr(learner, "parse_run", lambda data, source: run)  # its bytes are no TOML
    with Learner(tmp_path, config, protected=contextlib.nullcontext) as daemon:
        daemon.run()
        report = daemon._store.last_report()
        assert report is not None
        assert report.peers.trained == ann.sequences["bob"].trained > 0
        assert report.own.trained == ann.sequences[OWN].trained
        assert report.gradient_norm == ann.gradient_norm
        for mine, theirs in zip(weights(expected), daemon._party.loaded.model.parameters(), strict=True):
            assert torch.equal(mine, theirs)
    store.close()


def _with_batches_of_bob() -> tuple[Lockstep, list[bytes]]:
    """A simulation before its first round, and what Bob will publish in it."""
    spec = make_spec()
    twin = lockstep(spec)
    bob = twin.nodes[1]
    twin.round = 1
    _, batches = bob.sample(GROUPS // 2, round_number=1, now_ms=twin._now_ms, epoch=EPOCH, clock=RoundClock())
    study = prepare(spec)
    return Lockstep(spec, study.run, study.tasks, seed=0), batches
