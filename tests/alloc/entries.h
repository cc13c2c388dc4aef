/* Random cases as entries of a plan. */
#ifndef TESTS_ENTRIES_H
#define TESTS_ENTRIES_H

#include "cases.h"

/* Entries of a case, to be freed; they point into it. */
reshard_entry *entries_of(const case_plan *c);

/* The case of a seed, or an end of the program. ranks 0: as the seed has it. */
void entries_make(uint64_t seed, int64_t ranks, case_plan *c);

#endif
