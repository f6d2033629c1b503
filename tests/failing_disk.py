"""A real small disk that its system gives up, as after an error that the hardware reports."""

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class FailingDisk:
    """ext4 in ``image``, mounted at ``folder``."""

    image: Path
    folder: Path

    def fail(self) -> None:
        """From here on every write is refused, until it is repaired."""
        device = Path(_output("findmnt", "-n", "-o", "SOURCE", str(self.folder)).strip())
        Path(f"/sys/fs/ext4/{device.name}/trigger_fs_error").write_text("1")

    def repair(self) -> None:
        """As an operator does it; nothing may use the disk."""
        _output("umount", str(self.folder))
        checked = subprocess.run(["e2fsck", "-p", "-f", str(self.image)], capture_output=True, text=True, check=False)
        assert checked.returncode in (0, 1), checked.stdout  # 1: errors were corrected
        self.mount()

    def mount(self) -> None:
        _output("mount", "-o", "loop,errors=remount-ro", str(self.image), str(self.folder))


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@contextlib.contextmanager
def failing_disk(folder: Path, mib: int) -> Iterator[FailingDisk]:
    """Skips where such a disk can't be made, which takes root and a loop device."""
    folder.mkdir()
    disk = FailingDisk(folder.with_suffix(".image"), folder)
    try:
        with disk.image.open("wb") as file:
            file.truncate(mib * 1024 * 1024)
        _output("mkfs.ext4", "-q", str(disk.image))
        disk.mount()
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        pytest.skip(f"NOT TESTED HERE, a disk that fails: {getattr(error, 'stderr', None) or error}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)
