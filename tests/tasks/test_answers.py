"""Which answers count: the form, the mathematics, and what a hostile completion can cost."""

import os
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftis_node.tasks.answer_format import LONGEST_ANSWER, LONGEST_COMPLETION, AnswerFormat
from ftis_node.tasks.checker import AnswerChecker
from ftis_node.tasks.checker_worker import CHECK_SECONDS
from ftis_node.tasks.checks import MathCheck

THINK, PLAIN, BOXED = AnswerFormat("think"), AnswerFormat("plain"), AnswerFormat("boxed")


@pytest.fixture(scope="module")
def checker():
    checker = AnswerChecker()
    yield checker
    checker.close()


@pytest.mark.parametrize(
    "text",
    [
        "<think>6 times 7</think><answer>42</answer>",
        "<think>\n6 times 7\n</think>\n\n<answer> 42 </answer>\n",
        "  <think></think><answer>42</answer>",
        # Behind a prompt that ends with <think>.
        "6 times 7</think><answer>42</answer>",
        "\n</think>\n\n<answer>42</answer>",
    ],
)
def test_the_form_of_the_paper(text: str) -> None:
    assert THINK.answer_of(text) == "42"


@pytest.mark.parametrize(
    "text",
    [
        "42",
        "<answer>42</answer>",
        "a</think> so <answer>42</answer>",
        "a</think>b</think><answer>42</answer>",
        "a <think> b</think><answer>42</answer>",
        "<think>a</think>",
        "<think>a</think><answer></answer>",
        "Sure! <think>a</think><answer>42</answer>",
        "<think>a</think> so <answer>42</answer>",
        "<think>a</think><answer>42</answer> I hope",
        "<answer>42</answer><think>a</think>",
        "<think>a</think><think>b</think><answer>42</answer>",
        "<think>a</think><answer>41</answer><answer>42</answer>",
        "<think><answer>42</answer></think>",
        "<think>a</think><answer>42",
        "<THINK>a</THINK><ANSWER>42</ANSWER>",
        "<think>" + "a" * LONGEST_COMPLETION + "</think><answer>42</answer>",
        "<think>a</think><answer>" + "4" * (LONGEST_ANSWER + 1) + "</answer>",
    ],
)
def test_any_other_form_has_no_answer(text: str) -> None:
    assert THINK.answer_of(text) is None


@pytest.mark.parametrize(("text", "answer"), [(" 42\nQ: next", "42"), ("42", "42"), ("", None), (" \n ", None)])
def test_the_first_line_of_a_plain_completion(text: str, answer: str | None) -> None:
    assert PLAIN.answer_of(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"So it is \boxed{42}.", "42"),
        (r"First \boxed{41}, no: $\boxed{ 42 }$", "42"),
        (r"\boxed{\frac{1}{2}} and more", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed {42}", "42"),
        (r"\boxed{\boxed{42}}", "42"),
        ("42", None),
        (r"\boxed{}", None),
        (r"\boxed{42", None),
        (r"\boxed{41} \boxed{42", None),
        (r"\boxed 42", None),
        (r"\boxed", None),
        (r"\boxed{" * 10_000, None),
        (r"\boxed{" + "4" * (LONGEST_ANSWER + 1) + "}", None),
    ],
)
def test_the_last_box_of_a_text(text: str, answer: str | None) -> None:
    assert BOXED.answer_of(text) == answer


def test_each_format_has_its_system_prompt_and_another_may_take_its_place() -> None:
    assert "<answer>" in THINK.item("1+1?", "2", 0).system
    assert BOXED.item("1+1?", "2", 0).system == ""
    for form in (AnswerFormat("think", system="Be brief."), AnswerFormat("boxed", system="Be brief.")):
        assert form.item("1+1?", "2", 0).system == "Be brief."
    assert AnswerFormat("think", system="").item("1+1?", "2", 0).system == ""


@given(st.text(alphabet="<>/thinkaswer 42\n\\boxd{}", max_size=200))
def test_any_text_is_read(text: str) -> None:
    for form in (THINK, PLAIN, BOXED):
        answer = form.answer_of(text)
        assert answer is None or answer in text


@pytest.mark.parametrize(
    ("expected", "answer"),
    [
        ("42", "42."), ("42", "$42$"), ("1234", "1,234"), ("0.5", r"\frac{1}{2}"), ("1/2", "0.5"),
        ("42", r"\boxed{42}"),
        (r"2k+2", "2(k+1)"), (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})"), ("-3", "−3"), ("50", "50%"),
    ],
)  # fmt: skip
def test_equal_expressions(checker: AnswerChecker, expected: str, answer: str) -> None:
    assert checker.is_right(MathCheck(expected=expected, answer=answer))


@pytest.mark.parametrize(
    "answer",
    [
        "41", "not 41, 42", "41 or 42", "definitely not 42", "42 or so", "42 42", "{41, 42}", r"41} \boxed{42",
        "I think it is 42", "forty-two", "42 43", "}{", "\\", "\\frac{", "^42", "\0", "42" * 200, "🎉", "((((((((((",
    ],
)  # fmt: skip
def test_wrong_and_rambling_answers(checker: AnswerChecker, answer: str) -> None:
    """What names the right number among others, or around it, is not the right answer."""
    assert not checker.is_right(MathCheck(expected="42", answer=answer))


@pytest.mark.parametrize(
    "attack",
    [
        "9^{9^{9^{9^{9}}}}",
        "((9^9)^9)^{99999999}",
        r"\int_0^1 x^{x^{x^{x}}} dx",
        "(" * 400 + "1" + ")" * 400,
        "1000000000!!",
    ],
)
def test_mallory_s_expressions_cost_one_sample_each(checker: AnswerChecker, attack: str) -> None:
    started = time.monotonic()
    assert not checker.is_right(MathCheck(expected="42", answer=attack))
    # Timing decides nothing here but that there is a bound: the worker ends itself after CHECK_SECONDS.
    assert time.monotonic() - started < CHECK_SECONDS + 5
    assert checker.is_right(MathCheck(expected="42", answer="42.0"))


def test_a_worker_that_is_killed_is_replaced() -> None:
    checker = AnswerChecker()
    assert checker.is_right(MathCheck(expected="1/2", answer="0.5"))
    assert checker._process is not None
    os.killpg(checker._process.pid, 9)
    assert not checker.is_right(MathCheck(expected="1/2", answer="0.5"))
    assert checker.failures == 1
    assert checker.is_right(MathCheck(expected="1/2", answer="0.5"))
    checker.close()


def test_the_worker_ends_with_its_owner() -> None:
    code = (
        "from ftis_node.tasks.checker import AnswerChecker\n"
        "from ftis_node.tasks.checks import MathCheck\n"
        "checker = AnswerChecker()\n"
        "checker.is_right(MathCheck(expected='1/2', answer='0.5'))\n"
        "print(checker._process.pid, flush=True)\n"
        "import os\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    worker = int(done.stdout)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(worker, 0)
            with open(f"/proc/{worker}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return
        except (ProcessLookupError, FileNotFoundError):
            return
        time.sleep(0.05)
    pytest.fail("10 s after its owner was killed the worker is still there")
