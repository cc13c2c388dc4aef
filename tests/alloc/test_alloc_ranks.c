/* The k-th allocation fails in a collective call: on whichever rank makes it, or on one rank alone. All ranks get the
 * same status and the same text, nothing is left behind, no data moves; and right after, the same call succeeds and
 * moves the right data. Execute allocates nothing. */
#include "bench/verify/case_binding.h"
#include "support/fault_local.h"
#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"
#include "support/seeded_case.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, PATIENCE = 60000, ANY = -1 };

/* A random case on its ranks, with memory for two bindings. */
typedef struct world {
  uint64_t seed;
  int64_t n;
  case_plan c;
  reshard_entry *entries;
  reshard_plan plans[RANKS];
  case_binding src[2][RANKS], dst[2][RANKS];
  reshard_comm comms[RANKS];
  reshard_path path;
  reshard_transfer transfers[RANKS];
  rank_result results[RANKS];
  int64_t watched; /* the rank whose allocations can fail; ANY: all ranks' */
  int binding;     /* that create and rebind take */
  bool one_thread; /* makes and binds the transfers of all ranks */
  bool touched;
} world;

static void open_world(world *w, uint64_t seed, int64_t n) {
  *w = (world){.seed = seed, .n = n};
  seeded_case_make(seed, n, &w->c);
  w->entries = case_entries(&w->c);
  for (int64_t r = 0; r < n; r++) {
    CLI_TRY("plan: ", reshard_plan_create(w->c.nentries, w->entries, r, &w->c.options, &w->plans[r]));
    for (int b = 0; b < 2; b++) {
      case_binding_make(&w->c, r, true, b, &w->src[b][r]);
      case_binding_make(&w->c, r, false, b, &w->dst[b][r]);
    }
  }
}

static void close_world(world *w) {
  for (int64_t r = 0; r < w->n; r++) {
    reshard_plan_destroy(w->plans[r]);
    for (int b = 0; b < 2; b++) {
      case_binding_free(&w->src[b][r]);
      case_binding_free(&w->dst[b][r]);
    }
  }
  free(w->entries);
  case_free(&w->c);
}

static void open_comms(world *w) {
  reshard_local_options options = {RESHARD_LOCAL_OPTIONS_INIT, 1, RESHARD_ISA_AUTO, PATIENCE, NULL, 0};
  CLI_TRY("communicator: ", reshard_comm_create_local(w->n, &options, w->comms));
}

static void close_comms(world *w) { rank_comms_close(w->n, w->comms); }

static reshard_arrays arrays_of(const world *w, int64_t r) {
  const case_binding *src = &w->src[w->binding][r], *dst = &w->dst[w->binding][r];
  return (reshard_arrays){RESHARD_ARRAYS_INIT, src->pointer, dst->pointer, src->stride_list,
                          dst->stride_list,    src->n,       dst->n};
}

static void world_fill(world *w, int generation) {
  for (int64_t r = 0; r < w->n; r++) {
    case_binding_fill(&w->c, &w->src[w->binding][r], FILL_SOURCE, generation);
    case_binding_fill(&w->c, &w->dst[w->binding][r], FILL_DESTINATION, generation);
  }
}

/* No destination byte has been written to since fill. */
static bool untouched(const world *w) {
  for (int64_t r = 0; r < w->n; r++) {
    const case_binding *b = &w->dst[w->binding][r];
    for (int64_t i = 1; i < b->bytes; i++)
      if (b->arena[i] != b->arena[0])
        return false;
  }
  return true;
}

static bool right(const world *w, int generation) {
  rs_text why = {0};
  bool all = true;
  for (int64_t r = 0; r < w->n && all; r++)
    all = case_binding_check(&w->c, &w->dst[w->binding][r], FILL_DESTINATION, generation, r, &why) &&
          case_binding_check(&w->c, &w->src[w->binding][r], FILL_SOURCE, generation, r, &why);
  if (!all)
    print_error("%s\n", why.at);
  free(why.at);
  return all;
}

