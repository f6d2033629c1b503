"""``ftis-node doctor``: what keeps this machine from being a good node, and what to do about it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from ftis_node.commands.init import run_toml
from ftis_node.commands.join import BUILTIN_RUN, RUN_FILE, JoinOptions, builtin_run_toml, read_config
from ftis_node.doctor.examination import Subject, examine
from ftis_node.doctor.findings import Finding, Level
from ftis_node.doctor.journal import Journal
from ftis_node.doctor.remembered import read_home
from ftis_node.manifest import Run, load_run, parse_run
from ftis_node.node import run_of_home
from ftis_node.status.texts import printable
from ftis_node.swarm.addresses import parse_address

DOCTOR_SCHEMA = 1
STAND_IN = "builtin:addition"
_COLOURS = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "red"}


def run_doctor(options: JoinOptions, *, as_json: bool) -> int:
    """Examine the node that ``join`` with these options would be; returns 1 if there is a failure, else 0.

    With ``as_json`` prints ``{"schema_version": 1, "findings": [{"check", "level", "found", "advice", "seconds"}]}``:
    level is ok, warning or failure. Writes nothing into the home. Raises ConfigError for a mistake in the options or
    the configuration.
    """
    subject = _subject(options)
    console, started = Console(highlight=False, soft_wrap=True), time.monotonic()

    def say(text: str) -> None:
        print(printable(text), file=sys.stderr, flush=True)

    def report(finding: Finding) -> None:
        if not as_json:
            _print_finding(console, finding)

    journal = Journal(report, say)
    asyncio.run(examine(subject, journal))
    if as_json:
        findings = [dataclasses.asdict(finding) for finding in journal.findings]
        print(json.dumps({"schema_version": DOCTOR_SCHEMA, "findings": findings}, indent=2))
    else:
        counts = Counter(finding.level for finding in journal.findings)
        told = ", ".join(f"{counts[level]} {level.value}" for level in Level)
        console.print(f"{told}; {time.monotonic() - started:.1f} s")
    return 1 if journal.failed else 0


def _print_finding(console: Console, finding: Finding) -> None:
    colour = _COLOURS[finding.level]
    seconds = f"  ({finding.seconds:.1f} s)" if finding.seconds >= 0.05 else ""
    found = escape(printable(finding.found))
    console.print(f"[{colour}]{finding.level.value:8}[/] {finding.check:11} {found}{seconds}")
    if finding.advice:
        console.print(f"{'':20} -> {escape(printable(finding.advice))}")


def _subject(options: JoinOptions) -> Subject:
    config = read_config(options)
    peers = tuple(parse_address(text, source="--peers") for text in config.network.peers)
    parse_address(config.network.listen, source="network.listen", lowest_port=0)
    remembered = read_home(options.home, peers)
    given, source = _given_run(options)
    run = run_of_home(options.home, remembered.manifest, given, source=source)
    return Subject(
        home=options.home,
        config=config,
        peers=peers,
        run=run,
        run_source="this home's" if remembered.manifest is not None else source,
        stand_in=parse_run(run_toml("addition").encode(), source=STAND_IN),
        remembered=remembered,
    )


def _given_run(options: JoinOptions) -> tuple[Run | None, str]:
    """The run that ``join`` would take from the command line or the home's file, and where it stands."""
    own = options.home / RUN_FILE
    if options.run is None:
        return (load_run(own), str(own)) if own.exists() else (None, "")
    if options.run.startswith(BUILTIN_RUN):
        return parse_run(builtin_run_toml(options.run).encode(), source=options.run), options.run
    return load_run(Path(options.run).expanduser()), options.run
