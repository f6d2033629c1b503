"""The command line: options and exit codes. Each command's work is in ``commands``."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ftis_node import __version__
from ftis_node.cli_identity import identity_app
from ftis_node.cli_options import (
    DEFAULT_HOME,
    ConfigOption,
    DataOption,
    DeviceOption,
    DtypeOption,
    HomeOption,
    InvitationOption,
    JsonOption,
    LifelineOption,
    ListenOption,
    LogFormatOption,
    LogLevelOption,
    ModelOption,
    NoDhtOption,
    PeersOption,
    RevisionOption,
    RunIdOption,
    RunOption,
    SetOption,
    StatusAddressOption,
)

app = typer.Typer(
    name="ftis-node",
    help="Train your own language model in a swarm with others, of any size and family (F-TIS).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


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
        revision: RevisionOption = None,
        dtype: DtypeOption = None,
        device: DeviceOption = None,
        data: DataOption = None,
        home: HomeOption = DEFAULT_HOME,
        run: RunOption = None,
        run_id: RunIdOption = None,
        invitation: InvitationOption = None,
        no_dht: NoDhtOption = False,
        config: ConfigOption = None,
        listen: ListenOption = None,
        status_address: StatusAddressOption = None,
        set_: SetOption = None,
        log_level: LogLevelOption = "info",
        log_format: LogFormatOption = "text",
        until_stdin_closes: LifelineOption = False,
    ) -> None:
        from ftis_node.commands.join import JoinOptions, log_settings, run_join

        options = JoinOptions(
            home=home.expanduser(),
            peers=_split(peers),
            model=model,
            revision=revision,
            dtype=dtype,
            device=device,
            data=_files(data),
            run=run,
            run_id=run_id,
            invitation=invitation,
            dht=not no_dht,
            config_file=config,
            listen=listen,
            status_address=status_address,
            overrides=tuple(set_ or ()),
            log=log_settings(log_level, log_format),
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
    peers: Annotated[
        list[str] | None,
        typer.Option("--peers", help=r"Ask these nodes, and from them on the swarm: \[peer-id@]host:port, …"),
    ] = None,
    swarm: Annotated[bool, typer.Option("--swarm", help="The whole swarm, from the home's own peers on.")] = False,
    only: Annotated[bool, typer.Option("--only", help="Ask the nodes of --peers and no others.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again, until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option("--interval", min=0.5, max=86_400, help="Seconds between looks.")] = 2.0,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, max=3600, help="Seconds for a whole swarm.")] = 10.0,
    max_nodes: Annotated[int, typer.Option("--max-nodes", min=1, max=5000, help="Most nodes to ask.")] = 500,
    json: JsonOption = False,
) -> None:
    """How this node is, or a whole swarm: exit code 0 healthy, 1 degraded, 2 unreachable."""
    from ftis_node.commands.health import HealthOptions, run_health

    options = HealthOptions(
        home=home.expanduser(),
        peers=_split(peers),
        swarm=swarm,
        only=only,
        as_json=json,
        watch_seconds=interval if watch else None,
        timeout_seconds=timeout,
        max_nodes=max_nodes,
    )
    raise typer.Exit(run_health(options))


@app.command()
def doctor(
    peers: PeersOption = None,
    model: ModelOption = None,
    revision: RevisionOption = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    data: DataOption = None,
    home: HomeOption = DEFAULT_HOME,
    run: RunOption = None,
    no_dht: NoDhtOption = False,
    config: ConfigOption = None,
    listen: ListenOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Try everything that a node needs here: exit code 0 without a failure, 1 with one."""
    from ftis_node.commands.doctor import run_doctor
    from ftis_node.commands.join import JoinOptions

    options = JoinOptions(
        home=home.expanduser().absolute(),
        peers=_split(peers),
        model=model,
        revision=revision,
        dtype=dtype,
        device=device,
        data=_files(data),
        run=run,
        dht=not no_dht,
        config_file=config,
        listen=listen,
        overrides=tuple(set_ or ()),
    )
    raise typer.Exit(run_doctor(options, as_json=json))


@app.command()
def invite(
    key: Annotated[Path, typer.Option("--key", help="The run's admission key; made if it doesn't exist.")],
    run: Annotated[Path | None, typer.Option("--run", help="run.toml of the run to invite to.")] = None,
    days: Annotated[float, typer.Option("--days", min=0.01, max=3650, help="How long the invitation holds.")] = 30,
) -> None:
    """Make a run's admission key, or an invitation that expires."""
    from ftis_node.commands.invite import run_invite

    raise typer.Exit(run_invite(key, run_file=run, days=days))


