/* reshard: moves a distributed tensor, or a whole model, from one layout over its ranks to another.
 *
 *     layout (what)  ->  plan (how)  ->  transfer (where)  ->  execute (do)
 *
 * All calls may be used from several threads at once on different objects; layouts and plans are immutable and may be
 * shared. There is no global state. */
#ifndef RESHARD_RESHARD_H
#define RESHARD_RESHARD_H

#include <reshard/status.h>
#include <reshard/dtype.h>
#include <reshard/layout.h>
#include <reshard/plan.h>
#include <reshard/comm.h>
#include <reshard/transfer.h>
#include <reshard/file.h>
#include <reshard/tensor.h>
#include <reshard/tree.h>
#include <reshard/move.h>
#include <reshard/metadata.h>
#include <reshard/mesh.h>
#include <reshard/sharded.h>
#include <reshard/dtensor.h>
#include <reshard/state_dict.h>
#include <reshard/fsdp.h>
#include <reshard/module.h>
#include <reshard/sync.h>

#endif
