"""The documentation as tests read it: its blocks, the commands in them, and the messages that it quotes."""

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docker").glob("*.md")])

_FENCE = re.compile(r"^```(?P<info>.*)$")
_PROMPT = re.compile(r"^\S*\$ ")
_OPERATORS = set("();<>|&")
_KEYWORDS = {"until", "while", "if", "do", "then", "else", "!", "exec"}
_RUNNERS = {"sudo", "runuser", "timeout", "docker"}
_GAP = "…"
_DIRECTIVE = re.compile(r"%[-+]?\d*(?:\.\d+)?[sdrf]|\{(?::[^{}]*)?\}")


@dataclass(frozen=True)
class Block:
    """A code block; ``info`` is what stands behind the fence, empty for an indented one."""

    page: Path
    line: int
    info: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text().splitlines()
    number = 0
    while number < len(lines):
        first = number
        if (fence := _FENCE.match(lines[number])) is not None:
            number += 1
            while lines[number] != "```":
                number += 1
            yield Block(page, first + 2, fence["info"], "\n".join(lines[first + 1 : number]) + "\n")
        elif lines[number].startswith("    ") and (number == 0 or not lines[number - 1].strip()):
            while number < len(lines) and (lines[number].startswith("    ") or not lines[number].strip()):
                number += 1
            yield Block(page, first + 1, "", "\n".join(line[4:] for line in lines[first:number]) + "\n")
            continue
        number += 1


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def commands(block: Block) -> Iterator[list[str]]:
    """The arguments of every ``ftis-node`` command in a block, in whatever shell line it stands.

    In a ``console`` block only lines behind a prompt are commands; what else it holds is output.
    """
    for line in block.text.replace("\\\n", " ").splitlines():
        prompt = _PROMPT.match(line.strip())
        if block.info not in ("", "sh", "sh run", "console") or (block.info == "console" and not prompt):
            continue
        text = line.strip()[prompt.end() if prompt else 0 :]
        if "ftis-node " in text and not text.startswith("#"):
            yield from _ours(text)


def _ours(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    segment: list[str] = []
    for token in [*lexer, ";"]:
        if set(token) <= _OPERATORS:
            if token[0] in "<>" and segment and segment[-1].isdigit():
                segment.pop()  # the number of the stream that is redirected
            yield from _arguments(segment)
            segment = []
        else:
            segment.append(token)


def _arguments(segment: list[str]) -> Iterator[list[str]]:
    while segment and (segment[0] in _KEYWORDS or re.fullmatch(r"[A-Z_]+=.*", segment[0])):
        segment = segment[1:]
    ours = [index for index, word in enumerate(segment) if word.rpartition("/")[2] == "ftis-node"]
    if ours and (ours[0] == 0 or segment[0] in _RUNNERS):
        yield segment[(0 if ours[0] == 0 else ours[-1]) + 1 :]


def quotes(page: Path) -> Iterator[str]:
    """Messages of the program: block quotes, one a line (a backslash breaks it), with ``…`` for what varies."""
    for line in prose(page).splitlines():
        if line.startswith("> "):
            yield line.removeprefix("> ").removesuffix("\\").strip()


def templates() -> set[str]:
    """Every text in the sources that can be printed, with ``…`` for what is filled in; docstrings are left out."""
    found: set[str] = set()
    for file in (ROOT / "ftis_node").rglob("*.py"):
        tree = ast.parse(file.read_text())
        silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        found.update(_template(node) for node in ast.walk(tree) if id(node) not in silent and _is_text(node))
    return found


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _template(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        parts = [str(part.value) if isinstance(part, ast.Constant) else _GAP for part in node.values]
    else:
        assert isinstance(node, ast.Constant)
        parts = [str(node.value)]
    return one_gap(_DIRECTIVE.sub(_GAP, "".join(parts)))


def one_gap(text: str) -> str:
    """Gaps without anything between them are one."""
    return re.sub(f"{_GAP}+", _GAP, text)


def fixed_part(quote: str) -> str:
    return quote.replace(_GAP, "").strip()
