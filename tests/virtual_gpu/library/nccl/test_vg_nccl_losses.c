/* A rank over NCCL is lost in the middle of a call: gone, late, or late by less than the deadline. The others have an
 * error that names it, by the deadline, and nothing is written afterwards. They destroy what they have, and go on over
 * a communicator of those that are there. They shrink the library's; the caller's is NCCL's to shrink.
 *
 * The device and the communicator of each rank are the library's, with calls that count: so a rank is lost at one of
 * them, which the seed draws. How many there are it learns by making the call once before. Time is the virtual GPU's.
 *
 * usage: test_vg_nccl_losses [RANKS TRIALS SEED [STEP [gone|late|in-time [own|borrowed]]]]. Without them a few of each
 * are lost, of 4 ranks and of 16. */
#include "base/base.h"
#include "comm/nccl/nccl.h"
#include "device/handle.h"
#include "nccl_rank.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/stop_counts.h"
#include "support/processes/children.h"
#include "virtual_gpu.h"

#include <reshard/sharded.h>

#include <nccl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 16, SPARE_MS = 1000, ROWS = 64, COLUMNS = 80, BYTES = ROWS * COLUMNS * 4, MINE = 0x5a };
enum { DELAYED_MS = 3000, DELAYED_NCCL_MS = 1200 }; /* 1500 + 1200 + 1500 is SPARE_MS too late */
enum { CREATE, TRANSFER, REBIND, PACK, EXCHANGE, UNPACK, REDISTRIBUTE, SPLIT, DESTROY, END, STEPS };
static const char *const step_names[STEPS] = {"create", "transfer",     "rebind", "pack",    "exchange",
                                              "unpack", "redistribute", "split",  "destroy", "end"};
enum { GONE, LATE, IN_TIME, WAYS };
static const char *const way_names[WAYS] = {"gone", "late", "in-time"};
enum { PREPARES = 1, LAUNCHES = 2, CALLS = 4, ANY = 7 }; /* kinds of what a rank does in a step */
static const int step_kinds[STEPS] = {ANY, ANY, ANY, LAUNCHES, CALLS, LAUNCHES, ANY, ANY, 0, ANY};

typedef struct world {
  int64_t n, victim, timeout_ms;
  int step, way;
  bool borrowed, delays; /* the victim comes when half of the deadline is over, and is lost later */
  uint64_t seed;
  unsigned char id[3][RESHARD_NCCL_ID_BYTES]; /* of all; of the rehearsal; of those that are there */
  reshard_device device[MOST];
  char *dst[MOST];
  atomic_int begun, through, failures;
  atomic_bool lost;
  int64_t longest_ms[MOST];
  stop_counts *counts;
} world;

/* A rank with what it has. */
typedef struct rank {
  world *w;
  int64_t number;
  reshard_comm comm, sub;
  ncclComm_t nccl; /* borrowed */
  cudaStream_t stream;
  char *src, *other; /* device memory */
  int32_t *host;
  reshard_layout rows, columns;
  reshard_plan plan;
  reshard_transfer transfer;
  reshard_sharder sharder;
  reshard_sharded_tensor tensor;
  int64_t since; /* of its call */
} rank;

