/* Contract of repeated calls: collective over the communicator of s. */
#ifndef TESTS_CONTRACT_STEADY_H
#define TESTS_CONTRACT_STEADY_H

#include "contract.h"

/* Every rank's part in a call follows from what all know: sharders of unequal options; local calls of one rank in
 * between; cached pairs in turn, with fewer plans kept than there are. On the CPU, where ranks meet in each call: no
 * memory on one rank for a repeated call. */
void contract_check_steady(contract_rank *s);

#endif
