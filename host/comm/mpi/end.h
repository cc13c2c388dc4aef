/* Calls of an MPI communicator, their waits, and its end. */
#ifndef RS_COMM_MPI_END_H
#define RS_COMM_MPI_END_H

#include "comm/mpi/mpi.h"

/* A call begins, if the communicator has not ended; and ends. */
reshard_status rs_mpi_begin(rs_mpi *c);
/* Around MPI of a local call, also after the end: a thread that tells an end goes before it, or after. */
void rs_mpi_enter(rs_mpi *c);
void rs_mpi_leave(rs_mpi *c);
/* The same, of a call that no rank leaves before this one has sent its record. An error, too, where memory of another
 * rank that this one has read before may have changed since. */
reshard_status rs_mpi_begin_records(rs_mpi *c);
/* That error, within a call. */
reshard_status rs_mpi_check_left(rs_mpi *c);
reshard_status rs_mpi_end(rs_mpi *c, reshard_status status);
/* Lets others run between two tests, since when there is something to wait for. */
void rs_mpi_sleep(int64_t since);
/* The same, when the communicator goes on. An error when it has ended: its reason. */
reshard_status rs_mpi_pause(rs_mpi *c, int64_t since);
/* Takes what other ranks tell on the communicator's tag. */
void rs_mpi_hear(rs_mpi *c);
/* Tells the others why the communicator has ended. out: this rank has no message under way. */
void rs_mpi_tell(rs_mpi *c, bool out);
/* Tells what other threads have ended while this one was inside. No message of these is under way: this thread is not
 * in a call on them, or tells it itself. Each wait inside calls it. */
void rs_mpi_send_unsent(rs_mpi_link *link);
/* An error of MPI's, in a step, because of the ranks that c->missing marks. */
reshard_status rs_mpi_error(rs_mpi *c, int code, const char *step);
/* The communicator ends with this rank's last error, and without the ranks that c->missing marks; clears the marks. */
reshard_status rs_mpi_give_up(rs_mpi *c, reshard_status status);
/* A step waits, since then, for the ranks that c->missing marks; clears the marks. When the deadline has passed, the
 * communicator ends, without those of them that are lost, or for which they wait. */
reshard_status rs_mpi_await(rs_mpi *c, int64_t since, const char *step);
/* Puts a communicator into the tree, below the one that it is split from. */
void rs_mpi_adopt(rs_mpi *parent, rs_mpi *child);
/* The communicator ends, with all that was split from it, or because a part of it is made. */
void rs_mpi_abort(rs_mpi *c, bool shrinks);
int64_t rs_mpi_absent(reshard_comm comm, int64_t *ranks);
/* One more rank is missing from a communicator that has ended. */
void rs_mpi_miss(rs_mpi *c, int64_t rank);

/* --- Ranks that wait tell each other for whom, so that the one that is lost is known (probe.c) ------------------ */

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
