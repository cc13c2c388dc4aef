/* Byte strings of any length from every rank to every rank: host data that does not fit a record of the all-gather. */
#ifndef RS_COMM_GATHER_H
#define RS_COMM_GATHER_H

#include "comm/comm.h"

/* A rank's part in a step in which all have the error of the lowest rank that failed. */
typedef struct rs_brought {
  int64_t status, numbers[3];
  char text[RS_COMM_RECORD - 4 * sizeof(int64_t)]; /* words; of a status that is no success, the last error */
} rs_brought;

/* Collective: every rank brings its status, and what it has set in `mine`. *all holds until the next collective call of
 * the rank. */
reshard_status rs_comm_bring(reshard_comm comm, reshard_status status, rs_brought *mine, const rs_brought **all);
/* The same of the status alone. */
RS_PRIVATE_API reshard_status rs_comm_agree(reshard_comm comm, reshard_status status);

/* One byte string per rank of a communicator, in rank order, end to end. Immutable; the ranks of a process share it. */
typedef struct rs_strings {
  atomic_llong users;
  int64_t n; /* ranks */
  char *bytes;
  int64_t first[]; /* [n + 1]: the string of rank r is bytes[first[r]] up to bytes[first[r + 1]] */
} rs_strings;

/* Collective: every rank gives `size` bytes, every rank gets all. status: a rank whose own step failed (its text is the
 * last error) gives that in place of bytes. All ranks succeed, or all have the status and text of the lowest rank that
 * failed, there or here for lack of memory. *all is released by each rank. */
reshard_status rs_comm_gather_bytes(reshard_comm comm, reshard_status status, const void *mine, int64_t size,
                                    rs_strings **all);
/* Strings of n ranks, to be filled: size(user, r) bytes of rank r. One user. Not collective, as the release. */
reshard_status rs_strings_create(int64_t n, int64_t (*size)(const void *user, int64_t rank), const void *user,
                                 rs_strings **out);
/* NULL is allowed. */
void rs_strings_release(rs_strings *strings);

#endif
