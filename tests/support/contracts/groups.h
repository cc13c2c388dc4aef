/* Contract of models on groups of a mesh: collective over the communicator of s. */
#ifndef TESTS_CONTRACT_GROUPS_H
#define TESTS_CONTRACT_GROUPS_H

#include "contract.h"

/* A model under FSDP and TP with replicas, in one state dict: tensors of the FSDP group, nested ones, and paths that
 * only some ranks or several groups have. The state dict is flattened, gathered, saved, and loaded by other groups and
 * other numbers of ranks; misuse is refused. 4 ranks or more; 6 and 8 check more. */
void contract_check_groups(contract_rank *s, const char *directory);

#endif
