#include "comm/calls.h"

#include "comm/comm.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- The board ---------------------------------------------------------------------------------------------------- */

struct rs_board {
  rs_forkable forkable;
  pthread_mutex_t mutex;
  reshard_comm first, last; /* linked by board_next, in the order of their making */
  int64_t ticks, ns;        /* of its making, at once */
  rs_log log;
  _Atomic uint64_t reported; /* number of the last call that failed, whose report the log has */
};

/* In a child process no other thread has the lock. */
static void free_board_lock(rs_forkable *self) { pthread_mutex_init(&((rs_board *)self)->mutex, NULL); }

reshard_status rs_board_join(reshard_comm comm, reshard_comm from) {
  rs_board *board = from != NULL ? from->log.board : NULL;
  if (board == NULL) {
    RS_TRY(rs_alloc_zero(&board, 1, sizeof *board));
    reshard_status opened = rs_log_open(&board->log);
    if (opened != RESHARD_SUCCESS) {
      free(board);
      return opened;
    }
    pthread_mutex_init(&board->mutex, NULL);
    rs_forkable_add(&board->forkable, free_board_lock);
    board->ticks = rs_call_ticks();
    board->ns = rs_now_ns();
  }
  rs_board_leave(comm);
  pthread_mutex_lock(&board->mutex);
  *(board->first != NULL ? &board->last->log.board_next : &board->first) = comm;
  board->last = comm;
  comm->log.board = board;
  comm->log.board_next = NULL;
  comm->life.forks = rs_forks();
  if (from != NULL)
    comm->polling = (rs_polling){.call = from->polling.call, .user = from->polling.user, .last = rs_now_ns()};
  comm->log.calls.traced = board->log.level == RS_LOG_TRACE;
  pthread_mutex_unlock(&board->mutex);
  return RESHARD_SUCCESS;
}

void rs_board_leave(reshard_comm comm) {
  rs_board *board = comm->log.board;
  if (board == NULL)
    return;
  pthread_mutex_lock(&board->mutex);
  reshard_comm before = NULL, *link = &board->first;
  for (; *link != comm; link = &before->log.board_next)
    before = *link;
  *link = comm->log.board_next;
  if (board->last == comm)
    board->last = before;
  comm->log.board = NULL;
  bool last = board->first == NULL;
  pthread_mutex_unlock(&board->mutex);
  if (last) {
    rs_forkable_remove(&board->forkable);
    pthread_mutex_destroy(&board->mutex);
    rs_log_close(&board->log);
    free(board);
  }
}

const rs_log *rs_comm_log(reshard_comm comm) {
  return comm->log.board != NULL && comm->log.board->log.level != RS_LOG_OFF ? &comm->log.board->log : NULL;
}

/* --- Calls and their steps ---------------------------------------------------------------------------------------- */

#define SET RS_CALL_SET
#define GET RS_CALL_GET

static rs_call *last_call(const rs_calls *c) { return (rs_call *)&c->ring[rs_calls_made(c) % RS_CALLS]; }

/* The clock of a report. */
typedef struct call_clock {
  int64_t now; /* ticks */
  double ms_per_tick;
} call_clock;

static call_clock read_clock(const rs_board *board) {
  call_clock clock = {rs_call_ticks(), 0};
  if (clock.now > board->ticks)
    clock.ms_per_tick = (double)(rs_now_ns() - board->ns) * 1e-6 / (double)(clock.now - board->ticks);
  return clock;
}

static double milliseconds(const call_clock *clock, int64_t begin, int64_t end) {
  return (double)rs_max(end - begin, 0) * clock->ms_per_tick;
}

static reshard_comm comm_of(const rs_calls *c) {
  return (reshard_comm)((char *)c - offsetof(struct reshard_comm_s, log.calls));
}

