/* Random numbers for tests of kernels, and how many cases: RESHARD_TEST_SCALE scales them. */
#ifndef SIMT_DRAW_H
#define SIMT_DRAW_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

static uint64_t draw_state; /* the seed */
static inline uint64_t draw(void) {
  uint64_t z = draw_state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}
static inline int64_t between(int64_t a, int64_t b) { return a + (int64_t)(draw() % (uint64_t)(b - a + 1)); }
static inline bool chance(int64_t one_in) { return between(1, one_in) == 1; }

/* n times RESHARD_TEST_SCALE, 1 where it is not set; at least `least`. */
static inline int64_t scaled(int64_t n, int64_t least) {
  const char *scale = getenv("RESHARD_TEST_SCALE");
  int64_t cases = scale == NULL ? n : (int64_t)((double)n * atof(scale));
  return cases < least ? least : cases;
}

#endif