#define CHECK(me, condition, ...) \
  do { \
    if (!(condition)) { \
      (me)->w->failures++; \
      printf("%s, seed %d: rank %d of %d, %d %s in %s: line %d: %s: ", (me)->w->borrowed ? "borrowed" : "own", \
             (int)(me)->w->seed, (int)(me)->number, (int)(me)->w->n, (int)(me)->w->victim, way_names[(me)->w->way], \
             step_names[(me)->w->step], __LINE__, #condition); \
      printf(__VA_ARGS__); \
      printf(" (last error: %s)\n", reshard_last_error()); \
      fflush(stdout); \
    } \
  } while (0)

/* --- Calls that count --------------------------------------------------------------------------------------------- */

static _Thread_local int watched; /* kinds */
static _Thread_local int64_t passed, countdown;
static _Thread_local world *lost_in;

static void lose(world *w) {
  w->lost = true;
  if (w->way == GONE)
    while (w->through < w->n - 1)
      test_sleep_ms(1);
  else
    test_sleep_ms((int)(w->way == LATE ? 2 * w->timeout_ms : rs_min(w->timeout_ms / 2, 200)));
}

static void pass(int kind) {
  if (!(watched & kind))
    return;
  passed++;
  if (countdown > 0 && --countdown == 0)
    lose(lost_in);
}

static const rs_device_work *real_work;
static const rs_device_memory *real_memory;
static const rs_device_streams *real_streams;
static rs_device_work work;
static rs_device_memory memory;
static rs_device_streams streams;

static reshard_status run(rs_device *device, int64_t n, rs_program *const *programs, void *stream) {
  pass(LAUNCHES);
  return real_work->run(device, n, programs, stream);
}

static reshard_status compile(rs_device *device, const rs_copies *copies, int64_t bytes, rs_program **program) {
  pass(PREPARES);
  return real_work->compile(device, copies, bytes, program);
}

static reshard_status recompile(rs_device *device, const rs_copies *copies, int64_t bytes, rs_program **program) {
  pass(PREPARES);
  return real_work->recompile(device, copies, bytes, program);
}

static reshard_status copy_bytes(rs_device *device, void *dst, const void *src, size_t bytes, void *stream) {
  pass(PREPARES);
  return real_memory->memcpy(device, dst, src, bytes, stream);
}

static reshard_status record_event(rs_device *device, rs_event *event, void *stream) {
  pass(PREPARES);
  return real_streams->event_record(device, event, stream);
}

static void count_device(reshard_device handle) {
  rs_device *device = handle->device;
  real_work = device->work;
  real_memory = device->memory;
  real_streams = device->streams;
  work = *real_work;
  work.run = run;
  work.compile = compile;
  work.recompile = recompile;
  memory = *real_memory;
  memory.memcpy = copy_bytes;
  streams = *real_streams;
  streams.event_record = record_event;
}

static ncclResult_t all_gather(const void *send, void *receive, size_t n, ncclDataType_t type, ncclComm_t comm,
                               cudaStream_t stream) {
  pass(CALLS);
  return ncclAllGather(send, receive, n, type, comm, stream);
}

static ncclResult_t group_start(void) {
  pass(CALLS);
  return ncclGroupStart();
}

static ncclResult_t group_end(void) {
  pass(CALLS);
  return ncclGroupEnd();
}

static ncclResult_t split_nccl(ncclComm_t comm, int color, int key, ncclComm_t *made, ncclConfig_t *config) {
  pass(CALLS);
  return ncclCommSplit(comm, color, key, made, config);
}

static ncclResult_t finalize(ncclComm_t comm) {
  pass(CALLS);
  return ncclCommFinalize(comm);
}

static void count_comm(reshard_comm comm) {
  rs_nccl_api *api = &rs_nccl_of(comm)->api;
  api->ncclAllGather = all_gather;
  api->ncclGroupStart = group_start;
  api->ncclGroupEnd = group_end;
  api->ncclCommSplit = split_nccl;
  api->ncclCommFinalize = finalize;
}

/* --- Communicators ------------------------------------------------------------------------------------------------ */

static reshard_status settle(ncclComm_t nccl) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress)
    if (ncclCommGetAsyncError(nccl, &state) != ncclSuccess)
      state = ncclInternalError;
  return state == ncclSuccess ? RESHARD_SUCCESS : RESHARD_ERROR_INTERNAL;
}

static reshard_status borrow_comm(rank *me, const unsigned char *id) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId name;
  memcpy(&name, id, sizeof name);
  config.blocking = 0;
  (void)ncclCommInitRankConfig(&me->nccl, (int)me->w->n, name, (int)me->number, &config);
  RS_TRY(settle(me->nccl));
  return reshard_comm_from_nccl(me->nccl, me->w->device[me->number], me->w->timeout_ms, &me->comm);
}

static reshard_status open_comm(rank *me, const unsigned char *id) {
  world *w = me->w;
  me->since = rs_now_ns();
  RS_TRY(w->borrowed ? borrow_comm(me, id)
                     : reshard_comm_create_nccl(id, w->n, me->number, w->device[me->number], w->timeout_ms, &me->comm));
  count_comm(me->comm);
  return RESHARD_SUCCESS;
}

