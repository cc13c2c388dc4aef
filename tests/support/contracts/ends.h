/* Contract of handles that are destroyed too early: collective over the communicator of s. */
#ifndef TESTS_CONTRACT_ENDS_H
#define TESTS_CONTRACT_ENDS_H

#include "contract.h"

/* A communicator is destroyed before what is on it: a transfer, a sharder, a mesh, memory. Executes that were made are
 * right; later calls are RESHARD_ERROR_PEER. What is on it is destroyed as ever, in any order. */
void contract_check_ends(contract_rank *s);

#endif
