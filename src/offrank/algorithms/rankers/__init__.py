"""Rankers by name. To add one, write a file and list it here; it works with every strategy."""

from offrank.algorithms.rankers.base import Ranker, Ranking
from offrank.algorithms.rankers.controls import LargestChange, Random, SmallestChange
from offrank.algorithms.rankers.critic import Critic
from offrank.algorithms.rankers.interleaved import Adaptive, Interleaved
from offrank.algorithms.rankers.kernel import Kernel
from offrank.algorithms.rankers.on_policy import OnPolicy

RANKERS: dict[str, type[Ranker]] = {
    ranker.name: ranker
    for ranker in (OnPolicy, Kernel, Interleaved, Adaptive, Critic, Random, SmallestChange, LargestChange)
}

__all__ = [
    "RANKERS",
    "Adaptive",
    "Critic",
    "Interleaved",
    "Kernel",
    "LargestChange",
    "OnPolicy",
    "Random",
    "Ranker",
    "Ranking",
    "SmallestChange",
]