static void create_body(void *user, int64_t r) {
  world *w = user;
  reshard_arrays arrays = arrays_of(w, r);
  reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = w->path};
  reshard_transfer made = (reshard_transfer)w;
  fault_mark(w->watched == ANY || w->watched == r);
  reshard_status status = reshard_transfer_create(w->plans[r], w->comms[r], &arrays, &options, &made);
  fault_mark(false);
  rank_result_set(&w->results[r], status);
  if (status == RESHARD_SUCCESS)
    w->transfers[r] = made;
  else if (made != (reshard_transfer)w)
    w->touched = true;
}

static void rebind_body(void *user, int64_t r) {
  world *w = user;
  reshard_arrays arrays = arrays_of(w, r);
  fault_mark(w->watched == ANY || w->watched == r);
  reshard_status status = reshard_transfer_rebind(w->transfers[r], &arrays);
  fault_mark(false);
  rank_result_set(&w->results[r], status);
}

static void all_at_once(world *w, bool creates) {
  reshard_arrays arrays[RANKS];
  reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = w->path};
  const reshard_arrays *list[RANKS];
  const reshard_transfer_options *alike[RANKS];
  reshard_transfer made[RANKS];
  for (int64_t r = 0; r < w->n; r++) {
    arrays[r] = arrays_of(w, r);
    list[r] = &arrays[r];
    alike[r] = &options;
    made[r] = (reshard_transfer)w;
  }
  fault_mark(true);
  reshard_status status = creates ? reshard_transfer_create_all(w->n, w->plans, w->comms, list, alike, made)
                                  : reshard_transfer_rebind_all(w->n, w->transfers, list);
  fault_mark(false);
  for (int64_t r = 0; r < w->n; r++) {
    rank_result_set(&w->results[r], status);
    if (creates && status == RESHARD_SUCCESS)
      w->transfers[r] = made[r];
    w->touched |= status != RESHARD_SUCCESS && made[r] != (reshard_transfer)w;
  }
}

static void create_transfers(world *w) {
  if (w->one_thread)
    all_at_once(w, true);
  else
    rank_threads_run(w->n, create_body, w);
}

static void rebind_transfers(world *w) {
  if (w->one_thread)
    all_at_once(w, false);
  else
    rank_threads_run(w->n, rebind_body, w);
}

static void execute_body(void *user, int64_t r) {
  world *w = user;
  rank_result_set(&w->results[r], reshard_execute(w->transfers[r], NULL));
}

static void destroy_all(world *w) {
  for (int64_t r = 0; r < w->n; r++) {
    reshard_transfer_destroy(w->transfers[r]);
    w->transfers[r] = NULL;
  }
}

static void assert_all(const world *w, reshard_status status, int64_t k) {
  for (int64_t r = 0; r < w->n; r++) {
    if (w->results[r].status != status)
      fail_msg("seed %llu, path %d, allocation %lld of rank %lld fails: rank %lld has %s: %s",
               (unsigned long long)w->seed, w->path, (long long)k, (long long)w->watched, (long long)r,
               reshard_status_string(w->results[r].status), w->results[r].text);
    if (status != RESHARD_SUCCESS)
      assert_string_equal(w->results[r].text, w->results[0].text);
  }
}

static void works(world *w, int64_t k) {
  static int generation = 0;
  generation++;
  world_fill(w, generation);
  rank_threads_run(w->n, execute_body, w);
  assert_all(w, RESHARD_SUCCESS, k);
  if (!right(w, generation))
    fail_msg("seed %llu, path %d, after allocation %lld of rank %lld failed: wrong data", (unsigned long long)w->seed,
             w->path, (long long)k, (long long)w->watched);
}

/* Each k in a communicator of its own, so that what that keeps is allocated anew. Returns the allocations of one
 * create. */
