"""The command line: options and exit codes. Each command's work is in ``commands``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ftis_node import __version__

app = typer.Typer(
    name="ftis-node",
    help="Train your own language model in a swarm with others, of any size and family (F-TIS).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

DEFAULT_HOME = Path("~/.ftis-node")

HomeOption = Annotated[
    Path, typer.Option("--home", help="Identity, store and checkpoints of this node.", show_default=True)
]
PeersOption = Annotated[
    list[str] | None,
    typer.Option("--peers", help=r"Nodes to dial: \[peer-id@]host:port, separated by commas."),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="builtin:NAME, a local folder, or a hub id; a relay needs none.")
]
RunOption = Annotated[
    str | None, typer.Option("--run", help="run.toml of the swarm to start or join; or builtin:addition.")
]
RunIdOption = Annotated[str | None, typer.Option("--run-id", help="Join this run and no other (64 hex digits).")]
NoDhtOption = Annotated[bool, typer.Option("--no-dht", help="Find peers by peer exchange alone.")]
InvitationOption = Annotated[
    str | None, typer.Option("--invitation", help="Where the run is by invitation; needed once.")
]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="node.toml; default: the one in --home.")]
ListenOption = Annotated[str | None, typer.Option("--listen", help="host:port to listen on.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a value of node.toml.")
]
LifelineOption = Annotated[bool, typer.Option("--until-stdin-closes", hidden=True)]
LogLevelOption = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", help="Where report.json and report.png go.")] = Path(
        "demo-output"
    ),
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, max=1000, help="Rounds of every node.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the nodes' homes in the output folder.")] = False,
) -> None:
    """Three nodes with three models train together on this machine; ends with a report."""
    from ftis_node.commands.demo import run_demo

    raise typer.Exit(run_demo(output, rounds=rounds, keep=keep))


def _add_node_command(name: str, text: str, *, trains: bool) -> None:
    """``join`` and ``relay`` take the same options."""

    @app.command(name, help=text)
    def node(
        peers: PeersOption = None,
        model: ModelOption = None,
        home: HomeOption = DEFAULT_HOME,
        run: RunOption = None,
        run_id: RunIdOption = None,
        invitation: InvitationOption = None,
        no_dht: NoDhtOption = False,
        config: ConfigOption = None,
        listen: ListenOption = None,
        set_: SetOption = None,
        log_level: LogLevelOption = "info",
        until_stdin_closes: LifelineOption = False,
    ) -> None:
        from ftis_node.commands.join import JoinOptions, run_join

        options = JoinOptions(
            home=home.expanduser(),
            peers=_split(peers),
            model=model,
            run=run,
            run_id=run_id,
            invitation=invitation,
            dht=not no_dht,
            config_file=config,
            listen=listen,
            overrides=tuple(set_ or ()),
            log_level=log_level,
            until_stdin_closes=until_stdin_closes,
            trains=trains,
        )
        raise typer.Exit(run_join(options))


_add_node_command("join", "Run one node in the foreground: train, and exchange samples with peers.", trains=True)
_add_node_command(
    "relay",
    "Run the network half alone, for a small public machine: a meeting point that passes batches on.",
    trains=False,
)


@app.command()
def health(
    home: HomeOption = DEFAULT_HOME,
    peers: PeersOption = None,
    json: JsonOption = False,
) -> None:
    """How a node is: exit code 0 healthy, 1 degraded, 2 unreachable."""
    from ftis_node.commands.health import run_health

    raise typer.Exit(run_health(home.expanduser(), peers=_split(peers), as_json=json))


@app.command()
def invite(
    key: Annotated[Path, typer.Option("--key", help="The run's admission key; made if it doesn't exist.")],
    run: Annotated[Path | None, typer.Option("--run", help="run.toml of the run to invite to.")] = None,
    days: Annotated[float, typer.Option("--days", min=0.01, max=3650, help="How long the invitation holds.")] = 30,
) -> None:
    """Make a run's admission key, or an invitation that expires."""
    from ftis_node.commands.invite import run_invite

    raise typer.Exit(run_invite(key, run_file=run, days=days))


@app.command()
def init(directory: Annotated[Path, typer.Argument(help="Becomes the --home of a node.")]) -> None:
    """Write a commented run.toml and node.toml to start from."""
    from ftis_node.commands.init import run_init

    raise typer.Exit(run_init(directory))


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def _split(peers: list[str] | None) -> tuple[str, ...]:
    return tuple(part.strip() for text in peers or () for part in text.split(",") if part.strip())


def main() -> None:
    """Entry point. Expected errors are one line on standard error, without a traceback."""
    from ftis_node.errors import FtisError

    # gRPC's fork handlers warn about every child process; the learner is started with exec.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    try:
        app()
    except FtisError as error:
        print(f"ftis-node: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
