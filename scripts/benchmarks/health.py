"""How long ``ftis-node health`` takes: for one home, and for a swarm of 96 nodes that live in this process.

Every look is a process of its own, from its start to its end. The nodes are those of the swarm's benchmark, without
batches, on one core; what they answer with is read from their stores.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from ftis_node.clock import now_ms
from ftis_node.database_thread import store_thread
from ftis_node.identity import lock_home
from ftis_node.store.peers import StoredScore
from ftis_node.swarm.addresses import Address
from scripts.benchmarks.swarm import SETTLE_SECONDS, Node, make_run, start, until

NODES, LOOKS = 96, 5


async def look(*arguments: str) -> tuple[float, dict[str, object]]:
    """Seconds of one ``ftis-node health``, and its document."""
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ftis_node", "health", "--json", *arguments, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return time.monotonic() - began, json.loads(output)


def known(node: Node) -> int:
    """Peers with an address at which the node has reached them."""
    return len({peer for peer, _ in node.database.store.peers.reachable_addresses(1000)})


async def scenario(folder: Path) -> dict[str, float]:
    run, rng, thread = make_run(), random.Random(1), store_thread()
    nodes: list[Node] = []
    addresses: list[Address] = []
    with contextlib.ExitStack() as locks:
        for number in range(NODES):
            node, address = await start(
                folder / str(number), run, rng.sample(addresses, min(2, len(addresses))), thread
            )
            locks.enter_context(lock_home(node.home))
            nodes.append(node)
            addresses.append(address)
        await until(lambda: all(len(node.half.gossip.sessions) >= 8 for node in nodes), SETTLE_SECONDS)
        await until(lambda: all(known(node) >= 8 for node in nodes), SETTLE_SECONDS)
        for node in nodes:
            # As after a round: everybody's samples came, from neighbour to neighbour.
            for address in addresses:
                assert address.peer_id is not None
                await node.database(node.database.store.peers.put_score, address.peer_id, StoredScore(1.0, now_ms()))
        home = [(await look("--home", str(nodes[0].home)))[0] for _ in range(LOOKS)]
        walks, answered = [], []
        for _ in range(LOOKS):
            seconds, document = await look("--peers", str(rng.choice(addresses)))
            swarm = document["swarm"]
            assert isinstance(swarm, dict)
            walks.append(seconds)
            answered.append(swarm["answered"])
        for node in nodes:
            assert node.serving is not None
            node.serving.cancel()
            await asyncio.gather(node.serving, return_exceptions=True)
        await asyncio.gather(*(node.half.stop() for node in nodes))
    return {
        "looks": LOOKS,
        "home_seconds": statistics.median(home),
        "nodes": NODES,
        "swarm_seconds": statistics.median(walks),
        "nodes_that_answered_at_least": min(answered),
    }


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ftis-bench-") as folder:
        print(json.dumps(asyncio.run(scenario(Path(folder)))))


if __name__ == "__main__":
    main()
