"""TensorBoard's files hold every round once, whatever happened to the process that wrote them."""

import functools
import os
import signal
import threading
from pathlib import Path

import pytest

from ftis_node.errors import HomeError
from ftis_node.store.reader import StoreReader
from ftis_node.tracking import __main__ as tracking
from tests.status.nodes import trained_home
from tests.tracking.driving import add_rounds, events, holds, tensorboard_folder, tracked, until


def test_event_files_hold_every_round_once_across_restarts_and_kills(tmp_path: Path) -> None:
    home = trained_home(tmp_path / "home", rounds=220, peers=2)
    folder = tensorboard_folder(home)
    for upto, number in ((220, signal.SIGKILL), (230, signal.SIGKILL), (233, signal.SIGTERM)):
        with StoreReader(home) as store:
            last = store.rounds_after(0, 1000)[-1][0].round
        add_rounds(home, range(last + 1, upto + 1))
        with tracked("tensorboard", "runs", home) as process:
            until(functools.partial(holds, folder, upto), f"round {upto} is written")
            process.send_signal(number)
            code = process.wait(20)
        assert code == (0 if number == signal.SIGTERM else -number)
    steps = events(folder)
    assert [step for step, _ in steps] == list(range(1, 234))
    with StoreReader(home) as store:
        reported = [report.own_reward for report, _ in store.rounds_after(0, 1000)]
    assert [value for _, value in steps] == pytest.approx(reported, abs=1e-6)
    assert len(events(folder, "reward/peer_reward")) == 220, "what isn't known is absent"


def test_a_round_cut_in_half_by_a_crash_is_written_again(tmp_path: Path) -> None:
    home = trained_home(tmp_path / "home", rounds=5)
    folder = tensorboard_folder(home)
    with tracked("tensorboard", "runs", home) as process:
        until(lambda: folder.exists() and len(events(folder)) == 5, "all rounds are written")
        process.kill()
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:-20])
    assert len(events(folder)) == 4
    with tracked("tensorboard", "runs", home) as process:
        until(lambda: len(events(folder)) == 5, "the fifth is written again")
        process.terminate()
        assert process.wait(20) == 0
    assert [step for step, _ in events(folder)] == [1, 2, 3, 4, 5]


def test_a_deleted_folder_is_filled_anew(tmp_path: Path) -> None:
    home = trained_home(tmp_path / "home", rounds=2)
    for _ in range(2):
        stop = threading.Event()
        stop.set()
        tracking.follow("tensorboard", str(tmp_path / "elsewhere"), home, stop)
        (folder,) = (tmp_path / "elsewhere").iterdir()
        assert len(events(folder)) == 2
        for file in folder.iterdir():
            file.unlink()


def test_a_folder_that_can_not_be_made_is_one_line(tmp_path: Path) -> None:
    home = trained_home(tmp_path / "home", rounds=1)
    os.mkfifo(home / "pipe")
    with pytest.raises(HomeError, match=r"tracking\.tensorboard = 'pipe': can't be written: ") as caught:
        tracking.follow("tensorboard", "pipe", home, threading.Event())
    assert "\n" not in str(caught.value)


def test_a_tracker_ends_with_the_network_half(tmp_path: Path) -> None:
    home = trained_home(tmp_path / "home", rounds=1)
    with tracked("tensorboard", "runs", home) as process:
        until(tensorboard_folder(home).exists, "it has begun")
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == tracking.EXIT_ORPHANED
