"""A worker process of the Gymnasium engine: reads episodes from stdin, writes their results to stdout.

It is a new Python process, not one of `multiprocessing`, so the caller's script needs no `__main__` guard.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import warnings
from dataclasses import dataclass

import cloudpickle

from offrank.core.arrays import FloatArray
from offrank.core.errors import OffrankError, UsageError
from offrank.core.normalizer import Whitening
from offrank.core.parent import end_with_parent
from offrank.core.policy import Policy
from offrank.core.rollouts import Episode
from offrank.engines.gymnasium.env_runner import EnvRunner, one_line


@dataclass(frozen=True)
class Setup:
    """The first message: how to make the environment. It is answered by Ready, or by an Outcome with an error."""

    factory: bytes  # cloudpickled EnvFactory
    clip_actions: bool


@dataclass(frozen=True)
class Ready:
    """The environment was made."""


@dataclass(frozen=True)
class Job:
    """One episode to run."""

    key: tuple[int, int]  # (ticket, episode)
    policy: Policy
    theta: FloatArray
    whitening: Whitening
    seed: int
    horizon: int
    noise: FloatArray | None  # (horizon, p), added to the actions
    keep: bool

    def run(self, runner: EnvRunner) -> Episode:
        return runner.run(self.policy, self.theta, self.whitening, self.seed, self.horizon, self.noise, self.keep)


@dataclass(frozen=True)
class Outcome:
    """The result of a job."""

    key: tuple[int, int]
    result: Episode | OffrankError


def main() -> None:
    end_with_parent(lambda: os._exit(1))  # while an environment hangs it does not see that stdin is closed
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles Ctrl-C and closes our stdin
    inbox = sys.stdin.buffer
    outbox = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of the environment must not mix with the results
    warnings.simplefilter("ignore")  # the main process made the same environment and showed its warnings
    runner: EnvRunner | None = None
    while True:
        try:
            message = pickle.load(inbox)
        except EOFError:
            return
        if isinstance(message, Setup):
            try:
                runner = EnvRunner(cloudpickle.loads(message.factory)(), message.clip_actions)
                answer: Outcome | Ready = Ready()
            except OffrankError as error:
                answer = Outcome((-1, -1), error)
            except (Exception, SystemExit) as error:
                answer = Outcome((-1, -1), UsageError(f"a worker cannot make the environment: {one_line(error)}"))
        else:
            assert runner is not None
            try:
                result: Episode | OffrankError = message.run(runner)
            except OffrankError as error:
                result = error
            answer = Outcome(message.key, result)
        pickle.dump(answer, outbox)
        outbox.flush()
