/* The duplicate of the caller's MPI communicator. */
#ifndef RS_COMM_MPI_DUPLICATE_H
#define RS_COMM_MPI_DUPLICATE_H

#include "comm/mpi/mpi.h"

/* Makes the link's duplicate of the caller's communicator. */
reshard_status rs_mpi_duplicate(rs_mpi *c, MPI_Comm mpi);
/* Tells the others, on the caller's communicator, that this rank gives up a creation. */
void rs_mpi_say_given_up(const rs_mpi *c, MPI_Comm mpi);

#endif
