/* Ranks of an MPI communicator, on the CPU: the all-gather, the meeting, and the table.
 *
 * Every rank sends its record to every other. So the one that is late is known where it is missed. No collective of MPI
 * is left half-done, of which no rank could tell how far it has come. */
#include "comm/mpi/end.h"
#include "comm/mpi/link.h"
#include "comm/mpi/nodes.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Marks whose records are out; else those who have not taken this rank's. */
static void mark_records(rs_mpi *c) {
  int64_t size = c->base.size, out = 0;
  for (int64_t r = 0; r < size; r++)
    out += c->missing[r] = rs_mpi_talks(c, RS_MPI_TALK_THEIRS)[r] != MPI_REQUEST_NULL;
  for (int64_t r = 0; r < size && out == 0; r++)
    c->missing[r] = rs_mpi_talks(c, RS_MPI_TALK_OURS)[r] != MPI_REQUEST_NULL;
}

/* One test. *got: some have come; *left: some are still out. */
static reshard_status test_records(rs_mpi *c, bool *got, bool *left) {
  int ngot = 0,
      code = MPI_Testsome((int)(2 * c->base.size), rs_mpi_talks(c, RS_MPI_TALK_THEIRS), &ngot, c->done, c->statuses);
  for (int i = 0; code == MPI_ERR_IN_STATUS && i < ngot; i++)
    c->missing[c->done[i] % c->base.size] |= c->statuses[i].MPI_ERROR != MPI_SUCCESS;
  if (code != MPI_SUCCESS)
    return rs_mpi_give_up(c, rs_mpi_error(c, code, "all-gather of records"));
  *left = ngot != MPI_UNDEFINED;
  *got = *left && ngot > 0;
  return RESHARD_SUCCESS;
}

static reshard_status finish_records(rs_mpi *c) {
  int64_t since = rs_now_ns();
  for (;;) {
    bool got, left;
    RS_TRY(test_records(c, &got, &left));
    if (!left)
      return RESHARD_SUCCESS;
    if (got)
      continue;
    RS_TRY(rs_mpi_pause(c, since));
    mark_records(c);
    RS_TRY(rs_mpi_await(c, since, "all-gather of records"));
  }
}

static bool takes_part(const rs_mpi *c, int64_t rank, bool node) {
  return !node || c->base.memory.imports[rank] != NULL;
}

/* Every rank's `mine` is on its way to c->records. node: of the ranks of this node alone. */
static reshard_status send_records(rs_mpi *c, const void *mine, size_t mine_bytes, bool node) {
  int64_t size = c->base.size, me = c->base.rank;
  int code = MPI_SUCCESS, bytes = (int)(offsetof(rs_mpi_record, visit.record) + mine_bytes),
      tag = rs_mpi_tag(c, RS_MPI_TAG_RECORD);
  rs_mpi_record *own = c->records + size;
  own->flag = c->own_flag;
  rs_visit_fill(&c->base, &own->visit, mine_bytes, mine, mine_bytes);
  memcpy(&c->records[me], own, (size_t)bytes);
  for (int64_t i = 1; i < size && code == MPI_SUCCESS; i++) { /* not all to the same at once */
    int64_t r = (me + i) % size;
    if (!takes_part(c, r, node))
      continue;
    code = MPI_Irecv(c->records + r, sizeof *own, MPI_BYTE, rs_mpi_rank(c, r), tag, c->link->mpi,
                     &rs_mpi_talks(c, RS_MPI_TALK_THEIRS)[r]);
    c->missing[r] = code != MPI_SUCCESS;
  }
  for (int64_t i = 1; i < size && code == MPI_SUCCESS; i++) {
    int64_t r = (me + i) % size;
    if (!takes_part(c, r, node))
      continue;
    code = MPI_Isend(own, bytes, MPI_BYTE, rs_mpi_rank(c, r), tag, c->link->mpi, &rs_mpi_talks(c, RS_MPI_TALK_OURS)[r]);
    c->missing[r] = code != MPI_SUCCESS;
  }
  return code == MPI_SUCCESS ? RESHARD_SUCCESS : rs_mpi_give_up(c, rs_mpi_error(c, code, "all-gather of records"));
}

static reshard_status gather_records(rs_mpi *c, const void *mine, size_t bytes) {
  RS_TRY(rs_mpi_begin_records(c));
  reshard_status status = rs_mpi_meet(c, true);
  RS_THEN(status, send_records(c, mine, bytes, false));
  RS_THEN(status, finish_records(c));
  if (status == RESHARD_SUCCESS)
    rs_mpi_take_flags(c);
  return rs_mpi_end(c, status);
}

/* --- Meetings ----------------------------------------------------------------------------------------------------- */

static reshard_status begin_meeting(rs_mpi *c) {
  RS_TRY(rs_mpi_begin_records(c));
  reshard_status status = send_records(c, "", 0, false);
  c->due = status == RESHARD_SUCCESS;
  return rs_mpi_end(c, status);
}

