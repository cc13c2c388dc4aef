/* The direct path between processes: random cases against the oracle, in shared and private storage; which path is
 * taken; rebinding; the order of executes; ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "bench/verify/case_binding.h"
#include "support/fixtures/processes.h"
#include "support/fixtures/scale.h"

#include <reshard/tensor.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

enum { TIMEOUT_MS = 60000 };

static void open_device(int shared, reshard_device *device) {
  const reshard_device_options options = {RESHARD_DEVICE_OPTIONS_INIT, .threads = 1, .shared = shared};
  CHILD_CHECK(reshard_device_create("cpu", &options, device) == RESHARD_SUCCESS);
}

/* Storage of a device's pool. */
static reshard_tensor alloc_on(reshard_device device, int64_t bytes, void **at) {
  reshard_tensor tensor;
  reshard_tensor_info info;
  CHILD_CHECK(reshard_tensor_create_on(device, RESHARD_U8, 1, &bytes, NULL, &tensor) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_tensor_get_info(tensor, &info) == RESHARD_SUCCESS);
  *at = info.data;
  return tensor;
}

/* --- Random cases ------------------------------------------------------------------------------------------------- */

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
  CHILD_CHECK(reshard_plan_create(c.nentries, entries, rank, &c.options, &plan) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_transfer_create(plan, comm, &arrays, NULL, &transfer) == RESHARD_SUCCESS);
  reshard_transfer_info info;
  CHILD_CHECK(reshard_transfer_get_info(transfer, &info) == RESHARD_SUCCESS);
  if (call->shared == (1u << reshard_comm_size(comm)) - 1)
    CHILD_CHECK(info.path == RESHARD_PATH_DIRECT && info.workspace_bytes == 0);
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

static void test_random(void **state) {
  (void)state;
  for (int64_t n = 1; n <= 5; n += n < 3 ? 1 : 2)
    for (int all_shared = 0; all_shared < 2; all_shared++) {
      cases_call cases = {(int64_t)(150 * test_scale()) + 1, all_shared};
      assert_int_equal(processes_run(n, 0, run_cases, &cases), 0);
    }
}

/* --- Scenes: rows to columns of [n * 64, n * 64] f32 ---------------------------------------------------------- */

enum { BLOCK = 64 };

/* One rank of rows to columns, bound to a source of its own. */
typedef struct scene {
  int64_t n, rank, elements; /* elements of a rank */
  reshard_comm comm;
  reshard_device shared, private_;
  reshard_layout rows, columns;
  reshard_plan plan;
  reshard_tensor src_tensor, dst_tensor;
  float *src, *dst;
  reshard_transfer transfer;
} scene;

static void open_scene(processes *all, int64_t rank, int64_t timeout_ms, scene *s) {
  int64_t shape[] = {all->n * BLOCK, all->n * BLOCK}, bytes;
  *s = (scene){.n = all->n, .rank = rank, .elements = BLOCK * all->n * BLOCK};
  bytes = s->elements * (int64_t)sizeof(float);
  open_device(1, &s->shared);
  open_device(0, &s->private_);
  CHILD_CHECK(processes_comm(all, rank, s->shared, timeout_ms, &s->comm) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_layout_parse("chunk(0)", 2, shape, all->n, &s->rows) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_layout_parse("chunk(1)", 2, shape, all->n, &s->columns) == RESHARD_SUCCESS);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = s->rows, .dst = s->columns, .dtype = RESHARD_F32, .name = "wq"};
  CHILD_CHECK(reshard_plan_create(1, &entry, rank, NULL, &s->plan) == RESHARD_SUCCESS);
  s->src_tensor = alloc_on(s->shared, bytes, (void **)&s->src);
  s->dst_tensor = alloc_on(s->shared, bytes, (void **)&s->dst);
}

static reshard_status bind_scene(scene *s, float *src, reshard_path path, bool again) {
  const reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = path};
  reshard_arrays arrays = {RESHARD_ARRAYS_INIT, (void *[]){src}, (void *[]){s->dst}, NULL, NULL, 1, 1};
  return again ? reshard_transfer_rebind(s->transfer, &arrays)
               : reshard_transfer_create(s->plan, s->comm, &arrays, &options, &s->transfer);
}

