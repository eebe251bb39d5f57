"""The six locomotion tasks, as data and array functions, and LQR."""

from offrank.tasks.locomotion import TASKS, Task
from offrank.tasks.lqr import LQR

NATIVE = (*TASKS, LQR.name)

__all__ = ["LQR", "NATIVE", "TASKS", "Task"]
