"""Two families in one swarm: SmolLM2-135M with LoRA and a byte-level model learn from each other's samples."""

from pathlib import Path

import pytest

from ftis_node.commands.init import run_toml
from ftis_node.manifest import Parameter
from ftis_node.tasks.registry import TaskSources
from tests.builders import smollm2
from tests.daemons import Daemon

ROUNDS = 3
SECONDS = 400.0
ONE_DIGIT: dict[str, Parameter] = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1, "format": "plain"}


def write_arithmetic(folder: Path) -> Path:
    """Sums of two digits in words: SmolLM2 is right one time in four, the byte-level model hardly ever."""
    text = run_toml("families", "reasoning-gym:chain_sum", ONE_DIGIT, TaskSources())
    text = text.replace("group_size = 8", "group_size = 16").replace(
        "completion_tokens = 1024", "completion_tokens = 6"
    )
    path = folder / "run.toml"
    path.write_text(text.replace("prompt_tokens = 1024", "prompt_tokens = 256"))
    return path


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_smollm2_and_a_byte_level_model_train_on_each_other_s_samples(tmp_path: Path) -> None:
    run = write_arithmetic(tmp_path)
    open_caps = tuple(f"caps.{key}_share=1.0" for key in ("author", "neighbour", "range", "newcomer"))
    byte_level = Daemon(
        tmp_path / "bytes", run=run, env={"XDG_CACHE_HOME": str(tmp_path / "cache")},
        # Many cheap groups, so that some of them have a right answer.
        sets=(*open_caps, "model.name='builtin:large'", "training.groups_per_step=64", "training.min_own_share=0.75",
              "training.collect_timeout=5"),
    )  # fmt: skip
    with byte_level:
        smol = Daemon(
            tmp_path / "smol", peers=(byte_level.address(),), env={"XDG_CACHE_HOME": str(tmp_path / "cache")},
            sets=(*open_caps, f"model.name={smollm2()!r}", "lora.rank=8", "training.groups_per_step=20",
                  "training.min_own_share=0.2", "training.start_peers=1", "training.collect_timeout=120",
                  f"training.max_rounds={ROUNDS}", "training.torch_threads=2"),
        )  # fmt: skip
        with smol:
            end = smol.until(lambda status: status.learner == "finished", "three rounds are done", SECONDS)
            assert end.last_round is not None
            totals = end.last_round.totals
            assert end.last_round.round == ROUNDS
            assert totals.peers.trained > 0, totals
            assert totals.own.trained > 0, totals
            assert totals.peers.excluded.get("foreign_negative", 0) > 0, (
                "the default takes what is better than its group"
            )
            assert "text_differs" not in totals.peers.excluded, totals
            (peer,) = (peer for peer in end.peers if peer.model)
            assert peer.tokenizer_fingerprint != end.tokenizer_fingerprint
            other = byte_level.until(
                lambda status: status.last_round is not None and status.last_round.totals.peers.trained > 0,
                "the byte-level model has trained on SmolLM2's samples",
            )
            for status in (other, end):
                assert not [r for r in status.rejections if r.reason != "held_out"]
