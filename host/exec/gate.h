/* A gate lets ranks that are threads of one process, each with its own stream, come together for one piece of work. One
 * of them gives the work to a stream for all. Each records and waits on its own stream itself: a handle such as
 * cudaStreamPerThread means its stream in its own thread only. */
#ifndef RS_EXEC_GATE_H
#define RS_EXEC_GATE_H

#include "comm/comm.h"

typedef struct rs_gate {
  reshard_comm comm; /* NULL: there is no other rank, and nothing to do */
  rs_event *came;    /* of the rank's device: its stream has come this far */
  rs_event *done;    /* of the device of the work's stream: the first lane's */
  void *stream;
  reshard_status status; /* of coming; its text is the last error of the rank's thread, which waits */
  const char *text;
  bool behind; /* `done` was recorded: the rank's stream has to wait for it */
} rs_gate;

/* Events for one rank; none where it is alone in its process or its device has no streams. */
reshard_status rs_gate_create(reshard_comm comm, rs_gate *gate);
void rs_gate_destroy(rs_gate *gate);

/* Records that the rank's stream has come; by the rank's thread, before the ranks meet, which hear of an error. */
void rs_gate_record(rs_gate *gate);
static inline void rs_gate_come(rs_gate *gate, void *stream) {
  gate->stream = stream;
  if (gate->comm != NULL)
    rs_gate_record(gate);
}
/* Lets `work` wait for the rank's stream, or returns the error of its coming; by the one thread that acts for all. */
reshard_status rs_gate_open(rs_gate *gate, void *work);
/* Frees the rank after all that `work` was given; by the same thread, also where the work has failed half-way. */
reshard_status rs_gate_close(rs_gate *gate, void *work);
/* Lets the rank's stream wait for the work; by the rank's thread, after the meeting, which had this status. */
reshard_status rs_gate_wait(rs_gate *gate, reshard_status status);
static inline reshard_status rs_gate_leave(rs_gate *gate, reshard_status status) {
  return gate->behind ? rs_gate_wait(gate, status) : status;
}

#endif
