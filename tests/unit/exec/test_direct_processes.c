/* The direct path between processes: random cases against the oracle, in shared and private storage; which path is
 * taken; rebinding; the order of executes. */
#include "bench/verify/case_binding.h"
#include "comm/comm.h"
#include "support/fixtures/case.h"
#include "support/fixtures/scale.h"
#include "support/processes/process_matrix.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* --- Random cases ------------------------------------------------------------------------------------------------- */

enum { MAILED = 512 }; /* bytes of each rank */

/* The buffers of one side, moved from the arena of the case to storage of a pool. */
typedef struct moved {
  case_binding b;
  unsigned char *arena;
  reshard_tensor tensor;
} moved;

static void make_side(const case_plan *c, int64_t rank, bool source, int number, reshard_device device, moved *m) {
  void *at = NULL;
  case_binding_make(c, rank, source, number, &m->b);
  m->arena = m->b.arena;
  m->tensor = NULL;
  if (device == NULL || m->b.bytes == 0)
    return;
  m->tensor = alloc_on(device, m->b.bytes, &at);
  m->b.arena = at;
  for (int64_t i = 0; i < m->b.n; i++)
    if (m->b.pointer[i] != NULL)
      m->b.pointer[i] = m->b.arena + m->b.place[i].offset;
}

static void free_side(moved *m) {
  m->b.arena = m->arena;
  case_binding_free(&m->b);
  reshard_tensor_release(m->tensor);
}

static bool holds_something(const moved *m) {
  for (int64_t i = 0; i < m->b.n; i++)
    if (m->b.place[i].buffer->n > 0)
      return true;
  return false;
}

/* One rank of a case. shared: a bit for each rank whose sources are in shared storage; destinations are anywhere. */
typedef struct case_call {
  uint64_t seed;
  unsigned shared;
} case_call;

static reshard_arrays arrays_of(const moved *src, const moved *dst) {
  return (reshard_arrays){RESHARD_ARRAYS_INIT, src->b.pointer, dst->b.pointer, src->b.stride_list,
                          dst->b.stride_list,  src->b.n,       dst->b.n};
}

static void check_execute(const case_plan *c, reshard_comm comm, reshard_transfer transfer, moved *src, moved *dst,
                          int generation, uint64_t seed) {
  rs_text why = {.grows = true};
  reshard_comm_stats before, after;
  int64_t rank = reshard_comm_rank(comm);
  case_binding_fill(c, &src->b, FILL_SOURCE, generation);
  case_binding_fill(c, &dst->b, FILL_DESTINATION, generation);
  reshard_comm_get_stats(comm, &before);
  CHILD_CHECK(reshard_execute(transfer, NULL) == RESHARD_SUCCESS);
  reshard_comm_get_stats(comm, &after);
  if (!case_binding_check(c, &dst->b, FILL_DESTINATION, generation, rank, &why) ||
      !case_binding_check(c, &src->b, FILL_SOURCE, generation, rank, &why)) {
    fprintf(stderr, "seed %llu, rank %lld: %s\n", (unsigned long long)seed, (long long)rank, why.at);
    _exit(1);
  }
  CHILD_CHECK(after.received_bytes - before.received_bytes == c->counts.lacked[rank]);
}

/* All ranks send and receive less. */
static bool is_small(reshard_plan plan, reshard_comm comm, int64_t eager_limit) {
  reshard_plan_info info;
  const void *all;
  CHILD_CHECK(reshard_plan_get_info(plan, &info) == RESHARD_SUCCESS);
  const int64_t mine[2] = {info.sent_bytes, info.received_bytes};
  CHILD_CHECK(rs_comm_allgather(comm, mine, sizeof mine, &all) == RESHARD_SUCCESS);
  bool small = true;
  for (int64_t i = 0; i < 2 * reshard_comm_size(comm); i++)
    small = small && ((const int64_t *)all)[i] < eager_limit;
  return small;
}

