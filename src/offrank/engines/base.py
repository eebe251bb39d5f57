"""An engine runs episodes. It knows policies, environments and seeds, and nothing of algorithms."""

from __future__ import annotations

from abc import ABC, abstractmethod

from offrank.core.errors import EpisodeError
from offrank.core.rollouts import Episode, Request, Rollouts
from offrank.core.space import Space


class Engine(ABC):
    """Runs requests side by side. Which episodes share a moment never changes their outcome."""

    name: str
    space: Space
    device: str | None = None  # where it runs them, if that is a GPU

    def __init__(self) -> None:
        self._tickets = 0
        self._open: dict[int, tuple[Request, list[Episode | None], int]] = {}  # ticket: request, outcomes, missing
        self._done: list[tuple[int, Rollouts | EpisodeError]] = []

    def submit(self, request: Request) -> int:
        """Queue the episodes of a request; returns a ticket. Returns at once."""
        ticket = self._tickets
        self._tickets += 1
        self._open[ticket] = (request, [None] * len(request), len(request))
        self._enqueue(ticket, request)
        return ticket

    def completed(self, timeout: float | None = None) -> list[tuple[int, Rollouts | EpisodeError]]:
        """Requests finished since the last call, with their tickets: their rollouts, or the first error among their
        episodes, which would come again.

        Blocks until there is at least one, or for about `timeout` seconds, and then returns what there is.

        Raises:
            EngineError: the engine cannot go on.
        """
        if not self._done and self._open:
            self._work(timeout)
        done, self._done = self._done, []
        return done

    def run(self, request: Request) -> Rollouts:
        """Submit a request and wait for it. Only for an engine with nothing else under way.

        Raises:
            EpisodeError: an episode went wrong.
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
        """Forget one request: what of it is under way ends unseen, what waits is not begun."""
        if self._open.pop(ticket, None) is not None:
            self._withdraw(ticket)
        self._done = [(other, outcome) for other, outcome in self._done if other != ticket]

    def cancel(self) -> None:
        """Drop everything that was submitted and not yet returned."""
        self._open.clear()
        self._done.clear()
        self._abandon()

    @abstractmethod
    def close(self) -> None:
        """Give back threads, processes and memory."""

    def __del__(self) -> None:
        if hasattr(self, "_open"):  # fully made
            try:  # noqa: SIM105 - at the interpreter's end `suppress` may be gone
                self.close()
            except Exception:
                pass

    def _finish(self, ticket: int, index: int, episode: Episode) -> None:
        """Note the outcome of one episode; completes its request when it was the last."""
        if ticket not in self._open:
            return  # of a request that failed meanwhile
        request, outcomes, missing = self._open[ticket]
        outcomes[index] = episode
        self._open[ticket] = (request, outcomes, missing - 1)
        if missing == 1:
            del self._open[ticket]
            self._done.append((ticket, Rollouts.of([e for e in outcomes if e is not None])))

    def _fail(self, ticket: int, error: EpisodeError) -> None:
        """Note that an episode of a request cannot be had; the others of that request no longer matter."""
        if self._open.pop(ticket, None) is not None:
            self._withdraw(ticket)
            self._done.append((ticket, error))

    @abstractmethod
    def _enqueue(self, ticket: int, request: Request) -> None:
        """Make a request's episodes ready to run."""

    @abstractmethod
    def _withdraw(self, ticket: int) -> None:
        """Take the episodes of a request that have not begun out of the queue."""

    @abstractmethod
    def _work(self, timeout: float | None) -> None:
        """Run episodes until a request is complete or the time is over."""

    @abstractmethod
    def _abandon(self) -> None:
        """Forget all queued and running episodes."""
