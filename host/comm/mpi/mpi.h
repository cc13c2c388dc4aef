/* Inside of the MPI communicator: one rank of an MPI_Comm. */
#ifndef RS_COMM_MPI_H
#define RS_COMM_MPI_H

#include "comm/comm.h"
#include "comm/mpi/missing.h"

#include <mpi.h>

enum { RS_MPI_BLOCK = 1 << 20 };

typedef struct rs_mpi {
  struct reshard_comm_s base;
  MPI_Comm mpi;       /* ours */
  MPI_Datatype block; /* of RS_MPI_BLOCK bytes */
  reshard_device handle;
  int64_t timeout_ms;
  atomic_bool ended;
  atomic_bool inside;                      /* a thread is in a call, and will see `ended` */
  bool abort_sent;                         /* to the others */
  struct rs_mpi *parent, *children, *next; /* the tree of splits: an abort goes down. Ranks are one thread each. */
  atomic_int users;
  int64_t *global_ranks; /* of base */
  char *records;         /* [size * RS_COMM_RECORD] */
  rs_mpi_roll roll;
  int64_t reserved;      /* messages each way of one exchange */
  MPI_Request *requests; /* [4 * reserved]: two a message; receives first */
  int *done;             /* [4 * reserved] indices of MPI_Testsome */
} rs_mpi;

/* Every rank gives the same number of bytes, whatever the call, so that different calls see each other. */
typedef struct rs_mpi_record {
  int64_t bytes;
  char record[RS_COMM_RECORD];
} rs_mpi_record;

static inline rs_mpi *rs_mpi_of(reshard_comm comm) { return (rs_mpi *)comm; }

reshard_status rs_mpi_error(int code, const char *call);

/* create.c: one user less of a communicator; the last one frees. */
void rs_mpi_release(rs_mpi *c);
reshard_status rs_mpi_split(reshard_comm comm, const rs_split *mine, reshard_comm *sub);

extern const rs_comm_ops rs_mpi_ops;

#endif
