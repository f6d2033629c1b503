"""Hosts in namespaces of their own, with nftables for loss, NAT and partitions."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.netlab.internet import MTU, Internet, open_tun


def run(*command: str, text: str | None = None) -> str:
    """The output of a command; a failure shows what it said."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr or done.stdout}"
    return done.stdout


def why_impossible() -> str | None:
    """What this machine lacks to make namespaces; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program, package in (("ip", "iproute2"), ("nft", "nftables")):
        if shutil.which(program) is None:
            return f"{program} is not installed (apt-get install {package})"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    name = f"ftis-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"ip netns add: {made.stderr.strip()}"
    rules = "table ip probe {\n chain post {\n type nat hook postrouting priority 100\n masquerade\n }\n}\n"
    nft = ["ip", "netns", "exec", name, "nft", "-f", "-"]
    tried = subprocess.run(nft, input=rules, capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return None if tried.returncode == 0 else f"nft: {tried.stderr.strip().splitlines()[0]}"


@dataclass(frozen=True)
class Host:
    """One machine: its namespace, and its address on the internet (or in its home network)."""

    namespace: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """In front of a command, to run it there."""
        return ("ip", "netns", "exec", self.namespace)

    def run(self, *command: str, text: str | None = None) -> str:
        return run(*self.prefix, *command, text=text)

    def lose(self, percent: int) -> None:
        """Drop so many of the packets that arrive."""
        self._filter("loss", f"numgen random mod 100 < {percent} drop")

    def cut_off(self, others: list[Host]) -> None:
        """Drop all that comes from these hosts, without a word to either side."""
        self._filter("cut", f"ip saddr {{ {', '.join(other.address for other in others)} }} drop")

    def restore(self) -> None:
        """Undo ``cut_off``."""
        self.run("nft", "delete", "table", "inet", "cut")

    def _filter(self, name: str, rule: str) -> None:
        chain = f" chain input {{\n  type filter hook input priority 0\n  {rule}\n }}\n"
        self.run("nft", "-f", "-", text=f"table inet {name} {{\n{chain}}}\n")


class Lab:
    """Makes hosts, and takes them down again."""

    def __init__(self, delay: float) -> None:
        self._internet = Internet(delay)
        self._namespaces: list[str] = []
        self._hosts_files: list[Path] = []

    @contextlib.contextmanager
    def open(self) -> Iterator[Lab]:
        try:
            with self._internet:
                yield self
        finally:
            for namespace in self._namespaces:
                for process in run("ip", "netns", "pids", namespace).split():
                    with contextlib.suppress(ProcessLookupError):  # it has just ended
                        os.kill(int(process), signal.SIGKILL)
                run("ip", "netns", "del", namespace)
            for file in self._hosts_files:
                shutil.rmtree(file.parent)

    def name(self, hosts: Mapping[str, Host]) -> None:
        """Every one of these hosts finds the others by these names, like the services of a compose file."""
        lines = ["127.0.0.1 localhost\n", *(f"{host.address} {name}\n" for name, host in hosts.items())]
        for host in hosts.values():
            file = Path("/etc/netns") / host.namespace / "hosts"  # `ip netns exec` lays it over /etc/hosts
            file.parent.mkdir(parents=True)
            self._hosts_files.append(file)
            file.write_text("".join(lines))

    def host(self) -> Host:
        """A machine with a public address; every host is in an address range of its own."""
        host = self._namespace(f"10.{len(self._namespaces) + 1}.0.1")
        self._internet.attach(host.address, open_tun(host.namespace, "up0"))
        host.run("ip", "address", "add", f"{host.address}/32", "dev", "up0")
        host.run("ip", "link", "set", "up0", "up", "mtu", str(MTU))
        host.run("ip", "route", "add", "default", "dev", "up0")
        return host

    def host_behind_nat(self) -> Host:
        """A machine at home: its router translates its address, and lets nothing in that it didn't ask for."""
        router = self.host()
        home = self._namespace("192.168.1.2")
        run(
            "ip", "link", "add", "lan0", "netns", router.namespace, "type", "veth",
            "peer", "name", "eth0", "netns", home.namespace,
        )  # fmt: skip
        router.run("ip", "address", "add", "192.168.1.1/24", "dev", "lan0")
        router.run("ip", "link", "set", "lan0", "up")
        router.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        router.run("nft", "-f", "-", text=NAT)
        home.run("ip", "address", "add", f"{home.address}/24", "dev", "eth0")
        home.run("ip", "link", "set", "eth0", "up")
        home.run("ip", "route", "add", "default", "via", "192.168.1.1")
        return home

    def _namespace(self, address: str) -> Host:
        host = Host(f"ftis-{os.getpid()}-{len(self._namespaces)}", address)
        run("ip", "netns", "add", host.namespace)
        self._namespaces.append(host.namespace)
        host.run("ip", "link", "set", "lo", "up")
        return host


NAT = """\
table ip nat {
 chain postrouting {
  type nat hook postrouting priority srcnat
  oifname "up0" masquerade
 }
}
table ip firewall {
 chain forward {
  type filter hook forward priority 0
  policy drop
  iifname "lan0" accept
  ct state established,related accept
 }
}
"""


@contextlib.contextmanager
def lab(*, delay: float = 0.0) -> Iterator[Lab]:
    """Skips the test, and says why, where namespaces can't be made."""
    reason = why_impossible()
    if reason is not None:
        pytest.skip(f"NOT TESTED HERE, several machines: {reason}")
    with Lab(delay).open() as opened:
        yield opened
