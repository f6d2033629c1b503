"""Log lines: what people read, what programs read, and how many there may be."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftis_node.log import ALIKE_PER_MINUTE, LONGEST_TRACEBACK, AtMostSoMany, LogSettings, about, set_up_logging
from tests.daemons import Daemon, write_run

PEER, BATCH = b"\x01" * 32, b"\x02" * 32


@pytest.fixture(autouse=True)
def _restored():
    root, ours = logging.getLogger(), logging.getLogger("ftis_node")
    kept = (root.handlers[:], root.level, ours.level, sys.excepthook)
    yield
    root.handlers[:], sys.excepthook = kept[0], kept[3]
    root.setLevel(kept[1])
    ours.setLevel(kept[2])


def test_a_line_for_people(capfd: pytest.CaptureFixture[str]) -> None:
    set_up_logging("node", LogSettings())
    logging.getLogger("ftis_node.x").warning("held back: %s", "ok", extra=about(peer=PEER))
    line = capfd.readouterr().err
    assert line[4] == "-"
    assert line.endswith(" node: WARNING held back: ok\n")


def test_a_line_for_programs_holds_the_ids(capfd: pytest.CaptureFixture[str]) -> None:
    set_up_logging("learner", LogSettings(format="json"))
    fields = about(round_number=7, peer=PEER, batch=BATCH)
    logging.getLogger("ftis_node.x").error("rejected", extra=fields)
    line = json.loads(capfd.readouterr().err)
    assert (line["process"], line["level"], line["message"]) == ("learner", "error", "rejected")
    assert (line["round"], line["peer"], line["batch"]) == (7, PEER.hex(), BATCH.hex())
    assert line["time"].endswith("Z")


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_a_peer_wrote_stays_one_line_of_bounded_length(form: str, capfd: pytest.CaptureFixture[str]) -> None:
    set_up_logging("node", LogSettings(format="json" if form == "json" else "text"))
    logging.getLogger("ftis_node.x").info("model %s", "\x1b[2J\nnode: all is well\u202e" + "x" * 100_000)
    out = capfd.readouterr().err
    assert out.count("\n") == 1
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert len(out) < 5_000


@pytest.mark.parametrize("form", ["text", "json"])
def test_mallory_s_words_in_an_error_can_t_pass_for_lines_of_the_log(
    form: str, capfd: pytest.CaptureFixture[str]
) -> None:
    set_up_logging("node", LogSettings(format="json" if form == "json" else "text"))
    try:
        raise ValueError("model \x1b[2J\r\n2026-12-02 00:00:00 node: all is well\u202e" + "\n" * 10_000)
    except ValueError as error:
        logging.getLogger("ftis_node.x").error("session failed", exc_info=error)
    out = capfd.readouterr().err
    assert not [line for line in out.splitlines() if line.startswith("2026-12-02 00:00:00")]
    assert not set("\x1b\r\u202e") & set(out)
    assert out.count("\n") <= LONGEST_TRACEBACK + 1


def test_lines_alike_are_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    bound = AtMostSoMany()

    def record(line: int) -> logging.LogRecord:
        return logging.LogRecord("ftis_node.x", logging.INFO, "x.py", line, "flood", None, None)

    assert sum(bound.filter(record(1)) for _ in range(1000)) == ALIKE_PER_MINUTE
    assert bound.filter(record(2))  # another place in the code
    now += 61
    again = record(1)
    assert bound.filter(again)
    assert again.__dict__["left_out"] == 1000 - ALIKE_PER_MINUTE


def test_what_ends_a_process_is_a_line_too() -> None:
    code = (
        "from ftis_node.log import *\nset_up_logging('node', LogSettings(format='json'))\n"
        "raise RuntimeError('disk on fire')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    line = json.loads(run.stderr)
    assert run.returncode == 1
    assert line["level"] == "critical"
    assert "disk on fire" in line["message"]
    assert "Traceback" in line["traceback"]


def test_a_daemon_logs_json_from_both_processes(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    sets = ("training.groups_per_step=2", "training.max_rounds=2")
    with Daemon(tmp_path / "n", run=run, sets=sets, arguments=("--log-format", "json")) as node:
        node.finished()
        assert node.terminate() == 0
        lines = [json.loads(line) for line in node.log.splitlines()]
    assert {line["process"] for line in lines} == {"node", "learner"}
    assert any(line.get("round") == 2 for line in lines)
