"""What can go wrong, each with one line that says what was given, what is accepted and what was probably meant."""

from __future__ import annotations

import difflib
import importlib
import signal
from collections.abc import Iterable, Sequence
from types import ModuleType


class OffrankError(Exception):
    """Base of every error of this package. Its text is one line, written for the user."""


class UsageError(OffrankError, ValueError):
    """Something the caller gave cannot be used. The command line exits with status 2."""


class FileFormatError(UsageError):
    """A file is truncated, damaged, or not of the kind that was expected."""


class BusyError(UsageError):
    """Another process is writing what this one was asked to write."""


class EpisodeError(OffrankError, RuntimeError):
    """An episode cannot be trusted: non-finite reward or observation, diverged simulation, failing environment.

    Attributes:
        seed: the seed of the episode.
        step: the control step at which it happened, counted from 0; None where nobody saw it.
    """

    def __init__(self, what: str, seed: int, step: int | None):
        super().__init__(f"{what} (episode seed {seed}{'' if step is None else f', step {step}'})")
        self.what, self.seed, self.step = what, seed, step

    def __reduce__(self) -> tuple[type[EpisodeError], tuple[str, int, int | None]]:
        return EpisodeError, (self.what, self.seed, self.step)


class Interrupted(OffrankError):
    """A signal asked to stop; every run was saved.

    Attributes:
        signum: the signal.
        failures: why runs had stopped before it came.
    """

    def __init__(self, signum: int, failures: Sequence[OffrankError] = ()):
        before = f" ({len(failures)} of the runs had failed: {failures[0]})" if failures else ""
        super().__init__(f"interrupted by {signal.Signals(signum).name}{before}")
        self.signum, self.failures = signum, tuple(failures)


class EngineError(OffrankError, RuntimeError):
    """An engine cannot go on: its workers keep dying, or its device is gone."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x' or 'y'?"`, or the empty string when nothing is near.

    Case does not count, and neither does a version suffix that only the known name has.
    """
    known = list(known)
    folded: dict[str, str] = {}
    for k in known:  # of several versions of a name, the one that is listed first
        folded.setdefault(k.casefold(), k)
        folded.setdefault(k.casefold().rsplit("-v", 1)[0], k)
    close = difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.6)
    names = list(dict.fromkeys(folded[c] for c in close))
    return f"; did you mean {' or '.join(map(repr, names))}?" if names else ""


def require(module: str, extra: str) -> ModuleType:
    """Import an optional module, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"this needs {module.split('.')[0]}: pip install 'offrank[{extra}]'") from error
