"""Whole daemons on loopback: they train on each other's samples, stop in order, and survive being killed."""

import os
import random
import shutil
import signal
import sqlite3
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ftis_node.identity import load_or_create_identity
from ftis_node.store.schema import STORE_FILE
from tests.daemons import Daemon, learners_of, wait_for_unlocked, write_run

QUICK = ("training.groups_per_step=6", "training.min_own_share=0.33", "training.learning_rate=3e-4",
         "caps.range_share=1.0", "caps.newcomer_groups=0", "training.collect_timeout=30")  # fmt: skip

# In which every group takes a place: so each node learns from all others in its only one.
ONE_ROUND = (*QUICK, "training.max_rounds=1", "training.places='any'", "training.agreement_every=0")


def query(home: Path, sql: str) -> list[tuple]:
    with sqlite3.connect(f"file:{home / STORE_FILE}?mode=ro", uri=True) as database:
        return database.execute(sql).fetchall()


def edit(home: Path, *statements: str) -> None:
    database = sqlite3.connect(home / STORE_FILE)
    with database:
        for statement in statements:
            database.execute(statement)
    database.close()


def newest_checkpoint(home: Path) -> int:
    rounds = [int(path.name.removeprefix("round-")) for path in (home / "checkpoints").glob("round-*")]
    return max(rounds, default=0)


def weights(home: Path) -> torch.Tensor:
    folder = home / "checkpoints" / f"round-{newest_checkpoint(home):08d}" / "model"
    tensors = load_file(folder / "model.safetensors")
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


def train_again(original: Path, home: Path, *statements: str) -> torch.Tensor:
    """The same node, same seed, same own groups: repeats its rounds from its first weights."""
    shutil.copytree(original, home)
    shutil.rmtree(home / "checkpoints")
    edit(home, *statements)
    with Daemon(home, sets=(*ONE_ROUND, "training.seed=1", "network.peers=[]")) as node:
        node.finished()
        assert node.terminate() == 0
    return weights(home)


def test_three_daemons_learn_from_each_other(tmp_path: Path) -> None:
    """Peers' samples change the weights: with its inbox emptied the same node ends elsewhere."""
    run = write_run(tmp_path)
    sets = (*ONE_ROUND, "training.start_peers=2")
    with Daemon(tmp_path / "a", run=run, sets=(*sets, "training.seed=1")) as a:
        seed = (a.address(),)
        # The second and the third have no manifest: they get it from the first. They don't dial each
        # other: what one publishes reaches the other through the first.
        with (
            Daemon(tmp_path / "b", peers=seed, sets=(*sets, "model.name='builtin:large'")) as b,
            Daemon(tmp_path / "c", peers=seed, sets=(*sets, "lora.rank=4")) as c,
        ):
            for node in (a, b, c):
                status = node.finished()
                assert status.last_round is not None
                assert (status.last_round.own_groups, status.last_round.peer_groups) == (2, 4)
                assert len(status.last_round.used_authors) == 2
                assert not status.rejections
            for node in (a, b, c):
                assert node.terminate() == 0
    together = weights(tmp_path / "a")
    repeated = train_again(tmp_path / "a", tmp_path / "again")
    emptied = train_again(
        tmp_path / "a", tmp_path / "emptied", "DELETE FROM received", "DELETE FROM inbox_groups", "DELETE FROM seen"
    )
    assert torch.equal(together, repeated)
    assert not torch.equal(together, emptied)


def test_two_daemons_measure_whether_they_help_each_other(tmp_path: Path) -> None:
    run = write_run(tmp_path, group_size=8)
    sets = ("training.groups_per_step=12", "training.agreement_every=1", "training.max_rounds=6", "training.seed=1",
            "training.start_peers=1", "training.min_own_share=0.5", "caps.newcomer_share=1.0")  # fmt: skip
    by_use = ("model.name='builtin:large'", "training.peer_weighting='usefulness'", "ftis.kl_threshold='auto'")
    with (
        Daemon(tmp_path / "a", run=run, sets=sets) as a,
        Daemon(tmp_path / "b", peers=(a.address(),), sets=(*sets, *by_use)) as b,
    ):
        for node in (a, b):
            status = node.finished()
            (peer,) = status.peers
            assert (peer.weight is not None) is (node is b)
            assert peer.trained > 0
            assert peer.sequences >= peer.trained + peer.filtered + peer.zero_advantage
            for agreement in (peer.agreement, status.own_agreement, status.peers_agreement):
                assert agreement.measured >= 4
                assert agreement.low is not None
            assert status.last_round is not None
            assert status.last_round.totals.seconds.measuring > 0
            assert status.last_round.kl_threshold is not None
            assert (status.last_round.kl_threshold == 50.0) is (node is a)


