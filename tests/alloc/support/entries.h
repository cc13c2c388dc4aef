/* Random cases for the allocation tests. */
#ifndef TESTS_ENTRIES_H
#define TESTS_ENTRIES_H

#include "bench/verify/cases.h"

/* The case of a seed, or an end of the program. ranks 0: as the seed has it. */
void entries_make(uint64_t seed, int64_t ranks, case_plan *c);

#endif
