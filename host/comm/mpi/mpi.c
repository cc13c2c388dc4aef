/* Ranks of an MPI communicator, on the CPU.
 *
 * An exchange posts all receives, and packs and sends message after message: one is on its way while the next is
 * packed. It unpacks each message as it comes. A message above 2 GiB does not fit MPI's counts: its whole mebibytes go
 * as a derived type, the rest as a message of its own.
 *
 * MPI has no deadline, and its MPI_Abort ends the job. So each wait is a loop of tests that looks at the clock, and at
 * a tag on which an aborted rank sends to the others. */
#include "comm/mpi/mpi.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TAG_DATA = 1, TAG_REST = 2, TAG_ABORT = 3 }; /* more: missing.h */

reshard_status rs_mpi_error(int code, const char *call) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return rs_error(RESHARD_ERROR_PEER, "%s: %s (MPI error %d)", call, text, code);
}

/* --- The end ----------------------------------------------------------------------------------------------------- */

/* Sends a message that no rank has to wait for: it is for ranks that wait now, and for those that come later. */
static void send_abort(rs_mpi *c) {
  static const char note = 1;
  if (c->abort_sent)
    return;
  c->abort_sent = true;
  for (int64_t r = 0; r < c->base.size; r++) {
    MPI_Request request;
    if (r != c->base.rank && MPI_Isend(&note, 1, MPI_BYTE, (int)r, TAG_ABORT, c->mpi, &request) == MPI_SUCCESS)
      MPI_Request_free(&request);
  }
}

static void end_comm(rs_mpi *c) {
  c->ended = true;
  for (rs_mpi *child = c->children; child != NULL; child = child->next)
    end_comm(child);
}

/* True when another rank has sent an abort. */
static bool abort_received(rs_mpi *c) {
  int there = 0;
  if (MPI_Iprobe(MPI_ANY_SOURCE, TAG_ABORT, c->mpi, &there, MPI_STATUS_IGNORE) != MPI_SUCCESS || !there)
    return c->ended;
  end_comm(c);
  return true;
}

/* A call begins, if there is something to call on. */
static reshard_status begin_call(rs_mpi *c) {
  c->inside = true;
  if (!abort_received(c))
    return RESHARD_SUCCESS;
  send_abort(c);
  c->inside = false;
  return rs_comm_error_ended();
}

static reshard_status end_call(rs_mpi *c, reshard_status status) {
  if (c->ended)
    send_abort(c);
  c->inside = false;
  return status;
}

static bool deadline_passed(const rs_mpi *c, int64_t since) {
  return c->timeout_ms > 0 && rs_now_ns() - since > c->timeout_ms * 1000000;
}

/* The deadline has passed: who is to blame, "0-2,5", or "". */
static reshard_status error_timeout(rs_mpi *c, const char *what, const char *missing) {
  end_comm(c);
  return rs_error(RESHARD_ERROR_TIMEOUT, "%s: not done within %lld ms%s%s", what, (long long)c->timeout_ms,
                  missing[0] != '\0' ? "; missing: " : "", missing);
}

/* Between two tests, since when there is something to wait for. */
static reshard_status pause_or_end(rs_mpi *c, int64_t since) {
  int64_t waited = rs_now_ns() - since;
  if (abort_received(c))
    return rs_comm_error_ended();
  if (waited < 200000)
    sched_yield();
  else
    nanosleep(&(struct timespec){0, 50000}, NULL);
  return RESHARD_SUCCESS;
}

/* --- Records ------------------------------------------------------------------------------------------------------ */

/* Asks who has come; a quarter of the deadline, and a second at most, is left for the answers. When all have come,
 * the deadline begins again. */
static reshard_status find_missing_ranks(rs_mpi *c, MPI_Request *request) {
  char missing[160];
  int64_t patience = rs_min(rs_max(c->timeout_ms / 4, 50), 1000);
  if (rs_mpi_find_missing(&c->roll, request, TAG_ABORT, patience, c->timeout_ms, missing, sizeof missing))
    return RESHARD_SUCCESS;
  if (missing[0] == '\0' && abort_received(c)) /* the others have come, or gave up before this rank did */
    return rs_comm_error_ended();
  return error_timeout(c, "all-gather of records", missing);
}

static reshard_status allgather_records(rs_mpi *c, void *mine, size_t bytes) {
  MPI_Request request;
  int done = 0;
  int64_t since = rs_now_ns();
  int code = MPI_Iallgather(mine, (int)bytes, MPI_BYTE, c->records, (int)bytes, MPI_BYTE, c->mpi, &request);
  c->roll.number++;
  while (code == MPI_SUCCESS && !done) {
    code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS || done)
      break;
    if (deadline_passed(c, since)) /* records and mine outlive the request: see destroy */
      return find_missing_ranks(c, &request);
    rs_mpi_answer(&c->roll);
    RS_TRY(pause_or_end(c, since));
  }
  return code == MPI_SUCCESS ? RESHARD_SUCCESS : rs_mpi_error(code, "MPI_Iallgather");
}

