/* Contract of ends: handles that are destroyed too early, waits that the caller ends, aborts and lost ranks. Collective
 * over the communicator of s. */
#ifndef TESTS_CONTRACT_ENDS_H
#define TESTS_CONTRACT_ENDS_H

#include "contract.h"

/* A communicator is destroyed before what is on it: a transfer, a sharder, a mesh, memory. Executes that were made are
 * right; later calls are RESHARD_ERROR_PEER. What is on it is destroyed as ever, in any order. */
void contract_check_ends(contract_rank *s);

/* A function that is called in waits ends one of the last rank: that call alone is RESHARD_ERROR_CANCELLED, those of
 * the others are RESHARD_ERROR_PEER. A function that goes on changes nothing. told: ranks hear of an abort of another;
 * else each ends its own wait. */
void contract_check_poll(contract_rank *s, bool told);

/* Parts have their ranks in the order of the keys, and outlive the whole. An abort of it ends them, and that of a part
 * nothing else. A deadline names the ranks that have not come, on all ranks. The ranks that are there go on without one
 * that is lost, and in parts of what they have made. */
void contract_check_losses(contract_rank *s, bool told);

#endif