static void close_scene(scene *s) {
  reshard_transfer_destroy(s->transfer);
  reshard_plan_destroy(s->plan);
  reshard_layout_release(s->rows);
  reshard_layout_release(s->columns);
  reshard_tensor_release(s->src_tensor);
  reshard_tensor_release(s->dst_tensor);
  reshard_comm_destroy(s->comm);
  reshard_device_release(s->shared);
  reshard_device_release(s->private_);
}

static float value_at(const scene *s, int64_t row, int64_t column, int turn) {
  return (float)((row * s->n * BLOCK + column) % 65536 + turn * 7);
}

static void fill_rows(const scene *s, float *src, int turn) {
  for (int64_t i = 0; i < s->elements; i++)
    src[i] = value_at(s, s->rank * BLOCK + i / (s->n * BLOCK), i % (s->n * BLOCK), turn);
}

static bool columns_are(const scene *s, int turn) {
  for (int64_t i = 0; i < s->elements; i++)
    if (s->dst[i] != value_at(s, i / BLOCK, s->rank * BLOCK + i % BLOCK, turn))
      return false;
  return true;
}

static reshard_path path_of(const scene *s) {
  reshard_transfer_info info;
  CHILD_CHECK(reshard_transfer_get_info(s->transfer, &info) == RESHARD_SUCCESS);
  return info.path;
}

/* One private source, of rank 1, decides for all; a rebind keeps the path. */
static void choose_path(processes *all, int64_t rank, void *user) {
  (void)user;
  scene s;
  open_scene(all, rank, TIMEOUT_MS, &s);
  float *other, *private_source;
  reshard_tensor other_tensor = alloc_on(s.shared, s.elements * 4, (void **)&other);
  reshard_tensor private_tensor = alloc_on(s.private_, s.elements * 4, (void **)&private_source);
  float *mixed = rank == 1 ? private_source : s.src;

  CHILD_CHECK(bind_scene(&s, mixed, RESHARD_PATH_DIRECT, false) == RESHARD_ERROR_UNSUPPORTED);
  CHILD_CHECK(strstr(reshard_last_error(), "rank 1 has a source of entry 0 'wq' elsewhere") != NULL);
  CHILD_CHECK(bind_scene(&s, s.src, rank == 2 ? RESHARD_PATH_PACKED : RESHARD_PATH_AUTO, false) ==
              RESHARD_ERROR_MISMATCH);
  CHILD_CHECK(bind_scene(&s, mixed, RESHARD_PATH_AUTO, false) == RESHARD_SUCCESS);
  CHILD_CHECK(path_of(&s) == RESHARD_PATH_PACKED);
  fill_rows(&s, mixed, 1);
  CHILD_CHECK(reshard_execute(s.transfer, NULL) == RESHARD_SUCCESS && columns_are(&s, 1));
  CHILD_CHECK(bind_scene(&s, s.src, RESHARD_PATH_AUTO, true) == RESHARD_SUCCESS);
  CHILD_CHECK(path_of(&s) == RESHARD_PATH_PACKED);
  fill_rows(&s, s.src, 2);
  CHILD_CHECK(reshard_execute(s.transfer, NULL) == RESHARD_SUCCESS && columns_are(&s, 2));
  reshard_transfer_destroy(s.transfer);

  CHILD_CHECK(bind_scene(&s, s.src, rank == 0 ? RESHARD_PATH_DIRECT : RESHARD_PATH_AUTO, false) == RESHARD_SUCCESS);
  CHILD_CHECK(path_of(&s) == RESHARD_PATH_DIRECT);
  fill_rows(&s, s.src, 3);
  fill_rows(&s, other, 4);
  CHILD_CHECK(bind_scene(&s, rank == 1 ? private_source : other, RESHARD_PATH_AUTO, true) == RESHARD_ERROR_UNSUPPORTED);
  CHILD_CHECK(strstr(reshard_last_error(), "rank 1 has a source") != NULL);
  CHILD_CHECK(reshard_execute(s.transfer, NULL) == RESHARD_SUCCESS && columns_are(&s, 3));
  CHILD_CHECK(bind_scene(&s, other, RESHARD_PATH_AUTO, true) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_execute(s.transfer, NULL) == RESHARD_SUCCESS && columns_are(&s, 4));
  reshard_status status = bind_scene(&s, rank == 2 ? NULL : s.src, RESHARD_PATH_AUTO, true);
  CHILD_CHECK(status == RESHARD_ERROR_INVALID && strstr(reshard_last_error(), "rank 2: ") != NULL);
  CHILD_CHECK(reshard_execute(s.transfer, NULL) == RESHARD_SUCCESS && columns_are(&s, 4));
  reshard_tensor_release(private_tensor);
  close_scene(&s);
  reshard_tensor_release(other_tensor);
}

