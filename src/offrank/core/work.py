"""What a run hands out to whoever drives it: a Request for episodes, or a Lesson that takes long."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Sequence
from typing import Any, Self, TypeVar

from offrank.core.arrays import Memory
from offrank.core.rollouts import Request, Rollouts

T = TypeVar("T")


class Lesson(ABC):
    """Training that takes long, and that may be done for many runs at once where there is a device for it."""

    @property
    @abstractmethod
    def batch_key(self) -> Hashable:
        """Lessons of the same class with equal keys may be carried out together."""

    @abstractmethod
    def carry_out(self) -> Memory:
        """Do it here and now: what it changes of the algorithm's memory."""

    @classmethod
    def carry_out_together(cls, lessons: Sequence[Self], owners: Sequence[object], device: str) -> list[Memory]:
        """Do several of equal keys at once.

        Args:
            lessons: to carry out.
            owners: the run that each is of; what is kept on the device from lesson to lesson is found again by it.
            device: by PyTorch's name.
        """
        return [lesson.carry_out() for lesson in lessons]


Work = Request | Lesson
Outcome = Rollouts | Memory  # of the one, and of the other
Asking = Generator[Work, Any, T]  # yields work, is sent its outcome, and returns a T


def answered(asking: Asking[T], run: Callable[[Request], Rollouts]) -> T:
    """What it returns when all of its work is done at once."""
    outcome: Outcome | None = None
    while True:
        try:
            work = next(asking) if outcome is None else asking.send(outcome)
        except StopIteration as done:
            result: T = done.value
            return result
        outcome = work.carry_out() if isinstance(work, Lesson) else run(work)
