/* Contract of FSDP with TP: collective over the communicator of s. */
#ifndef TESTS_CONTRACT_FSDP_H
#define TESTS_CONTRACT_FSDP_H

#include "contract.h"

/* Chunks over a mesh (fsdp, tp), all-gathered; nested ones, flattened; flat records. 4 ranks or more. */
void contract_check_fsdp(contract_rank *s, uint64_t seed);

#endif
