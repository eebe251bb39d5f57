"""The lessons of many `guided` runs as one computation on a device, with PyTorch.

The updates are those of `ActorCriticLesson.carry_out`, with a leading axis of the runs. What differs are sums in
another order, and the random rows and noise, which are drawn on the device. Those of a run depend on its seed and
iteration only, not on the runs beside it. `batched_networks.py` says what makes it fast.

An actor moves after every second update of its critics. So updates come in pairs: the targets of both are at actions of
the same actor, computed together, and the actor moves after the second. A run with an odd number of updates so far
begins with the second of a pair, and one that ends with the first does not move its actor in that pair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from offrank.algorithms.learning.actor_critic import (
    ACTOR_EVERY,
    LEAST_NORM,
    OUTLIER,
    ActorCriticLesson,
    half_range,
)
from offrank.algorithms.learning.batched_networks import (
    UNROLLED,
    Actors,
    CriticBatch,
    Layout,
    adam_rates,
    bounds_on,
    clipped,
    upload,
)
from offrank.algorithms.learning.batched_trainer import DeviceTrainer, TransitionRows
from offrank.algorithms.learning.device import DeviceReplay, Tensor, Update
from offrank.core.arrays import Memory, part
from offrank.core.errors import OffrankError

DRAWN = 5 * UNROLLED  # updates whose batches are drawn together
PAIRS = UNROLLED // ACTOR_EVERY


class ActorCriticBatch(Actors):
    """The critics and actors of C runs, and the batches of UNROLLED updates of them, in arrays at fixed addresses."""

    def __init__(self, lesson: ActorCriticLesson, runs: int, device: str):
        settings, policy = lesson.settings, lesson.policy
        super().__init__(policy, runs, device)
        layout = Layout(policy.n + policy.p, settings.hidden, standardised=True)
        self.critics = CriticBatch(layout, runs, settings.batch, UNROLLED, device)
        self.noise = torch.zeros(runs, UNROLLED, settings.batch, policy.p, device=device)  # on the targets' actions
        self.rates = torch.zeros(PAIRS, 3, runs, 1, device=device)
        self.limits = None if lesson.limit is None else torch.zeros(runs, 1, 1, device=device)
        self._bounds = bounds_on(lesson.space, device)
        self._scale = upload(half_range(lesson.space, policy.p), device)
        self._downhill = -1 / (2 * settings.batch * self._scale)  # of the critics' mean value of a batch

    def update(self) -> None:
        """All updates of the critics, and of the actor after every second one."""
        for pair in range(PAIRS):
            first, last = ACTOR_EVERY * pair, ACTOR_EVERY * (pair + 1)
            self._aim(first, last)
            for u in range(first, last):
                self.critics.update(u)
            self._follow(last - 1, self.rates[pair])

    def _aim(self, first: int, last: int) -> None:
        """The actions of the targets of some updates."""
        n, p, inputs = self.policy.n, self.policy.p, self.critics.inputs
        later = inputs[1, 0, :, first:last, :, :n].flatten(1, 2)
        action = clipped(self.outputs(later)[-1], self._bounds)
        action = clipped(action + self.noise[:, first:last].flatten(1, 2), self._bounds)
        inputs[1, :, :, first:last, :, n : n + p] = (action / self._scale).view(len(action), last - first, -1, p)

    def _follow(self, u: int, rates: Tensor) -> None:
        """The actors' update after number u of their critics, at the same states."""
        n, p, critics = self.policy.n, self.policy.p, self.critics
        x = critics.inputs[0, :, :, u]
        z = x[0, ..., :n]
        outputs = self.outputs(z)
        raw = outputs[-1]
        action = clipped(raw, self._bounds)
        x[..., n : n + p] = action / self._scale  # the critics are done with what was there
        twins = critics.values[0].flatten(0, 1)
        g = critics.layout.input_gradient(twins, x.flatten(0, 1), slice(n, n + p), critics.h1[: len(twins)])
        g = g.view(2, *action.shape).sum(0).mul_(self._downhill)
        if self._bounds is not None:
            g.masked_fill_((raw - action) * g < 0, 0)  # beyond the box only the way back counts
        self.descend(z, outputs, g, rates)
        if self.limits is not None:
            weights = self.policy.layers(self.thetas)[-1].weights
            norm = torch.linalg.vector_norm(weights, dim=(1, 2), keepdim=True)
            weights.mul_((self.limits / norm.clamp_(min=float(LEAST_NORM))).clamp_(max=1))


class Draws:
    """The random numbers of one run's lesson, drawn on the device."""

    def __init__(self, lesson: ActorCriticLesson, device: str):
        self._generator = torch.Generator(device).manual_seed(int(lesson.stream().integers(2**63)))

    def next(self, rows: Tensor, noise: Tensor, high: int) -> None:
        """Fill in rows (DRAWN, B) below `high`, and standard normal noise (DRAWN, B, p), of the next updates."""
        rows.random_(0, high, generator=self._generator)
        noise.normal_(generator=self._generator)


@dataclass
class _Made:
    """The arrays for several runs, and the recorded updates of them."""

    batch: ActorCriticBatch
    train: Update


