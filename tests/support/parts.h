/* Sharded tensors over ranks that are threads: a communicator with its sharders, arrays filled by what every element of
 * a global tensor is, and checks of them element by element. Nothing here fails a test from a rank's thread: what went
 * wrong is noted, and found by parts_assert. */
#ifndef TESTS_PARTS_H
#define TESTS_PARTS_H

#include "support/crew.h"

#include <reshard/reshard.h>
#include <reshard/sharded.h>

#include <stdbool.h>

enum { PARTS_MOST = 16 };

typedef struct parts {
  int64_t n;
  reshard_comm comms[PARTS_MOST];
  reshard_sharder sharders[PARTS_MOST];
  crew_result results[PARTS_MOST]; /* of each rank's last call */
  int64_t wrong[PARTS_MOST];       /* elements that were not what they should be */
  void *user;                      /* of the body that runs */
} parts;

/* options NULL: none. A deadline of a minute, so that nobody waits for ever. */
void parts_open(parts *p, int64_t n, const reshard_sharder_options *options);
void parts_close(parts *p);
void parts_run(parts *p, void (*body)(void *parts, int64_t rank), void *user);

/* The ranks' last calls: this status; where it is an error all have the same text, with `part` in it (NULL: any). No
 * element was wrong. */
void parts_assert(const parts *p, reshard_status status, const char *part);

reshard_layout parts_layout(const char *text, int ndim, const int64_t *shape, int64_t world);

/* The i-th array of a rank in a layout: its elements of a tensor of a seed. Returns how many are others. */
void parts_fill(reshard_layout layout, int64_t rank, int64_t i, reshard_tensor array, uint64_t seed);
int64_t parts_check(reshard_layout layout, int64_t rank, int64_t i, reshard_tensor array, uint64_t seed);
/* All arrays of a sharded tensor's rank. */
void parts_fill_all(reshard_sharded_tensor tensor, int64_t rank, uint64_t seed);
int64_t parts_check_all(reshard_sharded_tensor tensor, int64_t rank, uint64_t seed);

/* A tensor whose elements lie apart: every second one, dims in reverse order where `reverse`, in memory that is its own.
 */
reshard_tensor parts_strided(reshard_dtype dtype, int ndim, const int64_t *shape, bool reverse);

#endif
