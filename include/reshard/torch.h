/* The objects that users of PyTorch know, by their names there. Each call names its source in PyTorch.
 *
 *     tensor, tree, move       tensors over storage; nested containers of them (pytrees); cast and moved to a device
 *     metadata, sharded        ShardMetadata and ShardedTensor
 *     mesh, dtensor            DeviceMesh and DTensor
 *     state_dict, fsdp         checkpoints of state dicts; FSDP with tensor parallelism
 *     module, sync             module trees; one rank's tensors copied to all ranks
 *
 * The headers include what they need of the core path (<reshard/reshard.h>). */
#ifndef RESHARD_TORCH_H
#define RESHARD_TORCH_H

#include <reshard/dtensor.h>
#include <reshard/fsdp.h>
#include <reshard/mesh.h>
#include <reshard/metadata.h>
#include <reshard/module.h>
#include <reshard/move.h>
#include <reshard/sharded.h>
#include <reshard/state_dict.h>
#include <reshard/sync.h>
#include <reshard/tensor.h>
#include <reshard/tree.h>

#endif