static int64_t each_create(world *w) {
  for (int64_t k = 0;; k++) {
    int64_t live = fault_live();
    open_comms(w);
    int64_t opened = fault_live();
    w->binding = 0;
    world_fill(w, 0);
    fault_arm(k);
    create_transfers(w);
    int64_t made = fault_disarm();
    fault_kind kind = fault_fired();
    assert_all(w, fault_status(kind), k);
    assert_false(w->touched);
    assert_true(untouched(w));
    if (kind != FAULT_NONE) {
      assert_true(strlen(w->results[0].text) > 0);
      int64_t kept = w->path == RESHARD_PATH_PACKED ? 3 : 0; /* the communicator's, for exchanges */
      if (fault_live() > opened + kept)
        fail_msg("seed %llu, allocation %lld fails: %lld blocks leak", (unsigned long long)w->seed, (long long)k,
                 (long long)(fault_live() - opened));
      create_transfers(w);
      assert_all(w, RESHARD_SUCCESS, k);
    }
    works(w, k);
    destroy_all(w);
    close_comms(w);
    if (fault_live() != live)
      fail_msg("seed %llu, allocation %lld fails: %lld blocks leak", (unsigned long long)w->seed, (long long)k,
               (long long)(fault_live() - live));
    if (kind == FAULT_NONE)
      return made;
  }
}

/* A transfer stays bound to what it was when a rebind fails. On the packed path rebinding is local: only the rank that
 * fails does. */
static int64_t each_rebind(world *w) {
  open_comms(w);
  w->binding = 0;
  create_transfers(w);
  assert_all(w, RESHARD_SUCCESS, -1);
  works(w, -1);
  int64_t made = 0;
  for (int64_t k = 0;; k++) {
    int64_t live = fault_live();
    w->binding = 1;
    world_fill(w, 0);
    fault_arm(k);
    rebind_transfers(w);
    made = fault_disarm();
    fault_kind kind = fault_fired();
    assert_true(untouched(w));
    if (kind == FAULT_NONE) {
      assert_all(w, RESHARD_SUCCESS, k);
      works(w, k);
      break;
    }
    int64_t failed = 0;
    for (int64_t r = 0; r < w->n; r++) {
      failed += w->results[r].status != RESHARD_SUCCESS;
      assert_true(w->results[r].status == RESHARD_SUCCESS || w->results[r].status == fault_status(kind));
    }
    if (w->path == RESHARD_PATH_PACKED && !w->one_thread)
      assert_int_equal(failed, 1);
    else {
      assert_all(w, fault_status(kind), k);
      assert_true(fault_live() == live);
      w->binding = 0;
      works(w, k);
      w->binding = 1;
    }
    rebind_transfers(w);
    assert_all(w, RESHARD_SUCCESS, k);
    works(w, k);
    w->binding = 0; /* and back */
    rebind_transfers(w);
    assert_all(w, RESHARD_SUCCESS, k);
    if (k % 8 == 0)
      works(w, k);
    (void)live;
  }
  destroy_all(w);
  close_comms(w);
  return made;
}

static void each_world(int64_t (*each)(world *w), int64_t seeds) {
  int64_t made = 0;
  for (int64_t seed = 1; seed <= seeds; seed++) {
    world w;
    int64_t live = fault_live();
    open_world(&w, (uint64_t)seed, 1 + seed % RANKS);
    for (int p = 0; p < (seed % 5 == 1 ? 4 : 2); p++) {
      w.one_thread = p >= 2;
      w.path = p % 2 == 0 ? RESHARD_PATH_DIRECT : RESHARD_PATH_PACKED;
      w.watched = seed % 2 == 0 ? ANY : seed / 2 % w.n;
      made += each(&w);
    }
    close_world(&w);
    assert_int_equal(fault_live(), live);
  }
  assert_true(made > 20 * seeds);
}

CASE(create_survives_a_failed_allocation_of_any_rank) { each_world(each_create, test_scaled(20, 4)); }

CASE(rebind_survives_a_failed_allocation_of_any_rank) { each_world(each_rebind, test_scaled(10, 2)); }

/* Execute allocates nothing: counted over all threads, between two barriers within which ranks do nothing but
 * execute. */
typedef struct silence {
  world *w;
  pthread_barrier_t barrier;
  int64_t before, after;
} silence;

static void silent_body(void *user, int64_t r) {
  silence *x = user;
  reshard_status status = RESHARD_SUCCESS;
  pthread_barrier_wait(&x->barrier);
  if (r == 0)
    x->before = fault_calls();
  pthread_barrier_wait(&x->barrier);
  for (int i = 0; i < 3 && status == RESHARD_SUCCESS; i++)
    status = reshard_execute(x->w->transfers[r], NULL);
  pthread_barrier_wait(&x->barrier);
  if (r == 0)
    x->after = fault_calls();
  pthread_barrier_wait(&x->barrier);
  rank_result_set(&x->w->results[r], status);
}

