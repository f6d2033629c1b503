"""Parts of a Markdown file that a program writes, between two comments with their name."""

from __future__ import annotations

import re
from pathlib import Path

from ftis_node.errors import ConfigError


def place(document: Path, name: str, text: str) -> None:
    """Raises ConfigError when the document has no place of that name."""
    before = document.read_text()
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(before):
        raise ConfigError(f"{document}: has no line {begin} with a line {end} behind it")
    document.write_text(pattern.sub(lambda _: f"{begin}\n\n{text.strip()}\n\n{end}", before, count=1))
