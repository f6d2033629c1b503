"""The documentation says what is: its commands are commands, its links lead somewhere, its messages are printed."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest
import typer

from ftis_node.cli import app
from ftis_node.config import NodeConfig, load_node_config
from ftis_node.inbox.verify import RejectReason
from ftis_node.manifest import RunManifest, parse_run
from ftis_node.sections import parse_section
from ftis_node.training.alignment import Unaligned
from tests.documents import PAGES, ROOT, Block, blocks, commands, fixed_part, one_gap, prose, quotes, templates

RUN_SECONDS = 240
SHORTEST_QUOTE = 8
DOCS = [page for page in PAGES if page.parent == ROOT / "docs"]
TROUBLESHOOTING = ROOT / "docs" / "troubleshooting.md"
ALL_COMMANDS = [
    pytest.param(arguments, id=f"{block.where}:{' '.join(arguments)[:40]}")
    for page in PAGES
    for block in blocks(page)
    for arguments in commands(block)
]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    missing = [page.name for page in DOCS if page.name != "README.md" and f"]({page.name})" not in index]
    assert not missing
    assert "](docs/README.md)" in (ROOT / "README.md").read_text()


# --- commands -----------------------------------------------------------------------------------


def test_commands_are_found_where_they_stand() -> None:
    text = (
        "first$ ftis-node join --peers 'a:1,b:2' \\\n    --model builtin:small   # a comment\n"
        "output of ftis-node join\n"
        "$ until ftis-node health; do sleep 1; done && .venv/bin/ftis-node version >out\n"
        "$ docker compose exec small ftis-node health --json | less\n"
        "$ runuser -u ftis-node -- /opt/bin/ftis-node version\n$ systemctl start ftis-node -x\n"
    )
    assert list(commands(Block(ROOT / "x.md", 1, "console", text))) == [
        ["join", "--peers", "a:1,b:2", "--model", "builtin:small"],
        ["health"],
        ["version"],
        ["health", "--json"],
        ["version"],
    ]
    assert len(ALL_COMMANDS) > 40


@pytest.mark.parametrize("arguments", ALL_COMMANDS)
def test_a_command_and_its_options_exist(arguments: list[str]) -> None:
    command, left = typer.main.get_command(app), list(arguments)
    while hasattr(command, "commands"):
        assert left, "a command is missing"
        assert left[0] in command.commands, f"there is no command {left[0]!r}"
        command = command.commands[left.pop(0)]
    context = command.make_context(" ".join(arguments[:1]), left)  # raises for what it doesn't know or lacks
    load_node_config(None, tuple(context.params.get("set_") or ()))


@pytest.mark.parametrize("page", [p for p in PAGES if any(b.info == "sh run" for b in blocks(p))], ids=name)
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """In a copy of the package, offline: ``python file=…`` blocks are written, ``diff apply`` ones applied."""
    checkout, programs = tmp_path / "checkout", tmp_path / "bin"
    shutil.copytree(ROOT / "ftis_node", checkout / "ftis_node", ignore=shutil.ignore_patterns("__pycache__"))
    programs.mkdir()
    for program, module in (("ftis-node", "-m ftis_node"), ("python", "")):
        (programs / program).write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
        (programs / program).chmod(0o755)
    environment = {
        **os.environ, "HOME": str(tmp_path / "user"), "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }  # fmt: skip
    for block in blocks(page):
        kind, _, target = block.info.partition(" ")
        if target.startswith("file="):
            (checkout / target.removeprefix("file=")).write_text(block.text)
        elif (kind, target) == ("diff", "apply"):
            run(["git", "apply", "-"], block, checkout, environment, text=block.text)
        elif (kind, target) == ("sh", "run"):
            run(["bash", "-eu", "-o", "pipefail", "-c", block.text], block, checkout, environment)


def run(command: list[str], block: Block, folder: Path, environment: dict[str, str], text: str = "") -> None:
    """In a process group of its own, of which nothing is left afterwards."""
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    ) as process:  # fmt: skip
        watchdog = threading.Timer(RUN_SECONDS, os.killpg, (process.pid, signal.SIGKILL))
        watchdog.start()
        output, _ = process.communicate(text)
        watchdog.cancel()
    logs = "".join(f"\n{file.name}:\n{file.read_text()[-3000:]}" for file in sorted(folder.glob("*.log")))
    assert process.returncode == 0, f"{block.where} ended with {process.returncode}:\n{output[-3000:]}{logs}"


# --- configuration ------------------------------------------------------------------------------


def test_the_configuration_page_is_current() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "gen-configuration", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", DOCS, ids=name)
def test_keys_that_are_named_exist(page: Path) -> None:
    for section, key in re.findall(r"`([a-z]+)\.([a-z0-9_]+)(?: = [^`]*)?`", prose(page)):
        for model in (NodeConfig, RunManifest):
            if section in model.model_fields:
                fields = model.model_fields[section].annotation.__pydantic_fields__  # type: ignore[union-attr]
                assert key in fields, f"{section}.{key}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_pieces_of_configuration_can_be_read(page: Path) -> None:
    for block in blocks(page):
        if block.info == "toml node":
            parse_section(NodeConfig, tomllib.loads(block.text), source=block.where)
        elif block.info == "toml run":
            parse_run(block.text.encode(), source=block.where)
        else:
            assert block.info != "toml", f"{block.where}: write 'toml node' or 'toml run'"


# --- links and messages -------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor:
            assert anchor in {slug(title) for title in re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)}, target


def slug(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_that_are_named_exist(page: Path) -> None:
    for path in re.findall(r"`((?:ftis_node|tests|scripts|docs|docker|proto)/[\w./-]+)`", prose(page)):
        written = [block.info for block in blocks(page) if block.info.endswith(f"file={path}")]
        assert written or (ROOT / path).exists(), path


@pytest.mark.parametrize("page", DOCS, ids=name)
def test_quoted_messages_are_printed(page: Path) -> None:
    printed = templates()
    too_short = [quote for quote in quotes(page) if len(fixed_part(quote)) < SHORTEST_QUOTE]
    assert not too_short, "can't be told from others"
    unknown = [quote for quote in quotes(page) if not any(one_gap(quote) in template for template in printed)]
    assert not unknown, "nothing prints these"


def reasons_in(heading: str) -> set[str]:
    """The first column of the table under a heading of the troubleshooting page."""
    section = TROUBLESHOOTING.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `([a-z_]+)` \|", section, re.MULTILINE))


def test_every_reason_of_a_rejection_is_explained() -> None:
    explained = reasons_in("Groups of peers are rejected")
    assert explained == {reason.value for reason in RejectReason} | {"quarantined"}


def test_every_reason_to_leave_out_a_sequence_is_explained() -> None:
    explained = reasons_in("Sequences of peers are not trained on")
    assert explained >= {reason.value for reason in Unaligned}
    assert explained <= templates(), "a reason that nothing gives"
