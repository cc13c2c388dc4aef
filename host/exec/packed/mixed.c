/* The mixed path: ranks of several nodes, in one execute. Sources of ranks on this node are read, strided source to
 * strided destination; the others send messages, as on the packed path. Only these make rounds.
 *
 * Bytes that are passed on go by messages from their holders on, those of this node among them: a rank that passes them
 * on knows by rounds when they have come.
 *
 * It is the packed path with more copies among those that stay on the rank. Between processes these need two meetings:
 * no source is read before its rank has come, and none after a rank has returned. The first one is the packed path's,
 * before anything is written; within another call it is held here, unless that binds a cached transfer: ranks have met
 * then, to tell if they could. The second one is of each node alone, so that no rank waits for one that reads nothing
 * of it.
 *
 * A rank reads those sources while the messages of its first round are under way, and begins the second meeting then.
 * So it waits for both at once, and as often, one wait after another, as on the packed path. MPI moves large
 * messages only after that reading: a rank of another node waits for it, so its deadline has to be longer.
 *
 * On GPUs the streams of a node meet, and no host waits. Both meetings are on the stream of the copies that stay on the
 * rank, beside the rounds. The second one comes after those copies, and the user's stream after it. All ranks give a
 * meeting to their GPU before the first round, so that none that waits is ahead of what it waits for. */
#include "exec/packed/packed.h"

/* No GPU has told yet if it is faster there, so it is taken where it is asked for alone. */
static bool mixed_applicable(reshard_comm comm, reshard_path asked) {
  if (rs_comm_opens_nodes(comm))
    return asked == RESHARD_PATH_MIXED;
  return comm->memory.imports != NULL && comm->memory.multi_node;
}

static reshard_status mixed_run(rs_execution *x) {
  reshard_comm comm = x->t[0]->comm;
  if (comm->meets.transfer == 0 && x->t[0]->cached == NULL)
    RS_TRY(rs_descriptors_meet(comm, x->t[0]->key));
  reshard_status status = rs_packed_run(x);
  RS_THEN(status, rs_comm_meet_node(comm, x->t[0]->key));
  if (status == RESHARD_SUCCESS)
    rs_comm_count(comm, x->t[0]->binding.foreign_bytes);
  return status;
}

static reshard_status mixed_run_on_streams(rs_execution *x) {
  RS_TRY(rs_packed_run_on_streams(x));
  rs_comm_count(x->t[0]->comm, x->t[0]->binding.foreign_bytes);
  return RESHARD_SUCCESS;
}

static void mixed_release(reshard_comm comm, rs_binding *binding) {
  rs_mappings *mappings = binding->mappings;
  rs_packed_release(comm, binding);
  rs_mappings_free(mappings);
}

const rs_path_ops rs_mixed_path = {
    .number = RESHARD_PATH_MIXED,
    .no_collective = "the mixed path sends messages to some of the ranks only",
    .reads_others = true,
    .packs = true,
    .applicable = mixed_applicable,
    .bind = rs_packed_bind,
    .prepare = rs_packed_prepare,
    .run = mixed_run,
    .run_on_streams = mixed_run_on_streams,
    .release = mixed_release,
};