def test_sigterm_restart_and_a_second_daemon(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    home = tmp_path / "node"
    with Daemon(home, run=run, sets=QUICK) as node:
        node.after_round(2)
        with Daemon(home, sets=QUICK) as second:
            assert second.process.wait(30) == 1
        assert f"another node (process {node.process.pid}) runs on it" in node.log
        assert node.process.poll() is None
        assert node.terminate() == 0
    before = query(home, "SELECT max(round) FROM rounds")[0][0]
    assert newest_checkpoint(home) == before
    identity = load_or_create_identity(home).peer_id
    with Daemon(home, sets=QUICK) as node:  # nothing but --home: the same run, the same model
        published = query(home, "SELECT count(*) FROM published")[0][0]
        status = node.until(lambda s: s.published_batches > published, "something new is published")
        assert status.peer_id == identity.hex()
        assert f"resumed after round {before}" in node.log
        assert node.terminate() == 0
    epochs = query(home, "SELECT epoch, count(*), count(DISTINCT sequence) FROM published GROUP BY epoch")
    assert len(epochs) == 2
    assert all(batches == distinct for _, batches, distinct in epochs)


def test_a_learner_that_is_killed_is_restarted_from_its_checkpoint(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    home = tmp_path / "node"
    with Daemon(home, run=run, sets=QUICK) as node:
        node.after_round(2)
        (learner,) = learners_of(home)
        os.kill(learner, signal.SIGKILL)
        status = node.until(lambda s: s.learner.startswith("died"), "the death is noticed")
        assert "killed by signal SIGKILL" in status.learner
        reached = newest_checkpoint(home)
        node.after_round(reached + 1)
        assert node.terminate() == 0


def test_a_batch_that_crashes_the_learner_twice_is_quarantined(tmp_path: Path) -> None:
    """Mallory's batch makes the learner die while it is checked; the node goes on without it."""
    run = write_run(tmp_path)
    fault = tmp_path / "fault"
    fault.mkdir()
    (fault / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'ftis_node.commands.learner' in ' '.join(sys.orig_argv):\n"
        "    from ftis_node.inbox import content\n"
        "    honest = content.check_group\n"
        "    def check_group(group, payload, **rest):\n"
        "        if payload.model == 'builtin:large':\n"
        "            os._exit(9)\n"
        "        return honest(group, payload, **rest)\n"
        "    content.check_group = check_group\n"
    )
    sets = (*QUICK, "training.start_peers=1")
    with Daemon(tmp_path / "victim", run=run, sets=sets, env={"PYTHONPATH": str(fault)}) as victim:
        one_batch = ("training.groups_per_step=2", "training.min_own_share=1.0", "training.max_rounds=1",
                     "training.places='any'")  # fmt: skip
        mallory_sets = (*QUICK, "model.name='builtin:large'", *one_batch)
        with Daemon(tmp_path / "mallory", peers=(victim.address(),), sets=mallory_sets) as mallory:
            mallory.finished()
            status = victim.until(lambda s: bool(s.inbox.get("quarantined")), "the batch is quarantined")
            status = victim.after_round(status.round + 2)
            assert status.inbox["quarantined"] == 2
            assert victim.log.count("the learner died (exit code 9)") == 2
            assert mallory.terminate() == 0
        assert victim.terminate() == 0


def snapshot(home: Path) -> tuple[int, dict[tuple[bytes, int], int], set[bytes], set[int]]:
    """Checkpoint round, groups trained up to it, batches accepted, outbox entries."""
    done = newest_checkpoint(home)
    used = {
        (bytes(name), int(index)): int(used_round)
        for name, index, used_round in query(
            home,
            f"SELECT name, group_index, used_round FROM inbox_groups WHERE state = 'used' AND used_round <= {done}",
        )
    }
    accepted = {bytes(row[0]) for row in query(home, "SELECT name FROM received")}
    outbox = {int(row[0]) for row in query(home, "SELECT id FROM outbox")}
    return done, used, accepted, outbox


def kill_and_resume(tmp_path: Path, *, times: int, seed: int) -> None:
    run = write_run(tmp_path)
    home = tmp_path / "victim"
    rng = random.Random(seed)
    sets = (*QUICK, "training.collect_timeout=1")
    with Daemon(tmp_path / "peer", run=run, sets=(*QUICK, "training.collect_timeout=1")) as peer:
        address = peer.address()
        peer.after_round(1)
        before: tuple[int, dict[tuple[bytes, int], int], set[bytes], set[int]] = (0, {}, set(), set())
        for _ in range(times):
            with Daemon(home, peers=(address,), sets=sets) as victim:
                victim.after_round(before[0] + 1)
                time.sleep(rng.random())
                victim.kill()
            wait_for_unlocked(home)
            now = snapshot(home)
            assert now[0] >= before[0]
            assert before[1].items() <= now[1].items(), "what a checkpoint had learned was undone or used again"
            assert before[2] <= now[2], "an acknowledged batch was lost"
            assert before[3] <= now[3], "a generated group was lost"
            before = now
        with Daemon(home, peers=(address,), sets=sets) as victim:
            victim.after_round(before[0] + 2)
            victim.until(
                lambda _: (
                    query(
                        home,
                        "SELECT count(*) FROM outbox WHERE NOT kept AND id NOT IN (SELECT outbox_id FROM published)",
                    )
                    == [(0,)]
                ),
                "all of the outbox is published",
            )
            assert victim.terminate() == 0
        assert before[1], "no sample of the peer was ever trained on: the test shows nothing"
        signed = query(home, "SELECT count(*), count(DISTINCT epoch || '/' || sequence) FROM published")
        assert signed[0][0] == signed[0][1]
        identity = load_or_create_identity(home).peer_id.hex()
        # The peer has seen all of it and found no two batches with one number, no slot used twice.
        status = peer.status()
        refused = [r for r in status.rejections if r.peer_id == identity and r.reason != "held_out"]
        assert not refused, status.rejections
        assert not [p for p in status.peers if p.banned_until_ms]
        assert peer.terminate() == 0


def test_sigkill_and_resume(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, times=3, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sigkill_at_twenty_random_moments_and_resume(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, times=20, seed=2)
