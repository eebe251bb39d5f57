"""Rankers by name. A new one is one small file, a line here, and works with every strategy."""

from offrank.rankers.base import Ranker, Ranking
from offrank.rankers.controls import LargestChange, Random, SignedChange, SmallestChange
from offrank.rankers.critic import Critic
from offrank.rankers.interleaved import Adaptive, Interleaved
from offrank.rankers.kernel import Kernel
from offrank.rankers.memory import PastPairs
from offrank.rankers.on_policy import OnPolicy
from offrank.rankers.reuse import Reuse

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
