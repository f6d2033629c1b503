"""The status server over real connections: routes, limits, who may ask, and that it can't hold the node up."""

import contextlib
import http.client
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ftis_node.identity import load_or_create_identity
from ftis_node.status import server as status_server
from ftis_node.status.app import host_allowed
from ftis_node.status.figures import Figures, look
from ftis_node.status.history import History
from ftis_node.status.judgement import judge
from ftis_node.status.server import CONNECTIONS
from ftis_node.status.snapshot import NodeStatus, read_status
from ftis_node.status.swarm_view import NodeView
from ftis_node.store.network import NetworkStore
from ftis_node.store.peers import Traffic
from ftis_node.store.schema import STORE_FILE
from ftis_node.types import PeerId
from tests.status.nodes import Served, serving, trained_home


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


def ask(served: Served, path: str, *, method: str = "GET", **headers: str) -> Answer:
    connection = http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=10)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return trained_home(tmp_path / "home", rounds=5, peers=3)


@pytest.fixture
def node(home: Path) -> Iterator[Served]:
    with serving(home) as served:
        yield served


def test_status_is_the_entry_of_health(node: Served, home: Path) -> None:
    answer = ask(node, "/status.json")
    assert answer.headers["content-type"] == "application/json"
    shown = NodeView.model_validate_json(answer.body)
    status = read_status(home)
    expected = judge(status)
    assert shown.status is not None
    assert shown.status.model_copy(update={"at_ms": status.at_ms}) == status
    assert (shown.level, shown.reasons, shown.notes) == (expected.level.name.lower(), expected.reasons, expected.notes)


def test_healthz_tells_level_and_reasons(node: Served) -> None:
    answer = ask(node, "/healthz")
    assert answer.status == 200
    assert answer.text.startswith("degraded\npeer host-1.example.org:47100: refused")
    assert answer.headers["content-type"].startswith("text/plain")


def test_without_a_store_every_answer_says_so(node: Served, home: Path) -> None:
    (home / STORE_FILE).unlink()
    for path in ("/healthz", "/status.json", "/history.json", "/metrics"):
        answer = ask(node, path)
        assert answer.status == 503
        assert "there is no store here" in answer.text
        assert "\n" not in answer.text.strip()
    assert ask(node, "/").status == 200


def test_history_is_columns_of_one_length(node: Served) -> None:
    history = History.model_validate_json(ask(node, "/history.json").body)
    assert history.rounds.round == (1, 2, 3, 4, 5)
    assert history.rounds_per_point == 1
    assert {len(column) for _, column in history.rounds} == {5}


