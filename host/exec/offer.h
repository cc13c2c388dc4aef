/* A rank's arrays, shown to the others while all bind on the direct path. Ranks of one process show the lists that they
 * have. Ranks that are processes tell in which segments of their memory files their sources lie (device/cpu/segment.h).
 */
#ifndef RS_EXEC_OFFER_H
#define RS_EXEC_OFFER_H

#include "comm/comm.h"
#include "exec/arrays.h"

/* Read by the other ranks until the path's bind returns. */
typedef struct rs_offer {
  int64_t rank;
  const struct reshard_plan_s *plan; /* of any rank: entries and layouts are the same */
  const rs_arrays *arrays;           /* at addresses of this process */
  const int64_t *first;              /* of the entries' source buffers in them; NULL: as the plan says */
} rs_offer;

void rs_offer_view(const rs_offer *offer, int64_t entry, bool source, int64_t array, rs_view *view);

/* Segments of other processes that the arrays of one binding lie in. */
typedef struct rs_mappings rs_mappings;
/* NULL is allowed. */
void rs_mappings_free(rs_mappings *mappings);

/* Finds the first entry with a source that other processes cannot map; -1: none has. */
reshard_status rs_sources_find_private(const struct reshard_plan_s *plan, const rs_arrays *arrays, int64_t *entry);

/* Offers of ranks that are processes. */
typedef struct rs_offers {
  rs_mappings *mappings; /* the caller takes them, and frees them when nothing reads the arrays any more */
  int64_t n;
  const rs_offer **offer; /* [n] by rank; NULL: nothing comes from that rank */
} rs_offers;
/* Collective. Tells the others where this rank's sources are, none of which is private, and maps those of the ranks
 * that send to it. All ranks succeed, or all get the same error. The communicator has the others' memory files. */
reshard_status rs_offers_exchange(reshard_comm comm, const struct reshard_plan_s *plan, const rs_arrays *arrays,
                                  rs_offers **offers);
void rs_offers_free(rs_offers *offers); /* but for the mappings; NULL is allowed */

/* Collective: returns when all ranks have come with this transfer. RESHARD_ERROR_MISMATCH where they have come with
 * others. */
reshard_status rs_offers_meet(reshard_comm comm, uint64_t key);

#endif
