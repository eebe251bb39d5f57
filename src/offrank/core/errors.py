"""Exceptions. The text of each is one line: what was given, what is accepted, and what was probably meant."""

from __future__ import annotations

import difflib
import importlib
import signal
from collections.abc import Iterable, Sequence
from types import ModuleType


class OffrankError(Exception):
    """Base class of the errors of this package. The text is one line, written for the user."""


class UsageError(OffrankError, ValueError):
    """Invalid input from the caller. The command line exits with status 2."""


class FileFormatError(UsageError):
    """A file is truncated, damaged, or not of the expected kind."""


class BusyError(UsageError):
    """Another process is writing to the same run folder."""


class EpisodeError(OffrankError, RuntimeError):
    """An episode failed: non-finite reward or observation, diverged simulation, or an error in the environment.

    Attributes:
        seed: the seed of the episode.
        step: the control step at which it failed, counted from 0; None if unknown.
    """

    def __init__(self, what: str, seed: int, step: int | None):
        super().__init__(f"{what} (episode seed {seed}{'' if step is None else f', step {step}'})")
        self.what, self.seed, self.step = what, seed, step

    def __reduce__(self) -> tuple[type[EpisodeError], tuple[str, int, int | None]]:
        return EpisodeError, (self.what, self.seed, self.step)


class RunFailed(OffrankError):
    """One of several runs failed; `__cause__` is the reason.

    Attributes:
        name: the name of the run.
    """

    def __init__(self, name: str, why: BaseException):
        super().__init__(f"{name}: {why}")
        self.name, self.__cause__ = name, why


class FleetError(OffrankError, ExceptionGroup[RunFailed]):
    """Some of several runs failed; the others were completed. `exceptions` holds a RunFailed per failed run."""

    def __new__(cls, failures: Sequence[RunFailed]) -> FleetError:
        return super().__new__(cls, f"{len(failures)} of the runs failed", list(failures))

    def __init__(self, failures: Sequence[RunFailed]): ...


class Interrupted(OffrankError):
    """Training was interrupted by a signal.

    Attributes:
        signum: the signal.
        failures: the runs that had failed before the signal.
        unsaved: the runs that could not be saved; their last checkpoint is intact.
    """

    def __init__(self, signum: int, failures: Sequence[RunFailed] = (), unsaved: Sequence[RunFailed] = ()):
        failed = f"; {len(failures)} of the runs had failed" if failures else ""
        super().__init__(f"interrupted by {signal.Signals(signum).name}{failed}")
        self.signum, self.failures, self.unsaved = signum, tuple(failures), tuple(unsaved)


class EngineError(OffrankError, RuntimeError):
    """An engine cannot continue: its workers keep dying, or its device is not available."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x' or 'y'?"`, or an empty string if no known name is similar.

    Case is ignored, and so is a version suffix that only the known name has.
    """
    known, name = list(known), str(name)
    folded: dict[str, str] = {}
    for k in known:  # of several versions of a name, the first one listed is suggested
        folded.setdefault(k.casefold(), k)
        folded.setdefault(k.casefold().rsplit("-v", 1)[0], k)
    close = difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.6)
    names = list(dict.fromkeys(folded[c] for c in close))
    return f"; did you mean {' or '.join(map(repr, names))}?" if names else ""


def require(module: str, extra: str) -> ModuleType:
    """Import an optional module.

    Raises:
        UsageError: it is not installed; the text has the install command.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"this needs {module.split('.')[0]}: pip install 'offrank[{extra}]'") from error