/* Of those that are there, after an error. */
static reshard_status open_rest(rank *me, ncclComm_t *left, reshard_comm *rest) {
  world *w = me->w;
  int victim = (int)w->victim;
  if (me->comm == NULL)
    return reshard_comm_create_nccl(w->id[2], w->n - 1, me->number - (me->number > victim), w->device[me->number],
                                    w->timeout_ms, rest);
  if (!w->borrowed)
    return reshard_comm_shrink(me->comm, 1, &w->victim, rest);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  CHECK(me, reshard_comm_shrink(me->comm, 1, &w->victim, rest) == RESHARD_ERROR_UNSUPPORTED, "it is the caller's");
  (void)ncclCommShrink(me->nccl, &victim, 1, left, &config, NCCL_SHRINK_ABORT);
  RS_TRY(settle(me->nccl));
  RS_TRY(settle(*left));
  return reshard_comm_from_nccl(*left, w->device[me->number], w->timeout_ms, rest);
}

/* --- A reshard of all ranks of a communicator --------------------------------------------------------------------- */

/* Of a rank: rows that follow one another, then columns. Returns the bytes. */
static size_t fill_part(int32_t *out, int64_t n, int64_t r, bool columns) {
  int64_t wide = columns ? (COLUMNS + n - 1) / n : COLUMNS, high = columns ? ROWS : (ROWS + n - 1) / n;
  int64_t first = columns ? rs_min(r * wide, COLUMNS) : 0, top = columns ? 0 : rs_min(r * high, ROWS);
  int64_t end = rs_min(first + wide, COLUMNS), bottom = rs_min(top + high, ROWS), at = 0;
  for (int64_t i = top; i < bottom; i++)
    for (int64_t k = first; k < end; k++)
      out[at++] = (int32_t)(i * COLUMNS + k + 1);
  return (size_t)at * sizeof *out;
}

static bool is_right(const rank *me, reshard_comm comm, const char *at, bool columns) {
  int32_t want[ROWS * COLUMNS];
  size_t bytes = fill_part(want, reshard_comm_size(comm), reshard_comm_rank(comm), columns);
  cudaMemcpy(me->host, at, bytes, cudaMemcpyDeviceToHost);
  return memcmp(me->host, want, bytes) == 0;
}

static void fill_source(rank *me, reshard_comm comm) {
  size_t bytes = fill_part(me->host, reshard_comm_size(comm), reshard_comm_rank(comm), false);
  cudaMemcpy(me->src, me->host, bytes, cudaMemcpyHostToDevice);
  cudaDeviceSynchronize();
}

static reshard_status make_layouts(int64_t n, reshard_layout *rows, reshard_layout *columns) {
  const int64_t shape[2] = {ROWS, COLUMNS};
  RS_TRY(reshard_layout_parse("chunk(0)", 2, shape, n, rows));
  return reshard_layout_parse("chunk(1)", 2, shape, n, columns);
}

static reshard_status make_plan(const world *w, reshard_comm comm, reshard_layout rows, reshard_layout columns,
                                reshard_plan *plan) {
  const reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT,
                                        .workspace_limit = w->seed / 2 % 2 ? 4096 * w->n : 0};
  const reshard_entry entry = {.size = RESHARD_ENTRY_INIT, .src = rows, .dst = columns, .dtype = RESHARD_F32};
  return reshard_plan_create(1, &entry, reshard_comm_rank(comm), &options, plan);
}

static reshard_arrays arrays_of(rank *me, void **dst) {
  return (reshard_arrays){.size = RESHARD_ARRAYS_INIT, .src = (void **)&me->src, .dst = dst, .nsrc = 1, .ndst = 1};
}

static reshard_status make_transfer(rank *me) {
  void *dst = me->w->dst[me->number];
  reshard_arrays arrays = arrays_of(me, &dst);
  me->since = rs_now_ns();
  return reshard_transfer_create(me->plan, me->comm, &arrays, NULL, &me->transfer);
}

static void drop_transfer(rank *me) {
  reshard_transfer_destroy(me->transfer);
  me->transfer = NULL;
}

/* --- Steps -------------------------------------------------------------------------------------------------------- */

/* Moves the tensor where it is not. */
static reshard_status move_tensor(rank *me, bool to_columns) {
  return reshard_sharded_tensor_reshard(1, &me->tensor, to_columns ? &me->columns : &me->rows, me->stream);
}

