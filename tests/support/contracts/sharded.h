/* Contract of sharded tensors: collective over the communicator of s. */
#ifndef TESTS_CONTRACT_SHARDED_H
#define TESTS_CONTRACT_SHARDED_H

#include "contract.h"

/* Misuse by one rank and by all: every rank gets the same error. */
void contract_check_refusals(contract_rank *s);
/* Sharded tensors: metadata merged; tensors created, gathered, scattered; chunks to chunks; indices selected. */
void contract_check_sharded(contract_rank *s, uint64_t seed);

#endif
