"""Stop strings: where a completion ends, for its author and for those who receive it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftis_node.tasks.stopping import Stopper, stop_strings, tokens_until_stop

PIECES = st.lists(st.text(alphabet=" \n42aé", max_size=3).map(str.encode), max_size=12)
STOPS = st.lists(st.text(alphabet=" \n42aé", min_size=1, max_size=3), max_size=3)


@pytest.mark.parametrize(
    ("pieces", "stops", "expected"),
    [
        ([b"42", b"\n", b"Q"], ["\n"], 2),
        ([b"42", b"\nQ:", b"1"], ["\n"], 2),
        ([b" ", b"\n", b"42", b"", b"\n"], ["\n"], 5),
        ([b"\n42\n"], ["\n"], 1),
        ([b"4", b"2"], ["\n"], None),
        ([b"4", b"2"], [], None),
        ([b"a", b"<", b"/answer", b">", b"b"], ["</answer>"], 4),
        ([b"a\n", b"\nb"], ["\n\n"], 2),
        ([b"\n", b"\n", b"a"], ["\n\n"], None),
        ([b"ab", b"cd"], ["cd", "bc"], 2),
        ([b"\xc3", b"\xa9"], ["é"], 2),
    ],
)
def test_a_completion_ends_with_the_token_that_completes_a_stop_string(
    pieces: list[bytes], stops: list[str], expected: int | None
) -> None:
    assert tokens_until_stop(b"".join(pieces), list(map(len, pieces)), stops) == expected


@given(PIECES, STOPS)
def test_token_by_token_is_the_same_as_the_whole_text_at_every_step(pieces: list[bytes], stops: list[str]) -> None:
    stopper, found = Stopper(stops), None
    for count, piece in enumerate(pieces, start=1):
        stopper_says = stopper.feed(piece)
        so_far = b"".join(pieces[:count]).lstrip()
        if found is None and any(stop.encode() in so_far for stop in stops):
            found = count
        if found is None:
            assert not stopper_says
        elif found == count:
            assert stopper_says
    assert tokens_until_stop(b"".join(pieces), list(map(len, pieces)), stops) == found


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, ()),
        ({"format": "think"}, ()),
        ({"format": "plain"}, ("\n",)),
        ({"format": "plain", "stop": "Q:"}, ("Q:",)),
        ({"format": "plain", "stop": ()}, ()),
        ({"format": "boxed", "stop": ("a", "b")}, ("a", "b")),
        ({"stop": (1, "", True, "a")}, ("a",)),
        ({"stop": 3.5}, ()),
    ],
)
def test_what_the_parameters_of_a_task_mean(parameters: dict, expected: tuple[str, ...]) -> None:
    assert stop_strings(parameters) == expected
