"""An engine runs episodes, given policies, an environment and seeds. It does not depend on algorithms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from offrank.core.errors import EpisodeError
from offrank.core.rollouts import Episode, Request, Rollouts
from offrank.core.space import Space


class Engine(ABC):
    """Runs several requests concurrently. The result of an episode does not depend on what runs at the same time."""

    name: str
    space: Space
    device: str | None = None  # the GPU it runs on, if any
    threads = 0  # of this process that it may use; 0: one per CPU
    interruptible = False  # True while an environment's code, which may hang, runs in this process

    def __init__(self) -> None:
        self._tickets = 0
        self._open: dict[int, tuple[Request, list[Episode | None], int]] = {}  # ticket: request, outcomes, missing
        self._done: list[tuple[int, Rollouts | EpisodeError]] = []

    def submit(self, request: Request) -> int:
        """Queue the episodes of a request. Returns a ticket immediately."""
        ticket = self._tickets
        self._tickets += 1
        self._open[ticket] = (request, [None] * len(request), len(request))
        self._enqueue(ticket, request)
        return ticket

    def completed(self, timeout: float | None = None) -> list[tuple[int, Rollouts | EpisodeError]]:
        """The requests finished since the last call, as (ticket, rollouts), or (ticket, error) if an episode failed.
        Running the request again would give the same error.

        Blocks until there is at least one, or for about `timeout` seconds.

        Raises:
            EngineError: the engine cannot continue.
        """
        if not self._done and self._open:
            self._work(timeout)
        done, self._done = self._done, []
        return done

    def run(self, request: Request) -> Rollouts:
        """Submit a request and wait for its result. Only if no other request is active.

        Raises:
            EpisodeError: an episode failed.
        """
        ticket = self.submit(request)
        try:
            while True:
                for finished, outcome in self.completed():
                    if finished == ticket:
                        if isinstance(outcome, EpisodeError):
                            raise outcome
                        return outcome
        except BaseException:
            self.cancel()
            raise

    def drop(self, ticket: int) -> None:
        """Drop one request: its queued episodes are not started, the results of running ones are discarded."""
        if self._open.pop(ticket, None) is not None:
            self._withdraw(ticket)
        self._done = [(other, outcome) for other, outcome in self._done if other != ticket]

    def cancel(self) -> None:
        """Drop all requests that were submitted and not yet returned."""
        self._open.clear()
        self._done.clear()
        self._abandon()

    @contextmanager
    def _in_foreign_code(self) -> Iterator[None]:
        """Inside of this context a signal may be raised as KeyboardInterrupt."""
        self.interruptible = True
        try:
            yield
        finally:
            self.interruptible = False

    @abstractmethod
    def close(self) -> None:
        """Release threads, processes and memory."""

    def __del__(self) -> None:
        if hasattr(self, "_open"):  # fully constructed
            try:  # noqa: SIM105 - `suppress` may be gone when the interpreter exits
                self.close()
            except Exception:
                pass

    def _finish(self, ticket: int, index: int, episode: Episode) -> None:
        """Store the result of one episode. Completes its request if it was the last one."""
        if ticket not in self._open:
            return  # the request failed or was dropped
        request, outcomes, missing = self._open[ticket]
        outcomes[index] = episode
        self._open[ticket] = (request, outcomes, missing - 1)
        if missing == 1:
            del self._open[ticket]
            self._done.append((ticket, Rollouts.of([e for e in outcomes if e is not None])))

    def _fail(self, ticket: int, error: EpisodeError) -> None:
        """Complete a request with an error; its other episodes are not needed any more."""
        if self._open.pop(ticket, None) is not None:
            self._withdraw(ticket)
            self._done.append((ticket, error))

    @abstractmethod
    def _enqueue(self, ticket: int, request: Request) -> None:
        """Queue the episodes of a request."""

    @abstractmethod
    def _withdraw(self, ticket: int) -> None:
        """Remove the episodes of a request that have not started from the queue."""

    @abstractmethod
    def _work(self, timeout: float | None) -> None:
        """Run episodes until a request is complete, or for about `timeout` seconds."""

    @abstractmethod
    def _abandon(self) -> None:
        """Drop all queued and running episodes."""
