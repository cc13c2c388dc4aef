/* Groups of a communicator that is split, for ranks that do not reach each other's memory. */
#ifndef RS_COMM_SPLIT_GROUP_H
#define RS_COMM_SPLIT_GROUP_H

#include "comm/comm.h"

/* Group of this rank: its color and its place in it as small numbers, whatever was asked for. */
typedef struct rs_split_group {
  int color, key;        /* colors count up from 0 over all ranks; -1: in none */
  int64_t n;             /* ranks of the color; 0: in none */
  int64_t *global_ranks; /* [n]; owned by the caller */
} rs_split_group;

/* Request of one rank; sorted by color, then key, then rank, those of a color lie together. */
typedef struct rs_split_request {
  int64_t color, key, rank;
} rs_split_request;
void rs_split_requests_sort(int64_t n, rs_split_request *requests);

/* Collective: every rank tells what it wants (rs_comm_ops.split), and finds its group. All succeed, or all have the
 * status and text of the lowest rank that failed, or that wants something else than rank 0. */
RS_PRIVATE_API reshard_status rs_split_group_find(reshard_comm comm, const rs_split *mine, rs_split_group *group);
/* Collective: success when every rank brings success, else the first failing rank's status and text on all. */
RS_PRIVATE_API reshard_status rs_split_agree(reshard_comm comm, reshard_status mine);

#endif
