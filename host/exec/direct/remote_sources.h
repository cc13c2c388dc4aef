/* Strings in which a rank tells other processes of its sources. */
#ifndef RS_EXEC_DIRECT_REMOTE_SOURCES_H
#define RS_EXEC_DIRECT_REMOTE_SOURCES_H

#include "device/cpu/segment.h"
#include "exec/direct/peers.h"
#include "exec/offer.h"

/* The string of this rank's sources, which were described, none of them as private. The caller frees it. flags: of its
 * part of a meeting; NULL: there is none. */
reshard_status rs_remote_sources_write(reshard_comm comm, const struct reshard_plan_s *plan, const rs_arrays *arrays,
                                       const rs_sources *sources, const rs_shared_flags *flags, char **bytes,
                                       int64_t *size);
/* Lists the memory of GPUs in a string, which it points into; false: it is too short for a string. */
bool rs_remote_sources_list(const char *bytes, int64_t size, rs_peer_list *list);
/* Maps what `rank` tells of, and lists its arrays at their addresses here. The caller frees *offer, which may be there
 * also after an error; mappings have to outlive it. */
reshard_status rs_remote_sources_read(const struct reshard_plan_s *plan, int64_t rank, const char *bytes, int64_t size,
                                      rs_mappings *mappings, const rs_offer **offer);
void rs_remote_sources_free(const rs_offer *offer); /* NULL is allowed */
/* Maps the flags in a string that is long enough, at *flags. */
reshard_status rs_remote_flags_open(int64_t rank, const char *bytes, rs_mappings *mappings, void **flags);

reshard_status rs_mappings_create(reshard_comm comm, rs_mappings **mappings);

#endif