static reshard_status make_tensor(rank *me) {
  const reshard_properties f32 = {.dtype = RESHARD_F32};
  const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .device = me->w->device[me->number]};
  RS_TRY(reshard_sharder_create(me->comm, &options, &me->sharder));
  RS_TRY(reshard_sharded_tensor_zeros(me->sharder, me->rows, &f32, me->stream, &me->tensor));
  for (int i = 0; i < 2 && me->w->seed / 4 % 2; i++) /* its plans are kept */
    RS_TRY(move_tensor(me, i == 0));
  return RESHARD_SUCCESS;
}

static void delay(world *w, int64_t number) {
  if (number != w->victim)
    w->begun++;
  while (number == w->victim && w->begun < w->n - 1)
    test_sleep_ms(1);
  if (number == w->victim)
    test_sleep_ms((int)w->timeout_ms / 2);
}

/* The step before which a victim is lost is one of its places too. */
static reshard_status take_step(rank *me, bool rehearsal, int64_t place) {
  world *w = me->w;
  void *dst = rehearsal ? me->other : w->dst[me->number];
  reshard_arrays arrays = arrays_of(me, &dst);
  passed = 0;
  countdown = place;
  watched = step_kinds[w->step];
  if (place == 0)
    lose(w);
  if (w->delays && !rehearsal)
    delay(w, me->number);
  me->since = rs_now_ns();
  switch (w->step) {
  case CREATE:
  case END:
    if (rehearsal || w->step == CREATE)
      RS_TRY(open_comm(me, w->id[rehearsal]));
    if (w->step == CREATE && !rehearsal)
      return RESHARD_SUCCESS;
    if (w->step == END)
      passed = 0;
    else
      watched = 0;
    me->since = rs_now_ns();
    reshard_comm_destroy(me->comm);
    me->comm = NULL;
    return RESHARD_SUCCESS;
  case TRANSFER:
    RS_TRY(make_transfer(me));
    if (rehearsal || w->seed / 2 % 2) /* connections may be under way still */
      drop_transfer(me);
    return RESHARD_SUCCESS;
  case REBIND: return reshard_transfer_rebind(me->transfer, &arrays);
  case PACK:
  case EXCHANGE:
  case UNPACK: return reshard_execute(me->transfer, me->stream);
  case REDISTRIBUTE: return move_tensor(me, rehearsal);
  case SPLIT:
    RS_TRY(reshard_comm_split(me->comm, me->number % 2, 0, &me->sub));
    if (rehearsal) {
      watched = 0;
      reshard_comm_destroy(me->sub);
      me->sub = NULL;
    }
    return RESHARD_SUCCESS;
  default: /* DESTROY */
    if (rehearsal)
      return reshard_execute(me->transfer, me->stream);
    drop_transfer(me);
    if (place > 0)
      lose(w);
    return RESHARD_SUCCESS;
  }
}

/* Call at which the victim is lost, of so many: -1 is none, 0 before the first. */
static int64_t draw_place(const world *w, int64_t calls) {
  int64_t drawn = (int64_t)(w->seed * 0x9e3779b97f4a7c15u >> 33);
  if (w->delays)
    return 1;
  switch (w->step) {
  case PACK: return drawn % 2 ? 1 : 0;
  case UNPACK: return rs_max(calls - drawn % rs_max(calls / 2, 1), 1);
  case DESTROY: return drawn % 2;
  default: return drawn % (calls + 1);
  }
}

static reshard_status prepare(rank *me) {
  world *w = me->w;
  RS_TRY(make_layouts(w->n, &me->rows, &me->columns));
  if (w->step == CREATE)
    return RESHARD_SUCCESS;
  RS_TRY(open_comm(me, w->id[0]));
  fill_source(me, me->comm);
  RS_TRY(make_plan(w, me->comm, me->rows, me->columns, &me->plan));
  if (w->step == REDISTRIBUTE)
    RS_TRY(make_tensor(me));
  if (w->step == REBIND || w->step == DESTROY || (w->step >= PACK && w->step <= UNPACK))
    RS_TRY(make_transfer(me));
  return RESHARD_SUCCESS;
}

/* A rehearsal of the end has a communicator of its own. */
static reshard_status rehearse(rank *me) {
  reshard_comm comm = me->comm;
  bool ends = me->w->step == END;
  RS_TRY(take_step(me, true, -1));
  watched = 0;
  if (ends)
    me->comm = comm;
  cudaStreamSynchronize(me->stream);
  return me->comm != NULL ? reshard_comm_barrier(me->comm) : RESHARD_SUCCESS;
}

