/* The duplicate of the caller's MPI communicator. */
#ifndef RS_COMM_MPI_DUPLICATE_H
#define RS_COMM_MPI_DUPLICATE_H

#include "comm/mpi/mpi.h"

/* A new link, or that of a duplication of this communicator which an earlier call has given up. */
reshard_status rs_mpi_find_link(MPI_Comm mpi, rs_mpi_link **link);
/* Makes the link's duplicate, or goes on with it. */
reshard_status rs_mpi_duplicate(rs_mpi *c, MPI_Comm mpi);

#endif
