"""Accelerations under contacts and limits: one kernel a substep, a warp of threads a world.

The accelerations x of a substep minimise

    1/2 x' M x - q' x + 1/2 sum_i D_i min(0, J_i x - aref_i)^2

over forces q and rows i of constraints that only push: limits, and contacts without friction or with pyramidal cones,
which is all that the six tasks have. It is convex and piecewise quadratic, and Newton's method with an exact line
search finds its minimum in a few steps. mujoco_warp solves the same problem with about ten kernels an iteration, and
goes on until the hardest of all worlds is done; here each world stops by itself, and nothing but the result leaves the
multiprocessor. Without a GPU the same source runs with one thread a world.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import warp as wp
from mujoco_warp import ConeType, DisableBit, IntegratorType, SolverType

from offrank.errors import EngineError

LANES = 32  # threads a world on a GPU

_SOURCE = """
#if defined(__CUDA_ARCH__)
#define SHARED __shared__
#define SYNC __syncwarp()
#define EACH(i, n) for (int i = lane; i < (n); i += LANES)
    const int LANES = 32;
    auto sum = [](float v) {
        for (int apart = 16; apart > 0; apart /= 2) v += __shfl_xor_sync(0xffffffffu, v, apart);
        return v;
    };
    auto any = [](bool v) { return __any_sync(0xffffffffu, v) != 0; };
#else
#define SHARED
#define SYNC
#define EACH(i, n) for (int i = 0; i < (n); ++i)
    const int LANES = 1;
    auto sum = [](float v) { return v; };
    auto any = [](bool v) { return v; };
