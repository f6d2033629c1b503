"""The page on a terminal: in place, and gone when it ends."""

import io

from rich.console import Console

from ftis_node.status.rendering import Screen
from ftis_node.status.summary import Answer, health_document

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
DOCUMENT = health_document([Answer("h:1", True, None, None, "does not answer")], asked_at_ms=0, bounds=None)


def test_a_terminal_gets_a_screen_of_its_own_and_back() -> None:
    output = io.StringIO()
    with Screen(Console(file=output, force_terminal=True, width=100)) as screen:
        screen.show(DOCUMENT)
        assert ENTER in output.getvalue()
        assert "does not answer" in output.getvalue()
        assert LEAVE not in output.getvalue()
    assert LEAVE in output.getvalue()


def test_a_file_gets_blocks_with_the_time_above() -> None:
    output = io.StringIO()
    with Screen(Console(file=output, width=100)) as screen:
        screen.show(DOCUMENT)
        screen.show(DOCUMENT)
    assert output.getvalue().count("--- 20") == 2
    assert output.getvalue().count("does not answer") == 2
    assert "\x1b" not in output.getvalue()
