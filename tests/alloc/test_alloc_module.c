/* The k-th allocation fails, for every k: filling and walking modules, roots, renaming keys; and, on one rank or on
 * any, the sync of tensors and of a module: all ranks get the same error, nothing leaks, the next call succeeds.
 * Checking that all ranks have the same tensors allocates nothing. */
#include "base/base.h"
#include "support/fault.h"
#include "support/fault_local.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"

#include <reshard/state_dict.h>
#include <reshard/sync.h>

#include <stdio.h>
#include <string.h>

enum { RANKS = 3, LAYERS = 5 };

static reshard_tensor tensor_make(int64_t n) {
  reshard_tensor t;
  GOOD(reshard_tensor_create(RESHARD_F32, 1, &n, &t));
  return t;
}

static reshard_module child(reshard_module m, const char *name) {
  reshard_module c;
  GOOD(reshard_module_create(&c));
  GOOD(reshard_module_set_child(m, name, c));
  reshard_module_release(c);
  return c;
}

static void put_tensor(reshard_module m, const char *name, int64_t n, bool buffer) {
  reshard_tensor t = tensor_make(n);
  GOOD((buffer ? reshard_module_set_buffer : reshard_module_set_parameter)(m, name, t));
  reshard_tensor_release(t);
}

static reshard_module module_make(int layers) {
  reshard_module m;
  GOOD(reshard_module_create(&m));
  for (int i = 0; i < layers; i++) {
    char name[16];
    snprintf(name, sizeof name, "layer%d", i);
    reshard_module layer = child(m, name);
    put_tensor(layer, "weight", 200 + i, false);
    put_tensor(layer, "bias", 5, true);
  }
  return m;
}

/* --- One rank alone ---------------------------------------------------------------------------------------------- */

static reshard_module dry;
static reshard_tensor dry_tensor;

static void drop_module(fault_output *out) { reshard_module_release(out->object); }

static reshard_status count_tensor(void *user, const char *name, reshard_tensor t) {
  ++*(int64_t *)user;
  return RESHARD_SUCCESS;
}

static int64_t counted(reshard_module m) {
  int64_t n = 0;
  return reshard_module_visit_states(m, NULL, count_tensor, &n) == RESHARD_SUCCESS ? n : -1;
}

/* A module of 20 members, which is in the same state after each failure as before. */
static reshard_status parameter_fill(fault_output *out, const void *with) {
  reshard_module m;
  reshard_status status = reshard_module_create(&m);
  if (status != RESHARD_SUCCESS)
    return status;
  for (int i = 0; i < 20 && status == RESHARD_SUCCESS; i++) {
    char name[8];
    snprintf(name, sizeof name, "%d", i);
    status = i % 2 == 0 ? reshard_module_set_parameter(m, name, dry_tensor) : reshard_module_set_child(m, name, dry);
  }
  if (status == RESHARD_SUCCESS)
    out->object = m;
  else
    reshard_module_release(m);
  return status;
}
static bool good_fill(const fault_output *out, const void *with) { return counted(out->object) == 1 + 2 * LAYERS; }

/* Setting what is there, and looking for a cycle. */
static reshard_status replace(fault_output *out, const void *with) {
  reshard_module layer = NULL;
  reshard_status status = reshard_module_get_child(dry, "layer0", &layer);
  RS_THEN(status, reshard_module_set_parameter(layer, "weight", dry_tensor));
  RS_THEN(status, reshard_module_set_child(layer, "inner", (reshard_module)with));
  if (status == RESHARD_SUCCESS)
    out->number = 1;
  return status;
}
static bool good_replace(const fault_output *out, const void *with) {
  reshard_module found;
  return out->number == 1 && reshard_module_get_child(dry, "layer0.inner", &found) == RESHARD_SUCCESS && found == with;
}

