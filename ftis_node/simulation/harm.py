"""What a hostile party publishes in place of what it sampled: payloads in good form with bad content. Pure.

The rest of a group stays as it was sampled: a group in which all completions are alike has no advantages, and no effect
but that it takes a place in the step.
"""

from __future__ import annotations

import bisect
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ftis_node.errors import ConfigError
from ftis_node.simulation.specification import Harm
from ftis_node.tasks.stopping import tokens_until_stop
from ftis_node.tasks.task import Item, Task
from ftis_node.types import Completion, FinishReason, Group, RolloutPayload
from ftis_node.vocabulary import Vocabulary

MEAN_CLAIM = 0.3
"""-log-prob per token that noise claims on average: what models of this kind have on their own samples."""

DIGITS = re.compile(r"[0-9]+")


@dataclass(frozen=True)
class Adversary:
    """A hostile party's own tokenizer and copy of the tasks.

    ``claim`` is the log-prob that it states for each token of what it puts in, whatever it sampled; None for what an
    honest author of such a text would state.
    """

    harm: Harm
    share: float
    claim: float | None
    vocabulary: Vocabulary
    tokenize: Callable[[str], list[int]]
    tasks: Mapping[str, Task]
    most_tokens: int

    def spoil(self, payload: RolloutPayload, items: Sequence[Item], rng: random.Random) -> RolloutPayload:
        """The payload with ``share`` of each group's completions replaced; ``items`` are the groups' own.

        Raises ConfigError where the task does not allow this kind of harm.
        """
        groups = tuple(
            replace(group, completions=self._spoil_group(group, item, rng))
            for group, item in zip(payload.groups, items, strict=True)
        )
        return replace(payload, groups=groups)

    def _spoil_group(self, group: Group, item: Item, rng: random.Random) -> tuple[Completion, ...]:
        completions = list(group.completions)
        places = rng.sample(range(len(completions)), math.ceil(self.share * len(completions)))
        best = max(completions, key=lambda completion: self._reward(group, item, completion.text))
        for place in places:
            spoiled = self._spoil_one(group, item, completions[place], best, rng)
            if self.claim is not None:
                claims = (self.claim,) * len(spoiled.token_ids)
                spoiled = replace(spoiled, behavior_logprobs=claims)
            completions[place] = spoiled
        return tuple(completions)

    def _spoil_one(
        self, group: Group, item: Item, sampled: Completion, best: Completion, rng: random.Random
    ) -> Completion:
        if self.harm == "copies":
            return best
        if self.harm == "noise":
            return self._noise(item, len(sampled.token_ids), rng)
        if self.harm == "wrong":
            return self._wrong(group, item, sampled)
        return self._rambling(group, item, sampled, rng)

    def _reward(self, group: Group, item: Item, text: bytes) -> float:
        return self.tasks[group.task].reward(item, text.decode("utf-8", "replace"))

    def _noise(self, item: Item, length: int, rng: random.Random) -> Completion:
        """Random tokens, as many as were sampled, with log-probs as of a model that is sure of them."""
        usable = [i for i, token in enumerate(self.vocabulary.token_bytes) if token]
        ids = [rng.choice(usable) for _ in range(max(1, length - 1))]
        return self._completion(item, ids, [-rng.expovariate(1 / MEAN_CLAIM) for _ in range(len(ids) + 1)])

    def _wrong(self, group: Group, item: Item, completion: Completion) -> Completion:
        """What was sampled, with another last number; it claims the log-probs of the right one."""
        text = completion.text
        for _ in range(10):
            if not self._reward(group, item, text):
                break
            text = _last_number_raised(text)
        return completion if text == completion.text else self._written(item, text, completion)

    def _rambling(self, group: Group, item: Item, completion: Completion, rng: random.Random) -> Completion:
        """The right answer behind as much of nothing as the run's limit allows, never twice the same."""
        for write in (_chain, _long_thought):
            nothing = [rng.choice(NOTHING[write]) for _ in range(self.most_tokens)]
            # One token at least has to be left for the end.
            count = bisect.bisect_left(
                range(1, self.most_tokens + 1),
                self.most_tokens,
                key=lambda count: len(self.tokenize(write(item.answer, nothing[:count]))),
            )
            text = write(item.answer, nothing[:count]).encode()
            if count and self._reward(group, item, text) == 1.0:
                return self._written(item, text, completion)
        raise ConfigError(f"harm = 'rambling': with task {group.task} there is no long way to say the right thing")

    def _written(self, item: Item, text: bytes, honest: Completion) -> Completion:
        """A text of its own; it claims the sampled completion's log-probs, over and over where it is longer."""
        ids = self.tokenize(text.decode("utf-8", "replace"))[: self.most_tokens - 1]
        claims = honest.behavior_logprobs
        return self._completion(item, ids, [claims[i % len(claims)] for i in range(len(ids) + 1)])

    def _completion(self, item: Item, ids: Sequence[int], logprobs: Sequence[float]) -> Completion:
        ended = (*ids, self.vocabulary.eos_token_ids[0])
        text, lengths = self.vocabulary.decode(ended)
        count = tokens_until_stop(text, lengths, item.stop) or len(ended)
        text = text[: sum(lengths[:count])]
        return Completion(ended[:count], tuple(logprobs[:count]), text, lengths[:count], FinishReason.STOP)


def _last_number_raised(text: bytes) -> bytes:
    """The last number of a text one higher; a text without one gets one."""
    plain = text.decode("utf-8", "replace")
    found = list(DIGITS.finditer(plain))
    if not found:
        return (plain + "0").encode()
    last = found[-1]
    return (plain[: last.start()] + str(int(last[0]) + 1) + plain[last.end() :]).encode()


def _chain(answer: str, nothing: Sequence[str]) -> str:
    """As the addition task allows it."""
    return "".join(f"{number}=" for number in nothing) + answer


def _long_thought(answer: str, nothing: Sequence[str]) -> str:
    return f"<think>{' '.join(nothing)}</think>\n<answer>{answer}</answer>"


NOTHING: Mapping[Callable[[str, Sequence[str]], str], Sequence[str]] = {
    _chain: tuple("123456789"),
    _long_thought: ("so", "well", "then", "again", "hence", "anyway", "now", "indeed"),
}
"""What a rambling text of either form is made of."""
