"""``ftis-node join``: settle the configuration, then run the node."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ftis_node.commands.init import run_toml
from ftis_node.config import NodeConfig, load_node_config
from ftis_node.config_file import node_toml
from ftis_node.errors import ConfigError, FtisError, HomeError
from ftis_node.log import FORMATS, LEVELS, LogSettings, set_up_logging
from ftis_node.model_places import check_device, find_model
from ftis_node.node import NodeOptions, run_node
from ftis_node.onlookers import OFF
from ftis_node.supervision import EXIT_UNUSABLE
from ftis_node.swarm.addresses import parse_address
from ftis_node.tasks.registry import check_files
from ftis_node.types import RunId

log = logging.getLogger(__name__)

BUILTIN_RUN = "builtin:"
NODE_FILE, RUN_FILE = "node.toml", "run.toml"


@dataclass(frozen=True)
class JoinOptions:
    """The command line of ``join``, and of ``relay``, which doesn't train."""

    home: Path
    peers: tuple[str, ...] = ()
    model: str | None = None
    revision: str | None = None
    dtype: str | None = None
    device: str | None = None
    data: Mapping[str, str] = field(default_factory=dict)
    run: str | None = None
    run_id: str | None = None
    config_file: Path | None = None
    listen: str | None = None
    status_address: str | None = None
    overrides: tuple[str, ...] = ()
    log: LogSettings = field(default_factory=LogSettings)
    until_stdin_closes: bool = False
    trains: bool = True
    dht: bool = True
    invitation: str | None = None


def run_join(options: JoinOptions) -> int:
    """Run until stopped; returns the exit code. Raises FtisError on unusable input."""
    set_up_logging("node", options.log)
    written = [path for path in (options.home / NODE_FILE, options.home / RUN_FILE) if not path.exists()]
    check_places(read_config(options), trains=options.trains)
    config = settle_config(options)
    try:
        node = NodeOptions(
            home=options.home,
            run_file=settle_run_file(options.home, options.run),
            expected_run_id=parse_run_id(options.run_id),
            log=options.log,
            until_stdin_closes=options.until_stdin_closes,
            trains=options.trains,
            invitation=options.invitation,
        )
        code = run_node(node, config)
    except FtisError as error:
        _take_back(written, error.exit_code)
        raise
    _take_back(written, code)
    return code


def check_places(config: NodeConfig, *, trains: bool) -> None:
    """Files, folders and addresses that are named wrongly, before anything is written or opened. Raises FtisError."""
    parse_address(config.network.listen, source="--listen", lowest_port=0)
    if config.status.address != OFF:
        parse_address(config.status.address, source="--status-address", lowest_port=0)
    if trains:
        check_device(config.model.device)
        find_model(config.model.name)
        check_files(config.data.files, config.data.files)


def _take_back(written: list[Path], code: int) -> None:
    """A first start that was a mistake leaves no settings behind, which later starts would go by."""
    if code == EXIT_UNUSABLE:
        for path in written:
            path.unlink(missing_ok=True)


def log_settings(level: str, form: str) -> LogSettings:
    """From the command line. Raises ConfigError."""
    if level not in LEVELS:
        raise ConfigError(f"--log-level: {level!r}; allowed are {', '.join(LEVELS)}")
    if form not in FORMATS:
        raise ConfigError(f"--log-format: {form!r}; allowed are {', '.join(FORMATS)}")
    return LogSettings(level, "json" if form == "json" else "text")


def settle_config(options: JoinOptions) -> NodeConfig:
    """The configuration file, the flags on top. The first start writes it down in the home.

    So a node that is started again with nothing but ``--home`` is the same node.
    """
    config = read_config(options)
    stored = options.home / NODE_FILE
    if stored.exists() and options.config_file is None and config != load_node_config(stored):
        log.info("options that differ from %s hold for this start only: edit the file to keep them", stored)
    if not stored.exists():
        try:
            options.home.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_settings(stored, node_toml(config))
        except OSError as error:
            raise HomeError(f"--home {options.home}: can't be written: {error.strerror}") from error
    return config


def read_config(options: JoinOptions) -> NodeConfig:
    """The configuration file, the flags on top. Writes nothing. Raises ConfigError."""
    stored = options.home / NODE_FILE
    path = options.config_file or (stored if stored.exists() else None)
    overrides = list(options.overrides)
    for key, value in (
        ("model.name", options.model),
        ("model.revision", options.revision),
        ("model.dtype", options.dtype),
        ("model.device", options.device),
        ("network.listen", options.listen),
        ("status.address", options.status_address),
    ):
        if value is not None:
            overrides.append(f"{key}={_quoted(value)}")
    if options.data:
        files = ", ".join(f"{_quoted(task)} = {_quoted(file)}" for task, file in options.data.items())
        overrides.append(f"data.files={{ {files} }}")
    if not options.dht:
        overrides.append('network.dht="off"')
    if options.peers:
        overrides.append(f"network.peers=[{', '.join(_quoted(peer) for peer in options.peers)}]")
    return load_node_config(path, tuple(overrides))


def settle_run_file(home: Path, run: str | None) -> Path | None:
    """The file that ``--run`` names, or the one in the home; ``builtin:addition`` is written there first."""
    own = home / RUN_FILE
    if run is None:
        return own if own.exists() else None
    if not run.startswith(BUILTIN_RUN):
        return Path(run).expanduser()
    text = builtin_run_toml(run)
    if not own.exists():
        try:
            write_settings(own, text)
        except OSError as error:
            raise HomeError(f"{own}: can't be written: {error.strerror}") from error
    elif own.read_text() != text:
        raise ConfigError(f"--run {run}: {own} is another run; leave --run away, or use another --home")
    return own


def write_settings(path: Path, text: str) -> None:
    """All at once or not at all: half of a node's settings would be taken for all of them. Raises OSError."""
    temporary = path.with_name(path.name + ".new")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def builtin_run_toml(run: str) -> str:
    """The manifest of ``builtin:NAME``. Raises ConfigError when there is no such run."""
    name = run.removeprefix(BUILTIN_RUN)
    if name != "addition":
        raise ConfigError(f"--run {run}: allowed are builtin:addition, or a file as `ftis-node init` writes it")
    return run_toml(name)


def parse_run_id(text: str | None) -> RunId | None:
    """Raises ConfigError unless the text is 64 hex digits."""
    if text is None:
        return None
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise ConfigError(f"--run-id: {text!r} is not a run id; write the 64 hex digits that the first node shows")
    return RunId(digest)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
