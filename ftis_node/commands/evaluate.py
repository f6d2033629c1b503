"""``ftis-node eval``: greedy pass@1 of a model on a task, with its completions to read."""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ftis_node.config import LoraConfig, ModelConfig
from ftis_node.errors import HomeError
from ftis_node.evaluate import Evaluation, greedy_accuracy
from ftis_node.models import load_model
from ftis_node.rollout.transformers import TransformersEngine
from ftis_node.tasks.registry import Parameters, TaskSources, build_task
from ftis_node.tasks.task import Task

RESULTS_SCHEMA = 1


@dataclass(frozen=True)
class EvalOptions:
    """The command line of ``eval``. ``parameters`` are those of the task."""

    model: ModelConfig
    task: str
    parameters: Parameters
    files: dict[str, str]
    limit: int
    max_tokens: int
    batch: int
    output: Path
    as_json: bool


def run_eval(options: EvalOptions) -> int:
    """Raises FtisError on unusable input, before the model is loaded where that is possible."""
    console = Console(stderr=True)
    results, completions = options.output / "results.json", options.output / "completions.txt"
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        if not completions.exists():
            completions.touch()
    except OSError as error:
        raise HomeError(f"--output {options.output}: can't be written: {error.strerror}") from error
    task = build_task(options.task, options.parameters, TaskSources(files=options.files))
    with console.status(f"Loading {options.model.name} ..."):
        loaded = load_model(options.model, LoraConfig(), seed=0)
    engine = TransformersEngine(loaded.model, loaded.vocabulary, pad_id=loaded.pad_id, decode_rows=options.batch)
    started = time.monotonic()
    with _bar(console) as bar:
        shown = bar.add_task(options.task, total=min(options.limit, task.size), right="")

        def progress(done: int, right: int) -> None:
            bar.update(shown, completed=done, right=f"{100 * right / done:.1f} % right")

        evaluation = greedy_accuracy(
            engine, loaded, task, limit=options.limit, max_tokens=options.max_tokens, batch=options.batch,
            progress=progress,
        )  # fmt: skip
    summary = _summary(options, task, evaluation, time.monotonic() - started)
    answers = [dataclasses.asdict(answer) for answer in evaluation.answers]
    kept = keep_earlier(results, completions)
    results.write_text(json.dumps({**summary, "answers": answers}, indent=2, ensure_ascii=False))
    completions.write_text(_readable(evaluation))
    if options.as_json:
        print(json.dumps(summary))
    else:
        print(
            f"{options.task}: {100 * evaluation.accuracy:.1f} % right ({evaluation.correct} of {evaluation.total}),"
            f" 95 % interval {100 * evaluation.low:.1f} to {100 * evaluation.high:.1f} %"
        )
        print(f"completions to read: {completions}; all as JSON: {results}")
        if kept is not None:
            print(f"those of an earlier evaluation are kept: {kept}")
    return 0


def keep_earlier(results: Path, completions: Path) -> Path | None:
    """Earlier results get the next free number, as nobody expects an evaluation to be replaced; returns where."""
    if not results.exists():
        return None
    number = 1
    while (kept := results.with_stem(f"{results.stem}-{number}")).exists():
        number += 1
    results.rename(kept)
    if completions.exists():
        completions.rename(completions.with_stem(f"{completions.stem}-{number}"))
    return kept


def _summary(options: EvalOptions, task: Task, evaluation: Evaluation, seconds: float) -> dict[str, object]:
    return {
        "schema_version": RESULTS_SCHEMA,
        "model": options.model.name,
        "revision": options.model.revision,
        "task": options.task,
        "parameters": dict(options.parameters),
        "data_hash": task.data_hash,
        "max_tokens": options.max_tokens,
        "correct": evaluation.correct,
        "total": evaluation.total,
        "accuracy": evaluation.accuracy,
        "low": evaluation.low,
        "high": evaluation.high,
        "unfinished": sum(not answer.finished for answer in evaluation.answers),
        "completion_tokens": sum(answer.completion_tokens for answer in evaluation.answers),
        "seconds": round(seconds, 2),
    }


def _readable(evaluation: Evaluation) -> str:
    parts = []
    for answer in evaluation.answers:
        verdict = "right" if answer.right else "wrong"
        end = "" if answer.finished else ", cut off at the limit"
        parts.append(
            f"=== item {answer.index}: {verdict} (expected {answer.expected}; {answer.completion_tokens} tokens{end})\n"
            f"--- prompt\n{answer.prompt}\n--- completion\n{answer.completion}\n"
        )
    return "\n".join(parts)


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[right]}"))
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console)
