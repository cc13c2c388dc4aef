/* Who goes where when a communicator is split, for ranks that do not reach each other's memory. */
#ifndef RS_COMM_SEAT_H
#define RS_COMM_SEAT_H

#include "comm/comm.h"

/* Where this rank goes: its color and its place in it as small numbers, whatever was asked for. */
typedef struct rs_seat {
  int color, key;        /* colors count up from 0 over all ranks; -1: in none */
  int64_t n;             /* ranks of the color; 0: in none */
  int64_t *global_ranks; /* [n]; owned by who asked */
} rs_seat;

/* What a rank asks for, and who it is; sorted by color, then key, then rank, those of a color lie together. */
typedef struct rs_asked {
  int64_t color, key, rank;
} rs_asked;
void rs_asked_sort(int64_t n, rs_asked *asked);

/* Collective: every rank tells what it wants (rs_comm_ops.split), and finds its seat. All succeed, or all have the
 * status and text of the lowest rank that failed, or that wants something else than rank 0. */
reshard_status rs_seat_find(reshard_comm comm, const rs_split *mine, rs_seat *seat);
/* Collective: success when every rank brings success, else the first failing rank's status and text on all. */
reshard_status rs_seat_agree(reshard_comm comm, reshard_status mine);

#endif