static void run_case(reshard_comm comm, const case_call *call, reshard_device own, reshard_device other) {
  int64_t rank = reshard_comm_rank(comm);
  case_choices fixed = {.ranks = reshard_comm_size(comm)};
  case_plan c;
  rs_text why = {.grows = true};
  moved src[2], dst[2];
  CHILD_CHECK(case_make(call->seed, &fixed, &c, &why));
  rng r;
  rng_seed(&r, call->seed * 31 + (uint64_t)rank);
  reshard_device source = (call->shared >> rank & 1) != 0 ? own : rng_one_in(&r, 2) ? other : NULL;
  for (int i = 0; i < 2; i++) {
    make_side(&c, rank, true, i, source, &src[i]);
    make_side(&c, rank, false, i, rng_one_in(&r, 2) ? own : rng_one_in(&r, 2) ? other : NULL, &dst[i]);
  }
  reshard_entry *entries = case_entries(&c);
  reshard_plan plan;
  reshard_transfer transfer = NULL;
  reshard_arrays arrays = arrays_of(&src[0], &dst[0]);
  int64_t eager_limit = call->seed % 2 == 0 ? MAILED : 0;
  comm->messages.eager_limit =
      call->seed / 2 % (uint64_t)reshard_comm_size(comm) == (uint64_t)rank ? eager_limit : 0; /* one is enough */
  CHILD_CHECK(reshard_plan_create(c.nentries, entries, rank, &c.options, &plan) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_transfer_create(plan, comm, &arrays, NULL, &transfer) == RESHARD_SUCCESS);
  reshard_transfer_info info;
  CHILD_CHECK(reshard_transfer_get_info(transfer, &info) == RESHARD_SUCCESS);
  if (call->shared == (1u << reshard_comm_size(comm)) - 1)
    CHILD_CHECK(info.path == (is_small(plan, comm, eager_limit) ? RESHARD_PATH_PACKED : RESHARD_PATH_DIRECT) &&
                info.workspace_bytes == 0);
  else if ((call->shared >> rank & 1) == 0 && holds_something(&src[0]))
    CHILD_CHECK(info.path == RESHARD_PATH_PACKED);
  for (int generation = 1; generation < 3; generation++)
    check_execute(&c, comm, transfer, &src[0], &dst[0], generation, call->seed);
  arrays = arrays_of(&src[1], &dst[1]);
  CHILD_CHECK(reshard_transfer_rebind(transfer, &arrays) == RESHARD_SUCCESS);
  check_execute(&c, comm, transfer, &src[1], &dst[1], 3, call->seed);
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  free(entries);
  for (int i = 0; i < 2; i++) {
    free_side(&src[i]);
    free_side(&dst[i]);
  }
  case_free(&c);
  free(why.at);
}

typedef struct cases_call {
  int64_t n;
  bool all_shared;
} cases_call;

static void run_cases(processes *all, int64_t rank, void *user) {
  const cases_call *cases = user;
  reshard_device own, other;
  reshard_comm comm;
  open_device(1, &own);
  open_device(0, &other);
  CHILD_CHECK(processes_comm(all, rank, own, TIMEOUT_MS, &comm) == RESHARD_SUCCESS);
  for (int64_t i = 0; i < cases->n; i++) {
    rng r;
    rng_seed(&r, (uint64_t)i);
    unsigned every = (1u << all->n) - 1;
    case_call call = {9000 + (uint64_t)i, cases->all_shared ? every : (unsigned)rng_below(&r, every + 1)};
    run_case(comm, &call, own, other);
  }
  reshard_comm_destroy(comm);
  reshard_device_release(own);
  reshard_device_release(other);
}

CASE(random_reshards_between_processes_are_right) {
  for (int64_t n = 1; n <= 5; n += n < 3 ? 1 : 2)
    for (int all_shared = 0; all_shared < 2; all_shared++) {
      cases_call cases = {(int64_t)(150 * test_scale()) + 1, all_shared};
      assert_int_equal(processes_run(n, 0, run_cases, &cases), 0);
    }
}

/* --- Processes ---------------------------------------------------------------------------------------------------- */