static reshard_status meet(rank *me) {
  watched = 0;
  if (me->comm == NULL)
    return RESHARD_SUCCESS;
  me->w->longest_ms[me->number] = (rs_now_ns() - me->since) / 1000000;
  me->since = rs_now_ns();
  return reshard_comm_barrier(me->comm);
}

/* --- Survivors ---------------------------------------------------------------------------------------------------- */

/* A rank that has not come yet may be one of another node. */
static bool is_named(const rank *me, const char *text) {
  char name[32], not_come[64];
  snprintf(name, sizeof name, "; missing: %d", (int)me->w->victim);
  snprintf(not_come, sizeof not_come, "; missing: not come, or out of sight: %d", (int)me->w->victim);
  const char *missing = strstr(text, "; missing: ");
  return stop_is_named(text) && missing != NULL &&
         (strcmp(missing, name) == 0 || (me->w->step == CREATE && strcmp(missing, not_come) == 0));
}

/* The meeting of the ranks has the deadline that the caller has given. */
static void check_deadline(rank *me) {
  const char *within = strstr(reshard_last_error(), " within ");
  int64_t ms = within != NULL ? atoll(within + strlen(" within ")) : 0;
  CHECK(me, ms == me->w->timeout_ms, "%d ms instead of %d", (int)ms, (int)me->w->timeout_ms);
}

static void check_error(rank *me, reshard_status status) {
  world *w = me->w;
  stop_counts *counts = w->counts;
  w->longest_ms[me->number] = rs_max(w->longest_ms[me->number], (rs_now_ns() - me->since) / 1000000);
  bool late = w->longest_ms[me->number] > w->timeout_ms + SPARE_MS;
  counts->late += late;
  CHECK(me, !late, "after %d ms", (int)w->longest_ms[me->number]);
  if (w->step == END)
    return;
  CHECK(me, status == RESHARD_ERROR_TIMEOUT || status == RESHARD_ERROR_PEER, "%s", reshard_status_string(status));
  counts->errors += status != RESHARD_SUCCESS;
  counts->unnamed += !is_named(me, reshard_last_error());
  CHECK(me, is_named(me, reshard_last_error()), "names the rank and the call");
  if (w->delays)
    check_deadline(me);
}

static void use_rest(rank *me, reshard_comm rest) {
  reshard_layout rows = NULL, columns = NULL;
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  void *dst = me->other;
  reshard_arrays arrays = arrays_of(me, &dst);
  fill_source(me, rest);
  reshard_status status = make_layouts(reshard_comm_size(rest), &rows, &columns);
  RS_THEN(status, make_plan(me->w, rest, rows, columns, &plan));
  RS_THEN(status, reshard_transfer_create(plan, rest, &arrays, NULL, &transfer));
  RS_THEN(status, reshard_execute(transfer, me->stream));
  cudaStreamSynchronize(me->stream);
  RS_THEN(status, reshard_comm_barrier(rest));
  CHECK(me, status == RESHARD_SUCCESS, "a reshard of the rest: %s", reshard_status_string(status));
  CHECK(me, status != RESHARD_SUCCESS || is_right(me, rest, me->other, true), "wrong data of the rest");
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  reshard_layout_release(rows);
  reshard_layout_release(columns);
}

static void drop_objects(rank *me) {
  reshard_sharded_tensor_release(me->tensor);
  me->tensor = NULL;
  reshard_sharder_destroy(me->sharder);
  me->sharder = NULL;
  drop_transfer(me);
}

static void survive(rank *me) {
  reshard_comm rest = NULL;
  ncclComm_t left = NULL;
  reshard_status status = RESHARD_SUCCESS;
  if (!me->w->borrowed || me->w->seed % 2) /* else the caller ends NCCL's before */
    drop_objects(me);
  if (me->w->step != END) {
    status = open_rest(me, &left, &rest);
    CHECK(me, status == RESHARD_SUCCESS, "those that are there: %s", reshard_status_string(status));
  }
  drop_objects(me);
  cudaStreamSynchronize(me->stream);
  cudaMemset(me->w->dst[me->number], MINE, BYTES);
  cudaDeviceSynchronize();
  if (rest != NULL)
    use_rest(me, rest);
  reshard_comm_destroy(rest);
  if (left != NULL) {
    ncclCommFinalize(left);
    (void)settle(left);
    ncclCommDestroy(left);
  }
}

