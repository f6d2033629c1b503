"""Packages, homes and disks, on real files."""

from importlib import metadata
from pathlib import Path

import pytest
import torch

from ftis_node.config import NodeConfig, RolloutConfig, TrainingConfig
from ftis_node.doctor.findings import Level
from ftis_node.doctor.machine import (
    DiskNeeds,
    disk_beside_daemon,
    disk_space,
    extras_of,
    home_folder,
    judge_disk,
    package_versions,
    private_files,
    requirements,
)
from ftis_node.errors import HomeError
from ftis_node.identity import KEY_FILE, load_or_create_identity
from ftis_node.store import schema

GIB = 2**30


def test_packages_out_of_their_range_or_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert package_versions(NodeConfig()).level is Level.OK
    wanted = ["torch>=99", "no-such-package>=1", "numpy", "gone; platform_system == 'Plan9'", "extra; extra == 'gym'"]
    monkeypatch.setattr(metadata, "requires", lambda name: wanted)
    found = package_versions(NodeConfig())
    assert found.level is Level.FAILURE
    assert f"torch is {torch.__version__} (needs >=99); no-such-package is not installed (needs >=1)" in found.found
    assert found.advice == "pip install -c constraints.txt 'torch>=99' 'no-such-package>=1'"


def test_extras_count_where_the_configuration_needs_them() -> None:
    config = NodeConfig(rollout=RolloutConfig(engine="vllm"), training=TrainingConfig(optimizer="adam8bit"))
    assert extras_of(NodeConfig()) == set()
    assert extras_of(config) == {"vllm", "quantized"}
    names = [r.name for r in requirements(["a", "vllm>=1; extra == 'vllm'", "b; extra == 'gym'"], extras_of(config))]
    assert names == ["a", "vllm"]


def test_homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "doesn't exist yet" in home_folder(tmp_path / "new" / "home").found
    (tmp_path / "file").touch()
    assert home_folder(tmp_path / "file" / "home").level is Level.FAILURE
    tmp_path.chmod(0o777)
    wide = home_folder(tmp_path)
    assert (wide.level, wide.advice) == (Level.FAILURE, f"chmod 700 {tmp_path}")
    tmp_path.chmod(0o700)
    assert home_folder(tmp_path).level is Level.OK
    kind = schema._filesystem_of(tmp_path.resolve())
    monkeypatch.setattr(schema, "NETWORK_FILESYSTEMS", frozenset({kind}))
    with pytest.raises(HomeError, match=f"lies on a network filesystem \\({kind}\\)"):
        home_folder(tmp_path)


def test_a_certificate_that_others_can_read_is_a_warning_and_a_key_a_failure(tmp_path: Path) -> None:
    load_or_create_identity(tmp_path)
    assert private_files(tmp_path).level is Level.OK
    (tmp_path / "tls.pem").touch(0o644)
    assert private_files(tmp_path).level is Level.WARNING
    (tmp_path / KEY_FILE).chmod(0o604)
    found = private_files(tmp_path)
    assert found.level is Level.FAILURE
    assert found.advice == f"chmod 600 {tmp_path / KEY_FILE} {tmp_path / 'tls.pem'}"


def test_disk() -> None:
    def level(free: int) -> Level:
        return judge_disk(free, checkpoints=3 * GIB, store=2 * GIB, checkpoint=GIB).level

    assert [level(5 * GIB), level(5 * GIB - 1), level(3 * GIB - 1)] == [Level.OK, Level.WARNING, Level.FAILURE]


def test_what_is_on_the_disk_already_needs_no_room(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "round-00000001" / "model"
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(bytes(3 * 2**20))
    (tmp_path / "store.sqlite3").write_bytes(bytes(2**20))
    needs = DiskNeeds(checkpoint=2 * 2**20, copies=3, store=4 * 2**20)
    assert "will take 3 MiB more (2 MiB each), received batches up to 3 MiB more" in disk_space(tmp_path, needs).found
    beside = disk_beside_daemon(tmp_path, 4 * 2**20).found
    assert "will take 3 MiB more (3 MiB each), received batches up to 3 MiB more" in beside
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 2**20}))
        assert disk_space(tmp_path, needs).level is Level.FAILURE
