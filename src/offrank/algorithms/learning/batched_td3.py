"""The TD3 lessons of many runs as one computation on a device, with PyTorch.

The updates are those of `TD3Lesson.carry_out`, with a leading axis: of the runs for the critics, then of all runs'
actors. What differs are sums in another order, and the random rows and noise, which are drawn on the device. Those of a
run depend on its seed and iteration only, not on the runs beside it. `batched_networks.py` says what makes it fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from offrank.algorithms.learning.batched_networks import (
    UNROLLED,
    Actors,
    Bounds,
    CriticBatch,
    Layout,
    adam_rates,
    bounds_on,
    clipped,
    upload,
)
from offrank.algorithms.learning.batched_trainer import DeviceTrainer, TransitionRows
from offrank.algorithms.learning.device import DeviceReplay, Tensor, Update
from offrank.algorithms.learning.td3 import TD3Lesson
from offrank.core.arrays import Memory
from offrank.core.errors import OffrankError
from offrank.core.policy import Policy


class ActorBatch(Actors):
    """Actors (L, d) that follow a critic each, and the batches of U updates of them, in arrays at fixed addresses."""

    def __init__(
        self, policy: Policy, bounds: Bounds, layout: Layout, count: int, batch: int, updates: int, device: str
    ):
        super().__init__(policy, count, device)
        self.layout, self._bounds = layout, bounds
        self.critics = torch.zeros(count, layout.size, device=device)
        # inputs of the critics; actions are filled in
        self.inputs = torch.zeros(updates, count, batch, layout.shapes[0][0], device=device)
        self.rates = torch.zeros(updates, 3, count, 1, device=device)
        self._h1 = torch.zeros(count, batch, layout.shapes[1][0], device=device)
        for ones in (self.inputs[..., layout.inputs], self._h1[..., layout.hidden]):
            ones.fill_(1)

    def begin(self) -> None:
        """Begin to follow the critics in `self.critics`: moments are 0, and the last weights become those of minus the
        mean value of a batch, which Adam minimises."""
        self.first.zero_()
        self.second.zero_()
        self.layout.matrices(self.critics)[2].mul_(-1 / self.inputs.shape[-2])

    def update(self, u: int) -> None:
        """Update number u of the actors."""
        n, p, x = self.policy.n, self.policy.p, self.inputs[u]
        z, action = x[..., :n], x[..., n : n + p]
        outputs = self.outputs(z)
        if self._bounds is None:
            action.copy_(outputs[-1])
        else:
            torch.clamp(outputs[-1], *self._bounds, out=action)
        g = self.layout.input_gradient(self.critics, x, slice(n, n + p), self._h1)
        if self._bounds is not None:
            g.mul_(action == outputs[-1])  # beyond the box an action changes nothing
        self.descend(z, outputs, g, self.rates[u])


class Draws:
    """The random numbers of one run's lesson, drawn on the device."""

    def __init__(self, lesson: TD3Lesson, device: str):
        self._critics, self._actors = (
            torch.Generator(device).manual_seed(int(lesson.stream(which).integers(2**63))) for which in (0, 1)
        )

    def critics(self, rows: Tensor, noise: Tensor, high: int) -> None:
        """Fill in rows (U, B) below `high`, and standard normal noise (U, B, p), of the next updates."""
        rows.random_(0, high, generator=self._critics)
        noise.normal_(generator=self._critics)

    def actors(self, rows: Tensor, high: int) -> None:
        """Fill in rows (g, U, B) of the next updates of the actors."""
        rows.random_(0, high, generator=self._actors)


@dataclass
class _Batch:
    """The arrays for several runs, and the recorded updates of them."""

    critics: CriticBatch
    actors: ActorBatch
    train_critics: Update
    train_actors: Update


