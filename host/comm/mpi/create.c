/* Making and releasing MPI communicators. */
#include "comm/mpi/end.h"
#include "comm/mpi/link.h"
#include "comm/mpi/nodes.h"

#include "device/environment.h"
#include "device/plain.h"

#include <reshard_build.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

reshard_status rs_mpi_check_build(void) {
  if (strcmp(RS_BUILD, rs_build()) == 0)
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_UNSUPPORTED, "libreshard_mpi is %s, and libreshard is %s: both must be of one build",
                  RS_BUILD, rs_build());
}

static reshard_status alloc_comm(rs_mpi *c, int64_t size) {
  size_t note = rs_mpi_note_bytes(size);
  RS_TRY(rs_alloc_zero(&c->why, 1, note));
  for (int i = 0; i < RS_MPI_NOTES; i++)
    RS_TRY(rs_alloc_zero(&c->notes[i], 1, note));
  RS_TRY(rs_alloc_zero(&c->received, 1, note));
  RS_TRY(rs_alloc_zero(&c->answer, 1, note));
  RS_TRY(rs_alloc_zero(&c->probe.waiting, size, sizeof *c->probe.waiting));
  RS_TRY(rs_alloc_zero(&c->probe.awaited, size, sizeof *c->probe.awaited));
  RS_TRY(rs_alloc_zero(&c->probe.deciding, size, sizeof *c->probe.deciding));
  RS_TRY(rs_alloc_zero(&c->out, size, sizeof *c->out));
  RS_TRY(rs_alloc_zero(&c->missing, size, sizeof *c->missing));
  RS_TRY(rs_alloc(&c->gathered, size, RS_COMM_RECORD));
  RS_TRY(rs_alloc_zero(&c->records, size + 1, sizeof *c->records));
  RS_TRY(rs_alloc(&c->done, 4 * size, sizeof *c->done));
  RS_TRY(rs_alloc(&c->statuses, 4 * size, sizeof *c->statuses));
  RS_TRY(rs_alloc(&c->talks, RS_MPI_TALKS * size, sizeof *c->talks));
  for (int64_t i = 0; i < RS_MPI_TALKS * size; i++)
    c->talks[i] = MPI_REQUEST_NULL;
  return RESHARD_SUCCESS;
}

reshard_status rs_mpi_create(rs_mpi_link *link, int64_t size, int64_t rank, int64_t *global_ranks, rs_mpi **out) {
  rs_mpi *c = NULL;
  RS_TRY(rs_alloc_zero(&c, 1, sizeof *c));
  atomic_fetch_add(&link->users, 1);
  c->link = link;
  rs_comm_init(&c->base, &rs_mpi_ops, rank, size);
  atomic_init(&c->users, 1);
  atomic_flag_clear(&c->hearing);
  atomic_flag_clear(&c->probe.answering);
  RS_TRY_OR(alloc_comm(c, size), rs_mpi_free(c));
  c->base.global_ranks = global_ranks;
  *out = c;
  return RESHARD_SUCCESS;
}

/* --- Creation ---------------------------------------------------------------------------------------------------- */

/* One rank's part of a creation, as all ranks publish it. */
typedef struct creation {
  int64_t status, timeout_ms;
  char text[RS_COMM_RECORD - 2 * sizeof(int64_t)]; /* of the error */
} creation;
_Static_assert(sizeof(creation) == RS_COMM_RECORD, "a creation fits the communicator's buffer");

/* Checks what all ranks ask for; the result is the same on every rank. */
static reshard_status check_creations(int64_t n, const creation *all, bool *staged) {
  int64_t bad = 0, good = 0;
  while (bad < n && all[bad].status == RESHARD_SUCCESS)
    *staged |= all[bad++].timeout_ms > 0;
  if (bad == n)
    return RESHARD_SUCCESS;
  while (good < n && all[good].timeout_ms < 0)
    good++;
  if (all[bad].timeout_ms >= 0 || good == n)
    return rs_error((reshard_status)all[bad].status, "rank %lld: %s", (long long)bad, all[bad].text);
  return rs_error((reshard_status)all[bad].status, "%s on rank %lld, %lld ms on rank %lld", all[bad].text,
                  (long long)bad, (long long)all[good].timeout_ms, (long long)good);
}

