"""Health on terminals of any width: every line fits, and what stands in a column can be read."""

import io
import re

import pytest
from rich.console import Console

from ftis_node.status.rendering import Screen, print_health
from ftis_node.status.snapshot import NodeStatus, PeerStatus
from ftis_node.status.summary import Answer, health_document
from ftis_node.status.swarm_view import Bounds, HealthDocument
from tests.status.nodes import HOSTILE

NOW = 1_800_000_000_000
BOUNDS = Bounds(
    max_nodes=500, timeout_seconds=10, node_seconds=2, peers_per_node=100, asked=3, stopped_by=None, not_asked=0
)
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
STATE = "waiting for 2 peers' groups"


def peer(number: int, model: str) -> PeerStatus:
    return PeerStatus(
        peer_id=f"{number + 1:064x}", address=None, model=model, version="0.1.0", connected=True, direction="in",
        last_contact_ms=NOW - 4000, round_trip_ms=12.5, score=1.5, bytes_in=10_000_000, bytes_out=20_000,
        accepted_groups=1234, rejected_groups=5, banned_until_ms=0, ban_reason="", sequences=64, trained=60, filtered=4,
    )  # fmt: skip


def node(number: int, nodes: int, texts: tuple[str, str]) -> NodeStatus:
    model, activity = texts
    return NodeStatus(
        at_ms=NOW, version="0.1.0", peer_id=f"{number + 1:064x}", listening="203.0.113.10:47100", run_id="ab" * 32,
        run_name="test", daemon_running=True, learner="running", dht="off", model=model, parameters=134_515_008,
        trainable_parameters=134_515_008, round=1234, activity=activity, activity_since_ms=NOW - 14_000,
        activity_until_ms=NOW + 20_000, last_round_at_ms=None, last_round=None, seconds_per_round=12.3, inbox={},
        published_batches=0, published_bytes=0, received_batches=0, received_bytes=0, dials=(), rejections=(),
        tokenizer_fingerprint="f" * 64, peers=tuple(peer(other, model) for other in range(nodes) if other != number),
    )  # fmt: skip


def swarm_of(nodes: int, texts: tuple[str, str] = (MODEL, STATE)) -> HealthDocument:
    answers = [Answer(f"h:{n}", n == 0, f"{n + 1:064x}", node(n, nodes, texts)) for n in range(nodes)]
    nobody = [Answer("h:1", True, None, None, "does not answer within 5 s", cause="silent")]
    return health_document(answers or nobody, asked_at_ms=NOW, bounds=BOUNDS)


def shown(document: HealthDocument, width: int) -> list[str]:
    output = io.StringIO()
    print_health(document, Console(file=output, width=width))
    return output.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("nodes", [0, 1, 3, 50])
def test_a_swarm_can_be_read(nodes: int, width: int) -> None:
    lines = shown(swarm_of(nodes), width)
    assert max(map(len, lines)) <= width
    if nodes:
        top = next(index for index, text in enumerate(lines) if text.startswith("node "))
        first, *below = (index for index, text in enumerate(lines) if re.match(r"[0-9a-f]{12}", text) and index > top)
        assert len(re.findall(r"\S+", lines[top])) >= 4, "node, model, round and state are always there"
        assert (below or [first + 1])[0] - first <= (3 if width >= 80 else 4), (
            "a cell is as few lines as people can read"
        )
        assert re.search(r"\bwaiting for\b", lines[first]), "no word is broken"


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_strings_fit_too(text: str, width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    for document in (swarm_of(3, (text[:100], text)), swarm_of(3, ("界" * 100, "界" * 300))):
        lines = shown(document, width)
        assert max(console.render_str(part, markup=False).cell_len for part in lines) <= width
        assert not any("\x1b" in part for part in lines)


def test_what_is_left_out_is_said_and_shown_where_there_is_room() -> None:
    narrow, wide = "\n".join(shown(swarm_of(3), 80)), "\n".join(shown(swarm_of(3), 240))
    assert "not shown at this width: " in narrow
    assert "not shown" not in wide
    assert "9.5 MiB" not in narrow
    assert "19.1 MiB" in wide, "bytes in: of two peers"


def test_the_peers_of_one_node_fit() -> None:
    status = node(0, 9, (MODEL, STATE))
    document = health_document([Answer("h:0", True, status.peer_id, status)], asked_at_ms=NOW, bounds=None)
    lines = shown(document, 80)
    assert max(map(len, lines)) <= 80
    assert sum("connected (in)" in text for text in lines) == 8, "a contact is in one line"


def test_a_screen_that_is_too_low_says_how_much_is_missing() -> None:
    output = io.StringIO()
    with Screen(Console(file=output, force_terminal=True, width=80, height=24)) as screen:
        screen.show(swarm_of(50))
        text = output.getvalue()
    assert re.search(r"\d+ more lines: a taller terminal", text)
