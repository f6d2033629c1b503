"""The delaying relay between hosts: it reads IP packets from their TUN devices and hands them on later.

Kernels often lack the netem queue; a TUN device needs nothing but root, and its packets carry full checksums.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import heapq
import os
import selectors
import socket
import struct
import threading
import time
from pathlib import Path
from types import TracebackType

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
MTU = 1500
QUEUED_PACKETS = 20_000


def open_tun(namespace: str, device: str) -> int:
    """Make a TUN device in a named namespace; only the opening thread ever is in it."""
    opened: list[int | OSError] = []

    def inside() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        with Path(f"/run/netns/{namespace}").open() as handle:
            if libc.setns(handle.fileno(), CLONE_NEWNET) != 0:
                opened.append(OSError(ctypes.get_errno(), f"setns {namespace}"))
                return
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
        opened.append(tun)

    thread = threading.Thread(target=inside)  # a namespace is entered by a thread, and this one ends
    thread.start()
    thread.join()
    (result,) = opened
    if isinstance(result, OSError):
        raise result
    return result


class Internet:
    """Moves packets between addresses, each ``delay`` seconds after it was sent; what nobody has is dropped."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._tuns: dict[bytes, int] = {}
        self._selector = selectors.DefaultSelector()
        self._wake_out, self._wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._due: list[tuple[float, int, bytes, int]] = []
        self._sent = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="internet")

    def __enter__(self) -> Internet:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        os.write(self._wake_in, b"\0")
        self._thread.join()
        for descriptor in (*self._tuns.values(), self._wake_in, self._wake_out):
            os.close(descriptor)

    def attach(self, address: str, tun: int) -> None:
        """Packets for this IPv4 address go to this device from now on."""
        self._tuns[socket.inet_aton(address)] = tun
        self._selector.register(tun, selectors.EVENT_READ)
        os.write(self._wake_in, b"\0")

    def _run(self) -> None:
        while not self._stopping:
            wait = None if not self._due else max(0.0, self._due[0][0] - time.monotonic())
            for key, _ in self._selector.select(wait):
                self._read(key.fd)
            while self._due and self._due[0][0] <= time.monotonic():
                _, _, packet, tun = heapq.heappop(self._due)
                self._write(tun, packet)

    def _read(self, descriptor: int) -> None:
        for _ in range(64):  # then others have a turn
            try:
                packet = os.read(descriptor, 65_536)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in (errno.EBADFD, errno.EIO):
                    raise
                self._selector.unregister(descriptor)  # the namespace is gone
                return
            tun = self._tuns.get(packet[16:20]) if len(packet) >= 20 and packet[0] >> 4 == 4 else None
            if tun is not None and len(self._due) < QUEUED_PACKETS:
                self._sent += 1
                heapq.heappush(self._due, (time.monotonic() + self._delay, self._sent, packet, tun))

    def _write(self, tun: int, packet: bytes) -> None:
        try:
            os.write(tun, packet)
        except OSError as error:  # the receiver's queue is full, or it is gone: packets get lost
            if error.errno not in (errno.EAGAIN, errno.EIO, errno.EBADFD, errno.ENOBUFS):
                raise
