"""The GPU engine. Small tests on Warp's CPU device, which is slow but has the same kernels; `make test-gpu` (pytest
--gpu) runs the same tests on a GPU, on all six tasks and in full."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ks_2samp

from helpers import pair_request, request_of
from offrank.core.candidates import These
from offrank.core.errors import EngineError, EpisodeError, UsageError
from offrank.core.noise import Directions, Role, episode_seeds
from offrank.core.normalizer import Whitening
from offrank.core.policy import Policy
from offrank.core.rollouts import Request, Rollouts
from offrank.engines import Gpu, make_engine
from offrank.engines.base import Engine
from offrank.engines.native.engine import MujocoEngine
from offrank.policies import make_policy
from offrank.runs.config import configure
from offrank.runs.drive import drive
from offrank.runs.opening import open_run
from offrank.runs.recipe import resolve
from offrank.runs.saved import Saved
from offrank.tasks import TASKS

pytest.importorskip("mujoco_warp", reason="pip install 'offrank[gpu]'")

import warp as wp

from offrank.engines.warp import mjwarp
from offrank.engines.warp.engine import Demand, WarpEngine
from offrank.engines.warp.mjwarp import aligned_mjwarp, device_model
from offrank.engines.warp.newton import Newton
from offrank.engines.warp.policies import Policies, as_ints
from offrank.engines.warp.rows import sort_rows
from offrank.engines.warp.substep import Substep

POLICIES = Path(__file__).parents[1] / "policies"
SMALL = (
    "Hopper-v3",
    "Ant-v3",
)  # tasks on the CPU device: one that falls; one with stale body positions and steep capsules
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def device(request: pytest.FixtureRequest) -> str:
    return "cuda:0" if request.config.getoption("--gpu") else "cpu"


@pytest.fixture(scope="module", params=list(TASKS))
def engine(request: pytest.FixtureRequest, device: str) -> WarpEngine:
    if device == "cpu" and request.param not in SMALL:
        pytest.skip("on a GPU only")
    # fewer worlds than episodes: they are reused
    return WarpEngine(TASKS[request.param], Gpu(worlds=3 if device == "cpu" else 128, device=device))


@pytest.fixture(scope="module")
def hopper(device: str) -> WarpEngine:
    return WarpEngine(TASKS["Hopper-v3"], Gpu(worlds=3 if device == "cpu" else 64, device=device))


def size(engine: WarpEngine, small: int, full: int) -> int:
    return full if engine._worlds.device.is_cuda else small


def cpu(engine: WarpEngine) -> MujocoEngine:
    return MujocoEngine(engine.task)


# --- policies


def test_policies_of_every_kind_side_by_side_act_as_in_python(device: str) -> None:
    """One world and one row per kind, and one world without an episode."""
    n, p, draws = 11, 3, np.random.default_rng(0)
    kinds = [make_policy(name, n, p) for name in ("linear", "affine", "skip:5", "mlp:4", "mlp:6,9,2", "skip:32")]
    thetas = [draws.normal(size=kind.size).astype(np.float32) / 2 for kind in kinds]
    z = draws.normal(size=(len(kinds) + 1, n)).astype(np.float32)
    with wp.ScopedDevice(device):
        policies = Policies(rows=20, worlds=len(z), actions=p)
        rows = [7, 3, 19, 0, 11, 5]
        assert policies.load(as_ints(rows[:2]), kinds[:2], thetas[:2])
        assert policies.load(as_ints(rows[2:]), kinds[2:], thetas[2:])  # larger: existing parameters must be kept
        assert not policies.load(as_ints(rows[:1]), kinds[:1], thetas[:1])  # nothing new
        ctrl = wp.full((len(z), p), 99.0, dtype=float)
        policies.act(as_ints([*rows, -1]), wp.array(z, dtype=float), ctrl)
        found = ctrl.numpy()
    for w, (kind, theta) in enumerate(zip(kinds, thetas, strict=True)):
        np.testing.assert_allclose(found[w], kind.act(theta.astype(float), z[w].astype(float)), rtol=1e-4, atol=1e-5)
    assert np.array_equal(found[-1], np.zeros(p))


def test_clipped_actions_stay_in_the_bounds(device: str) -> None:
    kind = make_policy("skip:5", 4, 2)
    theta = 5 * np.random.default_rng(0).normal(size=kind.size).astype(np.float32)
    low, high = np.array([-0.5, -1.0]), np.array([0.25, 2.0])
    z = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
    with wp.ScopedDevice(device):
        policies = Policies(rows=1, worlds=6, actions=2, box=(low, high))
        policies.load(as_ints([0]), [kind], [theta])
        ctrl = wp.zeros((6, 2), dtype=float)
        policies.act(as_ints([0] * 6), wp.array(z, dtype=float), ctrl)
        found = ctrl.numpy()
    expected = np.clip(kind.act(theta.astype(float), z.astype(float)), low, high)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert (found == low.astype(np.float32)).any() and (found == high.astype(np.float32)).any()


@pytest.mark.parametrize("policy", ["affine", "skip:4", "mlp:5,3"])
def test_episodes_of_any_policy_agree_with_the_cpu(hopper: WarpEngine, policy: str) -> None:
    request = pair_request(hopper.space, 3, horizon=12, keep=True, scale=0.3, policy=policy)
    mine, other = hopper.run(request), cpu(hopper).run(request)
    gaps = [
        np.abs(a.observations[:8] - b.observations[:8]).max()
        for a, b in zip(mine.trajectories, other.trajectories, strict=True)
        if min(len(a.rewards), len(b.rewards)) >= 8
    ]
    assert len(gaps) >= 3 and np.median(gaps) < 2e-3


def test_noise_on_the_actions_is_that_of_the_cpu(hopper: WarpEngine) -> None:
    """Of some episodes beside others without, in slots that are used again."""
    quiet = pair_request(hopper.space, 3, horizon=12, keep=True, scale=0.1)
    for seed in (0, 20):
        noisy = replace(quiet, noise=np.full(hopper.space.act_dim, 0.4), seeds=quiet.seeds + seed)
        tickets = [hopper.submit(request) for request in (noisy, quiet)]
        found: dict[int, Rollouts] = {}
        while len(found) < 2:
            found |= dict(hopper.completed())
        for ticket, request in zip(tickets, (noisy, quiet), strict=True):
            expected = cpu(hopper).run(request)
            pairs = zip(found[ticket].trajectories, expected.trajectories, strict=True)
            gaps = [np.abs(a.observations[:6] - b.observations[:6]).max() for a, b in pairs]
            assert np.median(gaps) < 2e-3


def test_episodes_are_counted_beyond_31_bits(hopper: WarpEngine) -> None:
    """The counters of a long fleet: finished episodes, and rows taken from the queue."""
    worlds, request = hopper._worlds, pair_request(hopper.space, 3, horizon=6)
    before = hopper.run(request)
    start = 2**31 - 3
    start += -start % worlds.rows  # a multiple of the ring buffer's length, so that positions do not change
    for name in ("head", "tail", "finished"):
        worlds.a[name].fill_(start)
    worlds._tail = worlds._seen = start
    assert np.array_equal(hopper.run(request).totals, before.totals)
    assert worlds._seen > 2**31
    worlds.clear()


# --- the same task as on the CPU


def test_short_episodes_agree_with_the_cpu_step_by_step(engine: WarpEngine) -> None:
    pairs, horizon = size(engine, 3, 100), 25
    request = pair_request(engine.space, pairs, horizon=horizon, keep=True, scale=0.1)
    mine, other = engine.run(request), cpu(engine).run(request)
    # float32 differs in the seventh digit, and an impact amplifies it: most episodes agree closely, all of them roughly
    observations, rewards, same_end = [], [], []
    for a, b in zip(mine.trajectories, other.trajectories, strict=True):
        same_end.append(a.terminated == b.terminated and len(a.rewards) == len(b.rewards))
        common = min(len(a.rewards), len(b.rewards), 10)
        observations.append(np.abs(a.observations[:common] - b.observations[:common]).max())
        rewards.append(np.abs(a.rewards[:common] - b.rewards[:common]).max())
    assert np.mean(same_end) > 0.95
    assert np.median(observations) < 2e-3 and np.median(rewards) < 2e-3
    assert np.quantile(observations, 0.9) < 0.1 and np.quantile(rewards, 0.9) < 0.1


def test_falls_come_at_the_same_step_as_on_the_cpu(engine: WarpEngine) -> None:
    if not engine.task.bounds:
        pytest.skip("this task never ends early")
    request = pair_request(engine.space, size(engine, 3, 100), horizon=size(engine, 25, 40), scale=0.1)
    mine, other = engine.run(request), cpu(engine).run(request)
    assert (other.lengths < request.horizon).mean() > 0.3
    assert np.mean(np.abs(mine.lengths - other.lengths) <= 1) > 0.9


def moving(engine: WarpEngine, count: int) -> dict[str, Any]:
    """States and controls with contacts, limits and speed."""
    model, draws = device_model(engine.task), np.random.default_rng(0)
    qpos = model.qpos0 + draws.uniform(-0.2, 0.2, (count, model.nq))
    return {
        "qpos": qpos,
        "qvel": draws.normal(0, 1, (count, model.nv)),
        "ctrl": draws.uniform(-1, 1, (count, model.nu)),
    }


def test_a_substep_is_that_of_mujoco_warp(engine: WarpEngine) -> None:
    mjw, model, count = aligned_mjwarp(), device_model(engine.task), size(engine, 4, 64)
    found = []
    with wp.ScopedDevice(engine._worlds.device):
        m = mjw.put_model(model)
        m.opt.deterministic = True
        for mine in (False, True, True):
            d = mjw.make_data(model, nworld=count)
            for name, values in moving(engine, count).items():
                getattr(d, name).assign(values.astype(np.float32))
            substep = Substep(m, d) if mine else partial(mjw.step, m, d)
            for _ in range(5):
                substep()
            found.append([a.numpy() for a in (d.qpos, d.qvel, d.qacc_warmstart)])
    theirs, mine, again = found
    assert np.abs(theirs[2]).max() > 10  # it moves and has constraint forces
    for a, b, c, tolerance in zip(theirs, mine, again, (1e-5, 1e-4, 1e-2), strict=True):
        np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance)
        np.testing.assert_array_equal(b, c)


def test_another_version_of_mujoco_warp_runs_by_its_own_substep(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mjwarp, "KNOWN", "0.0.")
    for cached in (mjwarp.knows_inside, mjwarp.aligned_mjwarp):
        cached.cache_clear()
    try:
        with pytest.warns(UserWarning, match=r"mujoco_warp \d.* runs by its own substep, which is slower"):
            other = make_engine("Hopper-v3", "warp", gpu=Gpu(worlds=8, device=device))
        assert isinstance(other, WarpEngine) and not isinstance(other._worlds.substep, Substep)
        request = pair_request(other.space, 3, horizon=12, keep=True, scale=0.1)
        pairs = zip(other.run(request).trajectories, cpu(other).run(request).trajectories, strict=True)
        assert np.median([np.abs(a.observations[:8] - b.observations[:8]).max() for a, b in pairs]) < 2e-3
        other.close()
    finally:
        mjwarp.knows_inside.cache_clear()
        mjwarp.aligned_mjwarp.cache_clear()


def test_accelerations_minimise_the_cost_of_the_constrained_problem(engine: WarpEngine) -> None:
    mjw, model, count = aligned_mjwarp(), device_model(engine.task), size(engine, 6, 64)
    with wp.ScopedDevice(engine._worlds.device):
        m, d = mjw.put_model(model), mjw.make_data(model, nworld=count)
        for name, values in moving(engine, count).items():
            getattr(d, name).assign(values.astype(np.float32))
        mjw.forward(m, d)  # rows, forces, and the accelerations it finds
        theirs, newton = d.qacc.numpy().astype(float), Newton(m, d)
        newton()
        mine, pushed = d.qacc.numpy().astype(float), d.qfrc_constraint.numpy()
        assert (d.solver_niter.numpy() > 0).all() and np.isfinite(mine).all()
        start, count_rows, address = m.M_rowadr.numpy(), m.M_rownnz.numpy(), m.M_colind.numpy()
        values, force = d.M.numpy().astype(float), d.qfrc_smooth.numpy().astype(float)
        J, D, aref = (a.numpy().astype(float) for a in (d.efc.J, d.efc.D, d.efc.aref))
        rows = d.nefc.numpy()
    for w in range(count):
        M = np.zeros((model.nv, model.nv))
        for i in range(model.nv):
            at = np.arange(start[i], start[i] + count_rows[i])
            M[i, address[at]] = M[address[at], i] = values[w, at]
        Jw, Dw, arefw = J[w, : rows[w], : model.nv], D[w, : rows[w]], aref[w, : rows[w]]

        def cost(x: Any, M: Any = M, J: Any = Jw, D: Any = Dw, aref: Any = arefw, q: Any = force[w]) -> float:
            return float(x @ M @ x / 2 - q @ x + (D * np.minimum(J @ x - aref, 0) ** 2).sum() / 2)

        scale = abs(cost(theirs[w])) + abs(cost(np.zeros(model.nv)))
        assert cost(mine[w]) - cost(theirs[w]) <= 1e-7 * scale
        expected = -Jw.T @ (Dw * np.minimum(Jw @ mine[w] - arefw, 0))
        np.testing.assert_allclose(pushed[w], expected, rtol=1e-3, atol=1e-3 * max(1.0, np.abs(expected).max()))
    assert (rows > 0).any() or engine.task.name == "Swimmer-v3"


def test_rows_of_constraints_are_sorted_from_any_order(device: str) -> None:
    mjw, model = aligned_mjwarp(), device_model(TASKS["Humanoid-v3"])
    draws, count = np.random.default_rng(0), 3
    fields = ("type", "id", "pos", "margin", "D", "vel", "aref", "frictionloss", "Jqvel", "J")
    with wp.ScopedDevice(device):
        m, d = mjw.put_model(model), mjw.make_data(model, nworld=count)
        qpos = model.qpos0 + draws.uniform(-0.4, 0.4, (count, model.nq))
        qpos[:, 2] -= 0.6  # on the floor, and bent into itself
        d.qpos.assign(qpos.astype(np.float32))
        d.qvel.assign(draws.normal(size=(count, model.nv)).astype(np.float32))
        mjw.forward(m, d)

        def rows() -> dict[str, Any]:
            seen = {name: getattr(d.efc, name).numpy().copy() for name in fields}
            return {**seen, "address": d.contact.efc_address.numpy().copy()}

        sort_rows(m, d)
        ordered, rows_of = rows(), d.nefc.numpy()
        kinds = {world: set(ordered["type"][world, : rows_of[world]]) for world in range(count)}
        assert {3, 5, 6} <= kinds[0] and rows_of.min() > 0  # limits, contacts without friction and with
        shuffled = {name: values.copy() for name, values in ordered.items()}
        for world in range(count):
            things = list(zip(ordered["type"][world], ordered["id"][world], strict=True))[: rows_of[world]]
            together = [[r for r, other in enumerate(things) if other == thing] for thing in dict.fromkeys(things)]
            came = [together[i] for i in draws.permutation(len(together))]  # the rows of a contact stay together
            for place, r in enumerate(r for some in came for r in some):
                for name in fields:
                    shuffled[name][world, place] = ordered[name][world, r]
                if things[r][0] >= 5:
                    contact = things[r][1]
                    shuffled["address"][contact][ordered["address"][contact] == r] = place
        assert any((shuffled[name] != ordered[name]).any() for name in fields)
        for name in fields:
            getattr(d.efc, name).assign(shuffled[name])
        d.contact.efc_address.assign(shuffled["address"])
        sort_rows(m, d)
    for name, values in rows().items():
        np.testing.assert_array_equal(values, ordered[name], err_msg=name)


@pytest.mark.parametrize("policy", ["random", "half", "trained"])
def test_whole_episodes_are_distributed_as_on_the_cpu(engine: WarpEngine, policy: str) -> None:
    name, file = engine.task.name, POLICIES / f"{engine.task.name}-{policy}.offrank"
    if policy != "random" and not file.is_file():
        pytest.skip(f"no such policy of {name}")
    if not engine._worlds.device.is_cuda and (policy != "random" or name != "Hopper-v3"):
        pytest.skip("on a GPU only")  # whole episodes of a walking policy take hours on Warp's CPU device
    count = size(engine, 8, 200)
    fixed = fixed_policy(engine, file if policy != "random" else None)
    mine, other = (on.run(evaluation(on, *fixed, count, seed)) for on, seed in ((engine, 0), (cpu(engine), 1)))
    for a, b in ((mine.totals, other.totals), (mine.lengths, other.lengths)):
        assert ks_2samp(a, b).pvalue > 1e-3, (summary(mine), summary(other))
    p = ks_2samp(mine.totals, other.totals).pvalue
    print(f"{name} {policy}: GPU {summary(mine)}, CPU {summary(other)}, p = {p:.3f}")


def fixed_policy(engine: WarpEngine, file: Path | None) -> tuple[Policy, Any, Whitening]:
    if file is not None:
        policy = Saved.read(file).policy
        return policy.kind, policy.theta, policy.whitening
    kind = make_policy("linear", engine.space.obs_dim, engine.space.act_dim)
    scale = 0.05 if engine._worlds.device.is_cuda else 0.5  # on the CPU device, one that falls at once
    return kind, scale * Directions(5, 0, 1, kind.size).one(0), Whitening.identity(kind.n)


def evaluation(on: Engine, kind: Policy, theta: Any, whitening: Whitening, count: int, seed: int) -> Request:
    seeds = episode_seeds(seed, 0, Role.EVALUATION, np.arange(count))
    return request_of(kind, theta, whitening, seeds, on.space.horizon)


def summary(found: Rollouts) -> str:
    return f"{found.totals.mean():.1f} ± {found.totals.std():.1f} over {found.lengths.mean():.0f} steps"


# --- results


def test_moments_on_the_device_are_those_of_the_states(hopper: WarpEngine) -> None:
    request = pair_request(hopper.space, 2, horizon=12)
    lean, kept = hopper.run(request), hopper.run(replace(request, keep=True))
    assert lean.trajectories == () and len(kept.trajectories) == 4
    np.testing.assert_allclose(lean.totals, kept.totals, rtol=1e-6)
    np.testing.assert_allclose(lean.moments.mean, kept.moments.mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(lean.moments.m2, kept.moments.m2, rtol=1e-7, atol=1e-12)


def test_requests_share_the_worlds_and_a_failed_one_leaves_the_others_alone(hopper: WarpEngine) -> None:
    good = pair_request(hopper.space, 2, horizon=20)
    bad = replace(pair_request(hopper.space, 2, horizon=20, seed=50), candidates=These(np.full((4, 33), np.nan)))
    tickets = [hopper.submit(good), hopper.submit(bad), hopper.submit(good)]
    found: dict = {}
    while len(found) < 3:
        found |= dict(hopper.completed(timeout=1.0))
    assert isinstance(found[tickets[1]], EpisodeError) and found[tickets[1]].seed in range(50, 54)
    assert np.array_equal(found[tickets[0]].lengths, found[tickets[2]].lengths)


def test_a_dropped_request_frees_its_worlds(hopper: WarpEngine) -> None:
    request = pair_request(hopper.space, 2, horizon=10)
    dropped, kept = hopper.submit(request), hopper.submit(request)
    hopper.completed(timeout=0.0)
    hopper.drop(dropped)
    found: list = []
    while not found:
        found = hopper.completed(timeout=1.0)
    assert [ticket for ticket, _ in found] == [kept] and hopper.completed(timeout=0.0) == []
    assert np.array_equal(found[0][1].lengths, hopper.run(request).lengths)


def test_training_has_priority_and_evaluation_uses_the_free_worlds(device: str) -> None:
    engine = WarpEngine(TASKS["Hopper-v3"], Gpu(worlds=4, device=device))
    evaluating = engine.submit(replace(evaluation(engine, *fixed_policy(engine, None), 8, 0), horizon=12))
    training = engine.submit(pair_request(engine.space, 1, horizon=12))
    engine._upload()
    kinds = [is_training for _, _, is_training in engine._rows.values()]
    # evaluation was submitted first, but gets the worlds that training leaves free
    assert kinds.count(True) == 2 and kinds.count(False) == 2
    order = []
    while len(order) < 2:
        order += [ticket for ticket, _ in engine.completed(timeout=1.0)]
    assert order == [training, evaluating]


def test_demand_remembers_the_peak_of_the_last_windows() -> None:
    demand = Demand(3)
    assert [demand.peak(n) for n in (5, 2, 0, 0, 1, 0, 0, 0, 0)] == [5, 5, 5, 5, 5, 5, 1, 1, 1]


# --- equal bits


def test_deterministic_runs_have_equal_bits_over_a_resume_and_any_number_of_worlds(device: str, tmp_path: Path) -> None:
    full = device != "cpu"
    task = "HalfCheetah-v3" if full else "Hopper-v3"
    recipe = resolve(task, "op-ars", None, {} if full else {"n_directions": 4, "n_top": 2, "n_behaviour": 1})
    iterations = 6 if full else 2

    def go(worlds: int, folder: Path | None = None, **limits: Any) -> str:
        engine = WarpEngine(TASKS[task], Gpu(worlds, device, deterministic=True))
        settings = {"engine": "warp", "eval_every": 2, "eval_episodes": 2, "horizon": 200 if full else 8}
        run = open_run(
            configure(task, recipe, engine.space, **settings, **limits), engine.space, folder, folder is not None
        )
        drive([run], engine)
        return run.policy.sha256

    whole = go(64 if full else 4, iterations=iterations)
    assert go(7 if full else 2, iterations=iterations) == whole
    go(64 if full else 4, tmp_path / "run", iterations=iterations // 2)
    assert go(64 if full else 4, tmp_path / "run", iterations=iterations) == whole


# --- errors


def test_without_a_gpu_it_says_what_to_do() -> None:
    import warp as wp

    if wp.is_cuda_available():
        pytest.skip("there is a GPU")
    with pytest.raises(EngineError, match="no NVIDIA GPU or no working driver: use --engine mujoco"):
        make_engine("Hopper-v3", "warp")
    with pytest.raises(EngineError, match="there is no device 'cuda:7': one of cpu"):
        make_engine("Hopper-v3", "warp", gpu=Gpu(device="cuda:7"))


@pytest.mark.parametrize("error", [RuntimeError("Failed to allocate 9 bytes"), ValueError("shapes must not exceed")])
def test_too_many_worlds_are_one_clear_line(device: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    from offrank.engines.warp.worlds import Worlds

    def full(self: Worlds, deterministic: bool, box: Any) -> None:
        raise error

    if device == "cpu":  # its memory would be filled before an error is raised
        monkeypatch.setattr(Worlds, "_allocate", full)
    with pytest.raises(EngineError, match=r"has no room for .* worlds of Hopper-v3 .*give --worlds a smaller number"):
        WarpEngine(TASKS["Hopper-v3"], Gpu(worlds=50_000_000, device=device))


def test_it_runs_our_tasks_only() -> None:
    with pytest.raises(UsageError, match="the warp engine runs Swimmer-v3"):
        make_engine("Pendulum-v1", "warp")
    with pytest.raises(UsageError, match="worlds = 0: must be at least 1"):
        Gpu(worlds=0)
