"""What the demo says that a node gained, by hand."""

from ftis_node.commands.demo_gain import Effort, gain, rewards_over_time
from ftis_node.store.reports import PhaseSeconds, RoundReport


def phase(rewards: list[float | None], *, seconds: float, tokens: int, own: int, peers: int) -> list[RoundReport]:
    return [
        RoundReport(
            round=number, own_groups=own, peer_groups=peers, own_informative=own, peer_informative=peers, stepped=True,
            own_reward=reward, generated_tokens=tokens,
            seconds=PhaseSeconds(generating=seconds / 2, training=seconds / 4, waiting=seconds / 4),
        )
        for number, reward in enumerate(rewards, start=1)
    ]  # fmt: skip


ALONE = phase([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0], seconds=2.0, tokens=100, own=3, peers=0)


def test_it_is_counted_until_the_mean_of_five_rounds_is_what_it_ends_with_alone() -> None:
    together = phase([0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0, 1.0], seconds=3.0, tokens=40, own=2, peers=4)
    found = gain(ALONE, together)
    assert found is not None
    assert round(found.reward, 9) == 0.8
    assert found.alone == Effort(rounds=10, seconds=20.0, own_tokens=1000)
    # 0.4, 0.6, 0.8, 1, 1 are 0.76 in the mean, 0.6, 0.8, 1, 1, 1 are 0.88: after seven rounds.
    assert found.together == Effort(rounds=7, seconds=21.0, own_tokens=280)
    assert (found.alone_a_minute, found.together_a_minute) == (90.0, 120.0)


def test_rounds_without_own_samples_cost_time_and_one_good_round_is_no_end() -> None:
    together = phase([1.0, None, 0.2, 0.8, 0.9, 0.9, 1.0], seconds=1.0, tokens=10, own=1, peers=1)
    found = gain(ALONE, together)
    assert found is not None
    assert found.together is None
    together += phase([None] * 7 + [1.0, 1.0], seconds=1.0, tokens=10, own=1, peers=1)[7:]
    found = gain(ALONE, together)
    assert found is not None
    assert found.together is not None
    assert found.together.seconds == 8.0


def test_without_samples_there_is_nothing_to_say() -> None:
    assert gain([], ALONE) is None
    assert gain(phase([None], seconds=1.0, tokens=0, own=0, peers=1), ALONE) is None
    assert gain(ALONE, []) is None


def test_rewards_stand_at_the_end_of_their_rounds() -> None:
    found = rewards_over_time(phase([0.5, None, 1.0], seconds=2.0, tokens=1, own=1, peers=0))
    assert [(at.seconds, at.reward) for at in found] == [(2.0, 0.5), (6.0, 1.0)]
