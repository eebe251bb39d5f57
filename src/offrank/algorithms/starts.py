"""Several starts: a run begins anew a few times, and goes on with the best of its beginnings.

Where a run ends up is often decided by its first steps. On Hopper and Walker2d about half of all runs learn to dive
forward, and stay at that for as long as anybody has watched; by then the others are far ahead. With `starts` = K, the
policy is put back to zero K - 1 times, every `start_steps` steps, and the run then goes on with whichever of the K was
best at its end, by a running average of its pairs' returns, as the environment paid them. Every step counts.

What a start leaves behind is kept until a better one comes: the weights and whatever goes with them. The directions are
those of the run's own iterations, so that no two starts are alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from offrank.core.arrays import Memory, part
from offrank.core.candidates import Episodes, Pairs
from offrank.core.state import State

LAST = 5  # iterations that the running average reaches back, about


def nothing_yet() -> Memory:
    """What is known at the beginning: how many starts have ended; which one the present policy is from, the steps and
    the iteration at which it began, its score, and how many iterations that is of."""
    return {
        "ended": np.zeros((), dtype=np.int64),
        "start": np.ones((), dtype=np.int64),
        "steps": np.zeros((), dtype=np.int64),
        "iteration": np.zeros((), dtype=np.int64),
        "score": np.zeros(()),
        "scored": np.zeros((), dtype=np.int64),
    }


def first_iteration(state: State) -> int:
    """The iteration in which the present policy began, as it would be if nothing else had been tried."""
    return int(state.starts["iteration"]) if state.starts else 0


def chosen(state: State, episodes: Episodes, fresh: Callable[[], State]) -> State:
    """What the next iteration begins from: the state as it is, a fresh one, or the best that was left behind."""
    known = state.starts
    if episodes.starts == 1 or not known or known["ended"] == episodes.starts:
        return state
    if state.steps - int(known["steps"]) < episodes.start_steps:
        return state
    now = {name: np.array(getattr(state, name)) for name in ("steps", "iteration")}
    now["ended"], now["start"] = np.asarray(known["ended"] + 1), np.asarray(known["ended"] + 2)
    best = part(known, "best.")
    if not best or known["score"] > best["score"]:
        best = replace(state, starts={}).arrays() | {
            "score": known["score"],
            "start": known["start"],
            "first": known["iteration"],
        }
    if now["ended"] < episodes.starts:
        after = fresh()
        return _at(after, state, nothing_yet() | now | {f"best.{name}": value for name, value in best.items()})
    after = State.from_arrays(best)
    now["start"] = best["start"]
    now["iteration"] = np.array(state.iteration - after.iteration + int(best["first"]))  # it is as old as it was
    return _at(after, state, now)


def learn(state: State, episodes: Episodes, pairs: Pairs, length: int) -> Memory:
    """What is known after an iteration's pairs, cut after `length` steps. Where a run looks for its length, lengths
    differ from iteration to iteration, and only whole episodes can be compared."""
    if episodes.starts == 1:
        return state.starts
    known = state.starts or nothing_yet()
    if known["ended"] == episodes.starts or (episodes.probes and length < episodes.horizon):
        return known
    scored = np.asarray(known["scored"] + 1)
    mean = np.concatenate([pairs.plus, pairs.minus]).mean()
    score = np.asarray(known["score"] + (mean - known["score"]) / min(int(scored), LAST))
    return known | {"score": score, "scored": scored}


def _at(policy: State, now: State, starts: Memory) -> State:
    """A policy and all that goes with it, at the point that the run has come to."""
    return replace(policy, iteration=now.iteration, steps=now.steps, episodes=now.episodes, starts=starts)
