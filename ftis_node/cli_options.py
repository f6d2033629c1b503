"""Options that more than one command has, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_HOME = Path("~/.ftis-node")

HomeOption = Annotated[
    Path, typer.Option("--home", help="Identity, store and checkpoints of this node.", show_default=True)
]
PeersOption = Annotated[
    list[str] | None,
    typer.Option("--peers", help=r"Nodes to dial: \[peer-id@]host:port, separated by commas."),
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", help="builtin:NAME, a local folder, a GGUF file, or a hub id; a relay needs none."),
]
RunOption = Annotated[
    str | None, typer.Option("--run", help="run.toml of the swarm to start or join; or builtin:addition.")
]
RunIdOption = Annotated[str | None, typer.Option("--run-id", help="Join this run and no other (64 hex digits).")]
NoDhtOption = Annotated[bool, typer.Option("--no-dht", help="Find peers by peer exchange alone.")]
InvitationOption = Annotated[
    str | None, typer.Option("--invitation", help="Where the run is by invitation; needed once.")
]
RevisionOption = Annotated[str | None, typer.Option("--revision", help="Branch, tag or commit of a hub model.")]
DtypeOption = Annotated[str | None, typer.Option("--dtype", help="auto, float32 or bfloat16.")]
DeviceOption = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
DataOption = Annotated[
    list[str] | None,
    typer.Option("--data", metavar="TASK=FILE", help="Where this machine has a task's data; else from the hub."),
]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="node.toml; default: the one in --home.")]
ListenOption = Annotated[str | None, typer.Option("--listen", help="host:port to listen on.")]
StatusAddressOption = Annotated[
    str | None, typer.Option("--status-address", help="host:port of the status page and /metrics, or off.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a value of node.toml.")
]
LifelineOption = Annotated[bool, typer.Option("--until-stdin-closes", hidden=True)]
LogLevelOption = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")]
PassphraseFileOption = Annotated[
    Path | None, typer.Option("--passphrase-file", help="Its first line is the passphrase; else it is asked for.")
]
LogFormatOption = Annotated[str, typer.Option("--log-format", help="text for people, json for programs.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
