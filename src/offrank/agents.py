"""The algorithms as agents, by name; `load` and `export`."""

from __future__ import annotations

from pathlib import Path

from offrank.agent import Agent
from offrank.core.checks import check_path
from offrank.engines import Cluster, Env, Gpu, check_pool
from offrank.policies.export import export_policy
from offrank.policies.trained import TrainedPolicy
from offrank.runs.folder import CHECKPOINT
from offrank.runs.saved import Saved


class ARS(Agent):
    """Augmented random search: every candidate is run, the best are used in the update."""

    algo = "ars"


class OPARS(Agent):
    """Off-policy ARS: candidates are ranked on rollouts of the current policy, and only the best are run."""

    algo = "op-ars"


class TRES(Agent):
    """Trust region evolution strategy: every candidate is run, the best are used in several update epochs."""

    algo = "tres"


class OPTRES(Agent):
    """Off-policy TRES: candidates are ranked as in OPARS."""

    algo = "op-tres"


class ES(Agent):
    """OpenAI's evolution strategy: ranked returns, Adam, weight decay."""

    algo = "es"


class OPES(Agent):
    """Off-policy ES: candidates are ranked as in OPARS."""

    algo = "op-es"


class QARS(Agent):
    """ARS with candidates ranked by a learned Q function, and training episodes as short as possible."""

    algo = "q-ars"


class QTRES(Agent):
    """TRES with candidates ranked as in QARS."""

    algo = "q-tres"


class CEM(Agent):
    """The cross-entropy method: a Gaussian over the parameters moves to the better half of its samples."""

    algo = "cem"


class CEMRL(Agent):
    """CEM-RL: CEM, half of whose samples first follow the gradient of TD3's critics."""

    algo = "cem-rl"


class OPCEMRL(Agent):
    """Off-policy CEM-RL: more samples are drawn than run, and a ranker chooses those that are."""

    algo = "op-cem-rl"


class Guided(Agent):
    """Guided search: a small actor follows learned critics and explores by perturbed parameters."""

    algo = "guided"


class Faded(Agent):
    """Guided search of a linear policy, whose actor begins with a hidden layer that fades away."""

    algo = "faded"


class Distilled(Agent):
    """A linear policy that copies a guided teacher, and ARS from there."""

    algo = "distilled"


AGENTS: dict[str, type[Agent]] = {
    agent.algo: agent
    for agent in (ARS, OPARS, QARS, TRES, OPTRES, QTRES, ES, OPES, CEM, CEMRL, OPCEMRL, Guided, Faded, Distilled)
}


def load(
    path: str | Path,
    env: Env | None = None,
    threads: int = 0,
    workers: int | None = None,
    gpu: Gpu | None = None,
    cluster: Cluster | None = None,
    episode_seconds: float | None = None,
) -> Agent:
    """An agent from a file that `save` or a run wrote, or from a run folder.

    Args:
        path: a saved agent, a checkpoint, a policy file, or a run folder (whose checkpoint is read).
        env: the environment; needed to train or evaluate if the agent was made with an environment object or function.
        threads, workers, gpu, episode_seconds: see `offrank.engines.make_engine`.
        cluster: run the episodes on this cluster, whatever engine was used before.

    Raises:
        UsageError: there is no such file, it is damaged, or it needs `env`.
    """
    check_pool(threads, workers, gpu, cluster, episode_seconds)
    path = check_path("path", path)
    saved = Saved.read(path / CHECKPOINT) if (path / CHECKPOINT).is_file() else Saved.find(path)
    pool = {"threads": threads, "workers": workers, "gpu": gpu, "cluster": cluster, "episode_seconds": episode_seconds}
    return AGENTS.get(saved.config.algo, Agent).of(saved, env, pool)


def export(policy: Agent | TrainedPolicy | str | Path, format: str, out: str | Path) -> None:
    """Write a policy for use without offrank (docs/guides/export.md).

    Args:
        policy: an agent (its current policy), a policy, a policy file, or a run folder (its best policy).
        format: json, c, onnx or torch.
        out: the file to write.

    Raises:
        UsageError: an argument is invalid, or a package that the format needs is missing.
        OffrankError: the file cannot be written.
    """
    if isinstance(policy, Agent):
        policy = policy.policy
    elif not isinstance(policy, TrainedPolicy):
        policy = Saved.find(check_path("policy", policy)).policy
    export_policy(policy, format, check_path("out", out))
