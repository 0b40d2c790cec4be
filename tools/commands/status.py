"""python3 course.py status

For each lesson: the exercises that you have written, the tests that were correct at your last check, your quiz score;
and what comes next. A `?` behind the tests says that the file has changed since."""

from __future__ import annotations

from commands.common import Problem, exercises, fingerprint, lessons, paint, progress, section


def main(args: list[str]) -> int:
    known = progress()
    rows, steps, problems = [("lesson", "written", "extensions", "tests correct", "quiz")], [], []
    for lesson in lessons():
        try:
            mine = exercises(lesson)
        except Problem as problem:
            rows.append((lesson, "-", "-", "-", "-"))
            problems.append(str(problem))
            continue
        if not mine:
            continue  # code that later lessons use, nothing to write
        check, quiz = known["check"].get(lesson), known["quiz"].get(lesson)
        stale = bool(check) and check["fingerprint"] != fingerprint(lesson)
        core = [exercise for exercise in mine if not exercise.extension]
        more = [exercise for exercise in mine if exercise.extension]
        rows.append(
            (
                lesson,
                f"{sum(e.written for e in core)} of {len(core)}",
                f"{sum(e.written for e in more)} of {len(more)}" if more else "",
                f"{check['passed']} of {check['total']}{' ?' if stale else ''}" if check else "not checked",
                f"{quiz['right']} of {quiz['of']}" if quiz else "not taken",
            )
        )
        unwritten = next((exercise for exercise in core if not exercise.written), None)
        short = lesson[:3]
        if unwritten:
            steps.append(f"write {unwritten.name} at {unwritten.where} (read {section(lesson, unwritten.name)})")
        elif not check or stale or check["failed"]:
            steps.append(f"python3 course.py check {short}")
        elif not quiz:
            steps.append(f"python3 course.py quiz {short}")
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    print()
    for text in problems:
        print(paint("red", text))
    if steps or not problems:
        print(f"next: {paint('bold', steps[0])}" if steps else paint("green", "Everything here is done."))
    return 0