void rs_call_trace(const rs_calls *c, const rs_call *call) {
  const rs_log *log = rs_comm_log(comm_of(c));
  char line[256], took[64] = "";
  if (log == NULL)
    return;
  call_clock clock = read_clock(comm_of(c)->log.board);
  if (GET(call->begin) > 0)
    snprintf(took, sizeof took, ", took %.3f ms", milliseconds(&clock, GET(call->begin), GET(call->end)));
  snprintf(line, sizeof line, "call %lld, %s: %lld bytes, %u step%s%s, %s", (long long)rs_calls_made(c),
           GET(call->name), (long long)GET(call->bytes), (unsigned)GET(call->steps), GET(call->steps) == 1 ? "" : "s",
           took,
           GET(call->status) == RESHARD_SUCCESS ? "done" : reshard_status_string((reshard_status)GET(call->status)));
  rs_log_lines(log, comm_of(c), line);
}

static void report_calls(rs_text *out, reshard_comm comm, int64_t last);

/* The last error, and once a call the report of all ranks of this process. */
static void log_error(const rs_calls *c, reshard_status status) {
  reshard_comm comm = comm_of(c);
  const rs_log *log = rs_comm_log(comm);
  rs_saved_error saved = {.status = RESHARD_SUCCESS};
  rs_text out = {.grows = true};
  if (log == NULL)
    return;
  rs_error_save(&saved, status);
  rs_text_add(&out, "%s: %s\n", reshard_status_string(status), saved.text);
  uint64_t number = rs_calls_made(c);
  if (atomic_exchange(&comm->log.board->reported, number) != number)
    report_calls(&out, comm, 0);
  if (out.status == RESHARD_SUCCESS)
    rs_log_lines(log, comm, out.at);
  free(out.at);
  (void)rs_error_restore(&saved); /* where there was no memory */
}

void rs_call_explain(const rs_calls *c, reshard_status status) {
  if ((status == RESHARD_ERROR_MISMATCH || status == RESHARD_ERROR_TIMEOUT || status == RESHARD_ERROR_PEER) &&
      strstr(reshard_last_error(), ", call ") == NULL) /* one from another rank has that rank's call in it */
    (void)rs_error(status, "%s (%s, call %lld)", reshard_last_error(), GET(last_call(c)->name),
                   (long long)rs_calls_made(c));
  log_error(c, status);
}

rs_call_scope rs_call_enter(reshard_comm comm, const char *name, int64_t bytes) {
  rs_calls *c = &comm->log.calls;
  return rs_calls_open(c) ? (rs_call_scope){0}
                          : (rs_call_scope){c, rs_call_begin(c, name, bytes, rs_call_ticks()), rs_error_count()};
}

void rs_call_leave(rs_call_scope *scope) {
  if (scope->call == NULL)
    return;
  reshard_status status = rs_error_count() != scope->errors ? rs_error_status() : RESHARD_SUCCESS;
  rs_call_end(scope->calls, scope->call, status, rs_call_ticks());
}

/* --- Texts -------------------------------------------------------------------------------------------------------- */

const char *rs_call_text(reshard_comm comm, char buffer[RS_CALL_TEXT]) {
  rs_text out = {.at = buffer, .size = RS_CALL_TEXT};
  const rs_call *call = last_call(&comm->log.calls);
  int64_t number = (int64_t)rs_calls_made(&comm->log.calls), round = GET(comm->log.calls.round);
  rs_text_add(&out, "%s", number > 0 ? GET(call->name) : "no call");
  if (number > 0)
    rs_text_add(&out, round >= 0 ? ", call %lld, round %lld" : ", call %lld", (long long)number, (long long)round);
  return buffer;
}

void rs_call_label_of(reshard_comm comm, rs_call_label *label) {
  const rs_call *call = last_call(&comm->log.calls);
  *label = (rs_call_label){.number = (int64_t)rs_calls_made(&comm->log.calls)};
  if (label->number > 0)
    snprintf(label->name, sizeof label->name, "%s", GET(call->name));
}

