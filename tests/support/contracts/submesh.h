/* Contract of DTensors on sub-meshes: collective over the communicator of s. */
#ifndef TESTS_CONTRACT_SUBMESH_H
#define TESTS_CONTRACT_SUBMESH_H

#include "contract.h"

/* DTensors on the sub-meshes of the mesh's dims, each by its group alone, whose calls differ from those of others. */
void contract_check_submeshes(contract_rank *s, reshard_mesh mesh, uint64_t seed);

#endif
