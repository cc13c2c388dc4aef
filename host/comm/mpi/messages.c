/* Messages of an MPI communicator.
 *
 * An exchange posts all receives, and packs and sends message after message: one is on its way while the next is
 * packed. It unpacks each message as it comes. The first one of an execute packs while the ranks meet. Long messages of
 * long runs are sent from their source by a derived type: MPI packs them in short pieces as they move. A message above
 * 2 GiB does not fit MPI's counts: its whole mebibytes go as a derived type, the rest as a message of its own.
 *
 * A request that a peer has matched is done by the peer alone; one with a type of runs, by its sender. With a deadline
 * messages go through staging, which stays when an exchange fails until its requests are done. Without one they go in
 * place. A rank that is told to end then waits for what comes to it, and for what MPI packs from its sources. */
#include "comm/mpi/end.h"
#include "comm/mpi/link.h"

#include "device/plain.h"

#include <stdlib.h>
#include <time.h>

enum { SENDS_MS = 10000 }; /* for a peer to say that it will not read this rank's memory any more */

/* One message as one or two requests; what is not needed is MPI_REQUEST_NULL. */
static int start_message(rs_mpi *c, const rs_part *p, bool sending, MPI_Request request[2]) {
  int64_t blocks = p->bytes > INT32_MAX ? p->bytes / RS_MPI_BLOCK : 0, rest = p->bytes - blocks * RS_MPI_BLOCK;
  char *tail = p->at + blocks * RS_MPI_BLOCK;
  int peer = rs_mpi_rank(c, p->peer), data = rs_mpi_tag(c, RS_MPI_TAG_DATA), last = rs_mpi_tag(c, RS_MPI_TAG_REST);
  MPI_Comm mpi = c->link->mpi;
  int code = MPI_SUCCESS;
  if (p->type != NULL)
    return MPI_Isend(p->at, 1, *(const MPI_Datatype *)p->type, peer, last, mpi, &request[1]);
  if (blocks > 0)
    code = sending ? MPI_Isend(p->at, (int)blocks, c->link->block, peer, data, mpi, &request[0])
                   : MPI_Irecv(p->at, (int)blocks, c->link->block, peer, data, mpi, &request[0]);
  if (rest > 0 && code == MPI_SUCCESS)
    code = sending ? MPI_Isend(tail, (int)rest, MPI_BYTE, peer, last, mpi, &request[1])
                   : MPI_Irecv(tail, (int)rest, MPI_BYTE, peer, last, mpi, &request[1]);
  return code;
}

static reshard_status run_program(rs_mpi *c, const rs_program *program) {
  rs_program *one = (rs_program *)program;
  return program == NULL ? RESHARD_SUCCESS : c->base.device->work->run(c->base.device, 1, &one, NULL);
}

static bool under_way(const rs_mpi *c, int64_t message) {
  return c->requests[2 * message] != MPI_REQUEST_NULL || c->requests[2 * message + 1] != MPI_REQUEST_NULL;
}

/* Unpacks what has come completely. got: requests that are done, of the first n, two a message. */
static reshard_status unpack_received(rs_mpi *c, const rs_exchange *exchange, int ngot, const int *got) {
  for (int i = 0; i < ngot; i++) {
    int64_t message = got[i] / 2;
    if (message >= exchange->nreceives || under_way(c, message))
      continue;                                      /* a send, or one half of a message */
    bool twice = i > 0 && got[i - 1] / 2 == message; /* both halves in one go */
    if (!twice)
      RS_TRY(run_program(c, exchange->receives[message].program));
  }
  return RESHARD_SUCCESS;
}

