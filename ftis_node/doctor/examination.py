"""All checks in their order. What needs torch runs in processes of its own; a running daemon isn't disturbed."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from ftis_node.admission import why_not_a_member
from ftis_node.clock import now_ms
from ftis_node.config import NodeConfig
from ftis_node.doctor import findings as checks
from ftis_node.doctor.acquaintances import Acquaintance, clock_offset_ms, judge_clock, judge_peers, judge_run, meet
from ftis_node.doctor.findings import Check, Verdict, failure, not_checked, ok, warning
from ftis_node.doctor.journal import Journal, in_thread
from ftis_node.doctor.machine import (
    disk_beside_daemon,
    home_folder,
    package_versions,
    private_files,
    python_version,
    store_bytes,
)
from ftis_node.doctor.port import Listening, listening, reach
from ftis_node.doctor.process import WorkerProcess
from ftis_node.doctor.remembered import Remembered, judge_store
from ftis_node.doctor.requests import DeviceRequest, DhtRequest, ModelRequest
from ftis_node.doctor.running import of_daemon
from ftis_node.manifest import Run, check_ceilings
from ftis_node.swarm.addresses import Address, parse_address
from ftis_node.swarm.handshake import HELLO_SKEW_MS

MOST_PEERS = 8


@dataclass(frozen=True)
class Subject:
    """What is examined. ``run`` is the home's or the one given; ``stand_in`` is for a home that has none."""

    home: Path
    config: NodeConfig
    peers: tuple[Address, ...]
    run: Run | None
    run_source: str
    stand_in: Run
    remembered: Remembered


async def examine(subject: Subject, journal: Journal) -> None:
    """Make every check, whatever the ones before it found. Never raises for what it finds."""
    async with AsyncExitStack() as stack:
        await _Examination(subject, journal, stack).all()


