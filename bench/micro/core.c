/* The pace of a core: multiplications and additions, each of which needs the one before. A core runs faster and slower
 * by what its neighbours do, and times of the processor go with it. */
#include "bench/micro/micro.h"

#include <stdlib.h>

enum { STEPS = 4096 };

static void *chain_make(const micro_case *of, int64_t *items) {
  uint64_t *x = malloc(sizeof *x);
  (void)of;
  *items = STEPS;
  if (x != NULL)
    *x = 1;
  return x;
}

static int chain_run(void *state) {
  uint64_t *x = state, value = *x;
  for (int i = 0; i < STEPS; i++) {
    value = value * 6364136223846793005u + 1442695040888963407u;
    __asm__ volatile("" : "+r"(value)); /* one step after the other, as it is written */
  }
  *x = value;
  return 0;
}

static const micro_case micro_core[] = {
    {"core_chain", 0, 0, chain_make, chain_run, free, {0}, NULL},
};
MICRO_TABLE(micro_core, NULL)
