"""``ftis-node export``: what comes out loads as any model folder does."""

from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM, AutoTokenizer

from ftis_node.commands.export import run_export
from ftis_node.config import LoraConfig, ModelConfig
from ftis_node.errors import CheckpointError, HomeError
from ftis_node.models import LoadedModel, load_model
from ftis_node.training.checkpoint import CheckpointProgress, save_checkpoint

IDS = torch.tensor([[49, 43, 50, 61]])


def home_with(home: Path, rank: int) -> LoadedModel:
    loaded = load_model(ModelConfig(name="builtin:small"), LoraConfig(rank=rank), seed=0)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn_like(parameter))
    save_checkpoint(
        home / "checkpoints", model=loaded.model, tokenizer=loaded.tokenizer, progress=CheckpointProgress(3),
        optimizer_state={"optimizer": {}, "masters": []},
    )  # fmt: skip
    return loaded


@pytest.mark.parametrize(("rank", "merge"), [(0, False), (4, False), (4, True)])
def test_an_exported_model_is_the_trained_one(
    tmp_path: Path, rank: int, merge: bool, capsys: pytest.CaptureFixture
) -> None:
    loaded = home_with(tmp_path / "home", rank)
    assert run_export(tmp_path / "home", tmp_path / "out", merge=merge) == 0
    assert "after round 3" in capsys.readouterr().out
    loader = AutoPeftModelForCausalLM if rank and not merge else AutoModelForCausalLM
    exported = loader.from_pretrained(tmp_path / "out")
    AutoTokenizer.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        assert torch.allclose(exported(IDS).logits, loaded.model(IDS).logits, atol=1e-4)
    if rank and not merge:
        assert not list((tmp_path / "out").glob("model*.safetensors"))
    with pytest.raises(HomeError, match="exists already and is not overwritten"):
        run_export(tmp_path / "home", tmp_path / "out", merge=merge)


def test_a_home_without_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint yet"):
        run_export(tmp_path, tmp_path / "out", merge=False)
