"""Rankers by name: of antithetic pairs, which work with every strategy, and of the members of a generation. To add one,
write it and list it here."""

from offrank.algorithms.rankers.base import Ranker, Ranking
from offrank.algorithms.rankers.controls import LargestChange, Random, SmallestChange
from offrank.algorithms.rankers.critic import Critic
from offrank.algorithms.rankers.interleaved import Adaptive, Interleaved
from offrank.algorithms.rankers.kernel import Kernel
from offrank.algorithms.rankers.members import KernelOfMembers, MemberRanker, Race, RandomMembers, Value
from offrank.algorithms.rankers.on_policy import OnPolicy

RANKERS: dict[str, type[Ranker]] = {
    ranker.name: ranker
    for ranker in (OnPolicy, Kernel, Interleaved, Adaptive, Critic, Random, SmallestChange, LargestChange)
}
MEMBER_RANKERS: dict[str, type[MemberRanker]] = {
    ranker.name: ranker for ranker in (Race, Value, KernelOfMembers, RandomMembers)
}

__all__ = [
    "MEMBER_RANKERS",
    "RANKERS",
    "Adaptive",
    "Critic",
    "Interleaved",
    "Kernel",
    "LargestChange",
    "MemberRanker",
    "OnPolicy",
    "Random",
    "Ranker",
    "Ranking",
    "SmallestChange",
]
