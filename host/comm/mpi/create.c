/* Making, splitting and releasing MPI communicators. */
#include "comm/mpi/mpi.h"

#include "comm/split_group.h"
#include "device/environment.h"

#include <stdlib.h>

void rs_mpi_release(rs_mpi *c) {
  if (atomic_fetch_sub(&c->users, 1) > 1)
    return;
  if (c->parent != NULL) {
    rs_mpi **link = &c->parent->children;
    while (*link != c)
      link = &(*link)->next;
    *link = c->next;
    rs_mpi_release(c->parent);
  }
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!finalized && c->block != MPI_DATATYPE_NULL)
    MPI_Type_free(&c->block);
  /* After an abort a rank may never come to free it, and an all-gather may still write to the records: both stay, and
   * so do the questions who has come. */
  if (!c->ended && !finalized && c->mpi != MPI_COMM_NULL) {
    rs_mpi_roll_free(&c->roll);
    MPI_Comm_free(&c->mpi);
  }
  if (!c->ended) {
    free(c->roll.peers);
    free(c->records);
  }
  rs_board_leave(&c->base);
  reshard_device_release(c->handle);
  free(c->requests);
  free(c->done);
  free(c->global_ranks);
  free(c);
}

/* Around an MPI communicator that is ours; after an error it stays, for its ranks cannot all free it. */
static reshard_status create_comm(MPI_Comm mpi, reshard_device device, int64_t timeout_ms, rs_mpi **out) {
  int size = 0, rank = 0;
  rs_mpi *c = NULL;
  MPI_Comm_set_errhandler(mpi, MPI_ERRORS_RETURN);
  MPI_Comm_size(mpi, &size);
  MPI_Comm_rank(mpi, &rank);
  reshard_status status = rs_alloc_zero(&c, 1, sizeof *c);
  if (status != RESHARD_SUCCESS)
    return status;
  c->mpi = mpi;
  c->block = MPI_DATATYPE_NULL;
  c->timeout_ms = timeout_ms;
  atomic_init(&c->users, 1);
  if (device != NULL)
    c->handle = reshard_device_retain(device);
  else
    RS_TRY_GOTO(status, reshard_device_create("cpu", NULL, &c->handle), fail);
  c->base = (struct reshard_comm_s){.ops = &rs_mpi_ops, .device = c->handle->device, .rank = rank, .size = size};
  c->base.locals = 1;
  c->base.group = c;
  c->base.lanes = 1;
  c->base.lane_devices = &c->base.device;
  RS_TRY_GOTO(status, rs_board_join(&c->base, NULL), fail);
  RS_TRY_GOTO(status, rs_alloc(&c->records, size + 1, sizeof(rs_mpi_record)), fail);
  RS_TRY_GOTO(status, rs_mpi_roll_init(&c->roll, mpi), fail);
  int code = MPI_Type_contiguous(RS_MPI_BLOCK, MPI_BYTE, &c->block);
  if (code == MPI_SUCCESS)
    code = MPI_Type_commit(&c->block);
  if (code != MPI_SUCCESS)
    RS_TRY_GOTO(status, rs_mpi_error(code, "MPI_Type_contiguous"), fail);
  *out = c;
  return RESHARD_SUCCESS;
fail:
  free(c->roll.peers);
  free(c->records);
  c->records = NULL;
  c->ended = true;
  rs_mpi_release(c);
  return status;
}

reshard_status rs_mpi_split(reshard_comm comm, const rs_split *mine, reshard_comm *sub) {
  rs_mpi *c = rs_mpi_of(comm), *made = NULL;
  rs_split_group group;
  MPI_Comm mpi = MPI_COMM_NULL;
  RS_TRY(rs_split_group_find(comm, mine, &group));
  int code = MPI_Comm_split(c->mpi, group.n > 0 ? group.color : MPI_UNDEFINED, group.key, &mpi);
  reshard_status status = code == MPI_SUCCESS ? RESHARD_SUCCESS : rs_mpi_error(code, "MPI_Comm_split");
  if (status == RESHARD_SUCCESS && mpi != MPI_COMM_NULL)
    status = create_comm(mpi, c->handle, c->timeout_ms, &made);
  status = rs_split_agree(comm, status);
  if (status == RESHARD_SUCCESS && made != NULL) {
    made->base.global_ranks = made->global_ranks = group.global_ranks;
    group.global_ranks = NULL;
    made->parent = c;
    made->next = c->children;
    c->children = made;
    atomic_fetch_add(&c->users, 1);
    (void)rs_board_join(&made->base, &c->base);
  } else if (made != NULL) {
    rs_mpi_release(made);
  }
  free(group.global_ranks);
  if (status == RESHARD_SUCCESS)
    *sub = made != NULL ? &made->base : NULL;
  return status;
}

reshard_status reshard_comm_from_mpi(const void *mpi_comm, reshard_device device, int64_t timeout_ms,
                                     reshard_comm *comm) {
  int initialized = 0, finalized = 0;
  if (mpi_comm == NULL || comm == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_comm_from_mpi: %s is NULL", mpi_comm == NULL ? "mpi_comm" : "comm");
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (!initialized || finalized)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_comm_from_mpi: MPI is %s",
                    finalized ? "finalised" : "not initialised");
  MPI_Comm mpi = MPI_COMM_NULL;
  int code = MPI_Comm_dup(*(const MPI_Comm *)mpi_comm, &mpi); /* first: the others are in it */
  if (code != MPI_SUCCESS)
    return rs_mpi_error(code, "MPI_Comm_dup");
  rs_mpi *made = NULL;
  reshard_status status = RESHARD_SUCCESS;
  if (timeout_ms < 0)
    status = rs_error(RESHARD_ERROR_INVALID, "reshard_comm_from_mpi: timeout of %lld ms", (long long)timeout_ms);
  else if (device != NULL && device->device->type != RESHARD_DEVICE_CPU)
    status =
        rs_error(RESHARD_ERROR_UNSUPPORTED, "reshard_comm_from_mpi: the device is %s:%d, MPI moves memory of the CPU",
                 device->device->name, device->device->index);
  else if (timeout_ms == 0)
    status = rs_environment_number("RESHARD_TIMEOUT_MS", &timeout_ms);
  if (status == RESHARD_SUCCESS)
    status = create_comm(mpi, device, timeout_ms, &made);
  int worst = (int)status, own = (int)status;
  MPI_Allreduce(&own, &worst, 1, MPI_INT, MPI_MAX, *(const MPI_Comm *)mpi_comm);
  if (status == RESHARD_SUCCESS && worst != 0)
    status = rs_error(RESHARD_ERROR_PEER, "reshard_comm_from_mpi: %s on another rank",
                      reshard_status_string((reshard_status)worst));
  if (status == RESHARD_SUCCESS)
    *comm = &made->base;
  else if (made != NULL)
    rs_mpi_release(made);
  return status;
}
