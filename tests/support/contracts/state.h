/* Contract of state dicts: collective over the communicator of s. */
#ifndef TESTS_CONTRACT_STATE_H
#define TESTS_CONTRACT_STATE_H

#include "contract.h"

/* A state dict of sharded, distributed and plain tensors and of numbers: saved by all ranks to a directory, and loaded
 * into other layouts. Checks the status of each step on all ranks. */
void contract_check_state(contract_rank *s, uint64_t seed, const char *directory);

#endif
