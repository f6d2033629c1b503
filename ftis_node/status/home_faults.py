"""What is wrong with the machine under a home, as far as looking shows: disk, write access, network, clock.

It needs no daemon and no working store: a full disk stops both.
"""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import os
import socket
import struct
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from ftis_node.store.process_states import ProcessState

LEAST_FREE = 4 * 1024 * 1024
TARGETS = 16
SIOCGIFFLAGS, IFF_LOOPBACK, IFF_RUNNING = 0x8913, 0x8, 0x40  # of Linux
CLOCK_STEP_MS = 5_000
CLOCK_SAID_MS = 600_000
"""A step is told for so long: the clock may have been wrong before it and right since."""


def disk_faults(home: Path) -> tuple[str, ...]:
    """A home that can't be written, or a disk without room for the next checkpoint."""
    try:
        disk = os.statvfs(home)
        refusal = write_refusal(home) if os.geteuid() in (0, home.stat().st_uid) else 0
    except OSError as error:
        return (f"the home can't be looked at: {error.strerror}",)
    if disk.f_flag & os.ST_RDONLY or refusal in (errno.EROFS, errno.EACCES, errno.EPERM):
        return ("the home is read-only: neither the store nor checkpoints can be written",)
    if refusal not in (0, errno.ENOSPC, errno.EDQUOT):
        return (f"the disk of the home fails: {os.strerror(refusal)}",)
    free, needed = disk.f_bavail * disk.f_frsize, _newest_checkpoint_bytes(home)
    if free < LEAST_FREE:
        return (f"the disk of the home is full: {free / 1024 / 1024:,.1f} MiB are left",)
    if free < needed:
        return (
            f"the disk of the home is nearly full: {free / 1024 / 1024:,.0f} MiB are left, a checkpoint takes"
            f" {needed / 1024 / 1024:,.0f}",
        )
    return ()


def write_refusal(home: Path) -> int:
    """Why no file can be made in the home (errno), or 0.

    Tried and not asked for: a disk that its system has given up says that it could be written. Leaves nothing behind.
    """
    try:
        with tempfile.TemporaryFile(dir=home):
            return 0
    except OSError as error:
        return error.errno or errno.EIO


def _newest_checkpoint_bytes(home: Path) -> int:
    """What the next checkpoint will take, which is written before an old one goes."""
    newest = max((home / "checkpoints").glob("round-*"), default=None)
    if newest is None:
        return 0
    total = 0
    for folder, _, files in os.walk(newest):
        for file in files:
            try:
                total += (Path(folder) / file).stat().st_size
            except FileNotFoundError:  # a newer checkpoint has taken its place meanwhile
                return 0
    return total


def network_faults(targets: Iterable[str]) -> tuple[str, ...]:
    """``targets``: ``host:port`` of peers. Without a route to any of them the machine is offline. Sends nothing."""
    hosts = [host for host in map(_numeric_host, targets) if host is not None and not host.is_loopback][:TARGETS]
    if hosts and not _has_link():
        return ("this machine has no network: no interface is up and connected",)
    if hosts and not any(_has_route(host) for host in hosts):
        return (f"this machine has no network: there is no route to any of {len(hosts)} known peers",)
    return ()


def _has_link() -> bool:
    """Whether any interface but the loopback is up and has a carrier; True where that can't be asked."""
    if sys.platform != "linux":
        return True
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            flags = struct.unpack_from("H", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request), 16)[0]
            if flags & IFF_RUNNING and not flags & IFF_LOOPBACK:
                return True
    return False


def _numeric_host(target: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    host = target.rpartition("@")[2].rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host)
    except ValueError:  # a name: looking it up would send something
        return None


def _has_route(host: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """To connect a datagram socket asks the routing table and nobody else."""
    try:
        with socket.socket(socket.AF_INET if host.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.connect((str(host), 9))
    except OSError as error:
        return error.errno not in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN)
    return True


def clock_faults(
    at_ms: int, written_ms: Sequence[int], seen: ProcessState | None = None, *, steady_since_ms: int | None = None
) -> tuple[str, ...]:
    """``written_ms``: times that this machine's clock gave to what it wrote; ``seen``: the step in seconds that the
    daemon saw; ``steady_since_ms``: when the daemon, if one runs, began to listen.

    A clock that was a year ahead once has left a store that will be in the future for a year: that is told for
    ``CLOCK_SAID_MS`` after a start with a clock that goes on steadily.
    """
    consequence = "with a wrong clock peers refuse what is made here"
    if seen is not None and seen.since_ms is not None and abs(at_ms - seen.since_ms) < CLOCK_SAID_MS:
        return (f"this machine's clock was set back by {seen.text} s: {consequence}",)
    if steady_since_ms is not None and steady_since_ms + CLOCK_SAID_MS <= at_ms:
        return ()
    ahead = max(written_ms, default=0) - at_ms
    if ahead <= CLOCK_STEP_MS:
        return ()
    return (
        f"this machine's clock was set back: the store was written {ahead / 1000:,.0f} s in the future; {consequence}",
    )