/* --- Trials ------------------------------------------------------------------------------------------------------- */

static void begin_rank(rank *me) {
  world *w = me->w;
  cudaSetDevice((int)me->number);
  cudaStreamCreateWithFlags(&me->stream, cudaStreamNonBlocking);
  cudaMalloc((void **)&me->src, BYTES);
  cudaMalloc((void **)&me->other, BYTES);
  cudaMalloc((void **)&w->dst[me->number], BYTES);
  me->host = malloc(BYTES);
  lost_in = w;
}

/* The caller ends NCCL's before, where a GPU may wait for a peer: else what that holds stays for ever. */
static void end_rank(rank *me) {
  bool aborts = me->w->way != IN_TIME;
  if (me->nccl != NULL && aborts) {
    ncclCommAbort(me->nccl);
    cudaDeviceSynchronize();
  }
  drop_objects(me);
  reshard_comm_destroy(me->sub);
  reshard_comm_destroy(me->comm);
  if (me->nccl != NULL && !aborts)
    ncclCommAbort(me->nccl);
  reshard_plan_destroy(me->plan);
  reshard_layout_release(me->rows);
  reshard_layout_release(me->columns);
  cudaStreamSynchronize(me->stream);
  reshard_device_forget_stream(me->w->device[me->number], me->stream);
  cudaStreamDestroy(me->stream);
  cudaFree(me->src);
  cudaFree(me->other);
  free(me->host);
}

static void run_rank(void *user, int64_t number) {
  world *w = user;
  rank own = {.w = w, .number = number}, *me = &own;
  begin_rank(me);
  reshard_status status = prepare(me);
  RS_THEN(status, rehearse(me));
  CHECK(me, status == RESHARD_SUCCESS, "before the loss: %s", reshard_status_string(status));
  if (status == RESHARD_SUCCESS)
    status = take_step(me, false, number == w->victim ? draw_place(w, passed) : -1);
  RS_THEN(status, meet(me));
  watched = 0;
  if (w->way == IN_TIME) {
    cudaStreamSynchronize(me->stream);
    CHECK(me, status == RESHARD_SUCCESS, "%s", reshard_status_string(status));
    if (w->step == PACK || w->step == EXCHANGE || w->step == UNPACK)
      CHECK(me, is_right(me, me->comm, w->dst[number], true), "wrong data");
  } else if (number != w->victim) {
    if (w->lost) /* else the step makes fewer calls this time */
      check_error(me, status);
    survive(me);
    w->through++;
  }
  end_rank(me);
}

static int64_t count_overwritten(const world *w) {
  int64_t n = 0;
  for (int64_t r = 0; r < w->n; r++) {
    if (r != w->victim && w->way != IN_TIME)
      n += nccl_rank_overwritten(r, w->dst[r], BYTES, MINE);
    cudaSetDevice((int)r);
    cudaFree(w->dst[r]);
  }
  return n;
}

static int run_trial(world w) {
  vg_begin(&(vg_options){.devices = (int)w.n, .seed = w.seed, .nccl_us = w.delays ? DELAYED_NCCL_MS * 1000 : 0});
  vg_quiet(true); /* of what nobody took */
  for (int64_t r = 0; r < w.n; r++) {
    char name[32];
    snprintf(name, sizeof name, "cuda:%d", (int)r);
    (void)reshard_device_create(name, NULL, &w.device[r]);
    if (real_work == NULL)
      count_device(w.device[r]);
    w.device[r]->device->work = &work;
    w.device[r]->device->memory = &memory;
    w.device[r]->device->streams = &streams;
  }
  for (int i = 0; i < 3; i++)
    (void)reshard_nccl_unique_id(w.id[i]);
  rank_threads_run(w.n, run_rank, &w);
  w.counts->stops += w.lost;
  int64_t wrong = count_overwritten(&w);
  w.counts->wrong += wrong;
  for (int64_t r = 0; r < w.n; r++)
    reshard_device_release(w.device[r]);
  int reports = vg_end(), bad = vg_reports_with("race") + vg_reports_with("freed") + vg_reports_with("misuse");
  vg_quiet(false);
  if (w.way == IN_TIME)
    bad = reports;
  for (int i = 0; i < reports && bad > 0; i++)
    printf("seed %d, %s in %s: %s\n", (int)w.seed, way_names[w.way], step_names[w.step], vg_report(i));
  if (wrong > 0)
    printf("seed %d, %s in %s: %d bytes were written after the error\n", (int)w.seed, way_names[w.way],
           step_names[w.step], (int)wrong);
  if (!w.lost)
    printf("seed %d, %s in %s: nobody was lost\n", (int)w.seed, way_names[w.way], step_names[w.step]);
  return w.failures + bad + (wrong > 0) + !w.lost;
}

