"""The kernels around the physics of a control step of the GPU engine.

`run_layer` runs before the physics, once per layer of the policies; `observe`, `reward_and_reset` and
`record_observation` run after it. The episode of a world is a row of the table of episodes, or -1. Queued episodes are
in a queue of rows; finished ones are written to a ring buffer, which the host reads.
"""

from __future__ import annotations

import warp as wp

HUGE = wp.constant(1.0e10)  # MuJoCo's limit, beyond which a coordinate has diverged
FIELDS = 5  # maximum number of simulation fields in an observation


# columns of the table of layers: offsets of a layer's parameters in theta (-1: it has none), sizes and flags
WEIGHTS, SKIP, BIAS, INPUTS, OUTPUTS, TANH, LAST = (wp.constant(column) for column in range(7))
COLUMNS = 7


@wp.kernel
def run_layer(
    k: int,
    row: wp.array(dtype=int),
    kind: wp.array(dtype=int),
    layers: wp.array3d(dtype=int),
    theta: wp.array2d(dtype=float),
    z: wp.array2d(dtype=float),
    before: wp.array2d(dtype=float),
    low: wp.array(dtype=float),
    high: wp.array(dtype=float),
    # out
    after: wp.array2d(dtype=float),
    ctrl: wp.array2d(dtype=float),
):
    """Thread (w, i): output i of layer k of the policy in world w. Outputs of the last layer are written to ctrl."""
    w, i = wp.tid()
    r = row[w]
    if r < 0:
        if k == 0 and i < ctrl.shape[1]:
            ctrl[w, i] = 0.0
        return
    q = kind[r]
    if i >= layers[q, k, OUTPUTS]:  # 0 where the policy has fewer layers
        return
    inputs = layers[q, k, INPUTS]
    first = layers[q, k, WEIGHTS] + i * inputs
    total = float(0.0)
    if k == 0:
        for j in range(inputs):
            total += theta[r, first + j] * z[w, j]
    else:
        for j in range(inputs):
            total += theta[r, first + j] * before[w, j]
    if layers[q, k, SKIP] >= 0:
        first = layers[q, k, SKIP] + i * z.shape[1]
        for j in range(z.shape[1]):
            total += theta[r, first + j] * z[w, j]
    if layers[q, k, BIAS] >= 0:
        total += theta[r, layers[q, k, BIAS] + i]
    if layers[q, k, TANH] == 1:
        total = wp.tanh(total)
    if layers[q, k, LAST] == 1:
        ctrl[w, i] = wp.clamp(total, low[i], high[i])
    else:
        after[w, i] = total


@wp.kernel
def observe(
    f0: wp.array2d(dtype=float),
    f1: wp.array2d(dtype=float),
    f2: wp.array2d(dtype=float),
    f3: wp.array2d(dtype=float),
    f4: wp.array2d(dtype=float),
    which: wp.array(dtype=int),
    column: wp.array(dtype=int),
    clip: wp.array(dtype=float),
    # out
    observation: wp.array2d(dtype=float),
    diverged: wp.array(dtype=int),
):
    """Thread (w, j): entry j of an observation is column[j] of field which[j], clipped to +-clip[j]."""
    w, j = wp.tid()
    x = float(0.0)
    f = which[j]
    if f == 0:
        x = f0[w, column[j]]
    elif f == 1:
        x = f1[w, column[j]]
    elif f == 2:
        x = f2[w, column[j]]
    elif f == 3:
        x = f3[w, column[j]]
    else:
        x = f4[w, column[j]]
    if not (wp.abs(x) < HUGE):
        diverged[w] = 1
    observation[w, j] = wp.clamp(x, -clip[j], clip[j])


