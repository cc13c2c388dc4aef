/* reshard: moves a distributed tensor, or a whole model, from one layout over its ranks to another.
 *
 *     layout (what)  ->  plan (how)  ->  transfer (where)  ->  execute (do)
 *
 * The core path is in this header. <reshard/torch.h> adds the objects of PyTorch: tensors, meshes, sharded and
 * distributed tensors, state dicts, FSDP, modules. <reshard/file.h> adds checkpoints and their conversion.
 *
 * All calls may be used from several threads at once on different objects. Layouts and plans are immutable and may be
 * shared. The library has no global state. */
#ifndef RESHARD_RESHARD_H
#define RESHARD_RESHARD_H

#include <reshard/comm.h>
#include <reshard/device.h>
#include <reshard/dtype.h>
#include <reshard/layout.h>
#include <reshard/plan.h>
#include <reshard/status.h>
#include <reshard/transfer.h>

#endif
