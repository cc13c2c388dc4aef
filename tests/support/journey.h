/* A journey: sharded tensors from random layouts through random layouts, several at once, against the oracle, which
 * shares no code with layouts and plans. */
#ifndef TESTS_JOURNEY_H
#define TESTS_JOURNEY_H

#include "cases.h"
#include "support/site.h"

enum { JOURNEY_TENSORS = 3, JOURNEY_STEPS = 4 };

/* What a tensor is at one step of its way. */
typedef struct journey_stop {
  oracle_layout what;
  oracle_held held;
  reshard_layout layout;
  char *text;
} journey_stop;

typedef struct journey {
  uint64_t seed;
  int64_t n;     /* tensors */
  bool in_place; /* else into new ones */
  bool strided;  /* the first step's arrays are the test's own */
  reshard_properties properties[JOURNEY_TENSORS];
  journey_stop stops[JOURNEY_TENSORS][JOURNEY_STEPS];
} journey;

/* The same on all ranks that have the same random numbers. */
void journey_plan(rng *r, uint64_t seed, int64_t world, journey *j);
void journey_free(journey *j);
/* Collective over the site's communicator, whose size is the world. Ends early where a call fails: on all ranks. */
reshard_status journey_walk(site *s, const journey *j);
/* The tensors at the first stop, stamped. What there is of them after an error is the caller's. */
reshard_status journey_begin(site *s, const journey *j, reshard_sharded_tensor *tensors);
/* Stamps what a rank has of a tensor at a stop, or checks it; the last: the arrays may be strided. */
void journey_stamp(site *s, const journey *j, int64_t tensor, int step, reshard_sharded_tensor t);
void journey_check(site *s, const journey *j, int64_t tensor, int step, reshard_sharded_tensor t, bool strided);
/* All three: a journey of a seed. */
void journey_make(site *s, uint64_t seed);

#endif
