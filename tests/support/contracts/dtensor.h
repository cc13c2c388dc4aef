/* Contract of DTensors: collective over the communicator of s. */
#ifndef TESTS_CONTRACT_DTENSOR_H
#define TESTS_CONTRACT_DTENSOR_H

#include "contract.h"

/* A DTensor from local tensors, redistributed to random placements on two meshes, gathered, and distributed. */
void contract_check_dtensor(contract_rank *s, uint64_t seed);

#endif
