"""``ftis-node init``: a commented run.toml and node.toml to start from."""

from __future__ import annotations

import re
from pathlib import Path

from ftis_node.config import DataConfig, NodeConfig
from ftis_node.config_file import node_toml, toml_value
from ftis_node.errors import HomeError
from ftis_node.manifest import TaskSpec
from ftis_node.tasks.registry import FILE_PREFIX, Parameters, TaskSources, build_task, check_task

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
name = {task}
parameters = {parameters}
size = {size}
data_hash = "{data_hash}"

# The distribution that everybody samples from. top_p = 1.0 and top_k = 0 are off.
[sampling]
temperature = 1.0
top_p = 1.0
top_k = 0

# Tokens of a prompt and of a completion; how long a batch may be used after it was made.
[limits]
prompt_tokens = {prompt_tokens}
completion_tokens = {completion_tokens}
max_age_seconds = 1800
clock_skew_seconds = 30

# Prompts are assigned by hash: so many slots per node in every window.
[assignment]
window_seconds = 600
quota = 4096
"""


def run_toml(
    name: str, task_name: str = "addition", parameters: Parameters | None = None, sources: TaskSources | None = None
) -> str:
    """A manifest for one task. Raises ConfigError, TaskError."""
    if task_name == "addition" and not parameters:
        parameters = {"terms": 3, "largest": 19}
    task = build_task(task_name, parameters or {}, sources or TaskSources())
    spec = TaskSpec(name=task_name, parameters=dict(parameters or {}), size=task.size, data_hash=task.data_hash)
    check_task(spec, sources or TaskSources())
    is_short = task_name in ("addition", "arithmetic")
    return _RUN_TOML.format(
        name=name,
        task=toml_value(task_name),
        parameters=toml_value(spec.parameters),
        size=task.size,
        data_hash=task.data_hash,
        prompt_tokens=64 if is_short else 1024,
        completion_tokens=48 if is_short else 1024,
    )


def run_init(directory: Path, *, task: str, parameters: Parameters, files: dict[str, str]) -> int:
    """Write both files; refuses to overwrite. Raises FtisError."""
    sources = TaskSources(files=files)
    name = re.sub(r"[^A-Za-z0-9 _.-]+", "-", task)
    config = NodeConfig(data=DataConfig(files=files))
    files_to_write = {"run.toml": run_toml(name, task, parameters, sources), "node.toml": node_toml(config)}
    for name in files_to_write:
        if (directory / name).exists():
            raise HomeError(f"{directory / name}: exists already and is not overwritten")
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, text in files_to_write.items():
            (directory / name).write_text(text)
    except OSError as error:
        raise HomeError(f"{directory}: can't be written: {error.strerror}") from error
    print(f"wrote {directory / 'run.toml'} and {directory / 'node.toml'}")
    print(f"start the swarm's first node: ftis-node join --home {directory}")
    data = f" --data {task}=FILE" if task.startswith(FILE_PREFIX) else ""
    print(f"others join it with:          ftis-node join --peers THIS-HOST:47100{data}")
    if data:
        print(f"FILE is their copy of {files[task]}, the same byte by byte: give it to them")
    return 0
