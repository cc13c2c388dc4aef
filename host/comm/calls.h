/* Calls of one rank on a communicator: the last RS_CALLS of them, and where the one is that has not returned. Kept in
 * the handle, by whatever thread works for the rank, and read by others at any time: by reshard_comm_report, and by the
 * communicator's errors. Every field is written with a plain store, so that nothing of it can be measured.
 *
 * A call that the user makes is an entry. Calls that the library makes inside of it are its steps: meetings,
 * all-gathers and exchanges. Every rank makes the same in the same order, so equal numbers are the same call. */
#ifndef RS_COMM_CALLS_H
#define RS_COMM_CALLS_H

#include "base/base.h"
#include "base/range.h"

#include <reshard/comm.h>

#include <stdatomic.h>

enum { RS_CALLS = 64, RS_AWAITED = 16 };

typedef struct rs_call {
  _Atomic int64_t number;     /* from 1; 0: none, or it is being written */
  _Atomic(const char *) name; /* static: "reshard_execute" */
  _Atomic int64_t bytes;
  _Atomic int64_t begin, end; /* ticks; end 0: it has not returned */
  _Atomic int32_t status;
  _Atomic int32_t steps; /* begun */
  _Atomic int32_t round; /* the last one begun; -1: none */
} rs_call;

typedef struct rs_calls {
  atomic_bool open; /* calls within it are its steps */
  _Atomic int64_t made;
  _Atomic int64_t steps;               /* begun, of all calls */
  _Atomic(const char *) step;          /* "all-gather": which one is under way; NULL: none */
  _Atomic int32_t nawaited;            /* peers of it that have not come; more than fit: RS_AWAITED */
  _Atomic int32_t awaited[RS_AWAITED]; /* ascending */
  rs_call ring[RS_CALLS];
} rs_calls;

/* Handles of a process that come from one communicator by splits, for a report. */
typedef struct rs_board rs_board;

/* Puts a handle on the board of its kin: the communicator that it was split from, or another rank of its own. NULL: on
 * a new board, which alone can fail. */
reshard_status rs_board_join(reshard_comm comm, reshard_comm kin);
/* Takes a handle from its board, before it is freed; again is allowed. */
void rs_board_leave(reshard_comm comm);

typedef struct rs_call_scope {
  reshard_comm comm;    /* NULL: within another call, which goes on */
  unsigned long errors; /* of the thread so far */
} rs_call_scope;

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

/* Begins a call of the rank, unless another is open. */
rs_call_scope rs_call_begin(reshard_comm comm, const char *name, int64_t bytes, int64_t ticks);
/* Ends it. An error of ranks that do not agree or do not come gets the call's name and number, unless it has them. */
void rs_call_end(rs_call_scope *scope);
void rs_call_end_at(rs_call_scope *scope, int64_t ticks);
/* From here until it returns, a function is a call of the communicator (not NULL), of its own name or another, and a
 * range for a profiler. */
#define RS_CALL_OF(comm, name, bytes, peers, tensors) \
  RS_RANGE((name), (bytes), (peers), -1, (tensors)); \
  rs_call_scope rs_call_scope_ __attribute__((cleanup(rs_call_end))) = \
      rs_call_begin(comm, name, bytes, rs_call_ticks()); \
  (void)rs_call_scope_
#define RS_CALL_AS(comm, name, bytes) RS_CALL_OF(comm, name, bytes, -1, -1)
#define RS_CALL(comm, bytes)          RS_CALL_AS(comm, __func__, bytes)

/* "reshard_execute, call 17, round 3" of the last call that the rank has begun; returns buffer. */
#define RS_CALL_TEXT 120
const char *rs_call_text(reshard_comm comm, char buffer[RS_CALL_TEXT]);

/* A call as another process may be told of it. */
typedef struct rs_stamp {
  int64_t number;
  char name[40];
} rs_stamp;
void rs_call_stamp(reshard_comm comm, rs_stamp *stamp);

#endif