static reshard_status visit_tensors(fault_output *out, const void *with) {
  const char *names[] = {"*.bias"};
  const reshard_module_selection s = {RESHARD_MODULE_SELECTION_INIT, 0, 1, names, 1, &dry_tensor};
  int64_t n = 0;
  RS_TRY(reshard_module_visit_states(dry, &s, count_tensor, &n));
  out->number = n;
  return RESHARD_SUCCESS;
}
static bool good_visit(const fault_output *out, const void *with) { return out->number == *(const int64_t *)with; }

static reshard_status roots(fault_output *out, const void *with) {
  reshard_module list[LAYERS + 1], found[LAYERS + 1];
  int64_t n = -1;
  for (int i = 0; i < LAYERS; i++) {
    char name[16];
    snprintf(name, sizeof name, "layer%d", i);
    reshard_module_get_child(dry, name, &list[i]);
  }
  list[LAYERS] = dry;
  RS_TRY(reshard_module_roots(LAYERS + 1, list, &n, found));
  out->number = n == 1 && found[0] == dry;
  return RESHARD_SUCCESS;
}
static bool good_one(const fault_output *out, const void *with) { return out->number == 1; }

CASE(modules_survive_any_failed_allocation) {
  reshard_module inner;
  dry = module_make(LAYERS);
  dry_tensor = tensor_make(1);
  int64_t weights = LAYERS - 1; /* the first one is replaced by the tensor that is ignored */
  GOOD(reshard_module_create(&inner));
  put_tensor(inner, "weight", 1, false);
  weights++; /* this one */
  child(inner, "x");
  const fault_local fills = {"fill", parameter_fill, good_fill, drop_module, NULL};
  assert_true(fault_local_run(&fills) >= 20);
  reshard_module layer;
  GOOD(reshard_module_get_child(dry, "layer0", &layer));
  /* Each repeated call runs once before, so that the repeats leave as many blocks as they found. */
  GOOD(reshard_module_set_child(layer, "inner", inner));
  GOOD(reshard_module_set_parameter(layer, "weight", dry_tensor));
  const fault_local calls[] = {{"replace", replace, good_replace, NULL, inner},
                               {"visit", visit_tensors, good_visit, NULL, &weights},
                               {"roots", roots, good_one, NULL, NULL}};
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
    assert_true(fault_local_run(&calls[i]) >= 2);
  reshard_module_release(inner);
  reshard_tensor_release(dry_tensor);
  reshard_module_release(dry);
}

/* --- All ranks together ------------------------------------------------------------------------------------------ */

enum { ANY = -1, PATIENCE = 60000, TENSORS = 4 };

typedef struct world {
  reshard_comm comms[RANKS];
  reshard_module modules[RANKS];
  reshard_tensor tensors[RANKS][TENSORS];
  rank_result results[RANKS];
  reshard_sync_options options;
  int64_t watched; /* whose allocations count, or ANY */
  int64_t allocated[RANKS];
} world;

static void sync_body(void *user, int64_t r) {
  world *w = user;
  fault_mark(w->watched == ANY || w->watched == r);
  reshard_status status = reshard_sync_tensors(w->comms[r], 1, TENSORS, w->tensors[r], NULL, &w->options, NULL, NULL);
  fault_mark(false);
  rank_result_set(&w->results[r], status);
}

static void module_body(void *user, int64_t r) {
  world *w = user;
  fault_mark(w->watched == ANY || w->watched == r);
  reshard_status status = reshard_sync_module_states(w->comms[r], 2, w->modules[r], NULL, &w->options, NULL, NULL);
  fault_mark(false);
  rank_result_set(&w->results[r], status);
}

static void verify_body(void *user, int64_t r) {
  world *w = user;
  int64_t n = w->watched == ANY || w->watched != r ? TENSORS : TENSORS - 1;
  fault_mark(true);
  reshard_status status = reshard_verify_shapes(w->comms[r], n, w->tensors[r], NULL);
  fault_mark(false);
  rank_result_set(&w->results[r], status);
}

