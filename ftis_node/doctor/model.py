"""Checks with the real model, engine and trainer. Runs in a process of its own: see ``worker``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from ftis_node.clock import now_ms
from ftis_node.config import NodeConfig
from ftis_node.doctor.findings import Verdict, failure, not_checked, ok, warning
from ftis_node.doctor.machine import DiskNeeds, disk_space, store_bytes
from ftis_node.inbox.verify import Rejected
from ftis_node.manifest import GroupSizeRange, Run
from ftis_node.models import LoadedModel, torch_device
from ftis_node.round import (
    MISMATCH_ALARM,
    OWN,
    Party,
    build_party,
    check,
    generate,
    load_tasks,
    plan_memory,
    train,
    training_group,
)
from ftis_node.tasks.task import Task
from ftis_node.training.checkpoint import KEPT, checkpoint_bytes
from ftis_node.training.collate import TrainingGroup
from ftis_node.types import PeerId
from ftis_node.wire.codec import decode_payload, encode_payload

SAMPLE_TOKENS = 32
SAMPLE_ROWS = 2
SLOTS_TRIED = 8
KERNEL_SIZE = 256
KERNEL_TOLERANCE = 0.02
"""Relative: TF32 keeps 10 bits of a factor."""

NOBODY = PeerId(bytes(32))

ROUND_TRIP_TEXTS = (
    "The answer is 42.",
    "  two spaces, then a\ttab and\n\na new paragraph ",
    "def f(x):\n    return x ** 2  # code",
    "naïve café, Straße, Ελληνικά, русский, 中文, العربية",
    "e\u0301 and u\u0308 are letters with combining marks",
    "😀 👩‍👩‍👧‍👦 🇪🇺 ✔",
    "\u00a0\u2003\u200b odd spaces",
    "∑ x² ≤ ½ → ∞",
)


def device(config: NodeConfig) -> Verdict:
    """A small product on the configured device, compared with a CPU's in double precision. Raises ModelError."""
    chosen = torch_device(config.model.device)
    if config.training.torch_threads is not None:
        torch.set_num_threads(config.training.torch_threads)
    try:
        error = kernel_error(chosen)
    except RuntimeError as fault:
        reason = (str(fault).strip().splitlines() or [type(fault).__name__])[0]
        return failure(
            f"torch {torch.__version__}: a kernel can't run on {chosen}: {reason}",
            "install a torch that is built for this GPU and its driver, or say --device cpu",
        )
    if not error < KERNEL_TOLERANCE:
        return failure(f"torch {torch.__version__} on {chosen}: a product is off by {error:.2g} from the CPU's",
                       "the device or its driver computes wrongly: don't train on it")  # fmt: skip
    where = f"torch {torch.__version__}, {describe(chosen)}, a product agrees with the CPU's to {error:.0e}"
    if chosen.type == "cpu" and config.model.device == "auto" and os.path.exists("/dev/nvidia0"):
        return warning(
            f"{where}; there is a GPU (/dev/nvidia0), but torch can't use it",
            "install a torch for CUDA and a driver that fits it, or say --device cpu",
        )
    return ok(where)