static reshard_status mpi_allgather(reshard_comm comm, const void *mine, size_t bytes, const void **all) {
  rs_mpi *c = rs_mpi_of(comm);
  rs_mpi_record *slots = (rs_mpi_record *)c->records, *own = slots + comm->size;
  RS_TRY(begin_call(c));
  *own = (rs_mpi_record){.bytes = (int64_t)bytes};
  memcpy(own->record, mine, bytes);
  reshard_status status = end_call(c, allgather_records(c, own, sizeof *own));
  if (status != RESHARD_SUCCESS)
    return status;
  for (int64_t r = 0; r < comm->size; r++)
    if (slots[r].bytes != (int64_t)bytes)
      return rs_error(RESHARD_ERROR_MISMATCH, "the ranks make different collective calls at once");
  for (int64_t r = 0; r < comm->size; r++) /* to the front: no record is overwritten that is still to come */
    memmove(c->records + (size_t)r * bytes, slots[r].record, bytes);
  *all = c->records;
  return RESHARD_SUCCESS;
}

/* --- Messages ----------------------------------------------------------------------------------------------------- */

/* One message as one or two requests; what is not needed is MPI_REQUEST_NULL. */
static int start_message(rs_mpi *c, const rs_part *p, bool sending, MPI_Request request[2]) {
  int64_t blocks = p->bytes > INT32_MAX ? p->bytes / RS_MPI_BLOCK : 0, rest = p->bytes - blocks * RS_MPI_BLOCK;
  char *tail = p->at + blocks * RS_MPI_BLOCK;
  int peer = (int)p->peer, code = MPI_SUCCESS;
  if (blocks > 0)
    code = sending ? MPI_Isend(p->at, (int)blocks, c->block, peer, TAG_DATA, c->mpi, &request[0])
                   : MPI_Irecv(p->at, (int)blocks, c->block, peer, TAG_DATA, c->mpi, &request[0]);
  if (rest > 0 && code == MPI_SUCCESS)
    code = sending ? MPI_Isend(tail, (int)rest, MPI_BYTE, peer, TAG_REST, c->mpi, &request[1])
                   : MPI_Irecv(tail, (int)rest, MPI_BYTE, peer, TAG_REST, c->mpi, &request[1]);
  return code;
}

static reshard_status run_program(rs_mpi *c, const rs_program *program) {
  rs_program *one = (rs_program *)program;
  return program == NULL ? RESHARD_SUCCESS : c->base.device->work->run(c->base.device, 1, &one, NULL);
}

/* Unpacks what has come completely. got: requests that are done, of the first n, two a message. */
static reshard_status unpack_received(rs_mpi *c, const rs_turn *turn, int ngot, const int *got) {
  for (int i = 0; i < ngot; i++) {
    int64_t message = got[i] / 2;
    if (message >= turn->nreceives || c->requests[2 * message] != MPI_REQUEST_NULL ||
        c->requests[2 * message + 1] != MPI_REQUEST_NULL)
      continue;                                      /* a send, or one half of a message */
    bool twice = i > 0 && got[i - 1] / 2 == message; /* both halves in one go */
    if (!twice)
      RS_TRY(run_program(c, turn->receives[message].program));
  }
  return RESHARD_SUCCESS;
}

