/* The states of a module from rank 0 to all: 1,000 tensors, 256 MiB in all, on 4 ranks. An item is one tensor on one
 * receiver. The figure is the time of the faster straight copy of as many bytes, plain or streaming, over this time.
 * Then the roots of 100,000 modules, each with four children, and a walk through all of them. */
#include "bench/micro/micro.h"

#include "bench/launch/rank_threads.h"

#include "comm/comm.h"
#include "device/cpu/cpu.h"

#include <reshard/sync.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, TENSORS = 1000, BYTES = 256 << 20, MODULES = 100000 };

typedef struct sync_rank {
  reshard_comm comm;
  reshard_module module;
  char *memory; /* of all its tensors */
  int failed;
} sync_rank;

typedef struct sync_world {
  reshard_sync_options options;
  int streaming; /* the straight copy */
  rank_pool *pool;
  sync_rank ranks[RANKS];
} sync_world;

static void sync_drop(void *state) {
  sync_world *w = state;
  rank_pool_destroy(w->pool);
  for (int r = 0; r < RANKS; r++) {
    reshard_module_release(w->ranks[r].module);
    reshard_comm_destroy(w->ranks[r].comm);
    free(w->ranks[r].memory);
  }
  free(w);
}

/* Layers of a large weight, three of a half of it, and a bias: half of the tensors are small, as in a model. */
static int create_module(sync_rank *m) {
  static const int64_t of_ten[10] = {95, 32, 32, 32, 16, 1, 1, 1, 1, 1};
  int64_t unit = BYTES / (TENSORS / 10) / 212 / 256 * 256, at = 0;
  char name[32];
  m->memory = aligned_alloc(2 << 20, BYTES);
  if (m->memory == NULL || reshard_module_create(&m->module))
    return 1;
  memset(m->memory, 1, BYTES);
  for (int64_t i = 0; i < TENSORS; i++) {
    int64_t bytes = i == TENSORS - 1 ? BYTES - at : of_ten[i % 10] * unit, shape[2] = {bytes / 256, 128};
    reshard_tensor t;
    snprintf(name, sizeof name, "weight%d", (int)i);
    if (reshard_tensor_wrap(RESHARD_BF16, 2, shape, NULL, m->memory + at, NULL, NULL, &t) ||
        reshard_module_set_parameter(m->module, name, t))
      return 1;
    reshard_tensor_release(t);
    at += shape[0] * 256;
  }
  return 0;
}

static void *sync_make(const micro_case *of, int64_t *items) {
  sync_world *w = calloc(1, sizeof *w);
  reshard_comm comms[RANKS];
  if (w == NULL || reshard_comm_create_local(RANKS, NULL, comms)) {
    free(w);
    return NULL;
  }
  w->options = (reshard_sync_options){RESHARD_SYNC_OPTIONS_INIT, 0, (reshard_path)of->more[0]};
  w->streaming = of->more[1] != 0;
  w->pool = rank_pool_create();
  int failed = 0;
  for (int r = 0; r < RANKS; r++) {
    w->ranks[r].comm = comms[r];
    failed |= create_module(&w->ranks[r]);
  }
  *items = TENSORS * (RANKS - 1);
  if (!failed)
    return w;
  sync_drop(w);
  return NULL;
}

static void run_rank(void *user, int64_t rank) {
  sync_world *w = user;
  sync_rank *m = &w->ranks[rank];
  m->failed = reshard_sync_module_states(m->comm, 0, m->module, NULL, &w->options, NULL, NULL);
}

static int sync_run(void *state) {
  sync_world *w = state;
  int failed = 0;
  rank_pool_run(w->pool, RANKS, run_rank, w);
  for (int r = 0; r < RANKS; r++)
    failed |= w->ranks[r].failed;
  return failed;
}

static int copy_run(void *state) {
  sync_world *w = state;
  rs_device *device = w->ranks[0].comm->device;
  for (int r = 1; r < RANKS; r++)
    rs_device_cpu_straight(device, w->ranks[r].memory, w->ranks[0].memory, BYTES, w->streaming);
  return 0;
}

/* --- Trees ------------------------------------------------------------------------------------------------------- */

typedef struct module_tree {
  reshard_module *modules, *roots;
} module_tree;

static void tree_drop(void *state) {
  module_tree *t = state;
  for (int i = 0; i < MODULES && t->modules != NULL; i++)
    reshard_module_release(t->modules[i]);
  free(t->modules);
  free(t->roots);
  free(t);
}

static void *tree_make(const micro_case *of, int64_t *items) {
  static const char *const names[4] = {"attention", "mlp", "norm", "dropout"};
  module_tree *t = calloc(1, sizeof *t);
  int failed = 0;
  (void)of;
  t->modules = calloc(MODULES, sizeof(reshard_module));
  t->roots = calloc(MODULES, sizeof(reshard_module));
  for (int i = 0; i < MODULES && !failed; i++) {
    failed = reshard_module_create(&t->modules[i]);
    if (i > 0 && !failed)
      failed = reshard_module_set_child(t->modules[(i - 1) / 4], names[(i - 1) % 4], t->modules[i]);
  }
  *items = MODULES;
  if (!failed)
    return t;
  tree_drop(t);
  return NULL;
}

static int roots_run(void *state) {
  module_tree *t = state;
  int64_t n = 0;
  return reshard_module_roots(MODULES, t->modules, &n, t->roots) != RESHARD_SUCCESS || n != 1;
}

static reshard_status count_module(void *user, const char *name, reshard_module module) {
  (void)module;
  *(int64_t *)user += name != NULL;
  return RESHARD_SUCCESS;
}

static int walk_run(void *state) {
  module_tree *t = state;
  int64_t n = 0;
  return reshard_module_visit_modules(t->modules[0], count_module, &n) != RESHARD_SUCCESS || n != MODULES;
}

#define SYNC(name, iterations, run, path, streaming) \
  { "module_" name "_256_MiB_4_ranks", 0, iterations, sync_make, run, sync_drop, {path, streaming}, NULL }
static const micro_case micro_module[] = {
    SYNC("sync_1000_tensors", 20, sync_run, RESHARD_PATH_AUTO, 0),
    SYNC("copy_plain", 20, copy_run, RESHARD_PATH_AUTO, 0),
    SYNC("copy_streaming", 20, copy_run, RESHARD_PATH_AUTO, 1),
    SYNC("sync_packed_1000_tensors", 5, sync_run, RESHARD_PATH_PACKED, 0),
    {"module_roots_100000", 0, 0, tree_make, roots_run, tree_drop, {0}, NULL},
    {"module_walk_100000", 0, 0, tree_make, walk_run, tree_drop, {0}, NULL},
};
MICRO_TABLE(micro_module, NULL)
