"""A swarm's health as a page for people. Every string comes from peers and is made harmless."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.table import Table

from ftis_node.status.agreement import FEWEST
from ftis_node.status.node_rendering import heading
from ftis_node.status.state import duration, model_text
from ftis_node.status.swarm_view import Bounds, HealthDocument, NodeView, SeenByOthers, SwarmSummary
from ftis_node.status.texts import Grid, line, short, size

NODES_SHOWN = 200
REASONS_SHOWN = 20


def render_swarm(document: HealthDocument) -> Iterator[RenderableType]:
    swarm, bounds = document.swarm, document.bounds
    assert swarm is not None
    assert bounds is not None
    if not swarm.answered:  # nothing is known of a swarm: no figures, but why, for every address
        yield from _nobody(document, swarm)
        return
    yield heading(swarm.level, _who(swarm))
    for reason in swarm.reasons:
        yield line(f"  ! {reason}")
    if (stopped := _stopped(bounds)) is not None:
        yield line(f"  ! {stopped}")
    yield _facts(swarm)
    shown = document.nodes[:NODES_SHOWN]
    yield _node_table(shown)
    if len(document.nodes) > len(shown):
        yield line(f"  and {len(document.nodes) - len(shown)} more nodes: --json has them all")
    if any(_is_used(node.seen) for node in shown):
        yield _help_table(shown)
    yield from _troubles(document.nodes)


def _nobody(document: HealthDocument, swarm: SwarmSummary) -> Iterator[RenderableType]:
    yield heading(swarm.level, swarm.reasons[0])
    named = [node for node in document.nodes if node.named]
    for node in named:
        for reason in node.reasons:
            yield line(f"  ! {node.asked}: {reason}")
    if (others := swarm.no_answer - len(named)) > 0:
        yield line(f"  ! asked in vain beside: {others} known peers")


def _who(swarm: SwarmSummary) -> str:
    parts = [f"{swarm.answered} answering"]
    if swarm.behind_nat:
        parts.append(f"{swarm.behind_nat} behind NAT (known from their neighbours)")
    if swarm.no_answer:
        parts.append(f"{swarm.no_answer} not answering")
    if swarm.known_by_name:
        parts.append(f"{swarm.known_by_name} more known by name only")
    return ", ".join(parts)


def _stopped(bounds: Bounds) -> str | None:
    if bounds.stopped_by is None:
        return None
    if bounds.stopped_by == "nodes":
        at, option = f"{bounds.max_nodes} nodes", "--max-nodes"
    else:
        at, option = f"{bounds.timeout_seconds:g} s", "--timeout"
    return f"stopped at {at} ({option}); {bounds.not_asked} known peers were not asked"


def _facts(swarm: SwarmSummary) -> Table:
    facts = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    checked = swarm.accepted_groups + swarm.rejected_groups
    rejected = "none checked" if swarm.rejected_share is None else f"{swarm.rejected_share:.1%} of {checked:,} groups"
    why = f": {_counts(swarm.rejections)}" if swarm.rejections else ""
    for name, value in (
        ("runs", _counts({short(run): count for run, count in swarm.runs.items()})),
        ("parts", _parts(swarm)),
        ("states", _counts(swarm.states)),
        ("models", _counts(swarm.models)),
        ("versions", _counts(swarm.versions)),
        ("tokenizers", _counts(swarm.tokenizers)),
        ("batches", f"{swarm.batches_per_minute:,.1f} a minute"),
        ("rejected", rejected + why),
        *([("left out", _counts(swarm.left_out))] if swarm.left_out else []),
        ("does it help?", f"yes for {swarm.swarm_helps} of the nodes, it harms {swarm.swarm_harms}, unknown for"
                          f" {swarm.swarm_unknown} (a node needs {FEWEST} measurements to tell)"),
    ):  # fmt: skip
        facts.add_row(name, line(value))
    return facts


def _parts(swarm: SwarmSummary) -> str:
    sizes = [len(part.nodes) for part in swarm.partitions]
    if len(sizes) == 1:
        return f"all {sizes[0]} nodes are connected with each other, directly or through others"
    return f"{len(sizes)} parts without a connection, of {', '.join(map(str, sizes[:10]))} nodes"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "none"


def _node_table(nodes: tuple[NodeView, ...]) -> Grid:
    names = ("node", "version", "model", "parameters", "tokenizer", "round", "state", "contact", "groups acc. / rej.",
             "score", "reached by", "in", "out")  # fmt: skip
    least = ("tokenizer", "in", "out", "contact", "parameters", "version", "groups acc. / rej.", "score", "reached by")
    return Grid(names, [_cells(node) for node in nodes], least)


def _cells(node: NodeView) -> list[str]:
    status, seen = node.status, node.seen
    name = short(node.peer_id) if node.peer_id else node.asked
    if node.level != "healthy":
        name += " !"
    if status is not None:
        version, model = status.version, model_text(status)
        parameters = f"{status.parameters:,}" if status.parameters else ""
        if node.training == "LoRA":
            parameters += f", {status.trainable_parameters:,} trained (LoRA)"
        elif node.training == "full":
            parameters += ", all trained"
        rate = "" if status.seconds_per_round is None else f", {status.seconds_per_round:.1f} s each"
        round_number, tokenizer = f"{status.round}{rate}", status.tokenizer_fingerprint[:12]
    else:
        version, model = (seen.version, seen.model or "relay") if seen is not None else ("", "")
        parameters, round_number, tokenizer = "", "", ""
    contact = "now" if status is not None else ""
    if status is None and seen is not None and seen.last_contact_seconds is not None:
        contact = f"{duration(seen.last_contact_seconds * 1000)} ago"
    groups = "" if seen is None else f"{seen.accepted_groups:,} / {seen.rejected_groups:,}"
    score = "" if seen is None or seen.score is None else f"{seen.score:+.1f}"
    traffic = ["" if count is None else size(count) for count in (node.bytes_in, node.bytes_out)]
    reached = _reached(node)
    return [
        name,
        version,
        model,
        parameters,
        tokenizer,
        round_number,
        node.state,
        contact,
        groups,
        score,
        reached,
        *traffic,
    ]


def _reached(node: NodeView) -> str:
    """From where: ``3 of 5, 2 dialled it``; whoever can only dial out is dialled by nobody."""
    if node.seen is None:
        return ""
    text = f"{node.seen.connected_to} of {node.seen.asked}"
    if node.seen.dialled_by:
        text += f", {node.seen.dialled_by} dialled it"
    return text if node.reach == "answers" else f"{text}, {node.reach}"


def _is_used(seen: SeenByOthers | None) -> bool:
    return seen is not None and seen.sequences > 0


def _help_table(nodes: tuple[NodeView, ...]) -> Grid:
    """Per author: what its samples were worth to the nodes that trained on them."""
    rows = [
        (short(node.peer_id), str(node.seen.helps), str(node.seen.harms), str(node.seen.unknown),
         f"{node.seen.sequences:,}", f"{node.seen.trained:,}", f"{node.seen.filtered:,}")
        for node in nodes if node.seen is not None and _is_used(node.seen)
    ]  # fmt: skip
    names = ("author", "helps nodes", "harms nodes", "unknown", "sequences used", "trained", "filtered")
    return Grid(names, rows, least=("filtered", "trained"))


def _troubles(nodes: tuple[NodeView, ...]) -> Iterator[RenderableType]:
    shown = 0
    for node in nodes:
        for reason in node.reasons:
            if node.reach == "answers" and shown < REASONS_SHOWN:
                shown += 1
                yield line(f"  ! {short(node.peer_id)}: {reason}")
