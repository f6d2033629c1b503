"""The device, the tokenizer, a completion and a step, as doctor tries them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ftis_node.config import LoraConfig, ModelConfig, NodeConfig, TrainingConfig
from ftis_node.doctor import model as model_checks
from ftis_node.doctor.findings import MODEL_CHECKS, Level
from ftis_node.doctor.model import ModelChecks, device, kernel_error, round_trips
from ftis_node.errors import ModelError
from ftis_node.models import load_model
from tests.builders import make_run


def test_the_device() -> None:
    assert kernel_error(torch.device("cpu")) < 1e-4
    assert "a product agrees with the CPU's" in device(NodeConfig(model=ModelConfig(device="cpu"))).found
    if not torch.cuda.is_available():
        with pytest.raises(ModelError, match="no usable GPU"):
            device(NodeConfig(model=ModelConfig(device="cuda:0")))


def test_a_device_that_computes_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_checks, "kernel_error", lambda chosen: 0.5)
    assert device(NodeConfig(model=ModelConfig(device="cpu"))).level is Level.FAILURE
    monkeypatch.setattr(model_checks, "kernel_error", lambda chosen: float("nan"))
    assert device(NodeConfig(model=ModelConfig(device="cpu"))).level is Level.FAILURE

    def no_kernel(chosen: torch.device) -> float:
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device\nmore")

    monkeypatch.setattr(model_checks, "kernel_error", no_kernel)
    assert "no kernel image is available" in device(NodeConfig(model=ModelConfig(device="cpu"))).found


def test_a_tokenizer_whose_ids_stand_for_something_else() -> None:
    loaded = load_model(ModelConfig(name="builtin:small"), LoraConfig(), seed=0)
    assert round_trips(loaded).level is Level.OK
    table = list(loaded.vocabulary.token_bytes)
    table[0xF0] = b"?"  # the first byte of every emoji
    odd = replace(loaded, vocabulary=replace(loaded.vocabulary, token_bytes=tuple(table)))
    assert round_trips(odd).level is Level.WARNING
    table[ord("e")] = b"E"
    wrong = replace(loaded, vocabulary=replace(loaded.vocabulary, token_bytes=tuple(table)))
    assert round_trips(wrong).level is Level.FAILURE


def test_all_of_the_model_with_an_adapter(tmp_path: Path) -> None:
    config = NodeConfig(lora=LoraConfig(rank=4), training=TrainingConfig(torch_threads=1))
    checks = ModelChecks(config, make_run(group_size=8), tmp_path)
    verdicts = dict(zip((check.name for check in MODEL_CHECKS), (check() for check in checks.all()), strict=True))
    assert all(verdict.level is Level.OK for verdict in verdicts.values()), verdicts
    assert "of them trained, float32, on cpu" in verdicts["model"].found
    assert "gradient norm" in verdicts["step"].found
    assert not list(tmp_path.iterdir())


def test_weights_that_are_damaged_take_no_step(tmp_path: Path) -> None:
    checks = ModelChecks(NodeConfig(), make_run(), tmp_path)
    checks.data(), checks.model(), checks.completion()
    assert checks._party is not None
    with torch.no_grad():
        next(checks._party.loaded.model.parameters()).fill_(float("nan"))
    found = checks.step()
    assert found.level is Level.FAILURE
    assert "not finite" in found.found