static void assert_silent(world *w) {
  silence x = {.w = w};
  pthread_barrier_init(&x.barrier, NULL, (unsigned)w->n);
  rank_threads_run(w->n, silent_body, &x);
  pthread_barrier_destroy(&x.barrier);
  assert_all(w, RESHARD_SUCCESS, -1);
  assert_int_equal(x.after, x.before);
  int64_t before = fault_calls();
  reshard_status status = reshard_execute_all(w->n, w->transfers, NULL);
  assert_int_equal(fault_calls(), before);
  assert_int_equal(status, RESHARD_SUCCESS);
}

CASE(execute_allocates_nothing) {
  int64_t limited = 0;
  for (int64_t seed = 1; seed <= test_scaled(80, 1); seed++) {
    world w;
    open_world(&w, (uint64_t)seed, 1 + seed % RANKS);
    limited += w.c.options.workspace_limit > 0;
    open_comms(&w);
    for (int p = 0; p < 2; p++) {
      w.path = p == 0 ? RESHARD_PATH_DIRECT : RESHARD_PATH_PACKED;
      world_fill(&w, 1);
      rank_threads_run(w.n, create_body, &w);
      assert_all(&w, RESHARD_SUCCESS, -1);
      assert_silent(&w);
      assert_true(right(&w, 1));
      destroy_all(&w);
    }
    close_comms(&w);
    close_world(&w);
  }
  assert_true(limited > 0 || test_scaled(80, 1) < 10);
}

/* The same with so much data that the copy threads help, from rows to columns, to blocks, and transposed. */
CASE(test_large_execute) {
  enum { N = 768 };
  const int64_t shape[2] = {N, N};
  static const char *const destinations[] = {"chunk(1)", "cyclic(3x1;5x64)", "chunk(0)"};
  const int swapped[2] = {1, 0};
  for (int i = 0; i < 12; i++) {
    world w = {.n = RANKS, .path = i % 2 == 0 ? RESHARD_PATH_DIRECT : RESHARD_PATH_PACKED};
    reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = i / 2 % 2 == 0 ? 0 : 65536};
    reshard_local_options local = {RESHARD_LOCAL_OPTIONS_INIT, 3, RESHARD_ISA_AUTO, PATIENCE, NULL, 0};
    CLI_TRY("communicator: ", reshard_comm_create_local(RANKS, &local, w.comms));
    reshard_layout src, dst;
    assert_int_equal(reshard_layout_parse("chunk(0)", 2, shape, RANKS, &src), RESHARD_SUCCESS);
    assert_int_equal(reshard_layout_parse(destinations[i / 4], 2, shape, RANKS, &dst), RESHARD_SUCCESS);
    reshard_entry entry = {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_F32,
                           .permutation = i / 4 == 2 ? swapped : NULL};
    void *memory[2][RANKS], *address[2][RANKS];
    for (int64_t r = 0; r < RANKS; r++) {
      CLI_TRY("plan: ", reshard_plan_create(1, &entry, r, &options, &w.plans[r]));
      for (int side = 0; side < 2; side++)
        address[side][r] = memory[side][r] = calloc((size_t)N * N / RANKS + 8 * N, sizeof(float));
      w.src[0][r] = (case_binding){.n = 1, .pointer = &address[0][r]};
      w.dst[0][r] = (case_binding){.n = 1, .pointer = &address[1][r]};
    }
    rank_threads_run(RANKS, create_body, &w);
    assert_all(&w, RESHARD_SUCCESS, -1);
    assert_silent(&w);
    destroy_all(&w);
    for (int64_t r = 0; r < RANKS; r++) {
      reshard_plan_destroy(w.plans[r]);
      free(memory[0][r]);
      free(memory[1][r]);
    }
    reshard_layout_release(src);
    reshard_layout_release(dst);
    close_comms(&w);
  }
}

RUN_CASES