static void test_choice(void **state) {
  (void)state;
  assert_int_equal(processes_run(3, 0, choose_path, NULL), 0);
}

/* A source is written up to its rank's execute and from its return on; destinations are whole at the return. Ranks come
 * late by turns, so that one is ahead of the others all the time. */
static void keep_order(processes *all, int64_t rank, void *user) {
  int turns = *(int *)user;
  scene s;
  open_scene(all, rank, TIMEOUT_MS, &s);
  CHILD_CHECK(bind_scene(&s, s.src, RESHARD_PATH_DIRECT, false) == RESHARD_SUCCESS);
  for (int turn = 0; turn < turns; turn++) {
    fill_rows(&s, s.src, turn);
    if (turn % all->n == rank)
      nanosleep(&(struct timespec){0, 200000}, NULL);
    CHILD_CHECK(reshard_execute(s.transfer, NULL) == RESHARD_SUCCESS);
    memset(s.src, 0xff, (size_t)s.elements * sizeof *s.src);
    CHILD_CHECK(columns_are(&s, turn));
  }
  close_scene(&s);
}

static void test_order(void **state) {
  (void)state;
  int turns = (int)(300 * test_scale()) + 5;
  for (int64_t n = 2; n <= 4; n++)
    assert_int_equal(processes_run(n, 0, keep_order, &turns), 0);
}

/* --- Ends --------------------------------------------------------------------------------------------------------- */

/* Steps at which a rank is killed; the last one after some time, wherever it is then. */
enum { KILL_CREATE, KILL_REBIND, KILL_EXECUTE, KILL_LATER, KILLS };

typedef struct kill_call {
  int step, delay_us;
  int64_t victim;
} kill_call;

static void die(int signal) {
  (void)signal;
  raise(SIGKILL);
}

static void die_at(const kill_call *k, int64_t rank, int step) {
  if (k->step == step && rank == k->victim)
    raise(SIGKILL);
}

/* The survivors' error names the rank that is gone. A transfer over those that are left works, and is direct. */
static void go_on(scene *s, const kill_call *k) {
  char gone[64];
  snprintf(gone, sizeof gone, "rank %lld is gone", (long long)k->victim);
  if (strstr(reshard_last_error(), gone) == NULL) {
    fprintf(stderr, "rank %lld: step %d: '%s'\n", (long long)s->rank, k->step, reshard_last_error());
    _exit(1);
  }
  CHILD_CHECK(s->transfer == NULL || reshard_execute(s->transfer, NULL) == RESHARD_ERROR_PEER);
  reshard_comm rest;
  CHILD_CHECK(reshard_comm_shrink(s->comm, 1, &k->victim, &rest) == RESHARD_SUCCESS);
  int64_t shape[] = {12, 12}, n = s->n - 1, rank = reshard_comm_rank(rest);
  reshard_layout rows, columns;
  reshard_plan plan;
  reshard_transfer transfer;
  reshard_transfer_info info;
  CHILD_CHECK(reshard_layout_parse("chunk(0)", 2, shape, n, &rows) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_layout_parse("chunk(1)", 2, shape, n, &columns) == RESHARD_SUCCESS);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = rows, .dst = columns, .dtype = RESHARD_F32};
  CHILD_CHECK(reshard_plan_create(1, &entry, rank, NULL, &plan) == RESHARD_SUCCESS);
  reshard_arrays arrays = {RESHARD_ARRAYS_INIT, (void *[]){s->src}, (void *[]){s->dst}, NULL, NULL, 1, 1};
  CHILD_CHECK(reshard_transfer_create(plan, rest, &arrays, NULL, &transfer) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_transfer_get_info(transfer, &info) == RESHARD_SUCCESS && info.path == RESHARD_PATH_DIRECT);
  int64_t own = 12 / n;
  for (int64_t i = 0; i < own * 12; i++)
    s->src[i] = (float)(rank * own * 12 + i);
  CHILD_CHECK(reshard_execute(transfer, NULL) == RESHARD_SUCCESS);
  for (int64_t i = 0; i < 12 * own; i++)
    CHILD_CHECK(s->dst[i] == (float)(i / own * 12 + rank * own + i % own));
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  reshard_layout_release(rows);
  reshard_layout_release(columns);
  reshard_comm_destroy(rest);
}