#endif
    const int NV = @NV@, ROWS = @ROWS@, WIDTH = @WIDTH@, PITCH = NV | 1, PAIRS = NV * (NV + 1) / 2;
    const int SHARE = (PAIRS + LANES - 1) / LANES;
    const float TINY = 1e-15f, tolerance = tolerance_.data[0], timestep = timestep_.data[0];
    SHARED float M[NV * PITCH], L[NV * PITCH], inverse[NV];
    SHARED float x[NV], q[NV], Mx[NV], pull[NV], gradient[NV], middle[NV], p[NV];
    SHARED float residual[ROWS], along[ROWS], weight[ROWS];

    const int rows = nefc.data[world] < ROWS ? nefc.data[world] : ROWS;
    const float* J = J_.data + (size_t)world * ROWS * WIDTH;
    const float* D = D_.data + (size_t)world * ROWS;
    const float* aref = aref_.data + (size_t)world * ROWS;
    const float* M_ = inertia.data + (size_t)world * inertia.shape[1];
    const size_t first = (size_t)world * NV;

    EACH(i, NV * PITCH) M[i] = 0.0f;
    SYNC;
    float trace = 0.0f;
    EACH(i, NV) {
        for (int k = 0; k < M_rownnz.data[i]; ++k) {
            const int at = M_rowadr.data[i] + k, j = M_colind.data[at];
            M[i * PITCH + j] = M_[at];
            M[j * PITCH + i] = M_[at];
            if (i == j) trace += M_[at];
        }
        x[i] = start.data[first + i];
        q[i] = passive.data[first + i] - bias.data[first + i] + actuator.data[first + i];
    }
    EACH(i, rows) weight[i] = -1.0f;
    trace = sum(trace);
    const float scale = 1.0f / (trace > TINY ? trace : TINY);
    SYNC;

    // factors L L' of the matrix in L's lower triangle, and the reciprocals of L's diagonal
    auto factorise = [&]() {
        for (int k = 0; k < NV; ++k) {
            EACH(j, NV - k) {
                const int i = k + j;
                float v = L[i * PITCH + k];
                for (int c = 0; c < k; ++c) v -= L[i * PITCH + c] * L[k * PITCH + c];
                L[i * PITCH + k] = v;
            }
            SYNC;
            const float pivot = L[k * PITCH + k];
            const float over = 1.0f / sqrtf(pivot > TINY ? pivot : TINY);
            SYNC;
            EACH(j, NV - k) L[(k + j) * PITCH + k] *= over;
            EACH(j, 1) inverse[k] = over;
            SYNC;
        }
    };
    // out = (L L')^-1 in; in is overwritten
    auto solve = [&](float* in, float* out) {
        for (int k = 0; k < NV; ++k) {
            const float v = in[k] * inverse[k];
            EACH(j, NV - k - 1) in[k + 1 + j] -= L[(k + 1 + j) * PITCH + k] * v;
            EACH(j, 1) middle[k] = v;
            SYNC;
        }
        for (int k = NV - 1; k >= 0; --k) {
            const float v = middle[k] * inverse[k];
            EACH(j, k) middle[j] -= L[k * PITCH + j] * v;
            EACH(j, 1) out[k] = v;
            SYNC;
        }
    };

    int iteration = 0;
    bool last = false;
    while (true) {
        bool changed = false;  // which rows push
        EACH(i, rows) {
            float r = -aref[i];
            for (int c = 0; c < NV; ++c) r += J[i * WIDTH + c] * x[c];
            const float w = r < 0.0f ? D[i] : 0.0f;
            changed = changed || w != weight[i];
            weight[i] = w;
            residual[i] = r;
        }
        changed = any(changed) || iteration == 0;
        SYNC;
        EACH(i, NV) {
            float v = 0.0f, f = 0.0f;
            for (int c = 0; c < NV; ++c) v += M[c * PITCH + i] * x[c];
            for (int r = 0; r < rows; ++r) f -= weight[r] * residual[r] * J[r * WIDTH + i];
            Mx[i] = v;
            pull[i] = f;
            gradient[i] = v - q[i] - f;
        }
        SYNC;
        if (last || iteration == most) break;
        float square = 0.0f;
        EACH(i, NV) square += gradient[i] * gradient[i];
        if (scale * sqrtf(sum(square)) < tolerance) break;
        ++iteration;

        if (changed) {
            float h[SHARE];
            int a[SHARE], b[SHARE];
            for (int s = 0; s < SHARE; ++s) {
                int e = s * LANES + lane;
                e = e < PAIRS ? e : PAIRS - 1;
                int i = (int)((sqrtf(8.0f * e + 1.0f) - 1.0f) * 0.5f);
                if ((i + 1) * (i + 2) / 2 <= e) ++i;
                if (i * (i + 1) / 2 > e) --i;
                a[s] = i;
                b[s] = e - i * (i + 1) / 2;
                h[s] = M[a[s] * PITCH + b[s]];
            }
            for (int r = 0; r < rows; ++r) {
                const float w = weight[r];
                if (w != 0.0f)
                    for (int s = 0; s < SHARE; ++s) h[s] += w * J[r * WIDTH + a[s]] * J[r * WIDTH + b[s]];
            }
            SYNC;
            for (int s = 0; s < SHARE; ++s) L[a[s] * PITCH + b[s]] = h[s];
            SYNC;
            factorise();
        }
        EACH(i, NV) pull[i] = gradient[i];
        SYNC;
        solve(pull, p);
        // against p: the derivative, and both derivatives of the part without constraints
        float slope = 0.0f, flat = 0.0f, bend = 0.0f;
        EACH(i, NV) {
            float v = 0.0f;
            for (int c = 0; c < NV; ++c) v += M[c * PITCH + i] * p[c];
            slope -= gradient[i] * p[i];
            flat -= (Mx[i] - q[i]) * p[i];
            bend += v * p[i];
        }
        slope = sum(slope);
        flat = sum(flat);
        bend = sum(bend);
        float step = 1.0f;
        last = !(-0.5f * scale * slope >= tolerance);  // what is left to gain is below the tolerance, or not a number
        if (!last) {
            EACH(i, rows) {
                float v = 0.0f;
                for (int c = 0; c < NV; ++c) v -= J[i * WIDTH + c] * p[c];
                along[i] = v;
            }
            SYNC;
            float low = 0.0f, high = -1.0f;  // the root of the derivative lies between; none above yet
            for (int t = 0; t < searches; ++t) {
                float d1 = 0.0f, d2 = 0.0f;
                EACH(i, rows) {
                    const float r = residual[i] + step * along[i], w = r < 0.0f ? D[i] * along[i] : 0.0f;
                    d1 += w * r;
                    d2 += w * along[i];
                }
                d1 = sum(d1) + flat + step * bend;
                d2 = sum(d2) + bend;
                if (!(fabsf(d1) > -1e-3f * slope)) break;
                if (d1 < 0.0f) low = step; else high = step;
                step -= d1 / d2;
                if (!(step > low && (high < 0.0f || step < high))) step = high < 0.0f ? 2.0f * low : 0.5f * (low + high);
            }
        }
        EACH(i, NV) x[i] -= step * p[i];
        SYNC;
    }

    EACH(i, NV) {
        acceleration.data[first + i] = x[i];
        force.data[first + i] = pull[i];
    }
    EACH(i, 1) iterations.data[world] = iteration;
    if (damped) {  // with damping at the end of the substep: (M + h C) x = M x_now
        EACH(i, NV)
            for (int c = 0; c <= i; ++c) L[i * PITCH + c] = M[i * PITCH + c];
        SYNC;
        EACH(i, NV) L[i * PITCH + i] += timestep * damping.data[i];
        SYNC;
        factorise();
        solve(Mx, p);
        EACH(i, NV) advancing.data[first + i] = p[i];
    }
