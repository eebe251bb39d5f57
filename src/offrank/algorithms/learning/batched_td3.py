"""The TD3 lessons of many runs as one computation on a device, with PyTorch.

The updates are those of `TD3Lesson.carry_out`, with a leading axis: of the runs for the critics, then of all runs'
actors. What differs are sums in another order, and the random rows and noise, which are drawn on the device. Those of a
run depend on its seed and iteration only, not on the runs beside it. On a GPU the time of an update is the number of
its kernels, so there are few of them, and UNROLLED updates are one recorded graph:

- A network is a row of one array, so that Adam is a few operations on all networks together. Biases are further rows
  of the weights (`Layout`): no sums and additions of their own.
- The critics and their slow copies are evaluated together.
- The batches of the next UNROLLED updates are gathered at once, between two graphs.

Runs have different numbers of updates. An update that a run does not have moves nothing: its rates are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from offrank.algorithms.learning import networks
from offrank.algorithms.learning.device import DeviceReplay, Tensor, Update, recorder
from offrank.algorithms.learning.networks import EPSILON, NETWORKS, NEW1, NEW2
from offrank.algorithms.learning.td3 import TD3Lesson
from offrank.core.arrays import Memory, part
from offrank.core.errors import EngineError, OffrankError
from offrank.core.policy import Policy
from offrank.core.space import Space

Bounds = tuple[Tensor, Tensor] | None

UNROLLED = 20  # updates per graph
ALIGNED = 8  # matrices have a multiple of this many rows, for the speed of their products


class Layout:
    """A network with two hidden layers as a row (P,): its three matrices (rows, outputs), one after the other.

    The rows of a matrix are the weights of the inputs, then the biases, then zeros. So inputs and hidden layers have as
    many columns: the values, then a 1, then zeros.
    """

    def __init__(self, inputs: int, hidden: int):
        self.inputs, self.hidden = inputs, hidden
        self.shapes = [(_aligned(inputs + 1), hidden), (_aligned(hidden + 1), hidden), (_aligned(hidden + 1), 1)]
        self._ends = [0, *np.cumsum([rows * outputs for rows, outputs in self.shapes]).tolist()]
        self.size = _aligned(self._ends[-1])

    def matrices(self, rows: Any) -> list[Any]:
        """Views (L, rows, outputs) of the matrices of networks (L, P), NumPy's or PyTorch's."""
        parts = zip(pairwise(self._ends), self.shapes, strict=True)
        return [rows[:, begin:end].reshape(len(rows), *shape) for (begin, end), shape in parts]

    def packed(self, nets: Memory) -> Any:
        """Networks of `networks.py` as rows (E, P)."""
        rows = np.zeros((len(nets["w1"]), self.size), dtype=np.float32)
        for layer, matrix in enumerate(self.matrices(rows), start=1):
            into = nets[f"w{layer}"].shape[1]
            matrix[:, :into], matrix[:, into : into + 1] = nets[f"w{layer}"], nets[f"c{layer}"]
        return rows

    def unpacked(self, rows: Any) -> Memory:
        """The inverse of `packed`."""
        nets: Memory = {}
        for layer, (matrix, into) in enumerate(
            zip(self.matrices(rows), (self.inputs, self.hidden, self.hidden), strict=True), start=1
        ):
            nets[f"w{layer}"], nets[f"c{layer}"] = matrix[:, :into].copy(), matrix[:, into : into + 1].copy()
        return nets


def adam(values: Tensor, gradient: Tensor, first: Tensor, second: Tensor, rates: Tensor) -> None:
    """One update of Adam of rows (L, P), in place. `gradient` is overwritten. The rates (3, L, 1) are the shares of the
    new in both moments, and minus the step sizes."""
    first.lerp_(gradient, rates[0])
    second.lerp_(gradient.square_(), rates[1])
    step = second.sqrt().add_(EPSILON)
    values.addcmul_(torch.div(first, step, out=step), rates[2])


class CriticBatch:
    """The twin critics of C runs, and the batches of U updates of them, in arrays at fixed addresses.

    The order of the networks is (critic or slow copy, twin, run).
    """

    def __init__(self, layout: Layout, runs: int, batch: int, updates: int, device: str):
        zeros = partial(torch.zeros, device=device)
        self.layout, self.runs = layout, runs
        columns, wide = layout.shapes[0][0], layout.shapes[1][0]
        self.values = zeros(2, 2, runs, layout.size)
        self.first, self.second, self._gradient = (zeros(2 * runs, layout.size) for _ in range(3))
        self.inputs = zeros(updates, 2, 2, runs, batch, columns)  # at which the critics are trained; of their targets
        self.gain, self.boot = zeros(updates, runs, batch, 1), zeros(updates, runs, batch, 1)
        self.rates = zeros(updates, 4, 2 * runs, 1)  # Adam's, and the shares by which the slow copies follow
        self._h1, self._h2 = zeros(4 * runs, batch, wide), zeros(4 * runs, batch, wide)
        for ones in (self.inputs[..., layout.inputs], self._h1[..., layout.hidden], self._h2[..., layout.hidden]):
            ones.fill_(1)

    def update(self, u: int) -> None:
        """Update number u of the critics, and of the slow copies."""
        runs, hidden, scale = self.runs, self.layout.hidden, 2 / self.inputs.shape[-2]
        x = self.inputs[u].flatten(0, 2)
        w1, w2, w3 = self.layout.matrices(self.values.flatten(0, 2))
        # values of the critics, and targets by the slow copies
        torch.clamp(torch.bmm(x, w1), min=0, out=self._h1[..., :hidden])
        torch.clamp(torch.bmm(self._h1, w2), min=0, out=self._h2[..., :hidden])
        out, slow = torch.bmm(self._h2, w3).view(2, 2, runs, -1, 1)
        y = torch.addcmul(self.gain[u], self.boot[u], torch.minimum(slow[0], slow[1]))
        # gradient of the mean squared error of each critic
        half = 2 * runs
        h1, h2, w2, w3 = self._h1[:half], self._h2[:half], w2[:half], w3[:half]
        d3 = (out - y).flatten(0, 1)
        d2 = _where_positive(d3 * w3[:, :hidden].mT, h2[..., :hidden])
        d1 = _where_positive(torch.bmm(d2, w2[:, :hidden].mT), h1[..., :hidden])
        for place, into, d in zip(self.layout.matrices(self._gradient), (x[:half], h1, h2), (d1, d2, d3), strict=True):
            place.baddbmm_(into.mT, d, beta=0, alpha=scale)
        q, following = self.values.flatten(1, 2)
        adam(q, self._gradient, self.first, self.second, self.rates[u])
        following.lerp_(q, self.rates[u, 3])


class ActorBatch:
    """Actors (L, d) that follow a critic each, and the batches of U updates of them, in arrays at fixed addresses."""

    def __init__(
        self, policy: Policy, bounds: Bounds, layout: Layout, count: int, batch: int, updates: int, device: str
    ):
        zeros = partial(torch.zeros, device=device)
        self.policy, self.layout, self._bounds = policy, layout, bounds
        self.thetas, self.first, self.second, self._gradient = (zeros(count, policy.size) for _ in range(4))
        self.critics = zeros(count, layout.size)
        self.inputs = zeros(updates, count, batch, layout.shapes[0][0])  # of the critics; actions are filled in
        self.rates = zeros(updates, 3, count, 1)
        self._h1 = zeros(count, batch, layout.shapes[1][0])
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
        n, p, hidden = self.policy.n, self.policy.p, self.layout.hidden
        x, layers = self.inputs[u], self.policy.layers(self.thetas)
        z, action = x[..., :n], x[..., n : n + p]
        # act
        outputs: list[Tensor] = []
        for k, layer in enumerate(layers):
            y = torch.bmm(outputs[k - 1] if k else z, layer.weights.mT)
            if layer.skip is not None:
                y.baddbmm_(z, layer.skip.mT)
            if layer.bias is not None:
                y.add_(layer.bias[:, None])
            outputs.append(y.tanh_() if layer.tanh else y)
        raw = outputs[-1]
        if self._bounds is None:
            action.copy_(raw)
        else:
            torch.clamp(raw, *self._bounds, out=action)
        # gradient of the critic with respect to the action
        w1, w2, w3 = self.layout.matrices(self.critics)
        torch.clamp(torch.bmm(x, w1), min=0, out=self._h1[..., :hidden])
        y2 = torch.bmm(self._h1, w2)
        d2 = _where_positive(w3[:, :hidden].mT.expand_as(y2), y2)
        d1 = _where_positive(torch.bmm(d2, w2[:, :hidden].mT), self._h1[..., :hidden])
        g = torch.bmm(d1, w1[:, n : n + p].mT)
        if self._bounds is not None:
            g.mul_(action == raw)  # beyond the box an action changes nothing
        # and with respect to the parameters
        places = self.policy.layers(self._gradient)
        for k in reversed(range(len(layers))):
            if layers[k].tanh:
                g = torch.ops.aten.tanh_backward(g, outputs[k])
            torch.bmm(g.mT, outputs[k - 1] if k else z, out=places[k].weights)
            if layers[k].skip is not None:
                torch.bmm(g.mT, z, out=places[k].skip)
            if layers[k].bias is not None:
                torch.sum(g, 1, out=places[k].bias)
            if k:
                g = torch.bmm(g, layers[k].weights)
        adam(self.thetas, self._gradient, self.first, self.second, self.rates[u])


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


class TD3Trainer:
    """Carries out the lessons of several runs in one batch. What it makes on the device is kept: a replay buffer per
    run, and the arrays and graphs for a number of runs.

    Args:
        device: a PyTorch device name.
        draws: makes the random numbers of a lesson.
    """

    def __init__(self, device: str, draws: Callable[[TD3Lesson, str], Any] = Draws):
        self._device, self._draws, self._record = device, draws, recorder(device)
        self._batches: dict[Any, _Batch] = {}
        self._replays: WeakKeyDictionary[Any, DeviceReplay] = WeakKeyDictionary()

    def train(self, lessons: Sequence[TD3Lesson], owners: Sequence[object]) -> list[Memory | OffrankError]:
        """Carry out lessons with equal batch keys. Returns each one's result, or its error.

        Args:
            lessons: one per run.
            owners: the run of each lesson; its replay buffer on the device is identified by it.

        Raises:
            EngineError: there is not enough memory on the device.
        """
        try:
            return self._train(lessons, owners)
        except torch.cuda.OutOfMemoryError:
            self._batches.clear()
            self._replays.clear()
        raise EngineError(
            f"{self._device} has no room for the lessons of {len(lessons)} runs, with a replay of "
            f"{lessons[0].settings.replay:,} transitions each: train fewer runs at a time, or set a smaller replay"
        )

    def _train(self, lessons: Sequence[TD3Lesson], owners: Sequence[object]) -> list[Memory | OffrankError]:
        for ended in [owner for owner in self._replays if getattr(owner, "done", False)]:
            del self._replays[ended]  # it may be kept by someone else, but needs no room here
        for owner, lesson in zip(owners, lessons, strict=True):
            if owner not in self._replays:
                self._replays[owner] = DeviceReplay(self._device, lesson.settings.replay)
            self._replays[owner].update(lesson.replay)
        made = self._batch(lessons[0], len(lessons))
        rows = _Rows(lessons, [self._replays[owner] for owner in owners], self._draws, self._device)
        self._train_critics(lessons, made, rows)
        self._train_actors(lessons, made, rows)
        return self._outcomes(lessons, made)

    def _train_critics(self, lessons: Sequence[TD3Lesson], made: _Batch, rows: _Rows) -> None:
        """All updates of the critics. A graph never goes beyond a run's share: then its first critic is kept."""
        critics, settings, g = made.critics, lessons[0].settings, len(lessons[0].thetas)
        places = (critics.values[0], critics.values[1], critics.first, critics.second)
        for which, place in zip(NETWORKS, places, strict=True):
            start = np.zeros((2, critics.runs, critics.layout.size), dtype=np.float32)
            for r, lesson in enumerate(lessons):
                start[:, r] = critics.layout.packed(part(lesson.critics, f"{which}."))
            place.copy_(_uploaded(start, self._device).view_as(place))
        made.actors.critics.zero_()
        plans = [_pieces(lesson.shares) for lesson in lessons]
        length = max(map(len, plans))
        rates = np.zeros((length, UNROLLED, 4, 2, critics.runs, 1), dtype=np.float32)
        members = np.zeros((length, len(lessons)), dtype=np.int64)
        for r, (lesson, plan) in enumerate(zip(lessons, plans, strict=True)):
            step = int(lesson.critics["step"])
            for k, (member, count) in enumerate(plan):
                rates[k, :count, :3, :, r] = _rates(settings.critic_rate, step, count)[:, :, None, None]
                rates[k, :count, 3, :, r] = settings.slow
                members[k, r], step = member, step + count
        rates, members = _uploaded(rates, self._device).flatten(3, 4), _uploaded(members, self._device)
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
        actors.thetas.copy_(_uploaded(start, self._device))
        actors.begin()
        most = max(lesson.actor_updates for lesson in lessons)
        length = -(-most // UNROLLED)
        rates = np.zeros((length * UNROLLED, 3, len(actors.thetas), 1), dtype=np.float32)
        for r, lesson in enumerate(lessons):
            one = _rates(settings.actor_rate, 0, lesson.actor_updates)[:, :, None, None]
            rates[: lesson.actor_updates, :, r * g : (r + 1) * g] = one
        rates = _uploaded(rates, self._device).view(length, UNROLLED, 3, -1, 1)
        for k in range(length):
            rows.feed_actors(actors, [r for r, lesson in enumerate(lessons) if k * UNROLLED < lesson.actor_updates])
            actors.rates.copy_(rates[k])
            made.train_actors()

    def _outcomes(self, lessons: Sequence[TD3Lesson], made: _Batch) -> list[Memory | OffrankError]:
        critics, g = made.critics, len(lessons[0].thetas)
        moments = (array.view(2, critics.runs, -1) for array in (critics.first, critics.second))
        nets = [array.cpu().numpy() for array in (*critics.values, *moments)]  # (2, runs, P) each
        thetas = made.actors.thetas.cpu().numpy().astype(np.float64)
        out: list[Memory | OffrankError] = []
        for r, lesson in enumerate(lessons):
            try:
                own = [critics.layout.unpacked(np.ascontiguousarray(rows[:, r])) for rows in nets]
                out.append(lesson.outcome(own, thetas[r * g : (r + 1) * g]))
            except OffrankError as error:
                out.append(error)
        return out

    def _batch(self, lesson: TD3Lesson, runs: int) -> _Batch:
        """The arrays and graphs for several runs: one set per power of two, and for the middle between two."""
        room = 1 << (runs - 1).bit_length()
        room = 3 * room // 4 if room >= 8 and runs <= 3 * room // 4 else room
        key = (room, lesson.batch_key)
        if key not in self._batches:
            settings, policy, space = lesson.settings, lesson.policy, lesson.space
            layout = Layout(policy.n + policy.p, settings.hidden)
            how = settings.batch, UNROLLED, self._device
            critics = CriticBatch(layout, room, *how)
            actors = ActorBatch(policy, _bounds(space, self._device), layout, room * len(lesson.thetas), *how)
            recorded = (self._record(partial(_unrolled, batch.update)) for batch in (critics, actors))
            self._batches[key] = _Batch(critics, actors, *recorded)
        return self._batches[key]


class _Rows:
    """Draws and gathers the batches of several runs' updates."""

    def __init__(
        self,
        lessons: Sequence[TD3Lesson],
        replays: Sequence[DeviceReplay],
        draws: Callable[[TD3Lesson, str], Any],
        device: str,
    ):
        first, runs = lessons[0], len(lessons)
        self._settings, self._policy, self._g = first.settings, first.policy, len(first.thetas)
        self._rings, self._starts = [replay.rows for replay in replays], [replay.starts() for replay in replays]
        self._draws = [draws(lesson, device) for lesson in lessons]
        up = partial(_uploaded, device=device)
        self._mean, self._scale = (
            up(np.stack([getattr(lesson.whitening, name) for lesson in lessons]).astype(np.float32))[:, None]
            for name in ("mean", "scale")
        )
        self._thetas = up(np.stack([lesson.thetas for lesson in lessons]).astype(np.float32))  # (runs, g, d)
        self._capacity = up(np.array([replay.capacity for replay in replays]))[:, None]
        self._bounds = _bounds(first.space, device)
        self._each = torch.arange(runs, device=device)
        self._device, self._width = device, self._rings[0].shape[1]
        B = self._settings.batch
        self._noise = torch.zeros(runs, UNROLLED, B, self._policy.p, device=device)
        self._critic_rows = self._places(runs, UNROLLED * B)
        self._actor_rows = self._places(runs, self._g * UNROLLED * B)
        self._later = torch.zeros_like(self._critic_rows[2])

    def feed_critics(self, critics: CriticBatch, members: Tensor, going: Sequence[int]) -> None:
        """Draw the batches of the next updates of the critics of some runs. Their targets are at the actions of one
        actor each, `members` (runs,)."""
        settings, policy, runs = self._settings, self._policy, len(self._rings)
        n, p, B = policy.n, policy.p, settings.batch
        drawn, at, seen = self._critic_rows
        for r in going:
            self._draws[r].critics(drawn[r].view(UNROLLED, B), self._noise[r], len(self._starts[r]))
            torch.index_select(self._starts[r], 0, drawn[r], out=at[r])
            torch.index_select(self._rings[r], 0, at[r], out=seen[r])
        ahead = (at + seen[..., -1].long()).remainder_(self._capacity)
        for r in going:
            torch.index_select(self._rings[r], 0, ahead[r], out=self._later[r])
        later = self._normalised(self._later[..., :n])
        action = self._clipped(policy.act_together(self._thetas[self._each, members], later))
        eps = (settings.target_noise * self._noise).clamp_(-settings.target_noise_clip, settings.target_noise_clip)
        action = self._clipped(action + eps.flatten(1, 2))
        x, target = critics.inputs[:, 0, :, :runs], critics.inputs[:, 1, :, :runs]  # (U, 2, runs, B, columns)

        def by_update(rows: Tensor) -> Tensor:
            """(runs, U * B, k) as (U, 1, runs, B, k)"""
            return rows.reshape(runs, UNROLLED, B, -1).transpose(0, 1)[:, None]

        x[..., :n], x[..., n : n + p] = by_update(self._normalised(seen[..., :n])), by_update(seen[..., n : n + p])
        target[..., :n], target[..., n : n + p] = by_update(later), by_update(action)
        critics.gain[:, :runs] = by_update(seen[..., n + p : n + p + 1])[:, 0]
        critics.boot[:, :runs] = by_update(seen[..., n + p + 1 : n + p + 2])[:, 0]

    def feed_actors(self, actors: ActorBatch, going: Sequence[int]) -> None:
        """Draw the batches of the next updates of the actors of some runs."""
        n, B, g, runs = self._policy.n, self._settings.batch, self._g, len(self._rings)
        drawn, at, seen = self._actor_rows
        for r in going:
            self._draws[r].actors(drawn[r].view(g, UNROLLED, B), len(self._starts[r]))
            torch.index_select(self._starts[r], 0, drawn[r], out=at[r])
            torch.index_select(self._rings[r], 0, at[r], out=seen[r])
        z = self._normalised(seen[..., :n]).view(runs * g, UNROLLED, B, n)
        actors.inputs[:, : runs * g, :, :n] = z.transpose(0, 1)

    def _places(self, runs: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Room for what is drawn (runs, count), its rows in the ring (runs, count), and what is there."""
        integers = partial(torch.zeros, runs, count, dtype=torch.int64, device=self._device)
        return integers(), integers(), torch.zeros(runs, count, self._width, device=self._device)

    def _normalised(self, states: Tensor) -> Tensor:
        return (states - self._mean) * self._scale

    def _clipped(self, actions: Tensor) -> Tensor:
        return actions if self._bounds is None else torch.clamp(actions, *self._bounds)


def _pieces(shares: Sequence[int]) -> list[tuple[int, int]]:
    """A run's updates of the critics, as (actor, number of updates) per graph. A share of none has one piece too."""
    return [
        (member, min(UNROLLED, share - begin))
        for member, share in enumerate(shares)
        for begin in range(0, max(share, 1), UNROLLED)
    ]


def _rates(rate: float, step: int, count: int) -> Any:
    """Adam's rates (count, 3) of the updates after number `step`."""
    sizes = networks.step_size(rate, step + 1 + np.arange(count))
    return np.stack([np.full(count, NEW1), np.full(count, NEW2), -sizes], axis=1, dtype=np.float32, casting="same_kind")


def _unrolled(update: Callable[[int], None]) -> None:
    for u in range(UNROLLED):
        update(u)


def _where_positive(values: Tensor, where: Tensor) -> Tensor:
    """The values where something is positive, and 0 elsewhere."""
    return torch.ops.aten.threshold_backward(values, where, 0)


def _bounds(space: Space, device: str) -> Bounds:
    """The environment's box on the device, as low (p,) and high (p,); None if it has none."""
    if space.low is None or space.high is None:
        return None
    low, high = (_uploaded(bound.astype(np.float32), device) for bound in (space.low, space.high))
    return low, high


def _uploaded(array: Any, device: str) -> Tensor:
    return torch.as_tensor(array, device=device)


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


@cache
def trainer_on(device: str) -> TD3Trainer:
    """The trainer of a device, which keeps what it made there."""
    return TD3Trainer(device)
