"""The status page of real daemons: where it is, what it knows of their processes, and that it goes with them."""

import json
import os
import re
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from ftis_node.config import load_node_config
from tests.daemons import Daemon, learners_of, write_run
from tests.test_cli import ftis_node

QUICK = ("training.groups_per_step=6", "training.learning_rate=3e-4", "training.min_own_share=1.0")
ANY_PORT = ("--status-address", "127.0.0.1:0")


def fetch(page: str, path: str) -> str:
    with urllib.request.urlopen(page + path, timeout=10) as answer:
        return str(answer.read().decode())


def page_of(node: Daemon) -> str:
    page = node.until(lambda status: status.status_page is not None, "there is a page").status_page
    assert page is not None
    return page


def test_the_page_comes_with_the_node_and_goes_with_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Daemon(home, run=write_run(tmp_path), sets=QUICK, arguments=ANY_PORT) as node:
        page = page_of(node)
        assert f"status page: {page}" in node.log
        node.after_round(2)
        shown = json.loads(fetch(page, "status.json"))
        assert shown["asked"] == page
        assert shown["status"]["daemon_running"]
        time.sleep(1.1)  # what was read is shown for a second
        metrics = fetch(page, "metrics")
        assert 'ftis_steps_total{outcome="stepped"}' in metrics
        learner = [
            line for line in metrics.splitlines() if line.startswith('ftis_resident_memory_bytes{process="learner"}')
        ]
        assert float(learner[0].split()[1]) > 100e6, "it has torch loaded"
        assert len(json.loads(fetch(page, "history.json"))["rounds"]["round"]) >= 2
        assert fetch(page, "healthz").split("\n")[0] in ("healthy", "degraded")
        (pid,) = learners_of(home)
        assert re.search(rf'ftis_threads{{process="learner"}} {len(os.listdir(f"/proc/{pid}/task"))}\.0', metrics)
        before = time.monotonic()
        assert node.terminate() == 0
        assert time.monotonic() - before < 15
    with pytest.raises(urllib.error.URLError):
        fetch(page, "healthz")
    assert load_node_config(home / "node.toml").status.address == "127.0.0.1:0"


def test_a_relay_that_waits_for_its_manifest_has_a_page_already(tmp_path: Path) -> None:
    with Daemon(tmp_path / "home", peers=("127.0.0.1:9",), command="relay", arguments=ANY_PORT) as node:
        shown = json.loads(fetch(page_of(node), "status.json"))
        assert shown["status"]["run_id"] is None
        assert node.terminate() == 0


def test_no_page_where_none_is_wanted(tmp_path: Path) -> None:
    arguments = ("--status-address", "off")
    with Daemon(tmp_path / "home", run=write_run(tmp_path), command="relay", arguments=arguments) as node:
        node.address()
        assert node.status().status_page is None
        assert "status page" not in node.log
        assert node.terminate() == 0


def test_a_chosen_address_that_is_taken_ends_the_node(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = ftis_node(
            "relay", "--home", str(tmp_path / "home"), "--run", str(write_run(tmp_path)), "--listen", "127.0.0.1:0",
            "--no-dht", "--status-address", address,
        )  # fmt: skip
    assert done.returncode == 2
    assert f"status.address = '{address}': can't listen there (Address already in use)" in done.stderr
    assert "Traceback" not in done.stderr