static void lose_rank(processes *all, int64_t rank, void *user) {
  const kill_call *k = user;
  int descriptors = count_descriptors();
  scene s;
  reshard_status status = RESHARD_SUCCESS;
  open_scene(all, rank, TIMEOUT_MS, &s);
  fill_rows(&s, s.src, 0);
  die_at(k, rank, KILL_CREATE);
  if (k->step == KILL_LATER && rank == k->victim) {
    signal(SIGALRM, die);
    setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {0, k->delay_us}}, NULL);
  }
  status = bind_scene(&s, s.src, RESHARD_PATH_AUTO, false);
  if (k->step >= KILL_REBIND && k->step != KILL_LATER)
    CHILD_CHECK(status == RESHARD_SUCCESS);
  for (int turn = 0; status == RESHARD_SUCCESS; turn++) {
    CHILD_CHECK(turn < 1000000);
    fill_rows(&s, s.src, turn);
    status = reshard_execute(s.transfer, NULL);
    if (status == RESHARD_SUCCESS && turn % 16 == 0)
      CHILD_CHECK(columns_are(&s, turn));
    if (turn == 1)
      die_at(k, rank, KILL_REBIND);
    if (status == RESHARD_SUCCESS && turn % 2 == 1)
      status = bind_scene(&s, s.src, RESHARD_PATH_AUTO, true);
    if (turn == 1)
      die_at(k, rank, KILL_EXECUTE);
  }
  CHILD_CHECK(status == RESHARD_ERROR_PEER);
  go_on(&s, k);
  close_scene(&s);
  CHILD_CHECK(count_descriptors() == descriptors);
}

static void test_killed(void **state) {
  (void)state;
  int later = (int)(40 * test_scale()) + 2;
  for (int i = 0; i < KILL_LATER + later; i++) {
    kill_call k = {i < KILL_LATER ? i : KILL_LATER, 1 + i * 700 % 9000, i % 4};
    assert_int_equal(processes_run(4, 1u << k.victim, lose_rank, &k), 0);
  }
}

/* A rank that does not come is named when the deadline has passed; its later calls tell it, too. */
static void come_late(processes *all, int64_t rank, void *user) {
  (void)user;
  scene s;
  open_scene(all, rank, 300, &s);
  CHILD_CHECK(bind_scene(&s, s.src, RESHARD_PATH_DIRECT, false) == RESHARD_SUCCESS);
  memset(s.dst, 0x5a, (size_t)s.elements * sizeof *s.dst);
  fill_rows(&s, s.src, 1);
  if (rank == 1)
    nanosleep(&(struct timespec){0, 900000000}, NULL);
  reshard_status status = reshard_execute(s.transfer, NULL);
  CHILD_CHECK(status == RESHARD_ERROR_TIMEOUT || (rank == 1 && status == RESHARD_ERROR_PEER));
  CHILD_CHECK(strstr(reshard_last_error(), "missing: 1") != NULL);
  for (int64_t i = 0; i < s.elements; i++) /* nothing was written */
    CHILD_CHECK(memcmp(&s.dst[i], "ZZZZ", 4) == 0);
  close_scene(&s);
}

static void test_late(void **state) {
  (void)state;
  assert_int_equal(processes_run(3, 0, come_late, NULL), 0);
}

/* --- Memory ------------------------------------------------------------------------------------------------------- */

