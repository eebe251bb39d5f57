/* One whole episode of a policy in a MuJoCo simulation, without returning to Python.
 *
 * Needs neither MuJoCo's headers nor Python's: the caller passes the addresses of mj_step, of the model and the data, and
 * of the fields that the task reads. Called through ctypes, which releases the GIL, so that Python threads run episodes
 * in parallel. The arithmetic is that of offrank.tasks, in a fixed order of summation.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>

typedef void (*step_function)(const void *model, void *data);

typedef struct {      /* a part of the observation: count numbers, clipped to +-clip, or zeros if `at` is null */
  const double *at;
  int64_t count;
  double clip;
} Piece;

typedef struct {      /* a number that ends the episode when it leaves its bounds */
  const double *at;
  double low, high;
  int64_t closed;        /* whether the bounds themselves are allowed */
} Bound;

typedef struct {
  step_function mj_step;
  const void *model;
  void *data;
  double *ctrl;                  /* (p) */
  const double *low, *high;      /* (p) bounds that actions are clipped to, or null */
  const int *warnings;           /* counters that are non-zero if the simulation diverged */
  int64_t n_warnings, warning_stride;
  int64_t n, p, frame_skip;
  const Piece *pieces;
  int64_t n_pieces;
  const double *position;        /* the forward position is the weighted mean of these */
  const double *position_weights;
  int64_t n_positions, position_stride;
  const Bound *bounds;
  int64_t n_bounds;
  double dt, forward_weight, control_weight, survival_bonus;
  const volatile int64_t *over;  /* non-zero: stop the episode */
} World;

typedef struct {      /* y = W x + S z + c, or tanh of it; x is the output of the previous layer, z the policy's input */
  int64_t inputs, outputs;
  int64_t squashes, skips, biased;   /* whether there is a tanh, an S, a c */
} Layer;

typedef struct {      /* a policy and its normaliser */
  const Layer *layers;
  int64_t n_layers, widest;      /* widest: outputs of the widest layer */
  int64_t n;
  const double *theta;           /* layer by layer W (outputs, inputs), S (outputs, n), c (outputs) */
  const double *mean, *scale;    /* (n) */
  double *scratch;               /* n + 2 widest + size of theta numbers, private to this actor */
  int64_t *live;                 /* (n), private to this actor */
} Actor;

enum { HORIZON = 0, TERMINATED = 1, DIVERGED = 2, BAD_REWARD = 3, BAD_OBSERVATION = 4, STOPPED = 5 };


static int observe(const World *w, double *out) {
  int finite = 1;
  for (int64_t k = 0; k < w->n_pieces; k++) {
    const Piece *piece = &w->pieces[k];
    for (int64_t i = 0; i < piece->count; i++) {
      double x = piece->at ? piece->at[i] : 0.0;
      finite &= isfinite(x) != 0;
      x = x < -piece->clip ? -piece->clip : x;
      out[i] = x > piece->clip ? piece->clip : x;
    }
    out += piece->count;
  }
  return finite;
}

static void clip(const World *w, double *action) {
  if (w->low)
    for (int64_t i = 0; i < w->p; i++)
      action[i] = action[i] < w->low[i] ? w->low[i] : action[i] > w->high[i] ? w->high[i] : action[i];
}

static double position(const World *w) {
  double sum = 0.0, total = 0.0;
  for (int64_t i = 0; i < w->n_positions; i++) {
    sum += w->position_weights[i] * w->position[i * w->position_stride];
    total += w->position_weights[i];
  }
  return sum / total;
}

static int healthy(const World *w) {
  for (int64_t i = 0; i < w->n_bounds; i++) {
    const Bound *b = &w->bounds[i];
    double x = *b->at;
    if (!(b->closed ? b->low <= x && x <= b->high : b->low < x && x < b->high)) return 0;
  }
  return 1;
}

/* Prepares an actor. Writes the transposed matrices to scratch, after the buffers, so that inner loops need no fixed order
 * of summation, and the indices of the features that are not switched off to live. Returns the number of these. */
static int64_t prepare(const Actor *a) {
  const double *from = a->theta;
  double *to = a->scratch + a->n + 2 * a->widest;
  for (int64_t k = 0; k < a->n_layers; k++) {
    const Layer *layer = &a->layers[k];
    const int64_t outputs = layer->outputs;
    for (int64_t part = 0; part < 2; part++) {
      const int64_t inputs = part == 0 ? layer->inputs : layer->skips ? a->n : 0;
      for (int64_t i = 0; i < outputs; i++)
        for (int64_t j = 0; j < inputs; j++) to[j * outputs + i] = *from++;
      to += inputs * outputs;
    }
    if (layer->biased)
      for (int64_t i = 0; i < outputs; i++) *to++ = *from++;
  }
  int64_t n_live = 0;
  for (int64_t j = 0; j < a->n; j++)
    if (a->scale[j] != 0.0) a->live[n_live++] = j;
  return n_live;
}

