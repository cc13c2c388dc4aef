/* The log of a communicator: RESHARD_LOG=info tells of each transfer as it is made and of each call that fails, trace
 * of every call besides, on standard error or in RESHARD_LOG_FILE, a line at once, each with the host, the
 * process and the rank before it. Nothing of the environment is in a line. */
#ifndef RS_COMM_LOG_H
#define RS_COMM_LOG_H

#include "base/base.h"

#include <reshard/comm.h>

typedef enum rs_log_level { RS_LOG_OFF, RS_LOG_INFO, RS_LOG_TRACE } rs_log_level;

typedef struct rs_log {
  rs_log_level level;
  int fd;        /* owned but for that of standard error */
  char host[64]; /* without its domain */
} rs_log;

/* Reads the environment, and opens the file, in whose name %h is the host, %p the process and %% a %. */
reshard_status rs_log_open(rs_log *log);
void rs_log_close(rs_log *log);

/* Writes lines, each behind the prefix of comm's rank. What cannot be written is left out. */
void rs_log_lines(const rs_log *log, reshard_comm comm, const char *text);

/* The log of a communicator; NULL: it is off. */
const rs_log *rs_comm_log(reshard_comm comm);

#endif
