#define _GNU_SOURCE
#include "steps.h"

#include "base/base.h"
#include "bench/cli/util.h"
#include "comm/comm.h"
#include "device/handle.h"
#include "support/fixtures/rank_threads.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ABORT_US = 4000, HANG_MS = 300000 };
enum { ANY = LOSS_PREPARES | LOSS_LAUNCHES | LOSS_CALLS };

const struct loss_step_row loss_steps[LOSS_STEPS] = {
    [LOSS_MAKE] = {"make", LOSS_CALL_MAKE, ANY, LOSS_ANYWHERE},
    [LOSS_CREATE] = {"create", LOSS_CALL_MAKE, ANY, LOSS_ANYWHERE},
    [LOSS_DELAYED] = {"create", LOSS_CALL_MAKE, ANY, LOSS_1},
    [LOSS_JOIN] = {"join", LOSS_CALL_MAKE, LOSS_MESSAGES, LOSS_ANYWHERE},
    [LOSS_MEET] = {"meet", LOSS_CALL_MEET, ANY, LOSS_ANYWHERE},
    [LOSS_SPLIT] = {"split", LOSS_CALL_SPLIT, ANY, LOSS_ANYWHERE},
    [LOSS_TRANSFER] = {"transfer", LOSS_CALL_BIND, ANY, LOSS_ANYWHERE},
    [LOSS_FIRST] = {"create", LOSS_CALL_BIND, ANY, LOSS_ANYWHERE},
    [LOSS_BIND] = {"bind", LOSS_CALL_BIND, LOSS_PREPARES | LOSS_LAUNCHES, LOSS_ANYWHERE},
    [LOSS_REBIND] = {"rebind", LOSS_CALL_REBIND, ANY, LOSS_ANYWHERE},
    [LOSS_EXECUTE] = {"execute", LOSS_CALL_EXECUTE, LOSS_CALLS, LOSS_RING},
    [LOSS_TRANSPOSE] = {"execute", LOSS_CALL_EXECUTE, LOSS_CALLS, LOSS_ANYWHERE},
    [LOSS_STRIDED] = {"strided", LOSS_CALL_EXECUTE, LOSS_CALLS, LOSS_ANYWHERE},
    [LOSS_COPY] = {"copy", LOSS_CALL_EXECUTE, LOSS_LAUNCHES, LOSS_ANYWHERE},
    [LOSS_PACK] = {"pack", LOSS_CALL_EXECUTE, LOSS_LAUNCHES, LOSS_FIRST_HALF},
    [LOSS_EXCHANGE] = {"exchange", LOSS_CALL_EXECUTE, LOSS_LAUNCHES | LOSS_CALLS, LOSS_ANYWHERE},
    [LOSS_UNPACK] = {"unpack", LOSS_CALL_EXECUTE, LOSS_LAUNCHES, LOSS_LAST_HALF},
    [LOSS_FIRST_EXECUTE] = {"first execute", LOSS_CALL_EXECUTES, LOSS_TURNS, LOSS_1},
    [LOSS_SECOND_EXECUTE] = {"second execute", LOSS_CALL_EXECUTES, LOSS_TURNS, LOSS_2},
    [LOSS_BARRIER] = {"barrier", LOSS_CALL_EXECUTES, LOSS_TURNS, LOSS_3},
    [LOSS_WITHIN_FIRST_EXECUTE] = {"within first execute", LOSS_CALL_EXECUTES, LOSS_TURNS, LOSS_1},
    [LOSS_WITHIN_SECOND_EXECUTE] = {"within second execute", LOSS_CALL_EXECUTES, LOSS_TURNS, LOSS_2},
    [LOSS_REDISTRIBUTE] = {"redistribute", LOSS_CALL_RESHARD, ANY, LOSS_ANYWHERE},
    [LOSS_DESTROY] = {"destroy", LOSS_CALL_DESTROY, 0, LOSS_ANYWHERE},
    [LOSS_END] = {"end", LOSS_CALL_END, ANY, LOSS_ANYWHERE},
    [LOSS_ABORT] = {"abort", LOSS_CALL_EXECUTE, LOSS_CALLS, LOSS_RING},
    [LOSS_ABORT_STRIDED] = {"abort strided", LOSS_CALL_EXECUTE, LOSS_CALLS, LOSS_ANYWHERE}};

