/* The link of communicators over one duplicate of the caller's, and their release. */
#ifndef RS_COMM_MPI_LINK_H
#define RS_COMM_MPI_LINK_H

#include "comm/mpi/mpi.h"

void rs_mpi_release_link(rs_mpi_link *link);
/* A new link, or that of a duplication of this communicator which an earlier call has given up. */
reshard_status rs_mpi_find_link(MPI_Comm mpi, rs_mpi_link **link);
/* Makes the link's duplicate, or goes on with it. */
reshard_status rs_mpi_duplicate(rs_mpi *c, MPI_Comm mpi);
void rs_mpi_free(rs_mpi *c); /* of which no message is under way, or that is half made */
/* One user less of a communicator; the last one frees. */
void rs_mpi_release(rs_mpi *c);
/* Frees the communicators that were destroyed with requests under way which are done by now. */
void rs_mpi_sweep(rs_mpi_link *link);
/* True when no request of the communicator is under way. */
bool rs_mpi_quiet(rs_mpi *c);

#endif
