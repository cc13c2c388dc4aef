/* The duplicate of the caller's MPI communicator. */
#ifndef RS_COMM_MPI_DUPLICATE_H
#define RS_COMM_MPI_DUPLICATE_H

#include "comm/mpi/mpi.h"

/* Makes the link's duplicate of the caller's communicator. From here to rs_mpi_end_creation this rank hears of others
 * that give up. */
reshard_status rs_mpi_duplicate(rs_mpi *c, MPI_Comm mpi);
/* In a wait of a creation: the error of a rank that has given up it, if there is one. */
reshard_status rs_mpi_hear_farewells(rs_mpi *c);
/* All ranks have come to the duplicate; or this one gives up with its last error, and tells the others. */
void rs_mpi_end_creation(rs_mpi *c, reshard_status status);

#endif
