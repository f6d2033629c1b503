import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftis_node.config import CeilingsConfig
from ftis_node.errors import ConfigError
from ftis_node.manifest import MAX_MANIFEST_BYTES, Run, check_ceilings, parse_run
from ftis_node.types import PeerId

TASK = f'[[tasks]]\nname = "addition"\nsize = 1000\ndata_hash = "{"0" * 64}"\n'


def run_of(top: str = "", sections: str = "") -> Run:
    return parse_run(f'name = "test"\n{top}\n{TASK}{sections}'.encode(), source="run.toml")


@pytest.mark.parametrize(
    ("top", "sections", "expected"),
    [
        ("group_size = 1", "", "group_size = 1: must be from 2 to 1024"),
        ("group_size = { smallest = 8, largest = 4 }", "", "smallest = 8 must not be above largest = 4"),
        ("", "[sampling]\ntemperature = 0.0", "sampling.temperature = 0.0"),
        ("", "[sampling]\ntop_p = 1.5", "sampling.top_p = 1.5"),
        ("", "[limits]\ncompletion_token = 5", "did you mean 'completion_tokens'?"),
        ("", "[assignment]\nquota = 0", "assignment.quota = 0"),
        ("", TASK, "every task needs a name of its own"),
        ("version = 2", "", "version = 2"),
        ('membership = "closed"', "", "membership = 'closed'"),
    ],
)
def test_a_mistake_becomes_one_line(top: str, sections: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_of(top, sections)
    assert expected in str(caught.value)
    assert str(caught.value).startswith("run.toml: ")
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=300))
def test_hostile_bytes_are_refused_and_nothing_else(data: bytes) -> None:
    with pytest.raises(ConfigError):
        parse_run(data, source="mallory")


def test_a_manifest_that_is_too_large_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(ConfigError, match="at most"):
        parse_run(b"#" * (MAX_MANIFEST_BYTES + 1), source="mallory")


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(ConfigError, match="not valid TOML"):
        parse_run(b"a = " + b"[" * 30_000, source="mallory")


def test_a_fetched_manifest_is_held_to_local_ceilings() -> None:
    run = run_of("group_size = 100", "[limits]\ncompletion_tokens = 5000")
    with pytest.raises(ConfigError, match=r"completion_tokens = 5000 is above .* 4096"):
        check_ceilings(run, CeilingsConfig(completion_tokens=4096, group_size=200))
    with pytest.raises(ConfigError, match="group_size = 100"):
        check_ceilings(run, CeilingsConfig())
    check_ceilings(run, CeilingsConfig(group_size=100))


def test_the_run_id_is_the_hash_of_the_bytes() -> None:
    run = run_of()
    assert run.run_id == hashlib.sha256(run.data).digest()
    assert run.run_id != run_of("# a comment").run_id


@given(st.binary(min_size=32, max_size=32), st.integers(0, 2**40), st.integers(0, 10**6))
def test_assignment_is_a_fixed_function(peer: bytes, window: int, slot: int) -> None:
    run = run_of()
    packed = window.to_bytes(8, "big") + slot.to_bytes(8, "big")
    digest = hashlib.sha256(b"ftis-node/assignment/1" + run.run_id + peer + packed).digest()
    assert run.assigned_index(PeerId(peer), window, slot) == int.from_bytes(digest, "big") % 1000


def test_windows_begin_where_they_say() -> None:
    run = run_of("", "[assignment]\nwindow_seconds = 60")
    begins = run.window_begins_ms(7)
    assert run.window(begins) == 7
    assert run.window(begins - 1) == 6


def test_slots_go_round_the_tasks() -> None:
    run = run_of("", TASK.replace("addition", "other"))
    assert [run.task_for_slot(slot).name for slot in range(4)] == ["addition", "other", "addition", "other"]