/* --- Places ------------------------------------------------------------------------------------------------------- */

static _Thread_local int watched;               /* kinds */
static _Thread_local int64_t passed, countdown; /* 0: the victim was lost, or is lost after the step */
static _Thread_local loss_rank *self;

static bool has_come(const loss_rank *me, int r, int state) {
  const loss_trial *t = me->t;
  return t->board->state[r] >= t->number * LOSS_STATES + state || (r == t->victim && t->way == LOSS_KILL) ||
         (t->transport->is_dead != NULL && t->transport->is_dead(me, r));
}

bool loss_rank_resumes(const loss_rank *me) {
  bool all = me->t->way == LOSS_STOP;
  for (int r = 0; r < me->t->n; r++)
    all = all && (r == me->t->victim || has_come(me, r, LOSS_GONE_ON));
  return all;
}

void loss_rank_await(const loss_rank *me, int r, int state) {
  for (int64_t since = rs_now_ns(); !has_come(me, r, state); me->t->transport->wait(me))
    if (rs_late(since, HANG_MS))
      cli_exit(EXIT_FAILED, "rank %d: rank %d does not come", me->number, r);
}

/* All but the victim. */
void loss_rank_await_others(const loss_rank *me, int state) {
  for (int r = 0; r < me->t->n; r++)
    if (r != me->t->victim)
      loss_rank_await(me, r, state);
}

void loss_rank_set_state(const loss_rank *me, int state) {
  me->t->board->state[me->number] = me->t->number * LOSS_STATES + state;
}

void loss_rank_drop_objects(loss_rank *me) {
  reshard_sharded_tensor_release(me->tensor);
  reshard_sharder_destroy(me->sharder);
  reshard_transfer_destroy(me->transfer);
  me->tensor = NULL;
  me->sharder = NULL;
  me->transfer = NULL;
}

void loss_rank_drop(loss_rank *me) {
  loss_rank_drop_objects(me);
  reshard_comm_destroy(me->sub);
  reshard_comm_destroy(me->comm);
  reshard_plan_destroy(me->plan);
  reshard_layout_release(me->from);
  reshard_layout_release(me->to);
  me->comm = me->sub = NULL;
  me->plan = NULL;
  me->from = me->to = NULL;
}

static void lose(loss_rank *me) {
  const loss_trial *t = me->t;
  watched = 0;
  t->board->counts[t->way][t->step].stops++;
  switch (t->way) {
  case LOSS_KILL:
  case LOSS_STOP: raise(t->way == LOSS_KILL ? SIGKILL : SIGSTOP); break;
  case LOSS_LATE: test_sleep_ms((int)(2 * t->deadline_ms)); break;
  case LOSS_IN_TIME: test_sleep_ms((int)rs_min(t->deadline_ms / 2, 200)); break;
  case LOSS_GONE: loss_rank_await_others(me, LOSS_GONE_ON); break;
  case LOSS_FAILS: t->transport->fail(1 + (int64_t)(t->place % 6)); break;
  default: break;
  }
}

void loss_pass(int kind) {
  if (!(watched & kind))
    return;
  passed++;
  if (countdown > 0 && --countdown == 0)
    lose(self);
}

static const rs_device_work *real_work;
static const rs_device_memory *real_memory;
static const rs_device_streams *real_streams;
static rs_device_work work;
static rs_device_memory memory;
static rs_device_streams streams;

static reshard_status run_programs(rs_device *device, int64_t n, rs_program *const *programs, void *stream) {
  loss_pass(LOSS_LAUNCHES);
  return real_work->run(device, n, programs, stream);
}

static reshard_status copy(rs_device *device, int64_t n, const rs_span *spans, int64_t bytes, void *stream) {
  loss_pass(LOSS_LAUNCHES);
  return real_work->copy(device, n, spans, bytes, stream);
}

static reshard_status compile(rs_device *device, const rs_copies *copies, int64_t bytes, rs_program **program) {
  loss_pass(LOSS_PREPARES);
  return real_work->compile(device, copies, bytes, program);
}

static reshard_status recompile(rs_device *device, const rs_copies *copies, int64_t bytes, rs_program **program) {
  loss_pass(LOSS_PREPARES);
  return real_work->recompile(device, copies, bytes, program);
}