@wp.kernel
def reward_and_reset(
    # the task
    field: wp.array2d(dtype=float),
    first: int,
    stride: int,
    position_weights: wp.array(dtype=float),
    position_total: float,
    bound_in_qvel: wp.array(dtype=int),
    bound_index: wp.array(dtype=int),
    bound_low: wp.array(dtype=float),
    bound_high: wp.array(dtype=float),
    bound_closed: wp.array(dtype=int),
    dt: float,
    forward_weight: float,
    control_weight: float,
    survival_bonus: float,
    # the table of episodes, and their queue
    horizon: wp.array(dtype=int),
    keep: wp.array(dtype=int),
    start_qpos: wp.array2d(dtype=float),
    start_qvel: wp.array2d(dtype=float),
    start_position: wp.array(dtype=float),
    queue: wp.array(dtype=int),
    tail: wp.array(dtype=wp.int64),
    # the simulation
    qpos0: wp.array(dtype=float),
    ctrl: wp.array2d(dtype=float),
    qpos: wp.array2d(dtype=float),
    qvel: wp.array2d(dtype=float),
    warmstart: wp.array2d(dtype=float),
    overflow: wp.array(dtype=int),
    diverged: wp.array(dtype=int),
    # in and out
    head: wp.array(dtype=wp.int64),
    finished: wp.array(dtype=wp.int64),
    row: wp.array(dtype=int),
    step: wp.array(dtype=int),
    position: wp.array(dtype=float),
    total: wp.array(dtype=wp.float64),
    # out
    ended: wp.array(dtype=int),
    fresh: wp.array(dtype=int),
    kept_rewards: wp.array2d(dtype=float),
    out_row: wp.array(dtype=int),
    out_status: wp.array(dtype=int),
    out_length: wp.array(dtype=int),
    out_total: wp.array(dtype=wp.float64),
):
    """Thread (w): reward and bounds. If the episode of the world ended, or it has none, start the next queued episode;
    if there is none, reset the simulation.

    ended[w] is 0, or 1 + the position of the ended episode in the ring buffer; fresh[w] is 1 if a new one started.
    """
    w = wp.tid()
    ended[w] = 0
    fresh[w] = 0
    r = row[w]
    if r >= 0:
        x = float(0.0)
        for i in range(position_weights.shape[0]):
            x += position_weights[i] * field[w, first + stride * i]
        x = x / position_total
        cost = float(0.0)
        for i in range(ctrl.shape[1]):
            cost += ctrl[w, i] * ctrl[w, i]
        reward = forward_weight * ((x - position[w]) / dt) + survival_bonus - control_weight * cost
        position[w] = x
        total[w] = total[w] + wp.float64(reward)
        t = step[w]
        if keep[r] >= 0:
            kept_rewards[keep[r], t] = reward
        step[w] = t + 1

        status = -1
        if t + 1 >= horizon[r]:
            status = 0
        for i in range(bound_index.shape[0]):
            value = float(0.0)
            if bound_in_qvel[i] == 1:
                value = qvel[w, bound_index[i]]
            else:
                value = qpos[w, bound_index[i]]
            if bound_closed[i] == 1:
                if not (bound_low[i] <= value and value <= bound_high[i]):
                    status = 1
            else:
                if not (bound_low[i] < value and value < bound_high[i]):
                    status = 1
        if diverged[w] != 0 or not (wp.abs(x) < HUGE):
            status = 2
        if overflow[w] != 0:
            status = 3
        if status < 0:
            return
        place = int(wp.atomic_add(finished, 0, wp.int64(1)) % wp.int64(out_row.shape[0]))
        ended[w] = place + 1
        out_row[place] = r
        out_status[place] = status
        out_length[place] = t + 1
        out_total[place] = total[w]

    r = -1
    h = wp.atomic_add(head, 0, wp.int64(1))
    if h < tail[0]:
        r = queue[int(h % wp.int64(queue.shape[0]))]
    else:
        wp.atomic_add(head, 0, wp.int64(-1))
    row[w] = r
    step[w] = 0
    total[w] = wp.float64(0.0)
    overflow[w] = 0
    diverged[w] = 0
    for i in range(warmstart.shape[1]):
        warmstart[w, i] = 0.0
    if r >= 0:
        fresh[w] = 1
        position[w] = start_position[r]
        for i in range(qpos.shape[1]):
            qpos[w, i] = start_qpos[r, i]
        for i in range(qvel.shape[1]):
            qvel[w, i] = start_qvel[r, i]
    else:
        for i in range(qpos.shape[1]):
            qpos[w, i] = qpos0[i]
        for i in range(qvel.shape[1]):
            qvel[w, i] = 0.0


@wp.kernel
def record_observation(
    ended: wp.array(dtype=int),
    fresh: wp.array(dtype=int),
    row: wp.array(dtype=int),
    step: wp.array(dtype=int),
    start_observation: wp.array2d(dtype=float),
    whitening: wp.array(dtype=int),
    mean: wp.array2d(dtype=float),
    scale: wp.array2d(dtype=float),
    keep: wp.array(dtype=int),
    # in and out
    observation: wp.array2d(dtype=float),
    moment1: wp.array2d(dtype=wp.float64),
    moment2: wp.array2d(dtype=wp.float64),
    # out
    out_mean: wp.array2d(dtype=wp.float64),
    out_m2: wp.array2d(dtype=wp.float64),
    out_last: wp.array2d(dtype=float),
    kept: wp.array3d(dtype=float),
    z: wp.array2d(dtype=float),
):
    """Thread (w, j): write the moments and the last observation of an episode that ended. Then normalise the current
    observation for the next action, add it to the moments of its episode (Welford), and store it if requested."""
    w, j = wp.tid()
    if ended[w] > 0:
        place = ended[w] - 1
        out_mean[place, j] = moment1[w, j]
        out_m2[place, j] = moment2[w, j]
        out_last[place, j] = observation[w, j]
    r = row[w]
    if r < 0:
        return
    x = observation[w, j]
    m1 = moment1[w, j]
    m2 = moment2[w, j]
    if fresh[w] == 1:
        x = start_observation[r, j]
        observation[w, j] = x
        m1 = wp.float64(0.0)
        m2 = wp.float64(0.0)
    d = wp.float64(x) - m1
    m1 = m1 + d / wp.float64(step[w] + 1)
    moment1[w, j] = m1
    moment2[w, j] = m2 + d * (wp.float64(x) - m1)
    q = whitening[r]
    z[w, j] = (x - mean[q, j]) * scale[q, j]
    if keep[r] >= 0:
        kept[keep[r], step[w], j] = x


@wp.kernel
def add_noise(
    row: wp.array(dtype=int),
    step: wp.array(dtype=int),
    keep: wp.array(dtype=int),
    noise: wp.array3d(dtype=float),
    low: wp.array(dtype=float),
    high: wp.array(dtype=float),
    # in and out
    ctrl: wp.array2d(dtype=float),
):
    """Thread (w, i): add the noise of this step to an action of a kept episode, and clip it again."""
    w, i = wp.tid()
    r = row[w]
    if r < 0:
        return
    k = keep[r]
    if k >= 0:
        ctrl[w, i] = wp.clamp(ctrl[w, i] + noise[k, step[w], i], low[i], high[i])


@wp.kernel
def scatter(
    rows: wp.array(dtype=int),
    values: wp.array2d(dtype=float),
    # out
    table: wp.array2d(dtype=float),
):
    i, j = wp.tid()
    table[rows[i], j] = values[i, j]


@wp.kernel
def scatter_ints(rows: wp.array(dtype=int), values: wp.array(dtype=int), table: wp.array(dtype=int)):
    i = wp.tid()
    table[rows[i]] = values[i]
