/* Contract of device meshes and their communicators: collective over the communicator of s. */
#ifndef TESTS_CONTRACT_MESH_H
#define TESTS_CONTRACT_MESH_H

#include "contract.h"

/* Meshes of random shapes and ranks: the sub-communicators of each dim, of pairs in both orders, of all, of parts and
 * of flattened dims; their members and ranks; that they are cached; tensors resharded over them. Returns the number of
 * communicators that were checked. */
int64_t contract_check_meshes(contract_rank *s, uint64_t seed);

#endif
