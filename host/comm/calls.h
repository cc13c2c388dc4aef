/* Calls of one rank on a communicator: the last RS_CALLS of them, and where the one is that has not returned. Kept in
 * the handle, by whatever thread works for the rank, and read by others at any time: by reshard_comm_report, and by the
 * communicator's errors. Every field is written with a plain store, so that it costs next to nothing. The clock is read
 * for a call that may wait for other ranks, or moves enough bytes to take longer than that.
 *
 * A call that the user makes is an entry. Calls that the library makes inside of it are its steps: meetings,
 * all-gathers and exchanges. Every rank makes the same in the same order, so equal numbers are the same call. */
#ifndef RS_COMM_CALLS_H
#define RS_COMM_CALLS_H

#include "base/base.h"
#include "base/range.h"
#include "device/cpu/threads.h"

#include <reshard/comm.h>

#include <stdatomic.h>

enum { RS_CALLS = 64, RS_AWAITED = 16, RS_TIMED_BYTES = 1 << 16, RS_UNTIMED = -1 };

typedef struct rs_call {
  _Atomic(const char *) name; /* static: "reshard_execute" */
  _Atomic int64_t bytes;
  _Atomic int64_t begin, end; /* ticks, or RS_UNTIMED; the end, status and steps when it has returned */
  _Atomic int32_t status;
  _Atomic uint32_t steps;
} rs_call;

typedef struct rs_calls {
  _Atomic uint64_t epoch;              /* twice the number of the last call, and 1 while it is open */
  _Atomic uint32_t steps;              /* of the last one, begun */
  bool traced;                         /* each call is logged; set before the first one */
  _Atomic int32_t round;               /* the last one of that that was begun; -1: none */
  _Atomic(const char *) step;          /* "all-gather": which one is under way; NULL: none */
  _Atomic int32_t nawaited;            /* peers of it that have not come; more than fit: RS_AWAITED */
  _Atomic int32_t awaited[RS_AWAITED]; /* ascending */
  rs_call ring[RS_CALLS];
} rs_calls;

/* Handles of a process that come from one communicator by splits, for a report. */
typedef struct rs_board rs_board;

/* Puts a handle on the board of another: the communicator that it was split from, or another rank of its own. NULL: on
 * a new board, which alone can fail. */
RS_PRIVATE_API reshard_status rs_board_join(reshard_comm comm, reshard_comm from);
/* Takes a handle from its board, before it is freed; again is allowed. */
RS_PRIVATE_API void rs_board_leave(reshard_comm comm);

/* Ticks of a clock that costs a few nanoseconds to read; a report finds out how long they are. */
static inline int64_t rs_call_ticks(void) {
#if defined __x86_64__
  return (int64_t)__builtin_ia32_rdtsc();
#elif defined __aarch64__
  int64_t ticks;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#else
  return rs_now_ns();
#endif
}

/* The ticks now, for a call that waits for other ranks or moves that many bytes, of all ranks; else RS_UNTIMED. */
static inline int64_t rs_call_time(bool waits, int64_t bytes) {
  return waits || bytes >= RS_TIMED_BYTES ? rs_call_ticks() : RS_UNTIMED;
}

#define RS_CALL_SET(field, value) atomic_store_explicit(&(field), (value), memory_order_release)
#define RS_CALL_GET(field)        atomic_load_explicit(&(field), memory_order_acquire)

/* The number of the last call, which is ring[number % RS_CALLS]; 0: none yet. */
static inline uint64_t rs_calls_made(const rs_calls *c) { return RS_CALL_GET(c->epoch) / 2; }
/* True while the last call is under way: calls within it are its steps. */
static inline bool rs_calls_open(const rs_calls *c) { return RS_CALL_GET(c->epoch) % 2 != 0; }

/* Begins a call of the rank; NULL within another one, which goes on. */
static inline rs_call *rs_call_begin(rs_calls *c, const char *name, int64_t bytes, int64_t ticks) {
  uint64_t epoch = RS_CALL_GET(c->epoch);
  if (epoch % 2 != 0)
    return NULL;
  rs_call *call = &c->ring[(epoch / 2 + 1) % RS_CALLS];
  RS_CALL_SET(c->epoch, epoch + 3); /* before the rest: a reader of the old one sees that it changes */
  RS_CALL_SET(c->steps, 0);
  RS_CALL_SET(c->round, -1);
  RS_CALL_SET(call->name, name);
  RS_CALL_SET(call->bytes, bytes);
  RS_CALL_SET(call->begin, ticks);
  return call;
}