/* Rank 1 frees a source, as none should, while the others have it mapped and execute: they find zeros, not a fault. */
static void free_mapped(processes *all, int64_t rank, void *user) {
  (void)user;
  enum { SIDE = 600 };
  scene s;
  open_scene(all, rank, TIMEOUT_MS, &s);
  int64_t shape[] = {SIDE, SIDE};
  reshard_layout whole, halves;
  reshard_plan plan;
  float *src, *dst;
  CHILD_CHECK(reshard_layout_parse("rank(1)", 2, shape, 3, &whole) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_layout_parse("chunk(1;0,2)", 2, shape, 3, &halves) == RESHARD_SUCCESS);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = whole, .dst = halves, .dtype = RESHARD_F32};
  CHILD_CHECK(reshard_plan_create(1, &entry, rank, NULL, &plan) == RESHARD_SUCCESS);
  reshard_tensor from = alloc_on(s.shared, sizeof(float[SIDE * SIDE]), (void **)&src);
  reshard_tensor to = alloc_on(s.private_, sizeof(float[SIDE * SIDE / 2]), (void **)&dst);
  reshard_arrays arrays = {
      RESHARD_ARRAYS_INIT, (void *[]){rank == 1 ? src : NULL}, (void *[]){rank != 1 ? dst : NULL}, NULL, NULL, 0, 0};
  CHILD_CHECK(reshard_transfer_create(plan, s.comm, &arrays, NULL, &s.transfer) == RESHARD_SUCCESS);
  CHILD_CHECK(path_of(&s) == RESHARD_PATH_DIRECT);
  for (int64_t i = 0; i < SIDE * SIDE; i++)
    src[i] = (float)(i + 1);
  for (int turn = 0; turn < 2; turn++) {
    memset(dst, 0x5a, sizeof(float[SIDE * SIDE / 2]));
    CHILD_CHECK(reshard_execute(s.transfer, NULL) == RESHARD_SUCCESS);
    for (int64_t i = 0; i < SIDE * SIDE / 2 && rank != 1; i++) {
      int64_t column = (rank / 2) * (SIDE / 2) + i % (SIDE / 2);
      CHILD_CHECK(dst[i] == (turn == 0 ? (float)(i / (SIDE / 2) * SIDE + column + 1) : 0));
    }
    if (rank == 1 && turn == 0) {
      reshard_tensor_release(from);
      CHILD_CHECK(reshard_device_trim(s.shared, 0) == RESHARD_SUCCESS);
    }
  }
  if (rank != 1)
    reshard_tensor_release(from);
  reshard_tensor_release(to);
  reshard_transfer_destroy(s.transfer);
  s.transfer = NULL;
  reshard_plan_destroy(plan);
  reshard_layout_release(whole);
  reshard_layout_release(halves);
  close_scene(&s);
}

static void test_freed(void **state) {
  (void)state;
  assert_int_equal(processes_run(3, 0, free_mapped, NULL), 0);
}

/* Everything comes and goes; the process holds no more of the system than before. */
static void make_and_destroy(processes *all, int64_t rank, void *user) {
  int64_t cycles = *(int64_t *)user, maps = 0, pages = 0;
  int descriptors = 0;
  scene s;
  open_scene(all, rank, TIMEOUT_MS, &s);
  for (int64_t i = 0; i < cycles; i++) {
    float *src;
    reshard_tensor tensor = alloc_on(s.shared, s.elements * 4, (void **)&src);
    fill_rows(&s, src, (int)(i % 100));
    CHILD_CHECK(bind_scene(&s, src, RESHARD_PATH_DIRECT, false) == RESHARD_SUCCESS);
    CHILD_CHECK(reshard_execute(s.transfer, NULL) == RESHARD_SUCCESS && columns_are(&s, (int)(i % 100)));
    reshard_transfer_destroy(s.transfer);
    CHILD_CHECK(reshard_comm_barrier(s.comm) == RESHARD_SUCCESS);
    reshard_tensor_release(tensor);
    if (i % 3 == 0) /* another segment the next time */
      CHILD_CHECK(reshard_device_trim(s.shared, 0) == RESHARD_SUCCESS);
    if (i == cycles / 2) {
      descriptors = count_descriptors();
      maps = count_maps();
      pages = count_pages();
    }
  }
  CHILD_CHECK(count_descriptors() == descriptors);
  CHILD_CHECK(cycles < 20000 || count_maps() <= maps + 4); /* 1024 unused imports of each process stay */
  CHILD_CHECK(count_pages() <= pages + 256);
  s.transfer = NULL;
  close_scene(&s);
}

static void test_cycles(void **state) {
  (void)state;
  const char *text = getenv("RESHARD_TEST_CYCLES");
  int64_t cycles = text != NULL ? strtoll(text, NULL, 10) : 200;
  assert_int_equal(processes_run(3, 0, make_and_destroy, &cycles), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random), cmocka_unit_test(test_choice), cmocka_unit_test(test_order),
      cmocka_unit_test(test_killed), cmocka_unit_test(test_late),   cmocka_unit_test(test_freed),
      cmocka_unit_test(test_cycles),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
