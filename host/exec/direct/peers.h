/* Memory of other processes' GPUs that a rank has opened by descriptors, and those of its own that it has passed on.
 *
 * A descriptor is passed to a rank once, when that first reads the memory. The rank keeps the memory open for all
 * bindings of the communicator. Memory that its owner has freed, of which each string of sources tells, is closed. */
#ifndef RS_EXEC_DIRECT_PEERS_H
#define RS_EXEC_DIRECT_PEERS_H

#include "comm/comm.h"
#include "device/cpu/segment.h"
#include "exec/descriptor.h"
#include "plan/plan.h"

/* The memory of a rank, which tells of it in its string of sources. */
typedef struct rs_peer_list {
  const char *memory; /* [n] rs_exported_memory, at a stride, not aligned */
  int64_t n, stride;
  const char *live; /* [nlive] numbers of what this rank has passed on and not freed, not aligned */
  int64_t nlive;
  int64_t nflags; /* first ones of the memory that all peers open, also those that read no sources */
} rs_peer_list;

/* Local: makes room for passing on up to so many descriptors to each rank, so that passing needs no memory. Gives the
 * caller the numbers of memory that this rank has passed on to any rank, and that is there still. */
reshard_status rs_peers_prepare(reshard_comm comm, int64_t most, uint64_t **live, int64_t *nlive);
/* Lists by rank, [comm->size], which the caller fills before it calls rs_peers_hear or rs_peers_pass. */
rs_peer_list *rs_peers_lists(reshard_comm comm);
/* Local: this rank has freed memory that it had passed on, and others have not heard of it (rs_peers_hear). */
bool rs_peers_have_freed(reshard_comm comm);
/* Local: closes what others have freed, by what is `live` in all ranks' lists. All have this rank's list, too. */
void rs_peers_hear(reshard_comm comm);
/* Hears, and passes descriptors on between partners, which all call it. Descriptors of this rank's list go to those
 * that read it and lack them; theirs come. A rank that fails goes on with the others. */
reshard_status rs_peers_pass(reshard_comm comm, rs_partners partners);
/* Local: tells whether all ranks have succeeded. If not, what was passed on in the last call is passed on again: what
 * has come in it is closed, which nothing uses any more. */
void rs_peers_settle(reshard_comm comm, bool success);
/* Memory of a rank, which was opened when its descriptor came, and is closed as often. */
reshard_status rs_peers_open(reshard_comm comm, int64_t rank, const rs_exported_memory *memory, void **at);
void rs_peers_close(reshard_comm comm, int64_t rank, uint64_t number);
/* Some rank has freed memory that a binding still has open here, as far as this one has heard. */
bool rs_peers_have_gone(reshard_comm comm);
/* Memory of a rank, which is open, was freed by it. */
bool rs_peers_is_gone(reshard_comm comm, int64_t rank, uint64_t number);

/* --- Strings in which a rank tells other processes of its sources (remote_sources.c) ------------------------------ */

/* The string of this rank's sources, which were described, none of them as private. The caller frees it. flags: of its
 * part of a meeting; NULL: there is none. */
reshard_status rs_remote_sources_write(reshard_comm comm, const struct reshard_plan_s *plan, const rs_arrays *arrays,
                                       const rs_sources *sources, const rs_shared_flags *flags, char **bytes,
                                       int64_t *size);
/* Lists the memory of GPUs in a string, which it points into; false: it is too short for a string. */
bool rs_remote_sources_list(const char *bytes, int64_t size, rs_peer_list *list);
/* Maps what `rank` tells of, and lists its arrays at their addresses here. The caller frees *descriptor, which may be
 * there also after an error; mappings have to outlive it. */
reshard_status rs_remote_sources_read(const struct reshard_plan_s *plan, int64_t rank, const char *bytes, int64_t size,
                                      rs_mappings *mappings, const rs_descriptor **descriptor);
void rs_remote_sources_free(const rs_descriptor *descriptor); /* NULL is allowed */
/* Maps the flags in a string that is long enough, at *flags. */
reshard_status rs_remote_flags_open(int64_t rank, const char *bytes, rs_mappings *mappings, void **flags);

reshard_status rs_mappings_create(reshard_comm comm, rs_mappings **mappings);

#endif
