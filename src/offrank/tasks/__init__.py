"""The six locomotion tasks, as data and array functions."""

from offrank.tasks.locomotion import TASKS, Task

__all__ = ["TASKS", "Task"]
