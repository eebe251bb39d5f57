"""Kinds of policies by name: `linear`, `affine`, `skip:32`, `mlp:64,64`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from offrank.core.errors import UsageError, did_you_mean
from offrank.core.policy import LayerShape, Policy

MAX_PARAMETERS = 100_000_000

Table = tuple[LayerShape, ...]


def _linear(n: int, p: int, widths: tuple[int, ...]) -> Table:
    return (LayerShape(n, p),)


def _affine(n: int, p: int, widths: tuple[int, ...]) -> Table:
    return (LayerShape(n, p, bias=True),)


def _skip(n: int, p: int, widths: tuple[int, ...]) -> Table:
    return LayerShape(n, widths[0], tanh=True, bias=True), LayerShape(widths[0], p, skip=True)


def _mlp(n: int, p: int, widths: tuple[int, ...]) -> Table:
    hidden = [LayerShape(a, b, tanh=True, bias=True) for a, b in pairwise((n, *widths))]
    return *hidden, LayerShape(widths[-1], p, bias=True)


# kind: function that makes its table of layers, number of widths (None: at least one), formula, and an example
POLICIES: dict[str, tuple[Callable[[int, int, tuple[int, ...]], Table], int | None, str, str]] = {
    "linear": (_linear, 0, "a = M z", "linear"),
    "affine": (_affine, 0, "a = M z + c", "affine"),
    "skip:W": (_skip, 1, "a = M z + V tanh(W z + c), W hidden units", "skip:32"),
    "mlp:W1,W2": (_mlp, None, "tanh layers of W1, W2, ... units, then a linear one", "mlp:64,64"),
}


def make_policy(name: str, n: int, p: int) -> Policy:
    """The kind of policy with a given name, for observations (n,) and actions (p,).

    Raises:
        UsageError: there is no such kind, its widths are invalid, or it has too many parameters.
    """
    head, widths = _parse(name)
    table = POLICIES[head][0](n, p, widths)
    policy = Policy(canonical(name), n, p, table)
    if policy.size > MAX_PARAMETERS:
        raise UsageError(f"policy {name!r} has {policy.size:,} parameters here: at most {MAX_PARAMETERS:,}")
    return policy


def canonical(name: str) -> str:
    """The canonical form of a policy's name: `MLP: 64, 64` becomes `mlp:64,64`.

    Raises:
        UsageError: there is no such kind, or its widths are invalid.
    """
    head, widths = _parse(name)
    kind = head.partition(":")[0]
    return f"{kind}:{','.join(map(str, widths))}" if widths else kind


def _parse(name: str) -> tuple[str, tuple[int, ...]]:
    """Parse a name into its key of POLICIES and its widths."""
    kind, colon, rest = str(name).strip().lower().partition(":")
    by_kind = {key.partition(":")[0]: key for key in POLICIES}
    if kind not in by_kind:
        known = ", ".join(POLICIES)
        raise UsageError(f"unknown policy {name!r}: one of {known}{did_you_mean(kind, by_kind)}")
    key = by_kind[kind]
    words = [word.strip() for word in rest.split(",")] if colon else []
    wanted = POLICIES[key][1]
    fits = len(words) == wanted if wanted is not None else len(words) >= 1
    if not fits or not all(word.isdecimal() and 1 <= int(word) <= 1_000_000 for word in words):
        raise UsageError(f"policy {name!r}: {key} is written like {POLICIES[key][3]}, with widths of at least 1")
    return key, tuple(map(int, words))


__all__ = ["POLICIES", "canonical", "make_policy"]
