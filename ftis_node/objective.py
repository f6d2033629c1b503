"""The settings of the objective: which method, with which bounds. Computed with in ``training.ftis``."""

from __future__ import annotations

import math
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator
from pydantic.dataclasses import dataclass

Method = Literal["nois", "vis", "tis", "f-nois", "f-vis", "f-tis"]
KlEstimator = Literal["k3", "k3_forward", "k1_mean", "k1_sum"]
AdvantageNorm = Literal["std", "none"]
Guidance = Literal["off", "own-rate"]

DEFAULT_K3_THRESHOLD = 50.0


@dataclass(frozen=True, config=ConfigDict(extra="forbid", ser_json_inf_nan="constants"))
class FtisConfig:
    """The objective (F-TIS, arXiv 2605.22537).

    ``kl_threshold`` is the largest divergence at which a sequence with a negative advantage still
    contributes. Its default, 50, is calibrated for the ``k3`` estimator only: any other estimator
    needs a number of its own, or ``"auto"``: then every step's number comes from the divergences of
    peers' samples before it (``training.threshold``). ``truncation`` is the upper bound C of the
    importance weight (``inf`` switches truncation off). With ``guidance`` a peer's completion that is better than own
    ones usually are gets an advantage for that, and its weight a lower bound (``training.guidance``).
    """

    method: Method = Field(
        default="f-tis", description="nois, vis or tis; with f- in front the divergence filter is on"
    )
    truncation: float = Field(default=2.0, gt=0, description="upper bound C of the importance weight; inf for none")
    kl_threshold: float | Literal["auto"] | None = Field(
        default=None,
        description="g of the filter; 50 for k3, no default for the others; auto: from peers' recent divergences",
    )
    kl_quantile: float = Field(
        default=0.75, gt=0, lt=1, description="with kl_threshold = auto: the quantile of an author's divergences"
    )
    kl_estimator: KlEstimator = Field(default="k3", description="k3, k3_forward, k1_mean or k1_sum")
    clip_epsilon: float = Field(default=0.2, gt=0, lt=1, description="clip range of the policy ratio")
    guidance: Guidance = Field(
        default="off", description="own-rate: peers' right answers teach where own ones are mostly wrong; off"
    )
    guidance_floor: float = Field(
        default=1.0, ge=0, allow_inf_nan=False,
        description="with guidance: least weight of a peer's right answer where own ones are always wrong",
    )  # fmt: skip

    @field_validator("kl_threshold", mode="before")
    @classmethod
    def _number_or_auto(cls, value: Any) -> Any:
        if value is not None and value != "auto" and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise ValueError("must be a number or 'auto'")
        return value

    @model_validator(mode="after")
    def _threshold_fits_estimator(self) -> Self:
        if self.kl_threshold is None:
            if self.kl_estimator != "k3":
                raise ValueError(
                    f"kl_threshold must be set for kl_estimator = {self.kl_estimator!r}:"
                    " the default of 50 is calibrated for 'k3' only"
                )
            object.__setattr__(self, "kl_threshold", DEFAULT_K3_THRESHOLD)
        elif self.kl_threshold != "auto" and math.isnan(self.kl_threshold):
            raise ValueError("kl_threshold must be a number, not nan")
        return self

    @model_validator(mode="after")
    def _guidance_has_weights_to_bound(self) -> Self:
        if self.guidance != "off" and not self.weighs:
            raise ValueError(
                f"guidance = {self.guidance!r} needs method 'tis' or 'f-tis', not {self.method!r}: others don't weigh"
                " tokens by their importance, or take it for the ratio"
            )
        return self

    @property
    def weighs(self) -> bool:
        """Whether the method has truncated importance weights."""
        return self.method.endswith("tis")

    @property
    def filters(self) -> bool:
        """Whether the method has the filter (``f-`` in front)."""
        return self.method.startswith("f-")
