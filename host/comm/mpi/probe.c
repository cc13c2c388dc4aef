/* A failure probe: whom to name when a deadline passes.
 *
 * A rank waits for its next messages, of ranks that may wait themselves, for one that is lost. Before its deadline a
 * rank tells all others for whom it waits. The others tell the same, each once, from inside their own waits. Whoever
 * has told is there. The lowest of those decides, and its error is everyone's. Lost are those that it waits for itself,
 * and that have told nothing; if there are none, those that other ranks wait for so.
 *
 * A rank that waits on what was split from the communicator answers, too, but does not decide, as it is in no call
 * here.
 *
 * A note of status RESHARD_SUCCESS carries the probe. If nobody is found lost, as where ranks wait in a circle, a
 * rank names those that it waits for. */
#include "comm/mpi/end.h"

#include <string.h>

enum { PROBE_MS = 500, /* at most, for the others to answer */ DECISION_MS = 50 /* for a lower rank to decide */ };

static int64_t probe_ms(const rs_mpi *c) { return rs_min(c->base.timeout_ms / 2, PROBE_MS); }

/* From the first answer on the duplicate stays. No call receives all answers: one may still be under way when ranks
 * destroy their handles. MPI gives the context of a communicator that is freed to the next one, where a message that is
 * late would appear: one context where a deadline was nearly missed. */
static void keep_duplicate(rs_mpi *c) { c->link->stays = true; }

void rs_mpi_take_answer(rs_mpi *c, int64_t rank) {
  rs_mpi_probe *q = &c->probe;
  int64_t now = rs_now_ns();
  keep_duplicate(c);
  if (c->received->probe > q->number) {
    q->number = c->received->probe;
    q->begun = now;
  }
  q->waiting[rank] = now;
  if (!c->received->in_part)
    q->deciding[rank] = now;
  for (int64_t r = 0; r < c->base.size; r++)
    if (c->received->missing[r])
      q->awaited[r] = now;
}

/* Tells the ranks of c that this one waits for those that inner->missing marks; inner is c, or was split from it. Not
 * while an earlier answer is on its way to a rank that takes none. */
static void send_answer(rs_mpi *c, const rs_mpi *inner) {
  rs_mpi_probe *q = &c->probe;
  int64_t size = c->base.size;
  int sent = 0;
  MPI_Request *talks = rs_mpi_talks(c, RS_MPI_TALK_ANSWER);
  if (MPI_Testall((int)size, talks, &sent, MPI_STATUSES_IGNORE) != MPI_SUCCESS || !sent)
    return;
  keep_duplicate(c);
  q->answered = q->number;
  c->answer->probe = q->answered;
  c->answer->in_part = inner != c;
  memset(c->answer->missing, 0, (size_t)size);
  for (int64_t r = 0; r < inner->base.size; r++)
    if (inner->missing[r])
      c->answer->missing[inner == c ? r : rs_mpi_find_rank(c, rs_mpi_rank(inner, r))] = 1;
  for (int64_t r = 0; r < size; r++)
    if (r != c->base.rank)
      (void)MPI_Isend(c->answer, (int)rs_mpi_note_bytes(size), MPI_BYTE, rs_mpi_rank(c, r),
                      rs_mpi_tag(c, RS_MPI_TAG_NOTE), c->link->mpi, &talks[r]);
}

/* While the duplicate is made ranks are known to have come, or not. */
static bool can_probe(const rs_mpi *c) { return c->link->numbers > 0; }

/* Not by two threads at once: one that is in a call on c answers, else one that is on something that was split from it.
 */
static void answer_once(rs_mpi *c, const rs_mpi *inner) {
  if (inner != c && c->inside)
    return;
  if (c->probe.answered >= c->probe.number || atomic_flag_test_and_set(&c->probe.answering))
    return;
  if (!c->ended && c->probe.answered < c->probe.number)
    send_answer(c, inner);
  atomic_flag_clear(&c->probe.answering);
}

void rs_mpi_probe_failures(rs_mpi *c, int64_t since) {
  rs_mpi_probe *q = &c->probe;
  if (!can_probe(c))
    return;
  if (q->wait != since) {
    q->wait = since;
    q->from = 0;
  }
  if (q->from == 0 && rs_late(rs_mpi_waits_from(c, since), c->base.timeout_ms - probe_ms(c))) {
    pthread_mutex_lock(&c->link->tree);
    if (q->number == 0 || rs_late(q->begun, probe_ms(c))) { /* else one is under way */
      q->number++;
      q->begun = rs_now_ns();
    }
    q->from = q->begun;
    pthread_mutex_unlock(&c->link->tree);
  }
  for (rs_mpi *outer = c; outer != NULL; outer = outer->parent)
    answer_once(outer, c);
}

static bool is_silent(const rs_mpi *c, int64_t rank) {
  return rank != c->base.rank && c->probe.waiting[rank] < c->probe.from;
}

/* A rank that another one waits for may be there, and work: so those that this rank waits for come first. */
bool rs_mpi_find_lost(rs_mpi *c, int64_t since) {
  const rs_mpi_probe *q = &c->probe;
  int64_t n = c->base.size, own = 0, others = 0;
  bool lower = false;
  if (!can_probe(c))
    return true;
  pthread_mutex_lock(&c->link->tree);
  for (int64_t r = 0; r < c->base.rank; r++)
    lower |= q->deciding[r] >= q->from;
  lower = lower && !rs_late(rs_mpi_waits_from(c, since), c->base.timeout_ms + DECISION_MS);
  for (int64_t r = 0; r < n; r++) {
    own += is_silent(c, r) && c->missing[r];
    others += is_silent(c, r) && q->awaited[r] >= q->from;
  }
  for (int64_t r = 0; r < n && own + others > 0 && !lower; r++)
    c->missing[r] = is_silent(c, r) && (own > 0 ? c->missing[r] : q->awaited[r] >= q->from);
  pthread_mutex_unlock(&c->link->tree);
  return !lower;
}
