"""Where the status page is served: the default port moves, a chosen one doesn't."""

import socket
from pathlib import Path

import pytest

from ftis_node.config import DEFAULT_STATUS_ADDRESS, StatusConfig
from ftis_node.errors import ConfigError
from ftis_node.onlookers import open_page
from ftis_node.status.server import bind
from tests.status.nodes import empty_home


def test_the_default_port_moves_and_a_chosen_one_does_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = empty_home(tmp_path)
    first = open_page(home, StatusConfig(), lambda: None)
    second = open_page(home, StatusConfig(), lambda: None)
    assert first is not None
    assert second is not None
    try:
        port = int(DEFAULT_STATUS_ADDRESS.rpartition(":")[2])
        ports = [int(page.url.rstrip("/").rpartition(":")[2]) for page in (first, second)]
        assert port <= ports[0] < ports[1] <= port + 20
        taken = f"127.0.0.1:{ports[1]}"
        with pytest.raises(ConfigError) as caught:
            open_page(home, StatusConfig(address=taken), lambda: None)
    finally:
        first.stop()
        second.stop()
    assert f"status.address = '{taken}': can't listen there" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert open_page(home, StatusConfig(address="off"), lambda: None) is None


def test_when_all_spare_ports_are_taken_there_is_no_page(caplog: pytest.LogCaptureFixture) -> None:
    first = bind("127.0.0.1", 0)
    assert first is not None
    with first:
        port = first.getsockname()[1]
        try:
            neighbour = socket.create_server(("127.0.0.1", port + 1))
        except OSError:  # somebody else has it, which is as good
            neighbour = None
        assert bind("127.0.0.1", port, spare_ports=1) is None
        if neighbour is not None:
            neighbour.close()


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:99999", "no-such-host.invalid:80", "192.0.2.1:80"])
def test_an_address_that_can_not_be_used_is_one_line(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_page(empty_home(tmp_path), StatusConfig(address=address), lambda: None)
    assert str(caught.value).startswith("status.address")
    assert "\n" not in str(caught.value)


def test_an_address_that_others_reach_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    page = open_page(empty_home(tmp_path), StatusConfig(address="0.0.0.0:0"), lambda: None)
    assert page is not None
    page.stop()
    assert "can be read by everyone who can reach it" in caplog.text
