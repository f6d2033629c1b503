"""The network half: one asyncio process that keeps the node in the swarm. It imports no torch.

start   lock the home, open the store, settle the run manifest, bind the port
serve   dial peers, gossip, sign the learner's outbox, fold its verdicts, keep it alive
stop    finish the current write, say goodbye, end the learner; a second signal ends at once
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from ftis_node.admission import accept_invitation, why_not_a_member
from ftis_node.clock import now_ms
from ftis_node.config import NodeConfig
from ftis_node.database_thread import DatabaseThread
from ftis_node.errors import ConfigError, WireError
from ftis_node.identity import Identity, load_or_create_identity, lock_home
from ftis_node.log import LogSettings
from ftis_node.manifest import Run, check_ceilings, load_run, parse_run
from ftis_node.network_half import NetworkHalf, Party
from ftis_node.onlookers import Trackers, open_page
from ftis_node.store.faults import storage_fault
from ftis_node.store.network import NetworkStore
from ftis_node.supervision import EXIT_FINISHED, STOP_SECONDS, LearnerProcess
from ftis_node.swarm.addresses import Address, parse_address
from ftis_node.swarm.dialing import RPC_SECONDS, fetch_run, why_unanswered
from ftis_node.swarm.listening import check_listen
from ftis_node.tasks.registry import check_files
from ftis_node.types import RunId, short_id

log = logging.getLogger(__name__)

OPEN_FILES = 65_536
MANIFEST_BACKOFF_SECONDS = 30.0
SAME_SIGNAL_SECONDS = 0.3


@dataclass(frozen=True)
class NodeOptions:
    """What ``join`` or ``relay`` was told beside the node's configuration. A relay has no learner."""

    home: Path
    run_file: Path | None
    expected_run_id: RunId | None
    log: LogSettings
    until_stdin_closes: bool = False
    trains: bool = True
    invitation: str | None = None


def run_node(options: NodeOptions, config: NodeConfig) -> int:
    """Run a node until it is told to stop; returns the exit code. Raises FtisError on unusable input."""
    _allow_many_connections()
    with lock_home(options.home):
        identity = load_or_create_identity(options.home)
        store = NetworkStore(options.home)
        database = DatabaseThread(store)
        try:
            return asyncio.run(_Node(options, config, identity, database).main())
        finally:
            database.close()


