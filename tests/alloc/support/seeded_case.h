/* Random cases for the allocation tests. */
#ifndef TESTS_SEEDED_CASE_H
#define TESTS_SEEDED_CASE_H

#include "bench/verify/case_run.h"

/* Makes the case of a seed, which may convert, also to blocks with scales; exits when that fails. ranks 0: as the seed
 * has it. */
void seeded_case_make(uint64_t seed, int64_t ranks, case_plan *c);

#endif
