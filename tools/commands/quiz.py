"""python3 course.py quiz LESSON

The questions of a lesson. Answer with the number of your choice, with several numbers where several are right, or with
the number that is asked for. At the end: your score, and what to read again."""

from __future__ import annotations

import json
import random
import re
import textwrap
from typing import Any

from commands.common import ROOT, Problem, lesson_argument, paint, remember

Question = dict[str, Any]  # as jupyterquiz reads it, with a "section" of the lesson


def main(args: list[str]) -> int:
    lesson = lesson_argument(args, "quiz")
    path = ROOT / "quizzes" / f"{lesson}.json"
    if not path.exists():
        raise Problem(f"{lesson} has no quiz")
    questions: list[Question] = json.loads(path.read_text("utf-8"))
    right = 0
    read_again: list[str] = []
    for number, question in enumerate(questions, 1):
        print(paint("bold", wrap(question["question"], f"{number}. ")))
        if "code" in question:
            print(textwrap.indent(question["code"], "      "))
        try:
            good, feedback = ask(question)
        except EOFError:
            print(f"\nstopped at question {number} of {len(questions)}; the score is not kept")
            return 1
        right += good
        print(paint("green", "   right") if good else paint("red", "   not right"))
        for line in filter(None, feedback):
            print(wrap(line, "   "))
        print()
        if not good and question.get("section") not in (None, *read_again):
            read_again.append(question["section"])
    remember("quiz", lesson, {"right": right, "of": len(questions)})
    print(f"{lesson}: {right} of {len(questions)} right")
    for section in read_again:
        print(f'read again: lessons/{lesson}.md, "{section}"')
    return 0


def ask(question: Question) -> tuple[bool, list[str]]:
    """Put a question until it gets an answer that is one. Returns (right?, what to say about it)."""
    if question["type"] == "numeric":
        return grade_number(question, read_number())
    answers = choices(question)
    for number, answer in enumerate(answers, 1):
        print(wrap(answer.get("answer") or answer.get("code", ""), f"   {number}) "))
    many = question["type"] == "many_choice"
    picked = read_choice(len(answers), many)
    chosen = [answers[n - 1] for n in sorted(picked)]
    feedback = [answer.get("feedback", "") for answer in chosen]
    missed = [answer["answer"] for n, answer in enumerate(answers, 1) if answer["correct"] and n not in picked]
    if many and missed:
        feedback.append(f"You left out: {'; '.join(missed)}")
    return all(answer["correct"] for answer in chosen) and not (many and missed), feedback


def choices(question: Question) -> list[dict[str, Any]]:
    """The answers in an order that does not give the right one away and is the same every time."""
    answers = list(question["answers"])
    random.Random(question["question"]).shuffle(answers)
    return answers


def read_choice(n: int, many: bool) -> set[int]:
    prompt = f"   {'numbers' if many else 'number'}, 1 to {n}: "
    while True:
        picked = {int(word) for word in re.findall(r"\d+", line)} if (line := input(prompt)) else set()
        if picked and picked <= set(range(1, n + 1)) and (many or len(picked) == 1):
            return picked


def read_number() -> float:
    while True:
        try:
            return float(input("   a number: ").replace(",", "."))
        except ValueError:
            continue


def grade_number(question: Question, value: float) -> tuple[bool, list[str]]:
    """Numeric answers are a `value`, a `range` [low, high), or the `default` for everything else."""
    for answer in question["answers"]:
        low, high = answer.get("range") or (answer.get("value"), answer.get("value"))
        if low is not None and (low <= value < high or value == low):
            return answer["correct"], [answer.get("feedback", "")]
    return False, [answer.get("feedback", "") for answer in question["answers"] if answer.get("type") == "default"]


def wrap(text: str, first: str) -> str:
    return textwrap.fill(text, 100, initial_indent=first, subsequent_indent=" " * len(first))