/* A CPU whose storage ranks of the node read, where the system has memory files. */
static reshard_status create_device(reshard_device *device) {
  const reshard_device_options shared = {.size = RESHARD_DEVICE_OPTIONS_INIT, .shared = 1};
  reshard_status status = reshard_device_create("cpu", &shared, device);
  return status == RESHARD_ERROR_UNSUPPORTED ? reshard_device_create("cpu", NULL, device) : status;
}

/* Reads this rank's options, and makes the device. */
static reshard_status read_options(const reshard_comm *comm, reshard_device device, int64_t *timeout_ms,
                                   reshard_device *kept) {
  if (comm == NULL)
    return rs_error_null("reshard_comm_from_mpi", "comm");
  if (*timeout_ms < 0)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_comm_from_mpi: timeout_ms %lld ms", (long long)*timeout_ms);
  if (device != NULL && device->device->type != RESHARD_DEVICE_CPU)
    return rs_error(RESHARD_ERROR_UNSUPPORTED,
                    "reshard_comm_from_mpi: the device is %s:%d, MPI moves memory of the CPU", device->device->name,
                    device->device->index);
  if (*timeout_ms == 0)
    RS_TRY(rs_environment_number("RESHARD_TIMEOUT_MS", timeout_ms));
  if (device == NULL)
    return create_device(kept);
  *kept = reshard_device_retain(device);
  return RESHARD_SUCCESS;
}

static reshard_status create_block(rs_mpi *c) {
  int code = MPI_Type_contiguous(RS_MPI_BLOCK, MPI_BYTE, &c->link->block);
  if (code == MPI_SUCCESS)
    code = MPI_Type_commit(&c->link->block);
  return code == MPI_SUCCESS ? RESHARD_SUCCESS : rs_mpi_error(c, code, "MPI_Type_contiguous");
}

/* Duplicates, and finds out if all ranks succeed. own: what this rank has come to by itself. */
static reshard_status connect_ranks(rs_mpi *c, MPI_Comm mpi, reshard_status own, int64_t timeout_ms) {
  const void *all;
  creation mine = {.timeout_ms = timeout_ms};
  if (own != RESHARD_SUCCESS)
    snprintf(mine.text, sizeof mine.text, "%s", reshard_last_error());
  RS_CALL_AS(&c->base, "reshard_comm_from_mpi", 0);
  reshard_status status = rs_mpi_duplicate(c, mpi);
  if (status == RESHARD_SUCCESS && own == RESHARD_SUCCESS) {
    own = create_block(c);
    if (own != RESHARD_SUCCESS)
      snprintf(mine.text, sizeof mine.text, "%s", reshard_last_error());
  }
  mine.status = own;
  RS_THEN(status, rs_comm_allgather(&c->base, &mine, sizeof mine, &all));
  RS_TRY(status);
  RS_TRY(check_creations(c->base.size, all, &c->base.messages.staged));
  return rs_mpi_open_files(c);
}

/* --- Creation without memory ------------------------------------------------------------------------------------- */

/* The all-gather of a creation, a record each way at a time. False: a rank has not come by the deadline, or MPI fails.
 * *why is of the lowest rank that fails, as the others choose it. */
static bool exchange_refusals(rs_mpi *c, int64_t *who, creation *why) {
  rs_mpi_record *own = &c->link->refusal[0], *theirs = &c->link->refusal[1];
  const int bytes = offsetof(rs_mpi_record, visit.record) + sizeof *why, tag = rs_mpi_tag(c, RS_MPI_TAG_RECORD);
  const int64_t n = c->base.size, me = c->base.rank;
  MPI_Comm mpi = c->link->mpi;
  rs_visit_fill(&c->base, &own->visit, sizeof *why, why, sizeof *why);
  *who = me;
  for (int64_t i = 1; i < n; i++) {
    const int64_t from = (me + n - i) % n, since = rs_now_ns();
    MPI_Request both[2];
    creation other;
    int done = 0;
    if (MPI_Irecv(theirs, sizeof *theirs, MPI_BYTE, (int)from, tag, mpi, &both[0]) != MPI_SUCCESS ||
        MPI_Isend(own, bytes, MPI_BYTE, (int)((me + i) % n), tag, mpi, &both[1]) != MPI_SUCCESS)
      return false;
    for (; !done; rs_mpi_sleep(since))
      if (MPI_Testall(2, both, &done, MPI_STATUSES_IGNORE) != MPI_SUCCESS ||
          (!done && rs_late(c->base.meets.begun, c->base.timeout_ms)))
        return false;
    memcpy(&other, theirs->visit.record, sizeof other);
    if (other.status != RESHARD_SUCCESS && from < *who) {
      *who = from;
      *why = other;
    }
  }
  return true;
}