/* Creation and end are local where the communicator is the caller's. */
static bool has_step(int step, bool borrowed) { return !borrowed || (step != CREATE && step != END); }

/* The ranks come to a creation each by itself, and its deadline is one for all of it: the machine may be busy. */
static int64_t deadline_of(int64_t n, int step) { return (n > 4 ? 400 : 200) * (step == CREATE ? 10 : 1); }

/* The victim of a creation is late, and is lost before the ranks meet. NCCL takes long to take up their meeting: with
 * a deadline anew for each wait they would be late. */
static int run_delayed(int64_t n, uint64_t seed) {
  stop_counts counts = {0};
  return run_trial((world){.n = n,
                           .timeout_ms = DELAYED_MS,
                           .step = CREATE,
                           .way = GONE,
                           .delays = true,
                           .seed = seed,
                           .victim = (int64_t)seed % n,
                           .counts = &counts});
}

static int run_trials(int64_t n, int64_t trials, uint64_t seed, int step, int way, bool borrowed) {
  stop_counts counts = {0};
  char where[64];
  int failures = 0;
  for (int64_t i = 0; i < trials; i++) {
    world w = {.n = n,
               .timeout_ms = deadline_of(n, step),
               .step = step,
               .way = way,
               .borrowed = borrowed,
               .seed = seed + (uint64_t)i,
               .counts = &counts};
    w.victim = (int64_t)(w.seed / 3) % n;
    failures += run_trial(w);
  }
  snprintf(where, sizeof where, "nccl%s, virtual GPUs, %d ranks", borrowed ? " of the caller's" : "", (int)n);
  stop_counts_print(where, way_names[way], step_names[step], &counts);
  return failures;
}

/* Without arguments those of the library and of the caller take turns; each does in the long form. */
static bool has_turn(uint64_t seed, int step, int way, bool borrowed, int argc) {
  return argc > 0 || vg_proving() || !has_step(step, true) || borrowed == (seed + (uint64_t)(step + way)) % 2;
}

static bool is_chosen(int argc, char **argv, int argument, const char *name) {
  return argc <= argument || strcmp(argv[argument], name) == 0;
}

static int run_all(int64_t n, int64_t trials, uint64_t seed, int argc, char **argv) {
  int failures = 0;
  for (int step = 0; step < STEPS; step++)
    for (int way = 0; way < WAYS; way++)
      for (int borrowed = 0; borrowed < 2; borrowed++)
        if (has_step(step, borrowed) && has_turn(seed, step, way, borrowed, argc) &&
            is_chosen(argc, argv, 4, step_names[step]) && is_chosen(argc, argv, 5, way_names[way]) &&
            is_chosen(argc, argv, 6, borrowed ? "borrowed" : "own"))
          failures += run_trials(n, trials, seed, step, way, borrowed);
  return failures;
}

int main(int argc, char **argv) {
  int failures = 0;
  if (argc > 3) {
    failures = run_all(atoll(argv[1]), atoll(argv[2]), strtoull(argv[3], NULL, 10), argc, argv);
  } else {
    failures = run_all(4, vg_scaled(1, 20), vg_first_seed(), 0, NULL);
    int descriptors = count_descriptors();
    failures += run_delayed(4, vg_first_seed());
    if (count_descriptors() != descriptors)
      failures += printf("%d descriptors, %d before\n", count_descriptors(), descriptors) > 0;
    for (int step = 0; step < STEPS; step += vg_proving() ? 1 : 4)
      failures += run_trials(MOST, vg_scaled(1, 4), vg_first_seed() + 1, step, step % 8 ? LATE : GONE, false);
  }
  printf("%d checks failed\n", failures);
  return failures > 0;
}
