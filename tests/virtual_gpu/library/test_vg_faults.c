/* Every public call on the GPU path, with each call of the runtime that it makes failing, one at a time: once, and from
 * then on; and with a rank that never comes. After each the call has ended within its deadline with a status that says
 * what happened, has written no output, and leaves nothing behind; and the ranks that are left make a new plan that
 * works. */
#include "fault_calls.h"
#include "support/fixtures/case.h"

#include <stdio.h>
#include <time.h>

/* --- One run ------------------------------------------------------------------------------------------------------ */

static void rank_note(rank *me, const char *what, reshard_status status) {
  if (status != RESHARD_SUCCESS && me->why[0] == '\0')
    snprintf(me->why, sizeof me->why, "rank %d: %s: %s: %s", (int)me->number, what, reshard_status_string(status),
             reshard_last_error());
}

static reshard_status open_nccl(rank *me) {
  world *w = me->world;
  return reshard_comm_create_nccl(w->id[0], w->n, me->number, me->device, w->timeout_ms, &me->comm);
}

static int gpu_of(const rank *me) { return me->world->kind == GPUS || me->world->kind == NCCL ? (int)me->number : 0; }

static void open_rank(void *user, int64_t r) {
  world *w = user;
  rank *me = &w->ranks[r];
  char name[16];
  snprintf(name, sizeof name, "cuda:%d", gpu_of(me));
  cudaSetDevice(gpu_of(me));
  cudaStreamCreateWithFlags(&me->stream, cudaStreamNonBlocking);
  cudaStreamCreateWithFlags(&me->second, cudaStreamNonBlocking);
  rank_note(me, "device", reshard_device_create(name, NULL, &me->device));
  rank_note(me, "layout", reshard_layout_parse("chunk(0)", 2, whole_shape, w->n, &me->rows));
  rank_note(me, "layout", reshard_layout_parse("chunk(1)", 2, whole_shape, w->n, &me->columns));
  if (w->kind == NCCL)
    rank_note(me, "communicator", open_nccl(me));
}

static void open_local(world *w) {
  reshard_device devices[RANKS];
  reshard_comm comms[RANKS];
  for (int64_t r = 0; r < w->n; r++)
    devices[r] = w->ranks[r].device;
  reshard_local_options options = {RESHARD_LOCAL_OPTIONS_INIT, 0, RESHARD_ISA_AUTO, w->timeout_ms, devices,
                                   w->kind == GPUS ? w->n : 1};
  rank_note(&w->ranks[0], "communicator", reshard_comm_create_local(w->n, &options, comms));
  for (int64_t r = 0; r < w->n && w->ranks[0].why[0] == '\0'; r++)
    w->ranks[r].comm = comms[r];
}

static void open_world(world *w) {
  vg_begin(&(vg_options){
      .devices = RANKS, .seed = (uint64_t)w->k, .patience_ms = 5 * rs_min(w->timeout_ms, 2000), .no_check = !SEEN});
  for (int i = 0; i < 3; i++)
    (void)reshard_nccl_unique_id(w->id[i]);
  for (int64_t r = 0; r < w->n; r++)
    w->ranks[r] = (rank){.world = w, .number = r, .n = w->n};
  rank_threads_run(w->n, open_rank, w);
  if (w->kind != NCCL)
    open_local(w);
}

static void prepare_rank(void *user, int64_t r) {
  world *w = user;
  rank *me = &w->ranks[r];
  if (w->call->prepare != NULL)
    rank_note(me, "before the call", w->call->prepare(me));
  cudaStreamSynchronize(me->stream);
}

static void call_rank(void *user, int64_t r) {
  world *w = user;
  rank *me = &w->ranks[r];
  me->result.status = RESHARD_ERROR_TIMEOUT;
  if (w->absent == r)
    return;
  if (w->victim == r)
    vg_fail_here(w->function, w->k, w->from_then_on, w->error);
  rank_result_set(&me->result, w->call->call(me));
}

static bool any_failed(const world *w) {
  for (int64_t r = 0; r < w->n; r++)
    if (w->ranks[r].result.status != RESHARD_SUCCESS)
      return true;
  return false;
}

/* Cleans up as a user does: work on a stream may wait for a rank for ever. */
static void abort_nccl(rank *me) {
  if (me->comm != NULL)
    (void)reshard_comm_abort(me->comm);
  if (me->made_comm != NULL)
    (void)reshard_comm_abort(me->made_comm);
}

static void settle_rank(void *user, int64_t r) {
  world *w = user;
  rank *me = &w->ranks[r];
  if (any_failed(w) && w->kind == NCCL)
    abort_nccl(me);
  cudaSetDevice(gpu_of(me));
  cudaDeviceSynchronize();
  if (me->other != NULL)
    cudaStreamSynchronize(me->other);
}

