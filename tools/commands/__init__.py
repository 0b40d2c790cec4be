"""The commands of course.py, a module each. They use the standard library only."""
