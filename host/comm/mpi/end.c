/* The end of an MPI communicator. The rank that decides it tells all others why, and they tell their callers the same.
 *
 * A rank hears it between two tests of a wait, and before a call. An abort of what the communicator was split from ends
 * it too, so notes on those tags are taken as well. */
#include "comm/mpi/end.h"
#include "comm/mpi/link.h"
#include "comm/mpi/nodes.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { NOTE_MS = 5000 }; /* at most, for the note of a rank that has given up to come */

static void mark_ended(rs_mpi *c) {
  rs_mpi_clear_flag(c); /* before the caller can change what others read */
  c->link->stays = true;
  c->ended = true;
}

/* Sets why the communicator has ended, unless that is known; then it has. The tree's mutex is held in these three: a
 * thread that comes second finds that it has. */
static void end_comm(rs_mpi *c, const rs_mpi_note *why) {
  if (c->ended)
    return;
  memcpy(c->why, why, rs_mpi_note_bytes(c->base.size));
  mark_ended(c);
}

/* missing: as in rs_mpi; NULL: none. */
static void end_by(rs_mpi *c, reshard_status status, bool aborted, const char *text, const bool *missing) {
  if (c->ended)
    return;
  c->why->status = status;
  c->why->aborted = aborted;
  snprintf(c->why->text, sizeof c->why->text, "%s", text);
  if (missing != NULL)
    memcpy(c->why->missing, missing, (size_t)c->base.size);
  mark_ended(c);
}

/* An abort of what has ended for another reason, after which what was split from it goes on until then. False: it was
 * aborted before. */
static bool note_abort(rs_mpi *c, const char *text) {
  rs_mpi_note *note = c->notes[RS_MPI_NOTE_ABORT];
  if (c->why->aborted || note->aborted)
    return false;
  note->status = RESHARD_ERROR_PEER;
  note->aborted = true;
  snprintf(note->text, sizeof note->text, "%s", text);
  return true;
}

static void abort_children(rs_mpi *c, const char *text) {
  for (rs_mpi *child = c->children; child != NULL; child = child->next) {
    end_by(child, RESHARD_ERROR_PEER, true, text, NULL);
    abort_children(child, text);
  }
}

void rs_mpi_adopt(rs_mpi *parent, rs_mpi *child) {
  pthread_mutex_lock(&parent->link->tree);
  child->parent = parent;
  child->next = parent->children;
  parent->children = child;
  atomic_fetch_add(&parent->users, 1);
  const rs_mpi_note *why = parent->notes[RS_MPI_NOTE_ABORT]->aborted ? parent->notes[RS_MPI_NOTE_ABORT] : parent->why;
  if (parent->ended && why->aborted) /* meanwhile */
    end_by(child, RESHARD_ERROR_PEER, true, why->text, NULL);
  pthread_mutex_unlock(&parent->link->tree);
}

void rs_mpi_hear(rs_mpi *c) {
  MPI_Message message;
  MPI_Status status;
  int there = 0, bytes = (int)rs_mpi_note_bytes(c->base.size);
  if (atomic_flag_test_and_set(&c->hearing))
    return;
  while (MPI_Improbe(MPI_ANY_SOURCE, rs_mpi_tag(c, RS_MPI_TAG_NOTE), c->link->mpi, &there, &message, &status) ==
             MPI_SUCCESS &&
         there && MPI_Mrecv(c->received, bytes, MPI_BYTE, &message, MPI_STATUS_IGNORE) == MPI_SUCCESS) {
    int64_t r = rs_mpi_find_rank(c, status.MPI_SOURCE);
    if (r < c->base.size && c->received->out)
      c->out[r] = true;
    pthread_mutex_lock(&c->link->tree);
    if (c->received->status != RESHARD_SUCCESS)
      end_comm(c, c->received);
    else if (r < c->base.size)
      rs_mpi_take_answer(c, r);
    if (c->received->aborted) {
      (void)note_abort(c, c->received->text);
      abort_children(c, c->received->text);
    }
    pthread_mutex_unlock(&c->link->tree);
  }
  atomic_flag_clear(&c->hearing);
}

/* True when the communicator has ended, as another rank may have told just now. */
static bool heard_end(rs_mpi *c) {
  for (rs_mpi *from = c; from != NULL && !c->ended; from = from->parent)
    rs_mpi_hear(from);
  return c->ended;
}

