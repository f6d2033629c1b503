"""The image, the compose file and the systemd unit, without a container engine: as their own schemas, linters and our
command line read them. ``test_compose_swarm.py`` runs the compose file's commands."""

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
from dockerfile_parse import DockerfileParser

from ftis_node.cli import app
from ftis_node.config import load_node_config
from ftis_node.errors import ConfigError
from ftis_node.status.judgement import Level
from ftis_node.supervision import STOP_SECONDS
from ftis_node.swarm.addresses import parse_address
from tests.compose import DOCKER, IMAGE, NodeService, compose, node_services, seconds

ROOT = DOCKER.parent
# The Compose Specification's own schema (Apache-2.0, github.com/compose-spec/compose-spec), as dclint 3.1.0 ships it.
SCHEMA = Path(__file__).parent / "data" / "compose-spec.json"
SERVICES = {service.name: service for service in node_services()}


def parsed(line: tuple[str, ...]) -> dict[str, Any]:
    """What our command line makes of it; a mistake is click's error."""
    command = typer.main.get_command(app).get_command(None, line[0])  # type: ignore[attr-defined]
    assert command is not None, line[0]
    params: dict[str, Any] = command.make_context(line[0], list(line[1:])).params
    return params


@pytest.mark.parametrize("name", ["compose.yaml", "compose.cuda.yaml"])
def test_compose_files_are_what_the_specification_allows(name: str) -> None:
    jsonschema.Draft7Validator(json.loads(SCHEMA.read_text())).validate(compose(name))