static reshard_status copy_bytes(rs_device *device, void *dst, const void *src, size_t bytes, void *stream) {
  loss_pass(LOSS_PREPARES);
  return real_memory->memcpy(device, dst, src, bytes, stream);
}

static reshard_status record_event(rs_device *device, rs_event *event, void *stream) {
  loss_pass(LOSS_PREPARES);
  return real_streams->event_record(device, event, stream);
}

void loss_count_device(reshard_device handle) {
  rs_device *device = handle->device;
  if (real_work == NULL) {
    real_work = device->work;
    real_memory = device->memory;
    real_streams = device->streams;
    work = *real_work;
    work.run = run_programs;
    work.copy = copy;
    work.compile = compile;
    work.recompile = recompile;
    memory = *real_memory;
    memory.memcpy = copy_bytes;
    streams = *real_streams;
    streams.event_record = record_event;
  }
  device->work = &work;
  if (device->streams->asynchronous) {
    device->memory = &memory;
    device->streams = &streams;
  }
}

/* --- A reshard of all ranks of a communicator --------------------------------------------------------------------- */

static reshard_status make_plan(loss_rank *me, reshard_comm comm, bool ring, reshard_layout *from, reshard_layout *to,
                                reshard_plan *plan) {
  const loss_transport *p = me->t->transport;
  int64_t n = reshard_comm_size(comm), shape[] = {p->rows, p->columns};
  char next[256] = "chunk(0;1";
  for (int64_t r = 2; r <= n; r++)
    snprintf(next + strlen(next), sizeof next - strlen(next), ",%d%s", (int)(r % n), r == n ? ")" : "");
  RS_TRY(reshard_layout_parse("chunk(0)", 2, shape, n, from));
  RS_TRY(reshard_layout_parse(ring ? next : "chunk(1)", 2, shape, n, to));
  const reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT,
                                        .workspace_limit = me->t->limited ? p->limit : 0};
  const reshard_entry entry = {.size = RESHARD_ENTRY_INIT, .src = *from, .dst = *to, .dtype = RESHARD_U8};
  return reshard_plan_create(1, &entry, reshard_comm_rank(comm), &options, plan);
}

static reshard_status make_transfer(loss_rank *me, reshard_comm comm, reshard_plan plan, char **dst,
                                    reshard_transfer *transfer) {
  reshard_transfer_options options = {.size = RESHARD_TRANSFER_OPTIONS_INIT};
  if (me->t->transport->told)
    options.path = me->t->packed ? RESHARD_PATH_PACKED : RESHARD_PATH_DIRECT;
  const reshard_arrays arrays = {
      .size = RESHARD_ARRAYS_INIT, .src = (void **)&me->src, .dst = (void **)dst, .nsrc = 1, .ndst = 1};
  return reshard_transfer_create(plan, comm, &arrays, &options, transfer);
}

void loss_rank_synchronize(const loss_rank *me) {
  if (me->stream != NULL)
    (void)real_streams->synchronize(me->device->device, me->stream);
}

reshard_status loss_rank_reshard(loss_rank *me, reshard_comm comm) {
  reshard_layout from = NULL, to = NULL;
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  loss_rank_fill_source(me, comm);
  reshard_status status = make_plan(me, comm, false, &from, &to, &plan);
  RS_THEN(status, make_transfer(me, comm, plan, &me->other, &transfer));
  RS_THEN(status, reshard_execute(transfer, me->stream));
  loss_rank_synchronize(me);
  RS_THEN(status, reshard_comm_barrier(comm));
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  reshard_layout_release(from);
  reshard_layout_release(to);
  return status;
}

void loss_rank_set_deadline(loss_rank *me, int64_t ms) {
  if (me->comm != NULL && me->comm->ops->addressable)
    rank_comms_limit(me->comm, ms);
  else if (me->comm != NULL)
    me->comm->timeout_ms = ms;
}

int64_t loss_patience(const loss_trial *t) {
  return t->transport->patience_ms > 0 ? t->transport->patience_ms : t->deadline_ms;
}