/* The reason is on its way, unless that rank was lost before it could tell: then it is missing. */
static void end_without(rs_mpi *c, int64_t rank) {
  char text[96];
  int64_t most = c->base.timeout_ms > 0 ? rs_min(c->base.timeout_ms, NOTE_MS) : NOTE_MS;
  for (int64_t since = rs_now_ns(); !heard_end(c) && !rs_late(since, most);) {
    rs_mpi_send_unsent(c->link);
    rs_mpi_sleep(since);
  }
  snprintf(text, sizeof text, "rank %lld has given up, and has not told why", (long long)rank);
  c->missing[rank] = true;
  pthread_mutex_lock(&c->link->tree);
  end_by(c, RESHARD_ERROR_PEER, false, text, c->missing);
  pthread_mutex_unlock(&c->link->tree);
  c->missing[rank] = false;
}

static void send_note(rs_mpi *c, int note) {
  for (int64_t r = 0; r < c->base.size; r++)
    if (r != c->base.rank)
      (void)MPI_Isend(c->notes[note], (int)rs_mpi_note_bytes(c->base.size), MPI_BYTE, rs_mpi_rank(c, r),
                      rs_mpi_tag(c, RS_MPI_TAG_NOTE), c->link->mpi, &rs_mpi_talks(c, RS_MPI_TALK_NOTES + note)[r]);
}

void rs_mpi_tell(rs_mpi *c, bool out) {
  int number = out ? RS_MPI_NOTE_OUT : RS_MPI_NOTE_END;
  rs_mpi_note *note = c->notes[number];
  if (!atomic_exchange(&c->sent[number], true)) {
    pthread_mutex_lock(&c->link->tree);
    memcpy(note, c->why, rs_mpi_note_bytes(c->base.size));
    pthread_mutex_unlock(&c->link->tree);
    note->out = out;
    send_note(c, number);
  }
  if (c->aborts && !atomic_exchange(&c->sent[RS_MPI_NOTE_ABORT], true))
    send_note(c, RS_MPI_NOTE_ABORT);
}

/* Waits for a thread that tells an end: where MPI lets one thread in at a time, it goes first. */
static void let_tell(rs_mpi_link *link) {
  while (link->telling > 0)
    sched_yield();
}

void rs_mpi_send_unsent(rs_mpi_link *link) {
  for (rs_mpi *c = atomic_exchange(&link->unsent, NULL), *next; c != NULL; c = next) {
    next = c->next_unsent;
    c->waits = false; /* it may have more to tell */
    rs_mpi_tell(c, true);
    rs_mpi_release(c);
  }
}

void rs_mpi_enter(rs_mpi *c) {
  c->link->inside++;
  let_tell(c->link);
}

/* Whoever ends a communicator meanwhile sees this thread inside, and it tells; or it waits. */
static void leave_link(rs_mpi *c, bool from_call) {
  rs_mpi_link *link = c->link;
  for (bool more = true; more;) {
    let_tell(link);
    rs_mpi_send_unsent(link);
    if (from_call && c->ended)
      rs_mpi_tell(c, true);
    link->inside--;
    let_tell(link);
    more = link->unsent != NULL ||
           (from_call && ((c->ended && !c->sent[RS_MPI_NOTE_OUT]) || (c->aborts && !c->sent[RS_MPI_NOTE_ABORT])));
    if (more)
      link->inside++;
  }
}

void rs_mpi_leave(rs_mpi *c) { leave_link(c, false); }

static void leave_call(rs_mpi *c) {
  c->inside = false;
  leave_link(c, true);
}

reshard_status rs_mpi_begin(rs_mpi *c) {
  if (c->base.life.quit)
    return rs_comm_error_destroyed(&c->base);
  c->inside = true;
  rs_mpi_enter(c);
  rs_mpi_sweep(c->link);
  if (!heard_end(c))
    return RESHARD_SUCCESS;
  leave_call(c);
  return rs_error(RESHARD_ERROR_PEER, "the communicator has ended: %s", c->why->text);
}

reshard_status rs_mpi_check_left(rs_mpi *c) {
  int64_t left = rs_mpi_find_left(c);
  if (left < 0)
    return RESHARD_SUCCESS;
  end_without(c, left);
  return rs_error((reshard_status)c->why->status, "%s", c->why->text);
}

reshard_status rs_mpi_begin_records(rs_mpi *c) {
  RS_TRY(rs_mpi_begin(c));
  reshard_status status = rs_mpi_check_left(c);
  return status == RESHARD_SUCCESS ? status : rs_mpi_end(c, status);
}

reshard_status rs_mpi_end(rs_mpi *c, reshard_status status) {
  leave_call(c);
  return status;
}

void rs_mpi_sleep(int64_t since) {
  if (rs_now_ns() - since < 200000)
    sched_yield();
  else
    nanosleep(&(struct timespec){0, 50000}, NULL);
}