def test_traffic_is_sampled_while_nobody_looks(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftis_node.status.readings.SAMPLE_SECONDS", 0.5)
    monkeypatch.setattr("ftis_node.status.readings.FIGURES_SECONDS", 0.1)
    monkeypatch.setattr("ftis_node.status.readings.SAMPLES", 8)
    peer = PeerId(bytes.fromhex(read_status(home).peers[0].peer_id))
    with serving(home) as node:
        time.sleep(1)
        store = NetworkStore(home)
        store.peers.traffic([Traffic(peer, 500_000, 0, 0.0, None, 0.0)])
        store.close()
        time.sleep(1)
        traffic = History.model_validate_json(ask(node, "/history.json").body).traffic
        assert sum(rate is not None and rate > 0 for rate in traffic.bytes_in_per_second) == 1
        assert set(traffic.bytes_out_per_second) == {0.0}
        time.sleep(6)
        assert len(History.model_validate_json(ask(node, "/history.json").body).traffic.at_ms) <= 7, "old ones go"


@pytest.mark.parametrize("path", ["/", "/page.js", "/page.css", "/status.json", "/metrics", "/nowhere"])
def test_every_answer_has_the_headers_that_keep_it_harmless(node: Served, path: str) -> None:
    headers = ask(node, path).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "server" not in headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(node: Served, method: str) -> None:
    assert ask(node, "/status.json", method=method).status == 405


def test_head_has_no_body(node: Served) -> None:
    answer = ask(node, "/status.json", method="HEAD")
    assert (answer.status, answer.body) == (200, b"")


def test_a_web_page_that_points_its_own_name_here_gets_nothing(node: Served) -> None:
    answer = ask(node, "/status.json", Host="evil.example.com:9477")
    assert answer.status == 421
    assert "localhost" in answer.text
    assert "peer_id" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert ask(node, "/status.json", Host="localhost:9477").status == 200


@pytest.mark.parametrize(
    ("header", "bound", "allowed"),
    [
        ("127.0.0.1:9477", "127.0.0.1", True),
        ("localhost", "127.0.0.1", True),
        ("LOCALHOST.:9477", "::1", True),
        ("[::1]:9477", "127.0.0.1", True),
        ("10.1.2.3", "localhost", True),
        ("evil.example.com", "127.0.0.1", False),
        ("127.0.0.1.evil.com", "127.0.0.1", False),
        ("evil.com:9477", "localhost", False),
        ("", "127.0.0.1", False),
        ("a b", "0.0.0.0", False),
        ("localhost@evil.com", "127.0.0.1", False),
        ("party-a:9477", "0.0.0.0", True),
        ("party-a:9477", "::", True),
        ("Node.lan:9477", "node.lan", True),
    ],
)
def test_which_names_are_answered(header: str, bound: str, allowed: bool) -> None:
    assert host_allowed(header, bound) is allowed


def test_the_page_tells_no_secret(home: Path) -> None:
    load_or_create_identity(home)
    secret = b"".join(path.read_bytes() for path in home.glob("*key*"))
    assert secret
    with serving(home) as node:
        for path in ("/", "/status.json", "/history.json", "/metrics", "/healthz"):
            body = ask(node, path).body
            assert secret[:32] not in body
            assert secret[:32].hex().encode() not in body


def test_many_that_ask_cost_one_reading_a_second(node: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    readings: list[Path] = []

    def counted(home: Path) -> NodeStatus:
        readings.append(home)
        return read_status(home)

    monkeypatch.setattr("ftis_node.status.figures.read_status", counted)
    started = time.monotonic()
    threads = [
        threading.Thread(target=lambda: [ask(node, "/status.json") for _ in range(10)], daemon=True) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(readings) <= 1 + (time.monotonic() - started) / 1.0


def connections(node: Served, opened: contextlib.ExitStack, number: int) -> list[socket.socket]:
    port = int(node.url.rpartition(":")[2])
    return [opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20)) for _ in range(number)]


def until_healthz_is(node: Served, status: int) -> None:
    deadline = time.monotonic() + 20
    while (found := ask(node, "/healthz").status) != status:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_mallory_who_holds_ever_more_connections_takes_neither_files_nor_anybody_s_turn(
    node: Served,
) -> None:
    files = Path("/proc/self/fd")
    with contextlib.ExitStack() as opened:
        before = len(list(files.iterdir()))
        held = connections(node, opened, 5 * CONNECTIONS)
        until_healthz_is(node, 200)
        server_s = len(list(files.iterdir())) - before - len(held)
        assert server_s <= CONNECTIONS + 10
        assert held[0].recv(10) == b"", "the oldest has to go"
        held[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert held[-1].recv(100).startswith(b"HTTP/1.1 200")


def test_whoever_only_connects_or_trickles_is_thrown_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_server, "CONNECTION_SECONDS", 1.0)
    with serving(home) as node, contextlib.ExitStack() as opened:
        silent, slow = connections(node, opened, 2)
        slow.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        assert (silent.recv(100), slow.recv(100)) == (b"", b"")


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_mallory_s_body_without_an_end_is_not_read(node: Served, method: str) -> None:
    port = int(node.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        head = f"{method} /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 ")
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            connection.sendall(b"x" * 200_000_000)


def test_a_request_that_never_ends_is_refused(node: Served) -> None:
    port = int(node.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000)
        assert b" 400 " in connection.recv(4096)


def test_it_stops_within_a_second_while_somebody_is_connected(home: Path) -> None:
    with serving(home) as node:
        port = int(node.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as silent:
            assert ask(node, "/healthz").status == 200
            started = time.monotonic()
            node.server.stop()
            assert time.monotonic() - started < 1.0
            assert silent.recv(10) == b""


def test_signals_stay_the_nodes(node: Served) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    assert ask(node, "/healthz").status == 200
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert before == (signal.SIG_DFL, signal.default_int_handler)


def test_a_store_that_answers_slowly_keeps_nobody_waiting_for_ever(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    asked = []

    def slow(*_: object) -> Figures:
        asked.append(1)
        go_on.wait(20)
        return look(home, lambda: None)

    monkeypatch.setattr("ftis_node.status.readings.look", slow)
    monkeypatch.setattr("ftis_node.status.readings.LONGEST_SECONDS", 0.3)
    with serving(home) as node:
        for _ in range(3):
            answer = ask(node, "/status.json")
            assert (answer.status, answer.text) == (503, "the store takes long to answer; is the disk very busy?\n")
            assert ask(node, "/").status == 200
        assert len(asked) == 1, "they wait for one reading"
        go_on.set()
        until_healthz_is(node, 200)


def test_a_fault_in_the_page_ends_the_page_and_nothing_else(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("ftis_node.status.readings.look", broken)
    with serving(home) as node:
        assert ask(node, "/status.json").status == 500
        assert ask(node, "/").status == 200
        assert json.loads(ask(node, "/history.json").body)["rounds"]["round"] == [1, 2, 3, 4, 5]
