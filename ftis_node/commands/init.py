"""``ftis-node init``: a commented run.toml and node.toml to start from."""

from __future__ import annotations

from pathlib import Path

from ftis_node.config import NodeConfig
from ftis_node.config_file import node_toml
from ftis_node.errors import HomeError
from ftis_node.tasks.registry import TaskSources, build_task

_RUN_TOML = """\
# The run manifest: what everybody in this run has in common. Its hash is the run id, so that a
# change of any byte, comments included, makes another run.
version = 1
name = "{name}"

# Who may take part: "open", {{ peers = ["64 hex digits", ...] }} or {{ admission_key = "64 hex digits" }}
# (make a key, and invitations with it, by `ftis-node invite`).
membership = "open"

# Completions per prompt: one number, or {{ smallest = 4, largest = 8 }} for weak machines.
group_size = 8

# Prompts are taken from these tasks in turn. size and data_hash make sure that everybody has the
# same data; a node that finds other values prints its own.
[[tasks]]
name = "addition"
parameters = {{ terms = 3, largest = 19 }}
size = {size}
data_hash = "{data_hash}"

# The distribution that everybody samples from. top_p = 1.0 and top_k = 0 are off.
[sampling]
temperature = 1.0
top_p = 1.0
top_k = 0

# Tokens of a prompt and of a completion; how long a batch may be used after it was made.
[limits]
prompt_tokens = 64
completion_tokens = 48
max_age_seconds = 1800
clock_skew_seconds = 30

# Prompts are assigned by hash: so many slots per node in every window.
[assignment]
window_seconds = 600
quota = 4096
"""


def run_toml(name: str) -> str:
    """A manifest for the built-in addition task."""
    task = build_task("addition", {"terms": 3, "largest": 19}, TaskSources())
    return _RUN_TOML.format(name=name, size=task.size, data_hash=task.data_hash)


def run_init(directory: Path) -> int:
    """Write both files; refuses to overwrite. Raises HomeError."""
    files = {"run.toml": run_toml("addition"), "node.toml": node_toml(NodeConfig())}
    for name in files:
        if (directory / name).exists():
            raise HomeError(f"{directory / name}: exists already and is not overwritten")
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, text in files.items():
            (directory / name).write_text(text)
    except OSError as error:
        raise HomeError(f"{directory}: can't be written: {error.strerror}") from error
    print(f"wrote {directory / 'run.toml'} and {directory / 'node.toml'}")
    print(f"start the swarm's first node: ftis-node join --home {directory}")
    print("others join it with:          ftis-node join --peers THIS-HOST:47100")
    return 0
