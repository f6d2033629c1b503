"""``ftis-node identity`` and its own commands; part of ``cli``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ftis_node.cli_options import DEFAULT_HOME, HomeOption, JsonOption, PassphraseFileOption

identity_app = typer.Typer(no_args_is_help=True, help="This node's key: show it, back it up, move it.")


@identity_app.command("show")
def identity_show(home: HomeOption = DEFAULT_HOME, json: JsonOption = False) -> None:
    """The peer id, and where and how the key lies."""
    from ftis_node.commands.identity import run_show

    raise typer.Exit(run_show(home.expanduser(), as_json=json))


@identity_app.command("export")
def identity_export(
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    home: HomeOption = DEFAULT_HOME,
    passphrase_file: PassphraseFileOption = None,
) -> None:
    """Write the key to a file, encrypted with a passphrase."""
    from ftis_node.commands.identity import run_export

    raise typer.Exit(run_export(home.expanduser(), file, passphrase_file=passphrase_file))


@identity_app.command("import")
def identity_import(
    file: Annotated[Path, typer.Argument(help="What `identity export` wrote.")],
    home: HomeOption = DEFAULT_HOME,
    passphrase_file: PassphraseFileOption = None,
) -> None:
    """Give a home that has no identity yet the one of an export."""
    from ftis_node.commands.identity import run_import

    raise typer.Exit(run_import(home.expanduser(), file, passphrase_file=passphrase_file))
