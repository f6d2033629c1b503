"""Memory over many rounds whose completions grow and shrink: what is freed is used again."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemons import Daemon, learners_of, write_run

ROUNDS, FIRST = 24, 4
ALLOWED = 1.05


def resident_kilobytes(process: int) -> int:
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert match is not None
    return int(match[1])


VARYING = """
import re, sys
from ftis_node.allocator import trim_malloc, tune_malloc
tune_malloc()
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from ftis_node.config import FtisConfig, TrainingConfig
from ftis_node.rollout.transformers import TransformersEngine
from ftis_node.training.collate import TrainingGroup, TrainingSequence
from ftis_node.training.trainer import Trainer
from ftis_node.types import SamplingParams
from ftis_node.vocabulary import Vocabulary

LENGTHS = [16, 256, 64, 160, *range(16, 256, 24), 256, *range(240, 16, -26), 16]
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=5000, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
    bos_token_id=None, eos_token_id=None, pad_token_id=0)).eval()
endless = Vocabulary((b"a",) * 5000, frozenset(), (5000,))
engine = TransformersEngine(model, endless, pad_id=0, decode_rows=64)
trainer = Trainer(model, training=TrainingConfig(micro_batch_tokens=2048), ftis=FtisConfig(), learning_rate=1e-4,
                  temperature=1.0, pad_id=0)
for number, length in enumerate(LENGTHS[:24]):
    prompts = [tuple(range(1, 9 + (number + i) % 7)) for i in range(4)]
    rollouts = engine.generate(prompts, count=8, sampling=SamplingParams(1.0), max_tokens=length, seed=number)
    step = trainer.step([
        TrainingGroup("own", tuple(
            TrainingSequence(prompt, c.token_ids, c.behavior_logprobs, float(i % 2)) for i, c in enumerate(group)))
        for prompt, group in zip(prompts, rollouts.completions)])
    assert step.stepped
    trim_malloc()
    print(length, re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


@pytest.mark.slow
def test_completions_that_grow_and_shrink_leave_no_memory_behind() -> None:
    """The longest come within the first rounds, so that nothing later needs more; what is freed is used again."""
    done = subprocess.run([sys.executable, "-c", VARYING], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    resident = [int(line.split()[1]) for line in done.stdout.splitlines()]
    assert len(resident) == ROUNDS
    assert resident[-1] <= ALLOWED * resident[FIRST - 1], done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_neither_process_of_a_daemon_grows_in_24_rounds(tmp_path: Path) -> None:
    sets = (
        "model.name='builtin:large-steps'", "training.groups_per_step=16", "training.collect_timeout=0",
        "training.learning_rate=1e-3", f"training.max_rounds={ROUNDS + 1}",
    )  # fmt: skip
    with Daemon(tmp_path / "home", run=write_run(tmp_path / "run", group_size=8), sets=sets) as daemon:
        daemon.after_round(FIRST)
        (learner,) = learners_of(tmp_path / "home")
        processes = {"network half": daemon.process.pid, "learner": learner}
        early = {name: resident_kilobytes(process) for name, process in processes.items()}
        daemon.after_round(ROUNDS, 300)
        late = {name: resident_kilobytes(process) for name, process in processes.items()}
        for name in processes:
            figures = f"{name}: {early[name]} kB after round {FIRST}, {late[name]} at the end"
            assert late[name] <= ALLOWED * early[name], figures
