/* Parts of a communicator: splits, and what is left after a loss. */
#ifndef RS_COMM_SPLIT_H
#define RS_COMM_SPLIT_H

#include "comm/comm.h"

/* Argument of a split, from one rank. */
typedef struct rs_split {
  reshard_status status; /* of what the rank did before; its text, where it is no success, is the last error */
  int64_t color, key;    /* as in reshard_comm_split */
  const char
      *by; /* the basis of the split, in words: compared, unequal ones are RESHARD_ERROR_MISMATCH; NULL: nothing */
} rs_split;

/* The ranks of a part, and this one's place there, as small numbers, whatever was asked for. */
typedef struct rs_split_group {
  int color, key;        /* colors count up from 0 over all ranks; -1: in none */
  int64_t n;             /* ranks of the color; 0: in none */
  int64_t *ranks;        /* [n] in the communicator that they are a part of */
  int64_t *global_ranks; /* [n]; a part that takes them sets NULL */
  int64_t nlost;         /* of a shrink: ranks that are not there, ascending */
  const int64_t *lost;
} rs_split_group;

/* A list of lost ranks that a rank shrinks by, as the others see it. */
typedef struct rs_loss {
  uint64_t hash;
  char text[120]; /* "": there is none */
} rs_loss;

/* The shrink of one rank, and what a transport still has after the end for ranks to see each other's lists. */
typedef struct rs_shrink {
  reshard_comm comm; /* that is shrunk */
  const rs_split_group *group;
  /* Takes a list that rank i of the group publishes now, or has published before; false: it has published none, or no
   * other. */
  bool (*look)(struct rs_shrink *s, int64_t i, rs_loss *loss);
  bool (*gone)(struct rs_shrink *s, int64_t i); /* its process has ended; NULL: it cannot know */
  void (*miss)(struct rs_shrink *s, int64_t i); /* the rank counts as missing from now on */
  /* Between two looks; an error ends the wait. */
  reshard_status (*pause)(struct rs_shrink *s, int64_t since);
  rs_loss mine, *seen; /* [n] of each rank the list that is like this one's, else the last */
  int64_t changed;     /* time: one of them did */
} rs_shrink;

/* Sets the last three; after an error, too, the end frees. */
RS_PRIVATE_API reshard_status rs_shrink_begin(rs_shrink *s);
/* Waits until all ranks of the group have published this rank's list, which it publishes by then. The error where they
 * do not by the deadline, or are gone; also, where there is no deadline, where they stay with another list. */
RS_PRIVATE_API reshard_status rs_shrink_await(rs_shrink *s);
RS_PRIVATE_API void rs_shrink_end(rs_shrink *s);

/* reshard_comm_split. A rank whose status is no success takes part all the same. All ranks succeed, or all have the
 * status and text of the lowest rank that failed, or that wants something else than rank 0. */
reshard_status rs_comm_split(reshard_comm comm, const rs_split *mine, reshard_comm *sub);

#endif