/* The call that a rank is in, where this one can know. */
static bool find_label(reshard_comm comm, int64_t rank, rs_call_label *label) {
  if (comm->meets.visits != NULL) {
    *label = rs_visit_of(comm, rank)->caller;
    return true;
  }
  pthread_mutex_lock(&comm->log.board->mutex);
  reshard_comm o = comm->log.board->first;
  while (o != NULL && (o->group != comm->group || o->rank != rank))
    o = o->log.board_next;
  if (o != NULL)
    rs_call_label_of(o, label);
  pthread_mutex_unlock(&comm->log.board->mutex);
  return o != NULL;
}

reshard_status rs_comm_error_calls(reshard_comm comm, int64_t rank) {
  rs_call_label a, b;
  if (!find_label(comm, 0, &a) || !find_label(comm, rank, &b))
    return rs_error(RESHARD_ERROR_MISMATCH, "ranks 0 and %lld make different collective calls at once",
                    (long long)rank);
  return rs_error(RESHARD_ERROR_MISMATCH,
                  "ranks 0 and %lld make different collective calls at once: %s, call %lld, and %s, call %lld",
                  (long long)rank, a.name, (long long)a.number, b.name, (long long)b.number);
}

/* True when a rank has begun fewer steps than another, which makes the same calls. */
static bool is_before(const rs_calls *a, const rs_calls *b) {
  uint64_t made = rs_calls_made(a), other = rs_calls_made(b);
  return made != other ? made < other : GET(a->steps) < GET(b->steps);
}

/* The ranks of a group that are before this one, which waits; else those that the step has named. */
static void add_awaited(rs_text *out, reshard_comm comm) {
  char text[160];
  int64_t few[64], n = 0; /* a text has no room for more */
  for (reshard_comm o = comm->log.board->first; o != NULL && n < 64 && comm->locals > 1; o = o->log.board_next)
    if (o->group == comm->group && is_before(&o->log.calls, &comm->log.calls))
      few[n++] = o->rank;
  for (int32_t i = 0; comm->locals == 1 && i < GET(comm->log.calls.nawaited); i++)
    few[n++] = GET(comm->log.calls.awaited[i]);
  if (n > 0)
    rs_text_add(out, ", waits for rank%s %s", n == 1 ? "" : "s", rs_ranges_text(text, sizeof text, n, few));
}

static void add_end(rs_text *out, int32_t status, int64_t end, const call_clock *clock) {
  rs_text_add(out, "%s", status == RESHARD_SUCCESS ? "done" : reshard_status_string((reshard_status)status));
  if (end > 0)
    rs_text_add(out, " %.3f ms ago", milliseconds(clock, end, clock->now));
  rs_text_add(out, "\n");
}

static void add_rank(rs_text *out, reshard_comm comm, const call_clock *clock) {
  const rs_call *call = last_call(&comm->log.calls);
  const char *name = GET(call->name), *step = GET(comm->log.calls.step);
  rs_text_add(out, "rank %lld: ", (long long)comm->rank);
  if (name == NULL) {
    rs_text_add(out, "no call yet\n");
    return;
  }
  bool inside = rs_calls_open(&comm->log.calls);
  rs_text_add(out, "%s %s, call %lld: ", inside ? "in" : "out of", name, (long long)rs_calls_made(&comm->log.calls));
  if (!inside) {
    add_end(out, GET(call->status), GET(call->end), clock);
    return;
  }
  if (step != NULL)
    rs_text_add(out, "%s, ", step);
  rs_text_add(out, "step %u, ", (unsigned)GET(comm->log.calls.steps));
  if (GET(comm->log.calls.round) >= 0)
    rs_text_add(out, "round %d, ", (int)GET(comm->log.calls.round));
  rs_text_add(out, "%lld bytes", (long long)GET(call->bytes));
  if (GET(call->begin) > 0)
    rs_text_add(out, ", since %.3f ms", milliseconds(clock, GET(call->begin), clock->now));
  if (step != NULL)
    add_awaited(out, comm);
  rs_text_add(out, "\n");
}

