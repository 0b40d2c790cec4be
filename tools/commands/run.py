"""python3 course.py run LESSON [options of the lesson]

Runs code/<lesson>.py with this Python, or with that of .venv where the lesson needs a package, and installs nothing. What you have not written is borrowed from solutions/."""

from __future__ import annotations

from commands.common import ROOT, hand_over, lesson_argument
from commands.environment import ready_python


def main(args: list[str]) -> int:
    if args and args[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    lesson = lesson_argument(args, "run")
    model = any(arg.partition("=")[0] == "--model" for arg in args)  # its runner is s06's, and needs what s06 needs
    return hand_over(
        [ready_python("s06_paged_attention" if model else lesson), str(ROOT / "code" / f"{lesson}.py"), *args[1:]]
    )