@pytest.mark.parametrize("name", compose()["services"])
def test_every_service_is_confined_bounded_and_watched(name: str) -> None:
    service = compose()["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "devices", "pid", "ipc", "network_mode"} & set(service)
    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"]
    assert set(service["logging"]["options"]) == {"max-size", "max-file"}
    assert all(published.startswith("127.0.0.1:") for published in service.get("ports", ()))
    if not service["image"].startswith(IMAGE):
        assert re.fullmatch(r"[a-z]+/[a-z]+:v?\d+\.\d+\.\d+", service["image"]), "pinned by a whole version"


def test_three_parties_with_three_models_meet_at_one_relay() -> None:
    parties = [service for service in SERVICES.values() if service.command[0] == "join"]
    assert [service.name for service in SERVICES.values() if service.command[0] == "relay"] == ["relay"]
    assert {party.option("--model") for party in parties} == {"builtin:small", "builtin:large", "builtin:large-steps"}
    assert {party.option("--peers") for party in parties} == {"relay:47100"}
    homes = [volume.partition(":") for service in SERVICES.values() for volume in service.volumes]
    assert {path for _, _, path in homes} == {"/data"}
    assert len({name for name, _, _ in homes}) == len(SERVICES), "no two nodes share a home"
    assert {name for name, _, _ in homes} <= set(compose()["volumes"])


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
def test_commands_are_what_the_command_line_and_the_configuration_take(service: NodeService) -> None:
    assert parsed(service.command)
    config = load_node_config(None, service.settings)
    listen = parse_address(service.option("--listen") or "", source="--listen")
    assert listen.host == "0.0.0.0"
    assert config.network.advertise == f"{service.name}:{listen.port}"
    for peer in filter(None, [service.option("--peers")]):
        other = SERVICES[parse_address(peer, source="--peers").host]
        assert other.option("--listen") == peer.replace(other.name, "0.0.0.0")


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
def test_a_stop_leaves_the_learner_the_time_that_it_has(service: NodeService) -> None:
    assert service.stop_grace_seconds >= STOP_SECONDS + 10


@pytest.mark.parametrize(
    ("exit_code", "passes"), [(Level.HEALTHY, True), (Level.DEGRADED, True), (Level.UNREACHABLE, False), (127, False)]
)
def test_only_an_unreachable_node_fails_the_health_check(exit_code: int, passes: bool, tmp_path: Path) -> None:
    checks = {service.health_check for service in SERVICES.values()}
    (instruction,) = [value for name, value in last_stage() if name == "HEALTHCHECK"]
    checks.add(json.loads(instruction.partition("CMD ")[2])[2])
    (check,) = checks  # the image's own and every service's are one
    assert parsed(tuple(shlex.split(check.partition(";")[0])[1:]))["home"] == Path("/data/.ftis-node")
    stand_in = tmp_path / "ftis-node"
    stand_in.write_text(f"#!/bin/sh\nexit {int(exit_code)}\n")
    stand_in.chmod(0o755)
    done = subprocess.run(["sh", "-c", check], env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, check=False)
    assert done.returncode == (0 if passes else 1), "2 is reserved by Docker"


def instructions() -> list[tuple[str, str]]:
    with io.BytesIO((DOCKER / "Dockerfile").read_bytes()) as file:
        structure = DockerfileParser(fileobj=file).structure
    return [(str(part["instruction"]), str(part["value"])) for part in structure if part["instruction"] != "COMMENT"]


def last_stage() -> list[tuple[str, str]]:
    found = instructions()
    start = max(index for index, (name, _) in enumerate(found) if name == "FROM")
    return found[start:]


def test_the_linter_finds_nothing_in_the_dockerfile() -> None:
    linter = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([linter, "--no-color", DOCKER / "Dockerfile"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_image_starts_from_a_pinned_base_and_has_no_compiler_and_no_root() -> None:
    everything = instructions()
    arguments = dict(value.partition("=")[::2] for name, value in everything if name == "ARG")
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-[a-z]+(@sha256:[0-9a-f]{64})?", arguments["PYTHON_IMAGE"])
    assert {value.split()[0] for name, value in everything if name == "FROM"} == {"${PYTHON_IMAGE}"}
    installs = [value for name, value in everything if name == "RUN" and "pip --python" in value]
    assert all("constraints.txt" in value or "--no-deps" in value for value in installs)
    final = last_stage()
    assert not any("apt-get" in value or "pip" in value for name, value in final if name == "RUN")
    assert [value for name, value in final if name == "COPY"] == ["--from=build /opt/ftis-node /opt/ftis-node"]
    settings = dict(final)
    assert settings["USER"] == "10001:10001" == compose()["services"]["relay"]["user"]
    assert settings["VOLUME"] == settings["WORKDIR"] == "/data"
    assert settings["STOPSIGNAL"] == "SIGTERM"
    assert settings["ENTRYPOINT"] == '["ftis-node"]'
    assert parsed(tuple(json.loads(settings["CMD"])))


def test_the_build_context_has_what_the_image_is_built_from() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [value.split()[:-1] for name, value in instructions() if name == "COPY" and "--from" not in value]
    sources = {Path(source).parts[0] for parts in copied for source in parts}
    assert sources == allowed
    assert all((ROOT / source).exists() for source in sources)


def unit() -> dict[str, str]:
    lines = (DOCKER / "ftis-node.service").read_text().splitlines()
    return dict(line.partition("=")[::2] for line in lines if "=" in line and not line.startswith("#"))


def test_the_unit_starts_a_node_and_doesn_t_repeat_mistakes() -> None:
    settings = unit()
    line = shlex.split(settings["ExecStart"].replace("${STATE_DIRECTORY}", f"/var/lib/{settings['StateDirectory']}"))
    assert parsed(tuple(line[1:]))["home"] == Path("/var/lib/ftis-node")
    assert int(settings["RestartPreventExitStatus"]) == ConfigError.exit_code
    assert seconds(settings["TimeoutStopSec"]) >= STOP_SECONDS + 10
    assert settings["OOMPolicy"] == "continue", "or systemd would end the node with its learner"


def test_systemd_takes_the_unit_and_finds_it_confined(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("NOT TESTED HERE, the systemd unit: apt-get install systemd")
    text = (DOCKER / "ftis-node.service").read_text()
    file = tmp_path / "ftis-node.service"
    file.write_text(text.replace("/opt/ftis-node/bin/ftis-node join", f"{sys.executable} join"))
    checked = subprocess.run([analyze, "verify", file], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    line = [analyze, "security", "--offline=true", "--threshold=20", str(file)]
    rated = subprocess.run(line, capture_output=True, text=True, check=False)
    assert rated.returncode == 0, f"exposure above 2.0:\n{rated.stdout}"
