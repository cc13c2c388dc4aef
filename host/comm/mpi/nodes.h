/* Memory files of the ranks on this node. */
#ifndef RS_COMM_MPI_NODES_H
#define RS_COMM_MPI_NODES_H

#include "comm/mpi/mpi.h"

/* Collective: sets the communicator's imports where all ranks share memory, and some are on one node. */
reshard_status rs_mpi_open_files(rs_mpi *c);

#endif
