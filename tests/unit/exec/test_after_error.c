/* Ranks that are threads of one process. One of them comes late, destroys its handle or aborts, at a
 * moment that the seed says. The others return from their calls by the deadline, or at once where there is none, with
 * the rank's number. No byte of a rank's memory changes once it has its error. RESHARD_TEST_SCALE scales the cases. */
#include "bench/cli/util.h"
#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"
#include "support/fixtures/stop_counts.h"

#include <reshard/reshard.h>

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 4, SIDE = 128, OWN = SIDE * SIDE / N, POISON = 0xA5, ROUNDS = 2 };
enum { STEP_CREATE, STEP_EXECUTE, STEP_REBIND, STEP_DESTROY, STEPS };
typedef enum trouble { LATE, GONE, ABORT, TROUBLES } trouble;
static const char *const step_names[] = {"create", "execute", "rebind", "destroy"};
static const char *const trouble_names[] = {"late", "gone", "aborts"};
enum { DEADLINE = 25 };

typedef struct rank {
  struct world *world;
  int64_t number;
  rank_thread thread;
  reshard_comm comm;
  reshard_plan plan;
  reshard_transfer transfer;
  uint32_t *rows, *columns[2];
  bool ended, wrong; /* the memory was given up, and is poison; the data was not what it should be */
  double longest;    /* call, in seconds */
  rank_result result;
} rank;

typedef struct world {
  rank ranks[N];
  trouble kind;
  int64_t victim;
  int step, round; /* at which the victim's trouble comes */
  bool packed;
  sem_t released;
} world;

static uint64_t seed_draw(uint64_t *seed) {
  *seed = *seed * 6364136223846793005u + 1442695040888963407u;
  return *seed >> 33;
}

/* From here on the memory is the caller's alone. */
static void poison(rank *r) {
  r->ended = true;
  memset(r->rows, POISON, OWN * sizeof *r->rows);
  for (int i = 0; i < 2; i++)
    memset(r->columns[i], POISON, OWN * sizeof *r->columns[i]);
}

static bool is_poison(const rank *r) {
  const unsigned char *at[] = {(void *)r->rows, (void *)r->columns[0], (void *)r->columns[1]};
  bool all = true;
  for (int i = 0; i < 3; i++)
    all &= at[i][0] == POISON && memcmp(at[i], at[i] + 1, OWN * sizeof *r->rows - 1) == 0;
  return all;
}

/* Element (i, j) of the tensor has i * SIDE + j + 1; chunk(0) to chunk(1). */
static void rank_fill(rank *r) {
  for (int64_t k = 0; k < OWN; k++)
    r->rows[k] = (uint32_t)(r->number * OWN + k + 1);
}

static bool is_right(const rank *r, int which) {
  bool right = true;
  for (int64_t i = 0; i < SIDE; i++)
    for (int64_t j = 0; j < SIDE / N; j++)
      right &= r->columns[which][i * (SIDE / N) + j] == (uint32_t)(i * SIDE + r->number * (SIDE / N) + j + 1);
  return right;
}

/* Takes the calling rank to a step; false: it has none any more. */
static bool come_to(rank *r, int step, int round) {
  world *w = r->world;
  if (r->number != w->victim || step != w->step || round != w->round)
    return true;
  if (w->kind == LATE)
    while (sem_wait(&w->released) != 0)
      continue;
  else if (w->kind == ABORT)
    reshard_comm_abort(r->comm);
  return w->kind != GONE;
}

/* Notes how long a call took, and its first error. */
static bool rank_note(rank *r, double begun, reshard_status status) {
  double took = rs_seconds() - begun;
  r->longest = took > r->longest ? took : r->longest;
  if (status != RESHARD_SUCCESS)
    rank_result_set(&r->result, status);
  return status == RESHARD_SUCCESS;
}

static void bind(rank *r, int which, void *lists[2], reshard_arrays *arrays) {
  lists[0] = r->rows;
  lists[1] = r->columns[which];
  *arrays = (reshard_arrays){RESHARD_ARRAYS_INIT, &lists[0], &lists[1], NULL, NULL, 1, 1};
}

