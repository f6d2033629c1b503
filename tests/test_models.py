"""Models: tokenizers as bytes, bad input in one line, no pickles, no foreign code."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ftis_node.config import LoraConfig, ModelConfig
from ftis_node.errors import ModelError
from ftis_node.model_places import BUILTIN_FOLDER
from ftis_node.models import load_model, render_prompt
from ftis_node.rollout.vllm import VllmEngine
from ftis_node.token_bytes import vocabulary_of
from tests.builders import smollm2

TEXTS = ["Hello, wörld!", "12+7=19", " \n\t", "日本語 🎉", "naïve café"]


def load(name: str, rank: int = 0):
    return load_model(ModelConfig(name=name), LoraConfig(rank=rank), seed=0)


@pytest.mark.parametrize("name", ["small", "large", "large-steps", "merged"])
def test_builtin_models_read_any_text(name: str) -> None:
    loaded = load(f"builtin:{name}")
    for text in TEXTS:
        ids = render_prompt(loaded, text)
        assert loaded.vocabulary.decode(ids)[0] == text.encode()
    assert not loaded.model.training


def test_the_merged_model_has_tokens_for_numbers_and_another_fingerprint() -> None:
    loaded, small = load("builtin:merged"), load("builtin:small")
    ids = loaded.tokenize("24+3=27=")
    assert [loaded.vocabulary.token_bytes[token] for token in ids] == [b"24", b"+", b"3=", b"27", b"="]
    numbers = [loaded.tokenize(str(number)) for number in range(100)]
    assert {len(ids) for ids in numbers} == {1}
    assert loaded.vocabulary.size < 400
    assert loaded.vocabulary.fingerprint != small.vocabulary.fingerprint
    assert sum(path.stat().st_size for path in (BUILTIN_FOLDER / "merged").iterdir()) < 1_000_000


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
    with pytest.raises(ModelError, match="there are builtin:large, builtin:large-steps, builtin:merged, builtin:small"):
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


def test_a_folder_without_tokenizer_says_so(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, tokenizer__json=None)
    with pytest.raises(ModelError, match=r"the folder has no tokenizer \(tokenizer.json\)"):
        load(str(folder))


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/model", "~/nowhere", "nowhere.gguf"])
def test_a_path_that_is_not_there_is_not_looked_for_on_the_hub(name: str) -> None:
    with pytest.raises(ModelError, match="there is no such folder or GGUF file"):
        load(name)


def test_a_gguf_file_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "model.gguf").write_bytes(b"GGUF, but no model")
    with pytest.raises(ModelError, match=r"model\.gguf: can't be read as GGUF") as caught:
        load(str(tmp_path / "model.gguf"))
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache" / "ftis-node" / "gguf").iterdir())


def test_weights_that_are_missing_are_never_made_up(tmp_path: Path) -> None:
    weights = load_file(BUILTIN_FOLDER / "small" / "model.safetensors")
    name = next(name for name in weights if "layers.0" in name and "mlp" in name)
    del weights[name]
    folder = folder_with(tmp_path)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=rf"1 weights are missing .*the first is {name}"):
        load(str(folder))


def model_folder(path: Path, *, eos: str | None = "</s>", tied: bool = True) -> Path:
    """A random model with a small byte-level BPE tokenizer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=420, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        bos_token_id=None, eos_token_id=None, pad_token_id=None, tie_word_embeddings=tied,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(path)
    tokenizer = bpe()
    tokenizer.eos_token = eos
    tokenizer.save_pretrained(path)
    return path


def test_no_end_token_at_all_says_where_one_would_be_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no end-of-sequence token: neither its tokenizer .* names one"):
        load(str(model_folder(tmp_path, eos=None)))


def test_an_end_token_may_come_from_the_generation_configuration(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, eos=None)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 50]}))
    loaded = load(str(folder))
    assert loaded.vocabulary.eos_token_ids == (0,), "id 50 is text, and ends nothing"


@pytest.mark.parametrize("tied", [True, False])
def test_tied_and_untied_heads(tmp_path: Path, tied: bool) -> None:
    loaded = load(str(model_folder(tmp_path, tied=tied)))
    head, embedding = loaded.model.get_output_embeddings().weight, loaded.model.get_input_embeddings().weight
    assert (head is embedding) == tied


def test_the_end_token_serves_as_padding_where_there_is_none(tmp_path: Path) -> None:
    loaded = load(str(model_folder(tmp_path)))
    assert loaded.tokenizer.pad_token_id is None
    assert loaded.pad_id == loaded.vocabulary.eos_token_ids[0]