def kernel_error(chosen: torch.device) -> float:
    """Largest difference from the CPU's product in float64, as a share of the largest value."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(KERNEL_SIZE, KERNEL_SIZE, generator=generator, dtype=torch.float64) for _ in range(2))
    right = a @ b
    got = (a.float().to(chosen) @ b.float().to(chosen)).cpu().double()
    return float((got - right).abs().max() / right.abs().max())


def describe(chosen: torch.device) -> str:
    if chosen.type != "cuda":
        return f"CPU with {torch.get_num_threads()} threads"
    properties = torch.cuda.get_device_properties(chosen)
    return f"{properties.name} with {properties.total_memory / 2**30:.0f} GiB (CUDA {torch.version.cuda})"


class ModelChecks:
    """The checks of one configuration in one run, in the order of ``findings.MODEL_CHECKS``.

    Each raises FtisError for what the node itself would stop with.
    """

    def __init__(self, config: NodeConfig, run: Run, home: Path) -> None:
        self._config = config
        self._run = _with_short_samples(run)
        self._whole_run = run
        self._home = home
        self._tasks: dict[str, Task] | None = None
        self._party: Party | None = None
        self._group: TrainingGroup | None = None

    def all(self) -> tuple[Callable[[], Verdict], ...]:
        return self.data, self.model, self.tokenizer, self.memory, self.disk, self.completion, self.step

    def data(self) -> Verdict:
        self._tasks = dict(load_tasks(self._run, self._config))
        return ok(", ".join(f"{name} ({task.size:,} items)" for name, task in self._tasks.items()))

    def model(self) -> Verdict:
        if self._tasks is None:
            return not_checked("the run's data is missing")
        self._party = build_party(self._run, self._config, seed=0, tasks=self._tasks)
        parameters = list(self._party.loaded.model.parameters())
        count, trained = (sum(p.numel() for p in some) for some in (parameters, filter(_is_trained, parameters)))
        first = parameters[0]
        return ok(
            f"{self._config.model.label}: {count:,} parameters, {trained:,} of them trained, {first.dtype}, on"
            f" {first.device}".replace("torch.", "")
        )

    def tokenizer(self) -> Verdict:
        if self._party is None:
            return _no_model()
        return round_trips(self._party.loaded)

    def memory(self) -> Verdict:
        if self._party is None:
            return _no_model()
        chosen = plan_memory(replace(self._party, run=self._whole_run))
        self._party.trainer.micro_batch_tokens = chosen.micro_batch_tokens
        self._party.engine.lower_decode_rows(chosen.decode_rows)
        return ok(chosen.text)

    def disk(self) -> Verdict:
        if self._party is None:
            return _no_model()
        one = checkpoint_bytes(self._party.loaded.model, optimizer=self._config.training.optimizer)
        needs = DiskNeeds(checkpoint=one, copies=KEPT + 1, store=store_bytes(self._config))
        return disk_space(self._home, needs)

    def completion(self) -> Verdict:
        """Short ones of one prompt, through the wire format and the check that a peer would make."""
        if self._party is None:
            return _no_model()
        window = self._run.window(now_ms())
        for slot in range(SLOTS_TRIED):
            payload, stats = generate(self._party, NOBODY, window, [slot], seed=slot)
            if payload.groups:
                break
        else:
            return failure(
                f"none of {SLOTS_TRIED} prompts gave a completion that can be published",
                "the run's prompts are too long for this model, or its weights are damaged",
            )
        arrived = decode_payload(encode_payload(payload))
        checked = check(self._party, NOBODY, window, arrived, 0)
        if isinstance(checked, Rejected):
            return failure(f"peers would reject this node's own samples: {checked.detail}", "report this as a bug")
        self._group = training_group(self._party, checked, OWN)
        text = checked.group.completions[0].text.decode(errors="replace")
        return ok(
            f"{stats.tokens} tokens in {stats.seconds:.2f} s, {stats.tokens_per_second:,.0f} a second for"
            f" {SAMPLE_ROWS} at once: {text[:40]!r}"
        )

    def step(self) -> Verdict:
        """Rewards are made up, so that there is something to learn; the model is thrown away afterwards."""
        if self._party is None or self._group is None:
            return not_checked("there is no completion to learn from")
        sequences = tuple(replace(s, reward=float(i % 2)) for i, s in enumerate(self._group.sequences))
        started = time.monotonic()
        report = train(self._party, [replace(self._group, sequences=sequences)])
        seconds = time.monotonic() - started
        if not report.stepped:
            return failure(f"no step was taken: {report.skipped_reason}", "the model's weights may be damaged")
        found = f"{report.tokens_trained} tokens in {seconds:.2f} s, gradient norm {report.gradient_norm:.3g}"
        mismatch = report.own_logprob_mismatch
        if mismatch is None:
            return ok(found)
        found += f", engine and trainer differ by {mismatch:.0e} per token"
        if mismatch > MISMATCH_ALARM and self._run.manifest.sampling.untruncated:
            return warning(found, "samples of this engine don't fit the trained model: use another --dtype or engine")
        return ok(found)


def round_trips(loaded: LoadedModel) -> Verdict:
    """Whether texts come back from the model's ids by the bytes that this node gives to each of them."""
    changed = []
    for text in ROUND_TRIP_TEXTS:
        decoded, _ = loaded.vocabulary.decode(loaded.tokenize(text))
        # Many tokenizers put a space at the start; the alignment of foreign samples knows it.
        if decoded.decode(errors="replace").removeprefix(" ") != text.removeprefix(" "):
            changed.append(text)
    found = (
        f"{loaded.vocabulary.size:,} ids, {len(ROUND_TRIP_TEXTS) - len(changed)} of {len(ROUND_TRIP_TEXTS)} texts come"
        " back as they were"
    )
    if ROUND_TRIP_TEXTS[0] in changed:
        return failure(found, "not even plain English does: this tokenizer can't be used")
    if changed:
        return warning(f"{found}; not {changed[0]!r}", "peers' samples with such text are left out, and counted")
    return ok(found)


def _with_short_samples(run: Run) -> Run:
    """The same run, but what is sampled here takes seconds."""
    limits = run.manifest.limits
    rows = GroupSizeRange(smallest=SAMPLE_ROWS, largest=SAMPLE_ROWS)
    short = limits.model_copy(update={"completion_tokens": min(limits.completion_tokens, SAMPLE_TOKENS)})
    return replace(run, manifest=run.manifest.model_copy(update={"limits": short, "group_size": rows}))


def _is_trained(parameter: torch.nn.Parameter) -> bool:
    return parameter.requires_grad


def _no_model() -> Verdict:
    return not_checked("there is no model")