class ActorCriticTrainer(DeviceTrainer[ActorCriticLesson, _Made]):
    """Carries out the lessons of several `guided` runs in one batch."""

    def __init__(self, device: str, draws: Callable[[ActorCriticLesson, str], Any] = Draws):
        super().__init__(device, draws)

    def _make(self, lesson: ActorCriticLesson, runs: int) -> _Made:
        batch = ActorCriticBatch(lesson, runs, self._device)
        return _Made(batch, self._record(batch.update))

    def _train(
        self, lessons: Sequence[ActorCriticLesson], owners: Sequence[Any], made: _Made
    ) -> list[Memory | OffrankError]:
        batch, replays = made.batch, [self._replays[owner] for owner in owners]
        rows = _Rows(lessons, replays, self._draws, self._device)
        self._load(batch.critics, [part(lesson.learner, "critic.") for lesson in lessons], owners)
        batch.critics.optimism[: len(lessons), 0, 0] = torch.tensor([lesson.settings.optimism for lesson in lessons])
        if batch.limits is not None:
            batch.limits[: len(lessons), 0, 0] = torch.tensor([float(lesson.limit or 0.0) for lesson in lessons])
        for name, place in _moving(batch).items():
            place.zero_()
            place[: len(lessons)] = torch.as_tensor(np.stack([lesson.learner[f"actor.{name}"] for lesson in lessons]))
        ends = [_before(lesson) + lesson.updates for lesson in lessons]
        critic_rates, actor_rates = (
            upload(rates, self._device) for rates in _rates(lessons, batch.critics.runs, max(ends))
        )
        for k in range(len(critic_rates)):
            rows.feed_graph(batch, k, [r for r, end in enumerate(ends) if k * UNROLLED < end])
            batch.critics.rates.copy_(critic_rates[k])
            batch.rates.copy_(actor_rates[k])
            made.train()
        nets = self._unload(batch.critics, owners)
        actors = {name: place.cpu().numpy() for name, place in _moving(batch).items()}
        out: list[Memory | OffrankError] = []
        for r, lesson in enumerate(lessons):
            try:
                out.append(lesson.outcome(nets[r], {name: rows[r].copy() for name, rows in actors.items()}))
            except OffrankError as error:
                out.append(error)
        return out


class _Rows(TransitionRows):
    """Draws and gathers the batches of several runs' updates."""

    def __init__(
        self,
        lessons: Sequence[ActorCriticLesson],
        replays: Sequence[DeviceReplay],
        draws: Callable[[ActorCriticLesson, str], Any],
        device: str,
    ):
        first, runs, B = lessons[0], len(lessons), lessons[0].settings.batch
        super().__init__(lessons, replays, DRAWN * B, device, float(OUTLIER))
        self._batch, self._draws = B, [draws(lesson, device) for lesson in lessons]
        self._half = upload(half_range(first.space, self.p), device)
        integers = partial(torch.zeros, dtype=torch.int64, device=device)
        self._drawn, self._at = integers(DRAWN, B), integers(runs, DRAWN * B, 2)
        self._noise = torch.zeros(runs, DRAWN, B, self.p, device=device)
        scales = upload(np.array([lesson.scale for lesson in lessons]), device)
        self._level, self._unit = scales.T[:, :, None, None, None]
        noise = np.array([[lesson.settings.target_noise, lesson.settings.target_noise_clip] for lesson in lessons])
        self._deviation, self._limit = upload(noise.astype(np.float32), device).T[:, :, None, None, None]

    def feed_graph(self, batch: ActorCriticBatch, k: int, going: Sequence[int]) -> None:
        """Write the batches of graph number k, of some runs."""
        begin = k * UNROLLED % DRAWN
        if begin == 0:
            self._draw(going)
        self.feed(batch.critics, begin * self._batch, self._half)
        batch.noise[: len(self.rings)] = self._noise[:, begin : begin + UNROLLED]
        gain, boot = (rows[: len(self.rings)] for rows in (batch.critics.gain, batch.critics.boot))
        gain.sub_(self._level * (1 - boot)).div_(self._unit)

    def _draw(self, going: Sequence[int]) -> None:
        for r in going:
            self._draws[r].next(self._drawn, self._noise[r], len(self.transitions[r]))
            torch.index_select(self.transitions[r], 0, self._drawn.flatten(), out=self._at[r])
        self.look_up(self._at, going)
        self._noise.mul_(self._deviation).clamp_(-self._limit, self._limit).mul_(self._half)


def _before(lesson: ActorCriticLesson) -> int:
    """The updates of a run's first pair that came before this lesson."""
    return int(lesson.learner["critic.step"]) % ACTOR_EVERY


def _rates(lessons: Sequence[ActorCriticLesson], runs: int, updates: int) -> tuple[Any, Any]:
    """The rates of the critics (graphs, UNROLLED, 4, 2 * runs, 1) and of the actors (graphs, PAIRS, 3, runs, 1)."""
    graphs = -(-updates // UNROLLED)
    critics = np.zeros((graphs * UNROLLED, 4, 2, runs), dtype=np.float32)
    actors = np.zeros((graphs * PAIRS, 3, runs), dtype=np.float32)
    for r, lesson in enumerate(lessons):
        settings, step, before = lesson.settings, int(lesson.learner["critic.step"]), _before(lesson)
        own = critics[before : before + lesson.updates, :, :, r]
        own[:, :3] = adam_rates(settings.critic_rate, step, lesson.updates)[..., None]
        own[:, 3] = settings.slow
        moves, still = ((step + k) // ACTOR_EVERY - step // ACTOR_EVERY for k in (lesson.updates, lesson.alone))
        actors[:moves, :, r] = adam_rates(settings.actor_rate, step // ACTOR_EVERY, moves)
        actors[:still, 2, r] = 0
    return critics.reshape(graphs, UNROLLED, 4, 2 * runs, 1), actors.reshape(graphs, PAIRS, 3, runs, 1)


def _moving(actors: Actors) -> dict[str, Tensor]:
    """The arrays (L, d) of actors, by their names in a learner."""
    return {"theta": actors.thetas, "first": actors.first, "second": actors.second}


@cache
def trainer_on(device: str) -> ActorCriticTrainer:
    """The trainer of a device, which keeps what it made there."""
    return ActorCriticTrainer(device)
