"""Models: tokenizers as bytes, bad input in one line, no pickles, no foreign code."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ftis_node.config import LoraConfig, ModelConfig
from ftis_node.errors import ModelError
from ftis_node.models import BUILTIN_FOLDER, load_model, render_prompt, vocabulary_of

TEXTS = ["Hello, wörld!", "12+7=19", " \n\t", "日本語 🎉", "naïve café"]


def load(name: str, rank: int = 0):
    return load_model(ModelConfig(name=name), LoraConfig(rank=rank), seed=0)


@pytest.mark.parametrize("name", ["small", "large", "large-steps"])
def test_builtin_models_read_any_text(name: str) -> None:
    loaded = load(f"builtin:{name}")
    for text in TEXTS:
        ids = render_prompt(loaded, text)
        assert loaded.vocabulary.decode(ids)[0] == text.encode()
    assert not loaded.model.training


def bpe(**settings: object) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(unk_token=None, byte_fallback=bool(settings.get("byte_fallback"))))
    if settings.get("byte_fallback"):
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback(), decoders.Fuse()])
        alphabet = [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["</s>", *alphabet], show_progress=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=400, special_tokens=["</s>"], show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )  # fmt: skip
    tokenizer.train_from_iterator(["the quick brown fox 12 + 13 = 25 and so on"] * 10, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


def test_byte_level_bpe_decodes_to_the_same_bytes() -> None:
    tokenizer = bpe()
    vocabulary = vocabulary_of(tokenizer, name="test")
    for text in TEXTS:
        assert vocabulary.decode(tokenizer.encode(text))[0] == text.encode()
    assert vocabulary.eos_token_ids == (tokenizer.eos_token_id,)
    assert vocabulary.decode([tokenizer.eos_token_id]) == (b"", (0,))


def test_the_fingerprint_survives_saving_and_loading(tmp_path: Path) -> None:
    tokenizer = bpe()
    tokenizer.save_pretrained(tmp_path)
    again = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert vocabulary_of(again, name="a").fingerprint == vocabulary_of(tokenizer, name="b").fingerprint


def test_a_chat_template_is_used_once_and_only_where_there_is_one() -> None:
    loaded = load("builtin:small")
    plain = render_prompt(loaded, "1+2=")
    loaded.tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}:"
    assert bytes(render_prompt(loaded, "1+2=")) == b"<user>1+2=:"
    loaded.tokenizer.chat_template = None
    assert render_prompt(loaded, "1+2=") == plain


def folder_with(tmp_path: Path, **changes: bytes | None) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(BUILTIN_FOLDER / "small", folder)
    for name, content in changes.items():
        path = folder / name.replace("__", ".")
        path.unlink() if content is None else path.write_bytes(content)
    return folder


def test_a_local_folder(tmp_path: Path) -> None:
    assert load(str(folder_with(tmp_path))).vocabulary == load("builtin:small").vocabulary


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config__json": None}, "can't be loaded"),
        ({"config__json": b"{"}, "can't be loaded"),
        ({"model__safetensors": b"no tensors"}, "can't be loaded"),
        ({"model__safetensors": None}, "can't be loaded"),
        ({"tokenizer__json": None}, "can't be loaded"),
    ],
)
def test_a_damaged_folder_is_one_line(tmp_path: Path, changes: dict[str, bytes | None], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        load(str(folder_with(tmp_path, **changes)))
    assert "\n" not in str(caught.value)


def test_pickled_weights_are_never_read(tmp_path: Path) -> None:
    """A hostile folder has its weights in a pickle that would run code."""
    folder = folder_with(tmp_path, model__safetensors=None)

    class Payload:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "was-run",))

    torch.save(Payload(), folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="can't be loaded"):
        load(str(folder))
    assert not (tmp_path / "was-run").exists()


def test_code_of_a_model_folder_is_never_run(tmp_path: Path) -> None:
    config = json.loads((BUILTIN_FOLDER / "small" / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}}
    code = f"import pathlib\npathlib.Path({str(tmp_path / 'was-run')!r}).touch()\n"
    folder = folder_with(tmp_path, config__json=json.dumps(config).encode(), evil__py=code.encode())
    with pytest.raises(ModelError, match="can't be loaded"):
        load(str(folder))
    assert not (tmp_path / "was-run").exists()


def test_unknown_builtin_names_the_known_ones() -> None:
    with pytest.raises(ModelError, match="there are builtin:large, builtin:large-steps, builtin:small"):
        load("builtin:huge")


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelError, match="no usable GPU; use auto or cpu"):
        load_model(ModelConfig(name="builtin:small", device="cuda"), LoraConfig(), seed=0)


def test_adapters_of_one_seed_are_alike_and_leave_the_base_alone() -> None:
    first, again = load("builtin:small", 4), load("builtin:small", 4)
    for (name, one), other in zip(first.model.named_parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other), name
        assert one.requires_grad == ("lora_" in name)


def test_adapter_targets_that_are_not_there() -> None:
    with pytest.raises(ModelError, match=r"lora.targets = \('nowhere',\)"):
        load_model(ModelConfig(name="builtin:small"), LoraConfig(rank=4, targets=("nowhere",)), seed=0)


def test_a_tokenizer_larger_than_the_embedding_is_refused(tmp_path: Path) -> None:
    config = LlamaConfig(vocab_size=100, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    bpe().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"its tokenizer has \d+ ids, its embedding 100 rows"):
        load(str(tmp_path))