def _allow_many_connections() -> None:
    """As many open files as the system lets this process have: strangers' connections must not use up the few."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def run_of_home(home: Path, stored: bytes | None, given: Run | None, *, source: str) -> Run | None:
    """The stored manifest, else the one given. Raises ConfigError when there are both, of two runs."""
    run = parse_run(stored, source=f"{home}: stored run manifest") if stored is not None else given
    if run is not None and given is not None and run.run_id != given.run_id:
        raise ConfigError(
            f"--run {source}: is run {short_id(given.run_id)}, but this home belongs to run {short_id(run.run_id)};"
            " use another --home for another run"
        )
    return run


class _Node:
    def __init__(self, options: NodeOptions, config: NodeConfig, identity: Identity, database: DatabaseThread) -> None:
        self._options = options
        self._config = config
        self._identity = identity
        self._database = database
        self._store = database.store
        self._peers = [parse_address(text, source="--peers") for text in config.network.peers]
        self._stop = asyncio.Event()
        self._learner: LearnerProcess | None = None
        self._trackers = Trackers(options.home, config.tracking, options.log)

    async def main(self) -> int:
        self._install_signals()
        await self._database(self._store.peers.all_disconnected)
        await self._database(self._store.put, "peer_id", self._identity.peer_id)
        if not self._options.trains:  # a swarm that looks at it while it starts must not take it for a learner
            await self._database(self._store.put_state, "learner", "none: this is a relay")
        run = await self._run_at_hand()
        if run is not None:
            self._check_run(run)
        elif not self._peers:
            raise ConfigError(
                "no run: give --peers host:port to join a swarm, or --run (run.toml, builtin:addition) to start one"
            )
        check_listen(parse_address(self._config.network.listen, source="--listen", lowest_port=0))
        page = open_page(self._options.home, self._config.status, self._learner_pid)
        try:
            await self._database(self._store.put_state, "status_page", page.url if page is not None else "")
            run = await self._settle_run(run)
            return 0 if run is None else await self._serve(run)
        finally:
            if page is not None:
                await asyncio.to_thread(page.stop)

    def _learner_pid(self) -> int | None:
        return None if self._learner is None else self._learner.pid

    def _install_signals(self) -> None:
        asked_at = 0.0

        def on_signal(number: int) -> None:
            nonlocal asked_at
            if self._stop.is_set():
                # A terminal and a supervisor may both pass on the same Ctrl-C.
                if loop.time() - asked_at < SAME_SIGNAL_SECONDS:
                    return
                log.warning("second signal: ending at once")
                if self._learner is not None:
                    self._learner.kill()
                os._exit(128 + number)
            asked_at = loop.time()
            log.info("stopping (a second signal ends at once)")
            self._stop.set()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal, number)
        if self._options.until_stdin_closes:  # started by a program that wants no orphans
            loop.add_reader(0, self._read_lifeline)

    def _read_lifeline(self) -> None:
        if not os.read(0, 4096):
            asyncio.get_running_loop().remove_reader(0)
            self._stop.set()

    # --- the run manifest -------------------------------------------------------------------

    async def _run_at_hand(self) -> Run | None:
        """The stored manifest, else the one given."""
        stored = await self._database(self._store.get, "manifest")
        given = load_run(self._options.run_file) if self._options.run_file is not None else None
        return run_of_home(self._options.home, stored, given, source=str(self._options.run_file))

    def _check_run(self, run: Run) -> None:
        """Whether this node can take part at all, as far as it can be told without loading anything."""
        expected = self._options.expected_run_id
        if expected is not None and run.run_id != expected:
            raise ConfigError(f"--run-id: this home is in run {run.run_id.hex()}, expected was {expected.hex()}")
        check_ceilings(run, self._config.ceilings)
        if self._options.trains:
            check_files([task.name for task in run.manifest.tasks], self._config.data.files)

    async def _settle_run(self, run: Run | None) -> Run | None:
        """The run at hand, else a peer's; None when stopped meanwhile. A run that can't be used is not kept."""
        if run is None:
            run = await self._fetch_run()
            if run is None:
                return None
            self._check_run(run)
        await self._database(self._store.put, "manifest", run.data)
        return run

    async def _fetch_run(self) -> Run | None:
        """Ask the peers in turn until one answers, backing off and saying so."""
        wait, said = 0.5, ""
        reasons: dict[Address, str] = {}
        await self._database(self._store.put_state, "network", "waiting for the run manifest")
        while not self._stop.is_set():
            for address in self._peers:
                try:
                    run, peer = await fetch_run(address, self._options.expected_run_id)
                except (TimeoutError, grpc.aio.AioRpcError, WireError) as error:
                    reasons[address] = str(why_unanswered(error, RPC_SECONDS))
                    continue
                if address.peer_id is None:
                    await self._database(self._store.peers.pin, address.target, peer)
                how = "as expected" if self._options.expected_run_id else "trusted on first use, and remembered"
                log.info("run %r, id %s, from %s: %s", run.manifest.name, run.run_id.hex(), address, how)
                await self._database(self._store.put_state, "network", "")
                return run
            why = "; ".join(f"{address} {reason}" for address, reason in reasons.items())
            # Said once, as for peers that are dialled: the same trouble again is a state, which ``health`` shows.
            level = logging.DEBUG if why == said else logging.WARNING
            log.log(level, "waiting for the run manifest: %s; trying again in %s s, and so on", why, f"{wait:g}")
            said = why
            await self._database(self._store.put_state, "network", f"waiting for the run manifest: {why}"[:300], wait)
            await self._sleep(wait)
            wait = min(2 * wait, MANIFEST_BACKOFF_SECONDS)
        return None

    async def _settle_membership(self, run: Run) -> bytes:
        """The proof that this node may take part: from the invitation given now, or the one accepted before."""
        if self._options.invitation is not None:
            proof = accept_invitation(self._options.invitation, self._identity.peer_id, run, now_ms=now_ms())
            if proof == await self._database(self._store.get, "membership"):
                log.info("already a member by this invitation: --invitation isn't needed any more")
            await self._database(self._store.put, "membership", proof)
        else:
            stored: bytes | None = await self._database(self._store.get, "membership")
            proof = stored or b""
        reason = why_not_a_member(run, self._identity.peer_id, proof, now_ms=now_ms())
        if reason is not None:
            raise ConfigError(f"run {run.manifest.name!r}: {reason} (this node is {self._identity.peer_id.hex()})")
        return proof

    # --- serving ----------------------------------------------------------------------------

    async def _serve(self, run: Run) -> int:
        trains = self._options.trains
        party = Party(
            home=self._options.home,
            identity=self._identity,
            run=run,
            model=self._config.model.label if trains else "",
            membership=await self._settle_membership(run),
        )
        half = NetworkHalf(party, self._config, self._peers, self._database)
        bound = await half.start()
        log.info("others join with: ftis-node join --peers %s@HOST:%d", self._identity.peer_id.hex(), bound.port)
        learner = None
        if trains:
            self._learner = LearnerProcess(
                self._options.home, self._config, self._options.log,
                half.put_of_this_process,
            )  # fmt: skip
            learner = asyncio.create_task(self._learner.run())
            self._trackers.start()
            if not self._peers:
                log.info("no peers given: training alone until one dials in")
        network = asyncio.create_task(half.serve())
        try:
            return await self._until_stopped(learner, network)
        finally:
            await self._shut_down(half, learner, network)

    async def _until_stopped(self, learner: asyncio.Task[int] | None, network: asyncio.Task[None]) -> int:
        """Wait for a signal. A learner that can't work at all, or a bug, ends the node; a finished one doesn't."""
        stop = asyncio.create_task(self._stop.wait())
        waiting: set[asyncio.Task[int] | asyncio.Task[None] | asyncio.Task[bool]] = {stop, network}
        if learner is not None:
            waiting.add(learner)
        while True:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if network in done:
                network.result()  # it only ends by a bug: end with its traceback
            if stop in done:
                return 0
            if learner is not None and learner in done:
                if learner.result() != EXIT_FINISHED:
                    stop.cancel()
                    return learner.result()
                log.info("all rounds are done; the node goes on serving its peers until it is stopped")

    async def _shut_down(
        self, half: NetworkHalf, learner: asyncio.Task[int] | None, network: asyncio.Task[None]
    ) -> None:
        await self._say_stopping(half)
        if self._learner is not None:
            await self._learner.stop()
        await self._trackers.stop()
        await half.say_goodbye()
        tasks: list[asyncio.Task[None] | asyncio.Task[int]] = [network, *([learner] if learner is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with _without_storage("stopped without a last word in the store"):
            await half.stop()
        log.info("stopped")

    async def _say_stopping(self, half: NetworkHalf) -> None:
        self._database.give_up_waiting()
        half.gossip.stopping.set()
        with _without_storage("stopping"):
            text = "stopping" if self._learner is None else "stopping: the learner finishes what it is at"
            await half.put_of_this_process("network", text, STOP_SECONDS)

    async def _sleep(self, seconds: float) -> None:
        """Sleep, but not past a stop."""
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return


@contextlib.contextmanager
def _without_storage(what: str) -> Iterator[None]:
    """A stop goes on when the home can't be written."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        if (fault := storage_fault(error)) is None:
            raise
        log.warning("%s; the store can't be written: %s", what, fault)
