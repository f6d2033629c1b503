"""What only a GPU can show; ``./scripts/test gpu`` runs it where there is one."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from ftis_node.config import FtisConfig, LoraConfig, ModelConfig, NodeConfig, RolloutConfig, TrainingConfig
from ftis_node.doctor.findings import Level
from ftis_node.doctor.model import device
from ftis_node.inbox.content import CheckedGroup
from ftis_node.memory import available_bytes
from ftis_node.models import load_model
from ftis_node.round import OWN, build_party, check, generate, train, training_group
from ftis_node.training.checkpoint import CheckpointProgress, load_newest, save_checkpoint
from ftis_node.training.trainer import Trainer
from ftis_node.types import PeerId
from ftis_node.wire.codec import decode_payload, encode_payload
from tests.builders import make_run, smollm2

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="NOT TESTED HERE: there is no GPU; run ./scripts/test gpu"
    ),
]

RUN = make_run(group_size=4)
ME = PeerId(b"m" * 32)
Optimizer = Literal["adam", "adam8bit", "paged-adam8bit"]
Engine = Literal["transformers", "vllm"]


def one_round(config: NodeConfig) -> tuple[Any, Any]:
    """Own samples through the codec, trained on; returns the party and the step's report."""
    party = build_party(RUN, config, seed=1)
    payload, _ = generate(party, ME, 5, range(6), seed=3)
    arrived = decode_payload(encode_payload(payload))
    groups = []
    for index in range(len(arrived.groups)):
        checked = check(party, ME, 5, arrived, index)
        assert isinstance(checked, CheckedGroup)
        groups.append(training_group(party, checked, OWN))
    return party, train(party, groups)


@pytest.mark.parametrize("rank", [0, 8])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("checkpointing", ["on", "off"])
def test_a_round(rank: int, dtype: Any, checkpointing: Any) -> None:
    config = NodeConfig(
        model=ModelConfig(name="builtin:large", dtype=dtype, device="cuda:0"),
        lora=LoraConfig(rank=rank),
        training=TrainingConfig(learning_rate=1e-3, gradient_checkpointing=checkpointing),
    )
    party, report = one_round(config)
    assert report.stepped
    assert next(party.loaded.model.parameters()).dtype == getattr(torch, dtype)
    assert report.own_logprob_mismatch < (1e-3 if dtype == "float32" else 0.05)


@pytest.mark.parametrize("optimizer", ["adam8bit", "paged-adam8bit"])
def test_quantized_optimizers_learn_and_come_back(optimizer: Optimizer, tmp_path: Path) -> None:
    config = NodeConfig(
        model=ModelConfig(name="builtin:large", device="cuda"),
        training=TrainingConfig(learning_rate=1e-3, optimizer=optimizer),
    )
    party, report = one_round(config)
    assert report.stepped
    model = party.loaded.model
    save_checkpoint(
        tmp_path, model=model, optimizer_state=party.trainer.state_dict(), progress=CheckpointProgress(1)
    )  # fmt: skip
    other = build_party(RUN, config, seed=1)
    restored = load_newest(tmp_path, model=other.loaded.model)
    assert restored is not None
    other.trainer.load_state_dict(restored.optimizer_state)
    for (name, one), two in zip(model.named_parameters(), other.loaded.model.parameters(), strict=True):
        assert torch.equal(one, two), name


@pytest.mark.parametrize("rank", [0, 8])
@pytest.mark.skipif(find_spec("vllm") is None, reason="NOT TESTED HERE: vLLM is not installed; pip install '.[vllm]'")
def test_vllm_samples_from_what_the_trainer_has(rank: int) -> None:
    config = NodeConfig(
        model=ModelConfig(name=smollm2(), device="cuda"),
        lora=LoraConfig(rank=rank),
        rollout=RolloutConfig(engine="vllm"),
        training=TrainingConfig(learning_rate=1e-4),
    )
    party, _ = one_round(config)
    payload, stats = generate(party, ME, 6, range(2), seed=4)
    assert stats.tokens > 0
    checked = check(party, ME, 6, decode_payload(encode_payload(payload)), 0)
    assert isinstance(checked, CheckedGroup)
    mismatch = train(party, [training_group(party, checked, OWN)]).own_logprob_mismatch
    assert mismatch is not None
    assert mismatch < 0.1


def test_running_out_of_memory_halves_the_micro_batches() -> None:
    loaded = load_model(ModelConfig(name="builtin:large", device="cuda"), LoraConfig(), seed=0)
    trainer = Trainer(
        loaded.model, training=TrainingConfig(), ftis=FtisConfig(), learning_rate=1e-3, temperature=1.0, pad_id=0
    )
    needs = trainer.needs(longest=1024)
    assert needs.per_token > 0
    assert needs.available <= available_bytes(torch.device("cuda")) * 1.5
    limit = torch.cuda.memory_allocated() + 64 * 2**20
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    try:
        from tests.test_memory import groups

        many = groups() * 64
        trainer.micro_batch_tokens = sum(len(group.sequences) for group in many) * 14
        assert trainer.step(many).stepped
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_doctor_finds_the_gpu_sound() -> None:
    found = device(NodeConfig(model=ModelConfig(device="cuda:0")))
    assert found.level is Level.OK, found
    assert "a product agrees with the CPU's" in found.found
