"""Where the questions of GSM8K, MATH-500 and files come from: a local file, or the hub at a pinned revision."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftis_node.errors import TaskError
from ftis_node.hub import why_only_the_cache
from ftis_node.tasks.task import Shot

LONGEST_LINE = 1_000_000
GSM8K_MARK = "####"

Read = Callable[[dict[str, Any]], Shot]
"""A record of a data set as question and answer. Raises KeyError, ValueError, TypeError."""


@dataclass(frozen=True)
class HubData:
    """A data set of the hub, never newer than this project knows it."""

    repository: str
    subset: str | None
    split: str
    revision: str


GSM8K_REVISION = "cc7b047b6e5bb11b4f1af84efc572db110a51b3c"
HUB_DATA = {
    "gsm8k": HubData("openai/gsm8k", "main", "train", GSM8K_REVISION),
    "gsm8k:test": HubData("openai/gsm8k", "main", "test", GSM8K_REVISION),
    "math500": HubData("HuggingFaceH4/MATH-500", None, "test", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"),
}


def read_gsm8k(record: dict[str, Any]) -> Shot:
    """The answer is what stands behind the last ``####``."""
    solution = record["answer"]
    if GSM8K_MARK not in solution:
        raise ValueError(f"its answer has no {GSM8K_MARK}")
    return _shot(record["question"], solution.rpartition(GSM8K_MARK)[2].replace(",", ""))


def read_math500(record: dict[str, Any]) -> Shot:
    return _shot(record["problem"], record["answer"])


def read_question(record: dict[str, Any]) -> Shot:
    """``{"question": "...", "answer": "..."}``; an answer may be a number."""
    answer = record["answer"]
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        answer = str(answer)
    return _shot(record["question"], answer)


def _shot(question: Any, answer: Any) -> Shot:
    for name, value in (("question", question), ("answer", answer)):
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"its {name} is {value!r:.60}, not a text")
    return Shot(question.strip(), answer.strip())


def questions_from(name: str, file: str | None, read: Read) -> tuple[Shot, ...]:
    """All questions of a task. Raises TaskError, which names the file and the line."""
    if file is not None:
        path = Path(file).expanduser()
        records = _parquet(path) if path.suffix == ".parquet" else _json_lines(path)
        source = str(path)
    else:
        records = _from_hub(name, HUB_DATA[name])
        source = HUB_DATA[name].repository
    questions = []
    for number, record in records:
        try:
            if not isinstance(record, dict):
                raise ValueError("it is not an object")
            questions.append(read(record))
        except KeyError as error:
            raise TaskError(f"{source}: line {number} has no {error.args[0]!r}") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise TaskError(f"{source}: line {number} can't be used: {error}") from error
    if not questions:
        raise TaskError(f"{source}: has no questions")
    return tuple(questions)


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if len(line) > LONGEST_LINE:
                    raise TaskError(f"{path}: line {number} is longer than {LONGEST_LINE} bytes")
                if not line.strip():
                    continue
                try:
                    yield number, json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise TaskError(f"{path}: line {number} is not JSON: {error}") from error
    except OSError as error:
        raise TaskError(f"{path}: can't be read: {error.strerror}") from error


def _parquet(path: Path) -> Iterable[tuple[int, Any]]:
    from datasets import Dataset

    try:
        return list(enumerate(Dataset.from_parquet(str(path)), start=1))
    except Exception as error:  # datasets raises what its readers raise, of any kind
        raise TaskError(f"{path}: can't be read as parquet: {_first_line(error)}") from error


def _from_hub(name: str, data: HubData) -> Iterable[tuple[int, Any]]:
    offline = why_only_the_cache()  # before datasets is imported, which looks only then
    from datasets import load_dataset
    from datasets.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        rows = load_dataset(data.repository, data.subset, split=data.split, revision=data.revision)
        return list(enumerate(rows, start=1))
    except Exception as error:  # whatever the hub, the network or the cache have to say
        reason = _first_line(error) if offline is None else f"{offline}, and it is not in the cache"
        raise TaskError(
            f"task {name}: {data.repository} can't be loaded from the hub: {reason}; a local copy is taken"
            f" with --data {name}=FILE (JSON lines or parquet)"
        ) from error


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__
