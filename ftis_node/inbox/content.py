"""The learner's judgement of a group: text, reward and plausibility. Free of torch.

A fault in one completion rejects its whole group: dropping single ones would bias the advantages.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ftis_node.errors import WireError
from ftis_node.inbox.verify import Blame, Rejected, RejectReason
from ftis_node.manifest import Run
from ftis_node.tasks.task import Item, Task
from ftis_node.types import Completion, Group, PeerId, RolloutPayload
from ftis_node.vocabulary import Vocabulary

COPIES_PROBABILITY = 1e-9
"""A group is refused when its own log-probs make its copies less likely than this."""


@dataclass(frozen=True)
class CheckedGroup:
    """A group with its item and the rewards that were computed here, one per completion."""

    group: Group
    item: Item
    rewards: tuple[float, ...]
    same_tokenizer: bool

    @property
    def reward(self) -> float:
        """The mean."""
        return math.fsum(self.rewards) / len(self.rewards)

    @property
    def spread(self) -> float:
        """The population standard deviation of the rewards; exactly 0 where all are equal, and only there."""
        if min(self.rewards) == max(self.rewards):
            return 0.0
        return math.sqrt(math.fsum((reward - self.reward) ** 2 for reward in self.rewards) / len(self.rewards))


def check_group(
    group: Group, payload: RolloutPayload, *, run: Run, author: PeerId, window: int, vocabulary: Vocabulary,
    tasks: Mapping[str, Task],
) -> CheckedGroup | Rejected:  # fmt: skip
    """Check one group of a verified batch and compute its rewards. ``window`` is the batch's."""
    same = payload.tokenizer_fingerprint == vocabulary.fingerprint
    if same:
        for completion in group.completions:
            rejected = _check_text(completion, vocabulary)
            if rejected is not None:
                return rejected
    rejected = _check_copies(group)
    if rejected is not None:
        return rejected
    task = tasks[group.task]
    item = task.item(run.assigned_index(author, window, group.slot))
    rewards = tuple(task.reward(item, c.text.decode("utf-8", "replace")) for c in group.completions)
    return CheckedGroup(group, item, rewards, same)


def _check_text(completion: Completion, vocabulary: Vocabulary) -> Rejected | None:
    try:
        text, lengths = vocabulary.decode(completion.token_ids)
    except WireError as error:
        return Rejected(RejectReason.VOCABULARY, str(error), Blame.AUTHOR)
    if text != completion.text or lengths != completion.token_byte_lengths:
        return Rejected(RejectReason.TEXT, "the text is not what the token ids decode to", Blame.AUTHOR)
    return None


def _check_copies(group: Group) -> Rejected | None:
    """Refuse groups in which one completion comes too often for its own log-probs.

    With p the probability of the completion by its log-probs, the expected number of ways to see it k
    times among G draws is C(G, k) p^k; dividing by p allows for the first draw, whatever it was:
    C(G, k) p^(k-1). An honest group of G has at most G different completions, so it is refused with a
    probability below G * COPIES_PROBABILITY.
    """
    counts = Counter(completion.token_ids for completion in group.completions)
    size = len(group.completions)
    for completion in group.completions:
        copies = counts[completion.token_ids]
        logprob = sum(completion.behavior_logprobs)
        chance = math.log(math.comb(size, copies)) + (copies - 1) * logprob
        if copies > 1 and chance < math.log(COPIES_PROBABILITY):
            detail = f"one completion came {copies} times with a probability of exp({logprob:.1f}) each"
            return Rejected(RejectReason.IMPLAUSIBLE_LOGPROBS, detail, Blame.AUTHOR)
    return None
