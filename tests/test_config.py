import pytest

from ftis_node.config import FtisConfig, KlEstimator, NodeConfig, load_node_config
from ftis_node.config_file import node_toml
from ftis_node.errors import ConfigError


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.groups_per_step=0", "training.groups_per_step = 0: input should be greater than or equal to 1"),
        ("training.learning_rate=-1e-3", "training.learning_rate = -0.001: input should be greater than 0"),
        ("training.grops_per_step=8", "unknown key 'training.grops_per_step': did you mean 'groups_per_step'?"),
        ("trainig.seed=1", "unknown key 'trainig': did you mean 'training'?"),
        ("ftis.kl_estimator=k1_mean", "kl_threshold must be set for kl_estimator = 'k1_mean'"),
        ("ftis.kl_threshold=nan", "kl_threshold must be a number"),
        ("ftis.kl_threshold=automatic", "ftis.kl_threshold = 'automatic': must be a number or 'auto'"),
        ("ftis.kl_quantile=1", "ftis.kl_quantile = 1: input should be less than 1"),
        ("training.peer_weighting=fair", "training.peer_weighting = 'fair': input should be 'uniform' or 'usefulness'"),
        ("ftis.kl_treshold=1", "unknown key 'ftis.kl_treshold': did you mean 'kl_threshold'?"),
        ("ftis.method=ppo", "ftis.method = 'ppo'"),
        ("lora.rank=true", "lora.rank = True"),
        ("model.device=tpu", "model.device = 'tpu'"),
        ("tracking.wandb=../up", "tracking.wandb = '../up'"),
        ("status.adress=off", "unknown key 'status.adress': did you mean 'address'?"),
        ("seed=1", "must look like section.key=value"),
        ("training.seed", "must look like section.key=value"),
    ],
)
def test_a_mistake_becomes_one_line_with_key_value_and_what_is_allowed(override: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_node_config(None, (override,))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_threshold_default_belongs_to_k3_only() -> None:
    assert FtisConfig().kl_threshold == 50.0
    assert FtisConfig(kl_estimator="k1_sum", kl_threshold=3.0).kl_threshold == 3.0


@pytest.mark.parametrize("estimator", ["k3", "k3_forward", "k1_mean", "k1_sum"])
def test_an_automatic_threshold_fits_every_estimator(estimator: KlEstimator) -> None:
    assert FtisConfig(kl_estimator=estimator, kl_threshold="auto").kl_threshold == "auto"


def test_usefulness_has_to_be_measured() -> None:
    sets = ("training.peer_weighting=usefulness", "training.agreement_every=0")
    with pytest.raises(ConfigError, match=r"training: peer_weighting = 'usefulness' needs .*: agreement_every must be"):
        load_node_config(None, sets)
    assert load_node_config(None, sets[:1]).training.peer_weighting == "usefulness"


def test_vis_takes_one_epoch() -> None:
    with pytest.raises(ConfigError, match="update_epochs must be 1"):
        load_node_config(None, ("ftis.method=f-vis", "training.update_epochs=2"))


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("ftis.truncation=inf", 'lora.targets=["q_proj"]', "training.seed=3", "lora.rank=8"),
        ("ftis.kl_estimator=k1_sum", "ftis.kl_threshold=3.5", 'model.name="with \\"quotes\\""'),
        ('data.files={ gsm8k = "/a b.jsonl", "gsm8k:test" = "/c.jsonl" }',),
        ("ftis.kl_threshold=auto", "ftis.kl_quantile=0.9", "training.peer_weighting=usefulness"),
        ("ftis.kl_threshold=inf",),
        ("status.address=off", "tracking.tensorboard=~/runs", "tracking.wandb=my-swarm"),
        ('network.peers=["a:1", "[::1]:2"]', "training.learning_rate=1e-5"),
    ],
)
def test_written_file_reads_back_the_same(tmp_path, overrides: tuple[str, ...]) -> None:
    config = load_node_config(None, overrides)
    (tmp_path / "node.toml").write_text(node_toml(config))
    assert load_node_config(tmp_path / "node.toml") == config


def test_survives_the_way_to_the_learner() -> None:
    for threshold in ("50", "inf", "auto"):
        sets = ("ftis.truncation=inf", "lora.rank=4", f"ftis.kl_threshold={threshold}")
        config = load_node_config(None, sets)
        assert NodeConfig.model_validate_json(config.model_dump_json()) == config


def test_files_that_cannot_be_read_are_named(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: can't be read"):
        load_node_config(tmp_path / "missing.toml")
    (tmp_path / "bad.toml").write_text("[model\n")
    with pytest.raises(ConfigError, match=r"bad\.toml: not valid TOML"):
        load_node_config(tmp_path / "bad.toml")


def test_own_share_is_rounded_up() -> None:
    assert load_node_config(None, ("training.groups_per_step=10",)).training.own_groups == 3


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("ftis.guidance=own-rate", "ftis.method=f-nois"), "guidance = 'own-rate' needs method 'tis' or 'f-tis'"),
        (("ftis.guidance=own-rate", "ftis.method=vis"), "needs method 'tis' or 'f-tis', not 'vis'"),
        (("ftis.guidance=always",), "ftis.guidance = 'always': input should be 'off' or 'own-rate'"),
        (("ftis.guidance_floor=-0.5",), "ftis.guidance_floor = -0.5: input should be greater than or equal to 0"),
        (("ftis.guidance_floor=inf",), "ftis.guidance_floor = inf: input should be a finite number"),
    ],
)
def test_guidance_that_has_no_meaning_is_one_line(overrides: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_node_config(None, overrides)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
