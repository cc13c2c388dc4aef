/* Random numbers that are the same on every machine: xoshiro256** seeded by splitmix64 (Blackman and Vigna, public
 * domain). */
#ifndef BENCH_RANDOM_H
#define BENCH_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct rng {
  uint64_t s[4];
} rng;

static inline uint64_t rng_mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

static inline void rng_seed(rng *r, uint64_t seed) {
  for (int i = 0; i < 4; i++)
    r->s[i] = rng_mix(seed += 0x9e3779b97f4a7c15u);
}

static inline uint64_t rng_next(rng *r) {
  uint64_t *s = r->s, x = s[1] * 5, result = ((x << 7) | (x >> 57)) * 9, t = s[1] << 17;
  s[2] ^= s[0];
  s[3] ^= s[1];
  s[1] ^= s[2];
  s[0] ^= s[3];
  s[2] ^= t;
  s[3] = (s[3] << 45) | (s[3] >> 19);
  return result;
}

/* Uniform in [0, n), n >= 1; the bias of the modulus does not matter here. */
static inline int64_t rng_below(rng *r, int64_t n) { return (int64_t)(rng_next(r) % (uint64_t)n); }
/* Uniform in [lo, hi]. */
static inline int64_t rng_in(rng *r, int64_t lo, int64_t hi) { return lo + rng_below(r, hi - lo + 1); }
static inline bool rng_one_in(rng *r, int64_t n) { return rng_below(r, n) == 0; }
/* In [1, n], every order of magnitude as often as any other. */
static inline int64_t rng_log(rng *r, int64_t n) {
  int bits = 64 - __builtin_clzll((uint64_t)n);
  uint64_t hi = (uint64_t)1 << rng_in(r, 1, bits); /* 2^63 at most */
  int64_t x = rng_in(r, (int64_t)(hi / 2), (int64_t)(hi - 1));
  return x < 1 ? 1 : x > n ? rng_in(r, 1, n) : x;
}

typedef struct rng_shapes {
  int n, ndim[24];           /* numbers of dims, each as likely */
  int64_t large, log, empty; /* one extent in `large` is of any size, of the rest one in `log` of any magnitude */
} rng_shapes;
/* Draws extents whose product is at most `most`, or 0 once in `empty`. Returns the number of dims. */
static inline int rng_shape(rng *r, const rng_shapes *odds, int64_t most, int64_t *shape) {
  int ndim = odds->ndim[rng_below(r, odds->n)];
  for (int d = 0; d < ndim; d++)
    shape[d] = 1;
  for (int tries = 0; tries < ndim; tries++) {
    int d = (int)rng_below(r, ndim);
    if (shape[d] != 1)
      continue;
    shape[d] = rng_one_in(r, odds->large) ? rng_in(r, 1, most)
               : rng_one_in(r, odds->log) ? rng_log(r, most)
                                          : rng_in(r, 1, most < 12 ? most : 12);
    most /= shape[d];
  }
  if (ndim > 0 && rng_one_in(r, odds->empty))
    shape[rng_below(r, ndim)] = 0;
  return ndim;
}

#endif