/* out += matrix^T x over the `count` rows `at` of matrix, or over the first `count` rows if `at` is null */
static void add_product(const double *matrix, const double *x, const int64_t *at, int64_t count, int64_t outputs,
                        double *out) {
  for (int64_t k = 0; k < count; k++) {
    const int64_t j = at ? at[k] : k;
    const double xj = x[j];
    const double *row = matrix + j * outputs;
    for (int64_t i = 0; i < outputs; i++) out[i] += row[i] * xj;
  }
}

/* The action at an observation. Features that are switched off have z = 0 and are skipped. */
static void act(const Actor *a, int64_t n_live, const double *observation, double *action) {
  double *z = a->scratch, *hidden = z + a->n;
  const double *parameters = hidden + 2 * a->widest, *x = z;
  for (int64_t k = 0; k < n_live; k++) {
    const int64_t j = a->live[k];
    z[j] = (observation[j] - a->mean[j]) * a->scale[j];
  }
  for (int64_t k = 0; k < a->n_layers; k++) {
    const Layer *layer = &a->layers[k];
    const int64_t outputs = layer->outputs;
    const double *weights = parameters, *skip = weights + layer->inputs * outputs;
    const double *bias = skip + (layer->skips ? a->n * outputs : 0);
    parameters = bias + (layer->biased ? outputs : 0);
    double *y = k + 1 == a->n_layers ? action : hidden + (k % 2) * a->widest;
    for (int64_t i = 0; i < outputs; i++) y[i] = layer->biased ? bias[i] : 0.0;
    add_product(weights, x, k ? NULL : a->live, k ? layer->inputs : n_live, outputs, y);
    if (layer->skips) add_product(skip, z, a->live, n_live, outputs, y);
    if (layer->squashes)
      for (int64_t i = 0; i < outputs; i++) y[i] = tanh(y[i]);
    x = y;
  }
}

/* The actions (count, p) at observations (count, n), with the same bits as in an episode. */
void offrank_actions(const Actor *a, int64_t p, int64_t count, const double *observations, double *actions) {
  const int64_t n_live = prepare(a);
  for (int64_t t = 0; t < count; t++) act(a, n_live, observations + t * a->n, actions + t * p);
}

/* Runs an episode until the horizon, termination, or an error. The simulation must be in its start state.
 *
 * noise: (horizon, p), added to the actions, or null.
 * seen: (horizon + 1, n), the observations before each step and after the last one.
 * rewards: (horizon).
 * Returns the number of steps taken; *status is the reason for stopping. */
int64_t offrank_episode(const World *w, const Actor *a, int64_t horizon, const double *noise, double *seen,
                        double *rewards, int64_t *status) {
  const int64_t n = w->n, p = w->p;
  const int64_t n_live = prepare(a);
  double *ctrl = w->ctrl;
  *status = observe(w, seen) ? HORIZON : BAD_OBSERVATION;
  if (*status != HORIZON) return 0;
  double before = position(w);
  for (int64_t t = 0; t < horizon; t++) {
    if (*w->over) {
      *status = STOPPED;
      return t;
    }
    act(a, n_live, seen + t * n, ctrl);
    clip(w, ctrl);
    if (noise) {
      for (int64_t i = 0; i < p; i++) ctrl[i] += noise[t * p + i];
      clip(w, ctrl);
    }
    double cost = 0.0;
    for (int64_t i = 0; i < p; i++) cost += ctrl[i] * ctrl[i];
    for (int64_t k = 0; k < w->frame_skip; k++) w->mj_step(w->model, w->data);
    for (int64_t k = 0; k < w->n_warnings; k++)
      if (w->warnings[k * w->warning_stride]) {
        *status = DIVERGED;
        return t;
      }
    const double after = position(w);
    rewards[t] = w->forward_weight * ((after - before) / w->dt) + w->survival_bonus - w->control_weight * cost;
    before = after;
    if (!isfinite(rewards[t])) {
      *status = BAD_REWARD;
      return t;
    }
    if (!observe(w, seen + (t + 1) * n)) {
      *status = BAD_OBSERVATION;
      return t;
    }
    if (!healthy(w)) {
      *status = TERMINATED;
      return t + 1;
    }
  }
  return horizon;
}

int64_t offrank_layout(void) { return (int64_t)(sizeof(World) + 1000 * (sizeof(Layer) + 1000 * sizeof(Actor))); }

void *PyInit__rollout(void) { return NULL; } /* required by some linkers; the library is never imported as a module */