/* The last finished calls, the latest first; one that is overwritten meanwhile is left out. */
static void add_past(rs_text *out, reshard_comm comm, int64_t last, const call_clock *clock) {
  const rs_calls *c = &comm->log.calls;
  int64_t made = (int64_t)rs_calls_made(c);
  for (int64_t number = made - rs_calls_open(c), n = 0; number > 0 && n < last; number--, n++) {
    const rs_call *call = &c->ring[number % RS_CALLS];
    const char *name = GET(call->name);
    int64_t bytes = GET(call->bytes), begin = GET(call->begin), end = GET(call->end);
    int32_t status = GET(call->status);
    unsigned steps = GET(call->steps);
    if (number <= (int64_t)rs_calls_made(c) - RS_CALLS)
      return;
    rs_text_add(out, "  call %lld, %s: %lld bytes, %u step%s, ", (long long)number, name, (long long)bytes, steps,
                steps == 1 ? "" : "s");
    if (begin > 0)
      rs_text_add(out, "took %.3f ms, ", milliseconds(clock, begin, end));
    add_end(out, status, end, clock);
  }
}

/* A group's first line. */
static void add_group(rs_text *out, reshard_comm comm) {
  char ranks[160];
  rs_text_add(out, "%s, %lld ranks", comm->ops->name, (long long)comm->size);
  if (comm->locals < comm->size)
    rs_text_add(out, ", %lld here", (long long)comm->locals);
  if (comm->global_ranks != NULL)
    rs_text_add(out, ", global ranks %s", rs_list_text(ranks, sizeof ranks, comm->size, comm->global_ranks));
  rs_text_add(out, "\n");
}

/* Names those of a group that have begun fewer calls than others of it. */
static void add_behind(rs_text *out, reshard_comm first) {
  char text[160];
  int64_t most = 0, least = INT64_MAX, few[64], n = 0;
  for (reshard_comm o = first; o != NULL && o->group == first->group; o = o->log.board_next) {
    most = rs_max(most, (int64_t)rs_calls_made(&o->log.calls));
    least = rs_min(least, (int64_t)rs_calls_made(&o->log.calls));
  }
  for (reshard_comm o = first; o != NULL && o->group == first->group && n < 64; o = o->log.board_next)
    if ((int64_t)rs_calls_made(&o->log.calls) < most)
      few[n++] = o->rank;
  if (n > 0)
    rs_text_add(out, "behind: rank%s %s, at call %lld of %lld\n", n == 1 ? "" : "s",
                rs_ranges_text(text, sizeof text, n, few), (long long)least, (long long)most);
}

static void report_calls(rs_text *out, reshard_comm comm, int64_t last) {
  call_clock clock = read_clock(comm->log.board);
  pthread_mutex_lock(&comm->log.board->mutex);
  reshard_comm first = NULL; /* of the group */
  for (reshard_comm o = comm->log.board->first; o != NULL; o = o->log.board_next) {
    if (first == NULL || o->group != first->group)
      add_group(out, first = o);
    add_rank(out, o, &clock);
    add_past(out, o, last, &clock);
    if (o->log.board_next == NULL || o->log.board_next->group != o->group)
      add_behind(out, first);
  }
  pthread_mutex_unlock(&comm->log.board->mutex);
}

reshard_status reshard_comm_report(reshard_comm comm, int64_t last, char *text, size_t size, size_t *needed) {
  if (comm == NULL || last < 0 || (text == NULL && size > 0))
    return rs_error(RESHARD_ERROR_INVALID, "reshard_comm_report: comm %s, %lld calls, text %s",
                    comm == NULL ? "NULL" : "given", (long long)last, text == NULL ? "NULL" : "given");
  rs_text out = {.at = text, .size = size};
  report_calls(&out, comm, last);
  return rs_text_finish(&out, needed);
}
