"""The learner's stop, wherever in its work the signal finds it."""

import subprocess
import sys
import textwrap

BEGIN = """
import os, signal, sys, time
from ftis_node.stop_signal import StopRequested, StopSignal
stop = StopSignal()

def ask():
    os.kill(os.getpid(), signal.SIGTERM)

def work():
    end = time.monotonic() + 20
    while time.monotonic() < end:
        time.sleep(0.01)
    print("never stopped")
"""


def said(program: str) -> tuple[list[str], str]:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.splitlines(), done.stderr


def test_one_stop_however_often_it_is_asked_for() -> None:
    program = """
    try:
        ask()
        work()
    except StopRequested:
        ask()
        print("stopped")
    """
    assert said(program) == (["stopped"], "")


def test_a_protected_block_is_finished_first() -> None:
    program = """
    try:
        with stop.protected():
            with stop.protected():
                ask()
            print("finished")
        work()
    except StopRequested:
        print("stopped")
    """
    assert said(program) == (["finished", "stopped"], "")


def test_a_stop_that_python_swallows_in_a_finaliser_comes_again() -> None:
    program = """
    class Finalised:
        def __del__(self):
            ask()
            time.sleep(0.01)

    try:
        Finalised()
        print("swallowed")
        work()
    except StopRequested:
        print("stopped")
    """
    assert said(program) == (["swallowed", "stopped"], "")


def test_other_errors_in_finalisers_are_told_as_ever() -> None:
    program = """
    class Finalised:
        def __del__(self):
            raise ValueError("of a finaliser")

    Finalised()
    """
    lines, errors = said(program)
    assert lines == []
    assert "ValueError: of a finaliser" in errors
