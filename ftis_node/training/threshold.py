"""The filter's threshold from what peers' samples were like before: ``ftis.kl_threshold = "auto"``.

    of each author    the newest divergences of its sequences with A < 0
    of each author    their quantile: how far off a usual one of its worse samples is
    of all authors    the lower median of these

However much an author sends, and whatever it is, it is one author among the others. The lower median of n numbers of
which f are hostile is not above the honest ones' largest as long as f <= n / 2, and not below their smallest as long as
f < n / 2. Alone in a swarm with one peer, that peer is the measure: its own far-off samples raise the threshold for
itself. Own samples are not counted: they have almost no divergence.

Everything here is pure; a ``History`` holds divergences of earlier steps only, so that a step needs no second pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ftis_node.config import KlEstimator

KEPT_PER_AUTHOR = 64
"""Divergences, the newest: some rounds of a busy author, so that the threshold follows the models."""

KEPT_AUTHORS = 64
"""Those heard of last."""

FEWEST = 8
"""Divergences with which an author counts: a quantile of fewer is chance, and a fresh identity is cheap."""

FORGOTTEN_STEPS = 20
"""Steps without a sample after which an author counts no more: models move, and it may have left."""

FLOOR_PER_TOKEN = 0.1
"""Nats. Own samples differ from the trainer's log-probs by rounding only, and a node raises an alarm from a mean of
0.05 per token on (``round.MISMATCH_ALARM``). Twice that much passes under every estimator, and own samples with it:
``k1_mean`` is at most the mean difference, and so are ``k3`` and ``k3_forward`` if no token differs by more than 1.2.
"""


@dataclass(frozen=True, slots=True)
class AuthorDivergences:
    """The newest divergences of one author, oldest first, and the step of the last of them."""

    author: str
    step: int
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class History:
    """What is remembered after ``step`` steps; authors in the order of their names."""

    step: int = 0
    authors: tuple[AuthorDivergences, ...] = ()


def floor_of(estimator: KlEstimator, longest: int) -> float:
    """The threshold below which none may fall; ``longest`` is the longest own completion in tokens."""
    return FLOOR_PER_TOKEN * max(1, longest) if estimator == "k1_sum" else FLOOR_PER_TOKEN


def threshold_of(history: History, *, quantile: float, floor: float) -> float:
    """The threshold of the next step.

    Until an author counts it is the floor: of peers' worse samples only those that are as close as own ones are learned
    from, and of their better ones all.
    """
    counted = [author for author in history.authors if len(author.values) >= FEWEST]
    if not counted:
        return floor
    quantiles = sorted(float(np.quantile(author.values, quantile)) for author in counted)
    return max(floor, quantiles[(len(quantiles) - 1) // 2])


def observe(history: History, divergences: Mapping[str, Sequence[float]]) -> History:
    """After a step: what it found out, by author. Values that aren't finite must have been left out."""
    step = history.step + 1
    known = {author.author: author for author in history.authors if step - author.step < FORGOTTEN_STEPS}
    for name, values in divergences.items():
        if values:
            before = known[name].values if name in known else ()
            known[name] = AuthorDivergences(name, step, (*before, *values)[-KEPT_PER_AUTHOR:])
    newest = sorted(known.values(), key=lambda author: (-author.step, author.author))[:KEPT_AUTHORS]
    return History(step, tuple(sorted(newest, key=lambda author: author.author)))


def to_state(history: History) -> dict[str, Any]:
    """As a checkpoint stores it: numbers, strings and lists."""
    return {
        "step": history.step,
        "authors": [[author.author, author.step, list(author.values)] for author in history.authors],
    }


def from_state(state: Mapping[str, Any] | None) -> History:
    """Of None, as a checkpoint of a version before this one has it, an empty one."""
    if state is None:
        return History()
    authors = tuple(AuthorDivergences(name, step, tuple(values)) for name, step, values in state["authors"])
    return History(state["step"], authors)