/* A rank that has no memory for a communicator, or for its link, takes part in the creation all the same: the others
 * hear its last error. link NULL: what MPI writes to is on the stack, so that it waits without a deadline. */
static reshard_status refuse_creation(rs_mpi_link *link, MPI_Comm mpi, int size, int rank, reshard_status own,
                                      int64_t timeout_ms) {
  rs_mpi_link spare = {.mpi = MPI_COMM_NULL, .made = MPI_REQUEST_NULL, .users = 1};
  rs_mpi c = {.base = {.ops = &rs_mpi_ops, .rank = rank, .size = size}, .link = link != NULL ? link : &spare};
  creation why = {.status = own};
  int64_t who = rank;
  snprintf(why.text, sizeof why.text, "%s", reshard_last_error());
  if (timeout_ms == 0)
    (void)rs_environment_number("RESHARD_TIMEOUT_MS", &timeout_ms);
  c.base.timeout_ms = link != NULL ? rs_max(timeout_ms, 0) : 0;
  c.base.meets.begun = rs_now_ns();
  if (rs_mpi_duplicate(&c, mpi) == RESHARD_SUCCESS && !exchange_refusals(&c, &who, &why)) {
    c.link->stays = true;
    atomic_fetch_add(&c.link->users, 1); /* MPI may use its refusals still */
  }
  if (link == NULL && !spare.stays && spare.mpi != MPI_COMM_NULL)
    MPI_Comm_free(&spare.mpi);
  return rs_error((reshard_status)why.status, "rank %lld: %s", (long long)who, why.text);
}

reshard_status reshard_comm_from_mpi(const void *mpi_comm, reshard_device device, int64_t timeout_ms,
                                     reshard_comm *comm) {
  int initialized = 0, finalized = 0, size = 0, rank = 0;
  rs_mpi_link *link = NULL;
  rs_mpi *made = NULL;
  RS_HOLD_CANCEL;
  RS_TRY(rs_mpi_check_build());
  if (mpi_comm == NULL)
    return rs_error_null("reshard_comm_from_mpi", "mpi_comm");
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (!initialized || finalized)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_comm_from_mpi: MPI is %s",
                    finalized ? "finalised" : "not initialised");
  MPI_Comm mpi = *(const MPI_Comm *)mpi_comm;
  MPI_Comm_size(mpi, &size);
  MPI_Comm_rank(mpi, &rank);
  reshard_status status = rs_mpi_find_link(mpi, &link);
  RS_THEN(status, rs_mpi_create(link, size, rank, NULL, &made));
  if (status != RESHARD_SUCCESS) {
    status = refuse_creation(link, mpi, size, rank, status, timeout_ms);
  } else { /* what fails from here on is told to the others */
    reshard_status own = read_options(comm, device, &timeout_ms, &made->handle);
    RS_THEN(own, rs_board_join(&made->base, NULL));
    RS_THEN(own, rs_environment_number("RESHARD_NODE", &made->base.process.node));
    made->base.timeout_ms = rs_max(timeout_ms, 0);
    made->base.device = made->handle != NULL ? made->handle->device : NULL;
    made->base.meets.begun = rs_now_ns();
    status = connect_ranks(made, mpi, own, timeout_ms);
    made->base.meets.begun = 0;
  }
  if (link != NULL)
    rs_mpi_release_link(link);
  if (status == RESHARD_SUCCESS)
    *comm = &made->base;
  else if (made != NULL)
    rs_mpi_release(made);
  return status;
}

reshard_status reshard_comm_from_mpi_fortran(int handle, reshard_device device, int64_t timeout_ms,
                                             reshard_comm *comm) {
  _Static_assert(sizeof(MPI_Fint) == sizeof handle, "an INTEGER of Fortran is an int");
  MPI_Comm mpi_comm = MPI_Comm_f2c(handle);
  if (mpi_comm == MPI_COMM_NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_comm_from_mpi_fortran: handle %d is MPI_COMM_NULL", handle);
  return reshard_comm_from_mpi(&mpi_comm, device, timeout_ms, comm);
}
