"""What strangers can make the network half do without belonging to the swarm."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import threading
import time
from pathlib import Path

import grpc
import pytest

from ftis_node.status.snapshot import NodeStatus, read_status
from ftis_node.store.schema import STORE_FILE
from ftis_node.swarm.dialing import open_channel
from ftis_node.swarm.tls import fetch_certificate
from ftis_node.wire.v1 import swarm_pb2 as pb
from ftis_node.wire.v1 import swarm_pb2_grpc as rpc
from tests.daemons import Daemon, write_run
from tests.halves import Half, running_half


async def _ask_at_once(half: Half, connections: int) -> list[pb.StatusReply | BaseException]:
    certificate = await fetch_certificate(half.address)
    async with contextlib.AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(open_channel(half.address, certificate)) for _ in range(connections)
        ]
        calls = [rpc.SwarmStub(channel).GetStatus(pb.StatusRequest()) for channel in channels for _ in range(4)]
        return list(await asyncio.gather(*calls, return_exceptions=True))


def test_mallory_who_asks_for_the_status_a_hundred_times_at_once_causes_one_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once, most = 0, 0
    lock = threading.Lock()

    def slow(home: Path) -> NodeStatus:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.2)  # a store that is large, on a disk that is slow
        with lock:
            at_once -= 1
        return read_status(home)

    monkeypatch.setattr("ftis_node.network_half.read_status", slow)

    async def scenario() -> None:
        async with running_half(tmp_path / "node") as half:
            replies = await _ask_at_once(half, 25)
            assert [reply for reply in replies if isinstance(reply, pb.StatusReply)]

    asyncio.run(scenario())
    assert most == 1


def test_a_stranger_learns_nothing_of_the_disk_when_the_store_can_t_be_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_half(tmp_path / "node") as half:
            kept = tmp_path / "kept"
            shutil.move(half.home / STORE_FILE, kept)
            replies = await _ask_at_once(half, 1)
            shutil.move(kept, half.home / STORE_FILE)
            for reply in replies:
                assert isinstance(reply, grpc.aio.AioRpcError)
                assert (reply.code(), reply.details()) == (grpc.StatusCode.UNAVAILABLE, "can't read its store")

    asyncio.run(scenario())


def test_mallory_s_failing_handshakes_don_t_fill_the_log(tmp_path: Path) -> None:
    with Daemon(tmp_path / "node", run=write_run(tmp_path), command="relay", sets=("status.address='off'",)) as node:
        host, _, port = node.address().rpartition(":")
        before = len(node.log)
        for _ in range(100):
            with socket.create_connection((host, int(port)), timeout=10) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                connection.recv(1000)  # until it has been refused
        assert node.terminate() == 0
        assert node.log[before:].count("\n") < 20