static void assert_all(const world *w, reshard_status status, int64_t k) {
  for (int64_t r = 0; r < RANKS; r++) {
    if (w->results[r].status != status)
      fail_msg("allocation %lld of rank %lld fails: rank %lld has %s: %s", (long long)k, (long long)w->watched,
               (long long)r, reshard_status_string(w->results[r].status), w->results[r].text);
    if (status != RESHARD_SUCCESS)
      assert_string_equal(w->results[r].text, w->results[0].text);
  }
}

/* A call without tensors: the communicators keep no plans of another one. */
static void forget_body(void *user, int64_t r) {
  world *w = user;
  rank_result_set(&w->results[r],
                  reshard_sync_tensors(w->comms[r], 0, 0, w->tensors[r], NULL, &w->options, NULL, NULL));
}

/* again: the call is one with plans that are kept. */
static int64_t ranks_run(world *w, void (*body)(void *user, int64_t r), bool again) {
  rank_threads_run(RANKS, body, w); /* what the communicator has for all calls is there */
  assert_all(w, RESHARD_SUCCESS, -1);
  for (int64_t k = 0;; k++) {
    rank_threads_run(RANKS, forget_body, w);
    assert_all(w, RESHARD_SUCCESS, -1);
    int64_t live = fault_live();
    if (again)
      rank_threads_run(RANKS, body, w);
    fault_arm(k);
    rank_threads_run(RANKS, body, w);
    int64_t made = fault_disarm();
    fault_kind kind = fault_fired();
    assert_all(w, fault_status(kind), k);
    char text[sizeof w->results[0].text];
    memcpy(text, w->results[0].text, sizeof text);
    rank_threads_run(RANKS, forget_body, w);
    assert_all(w, RESHARD_SUCCESS, k);
    if (fault_live() != live)
      fail_msg("allocation %lld of rank %lld fails: %lld blocks leak", (long long)k, (long long)w->watched,
               (long long)(fault_live() - live));
    if (kind == FAULT_NONE)
      return made;
    assert_true(strlen(text) > 0);
    if (k % 8 == 0) { /* the next call succeeds */
      rank_threads_run(RANKS, body, w);
      assert_all(w, RESHARD_SUCCESS, k);
    }
  }
}

CASE(syncs_survive_a_failed_allocation_of_any_rank) {
  static world w;
  int64_t made = 0;
  reshard_local_options options = {RESHARD_LOCAL_OPTIONS_INIT, 1, RESHARD_ISA_AUTO, PATIENCE, NULL, 0};
  GOOD(reshard_comm_create_local(RANKS, &options, w.comms));
  for (int r = 0; r < RANKS; r++) {
    w.modules[r] = module_make(2);
    for (int i = 0; i < TENSORS; i++)
      w.tensors[r][i] = tensor_make(10 + 40 * (i % 3));
  }
  for (int packed = 0; packed <= 1; packed++) {
    w.options =
        (reshard_sync_options){RESHARD_SYNC_OPTIONS_INIT, 256, packed ? RESHARD_PATH_PACKED : RESHARD_PATH_AUTO};
    for (w.watched = ANY; w.watched < RANKS; w.watched++) {
      made += ranks_run(&w, sync_body, false);
      ranks_run(&w, sync_body, true);
      if (w.watched == ANY) /* as the other one, behind a list that is made */
        made += ranks_run(&w, module_body, false);
    }
  }
  assert_true(made > 100);
  for (w.watched = ANY; w.watched < RANKS; w.watched++) {
    fault_arm(0);
    rank_threads_run(RANKS, verify_body, &w);
    assert_int_equal(fault_disarm(), 0);
    assert_all(&w, w.watched == ANY ? RESHARD_SUCCESS : RESHARD_ERROR_MISMATCH, 0);
  }
  for (int r = 0; r < RANKS; r++) {
    reshard_module_release(w.modules[r]);
    for (int i = 0; i < TENSORS; i++)
      reshard_tensor_release(w.tensors[r][i]);
    reshard_comm_destroy(w.comms[r]);
  }
}

RUN_CASES
