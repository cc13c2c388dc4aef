/* Memory files of the ranks on this node. */
#ifndef RS_COMM_MPI_NODES_H
#define RS_COMM_MPI_NODES_H

#include "comm/mpi/mpi.h"

/* Collective: sets the communicator's best staging where all ranks are on one node, and its imports where all share
 * memory, and some are on one node. */
reshard_status rs_mpi_open_files(rs_mpi *c);
/* Local: the same for a part, whose ranks these are, of the files that the communicator has open. */
reshard_status rs_mpi_share_files(const rs_mpi *c, rs_mpi *part, const int64_t *ranks);
/* Closes them. */
void rs_mpi_close_files(rs_mpi *c);

/* Tells by this rank's flag, if it has one, that the communicator has ended. */
void rs_mpi_clear_flag(rs_mpi *c);
/* Local: maps the flags of the ranks on this node that are not mapped yet, of which their records tell. Without room
 * for them the next records are another try, and until then an end is known by its note alone. */
void rs_mpi_take_flags(rs_mpi *c);
/* A rank of this node that has ended the communicator, or destroyed its handle; -1: none. Memory of such a rank may
 * have changed since; of the others none has that was read before the call. */
int64_t rs_mpi_find_left(const rs_mpi *c);

#endif