static int compare_indices(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

/* The peer of a request of the exchange. */
static int64_t request_peer(const rs_exchange *exchange, int64_t request) {
  int64_t message = request / 2;
  return message < exchange->nreceives ? exchange->receives[message].peer
                                       : exchange->sends[message - exchange->nreceives].peer;
}

/* Marks the peers whose messages are still out. */
static void mark_messages(rs_mpi *c, const rs_exchange *exchange) {
  for (int64_t r = 0; r < exchange->nreceives; r++)
    c->missing[exchange->receives[r].peer] |= under_way(c, r);
  for (int64_t s = 0; s < exchange->nsends; s++)
    c->missing[exchange->sends[s].peer] |= under_way(c, exchange->nreceives + s);
}

/* Time in which messages from strided sources may move still: 1 ns a byte, sent and received. A rank that sends one
 * packs a piece in each test, and MPI does not tell. So none sleeps before. */
static int64_t typed_ns(const rs_mpi *c, const rs_exchange *exchange) {
  int64_t ns = 0;
  for (int64_t s = 0; s < exchange->nsends; s++)
    ns += exchange->sends[s].type != NULL && under_way(c, exchange->nreceives + s) ? 2 * exchange->sends[s].bytes : 0;
  return ns;
}

static reshard_status finish_messages(rs_mpi *c, const rs_exchange *exchange) {
  int64_t since = rs_now_ns(), moves = typed_ns(c, exchange);
  for (;;) {
    int ngot = 0, code = MPI_Testsome(c->nrequests, c->requests, &ngot, c->done, c->statuses);
    for (int i = 0; code == MPI_ERR_IN_STATUS && i < ngot; i++)
      c->missing[request_peer(exchange, c->done[i])] |= c->statuses[i].MPI_ERROR != MPI_SUCCESS;
    if (code != MPI_SUCCESS)
      return rs_mpi_error(c, code, "messages of a round");
    if (ngot == MPI_UNDEFINED)
      return RESHARD_SUCCESS; /* no request is left */
    if (ngot > 1)
      qsort(c->done, (size_t)ngot, sizeof *c->done, compare_indices);
    RS_TRY(unpack_received(c, exchange, ngot, c->done));
    if (ngot > 0) {
      since = rs_now_ns(); /* they come, slowly perhaps */
      moves = typed_ns(c, exchange);
      continue;
    }
    RS_TRY(rs_mpi_pause(c, since + moves));
    mark_messages(c, exchange);
    RS_TRY(rs_mpi_await(c, since, "messages of a round"));
  }
}

/* Waits until no message is on its way into memory of the caller, or is packed from it by MPI. The peers come here too.
 * One that has told that it is out takes no more from this rank; one that is not in the exchange will not begin it. */
static void leave_caller_memory(rs_mpi *c, const rs_exchange *exchange) {
  int64_t came = 0; /* when the last receive was done */
  rs_mpi_tell(c, false);
  for (;;) {
    int ngot = 0;
    bool receives = false, sends = false, packs = false;
    if (MPI_Testsome(c->nrequests, c->requests, &ngot, c->done, MPI_STATUSES_IGNORE) != MPI_SUCCESS ||
        ngot == MPI_UNDEFINED)
      return;
    rs_mpi_hear(c);
    rs_mpi_send_unsent(c->link);
    for (int64_t r = 0; r < exchange->nreceives; r++)
      receives |= under_way(c, r);
    for (int64_t s = 0; s < exchange->nsends; s++) {
      bool wanted = under_way(c, exchange->nreceives + s) && !c->out[exchange->sends[s].peer];
      sends |= wanted;
      packs |= wanted && exchange->sends[s].type != NULL;
    }
    if (!receives && came == 0) {
      came = rs_now_ns();
      rs_mpi_tell(c, true);
    }
    if (!receives && !packs && (!sends || rs_late(came, SENDS_MS)))
      return;
    nanosleep(&(struct timespec){0, 50000}, NULL);
  }
}

/* The ranks meet. Nothing is sent before all have come, since a message that is matched is not taken back. Packs while
 * they come. *packed: as many of the sends, in the order of the walk. */
static reshard_status pack_and_meet(rs_mpi *c, const rs_exchange *exchange, int64_t begin, int64_t *packed) {
  for (*packed = 0; c->due && *packed < exchange->nsends; ++*packed) {
    RS_TRY(run_program(c, rs_parts_at(exchange->sends, exchange->nsends, begin, *packed)->program));
    RS_TRY(rs_mpi_meet(c, false));
  }
  return rs_mpi_meet(c, true);
}

static reshard_status start_messages(rs_mpi *c, const rs_exchange *exchange, int64_t send, int64_t packed) {
  int code = MPI_SUCCESS;
  int64_t receive = rs_parts_begin(exchange->receives, exchange->nreceives, c->base.rank);
  for (int64_t i = 0; i < exchange->nreceives && code == MPI_SUCCESS; i++) {
    const rs_part *p = rs_parts_at(exchange->receives, exchange->nreceives, receive, i);
    code = start_message(c, p, false, c->requests + 2 * (p - exchange->receives));
    c->missing[p->peer] = code != MPI_SUCCESS;
  }
  for (int64_t i = 0; i < exchange->nsends && code == MPI_SUCCESS; i++) {
    const rs_part *p = rs_parts_at(exchange->sends, exchange->nsends, send, i);
    if (i >= packed)
      RS_TRY(run_program(c, p->program));
    code = start_message(c, p, true, c->requests + 2 * (exchange->nreceives + (p - exchange->sends)));
    c->missing[p->peer] = code != MPI_SUCCESS;
  }
  return code == MPI_SUCCESS ? RESHARD_SUCCESS : rs_mpi_error(c, code, "messages of a round");
}

/* Peers' first messages come meanwhile. */
static reshard_status run_overlapped(rs_mpi *c, const rs_overlapped *overlapped) {
  RS_TRY(overlapped->run(overlapped->user));
  return rs_mpi_begin_node(c, overlapped->key);
}

static reshard_status move_messages(rs_mpi *c, const rs_exchange *exchange) {
  int64_t send = rs_parts_begin(exchange->sends, exchange->nsends, c->base.rank), packed;
  if (exchange->nreceives > c->reserved || exchange->nsends > c->reserved)
    return rs_mpi_give_up(
        c, rs_error(RESHARD_ERROR_INTERNAL, "%lld receives and %lld sends in a round, %lld were reserved",
                    (long long)exchange->nreceives, (long long)exchange->nsends, (long long)c->reserved));
  c->nrequests = 0;
  reshard_status status = pack_and_meet(c, exchange, send, &packed);
  if (status != RESHARD_SUCCESS)
    return c->due ? rs_mpi_give_up(c, status) : status; /* a program's; or the meeting's */
  c->nrequests = (int)(2 * (exchange->nreceives + exchange->nsends));
  for (int i = 0; i < c->nrequests; i++)
    c->requests[i] = MPI_REQUEST_NULL;
  status = start_messages(c, exchange, send, packed);
  if (exchange->overlapped != NULL)
    RS_THEN(status, run_overlapped(c, exchange->overlapped));
  RS_THEN(status, finish_messages(c, exchange));
  if (status == RESHARD_SUCCESS)
    return RESHARD_SUCCESS;
  (void)rs_mpi_give_up(c, status);
  for (int64_t i = 0; i < 2 * exchange->nreceives; i++)
    if (c->requests[i] != MPI_REQUEST_NULL)
      MPI_Cancel(&c->requests[i]); /* done by the next test, unless it is matched */
  if (!c->base.messages.staged)
    leave_caller_memory(c, exchange);
  return status;
}

static reshard_status exchange_one(const rs_exchange *exchange) {
  rs_mpi *c = rs_mpi_of(exchange->comm);
  RS_TRY(rs_mpi_begin(c));
  RS_TRY(rs_mpi_end(c, move_messages(c, exchange)));
  rs_comm_count_exchange(exchange);
  return RESHARD_SUCCESS;
}

reshard_status rs_mpi_exchange(int64_t n, const rs_exchange *exchanges, int64_t total_bytes) {
  (void)total_bytes;
  for (int64_t i = 0; i < n; i++)
    RS_TRY(exchange_one(&exchanges[i]));
  return RESHARD_SUCCESS;
}

reshard_status rs_mpi_reserve(reshard_comm comm, int64_t most) {
  rs_mpi *c = rs_mpi_of(comm);
  if (most <= c->reserved)
    return RESHARD_SUCCESS;
  MPI_Request *requests = NULL;
  MPI_Status *statuses = NULL;
  int *done = NULL;
  if (c->ended) /* the requests of its last exchange may be under way */
    return rs_comm_error_ended();
  reshard_status status = rs_alloc(&requests, 4 * most, sizeof *requests);
  RS_THEN(status, rs_alloc(&done, 4 * rs_max(most, comm->size), sizeof *done));
  RS_THEN(status, rs_alloc(&statuses, 4 * rs_max(most, comm->size), sizeof *statuses));
  if (status != RESHARD_SUCCESS) {
    free(requests);
    free(done);
    return status;
  }
  free(c->requests);
  free(c->done);
  free(c->statuses);
  c->requests = requests;
  c->done = done;
  c->statuses = statuses;
  c->reserved = most;
  c->nrequests = 0;
  return RESHARD_SUCCESS;
}

/* --- Types -------------------------------------------------------------------------------------------------------- */

reshard_status rs_mpi_make_type(reshard_comm comm, int64_t runs, int64_t run, int64_t stride, void **type) {
  MPI_Datatype *made = NULL;
  RS_TRY(rs_alloc(&made, 1, sizeof *made));
  rs_mpi_enter(rs_mpi_of(comm));
  int code = MPI_Type_create_hvector((int)runs, (int)run, (MPI_Aint)stride, MPI_BYTE, made);
  if (code == MPI_SUCCESS) {
    code = MPI_Type_commit(made);
    if (code != MPI_SUCCESS)
      MPI_Type_free(made);
  }
  rs_mpi_leave(rs_mpi_of(comm));
  if (code == MPI_SUCCESS) {
    *type = made;
    return RESHARD_SUCCESS;
  }
  free(made);
  return rs_mpi_error(rs_mpi_of(comm), code, "MPI_Type_create_hvector");
}

void rs_mpi_free_type(reshard_comm comm, void *type) {
  int finalized = 0;
  rs_mpi_enter(rs_mpi_of(comm));
  MPI_Finalized(&finalized);
  if (!finalized)
    MPI_Type_free(type);
  rs_mpi_leave(rs_mpi_of(comm));
  free(type);
}

/* --- The end ------------------------------------------------------------------------------------------------------ */

void rs_mpi_retire(reshard_comm comm, void *memory) {
  rs_mpi *c = rs_mpi_of(comm);
  rs_mpi_memory *m = NULL;
  if (memory == NULL)
    return;
  if (!c->ended || rs_mpi_quiet(c)) {
    rs_device_free(comm->device, memory);
  } else if (rs_alloc(&m, 1, sizeof *m) == RESHARD_SUCCESS) { /* else the memory stays for ever */
    *m = (rs_mpi_memory){c->memories, memory};
    c->memories = m;
  }
}