static void check_rank(void *user, int64_t r) {
  world *w = user;
  rank *me = &w->ranks[r];
  bool failed = any_failed(w);
  if (!failed && w->call->right != NULL && !w->call->right(me))
    snprintf(me->why, sizeof me->why, "rank %d: wrong data", (int)r);
  if (me->result.status != RESHARD_SUCCESS && w->absent != r && w->call->untouched != NULL && !w->call->untouched(me))
    snprintf(me->why, sizeof me->why, "rank %d: an output was written", (int)r);
}

static void drop_rank(void *user, int64_t r) {
  rank *me = &((world *)user)->ranks[r];
  reshard_transfer_destroy(me->transfer);
  reshard_plan_destroy(me->plan);
  reshard_sharded_tensor_release(me->sharded);
  reshard_sharded_tensor_release(me->made_sharded);
  reshard_sharder_destroy(me->sharder);
  reshard_module_release(me->module);
  reshard_tree_release(me->tree);
  reshard_tree_release(me->made_tree);
  reshard_tensor managed = NULL;
  if (me->managed != NULL)
    rank_note(me, "reshard_tensor_from_dlpack", reshard_tensor_from_dlpack(me->managed, 1, 0, &managed));
  reshard_tensor_release(managed);
  reshard_tensor_release(me->a);
  reshard_tensor_release(me->b);
  reshard_tensor_release(me->c);
  if (me->memory != NULL)
    (void)reshard_comm_free(me->comm, me->memory);
  reshard_comm_destroy(me->made_comm);
  for (int i = 0; i < RANKS; i++)
    reshard_comm_destroy(me->made_comms[i]);
  if (me->other != NULL) {
    cudaStreamSynchronize(me->other);
    rank_note(me, "forget", reshard_device_forget_stream(me->made_device, me->other));
    cudaStreamDestroy(me->other);
  }
  reshard_device_release(me->made_device);
  me->transfer = NULL;
  me->plan = NULL;
  me->a = me->b = me->c = NULL;
}

/* A new plan, on the same communicator or, where that may have ended, on a new one. */
static void work_rank(void *user, int64_t r) {
  world *w = user;
  rank *me = &w->ranks[r];
  if (w->kind == NCCL && any_failed(w)) {
    reshard_comm_destroy(me->comm);
    me->comm = NULL;
    rank_note(me, "a new communicator",
              reshard_comm_create_nccl(w->id[2], w->n, r, me->device, PATIENCE_MS, &me->comm));
  }
  if (me->comm == NULL)
    return;
  rank_note(me, "a new plan", make_ready(me));
  if (me->transfer != NULL)
    rank_note(me, "a new execute", execute(me));
  cudaStreamSynchronize(me->stream);
  if (me->why[0] == '\0' && !b_is_right(me))
    snprintf(me->why, sizeof me->why, "rank %d: a new plan moves wrong data", (int)r);
  reshard_transfer_destroy(me->transfer);
  reshard_plan_destroy(me->plan);
  reshard_tensor_release(me->a);
  reshard_tensor_release(me->b);
}

