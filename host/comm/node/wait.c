/* Waits of a rank, which sleeps on its doorbell. Whoever changes what the rank may wait for rings. Now and then the
 * rank looks whether those that it waits for are alive, and at the clock.
 *
 * A ring is an increment, and a call of the system only where it is the first one since the other has gone to sleep:
 * those after it find the number of an earlier ring there. Both sides are sequentially consistent: either the sleeper
 * finds the new number, or the one who rings finds where it sleeps. One that is held up in between costs LOOK_MS. */
#define _GNU_SOURCE
#include "comm/node/wait.h"

#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_MS = 20, SILENT_MS = 500 /* at most, since a rank that waits has looked last */ };
enum { CLOSE_MS = 2000 }; /* after the end */

void rs_node_ring(rs_node *c, int64_t rank) {
  rs_node_doorbell *doorbell = &c->ranks[rank].doorbell;
  uint32_t seen = atomic_fetch_add(&doorbell->rings, 1);
  if (atomic_load(&doorbell->sleeps) == seen)
    syscall(SYS_futex, &doorbell->rings, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void rs_node_ring_all(rs_node *c) {
  for (int64_t i = 1; i < c->base.size; i++)
    rs_node_ring(c, (c->base.rank + i) % c->base.size);
}

void rs_node_wait_begin(rs_node_wait *w) {
  w->since = w->looked = 0;
  w->turns = 0;
  w->gone = false;
}

static inline void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static bool is_gone(const rs_node *c, int64_t rank) { return c->ranks[rank].left || rs_node_hung_up(c->sockets[rank]); }

/* A rank that is waited for has gone: what it did before is looked at once more, then the communicator ends. */
static reshard_status end_without(rs_node *c, rs_node_wait *w, int64_t rank) {
  char call[RS_CALL_TEXT];
  if (!w->gone) {
    w->gone = true;
    return RESHARD_SUCCESS;
  }
  for (int64_t r = 0; r < c->base.size; r++) /* those that are there may come still */
    c->missing[r] = c->missing[r] && is_gone(c, r);
  reshard_status status =
      rs_error(RESHARD_ERROR_PEER, "%s: %s: rank %lld %s", rs_call_text(&c->base, call), w->step, (long long)rank,
               c->ranks[rank].left ? "has destroyed its handle" : "is gone: its process has ended");
  return rs_node_give_up(c, status, c->missing);
}

void rs_node_show_wait(rs_node *c) {
  for (int64_t r = 0, n = c->base.size; r < n; r++)
    c->awaited[c->base.rank * n + r] = c->missing[r];
  rs_node_own_rank(c)->waited = rs_now_ns();
}

/* Marks those for whom a rank waits, that is waited for; again, until there are no more. */
static void follow_waits(rs_node *c, int64_t since) {
  int64_t n = c->base.size;
  for (bool more = true; more;) {
    more = false;
    for (int64_t r = 0; r < n; r++)
      for (int64_t of = 0; of < n && c->missing[r] && c->ranks[r].waited >= since; of++)
        if (c->awaited[r * n + of] && !c->missing[of] && of != c->base.rank)
          more = c->missing[of] = true;
  }
}

/* Counts the ranks that are marked, and do not wait themselves. */
static int64_t count_silent(const rs_node *c, int64_t since) {
  int64_t silent = 0;
  for (int64_t r = 0; r < c->base.size; r++)
    silent += c->missing[r] && c->ranks[r].waited < since;
  return silent;
}

/* A rank that waits itself is held up by another: that one is missing in its place, unless all are so. If a rank that
 * this one waits for is silent, no other is looked for: that may be there, and work. */
static void excuse_waiting(rs_node *c) {
  int64_t since = rs_now_ns() - rs_min(c->base.timeout_ms * 1000000 / 2, (int64_t)SILENT_MS * 1000000),
          n = c->base.size;
  if (count_silent(c, since) == 0)
    follow_waits(c, since);
  int64_t silent = count_silent(c, since);
  for (int64_t r = 0; r < n; r++)
    c->missing[r] = silent > 0 ? c->missing[r] && c->ranks[r].waited < since : c->awaited[c->base.rank * n + r];
}

/* Nothing has rung for a while. */
static reshard_status look_around(rs_node *c, rs_node_wait *w) {
  char text[160];
  int64_t few[64], n = 0; /* a text has no room for more */
  bool late = rs_late(w->since, c->base.timeout_ms);
  memset(c->missing, 0, (size_t)c->base.size * sizeof *c->missing);
  w->mark(c, w->user);
  rs_node_show_wait(c);
  for (int64_t r = 0; r < c->base.size; r++)
    if (c->missing[r] && is_gone(c, r))
      return end_without(c, w, r);
  if (late)
    excuse_waiting(c);
  for (int64_t r = 0; r < c->base.size && n < 64; r++)
    if (c->missing[r])
      few[n++] = r;
  if (n > 0 && late)
    return rs_node_give_up(
        c, rs_comm_error_timeout(&c->base, w->step, c->base.timeout_ms, rs_ranges_text(text, sizeof text, n, few)),
        c->missing);
  rs_comm_await(&c->base, n, few);
  return RESHARD_SUCCESS;
}

reshard_status rs_node_wait_more(rs_node *c, rs_node_wait *w, uint32_t seen) {
  rs_node_doorbell *doorbell = &rs_node_own_rank(c)->doorbell;
  RS_TRY(rs_node_check(c, true));
  if (w->turns++ < c->spins) {
    relax();
    return RESHARD_SUCCESS;
  }
  int64_t now = rs_now_ns();
  if (w->since == 0)
    w->since = w->looked = now;
  if (!w->gone && now - w->looked < LOOK_MS * 1000000) {
    int64_t left = w->looked + LOOK_MS * 1000000 - now;
    atomic_store(&doorbell->sleeps, seen);
    syscall(SYS_futex, &doorbell->rings, FUTEX_WAIT, seen, &(struct timespec){0, left}, NULL, 0);
    return RESHARD_SUCCESS;
  }
  w->looked = now;
  (void)rs_comm_poll(rs_node_named(c), w->since); /* the next check finds the end */
  return look_around(c, w);
}

/* --- Connecting --------------------------------------------------------------------------------------------------- */

reshard_status rs_node_look(rs_node *c) {
  reshard_comm from = c->whole != NULL ? c->whole : c->parent != NULL ? &c->parent->base : NULL;
  if (from != NULL)
    (void)rs_comm_poll(from, c->base.polling.last);
  if (c->look != NULL)
    return c->look(c->whole);
  return c->parent != NULL ? rs_node_check(c->parent, true) : RESHARD_SUCCESS;
}

reshard_status rs_node_error_look(rs_node *c) {
  reshard_status status = rs_node_look(c);
  return status != RESHARD_SUCCESS ? status : rs_error(RESHARD_ERROR_PEER, "%s", reshard_last_error());
}

static int64_t next_look(int64_t end) {
  int64_t look = rs_now_ns() + LOOK_MS * INT64_C(1000000);
  return end != 0 ? rs_min(end, look) : look;
}

/* Tells whether to wait on after a step that ended with *failed at the next look. */
static bool waits_on(rs_node *c, int64_t end, int *failed) {
  if (*failed != ETIMEDOUT || (end != 0 && rs_now_ns() >= end))
    return false;
  if (rs_node_look(c) != RESHARD_SUCCESS)
    *failed = ECANCELED;
  return *failed == ETIMEDOUT;
}

int rs_node_send_to(rs_node *c, int64_t rank, rs_node_step step, const void *bytes, size_t n, int with, int64_t end) {
  int failed;
  do
    failed = rs_node_send(c->sockets[rank], step, bytes, n, with, next_look(end));
  while (waits_on(c, end, &failed));
  return failed;
}

int rs_node_receive_from(rs_node *c, int64_t rank, rs_node_step step, void *bytes, size_t n, int *with, int64_t end) {
  int failed;
  do
    failed = rs_node_receive(c->sockets[rank], step, bytes, n, with, next_look(end));
  while (waits_on(c, end, &failed));
  return failed;
}

int rs_node_dial_to(rs_node *c, int64_t rank, const rs_node_address *address, int64_t end, uid_t *user) {
  int failed;
  do
    failed = rs_node_dial(address, next_look(end), &c->sockets[rank], user);
  while (waits_on(c, end, &failed));
  return failed;
}

/* --- Closing ------------------------------------------------------------------------------------------------------ */

static bool all_closed(const rs_node *c, uint64_t n) {
  for (int64_t r = 0; r < c->base.size; r++)
    if (r != c->base.rank && c->ranks[r].closings < n && !is_gone(c, r))
      return false;
  return true;
}

void rs_node_await_closed(reshard_comm comm, uint64_t n) {
  rs_node *c = rs_node_of(comm);
  atomic_store(&rs_node_own_rank(c)->closings, n);
  for (int64_t since = rs_now_ns(), ended = 0; !all_closed(c, n) && !rs_late(since, c->base.timeout_ms);) {
    if (ended == 0 && rs_node_has_ended(c)) /* others may have nothing to close */
      ended = rs_now_ns();
    if (ended != 0 && rs_late(ended, CLOSE_MS))
      break;
    nanosleep(&(struct timespec){0, 50000}, NULL);
  }
}
