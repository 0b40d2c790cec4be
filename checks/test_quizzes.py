"""The quizzes: six questions each, in the shape that jupyterquiz reads, with an explanation for every choice."""

from __future__ import annotations

import json
import re

import pytest
from place import LESSONS, ROOT

lessons = pytest.mark.parametrize("lesson", LESSONS)
KINDS = {"multiple_choice", "many_choice", "numeric"}


def quiz(lesson: str) -> list[dict]:
    return json.loads((ROOT / f"quizzes/{lesson}.json").read_text("utf-8"))


def sections(lesson: str) -> set[str]:
    text = re.sub(r"^```.*?^```\s*$", "", (ROOT / f"lessons/{lesson}.md").read_text("utf-8"), flags=re.M | re.S)
    return set(re.findall(r"^###? (.+?)\s*$", text, re.M))


@lessons
def test_a_quiz_has_six_different_questions(lesson):
    questions = [question["question"] for question in quiz(lesson)]
    assert len(questions) == len(set(questions)) == 6


@lessons
def test_every_question_has_the_shape_that_jupyterquiz_reads(lesson):
    for question in quiz(lesson):
        name = question["question"][:50]
        assert question["type"] in KINDS, name
        correct = [answer for answer in question["answers"] if answer.get("correct")]
        if question["type"] == "multiple_choice":
            assert len(correct) == 1 and len(question["answers"]) >= 3, f"{name}: exactly one answer is right"
        elif question["type"] == "many_choice":
            assert 1 <= len(correct) < len(question["answers"]), f"{name}: some answers are right, not all"
        else:
            assert len(correct) == 1 and isinstance(correct[0]["value"], (int, float)), name
            assert any(answer["type"] == "default" for answer in question["answers"]), f"{name}: any other number"
        for answer in question["answers"]:
            if question["type"] != "numeric":
                assert isinstance(answer["answer"], str) and isinstance(answer["correct"], bool), name


@lessons
def test_every_choice_is_explained(lesson):
    for question in quiz(lesson):
        for answer in question["answers"]:
            assert len(answer.get("feedback", "")) >= 20, f"{question['question'][:50]}: {answer}"


@lessons
def test_every_section_named_exists_and_every_wrong_choice_names_one(lesson):
    known = sections(lesson)
    for question in quiz(lesson):
        assert question["section"] in known, f"{lesson} has no section {question['section']!r}"
        for answer in question["answers"]:
            named = re.findall(r"[Ss]ee \"([^\"]+)\"", answer["feedback"])
            assert answer.get("correct") or named, f"a wrong choice sends nowhere: {answer['feedback']}"
            assert set(named) <= known, f"{lesson} has no section {named}"


@lessons
def test_the_right_choice_has_no_place_of_its_own(lesson):
    """Who always picks the first choice, or the longest, should not pass."""
    choices = [question for question in quiz(lesson) if question["type"] == "multiple_choice"]
    first = [question["answers"][0].get("correct") for question in choices]
    longest = [max(question["answers"], key=lambda answer: len(answer["answer"])).get("correct") for question in choices]
    assert sum(map(bool, first)) < len(choices) and sum(map(bool, longest)) < len(choices)
