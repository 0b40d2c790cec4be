"""python3 course.py hint LESSON [EXERCISE]

Without an exercise: lists them. With its number or name: the next hint. There are three for each: a question, the place
in the lesson, the step in words."""

from __future__ import annotations

import textwrap

from commands.common import Problem, exercises, explain_unknown, layers_of, lesson_argument, paint, progress, remember

KINDS = ("question", "place", "step")


def main(args: list[str]) -> int:
    lesson = lesson_argument(args, "hint")
    names = [exercise.name for exercise in exercises(lesson) if layers_of(lesson, exercise.name)]
    if not names:
        raise Problem(f"{lesson} has no hints, for it has no exercises")
    seen: dict[str, int] = progress()["hint"].get(lesson, {})
    if len(args) == 1:
        for number, name in enumerate(names, 1):
            n = seen.get(name, 0)
            print(f"{number:2}  {name:36}{f'next: hint {n + 1}, the {KINDS[n]}' if n < len(KINDS) else 'all hints seen'}")
        print(f"\nThe next hint of an exercise: python3 course.py hint {lesson[:3]} NUMBER")
        return 0
    name = choose(args[1], names)
    layers = layers_of(lesson, name)
    n = min(seen.get(name, 0) + 1, len(layers))
    remember("hint", lesson, {**seen, name: n})
    print(paint("bold", name))
    for number, layer in enumerate(layers[:n], 1):
        print(textwrap.fill(layer, 100, initial_indent=f"{number}. ", subsequent_indent="   "))
    if n < len(layers):
        print(f"\nOne more: python3 course.py hint {lesson[:3]} {args[1]}")
    else:
        print(f"\nThat was the last one. A failing test also names a likely cause: python3 course.py check {lesson[:3]}")
    return 0


def choose(which: str, names: list[str]) -> str:
    """An exercise by number or by name, with or without its class."""
    if which.isdecimal():
        if 1 <= int(which) <= len(names):
            return names[int(which) - 1]
        raise Problem(f"there is no exercise {which}: they go from 1 to {len(names)}")
    for name in names:
        if which in (name, name.rpartition(".")[2]):
            return name
    raise Problem(explain_unknown("exercise", which, names))