#undef SHARED
#undef SYNC
#undef EACH
"""


@lru_cache(maxsize=None)
def _kernel(nv: int, rows: int, width: int) -> Any:
    source = _SOURCE.replace("@NV@", str(nv)).replace("@ROWS@", str(rows)).replace("@WIDTH@", str(width))

    @wp.func_native(source)
    def newton(
        world: int,
        lane: int,
        most: int,
        searches: int,
        tolerance_: wp.array[float],
        timestep_: wp.array[float],
        damped: int,
        damping: wp.array2d[float],
        M_rownnz: wp.array[int],
        M_rowadr: wp.array[int],
        M_colind: wp.array[int],
        inertia: wp.array2d[float],
        passive: wp.array2d[float],
        bias: wp.array2d[float],
        actuator: wp.array2d[float],
        start: wp.array2d[float],
        nefc: wp.array[int],
        J_: wp.array3d[float],
        D_: wp.array2d[float],
        aref_: wp.array2d[float],
        acceleration: wp.array2d[float],
        force: wp.array2d[float],
        advancing: wp.array2d[float],
        iterations: wp.array[int],
    ): ...

    @wp.kernel(module="unique", enable_backward=False)
    def accelerate(
        lanes: int,
        most: int,
        searches: int,
        tolerance: wp.array[float],
        timestep: wp.array[float],
        damped: int,
        damping: wp.array2d[float],
        M_rownnz: wp.array[int],
        M_rowadr: wp.array[int],
        M_colind: wp.array[int],
        inertia: wp.array2d[float],
        passive: wp.array2d[float],
        bias: wp.array2d[float],
        actuator: wp.array2d[float],
        start: wp.array2d[float],
        nefc: wp.array[int],
        J: wp.array3d[float],
        D: wp.array2d[float],
        aref: wp.array2d[float],
        # out
        acceleration: wp.array2d[float],
        force: wp.array2d[float],
        advancing: wp.array2d[float],
        iterations: wp.array[int],
    ):
        thread = wp.tid()
        newton(
            thread // lanes,
            thread % lanes,
            most,
            searches,
            tolerance,
            timestep,
            damped,
            damping,
            M_rownnz,
            M_rowadr,
            M_colind,
            inertia,
            passive,
            bias,
            actuator,
            start,
            nefc,
            J,
            D,
            aref,
            acceleration,
            force,
            advancing,
            iterations,
        )

    return accelerate


class Newton:
    """Sets `d.qacc` and `d.qfrc_constraint`, and `advancing`, the accelerations to advance with, which under Euler's
    rule take damping at the end of the substep.

    Args:
        m: model of mujoco_warp.
        d: its data.
    """

    def __init__(self, m: Any, d: Any):
        pushing = m.opt.solver == SolverType.NEWTON and m.opt.cone == ConeType.PYRAMIDAL and m.neq == 0
        frictionless = bool(m.opt.disableflags & DisableBit.FRICTIONLOSS)
        other_damping = (m.dof_dampingpoly, m.actuator_damping, m.actuator_dampingpoly)
        if not pushing or not frictionless or m.is_sparse or m.nv > LANES or any(a.numpy().any() for a in other_damping):
            raise EngineError("the GPU engine solves for limits and contacts with pyramidal cones, of up to 32 velocities")
        undamped = m.opt.disableflags & (DisableBit.EULERDAMP | DisableBit.DAMPER)
        damped = m.opt.integrator == IntegratorType.EULER and not undamped
        self.advancing = wp.empty_like(d.qacc) if damped else d.qacc
        self.lanes = LANES if wp.get_device().is_cuda else 1
        self.worlds = d.nworld
        self.kernel = _kernel(m.nv, d.njmax, d.efc.J.shape[2])
        options = [m.opt.iterations, m.opt.ls_iterations, m.opt.tolerance, m.opt.timestep, int(damped), m.dof_damping]
        inertia = [m.M_rownnz, m.M_rowadr, m.M_colind, d.M]
        forces = [d.qfrc_passive, d.qfrc_bias, d.qfrc_actuator]
        rows = [d.nefc, d.efc.J, d.efc.D, d.efc.aref]
        self.inputs = [self.lanes, *options, *inertia, *forces, d.qacc_warmstart, *rows]
        self.outputs = [d.qacc, d.qfrc_constraint, self.advancing, d.solver_niter]

    def __call__(self) -> None:
        wp.launch(self.kernel, self.worlds * self.lanes, self.inputs, outputs=self.outputs, block_dim=LANES)
