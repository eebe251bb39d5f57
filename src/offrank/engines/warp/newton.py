"""Accelerations under contacts and limits: one kernel per substep, with a warp of threads per world.

The accelerations x of a substep minimise

    1/2 x' M x - q' x + 1/2 sum_i D_i min(0, J_i x - aref_i)^2

with forces q and unilateral constraints i: limits, and contacts without friction or with pyramidal cones, which are the
only constraints of the six tasks. The problem is convex and piecewise quadratic, and Newton's method with an exact line
search finds its minimum in a few steps. mujoco_warp solves it with about ten kernels per iteration, and iterates until
the slowest world has converged. Here each world stops by itself, and intermediate results stay in shared memory.
Without a GPU the same source runs with one thread per world.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import warp as wp
from mujoco_warp import ConeType, DisableBit, IntegratorType, SolverType

from offrank.core.errors import EngineError

LANES = 32  # threads per world on a GPU

_SOURCE = """
    const int NV = @NV@, ROWS = @ROWS@, WIDTH = @WIDTH@, PITCH = NV | 1;
    const float TINY = 1e-15f, tolerance = tolerance_.data[0], timestep = timestep_.data[0];
    const int rows = nefc.data[world] < ROWS ? nefc.data[world] : ROWS;
    const float* J = J_.data + (size_t)world * ROWS * WIDTH;
    const float* D = D_.data + (size_t)world * ROWS;
    const float* aref = aref_.data + (size_t)world * ROWS;
    const float* entries = inertia.data + (size_t)world * inertia.shape[1];
    const size_t first = (size_t)world * NV;

#if defined(__CUDA_ARCH__)
#define SHARED __shared__
#define SYNC __syncwarp()
#define EACH(i, n) for (int i = lane; i < (n); i += 32)
    auto sum = [](float v) {
        for (int apart = 16; apart > 0; apart /= 2) v += __shfl_xor_sync(0xffffffffu, v, apart);
        return v;
    };
    auto any = [](bool v) { return __any_sync(0xffffffffu, v) != 0; };
#else
#define SHARED
#define SYNC
#define EACH(i, n) for (int i = 0; i < (n); ++i)
    auto sum = [](float v) { return v; };
    auto any = [](bool v) { return v; };
#endif
    SHARED float M[NV * PITCH], L[(NV + 1) * PITCH];
    SHARED float x[NV], q[NV], Mx[NV], pull[NV], gradient[NV], p[NV];
    SHARED float residual[ROWS], along[ROWS], weight[ROWS];

    // p = (M + J' W J)^-1 in, by Cholesky factorisation; `in` is one more row of the matrix
#if defined(__CUDA_ARCH__)
    auto solve = [&](const float* in) {
        float row[NV], over = 0.0f;  // thread i has row i of the lower triangle, thread NV has `in`
        const int mine = lane < NV ? lane : NV - 1;
#pragma unroll
        for (int c = 0; c < NV; ++c) row[c] = lane < NV ? M[c * PITCH + mine] : in[c];
        for (int r = 0; r < rows; ++r) {
            const float w = lane < NV ? weight[r] * J[r * WIDTH + mine] : 0.0f;
            if (weight[r] != 0.0f) {
                const float4* at = (const float4*)(J + r * WIDTH);
#pragma unroll
                for (int c = 0; c < NV; c += 4) {
                    const float4 j = at[c / 4];
                    row[c] += w * j.x;
                    if (c + 1 < NV) row[c + 1] += w * j.y;
                    if (c + 2 < NV) row[c + 2] += w * j.z;
                    if (c + 3 < NV) row[c + 3] += w * j.w;
                }
            }
        }
#pragma unroll
        for (int k = 0; k < NV; ++k) {
            const float pivot = __shfl_sync(0xffffffffu, row[k], k);
            const float reciprocal = rsqrtf(fmaxf(pivot, TINY));
            const float l = row[k] * reciprocal;
            if (lane == k) over = reciprocal;
            row[k] = l;
#pragma unroll
            for (int c = k + 1; c < NV; ++c) row[c] -= l * __shfl_sync(0xffffffffu, l, c);
        }
        if (lane <= NV)
#pragma unroll
            for (int c = 0; c < NV; ++c) L[lane * PITCH + c] = row[c];
        SYNC;
        float y = L[NV * PITCH + mine];
#pragma unroll
        for (int k = NV - 1; k > 0; --k) {
            const float v = __shfl_sync(0xffffffffu, y * over, k);
            if (lane < k) y -= L[k * PITCH + mine] * v;
        }
        if (lane < NV) p[lane] = y * over;
        SYNC;
    };
#else
    auto solve = [&](const float* in) {
        for (int i = 0; i < NV; ++i)
            for (int c = 0; c <= i; ++c) {
                float v = M[i * PITCH + c];
                for (int r = 0; r < rows; ++r) v += weight[r] * J[r * WIDTH + i] * J[r * WIDTH + c];
                L[i * PITCH + c] = v;
            }
        for (int c = 0; c < NV; ++c) L[NV * PITCH + c] = in[c];
        for (int k = 0; k < NV; ++k) {
            const float pivot = L[k * PITCH + k];
            const float reciprocal = 1.0f / sqrtf(pivot > TINY ? pivot : TINY);
            for (int i = k; i <= NV; ++i) L[i * PITCH + k] *= reciprocal;
            for (int i = k + 1; i <= NV; ++i)
                for (int c = k + 1; c <= i && c < NV; ++c) L[i * PITCH + c] -= L[i * PITCH + k] * L[c * PITCH + k];
        }
        for (int k = NV - 1; k >= 0; --k) {
            p[k] = L[NV * PITCH + k] / L[k * PITCH + k];
            for (int c = 0; c < k; ++c) L[NV * PITCH + c] -= L[k * PITCH + c] * p[k];
        }
    };
