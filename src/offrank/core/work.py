"""The work a run asks its driver to do: a Request for episodes, or a Lesson, which is a long computation."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Sequence
from typing import Any, Self, TypeVar

from offrank.core.arrays import Memory
from offrank.core.errors import OffrankError
from offrank.core.rollouts import Request, Rollouts

T = TypeVar("T")

# Held while a batch of lessons is carried out on a GPU, and while an engine records a CUDA graph there: work on the
# device's default stream, as that of the critics of q-ars, would break the recording.
device_lock = threading.Lock()


class Lesson(ABC):
    """A long training computation, such as the updates of a critic. On a GPU it may be batched over several runs."""

    @property
    @abstractmethod
    def batch_key(self) -> Hashable:
        """Lessons of one class with equal keys can be carried out in one batch."""

    @abstractmethod
    def carry_out(self) -> Memory:
        """Do the computation in this process. Returns the changed entries of the algorithm's memory."""

    def attempt(self) -> Memory | OffrankError:
        """The same, with the error of a lesson that fails as its result."""
        try:
            return self.carry_out()
        except OffrankError as error:
            return error

    @classmethod
    def carry_out_together(
        cls, lessons: Sequence[Self], owners: Sequence[object], device: str
    ) -> list[Memory | OffrankError]:
        """Carry out several lessons with equal keys in one batch. The result of a lesson that fails is its error: the
        others' are not affected.

        Args:
            lessons: the lessons.
            owners: the run of each lesson; buffers kept on the device between lessons are identified by it.
            device: a PyTorch device name.
        """
        return [lesson.attempt() for lesson in lessons]


Work = Request | Lesson
Outcome = Rollouts | Memory  # of a Request, and of a Lesson; an OffrankError in its place if the work failed
Asking = Generator[Work, Any, T]  # yields work, is sent its outcome, and returns a T


def answered(asking: Asking[T], run: Callable[[Request], Rollouts]) -> T:
    """Run a generator to its end and return its result: requests are done by `run`, lessons by `carry_out`."""
    outcome: Outcome | None = None
    while True:
        try:
            work = next(asking) if outcome is None else asking.send(outcome)
        except StopIteration as done:
            result: T = done.value
            return result
        outcome = work.carry_out() if isinstance(work, Lesson) else run(work)
