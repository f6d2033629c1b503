"""``ftis-node health`` as people and machines call it: modes, exit codes, watching, and a home whose daemon is down."""

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from ftis_node.store.schema import STORE_FILE
from tests.daemons import Daemon, learners_of, write_run
from tests.halves import running_halves
from tests.status.nodes import trained_home

REFUSED = "can't be reached: connection refused, nothing listens there"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ftis_node", "health", *arguments]


def health(*arguments: str) -> subprocess.CompletedProcess[str]:
    # Said outright: what readline has put there for this process (COLUMNS) would be inherited else.
    env = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=60, check=False, env=env)


async def asked(*arguments: str) -> tuple[int, dict]:
    """While nodes of this process go on."""
    process = await asyncio.create_subprocess_exec(*command("--json", *arguments), stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, json.loads(output)


def test_each_way_of_asking(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_halves(tmp_path, ((), (0,), (1,))) as halves:
            last = halves[2]
            code, document = await asked("--home", str(last.home))
            assert (code, document["swarm"], len(document["nodes"])) == (0, None, 1)
            code, document = await asked("--home", str(last.home), "--swarm")
            assert (code, document["swarm"]["answered"]) == (0, 3)
            code, document = await asked("--peers", str(halves[0].address))
            assert (code, document["swarm"]["answered"]) == (0, 3)
            code, document = await asked("--peers", halves[0].address.target, "--only")
            assert (code, document["swarm"], len(document["nodes"])) == (0, None, 1)
            code, document = await asked("--peers", str(halves[0].address), "--max-nodes", "1")
            assert document["bounds"]["stopped_by"] == "nodes"
        code, document = await asked("--home", str(last.home), "--swarm")
        assert (code, document["swarm"]["answered"]) == (2, 0), "its store still knows the way; nobody answers there"
        code, document = await asked("--peers", halves[0].address.target)
        assert (code, document["swarm"]["reasons"]) == (
            2,
            ["no node answers", f"{halves[0].address.target}: {REFUSED}"],
        )

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only"], "--only: asks the nodes that --peers names and no others: give --peers"),
        (["--only", "--swarm", "--peers", "h:1"], "give --peers, and not --swarm"),
        (["--peers", "nowhere"], "--peers: 'nowhere' is not an address"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], message: str) -> None:
    done = health(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_mallory_s_name_neither_ends_health_nor_moves_the_cursor(tmp_path: Path, encoding: str) -> None:
    """On a terminal that can't show her characters, and in JSON, where control characters above 0x7f are allowed."""
    home = trained_home(tmp_path / "home", rounds=1, peers=2)
    with contextlib.closing(sqlite3.connect(home / STORE_FILE)) as store:
        store.execute("UPDATE peers SET model = ?", ("模型\x9b2J\u202e",))
        store.commit()
    for arguments in ((), ("--json",)):
        done = subprocess.run(
            command("--home", str(home), *arguments), capture_output=True, check=False, timeout=60,
            env={**os.environ, "PYTHONIOENCODING": encoding},
        )  # fmt: skip
        shown = done.stdout.decode()
        assert (done.returncode, done.stderr) == (2, b"")
        assert not set("\x9b\u202e") & set(shown)
    assert json.loads(shown)["nodes"][0]["status"]["peers"][0]["model"] == "模型\x9b2J\u202e"


def test_watching_ends_with_the_code_of_what_was_shown_last(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("--home", str(tmp_path), "--watch", "--interval", "0.5"), stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        headings = 0
        for text in process.stdout:
            headings += text.startswith("--- ")
            if headings == 3:
                break
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(20) == 2


def test_watching_as_json_is_one_document_a_line(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("--home", str(tmp_path), "--watch", "--interval", "0.5", "--json"), stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        documents = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(20) == 2
    assert documents[0]["asked_at_ms"] < documents[1]["asked_at_ms"]


def test_a_node_that_waits_for_its_run_says_so(tmp_path: Path) -> None:
    with Daemon(tmp_path / "node", peers=("127.0.0.1:1",)) as node:
        status = node.until(lambda s: s.network_until_ms is not None, "it waits")
        assert status.network == f"waiting for the run manifest: 127.0.0.1:1 {REFUSED}"
        shown = health("--home", str(node.home))
        assert shown.returncode == 1
        assert f"waiting for the run manifest: 127.0.0.1:1 {REFUSED}, " in shown.stdout
        assert node.terminate() == 0
    shown = health("--home", str(node.home))
    assert shown.returncode == 2
    assert "no daemon runs on this home" in shown.stdout


def test_why_nobody_answers_is_one_line_for_each_address(tmp_path: Path) -> None:
    """No summary of a swarm of which nothing is known; the same causes as words for programs."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def scenario() -> None:
        web = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        mute = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
        async with web, mute, running_halves(tmp_path, ((),)) as halves:
            ports = [server.sockets[0].getsockname()[1] for server in (web, mute)]
            other = f"{'ab' * 32}@{halves[0].address.target}"
            causes = {
                "127.0.0.1:1": ("refused", REFUSED),
                "nobody.invalid:5": ("unresolved", "can't be reached: its name does not resolve"),
                f"127.0.0.1:{ports[0]}": ("not a node", "answers, but not with TLS: is it an ftis-node?"),
                f"127.0.0.1:{ports[1]}": ("silent", "does not answer within 5 s"),
                other: ("another identity", f"peer {halves[0].peer_id} answers instead of abababababab; if it was"),
            }
            code, document = await asked("--peers", ",".join(causes))
            assert code == 2
            assert {node["asked"]: node["failure"] for node in document["nodes"]} == {
                address: cause for address, (cause, _) in causes.items()
            }
            shown = await asyncio.to_thread(health, "--peers", ",".join(causes))
        lines = shown.stdout.splitlines()
        assert lines[0] == "unreachable  no node answers"
        assert sum(line.startswith("  ") for line in lines) == len(causes), shown.stdout
        for address, (_, text) in causes.items():
            assert sum(line.startswith(f"  ! {address}: {text}") for line in lines) == 1, shown.stdout

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_killed_learner_is_named_with_when_it_comes_back(tmp_path: Path) -> None:
    with Daemon(tmp_path / "node", run=write_run(tmp_path)) as node:
        node.after_round(1)
        for _ in range(2):  # so that the wait is long enough to be looked at
            node.until(lambda s: s.learner == "running" and bool(learners_of(node.home)), "a learner runs")
            for learner in learners_of(node.home):
                os.kill(learner, signal.SIGKILL)
            node.until(lambda s: s.learner.startswith("died"), "its death is noticed", seconds=10)
        shown = health("--home", str(node.home))
        assert shown.returncode == 1
        assert "learner: died (killed by signal SIGKILL), restarting in " in shown.stdout
        starting = node.until(lambda s: s.learner == "running", "it is started again")
        assert starting.activity == "starting", "what the one before did doesn't count"
        assert node.terminate() == 0


def test_a_learner_s_last_words_are_shown(tmp_path: Path) -> None:
    """The store can't tell: it is what could not be written."""
    fault = tmp_path / "fault"
    fault.mkdir()
    (fault / "sitecustomize.py").write_text(
        "import sqlite3, sys\n"
        "if 'ftis_node.commands.learner' in ' '.join(sys.orig_argv):\n"
        "    from ftis_node.store.learner import LearnerStore\n"
        "    def add_outbox(*_, **__):\n"
        "        print('what a library prints')\n"
        "        raise sqlite3.OperationalError('database or disk is full')\n"
        "    LearnerStore.add_outbox = add_outbox\n"
    )
    path = os.pathsep.join([str(fault), *sys.path])
    with Daemon(tmp_path / "node", run=write_run(tmp_path), env={"PYTHONPATH": path}) as node:
        status = node.until(lambda s: s.learner.startswith("died"), "its death is noticed")
        assert status.learner == "died (exit code 1: OperationalError: database or disk is full), restarting"
        assert "what a library prints" in node.log
        assert node.terminate() == 0