static bool run_steps(rank *r, const reshard_transfer_options *options) {
  void *lists[2];
  reshard_arrays arrays;
  bind(r, 0, lists, &arrays);
  if (!come_to(r, STEP_CREATE, 0))
    return false;
  double begun = rs_seconds();
  if (!rank_note(r, begun, reshard_transfer_create(r->plan, r->comm, &arrays, options, &r->transfer)))
    return false;
  for (int round = 0; round < ROUNDS; round++) {
    if (!come_to(r, STEP_EXECUTE, round))
      return false;
    begun = rs_seconds();
    if (!rank_note(r, begun, reshard_execute(r->transfer, NULL)))
      return false;
    r->wrong |= !is_right(r, round % 2);
    bind(r, (round + 1) % 2, lists, &arrays);
    if (!come_to(r, STEP_REBIND, round))
      return false;
    begun = rs_seconds();
    if (!rank_note(r, begun, reshard_transfer_rebind(r->transfer, &arrays)))
      return false;
  }
  return come_to(r, STEP_DESTROY, 0);
}

static void run_rank(void *user, int64_t number) {
  rank *r = user;
  world *w = r->world;
  const reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT,
                                            .path = w->packed ? RESHARD_PATH_PACKED : RESHARD_PATH_DIRECT};
  run_steps(r, &options);
  reshard_transfer_destroy(r->transfer);
  reshard_comm_destroy(r->comm);
  poison(r);
}

static void open_world(world *w, int threads, int64_t timeout_ms, int64_t limit) {
  const int64_t shape[2] = {SIDE, SIDE};
  const reshard_local_options options = {RESHARD_LOCAL_OPTIONS_INIT, threads, RESHARD_ISA_AUTO, timeout_ms, NULL, 0};
  const reshard_plan_options plan_options = {RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = limit};
  reshard_comm comms[N];
  reshard_layout src, dst;
  assert_int_equal(reshard_comm_create_local(N, &options, comms), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_parse("chunk(0)", 2, shape, N, &src), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_parse("chunk(1)", 2, shape, N, &dst), RESHARD_SUCCESS);
  const reshard_entry entry = {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_F32};
  for (int64_t i = 0; i < N; i++) {
    rank *r = &w->ranks[i];
    r->world = w;
    r->number = i;
    r->comm = comms[i];
    assert_int_equal(reshard_plan_create(1, &entry, i, &plan_options, &r->plan), RESHARD_SUCCESS);
    r->rows = cli_alloc(OWN, sizeof *r->rows);
    r->columns[0] = cli_alloc(OWN, sizeof *r->rows);
    r->columns[1] = cli_alloc(OWN, sizeof *r->rows);
    rank_fill(r);
  }
  reshard_layout_release(src);
  reshard_layout_release(dst);
}

static void close_world(world *w) {
  for (int64_t i = 0; i < N; i++) {
    rank *r = &w->ranks[i];
    reshard_plan_destroy(r->plan);
    free(r->rows);
    free(r->columns[0]);
    free(r->columns[1]);
  }
  sem_destroy(&w->released);
}

/* Runs the ranks, the victim with its trouble, and lets it go on when the others have ended. */
static void run_world(world *w) {
  for (int64_t i = 0; i < N; i++)
    rank_thread_create(&w->ranks[i].thread, run_rank, &w->ranks[i], i);
  rank_thread *victim = &w->ranks[w->victim].thread;
  for (int64_t i = 0; i < N; i++)
    if (i != w->victim)
      rank_thread_end(&w->ranks[i].thread);
  sem_post(&w->released);
  rank_thread_end(victim);
}

typedef struct totals {
  stop_counts counts[TROUBLES][STEPS];
  int64_t errors, late;
  double longest;
} totals;

static int64_t cases = 40; /* a step */
static uint64_t first_seed;

