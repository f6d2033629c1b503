"""Whether the DHT can be joined. Imports torch by hivemind; runs in a process of its own: see ``worker``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ftis_node.doctor.findings import Verdict, ok, warning
from ftis_node.errors import DiscoveryError
from ftis_node.manifest import Run

JOIN_SECONDS = 15.0
STOP_SECONDS = 5.0
WITHOUT = "peers are found by peer exchange alone, which is enough; --no-dht does without it"


def join_dht(run: Run, listen: str, peers: Sequence[tuple[str, ...]]) -> Verdict:
    """Start a DHT node at the multiaddress ``listen`` and join by peers' DHT addresses, the first who takes it."""
    try:
        return asyncio.run(_join(run, listen, peers))
    except ImportError as error:
        return warning(f"hivemind can't be imported: {error}", WITHOUT)
    except DiscoveryError as error:
        return warning(str(error), WITHOUT)


async def _join(run: Run, listen: str, peers: Sequence[tuple[str, ...]]) -> Verdict:
    from ftis_node.swarm.discovery import Discovery

    discovery = await Discovery.start(run, listen=listen)
    try:
        if not peers:
            return ok("its node starts here; no peer in the DHT is known yet")
        refusals = []
        for addresses in peers:
            try:
                await asyncio.wait_for(discovery.join(addresses), JOIN_SECONDS)
            except DiscoveryError as error:
                refusals.append(str(error))
            except TimeoutError:
                refusals.append(f"the DHT node of the peer does not answer within {JOIN_SECONDS:.0f} s")
            else:
                return ok(f"joined, {discovery.nodes_known} nodes known")
        return warning(refusals[0], WITHOUT)
    finally:
        await asyncio.wait_for(discovery.stop(), STOP_SECONDS)
