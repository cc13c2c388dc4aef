#include "seeded_case.h"

void seeded_case_make(uint64_t seed, int64_t ranks, case_plan *c) {
  const case_choices fixed = {.ranks = ranks, .casts = true, .blocks = true};
  rs_text why = {0};
  if (!case_make(seed, &fixed, c, &why))
    cli_exit(EXIT_FAILED, "seed %llu: %s", (unsigned long long)seed, why.at);
}
