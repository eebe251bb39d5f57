/* One whole episode of a policy in a MuJoCo simulation, without returning to Python.
 *
 * Nothing here depends on MuJoCo's headers or Python's: the caller passes the address of mj_step, of the model and the
 * data, and of the fields that the task reads. Called through ctypes, which releases the GIL, so that Python threads run
 * episodes side by side. The arithmetic is that of offrank.tasks, in one fixed order.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>

typedef void (*step_function)(const void *model, void *data);

typedef struct {      /* a piece of the observation: count numbers, held within +-clip, or zeros where there is no field */
  const double *at;
  int64_t count;
  double clip;
} Piece;

typedef struct {      /* a number that must stay within bounds for the episode to go on */
  const double *at;
  double low, high;
  int64_t closed;        /* whether the bounds themselves are allowed */
} Bound;

typedef struct {
  step_function mj_step;
  const void *model;
  void *data;
  double *ctrl;                  /* (p) */
  const int *warnings;           /* counters that say the simulation diverged */
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
  const volatile int64_t *over;  /* other than 0: nobody waits for this episode any more */
} World;

typedef struct {      /* y = W x + S z + c, or tanh of it; x is the output of the layer before, z the policy's input */
  const double *weights;         /* (inputs, outputs): transposed, so that no inner loop needs an order of summation */
  const double *skip;            /* S, (n, outputs), or null */
  const double *bias;            /* c, (outputs), or null */
  int64_t inputs, outputs, squashes;
} Layer;

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

/* out += matrix^T x over the columns `at`, or over all of them where that is null */
static void add_product(const double *matrix, const double *x, const int64_t *at, int64_t count, int64_t outputs,
                        double *out) {
  for (int64_t k = 0; k < count; k++) {
    const int64_t j = at ? at[k] : k;
    const double xj = x[j];
    const double *column = matrix + j * outputs;
    for (int64_t i = 0; i < outputs; i++) out[i] += column[i] * xj;
  }
}

/* The policy's action at z, into ctrl. live: the features that are not switched off; z is 0 in the others.
 * hidden: two buffers, each as long as the widest layer. */
static void act(const Layer *layers, int64_t n_layers, const double *z, const int64_t *live, int64_t n_live,
                double *hidden, int64_t widest, double *ctrl) {
  const double *x = z;
  for (int64_t k = 0; k < n_layers; k++) {
    const Layer *layer = &layers[k];
    double *y = k + 1 == n_layers ? ctrl : hidden + (k % 2) * widest;
    for (int64_t i = 0; i < layer->outputs; i++) y[i] = layer->bias ? layer->bias[i] : 0.0;
    add_product(layer->weights, x, k ? NULL : live, k ? layer->inputs : n_live, layer->outputs, y);
    if (layer->skip) add_product(layer->skip, z, live, n_live, layer->outputs, y);
    if (layer->squashes)
      for (int64_t i = 0; i < layer->outputs; i++) y[i] = tanh(y[i]);
    x = y;
  }
}

/* Which of n features are not switched off, into live; returns how many. */
static int64_t find_live(const double *scale, int64_t n, int64_t *live) {
  int64_t count = 0;
  for (int64_t j = 0; j < n; j++)
    if (scale[j] != 0.0) live[count++] = j;
  return count;
}

/* A policy and its normaliser: all that turns an observation into an action. */
typedef struct {
  const Layer *layers;
  int64_t n_layers, widest;      /* widest: outputs of the widest layer */
  const double *mean, *scale;    /* (n) */
  double *scratch;               /* n + 2 widest numbers, and */
  int64_t *live;                 /* n more, which nobody else uses meanwhile */
} Actor;

static void decide(const Actor *a, int64_t n, int64_t n_live, const double *observation, double *action) {
  double *z = a->scratch;
  for (int64_t k = 0; k < n_live; k++) {
    const int64_t j = a->live[k];
    z[j] = (observation[j] - a->mean[j]) * a->scale[j];
  }
  act(a->layers, a->n_layers, z, a->live, n_live, a->scratch + n, a->widest, action);
}

/* The actions (count, p) at observations (count, n), to the bit as in an episode. */
void offrank_actions(const Actor *a, int64_t n, int64_t p, int64_t count, const double *observations, double *actions) {
  const int64_t n_live = find_live(a->scale, n, a->live);
  for (int64_t t = 0; t < count; t++) decide(a, n, n_live, observations + t * n, actions + t * p);
}

/* Runs until the horizon, a fall, or something that cannot be trusted. The simulation has been put into its start state.
 *
 * seen: (horizon + 1, n), the observations acted on and the one the last step led to.
 * rewards: (horizon).
 * Returns the number of steps taken; *status says why it stopped. */
int64_t offrank_episode(const World *w, const Actor *a, int64_t horizon, double *seen, double *rewards,
                        int64_t *status) {
  const int64_t n = w->n, p = w->p;
  const int64_t n_live = find_live(a->scale, n, a->live);
  double *ctrl = w->ctrl;
  *status = observe(w, seen) ? HORIZON : BAD_OBSERVATION;
  if (*status != HORIZON) return 0;
  double before = position(w);
  for (int64_t t = 0; t < horizon; t++) {
    if (*w->over) {
      *status = STOPPED;
      return t;
    }
    decide(a, n, n_live, seen + t * n, ctrl);
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

void *PyInit__rollout(void) { return NULL; } /* some linkers insist on it; this is never imported */
