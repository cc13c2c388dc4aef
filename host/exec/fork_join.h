/* Fork and join of streams: ranks that are threads of one process, each with its own stream, come together for a piece
 * of work. One of them gives the work to a stream for all. Each records and waits on its own stream itself: a handle
 * such as cudaStreamPerThread means its stream in its own thread only. */
#ifndef RS_EXEC_FORK_JOIN_H
#define RS_EXEC_FORK_JOIN_H

#include "comm/comm.h"

typedef struct rs_fork_join {
  reshard_comm comm; /* NULL: there is no other rank, and nothing to do */
  rs_event *came;    /* of the rank's device: its stream has come this far */
  rs_event *done;    /* of the device of the work's stream: the first lane's */
  void *stream;
  reshard_status status; /* of coming; its text is the last error of the rank's thread, which waits */
  const char *text;
  bool behind; /* `done` was recorded: the rank's stream has to wait for it */
} rs_fork_join;

/* Events for one rank; none where it is alone in its process or its device has no streams. */
reshard_status rs_fork_join_create(reshard_comm comm, rs_fork_join *fork_join);
void rs_fork_join_destroy(rs_fork_join *fork_join);

/* Records that the rank's stream has come; by the rank's thread, before the ranks meet, which hear of an error. */
void rs_fork_join_record(rs_fork_join *fork_join);
static inline void rs_fork_join_come(rs_fork_join *fork_join, void *stream) {
  fork_join->stream = stream;
  if (fork_join->comm != NULL)
    rs_fork_join_record(fork_join);
}
/* Lets `work` wait for the rank's stream, or returns the error of its coming; by the one thread that acts for all. */
reshard_status rs_fork_join_open(rs_fork_join *fork_join, void *work);
/* Frees the rank after all that `work` was given; by the same thread, also where the work has failed half-way. */
reshard_status rs_fork_join_close(rs_fork_join *fork_join, void *work);
/* Lets the rank's stream wait for the work; by the rank's thread, after the meeting, which had this status. */
reshard_status rs_fork_join_wait(rs_fork_join *fork_join, reshard_status status);
static inline reshard_status rs_fork_join_leave(rs_fork_join *fork_join, reshard_status status) {
  return fork_join->behind ? rs_fork_join_wait(fork_join, status) : status;
}

#endif