reshard_status loss_rank_prepare(loss_rank *me, loss_which which) {
  const loss_trial *t = me->t;
  const reshard_properties u8 = {.dtype = RESHARD_U8};
  loss_call call = loss_steps[t->step].call;
  if (call == LOSS_CALL_MAKE)
    return RESHARD_SUCCESS;
  RS_TRY(t->transport->make(me, which, loss_patience(t), &me->comm));
  loss_rank_fill_source(me, me->comm);
  RS_TRY(make_plan(me, me->comm, loss_has_ring(t), &me->from, &me->to, &me->plan));
  char **dst =
      call == LOSS_CALL_REBIND && t->apart && which == LOSS_ALL ? &me->other : &me->dst; /* before the rebind */
  if (call == LOSS_CALL_REBIND || call == LOSS_CALL_EXECUTE || call == LOSS_CALL_EXECUTES || call == LOSS_CALL_DESTROY)
    RS_TRY(make_transfer(me, me->comm, me->plan, dst, &me->transfer));
  if (call != LOSS_CALL_RESHARD)
    return RESHARD_SUCCESS;
  const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .device = me->device};
  RS_TRY(reshard_sharder_create(me->comm, &options, &me->sharder));
  RS_TRY(reshard_sharded_tensor_zeros(me->sharder, me->from, &u8, me->stream, &me->tensor));
  for (int i = 0; i < 2 && t->limited; i++) /* its plans are kept */
    RS_TRY(reshard_sharded_tensor_reshard(1, &me->tensor, i == 0 ? &me->to : &me->from, me->stream));
  return RESHARD_SUCCESS;
}

/* --- Steps -------------------------------------------------------------------------------------------------------- */

static reshard_status make_call(loss_rank *me, bool rehearsal) {
  const loss_trial *t = me->t;
  loss_call call = loss_steps[t->step].call;
  switch (call) {
  case LOSS_CALL_MAKE:
  case LOSS_CALL_END:
    if (rehearsal || call == LOSS_CALL_MAKE)
      RS_TRY(t->transport->make(me, rehearsal ? LOSS_REHEARSAL : LOSS_ALL,
                                rehearsal ? loss_patience(t) : t->deadline_ms, &me->comm));
    if (call == LOSS_CALL_MAKE && !rehearsal)
      return RESHARD_SUCCESS;
    passed = call == LOSS_CALL_END ? 0 : passed;
    watched = call == LOSS_CALL_END ? watched : 0;
    me->since = rs_now_ns();
    reshard_comm_destroy(me->comm);
    me->comm = NULL;
    return RESHARD_SUCCESS;
  case LOSS_CALL_EXECUTES:
    for (int i = 0; i < 2 && !rehearsal; i++) {
      loss_pass(LOSS_TURNS);
      me->since = rs_now_ns();
      RS_TRY(reshard_execute(me->transfer, me->stream));
    }
    return RESHARD_SUCCESS;
  case LOSS_CALL_MEET: return reshard_comm_barrier(me->comm);
  case LOSS_CALL_SPLIT:
    RS_TRY(reshard_comm_split(me->comm, me->number % 2, 0, &me->sub));
    watched = 0;
    if (rehearsal) {
      reshard_comm_destroy(me->sub);
      me->sub = NULL;
    }
    return RESHARD_SUCCESS;
  case LOSS_CALL_BIND:
    RS_TRY(make_transfer(me, me->comm, me->plan, &me->dst, &me->transfer));
    if (rehearsal || t->limited) /* connections may be under way still */
      loss_rank_drop_objects(me);
    return RESHARD_SUCCESS;
  case LOSS_CALL_REBIND: {
    const reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT,
                                   .src = (void **)&me->src,
                                   .dst = (void **)(rehearsal ? &me->other : &me->dst),
                                   .nsrc = 1,
                                   .ndst = 1};
    return reshard_transfer_rebind(me->transfer, &arrays);
  }
  case LOSS_CALL_RESHARD:
    return reshard_sharded_tensor_reshard(1, &me->tensor, rehearsal ? &me->to : &me->from, me->stream);
  case LOSS_CALL_DESTROY:
    if (!rehearsal) {
      loss_rank_drop_objects(me);
      return RESHARD_SUCCESS;
    }
    return reshard_execute(me->transfer, me->stream);
  default: return reshard_execute(me->transfer, me->stream);
  }
}

typedef struct loss_abort {
  reshard_comm comm;
  uint64_t us;
} loss_abort;

static void abort_soon(void *user, int64_t rank) {
  const loss_abort *a = user;
  (void)rank;
  nanosleep(&(struct timespec){0, (long)a->us * 1000}, NULL);
  reshard_comm_abort(a->comm);
}