#endif

    EACH(i, NV * PITCH) M[i] = 0.0f;
    SYNC;
    float trace = 0.0f;
    EACH(e, M_row.shape[0]) {
        const int i = M_row.data[e], j = M_column.data[e];
        M[i * PITCH + j] = entries[e];
        M[j * PITCH + i] = entries[e];
        if (i == j) trace += entries[e];
    }
    EACH(i, NV) {
        x[i] = start.data[first + i];
        q[i] = passive.data[first + i] - bias.data[first + i] + actuator.data[first + i];
    }
    EACH(i, rows) weight[i] = -1.0f;
    trace = sum(trace);
    const float scale = 1.0f / (trace > TINY ? trace : TINY);
    SYNC;

    int iteration = 0;
    bool whole = false, last = false;
    while (true) {
        bool changed = false;  // whether the set of active constraints changed
        EACH(i, rows) {
            float r = -aref[i];
            for (int c = 0; c < NV; ++c) r += J[i * WIDTH + c] * x[c];
            const float w = r < 0.0f ? D[i] : 0.0f;
            changed = changed || w != weight[i];
            weight[i] = w;
            residual[i] = r;
        }
        changed = any(changed);
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
        if (iteration == most || last || (whole && !changed)) break;  // a full step with the same active constraints
        float square = 0.0f;
        EACH(i, NV) square += gradient[i] * gradient[i];
        if (scale * sqrtf(sum(square)) < tolerance) break;
        ++iteration;

        solve(gradient);
        // along -p: the derivative of the cost, and both derivatives of its part without constraints
        float slope = 0.0f, flat = 0.0f, bend = 0.0f;
        EACH(i, NV) {
            float v = 0.0f;
            for (int c = 0; c < NV; ++c) v += M[c * PITCH + i] * p[c];
            slope -= gradient[i] * p[i];
            flat -= (Mx[i] - q[i]) * p[i];
            bend += v * p[i];
        }
        slope = sum(slope);
        last = !(-0.5f * scale * slope >= tolerance);  // the expected improvement is small, or NaN
        flat = sum(flat);
        bend = sum(bend);
        EACH(i, rows) {
            float v = 0.0f;
            for (int c = 0; c < NV; ++c) v -= J[i * WIDTH + c] * p[c];
            along[i] = v;
        }
        SYNC;
        float step = 1.0f, low = 0.0f, high = -1.0f;  // bracket of the zero of the derivative; high < 0: no upper bound
        for (int t = 0; t < searches && !last; ++t) {
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
        whole = step == 1.0f;
        EACH(i, NV) x[i] -= step * p[i];
        SYNC;
    }

    EACH(i, NV) {
        acceleration.data[first + i] = x[i];
        force.data[first + i] = pull[i];
    }
    EACH(i, 1) iterations.data[world] = iteration;
    if (damped) {  // implicit damping: (M + h C) accelerations = M x
        EACH(i, rows) weight[i] = 0.0f;
        EACH(i, NV) M[i * PITCH + i] += timestep * damping.data[i];
        SYNC;
        solve(Mx);
        EACH(i, NV) advancing.data[first + i] = p[i];
    }
#undef SHARED
#undef SYNC
#undef EACH
"""


@cache
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
        M_row: wp.array[int],
        M_column: wp.array[int],
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
        M_row: wp.array[int],
        M_column: wp.array[int],
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
            M_row,
            M_column,
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
    """Computes `d.qacc` and `d.qfrc_constraint`, and `advancing`, the accelerations for the integrator, which include
    implicit damping with Euler's.

    Args:
        m: model of mujoco_warp.
        d: its data.

    Raises:
        EngineError: the model has constraints or damping that are not supported.
    """

    def __init__(self, m: Any, d: Any):
        pushing = m.opt.solver == SolverType.NEWTON and m.opt.cone == ConeType.PYRAMIDAL and m.neq == 0
        frictionless = bool(m.opt.disableflags & DisableBit.FRICTIONLOSS)
        damping = (m.dof_dampingpoly, m.actuator_damping, m.actuator_dampingpoly)
        linear = not any(a.numpy().any() for a in damping)
        if not (pushing and frictionless and linear) or m.is_sparse or m.nv >= LANES:
            raise EngineError("the GPU engine solves for limits and pyramidal contacts of up to 31 velocities")
        undamped = m.opt.disableflags & (DisableBit.EULERDAMP | DisableBit.DAMPER)
        damped = m.opt.integrator == IntegratorType.EULER and not undamped
        self.advancing = wp.empty_like(d.qacc) if damped else d.qacc
        self.lanes = LANES if wp.get_device().is_cuda else 1
        self.worlds = d.nworld
        self.kernel = _kernel(m.nv, d.njmax, d.efc.J.shape[2])
        options = [m.opt.iterations, m.opt.ls_iterations, m.opt.tolerance, m.opt.timestep, int(damped), m.dof_damping]
        row_of = np.repeat(np.arange(m.nv), m.M_rownnz.numpy())  # row of each entry
        inertia = [wp.array(row_of, dtype=int), m.M_colind, d.M]
        forces = [d.qfrc_passive, d.qfrc_bias, d.qfrc_actuator]
        rows = [d.nefc, d.efc.J, d.efc.D, d.efc.aref]
        self.inputs = [self.lanes, *options, *inertia, *forces, d.qacc_warmstart, *rows]
        self.outputs = [d.qacc, d.qfrc_constraint, self.advancing, d.solver_niter]

    def __call__(self) -> None:
        wp.launch(self.kernel, self.worlds * self.lanes, self.inputs, outputs=self.outputs, block_dim=LANES)
