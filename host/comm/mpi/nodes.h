/* Memory files of the ranks on this node. */
#ifndef RS_COMM_MPI_NODES_H
#define RS_COMM_MPI_NODES_H

#include "comm/mpi/mpi.h"

/* Collective: sets the communicator's imports where all ranks share memory, and some are on one node. */
reshard_status rs_mpi_open_files(rs_mpi *c);
/* Local: the same for a part, of the files that the communicator has open. */
reshard_status rs_mpi_share_files(const rs_mpi *c, rs_mpi *part);

#endif
