"""Which answers are right, by kind: pairs of a right answer and what a model wrote."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftis_node.tasks.checker import AnswerChecker
from ftis_node.tasks.checks import MathCheck

KINDS = tomllib.loads((Path(__file__).parent.parent / "data" / "answers.toml").read_text())["kind"]
CASES = [
    pytest.param(gold, answer, verdict == "right", id=f"{kind['name']}: {answer!a} is {verdict} for {gold!a}")
    for kind in KINDS
    for verdict in ("right", "wrong")
    for gold, answer in kind[verdict]
]


@pytest.fixture(scope="module")
def checker() -> Iterator[AnswerChecker]:
    checker = AnswerChecker()
    yield checker
    checker.close()


@pytest.mark.parametrize(("gold", "answer", "right"), CASES)
def test_an_answer_and_its_verdict(checker: AnswerChecker, gold: str, answer: str, *, right: bool) -> None:
    assert checker.is_right(MathCheck(expected=gold, answer=answer)) is right
    assert checker.failures == 0, "it took longer than 2 s"


def test_every_kind_has_both() -> None:
    right, wrong = (sum(len(kind[verdict]) for kind in KINDS) for verdict in ("right", "wrong"))
    assert right + wrong >= 300
    assert abs(right - wrong) <= (right + wrong) // 20
    assert all(min(len(kind["right"]), len(kind["wrong"])) >= 5 for kind in KINDS)


@pytest.mark.parametrize(
    "part",
    ["1,", "1 ", "1,000", " ", "{", "(", "**", "\\text{", "\\boxed{", "^(", "\\frac{1}{", "1/", "(1,", "a=", "x<",
     "\\{", "1e9", "the answer is ", ".", "-", "_8", "$", "½", "1\\,", "[1,", "cm ", "0.\\overline{1}",
     "or ", "\u200b", "9^"],
)  # fmt: skip
def test_a_long_answer_costs_little_where_the_right_one_is_a_number(checker: AnswerChecker, part: str) -> None:
    for text in (part * (1000 // len(part)), "1" + part * (999 // len(part)), part * (999 // len(part)) + "1"):
        assert not checker.is_right(MathCheck(expected="42", answer=text))
    assert checker.failures == 0
