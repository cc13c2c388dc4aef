/* Ranks that wait tell each other for whom, so that the one that is lost is known. */
#ifndef RS_COMM_MPI_PROBE_H
#define RS_COMM_MPI_PROBE_H

#include "comm/mpi/mpi.h"

/* Takes what a rank has told, in c->received; the link's mutex is held. */
void rs_mpi_take_answer(rs_mpi *c, int64_t rank);
/* In a wait since then for the ranks that c->missing marks: answers a failure probe, and begins one when half of the
 * deadline has passed, or all but PROBE_MS of it. */
void rs_mpi_probe_failures(rs_mpi *c, int64_t since);
/* At the deadline: c->missing marks those of them that do not answer; if all do, those that some rank waits for and
 * that do not. c->missing stays as it was if there are none. False, with c->missing as it was: a lower rank waits too,
 * and is about to tell all others. */
bool rs_mpi_find_lost(rs_mpi *c, int64_t since);

#endif
