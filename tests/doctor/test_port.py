"""The port that a node listens on, and peers that dial it."""

import asyncio
from pathlib import Path

from ftis_node.config import NetworkConfig
from ftis_node.doctor.findings import Level, ok
from ftis_node.doctor.port import Listening, listening, reach
from ftis_node.swarm.addresses import Address
from ftis_node.swarm.tls import make_certificate
from tests.swarm.test_gossip import Node
from tests.swarm.test_reach import closed_port


def test_a_port_is_taken_and_given_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        port = closed_port()
        network = NetworkConfig(listen=f"127.0.0.1:{port}")
        async with listening(tmp_path, network, daemon_listens=None) as here:
            assert (here.verdict.level, here.port) == (Level.OK, port)
            async with listening(tmp_path, network, daemon_listens=None) as second:
                assert second.verdict.level is Level.FAILURE
                assert "Address already in use" in second.verdict.found
                assert f"sport = :{port}" in second.verdict.advice
        async with listening(tmp_path, network, daemon_listens=None) as again:
            assert again.verdict.level is Level.OK
        elsewhere = NetworkConfig(listen="203.0.113.7:47100")
        async with listening(tmp_path, elsewhere, daemon_listens=None) as nowhere:
            assert "doesn't have that address" in nowhere.verdict.advice

    asyncio.run(scenario())
    assert not list(tmp_path.iterdir()), "nothing is written into a home"


def test_a_machine_that_peers_do_not_reach_is_told_that_this_is_normal() -> None:
    async def scenario() -> None:
        peer, network = Node(1), NetworkConfig()
        async with peer.serving():
            here = Listening(ok(""), closed_port(), make_certificate())
            address = Address("127.0.0.1", peer.port)
            found = await reach(here, [address], network)
            assert found.level is Level.WARNING
            assert f"nobody reaches 127.0.0.1:{here.port} from outside (1 tried): behind a NAT" in found.found
            assert "this is normal" in found.found
            away = await reach(here, [Address("127.0.0.1", closed_port())], network)
            assert away.level is Level.WARNING
            assert "not checked, because" in away.found
            assert (await reach(here, [], network)).level is Level.WARNING

    asyncio.run(scenario())