/* Text of the error that the others have. */
static void check_survivor(const world *w, const rank *r, uint64_t seed, stop_counts *counts) {
  char part[96] = "";
  const char *text = r->result.text;
  if (w->kind == GONE)
    snprintf(part, sizeof part, "rank %lld has destroyed its handle", (long long)w->victim);
  else if (w->kind == ABORT)
    snprintf(part, sizeof part, "rank %lld aborted the communicator", (long long)w->victim);
  counts->errors++;
  counts->unnamed += !stop_is_named(text);
  bool timed_out = r->result.status == RESHARD_ERROR_TIMEOUT && w->kind == LATE;
  if ((r->result.status != RESHARD_ERROR_PEER && !timed_out) || strstr(text, part) == NULL)
    fail_msg("seed %llu, rank %lld %s in %s: rank %lld has %s (%s)", (unsigned long long)seed, (long long)w->victim,
             trouble_names[w->kind], step_names[w->step], (long long)r->number, reshard_status_string(r->result.status),
             text);
}

static void run_case(uint64_t seed, int step, totals *t) {
  world w = {.step = step};
  uint64_t random = seed;
  seed_draw(&random);
  w.kind = (trouble)(seed_draw(&random) % TROUBLES);
  w.victim = (int64_t)(seed_draw(&random) % N);
  w.round = step == STEP_EXECUTE || step == STEP_REBIND ? (int)(seed_draw(&random) % ROUNDS) : 0;
  w.packed = seed_draw(&random) % 2 == 0;
  bool deadline = w.kind == LATE;
  sem_init(&w.released, 0, 0);
  open_world(&w, 1 + (int)(seed_draw(&random) % 2), deadline ? DEADLINE : 0, seed_draw(&random) % 2 ? 16384 : 0);
  stop_counts *counts = &t->counts[w.kind][step];
  counts->stops++;
  run_world(&w);
  for (int64_t i = 0; i < N; i++) {
    rank *r = &w.ranks[i];
    if (!r->ended || !is_poison(r) || r->wrong)
      fail_msg("seed %llu, rank %lld %s in %s: rank %lld has %s", (unsigned long long)seed, (long long)w.victim,
               trouble_names[w.kind], step_names[step], (long long)i,
               r->wrong ? "wrong data" : "memory that was written after its last call");
    if (r->result.status != RESHARD_SUCCESS && i != w.victim) {
      t->errors++;
      check_survivor(&w, r, seed, counts);
    }
    t->longest = r->longest > t->longest ? r->longest : t->longest;
    counts->late += r->longest > 1e-3 * DEADLINE + 1;
    t->late += r->longest > 1e-3 * DEADLINE + 1;
  }
  close_world(&w);
}

CASE(after_any_trouble_the_arrays_are_the_callers) {
  totals t = {0};
  int64_t n = test_scaled(cases, 16), unnamed = 0; /* so that each trouble comes */
  for (int64_t i = 0; i < n; i++)
    for (int step = 0; step < STEPS; step++)
      run_case(first_seed + (uint64_t)(i * STEPS + step), step, &t);
  printf("%lld cases a step, %lld errors of others; longest call %.3f s, %lld outlasted %d ms + 1 s\n", (long long)n,
         (long long)t.errors, t.longest, (long long)t.late, DEADLINE);
  for (int kind = 0; kind < TROUBLES; kind++)
    for (int step = 0; step < STEPS; step++) {
      const stop_counts *counts = &t.counts[kind][step];
      assert_true(counts->stops > 0);
      unnamed += counts->unnamed;
      stop_counts_print("local, 4 threads", trouble_names[kind], step_names[step], counts);
    }
  assert_int_equal(unnamed, 0);
  assert_true(t.errors > n);
  assert_true(t.longest < 30); /* of a machine that may be busy */
}

/* usage: test_after_error [CASES [SEED]] a step */
int main(int argc, char **argv) {
  if (argc > 1)
    cases = strtoll(argv[1], NULL, 10);
  if (argc > 2)
    first_seed = strtoull(argv[2], NULL, 10);
  return case_list_run(__FILE__, NULL, NULL);
}
