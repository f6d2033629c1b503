"""Which nodes are connected with each other, directly or through others. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from ftis_node.status.swarm_view import Partition


@dataclass(frozen=True, slots=True)
class Contact:
    """``by`` says that it is connected with ``to``; ``complete`` if all that it is connected with is known."""

    by: str
    to: str
    complete: bool


def partitions_of(
    run_of: Mapping[str, str], behind_nat: Set[str], contacts: Sequence[Contact]
) -> tuple[Partition, ...]:
    """The parts of each run, largest first.

    ``run_of``: the nodes that answered, with their runs. A connection between two of them counts if both name it, so
    that nobody can claim to hold a split swarm together; or if one does and the other's list was cut off. With a node
    that can't be asked one side's word has to do; it belongs to the run of those that it is connected with.
    """
    said = {(contact.by, contact.to) for contact in contacts}
    cut_off = {contact.by for contact in contacts if not contact.complete}
    neighbours: defaultdict[str, set[str]] = defaultdict(set)
    for by, to in said:
        if to in run_of:
            linked = run_of.get(by) == run_of[to] and ((to, by) in said or to in cut_off)
        else:
            linked = to in behind_nat
        if linked:
            neighbours[by].add(to)
            neighbours[to].add(by)
    left, found = dict.fromkeys(run_of), []
    while left:
        first = next(iter(left))
        members = _reached_from(first, neighbours, run_of)
        for member in members:
            left.pop(member, None)
        found.append(Partition(run_id=run_of[first], nodes=tuple(sorted(members))))
    return tuple(sorted(found, key=lambda part: -len(part.nodes)))


def _reached_from(first: str, neighbours: Mapping[str, Set[str]], run_of: Mapping[str, str]) -> set[str]:
    """All nodes of the first one's run that paths from it lead to."""
    members, open_ends = {first}, [first]
    while open_ends:
        for other in neighbours.get(open_ends.pop(), ()):
            if other not in members and run_of.get(other, run_of[first]) == run_of[first]:
                members.add(other)
                open_ends.append(other)
    return members