reshard_status rs_mpi_pause(rs_mpi *c, int64_t since) {
  rs_mpi_send_unsent(c->link);
  (void)rs_comm_poll(&c->base, since);
  if (heard_end(c))
    return rs_error((reshard_status)c->why->status, "%s", c->why->text);
  reshard_status status = c->base.life.quit ? rs_comm_error_destroyed(&c->base) : RESHARD_SUCCESS;
  if (status != RESHARD_SUCCESS)
    return rs_mpi_give_up(c, status);
  rs_mpi_sleep(since);
  return RESHARD_SUCCESS;
}

/* --- Errors ------------------------------------------------------------------------------------------------------ */

/* The ranks that are marked, as many as a text has room for. */
enum { LISTED = 64 };
static int64_t list_missing(const rs_mpi *c, int64_t few[LISTED]) {
  int64_t n = 0;
  for (int64_t r = 0; r < c->base.size && n < LISTED && c->missing != NULL; r++) /* NULL: it has no memory */
    if (c->missing[r])
      few[n++] = r;
  return n;
}

reshard_status rs_mpi_error(rs_mpi *c, int code, const char *step) {
  char text[MPI_MAX_ERROR_STRING] = "", missing[160];
  int64_t few[LISTED], n = list_missing(c, few);
  int length = 0;
  MPI_Error_string(code, text, &length);
  return rs_error(RESHARD_ERROR_PEER, "rank %lld: %s: %s (MPI error %d)%s%s", (long long)c->base.rank, step, text, code,
                  n > 0 ? "; missing: " : "", rs_ranges_text(missing, sizeof missing, n, few));
}

reshard_status rs_mpi_give_up(rs_mpi *c, reshard_status status) {
  pthread_mutex_lock(&c->link->tree);
  end_by(c, status, false, reshard_last_error(), c->missing);
  pthread_mutex_unlock(&c->link->tree);
  memset(c->missing, 0, (size_t)c->base.size);
  return status;
}

reshard_status rs_mpi_await(rs_mpi *c, int64_t since, const char *step) {
  char missing[160];
  int64_t few[LISTED];
  rs_mpi_probe_failures(c, since);
  bool gives_up = rs_late(rs_mpi_waits_from(c, since), c->base.timeout_ms) && rs_mpi_find_lost(c, since);
  int64_t n = list_missing(c, few);
  if (gives_up) {
    rs_ranges_text(missing, sizeof missing, n, few);
    return rs_mpi_give_up(c, rs_comm_error_timeout(&c->base, step, c->base.timeout_ms, missing));
  }
  rs_comm_await(&c->base, n, few);
  memset(c->missing, 0, (size_t)c->base.size);
  return RESHARD_SUCCESS;
}

/* --- Aborts ------------------------------------------------------------------------------------------------------ */

/* A thread of this rank that is in a call tells the others itself, where MPI lets one thread in at a time: in a call on
 * this communicator when it hears of the end, in one on another of the duplicate when it looks at `unsent`. One that
 * comes into a call, or goes out of it, waits for this one: each sets its mark before it looks at the other's. */
static void tell_soon(rs_mpi *c) {
  int level = MPI_THREAD_SINGLE;
  c->link->telling++;
  bool inside = c->inside;
  MPI_Query_thread(&level);
  if (level == MPI_THREAD_MULTIPLE || c->link->inside == 0) {
    rs_mpi_tell(c, !inside);
  } else if (!inside && !atomic_exchange(&c->waits, true)) {
    atomic_fetch_add(&c->users, 1);
    c->next_unsent = c->link->unsent;
    while (!atomic_compare_exchange_weak(&c->link->unsent, &c->next_unsent, c))
      ;
  }
  c->link->telling--;
}

void rs_mpi_abort(rs_mpi *c, bool shrinks) {
  char text[64];
  (shrinks ? rs_comm_shrunk_text : rs_comm_abort_text)(text, sizeof text, c->base.rank);
  pthread_mutex_lock(&c->link->tree);
  end_by(c, RESHARD_ERROR_PEER, !shrinks, text, NULL);
  if (!shrinks && note_abort(c, text))
    c->aborts = true;
  if (!shrinks)
    abort_children(c, text);
  pthread_mutex_unlock(&c->link->tree);
  tell_soon(c);
}

void rs_mpi_miss(rs_mpi *c, int64_t rank) {
  pthread_mutex_lock(&c->link->tree);
  c->why->missing[rank] = 1;
  pthread_mutex_unlock(&c->link->tree);
}

int64_t rs_mpi_absent(reshard_comm comm, int64_t *ranks) {
  const rs_mpi *c = rs_mpi_of(comm);
  int64_t n = 0;
  pthread_mutex_lock(&c->link->tree);
  for (int64_t r = 0; r < comm->size && c->ended; r++)
    if (c->why->missing[r])
      ranks[n++] = r;
  pthread_mutex_unlock(&c->link->tree);
  return n;
}