/* The victim is lost at a place, or after the step: 0 is before it, -1 are the others. */
static reshard_status take_step(loss_rank *me, bool rehearsal, int64_t place) {
  const loss_trial *t = me->t;
  loss_abort abort = {me->comm, t->place % 2 * (t->place / 2 % ABORT_US)}; /* in half of the trials at once */
  rank_thread *thread = NULL;
  passed = 0;
  countdown = t->way != LOSS_ABORTS ? place : 0;
  watched = loss_steps[t->step].kinds;
  if (place >= 0 && t->way == LOSS_ABORTS)
    thread = rank_thread_start(abort_soon, &abort);
  else if (place == 0 || (place > 0 && t->way == LOSS_LEAVES))
    lose(me);
  if (place >= 0 && t->way == LOSS_LEAVES) {
    loss_rank_drop(me);
    return RESHARD_ERROR_PEER;
  }
  me->since = rs_now_ns();
  reshard_status status = make_call(me, rehearsal);
  bool is_next = countdown > 0; /* to be lost */
  watched = 0;
  countdown = 0;
  if (thread != NULL) {
    rank_thread_join(thread);
    lose(me);
  }
  if (!me->t->transport->asynchronous && status == RESHARD_SUCCESS && loss_steps[t->step].call == LOSS_CALL_EXECUTE)
    LOSS_CHECK(me, loss_rank_is_right(me, me->comm, me->dst, loss_has_ring(t)), "an execute succeeds with wrong data");
  if (is_next)
    lose(me);
  if (place >= 0 && t->way == LOSS_FAILS) {
    t->transport->fail(0);
    loss_rank_await_others(me, LOSS_GONE_ON); /* also where it makes fewer calls */
  }
  return status;
}

reshard_status loss_rank_rehearse(loss_rank *me, int64_t *places) {
  const loss_trial *t = me->t;
  reshard_comm comm = me->comm;
  loss_call call = loss_steps[t->step].call;
  RS_TRY(take_step(me, true, -1));
  me->comm = call == LOSS_CALL_END ? comm : me->comm;
  *places = passed;
  LOSS_CHECK(me, *places > 0 || real_work == NULL || call == LOSS_CALL_EXECUTES || loss_steps[t->step].kinds == 0,
             "no places");
  loss_rank_synchronize(me);
  if (me->comm != NULL)
    RS_TRY(reshard_comm_barrier(me->comm));
  if (call == LOSS_CALL_EXECUTE || call == LOSS_CALL_DESTROY)
    LOSS_CHECK(me, loss_rank_is_right(me, me->comm, me->dst, loss_has_ring(t)), "wrong data where nobody is lost");
  if (call != LOSS_CALL_MAKE && t->apart) {
    loss_rank_drop(me);
    RS_TRY(loss_rank_prepare(me, LOSS_ALL));
  }
  loss_rank_set_destination(me, 0);
  loss_rank_set_deadline(me, t->deadline_ms);
  return RESHARD_SUCCESS;
}

/* The place at which the victim is lost, of so many. */
static int64_t draw_place(const loss_trial *t, int64_t places) {
  int64_t n = t->transport->most > 0 ? rs_min(places, t->transport->most) : places, half = rs_max(n / 2, 1);
  if (loss_steps[t->step].call == LOSS_CALL_DESTROY) /* before it, or after it */
    return (int64_t)(t->place % 2);
  if (t->step == LOSS_JOIN && t->victim == 0) /* before its last verdict, of which some might hear and some not */
    n -= t->n - 2;
  if (loss_steps[t->step].call == LOSS_CALL_MAKE && t->transport->gathers)
    return 1 + (int64_t)(t->place % (uint64_t)rs_max(n, 1));
  switch (loss_steps[t->step].where) {
  case LOSS_1:
  case LOSS_2:
  case LOSS_3: return loss_steps[t->step].where - LOSS_1 + 1;
  case LOSS_FIRST_HALF: return (int64_t)(t->place % (uint64_t)(n / 2 + 1));
  case LOSS_LAST_HALF: return rs_max(n - (int64_t)(t->place % (uint64_t)half), 0);
  default: return (int64_t)(t->place % (uint64_t)(n + 1));
  }
}

reshard_status loss_rank_take_step(loss_rank *me, int64_t places) {
  self = me;
  return take_step(me, false, me->number == me->t->victim ? draw_place(me->t, places) : -1);
}
