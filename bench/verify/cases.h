/* Random cases: making one, running one, running many. */
#ifndef BENCH_CASES_H
#define BENCH_CASES_H

#include "bench/verify/case_many.h"

#endif
