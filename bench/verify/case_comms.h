/* Communicators that cases share: making one costs more than running a small case. */
#ifndef BENCH_CASE_COMMS_H
#define BENCH_CASE_COMMS_H

#include "bench/cli/util.h"

typedef struct case_comms case_comms;

/* devices: of the ranks, in turn; none: a CPU. */
case_comms *case_comms_create(const reshard_device *devices, int64_t ndevices);
void case_comms_free(case_comms *comms);
/* The n handles of a communicator with these options, kept from an earlier case where there is one; NULL, with why,
 * when it cannot be made. */
reshard_comm *case_comms_get(case_comms *comms, int64_t n, int threads, reshard_isa isa, rs_text *why);
/* Destroys one that a failed case may have left in any state. */
void case_comms_drop(case_comms *comms, reshard_comm *handles);

#endif