static void close_rank(void *user, int64_t r) {
  rank *me = &((world *)user)->ranks[r];
  reshard_layout_release(me->rows);
  reshard_layout_release(me->columns);
  reshard_comm_destroy(me->comm);
  cudaStreamSynchronize(me->stream);
  cudaStreamSynchronize(me->second);
  rank_note(me, "forget", reshard_device_forget_stream(me->device, me->stream)); /* ranks share devices */
  rank_note(me, "forget", reshard_device_forget_stream(me->device, me->second));
  reshard_device_release(me->device);
  cudaStreamDestroy(me->stream);
  cudaStreamDestroy(me->second);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Of what can fail here: the runtime for its own reasons, NCCL for its peers'. */
static bool is_right_status(const world *w, reshard_status status) {
  bool peers = w->kind == NCCL || w->absent >= 0;
  return status == RESHARD_SUCCESS || status == RESHARD_ERROR_OUT_OF_MEMORY || status == RESHARD_ERROR_SYSTEM ||
         (peers && (status == RESHARD_ERROR_TIMEOUT || status == RESHARD_ERROR_PEER));
}

static void ranks_judge(world *w, int64_t failed, double seconds) {
  /* Ranks hear of one another's failures where they meet, and a rank that is lost after that is so alone. */
  bool alone = w->call->own_status || w->kind == NCCL || w->absent >= 0 || (w->function == NULL && w->from_then_on);
  rank *first = &w->ranks[w->absent == 0 ? 1 : 0];
  for (int64_t r = 0; r < w->n; r++) {
    rank *me = &w->ranks[r];
    reshard_status status = me->result.status;
    if (r == w->absent || me->why[0] != '\0')
      continue;
    if (failed == 0 && w->absent < 0)
      rank_note(me, "no call has failed", status);
    if (!is_right_status(w, status) || (status != RESHARD_SUCCESS && me->result.text[0] == '\0'))
      snprintf(me->why, sizeof me->why, "rank %d: %s (%.200s)", (int)r, reshard_status_string(status), me->result.text);
    if (!alone && (status != first->result.status ||
                   (status != RESHARD_SUCCESS && strcmp(me->result.text, first->result.text) != 0)))
      snprintf(me->why, sizeof me->why, "ranks %d and %d: %s (%.90s) and %s (%.90s)", (int)first->number, (int)r,
               reshard_status_string(first->result.status), first->result.text, reshard_status_string(status),
               me->result.text);
  }
  if (seconds > 1e-3 * (double)w->timeout_ms + SLACK_SECONDS)
    snprintf(first->why, sizeof first->why, "the call took %.1f s", seconds);
}

/* Was anything wrong? */
static bool run_once(world *w) {
  open_world(w);
  rank_threads_run(w->n, prepare_rank, w);
  double start = now();
  rank_threads_run(w->n, call_rank, w);
  double seconds = now() - start;
  w->failed = vg_failed();
  vg_fail(NULL, 0, false, 0);
  rank_threads_run(w->n, settle_rank, w);
  rank_threads_run(w->n, check_rank, w);
  ranks_judge(w, w->failed, seconds);
  rank_threads_run(w->n, drop_rank, w);
  for (int64_t r = 0; r < w->n && w->absent >= 0 && w->kind != NCCL; r++)
    reshard_comm_destroy(w->ranks[r].comm);
  if (w->absent >= 0 && w->kind != NCCL)
    open_local(w);
  rank_threads_run(w->n, work_rank, w);
  rank_threads_run(w->n, close_rank, w);
  /* Where nothing works any more nobody can wait for what a lost device did. */
  bool lost = w->function == NULL && w->from_then_on;
  int reports = vg_end(), allowed = lost ? vg_reports_with("free while in use") : 0;
  bool bad = reports > allowed + (SEEN ? 0 : vg_reports_with("may not have recorded it yet"));
  for (int64_t r = 0; r < w->n; r++)
    bad |= w->ranks[r].why[0] != '\0';
  return bad;
}

/* False when there were not so many calls to fail. Counts what was wrong; where that may be a deadline that a busy
 * machine has missed, what is wrong with a long one. */
static bool run_call(world *w, int64_t *wrong) {
  int64_t timeout_ms = w->timeout_ms;
  bool bad = run_once(w);
  if (bad && timeout_ms == DEADLINE_MS) {
    w->timeout_ms = 50 * DEADLINE_MS;
    bad = run_once(w);
    w->timeout_ms = timeout_ms;
  }
  if (bad) {
    fprintf(stderr, "%s %s, %s: call %d of %s by rank %d fails%s, rank %d never comes:\n", w->call->name, w->call->way,
            kind_names[w->kind], (int)w->k, w->function == NULL ? "any" : w->function, (int)w->victim,
            w->from_then_on ? " and all after it" : "", (int)w->absent);
    for (int64_t r = 0; r < w->n; r++)
      if (w->ranks[r].why[0] != '\0')
        fprintf(stderr, "  %s\n", w->ranks[r].why);
    for (int i = 0; i < vg_reports() && i < 5; i++)
      fprintf(stderr, "  %s\n", vg_report(i));
  }
  *wrong += bad;
  return w->failed > 0;
}

/* --- The sweep ---------------------------------------------------------------------------------------------------- */

static const struct {
  const char *what, *function;
  bool from_then_on, nccl;
  int error;
} faults[] = {{"any call", NULL, false, false, 0},
              {"any call", NULL, true, false, 0},
              {"out of memory", "cudaMalloc*", true, false, cudaErrorMemoryAllocation},
              {"out of pinned memory", "cudaHostAlloc", true, false, cudaErrorMemoryAllocation},
              {"launch failure", "cudaLaunchKernel", true, false, cudaErrorLaunchFailure},
              {"NCCL remote error", "nccl*", false, true, REMOTE_ERROR},
              {"NCCL remote error", "nccl*", true, true, REMOTE_ERROR}};
enum { FAULTS = sizeof faults / sizeof *faults };

static bool have_nccl(void) {
  unsigned char id[RESHARD_NCCL_ID_BYTES];
  vg_begin(NULL);
  reshard_status status = reshard_nccl_unique_id(id);
  vg_end();
  return status == RESHARD_SUCCESS;
}

static const char *only; /* calls whose names have it; NULL: all */

static void sweep(world *w, int f, int64_t *wrong) {
  int64_t runs = 0, wrong_before = *wrong, step = vg_proving() ? 0 : w->kind == NCCL ? 9 : 2;
  w->function = faults[f].function;
  w->error = faults[f].error;
  w->from_then_on = faults[f].from_then_on;
  for (w->k = 1; run_call(w, wrong); w->k += 1 + step * (1 + w->k / 4))
    runs++;
  vg_prove("faults|%s%s%s, %s|%s|%s|%lld|%lld", w->call->name, w->call->way[0] != '\0' ? ", " : "", w->call->way,
           kind_names[w->kind], faults[f].what, w->from_then_on ? "from then on" : "once", (long long)runs,
           (long long)(runs - rs_min(runs, *wrong - wrong_before)));
}

CASE(every_public_call_survives_every_failing_call) {
  int64_t wrong = 0, number = 0;
  if (!vg_sees_kernels()) /* nothing is checked in this build */
    skip();
  int kinds = have_nccl() ? KINDS : NCCL;
  vg_quiet(true);
  for (int c = 0; c < CALLS; c++)
    for (int k = 0; k < kinds; k++)
      for (int f = 0; f < FAULTS; f++) {
        world w = {.call = &calls[c], .kind = (kind)k, .n = k == SOLO ? 1 : RANKS, .absent = -1};
        if ((calls[c].kinds >> k & 1) == 0 || (faults[f].nccl && k != NCCL) || (only && !strstr(calls[c].name, only)))
          continue;
        if ((c + f + k) % SPARSE != 0 ||
            (k == NCCL && !vg_proving() && (c + f) % 4 != 0)) /* each waits for a deadline */
          continue;
        if (!vg_is_mine(number++))
          continue;
        w.timeout_ms = k == NCCL ? DEADLINE_MS : PATIENCE_MS;
        w.victim = c % w.n;
        sweep(&w, f, &wrong);
      }
  vg_quiet(false);
  assert_int_equal(wrong, 0);
}

/* Cases that the full form has found, and the steps of the short one leave out. */
static const struct {
  const char *call, *function;
  bool from_then_on;
  int error;
  int64_t k;
} found[] = {{"reshard_comm_shrink", NULL, false, 0, 2}, /* it was shrunk before its revocation was through */
             {"reshard_comm_shrink", NULL, false, 0, 3},
             {"reshard_comm_shrink", NULL, true, 0, 6}, /* asking for the state failed: called an internal error */
             {"reshard_comm_shrink", NULL, true, 0, 7},
             {"reshard_comm_shrink", "nccl*", false, REMOTE_ERROR, 2},
             {"reshard_comm_shrink", "nccl*", false, REMOTE_ERROR, 3}};

CASE(faults_that_were_found_stay_away) {
  int64_t wrong = 0;
  if (!vg_sees_kernels() || !have_nccl()) /* nothing is checked in this build */
    skip();
  vg_quiet(true);
  for (size_t i = 0; i < sizeof found / sizeof *found; i++)
    for (int c = 0; c < CALLS; c++)
      if (strcmp(calls[c].name, found[i].call) == 0 && (calls[c].kinds >> NCCL & 1) != 0) {
        world w = {.call = &calls[c], .kind = NCCL, .n = RANKS, .absent = -1, .victim = c % RANKS};
        w.timeout_ms = DEADLINE_MS;
        w.function = found[i].function;
        w.from_then_on = found[i].from_then_on;
        w.error = found[i].error;
        w.k = found[i].k;
        assert_true(run_call(&w, &wrong));
      }
  vg_quiet(false);
  assert_int_equal(wrong, 0);
}

/* A rank that never comes to a collective call: the others have their deadline. An execute on a stream has none, as the
 * host does not wait in it. */
CASE(absent_rank_is_a_timeout_of_every_call) {
  int64_t wrong = 0, number = 0;
  if (!vg_sees_kernels()) /* nothing is checked in this build */
    skip();
  int kinds = have_nccl() ? KINDS : NCCL;
  vg_quiet(true);
  for (int c = 0; c < CALLS; c++)
    for (int k = ONE_GPU; k < kinds; k++) {
      if ((calls[c].kinds >> k & 1) == 0 || !calls[c].collective || (only && !strstr(calls[c].name, only)))
        continue;
      if (!vg_is_mine(number++))
        continue;
      world w = {.call = &calls[c], .kind = (kind)k, .n = RANKS, .victim = -1, .timeout_ms = DEADLINE_MS};
      w.absent = c % RANKS;
      int64_t before = wrong;
      run_call(&w, &wrong);
      vg_prove("faults|%s%s%s, %s|a rank never comes||1|%d", w.call->name, w.call->way[0] != '\0' ? ", " : "",
               w.call->way, kind_names[k], (int)(wrong == before));
    }
  vg_quiet(false);
  assert_int_equal(wrong, 0);
}

/* An argument is part of the names of the calls to test. */
int main(int argc, char **argv) {
  only = argc > 1 ? argv[1] : NULL;
  return case_list_run(__FILE__, NULL, NULL);
}
