"""docker/compose.yaml as the tests read it."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

DOCKER = Path(__file__).parent.parent / "docker"
IMAGE = "ftis-node:"


@dataclass(frozen=True)
class NodeService:
    """A service of our image. ``health_check`` is the text that a shell in its container runs."""

    name: str
    command: tuple[str, ...]
    health_check: str
    stop_grace_seconds: float
    volumes: tuple[str, ...]

    def option(self, name: str) -> str | None:
        """The value of ``--name=value`` in the command."""
        values = [part.partition("=")[2] for part in self.command if part.startswith(f"{name}=")]
        return values[0] if values else None

    @property
    def settings(self) -> tuple[str, ...]:
        """All values of ``--set``."""
        return tuple(part.removeprefix("--set=") for part in self.command if part.startswith("--set="))


def compose(name: str = "compose.yaml") -> dict[str, Any]:
    content = yaml.safe_load((DOCKER / name).read_text())
    assert isinstance(content, dict)
    return content


def node_services() -> tuple[NodeService, ...]:
    """Those that run a node, in the order of the file."""
    found = []
    for name, service in compose()["services"].items():
        if service["image"].startswith(IMAGE):
            kind, text = service["healthcheck"]["test"]
            assert kind == "CMD-SHELL"
            found.append(
                NodeService(
                    name=name,
                    command=tuple(service["command"]),
                    health_check=text.replace("$$", "$"),
                    stop_grace_seconds=seconds(service["stop_grace_period"]),
                    volumes=tuple(service["volumes"]),
                )
            )
    return tuple(found)


def seconds(duration: str) -> float:
    """``45s`` or ``2m``: no other unit is used."""
    match = re.fullmatch(r"(\d+)([sm])", duration)
    assert match is not None, duration
    return int(match[1]) * {"s": 1, "m": 60}[match[2]]
