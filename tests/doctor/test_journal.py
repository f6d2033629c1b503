"""Checks that hang, fail or lose their process: each is one finding, and the next one follows."""

import asyncio
import os
import signal
import socket

import pytest

from ftis_node.config import NodeConfig
from ftis_node.doctor import journal as journal_module
from ftis_node.doctor.findings import Check, Finding, Level, Verdict, ok
from ftis_node.doctor.journal import Journal, in_thread
from ftis_node.doctor.process import WorkerProcess
from ftis_node.doctor.requests import DeviceRequest
from ftis_node.errors import HomeError


def journal() -> tuple[Journal, list[str]]:
    said: list[str] = []

    def report(finding: Finding) -> None:
        said.append(f"{finding.check} {finding.level}")

    return Journal(report, said.append), said


def test_a_check_that_hangs_says_what_it_waits_for_and_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(journal_module, "REMIND_SECONDS", 0.3)
    log, said = journal()
    slow = Check("slow", 0.5, "a disk that hangs")
    ours, theirs = socket.socketpair()

    def blocks() -> Verdict:
        ours.recv(1)
        return ok("after all")

    async def scenario() -> None:
        await log.run(slow, in_thread(blocks))  # holds its thread for good
        await log.run(Check("next", 5, ""), in_thread(lambda: ok("fine")))
        theirs.close()
        ours.close()

    asyncio.run(scenario())
    assert said[0].startswith("slow: waiting for a disk that hangs (0 s, at most")
    assert said[-2:] == ["slow failure", "next ok"]
    assert "took more than" in log.findings[0].found
    assert log.findings[0].seconds < 10
    assert log.failed


def test_an_error_of_a_check_is_a_failure_with_its_reason() -> None:
    log, _ = journal()

    def broken() -> Verdict:
        raise KeyError("torch")

    def expected() -> Verdict:
        raise HomeError("the home is damaged; restore it")

    async def scenario() -> None:
        await log.run(Check("a", 5, ""), in_thread(broken))
        await log.run(Check("b", 5, ""), in_thread(expected))

    asyncio.run(scenario())
    assert [f.level for f in log.findings] == [Level.FAILURE] * 2
    assert log.findings[0].found == "could not be checked: KeyError: 'torch'"
    assert log.findings[1].found == "the home is damaged; restore it"


def test_a_process_that_is_killed_or_given_nonsense_ends_no_examination() -> None:
    async def scenario() -> None:
        async with WorkerProcess("model") as killed:
            os.kill(killed._process.pid, signal.SIGKILL)
            await killed.ask(DeviceRequest(config=NodeConfig()))
            verdict = await killed.verdict()
            assert (verdict.level, "memory runs out" in verdict.found) == (Level.FAILURE, True)
            assert (await killed.verdict()).found == "not checked, because the process that checks it has ended"
        async with WorkerProcess("dht") as confused:
            await confused.ask(DeviceRequest(config=NodeConfig()))
            verdict = await confused.verdict()
            assert verdict.level is Level.FAILURE
            assert "the process that checks it ended (exit code 1)" in verdict.found

    asyncio.run(scenario())


def test_a_process_whose_time_is_over_is_gone() -> None:
    async def scenario() -> None:
        async with WorkerProcess("model") as worker:  # never asked: it waits
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(worker.verdict(), 0.3)
            await asyncio.wait_for(worker._process.wait(), 5)
            assert "took too long" in (await worker.verdict()).found

    asyncio.run(scenario())
