"""Every study from its simulations to its report, in miniature, and of the paper's size with a small model instead."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.studies.__main__ import STUDIES
from scripts.studies.document import place
from scripts.studies.runs import merged
from scripts.studies.setting import SIZES, miniature, paper

COMMAND = (sys.executable, "-m", "scripts.studies")


def studied(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=500)


@pytest.mark.timeout(1100)  # a minute on a quiet machine, and several where others work
def test_all_studies_in_miniature(tmp_path: Path) -> None:
    done = studied("all", "--size", "miniature", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    for name in STUDIES:
        assert f"## {name}\n" in done.stdout
    assert "nan" not in done.stdout.lower()
    pictures = {path.stem for path in (tmp_path / "miniature").glob("*.png")}
    assert pictures == set(STUDIES) - {"learning_rate", "guided_harm"}

    document = tmp_path / "study.md"
    document.write_text("".join(f"# {n}\n\n<!-- begin {n} -->\n<!-- end {n} -->\n" for n in STUDIES))
    done = studied("all", "--size", "miniature", "--output", str(tmp_path), "--document", str(document))
    assert done.returncode == 0, done.stderr
    text = document.read_text()
    assert text.count("| --- |") >= len(STUDIES)
    assert "![small model" in text
    assert (tmp_path / "study" / "which_part.png").is_file()


def test_a_document_without_a_place_for_it_is_an_error_in_one_line(tmp_path: Path) -> None:
    document = tmp_path / "study.md"
    document.write_text("nothing\n")
    with pytest.raises(Exception, match="has no line <!-- begin harm -->"):
        place(document, "harm", "text")
    assert document.read_text() == "nothing\n"


def test_one_name_means_one_simulation_in_all_studies() -> None:
    for setting in (miniature(), paper()):
        plans = [plan for study in STUDIES.values() for plan in study.simulations(setting)]
        assert len({plan.spec.name for plan in merged(plans)}) < len(plans), "studies have simulations in common"


def test_the_studies_are_of_three_sizes() -> None:
    assert SIZES == ("tiny", "paper", "miniature")


@pytest.fixture
def questions(tmp_path: Path) -> tuple[Path, Path]:
    """Files in the formats of GSM8K and MATH-500 with problems of our own."""
    gsm8k, math500 = tmp_path / "gsm8k.jsonl", tmp_path / "math500.jsonl"
    rows = [{"question": f"What is {n} and {n}?", "answer": f"It is {2 * n}.\n#### {2 * n}"} for n in range(40)]
    gsm8k.write_text("".join(json.dumps(row) + "\n" for row in rows))
    answers = [{"problem": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(4)]
    math500.write_text("".join(json.dumps(row) + "\n" for row in answers))
    return gsm8k, math500


@pytest.mark.parametrize("study", ["which_part", "heterogeneity"])
def test_the_papers_size_loads_and_takes_a_step(tmp_path: Path, questions: tuple[Path, Path], study: str) -> None:
    gsm8k, math500 = questions
    done = studied(
        study, "--size", "paper", "--rounds", "1", "--stand-in", "builtin:small", "--output", str(tmp_path),
        "--data", f"gsm8k={gsm8k}", "--data", f"gsm8k:test={gsm8k}", "--data", f"math500={math500}", "--seeds", "1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = sorted((tmp_path / "paper").glob("*.jsonl"))
    assert results
    for path in results:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert lines[-1]["kind"] == "done"
        assert {line["set"] for line in lines if line["kind"] == "evaluation"} == {"gsm8k", "math500"}
