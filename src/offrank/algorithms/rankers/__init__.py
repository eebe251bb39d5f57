"""Rankers by name. A new one is one small file, a line here, and works with every strategy."""

from offrank.algorithms.rankers.base import Ranker, Ranking
from offrank.algorithms.rankers.controls import LargestChange, Random, SignedChange, SmallestChange
from offrank.algorithms.rankers.critic import Critic
from offrank.algorithms.rankers.interleaved import Adaptive, Interleaved
from offrank.algorithms.rankers.kernel import Kernel
from offrank.algorithms.rankers.memory import PastPairs
from offrank.algorithms.rankers.on_policy import OnPolicy
from offrank.algorithms.rankers.reuse import Reuse

RANKERS: dict[str, type[Ranker]] = {
    ranker.name: ranker
    for ranker in (
        *(OnPolicy, Kernel, Reuse, Interleaved, Adaptive, PastPairs, Critic),
        *(Random, SmallestChange, LargestChange, SignedChange),
    )
}

__all__ = [
    "RANKERS",
    "Adaptive",
    "Critic",
    "Interleaved",
    "Kernel",
    "LargestChange",
    "OnPolicy",
    "PastPairs",
    "Random",
    "Ranker",
    "Ranking",
    "Reuse",
    "SignedChange",
    "SmallestChange",
]