class _Examination:
    def __init__(self, subject: Subject, journal: Journal, stack: AsyncExitStack) -> None:
        self._subject = subject
        self._config = subject.config
        self._known = subject.remembered
        self._journal = journal
        self._stack = stack
        self._dialled: list[Acquaintance] = []
        self._run, self._run_source = subject.run, subject.run_source
        self._here = Listening(not_checked("the port could not be looked at"))

    async def all(self) -> None:
        journal, home = self._journal, self._subject.home
        await journal.run(checks.PYTHON, in_thread(python_version))
        await journal.run(checks.PACKAGES, in_thread(package_versions, self._config))
        model = await self._device()
        await journal.run(checks.HOME, in_thread(home_folder, home))
        await journal.run(checks.IDENTITY, in_thread(private_files, home))
        journal.note(checks.STORE, judge_store(self._known))
        await journal.run(checks.PEERS, self._peers())
        await journal.run(checks.RUN, self._which_run())
        journal.note(checks.CLOCK, self._clock())
        await journal.run(checks.PORT, self._port())
        await journal.run(checks.REACH, self._reach())
        await self._dht()
        await self._model(model)

    # --- the network ------------------------------------------------------------------------

    async def _peers(self) -> Verdict:
        given = [self._known.expected(address) for address in self._subject.peers[:MOST_PEERS]]
        targets = {address.target for address in given}
        others = [address for address in self._known.reached if address.target not in targets]
        self._dialled = list(
            await asyncio.gather(
                *(meet(address, given=True) for address in given), *(meet(address, given=False) for address in others)
            )
        )
        return judge_peers(self._dialled, own_id=self._known.peer_id, daemon_runs=self._known.daemon is not None)

    def _others(self) -> list[Acquaintance]:
        """Peers that answered, without this node itself."""
        return [a for a in self._dialled if a.met is not None and a.met.record.peer_id != self._known.peer_id]

    async def _which_run(self) -> Verdict:
        """Raises ConfigError when the run asks for more than this machine's ceilings; it is not used any further."""
        others = self._others()
        if self._run is None and others and others[0].met is not None:
            self._run, self._run_source = others[0].met.run, f"from {others[0].address.target}"
        verdict = judge_run(self._run, self._run_source, others)
        if self._run is None or verdict.level is checks.Level.FAILURE:
            return verdict
        run, self._run = self._run, None
        check_ceilings(run, self._config.ceilings)
        self._run = run
        return self._admission(run, verdict)

    def _admission(self, run: Run, verdict: Verdict) -> Verdict:
        """The verdict, unless this node may not take part in the run."""
        if run.manifest.membership == "open":
            return verdict
        own = self._known.peer_id
        if own is None:
            return warning(f"{verdict.found}; not open to everybody, and this home has no identity to be admitted yet")
        reason = why_not_a_member(run, own, self._known.membership, now_ms=now_ms())
        return verdict if reason is None else failure(f"{verdict.found}; {reason}", f"this node is {own.hex()}")

    def _clock(self) -> Verdict:
        run = self._run or self._subject.stand_in
        return judge_clock(
            [clock_offset_ms(a.met) for a in self._others() if a.met is not None],
            now_ms=now_ms(),
            newest_ms=self._known.newest_ms,
            allowed_ms=min(run.manifest.limits.clock_skew_seconds * 1000, HELLO_SKEW_MS),
            config=self._config,
        )

    async def _port(self) -> Verdict:
        status, daemon = self._known.status, self._known.daemon
        listens = status.listening if status is not None and daemon is not None else None
        if daemon is not None and listens is None:
            return warning(f"the daemon (process {daemon}) doesn't listen yet", "ask again when it has started")
        self._here = await self._stack.enter_async_context(
            listening(self._subject.home, self._config.network, daemon_listens=listens)
        )
        return self._here.verdict

    async def _reach(self) -> Verdict:
        return await reach(self._here, [a.address for a in self._others()], self._config.network)

    async def _dht(self) -> None:
        network = self._config.network
        if self._known.daemon is not None:
            self._leave_out(checks.DHT, self._known.daemon)
            return
        if network.dht == "off":
            self._journal.note(checks.DHT, ok("off: peers are found by peer exchange alone"))
            return
        listen = parse_address(network.listen, source="network.listen", lowest_port=0)
        kind = "ip6" if ":" in listen.host else "ip4"
        request = DhtRequest(
            manifest=(self._run or self._subject.stand_in).data.decode(),
            listen=f"/{kind}/{listen.host}/tcp/{network.dht_port}",
            peers=tuple(a.met.record.dht_addresses for a in self._others() if a.met and a.met.record.dht_addresses),
        )
        async with WorkerProcess("dht") as worker:
            await worker.ask(request)
            await self._journal.run(checks.DHT, worker.verdict())

    # --- torch and the model ----------------------------------------------------------------

    async def _device(self) -> WorkerProcess | None:
        if self._known.daemon is not None:
            self._leave_out(checks.DEVICE, self._known.daemon)
            return None
        worker = await self._stack.enter_async_context(WorkerProcess("model"))
        await worker.ask(DeviceRequest(config=self._config))
        await self._journal.run(checks.DEVICE, worker.verdict())
        return worker

    async def _model(self, worker: WorkerProcess | None) -> None:
        if worker is not None:
            run = self._run or self._subject.stand_in
            await worker.ask(ModelRequest(home=str(self._subject.home), manifest=run.data.decode()))
        for check in checks.MODEL_CHECKS:
            if worker is not None:
                await self._journal.run(check, worker.verdict())
            elif check is checks.DISK:
                store = store_bytes(self._config)
                await self._journal.run(check, in_thread(disk_beside_daemon, self._subject.home, store))
            elif self._known.daemon is not None:
                self._leave_out(check, self._known.daemon)

    def _leave_out(self, check: Check, process: int) -> None:
        self._journal.note(check, of_daemon(check, self._known.status, process))