/* One private source, of rank 1, decides for all; a rebind keeps the path. */
static void choose_path(processes *all, int64_t rank, void *user) {
  process_matrix s;
  matrix_open(all, rank, TIMEOUT_MS, &s);
  float *other, *private_source;
  reshard_tensor other_tensor = alloc_on(s.shared, s.elements * 4, (void **)&other);
  reshard_tensor private_tensor = alloc_on(s.private_, s.elements * 4, (void **)&private_source);
  float *mixed = rank == 1 ? private_source : s.src;

  CHILD_CHECK(matrix_bind(&s, mixed, RESHARD_PATH_DIRECT, false) == RESHARD_ERROR_UNSUPPORTED);
  CHILD_CHECK(strstr(reshard_last_error(), "rank 1 has a source of entry 0 'wq' elsewhere") != NULL);
  CHILD_CHECK(matrix_bind(&s, s.src, rank == 2 ? RESHARD_PATH_PACKED : RESHARD_PATH_AUTO, false) ==
              RESHARD_ERROR_MISMATCH);
  CHILD_CHECK(matrix_bind(&s, mixed, RESHARD_PATH_AUTO, false) == RESHARD_SUCCESS);
  CHILD_CHECK(path_of(&s) == RESHARD_PATH_PACKED);
  fill_rows(&s, mixed, 1);
  CHILD_CHECK(reshard_execute(s.transfer, NULL) == RESHARD_SUCCESS && columns_are(&s, 1));
  CHILD_CHECK(matrix_bind(&s, s.src, RESHARD_PATH_AUTO, true) == RESHARD_SUCCESS);
  CHILD_CHECK(path_of(&s) == RESHARD_PATH_PACKED);
  fill_rows(&s, s.src, 2);
  CHILD_CHECK(reshard_execute(s.transfer, NULL) == RESHARD_SUCCESS && columns_are(&s, 2));
  reshard_transfer_destroy(s.transfer);

  CHILD_CHECK(matrix_bind(&s, s.src, rank == 0 ? RESHARD_PATH_DIRECT : RESHARD_PATH_AUTO, false) == RESHARD_SUCCESS);
  CHILD_CHECK(path_of(&s) == RESHARD_PATH_DIRECT);
  fill_rows(&s, s.src, 3);
  fill_rows(&s, other, 4);
  CHILD_CHECK(matrix_bind(&s, rank == 1 ? private_source : other, RESHARD_PATH_AUTO, true) ==
              RESHARD_ERROR_UNSUPPORTED);
  CHILD_CHECK(strstr(reshard_last_error(), "rank 1 has a source") != NULL);
  CHILD_CHECK(reshard_execute(s.transfer, NULL) == RESHARD_SUCCESS && columns_are(&s, 3));
  CHILD_CHECK(matrix_bind(&s, other, RESHARD_PATH_AUTO, true) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_execute(s.transfer, NULL) == RESHARD_SUCCESS && columns_are(&s, 4));
  reshard_status status = matrix_bind(&s, rank == 2 ? NULL : s.src, RESHARD_PATH_AUTO, true);
  CHILD_CHECK(status == RESHARD_ERROR_INVALID && strstr(reshard_last_error(), "rank 2: ") != NULL);
  CHILD_CHECK(reshard_execute(s.transfer, NULL) == RESHARD_SUCCESS && columns_are(&s, 4));
  reshard_tensor_release(private_tensor);
  matrix_close(&s);
  reshard_tensor_release(other_tensor);
}

CASE(path_goes_by_the_memory_of_all) { assert_int_equal(processes_run(3, 0, choose_path, NULL), 0); }

/* A source is written up to its rank's execute and from its return on; destinations are whole at the return. Ranks come
 * late by turns, so that one is ahead of the others all the time. */
static void keep_order(processes *all, int64_t rank, void *user) {
  int turns = *(int *)user;
  process_matrix s;
  matrix_open(all, rank, TIMEOUT_MS, &s);
  CHILD_CHECK(matrix_bind(&s, s.src, RESHARD_PATH_DIRECT, false) == RESHARD_SUCCESS);
  for (int turn = 0; turn < turns; turn++) {
    fill_rows(&s, s.src, turn);
    if (turn % all->n == rank)
      nanosleep(&(struct timespec){0, 200000}, NULL);
    CHILD_CHECK(reshard_execute(s.transfer, NULL) == RESHARD_SUCCESS);
    memset(s.src, 0xff, (size_t)s.elements * sizeof *s.src);
    CHILD_CHECK(columns_are(&s, turn));
  }
  matrix_close(&s);
}

CASE(executes_keep_their_order) {
  int turns = (int)(300 * test_scale()) + 5;
  for (int64_t n = 2; n <= 4; n++)
    assert_int_equal(processes_run(n, 0, keep_order, &turns), 0);
}

RUN_CASES
