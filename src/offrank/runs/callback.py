"""What a run calls: functions of (run, record), and objects of the class `Callback`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from offrank.core.arrays import Metrics
from offrank.core.errors import UsageError

if TYPE_CHECKING:
    from offrank.runs.run import Run

OnRecord = Callable[["Run", Metrics], bool | None]  # called with every record of the log; False stops the run


class Callback:
    """Base class of callbacks: overwrite the methods you need. The first three stop the run by returning False.

    `run` has the attributes state, policy, config, folder, evaluations and best; `record` is a line of metrics.jsonl.
    """

    def on_start(self, run: Run) -> bool | None:
        """Before the first iteration of every call of `learn`; run.state.steps > 0 if a run is continued."""

    def on_iteration(self, run: Run, record: Metrics) -> bool | None:
        """After an iteration."""

    def on_evaluation(self, run: Run, record: Metrics) -> bool | None:
        """After an evaluation: of the run, if record["kind"] is "evaluation", or of the EvalCallback of that name."""

    def on_end(self, run: Run) -> None:
        """When the run has ended and its files are written. Not called if it was interrupted or failed."""

    def close(self) -> None:
        """At the very end, in any case, perhaps more than once: release what on_start opened."""

    def __call__(self, run: Run, record: Metrics) -> bool | None:
        return self.on_iteration(run, record) if record["kind"] == "iteration" else self.on_evaluation(run, record)


def as_callbacks(given: OnRecord | Sequence[OnRecord] | None) -> tuple[OnRecord, ...]:
    """One callback, a list of them, or None, as a tuple.

    Raises:
        UsageError: it is something else.
    """
    several: Any = () if given is None else (given,) if callable(given) else given
    for one in several if isinstance(several, list | tuple) else (several,):
        if not callable(one) or isinstance(one, type):
            raise UsageError(
                f"callback = {one!r}: must be a function of (run, record), an object of a class of offrank.callbacks, "
                "or a list of these"
            )
    return tuple(several)
