/* Finds the ranks of an MPI communicator that have not come to an all-gather. MPI has no such question. So a rank whose
 * deadline has passed sends an empty message to all others, and those that wait in the call answer. Two tags are
 * reserved for that. */
#ifndef RS_COMM_MPI_MISSING_H
#define RS_COMM_MPI_MISSING_H

#include "base/base.h"

#include <mpi.h>

enum { RS_MPI_TAG_ASK = 4, RS_MPI_TAG_HERE = 5 };

/* Answers those that ask. Called by a rank that waits in an all-gather, between two tests. */
void rs_mpi_answer(MPI_Comm mpi);
/* Asks, and waits for answers as long as patience_ms; a rank from which a message of tag `gone` is there has come, and
 * given up. missing: the others, "0-2,5", "" when all have come or nobody can be asked. True when the request of the
 * all-gather was completed meanwhile. */
bool rs_mpi_find_missing(MPI_Comm mpi, MPI_Request *request, int gone, int64_t patience_ms, char *missing, size_t size);

#endif