static int compare_indices(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

/* The peers whose messages are still out. */
static reshard_status error_timeout_of_peers(rs_mpi *c, const rs_turn *turn) {
  char missing[160];
  int64_t few[64], count = 0, r = 0, s = 0; /* a text has no room for more */
  while (count < 64 && (r < turn->nreceives || s < turn->nsends)) {
    const MPI_Request *sent = c->requests + 2 * (turn->nreceives + s), *received = c->requests + 2 * r;
    int64_t from = r < turn->nreceives ? turn->receives[r].peer : INT64_MAX;
    int64_t to = s < turn->nsends ? turn->sends[s].peer : INT64_MAX, peer = rs_min(from, to);
    bool out = (from == peer && (received[0] != MPI_REQUEST_NULL || received[1] != MPI_REQUEST_NULL)) ||
               (to == peer && (sent[0] != MPI_REQUEST_NULL || sent[1] != MPI_REQUEST_NULL));
    if (out)
      few[count++] = peer;
    r += from == peer;
    s += to == peer;
  }
  return error_timeout(c, "messages of a round", rs_ranges_text(missing, sizeof missing, count, few));
}

static reshard_status finish_messages(rs_mpi *c, const rs_turn *turn, int n) {
  int64_t since = rs_now_ns();
  for (;;) {
    int ngot = 0, code = MPI_Testsome(n, c->requests, &ngot, c->done, MPI_STATUSES_IGNORE);
    if (code != MPI_SUCCESS)
      return rs_mpi_error(code, "MPI_Testsome");
    if (ngot == MPI_UNDEFINED)
      return RESHARD_SUCCESS; /* no request is left */
    if (ngot > 1)
      qsort(c->done, (size_t)ngot, sizeof *c->done, compare_indices);
    RS_TRY(unpack_received(c, turn, ngot, c->done));
    if (ngot > 0)
      since = rs_now_ns(); /* they come, slowly perhaps */
    else if (deadline_passed(c, since))
      return error_timeout_of_peers(c, turn);
    else
      RS_TRY(pause_or_end(c, since));
  }
}

/* Receives that are still out would write into memory that is the caller's again. */
static void cancel_messages(rs_mpi *c, int n) {
  for (int i = 0; i < n; i++)
    if (c->requests[i] != MPI_REQUEST_NULL) {
      MPI_Cancel(&c->requests[i]);
      MPI_Request_free(&c->requests[i]);
    }
  end_comm(c);
}

static reshard_status move_messages(rs_mpi *c, const rs_turn *turn) {
  int n = (int)(2 * (turn->nreceives + turn->nsends)), code = MPI_SUCCESS;
  if (turn->nreceives > c->reserved || turn->nsends > c->reserved)
    return rs_error(RESHARD_ERROR_INTERNAL, "%lld receives and %lld sends in a round, %lld were reserved",
                    (long long)turn->nreceives, (long long)turn->nsends, (long long)c->reserved);
  for (int i = 0; i < n; i++)
    c->requests[i] = MPI_REQUEST_NULL;
  for (int64_t i = 0; i < turn->nreceives && code == MPI_SUCCESS; i++)
    code = start_message(c, &turn->receives[i], false, c->requests + 2 * i);
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0; i < turn->nsends && code == MPI_SUCCESS && status == RESHARD_SUCCESS; i++) {
    status = run_program(c, turn->sends[i].program);
    if (status == RESHARD_SUCCESS)
      code = start_message(c, &turn->sends[i], true, c->requests + 2 * (turn->nreceives + i));
  }
  if (code != MPI_SUCCESS)
    status = rs_mpi_error(code, "starting the messages of a round");
  if (status == RESHARD_SUCCESS)
    status = finish_messages(c, turn, n);
  if (status != RESHARD_SUCCESS)
    cancel_messages(c, n);
  return status;
}

static reshard_status mpi_exchange(int64_t n, const rs_turn *turns, int64_t total_bytes) {
  (void)total_bytes;
  for (int64_t i = 0; i < n; i++) {
    rs_mpi *c = rs_mpi_of(turns[i].comm);
    int64_t bytes = 0;
    RS_TRY(begin_call(c));
    RS_TRY(end_call(c, move_messages(c, &turns[i])));
    for (int64_t r = 0; r < turns[i].nreceives; r++)
      bytes += turns[i].receives[r].bytes;
    rs_comm_count(turns[i].comm, bytes, turns[i].nreceives);
  }
  return RESHARD_SUCCESS;
}

static reshard_status mpi_reserve(reshard_comm comm, int64_t most) {
  rs_mpi *c = rs_mpi_of(comm);
  if (most <= c->reserved)
    return RESHARD_SUCCESS;
  MPI_Request *requests = NULL;
  int *done = NULL;
  reshard_status status = rs_alloc(&requests, 4 * most, sizeof *requests);
  if (status == RESHARD_SUCCESS)
    status = rs_alloc(&done, 4 * most, sizeof *done);
  if (status != RESHARD_SUCCESS) {
    free(requests);
    return status;
  }
  free(c->requests);
  free(c->done);
  c->requests = requests;
  c->done = done;
  c->reserved = most;
  return RESHARD_SUCCESS;
}

/* --- The rest ----------------------------------------------------------------------------------------------------- */

/* One rank of this process, as far as this communicator knows: there is no other to meet. */
static reshard_status mpi_together(reshard_comm comm, reshard_status (*run)(int64_t n, void **all), void *mine) {
  return rs_mpi_of(comm)->ended ? rs_comm_error_ended() : run(1, &mine);
}

static reshard_status mpi_alive(reshard_comm comm) {
  return rs_mpi_of(comm)->ended ? rs_comm_error_ended() : RESHARD_SUCCESS;
}

static void mpi_leave(reshard_comm comm) { (void)comm; }

/* A thread of this rank that is in a call sends the abort itself. */
static reshard_status mpi_abort(reshard_comm comm) {
  rs_mpi *c = rs_mpi_of(comm);
  int level = MPI_THREAD_SINGLE;
  end_comm(c);
  MPI_Query_thread(&level);
  if (!c->inside || level == MPI_THREAD_MULTIPLE)
    send_abort(c);
  return RESHARD_SUCCESS;
}

static void mpi_destroy(reshard_comm comm) { rs_mpi_release(rs_mpi_of(comm)); }

const rs_comm_ops rs_mpi_ops = {
    .name = "mpi",
    .reach = false,
    .together = mpi_together,
    .allgather = mpi_allgather,
    .enter = mpi_alive,
    .leave = mpi_leave,
    .exchange = mpi_exchange,
    .reserve = mpi_reserve,
    .split = rs_mpi_split,
    .alive = mpi_alive,
    .abort = mpi_abort,
    .destroy = mpi_destroy,
};