@app.command("eval")
def evaluate(
    model: Annotated[str, typer.Option("--model", help="builtin:NAME, a local folder, a GGUF file, or a hub id.")],
    task: Annotated[
        str,
        typer.Option(
            "--task",
            help="gsm8k:test, math500, jsonl:FILE, reasoning-gym:GENERATOR:test, addition:test, …",
        ),
    ],
    limit: Annotated[int, typer.Option("--limit", min=1, help="Items, spread evenly over the task.")] = 500,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Longest completion.")] = 512,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Completions made at the same time.")] = 64,
    output: Annotated[Path, typer.Option("--output", help="Where results.json and completions.txt go.")] = Path(
        "eval-output"
    ),
    parameters: Annotated[
        list[str] | None, typer.Option("--parameter", metavar="KEY=VALUE", help="Of the task, as in run.toml.")
    ] = None,
    data: DataOption = None,
    revision: RevisionOption = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    chat_template: Annotated[
        list[str] | None,
        typer.Option("--chat-template", metavar="KEY=VALUE", help="For its chat template: enable_thinking=false."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Greedy pass@1 of a model on a task, with a confidence interval and the completions to read."""
    from ftis_node.commands.evaluate import EvalOptions, run_eval
    from ftis_node.commands.task_options import model_options, parameters_of, task_option

    name, files = task_option(task, _files(data))
    options = EvalOptions(
        model=model_options(model, revision=revision, dtype=dtype, device=device, chat_template=chat_template or []),
        task=name,
        parameters=parameters_of(parameters or []),
        files=files,
        limit=limit,
        max_tokens=max_tokens,
        batch=batch,
        output=output,
        as_json=json,
    )
    raise typer.Exit(run_eval(options))


@app.command()
def simulate(
    study: Annotated[Path, typer.Argument(help="study.toml: the parties, their run, and what is measured.")],
    seeds: Annotated[str, typer.Option("--seeds", help="Runs to make: 0,1,5-8.")] = "0",
    output: Annotated[Path, typer.Option("--output", help="Where a result file per seed goes.")] = Path(
        "simulation-output"
    ),
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, max=1_000_000, help="Instead of the file's.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=256, help="Seeds simulated at the same time.")] = 1,
) -> None:
    """Several parties in one process, without a network: for studies. Goes on where it was stopped."""
    from ftis_node.commands.simulate import SimulateOptions, parse_seeds, run_simulate

    options = SimulateOptions(study=study, seeds=parse_seeds(seeds), output=output, rounds=rounds, jobs=jobs)
    raise typer.Exit(run_simulate(options))


@app.command()
def export(
    directory: Annotated[Path, typer.Argument(help="The model folder to write.")],
    home: HomeOption = DEFAULT_HOME,
    merge: Annotated[bool, typer.Option("--merge", help="Whole weights where the node trains an adapter.")] = False,
) -> None:
    """Write the trained model as a folder that transformers, PEFT and vLLM load as it is."""
    from ftis_node.commands.export import run_export

    raise typer.Exit(run_export(home.expanduser(), directory, merge=merge))


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(help="Becomes the --home of a node.")],
    task: Annotated[
        str, typer.Option("--task", help="addition, gsm8k, reasoning-gym:GENERATOR, or jsonl:FILE.")
    ] = "addition",
    parameters: Annotated[
        list[str] | None, typer.Option("--parameter", metavar="KEY=VALUE", help="Of the task, as in run.toml.")
    ] = None,
    data: DataOption = None,
) -> None:
    """Write a commented run.toml and node.toml to start from."""
    from ftis_node.commands.init import run_init
    from ftis_node.commands.task_options import parameters_of, task_option

    name, files = task_option(task, _files(data))
    raise typer.Exit(run_init(directory, task=name, parameters=parameters_of(parameters or []), files=files))


app.add_typer(identity_app, name="identity")


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def _split(peers: list[str] | None) -> tuple[str, ...]:
    return tuple(part.strip() for text in peers or () for part in text.split(",") if part.strip())


def _files(data: list[str] | None) -> dict[str, str]:
    """``TASK=FILE`` options; a task's name holds no equals sign."""
    from ftis_node.errors import ConfigError

    files = {}
    for text in data or ():
        task, separator, file = text.partition("=")
        if not separator or not task or not file:
            raise ConfigError(f"--data {text}: must look like TASK=FILE, for example gsm8k=train.jsonl")
        files[task] = str(Path(file).expanduser().absolute())
    return files


def main() -> None:
    """Entry point. Expected errors are one line on standard error, without a traceback."""
    from ftis_node.errors import FtisError

    # gRPC's fork handlers warn about every child process; the learner is started with exec.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    # Its own resolver asks DNS for what /etc/hosts knows too, and dials time out where no DNS server answers.
    os.environ.setdefault("GRPC_DNS_RESOLVER", "native")
    # It writes a line of its own for every stranger whose handshake fails, as often as he likes, past our log's bounds.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    if isinstance(sys.stdout, io.TextIOWrapper):  # a peer's model may have a name that this terminal can't show
        sys.stdout.reconfigure(errors="replace")
    try:
        app()
    except FtisError as error:
        print(f"ftis-node: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