reshard_status rs_mpi_meet(rs_mpi *c, bool waits) {
  bool got, left = false;
  if (!c->due)
    return RESHARD_SUCCESS;
  reshard_status status = waits ? finish_records(c) : test_records(c, &got, &left);
  if (status == RESHARD_SUCCESS && left)
    return RESHARD_SUCCESS;
  c->due = false;
  return status == RESHARD_SUCCESS ? rs_visits_compare(&c->base, &c->records->visit, sizeof *c->records) : status;
}

reshard_status rs_mpi_begin_node(rs_mpi *c, uint64_t key) {
  RS_TRY(rs_mpi_check_left(c));
  RS_TRY(send_records(c, &key, sizeof key, true));
  c->node_due = true;
  return RESHARD_SUCCESS;
}

/* Ends the meeting of the node, which an exchange may have begun. */
static reshard_status gather_node(rs_mpi *c, uint64_t key) {
  RS_TRY(rs_mpi_begin(c));
  reshard_status status = c->node_due ? RESHARD_SUCCESS : rs_mpi_begin_node(c, key);
  RS_THEN(status, finish_records(c));
  c->node_due = false;
  if (status == RESHARD_SUCCESS)
    rs_mpi_take_flags(c);
  return rs_mpi_end(c, status);
}

/* The same error on all ranks of the node, since all have the same records. */
static reshard_status meet_node(rs_mpi *c, uint64_t key) {
  reshard_comm comm = &c->base;
  int64_t first = comm->rank;
  RS_TRY(gather_node(c, key));
  for (int64_t r = comm->rank; r-- > 0;)
    first = takes_part(c, r, true) ? r : first;
  const rs_visit *a = &c->records[first].visit;
  for (int64_t r = first + 1; r < comm->size; r++) {
    const rs_visit *b = &c->records[r].visit;
    if ((r == comm->rank || takes_part(c, r, true)) &&
        (a->bytes != b->bytes || memcmp(a->record, b->record, sizeof key) != 0))
      return rs_error(RESHARD_ERROR_MISMATCH, "ranks %lld and %lld execute different transfers", (long long)first,
                      (long long)r);
  }
  return RESHARD_SUCCESS;
}

static reshard_status mpi_look(reshard_comm comm) {
  rs_mpi *c = rs_mpi_of(comm);
  if (c->base.life.quit)
    return rs_comm_error_destroyed(&c->base);
  return c->ended ? rs_comm_error_ended() : RESHARD_SUCCESS;
}

/* When they execute a transfer, all ranks meet, since messages do not tell one transfer from another. The rank packs
 * meanwhile. */
static reshard_status begin_step(rs_mpi *c) {
  RS_TRY(mpi_look(&c->base));
  return c->base.meets.transfer != 0 && c->base.size > 1 ? begin_meeting(c) : RESHARD_SUCCESS;
}

static reshard_status end_step(rs_mpi *c, reshard_status status) {
  if (status == RESHARD_SUCCESS && c->due) {
    status = rs_mpi_begin(c);
    RS_THEN(status, rs_mpi_end(c, rs_mpi_meet(c, true)));
  }
  if (status != RESHARD_SUCCESS) /* the communicator has ended */
    c->due = c->node_due = false;
  return status;
}

static reshard_status mpi_meet(reshard_comm comm, const rs_meeting *m) {
  rs_mpi *c = rs_mpi_of(comm);
  switch (m->scope) {
  case RS_MEET_BEGIN: return begin_step(c);
  case RS_MEET_END: return end_step(c, m->status);
  case RS_MEET_NODE: return meet_node(c, m->key);
  default: break;
  }
  RS_TRY(gather_records(c, m->record, m->bytes));
  RS_TRY(rs_visits_compare(&c->base, &c->records->visit, sizeof *c->records));
  rs_visits_pack(comm, m->bytes, c->gathered);
  *m->all = c->gathered;
  return RESHARD_SUCCESS;
}

/* MPI has no way to tell others that call nothing, but for memory that they read. */
static bool mpi_end(reshard_comm comm, rs_end what) {
  rs_mpi *c = rs_mpi_of(comm);
  if (what == RS_END_ABORT)
    rs_mpi_abort(c, false);
  if (what == RS_END_CALLS)
    rs_mpi_clear_flag(c);
  return false;
}

static void mpi_destroy(reshard_comm comm) { rs_mpi_release(rs_mpi_of(comm)); }

static const rs_message_ops mpi_messages = {
    .reserve = rs_mpi_reserve, .retire = rs_mpi_retire, .make_type = rs_mpi_make_type, .free_type = rs_mpi_free_type};

const rs_comm_ops rs_mpi_ops = {
    .name = "mpi",
    .messages = &mpi_messages,
    .look = mpi_look,
    .meet = mpi_meet,
    .exchange = rs_mpi_exchange,
    .make = rs_mpi_make_part,
    .absent = rs_mpi_absent,
    .end = mpi_end,
    .destroy = mpi_destroy,
};