/* Puts the last call's name and number behind this thread's last error, unless they are there, for errors of ranks that
 * do not agree or do not come. Tells the log of the error, with a report. */
void rs_call_explain(const rs_calls *c, reshard_status status);
/* Tells the log of a call that has ended. */
void rs_call_trace(const rs_calls *c, const rs_call *call);

/* Ends a call, which may be NULL. */
static inline void rs_call_end(rs_calls *c, rs_call *call, reshard_status status, int64_t ticks) {
  if (call == NULL)
    return;
  if (status != RESHARD_SUCCESS)
    rs_call_explain(c, status);
  RS_CALL_SET(call->status, (int32_t)status);
  RS_CALL_SET(call->steps, RS_CALL_GET(c->steps));
  RS_CALL_SET(call->end, ticks);
  RS_CALL_SET(c->epoch, RS_CALL_GET(c->epoch) & ~(uint64_t)1);
  if (c->traced)
    rs_call_trace(c, call);
}

/* A call from its begin to where the function returns, with the last error of the thread as its own. */
typedef struct rs_call_scope {
  rs_calls *calls;
  rs_call *call;        /* NULL: within another call */
  unsigned long errors; /* of the thread so far */
} rs_call_scope;
RS_PRIVATE_API rs_call_scope rs_call_enter(reshard_comm comm, const char *name, int64_t bytes);
RS_PRIVATE_API void rs_call_leave(rs_call_scope *scope);
/* From here until it returns, a function is a call of the communicator (not NULL) and a range for a profiler, with the
 * cancellation of its thread held off. The name is its own or another. */
#define RS_CALL_OF(comm, name, bytes, peers, tensors) \
  RS_HOLD_CANCEL; \
  RS_RANGE((name), (bytes), (peers), -1, (tensors)); \
  rs_call_scope rs_call_scope_ __attribute__((cleanup(rs_call_leave))) = rs_call_enter(comm, name, bytes); \
  (void)rs_call_scope_
#define RS_CALL_AS(comm, name, bytes) RS_CALL_OF(comm, name, bytes, -1, -1)
#define RS_CALL(comm, bytes)          RS_CALL_AS(comm, __func__, bytes)

/* From here until the function returns a rank that is a process, and has a CPU, waits for others: a wait of a trace. */
typedef struct rs_wait_scope {
  reshard_comm comm; /* NULL: nobody traces it */
} rs_wait_scope;
rs_wait_scope rs_wait_enter(reshard_comm comm, const char *name);
void rs_wait_leave(rs_wait_scope *scope);
#define RS_WAIT(comm, name) \
  rs_wait_scope rs_wait_scope_ __attribute__((cleanup(rs_wait_leave))) = rs_wait_enter(comm, name); \
  (void)rs_wait_scope_

/* "reshard_execute, call 17, round 3" of the last call that the rank has begun; returns buffer. */
#define RS_CALL_TEXT 120
const char *rs_call_text(reshard_comm comm, char buffer[RS_CALL_TEXT]);

/* A call as another process hears of it. */
typedef struct rs_call_label {
  int64_t number;
  char name[40];
} rs_call_label;
void rs_call_label_of(reshard_comm comm, rs_call_label *label);

/* --- The log (log.c) ---------------------------------------------------------------------------------------------- */

typedef enum rs_log_level { RS_LOG_OFF, RS_LOG_INFO, RS_LOG_TRACE } rs_log_level;

typedef struct rs_log {
  rs_log_level level;
  int fd;        /* owned but for that of standard error */
  char host[64]; /* without its domain */
} rs_log;

/* Reads the environment, and opens the file, in whose name %h is the host, %p the process and %% a %. */
reshard_status rs_log_open(rs_log *log);
void rs_log_close(rs_log *log);

/* Writes lines, each behind the prefix of comm's rank. What cannot be written is left out. */
void rs_log_lines(const rs_log *log, reshard_comm comm, const char *text);

/* The log of a communicator; NULL: it is off. */
const rs_log *rs_comm_log(reshard_comm comm);

#endif
