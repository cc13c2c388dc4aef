/* Finds the ranks of an MPI communicator that have not come to an all-gather. MPI has no such question. So a rank whose
 * deadline has passed asks all others, and those that wait in the call answer. Two tags are reserved for that. Question
 * and answer carry the number of the all-gather, for it may be done before the answer comes. */
#ifndef RS_COMM_MPI_MISSING_H
#define RS_COMM_MPI_MISSING_H

#include "base/base.h"

#include <mpi.h>

enum { RS_MPI_TAG_ASK = 4, RS_MPI_TAG_HERE = 5 };

/* A number on its way to another rank. */
typedef struct rs_mpi_note {
  int64_t number;
  MPI_Request request;
} rs_mpi_note;

typedef struct rs_mpi_peer {
  int64_t asks; /* the all-gather that it asks about; 0: none */
  rs_mpi_note question, answer;
} rs_mpi_peer;

/* Ranks that are there, of one communicator. */
typedef struct rs_mpi_roll {
  MPI_Comm mpi;
  int size, rank;
  int64_t number;     /* all-gathers that this rank has come to: the same on all ranks in the same call */
  rs_mpi_peer *peers; /* [size] */
} rs_mpi_roll;

reshard_status rs_mpi_roll_init(rs_mpi_roll *roll, MPI_Comm mpi);
/* Takes the questions and answers that have come too late, and frees. Before MPI_Comm_free, unless a rank gave up. */
void rs_mpi_roll_free(rs_mpi_roll *roll);
/* Answers those that ask. Called by a rank that waits in an all-gather, between two tests. */
void rs_mpi_answer(rs_mpi_roll *roll);
/* Asks, and waits for answers as long as patience_ms; a rank from which a message of tag `gone` is there has come, and
 * given up. When all have come and none has given up, waits finish_ms more for the all-gather. missing: the others,
 * "0-2,5", "" when all have come or nobody can be asked. True when the request of the all-gather was completed. */
bool rs_mpi_find_missing(rs_mpi_roll *roll, MPI_Request *request, int gone, int64_t patience_ms, int64_t finish_ms,
                         char *missing, size_t size);

#endif