class TD3Trainer(DeviceTrainer[TD3Lesson, _Batch]):
    """Carries out the TD3 lessons of several runs in one batch."""

    def __init__(self, device: str, draws: Callable[[TD3Lesson, str], Any] = Draws):
        super().__init__(device, draws)

    def _train(self, lessons: Sequence[TD3Lesson], owners: Sequence[Any], made: _Batch) -> list[Memory | OffrankError]:
        rows = _Rows(lessons, [self._replays[owner] for owner in owners], self._draws, self._device)
        self._load(made.critics, [lesson.critics for lesson in lessons], owners)
        self._train_critics(lessons, made, rows)
        self._train_actors(lessons, made, rows)
        return self._outcomes(lessons, self._unload(made.critics, owners), made.actors)

    def _train_critics(self, lessons: Sequence[TD3Lesson], made: _Batch, rows: _Rows) -> None:
        """All updates of the critics. A graph never goes beyond a run's share: then its first critic is kept."""
        critics, settings, g = made.critics, lessons[0].settings, len(lessons[0].thetas)
        made.actors.critics.zero_()
        plans = [_pieces(lesson.shares) for lesson in lessons]
        length = max(map(len, plans))
        rates = np.zeros((length, UNROLLED, 4, 2, critics.runs, 1), dtype=np.float32)
        members = np.zeros((length, len(lessons)), dtype=np.int64)
        for r, (lesson, plan) in enumerate(zip(lessons, plans, strict=True)):
            step = int(lesson.critics["step"])
            for k, (member, count) in enumerate(plan):
                rates[k, :count, :3, :, r] = adam_rates(settings.critic_rate, step, count)[:, :, None, None]
                rates[k, :count, 3, :, r] = settings.slow
                members[k, r], step = member, step + count
        rates = upload(rates, self._device).flatten(3, 4)
        members = upload(members, self._device)
        for k in range(length):
            rows.feed_critics(critics, members[k], [r for r, plan in enumerate(plans) if k < len(plan)])
            critics.rates.copy_(rates[k])
            made.train_critics()
            for r, plan in enumerate(plans):
                if k < len(plan) and (k + 1 == len(plan) or plan[k + 1][0] != plan[k][0]):
                    made.actors.critics[r * g + plan[k][0]] = critics.values[0, 0, r]

    def _train_actors(self, lessons: Sequence[TD3Lesson], made: _Batch, rows: _Rows) -> None:
        actors, settings, g = made.actors, lessons[0].settings, len(lessons[0].thetas)
        start = np.zeros(tuple(actors.thetas.shape), dtype=np.float32)
        start[: len(lessons) * g] = np.concatenate([lesson.thetas for lesson in lessons])
        actors.thetas.copy_(torch.as_tensor(start))
        actors.begin()
        most = max(lesson.actor_updates for lesson in lessons)
        length = -(-most // UNROLLED)
        rates = np.zeros((length * UNROLLED, 3, len(actors.thetas), 1), dtype=np.float32)
        for r, lesson in enumerate(lessons):
            one = adam_rates(settings.actor_rate, 0, lesson.actor_updates)[:, :, None, None]
            rates[: lesson.actor_updates, :, r * g : (r + 1) * g] = one
        rates = upload(rates, self._device).view(length, UNROLLED, 3, -1, 1)
        for k in range(length):
            rows.feed_actors(actors, [r for r, lesson in enumerate(lessons) if k * UNROLLED < lesson.actor_updates])
            actors.rates.copy_(rates[k])
            made.train_actors()

    def _outcomes(
        self, lessons: Sequence[TD3Lesson], nets: Sequence[Sequence[Memory]], actors: ActorBatch
    ) -> list[Memory | OffrankError]:
        g = len(lessons[0].thetas)
        thetas = actors.thetas.cpu().numpy().astype(np.float64)
        out: list[Memory | OffrankError] = []
        for r, lesson in enumerate(lessons):
            try:
                out.append(lesson.outcome(nets[r], thetas[r * g : (r + 1) * g]))
            except OffrankError as error:
                out.append(error)
        return out

    def _make(self, lesson: TD3Lesson, runs: int) -> _Batch:
        settings, policy = lesson.settings, lesson.policy
        layout = Layout(policy.n + policy.p, settings.hidden)
        how = settings.batch, UNROLLED, self._device
        critics = CriticBatch(layout, runs, *how)
        bounds = bounds_on(lesson.space, self._device)
        actors = ActorBatch(policy, bounds, layout, runs * len(lesson.thetas), *how)
        recorded = (self._record(partial(_unrolled, batch.update)) for batch in (critics, actors))
        return _Batch(critics, actors, *recorded)


class _Rows(TransitionRows):
    """Draws and gathers the batches of several runs' updates."""

    def __init__(
        self,
        lessons: Sequence[TD3Lesson],
        replays: Sequence[DeviceReplay],
        draws: Callable[[TD3Lesson, str], Any],
        device: str,
    ):
        first, runs = lessons[0], len(lessons)
        self._settings, self._policy, self._g, B = first.settings, first.policy, len(first.thetas), first.settings.batch
        super().__init__(lessons, replays, UNROLLED * B, device)
        self._draws = [draws(lesson, device) for lesson in lessons]
        thetas = np.stack([lesson.thetas for lesson in lessons]).astype(np.float32)
        self._thetas = upload(thetas, device)  # (runs, g, d)
        self._bounds = bounds_on(first.space, device)
        self._each = torch.arange(runs, device=device)
        integers = partial(torch.zeros, dtype=torch.int64, device=device)
        self._noise = torch.zeros(runs, UNROLLED, B, self.p, device=device)
        self._drawn, self._at = integers(runs, UNROLLED * B), integers(runs, UNROLLED * B, 2)
        count = self._g * UNROLLED * B  # of the actors' rows
        self._actors_drawn, self._actors_at = integers(runs, count), integers(runs, count, 2)
        self._actors_seen = torch.zeros(runs, count, self.width, device=device)

    def feed_critics(self, critics: CriticBatch, members: Tensor, going: Sequence[int]) -> None:
        """Draw the batches of the next updates of the critics of some runs. Their targets are at the actions of one
        actor each, `members` (runs,)."""
        settings, n, p, runs = self._settings, self.n, self.p, len(self.rings)
        for r in going:
            drawn = self._drawn[r]
            self._draws[r].critics(drawn.view(UNROLLED, -1), self._noise[r], len(self.transitions[r]))
            torch.index_select(self.transitions[r], 0, drawn, out=self._at[r])
        self.look_up(self._at, going)
        later = self.feed(critics, 0, 1.0)
        action = clipped(self._policy.act_together(self._thetas[self._each, members], later), self._bounds)
        eps = (settings.target_noise * self._noise).clamp_(-settings.target_noise_clip, settings.target_noise_clip)
        action = clipped(action + eps.flatten(1, 2), self._bounds)
        critics.inputs[1, :, :runs, ..., n : n + p] = action.view(runs, UNROLLED, -1, p)

    def feed_actors(self, actors: ActorBatch, going: Sequence[int]) -> None:
        """Draw the batches of the next updates of the actors of some runs."""
        g, runs = self._g, len(self.rings)
        for r in going:
            drawn = self._actors_drawn[r]
            self._draws[r].actors(drawn.view(g, UNROLLED, -1), len(self.transitions[r]))
            torch.index_select(self.transitions[r], 0, drawn, out=self._actors_at[r])
            torch.index_select(self.rings[r], 0, self._actors_at[r, :, 0], out=self._actors_seen[r])
        z = self.normalised(self._actors_seen[..., : self.n]).view(runs * g, UNROLLED, -1, self.n)
        actors.inputs[:, : runs * g, :, : self.n] = z.transpose(0, 1)


def _pieces(shares: Sequence[int]) -> list[tuple[int, int]]:
    """A run's updates of the critics, as (actor, number of updates) per graph. A share of none has one piece too."""
    return [
        (member, min(UNROLLED, share - begin))
        for member, share in enumerate(shares)
        for begin in range(0, max(share, 1), UNROLLED)
    ]


def _unrolled(update: Callable[[int], None]) -> None:
    for u in range(UNROLLED):
        update(u)


@cache
def trainer_on(device: str) -> TD3Trainer:
    """The trainer of a device, which keeps what it made there."""
    return TD3Trainer(device)