def test_a_system_text_with_every_kind_of_template() -> None:
    loaded = load("builtin:small")
    assert bytes(render_prompt(loaded, "1+2=", system="Add.")) == b"Add.\n\nUser: 1+2=\nAssistant:"
    assert bytes(render_prompt(loaded, "1+2=", raw=True)) == b"1+2="
    loaded.tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}:"
    assert bytes(render_prompt(loaded, "1+2=", system="Add.")) == b"<system>Add.<user>1+2=:"
    assert bytes(render_prompt(loaded, "1+2=", raw=True)) == b"1+2="
    loaded.tokenizer.chat_template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}:"
    )
    assert bytes(render_prompt(loaded, "1+2=", system="Add.")) == b"<user>Add.\n\n1+2=:"


ALWAYS_THINKS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>\n{% endif %}"
    "{% if style == 'odd' %}{{ raise_exception('no such style') }}{% endif %}"
)


def with_template(folder: Path, template: str) -> str:
    source = model_folder(folder)
    loaded = load(str(source))
    loaded.tokenizer.chat_template = template
    loaded.tokenizer.save_pretrained(source)
    return str(source)


def test_arguments_of_the_configuration_reach_the_chat_template(tmp_path: Path) -> None:
    name = with_template(tmp_path, ALWAYS_THINKS)
    loaded = load(name)
    assert loaded.vocabulary.decode(render_prompt(loaded, "Hi"))[0].endswith(b"<assistant><think>\n")
    config = ModelConfig(name=name, chat_template_kwargs={"enable_thinking": False})
    loaded = load_model(config, LoraConfig(), seed=0)
    for system in ("", "Be kind."):
        prompt = loaded.vocabulary.decode(render_prompt(loaded, "Hi", system=system))[0]
        assert prompt.endswith(b"<user>Hi<assistant><think></think>")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"enable_thinkin": False}, "has a chat template without 'enable_thinkin'"),
        ({"tokenize": True}, "has a chat template without 'tokenize'"),
        ({"messages": "x"}, "has a chat template without 'messages'"),
        ({"style": "odd"}, "has a chat template that refuses {'style': 'odd'}: no such style"),
    ],
)
def test_arguments_that_the_chat_template_does_not_take(tmp_path: Path, arguments: dict, message: str) -> None:
    config = ModelConfig(name=with_template(tmp_path, ALWAYS_THINKS), chat_template_kwargs=arguments)
    with pytest.raises(ModelError, match=message):
        load_model(config, LoraConfig(), seed=0)
    with pytest.raises(ModelError, match="builtin:small has no chat template"):
        load_model(ModelConfig(name="builtin:small", chat_template_kwargs=arguments), LoraConfig(), seed=0)


def test_an_adapter_folder_is_its_base_with_the_adapter(tmp_path: Path) -> None:
    base = model_folder(tmp_path / "base")
    trained = load(str(base), 4)
    with torch.no_grad():
        for name, parameter in trained.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    trained.model.save_pretrained(tmp_path / "adapter")
    trained.tokenizer.save_pretrained(tmp_path / "adapter")
    again = load(str(tmp_path / "adapter"))
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        expected, actual = trained.model(ids).logits, again.model(ids).logits
    assert torch.allclose(expected, actual, atol=1e-5)
    assert all(parameter.requires_grad for parameter in again.model.parameters())


@pytest.mark.slow
def test_a_real_gguf_file_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SmolLM2-135M: pad is eos, a chat template, a tied head; what is saved loads as any folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    loaded = load(smollm2())
    assert loaded.pad_id in loaded.vocabulary.eos_token_ids
    for text in TEXTS:
        assert loaded.vocabulary.decode(loaded.tokenize(text))[0] == text.encode()
    prompt = loaded.vocabulary.decode(render_prompt(loaded, "Hi", system="Be kind."))[0]
    assert prompt == b"system\nBe kind.\nuser\nHi\nassistant\n"
    (folder,) = (tmp_path / "ftis-node" / "gguf").iterdir()
    changed = (folder / "config.json").stat().st_mtime_ns
    load(smollm2())
    assert (folder / "config.json").stat().st_mtime_ns == changed
    # A checkpoint of it is an ordinary folder again.
    loaded.model.save_pretrained(tmp_path / "checkpoint")
    AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint")


@pytest.mark.slow
def test_a_hub_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    code = (
        "from ftis_node.config import LoraConfig, ModelConfig\n"
        "from ftis_node.models import load_model\n"
        "load_model(ModelConfig(name='somebody/some-model'), LoraConfig(), seed=0)\n"
    )
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment, timeout=240
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ftis_node.errors.ModelError: --model somebody/some-model: can't be loaded: "), done.stderr
    assert "127.0.0.1:9" in last


def test_an_adapter_folder_is_refused_where_vllm_samples(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    loaded = load("builtin:small")
    with pytest.raises(ModelError, match="starts from whole weights"):
        VllmEngine(
            loaded.model, loaded.vocabulary, source=str(tmp_path), revision=None, lora=LoraConfig(), decode_rows=8,
            longest=128, memory_share=0.3,
        )  # fmt: skip
