/* The direct path between processes for arrays that are other ones in each call.
 *
 * A rank writes where its sources are into a notice, which the others map. The record of the meeting before the copies
 * says where the notice is, and its version: a rank maps and lists anew only what has changed since its last call
 * with the plan. Segments stay mapped as long as an earlier list names them. */
#include "exec/direct/peers.h"

#include <stdlib.h>
#include <string.h>

void rs_notice_free(rs_notice *notice) {
  rs_shared_free(notice->memory);
  *notice = (rs_notice){.memory = NULL};
}

/* A notice with room for so many bytes, with nothing in it where it had less. */
static reshard_status notice_reserve(rs_notice *notice, int64_t bytes) {
  void *memory;
  int64_t inside, room = 4096;
  if (notice->memory != NULL && notice->place.bytes >= bytes)
    return RESHARD_SUCCESS;
  while (room < bytes)
    room *= 2;
  RS_TRY(rs_shared_alloc((size_t)room, &memory));
  rs_shared_free(notice->memory);
  notice->memory = memory;
  notice->version = 0;
  (void)rs_shared_find(memory, (char *)memory + room, &notice->place, &inside);
  return RESHARD_SUCCESS;
}

/* The last list of a rank that sends to this one. */
typedef struct reached {
  uint64_t version; /* 0: none */
  rs_mappings *mappings;
} reached;

struct rs_reach {
  reshard_comm comm;
  const struct reshard_plan_s *plan;
  bool bound; /* arrays are */
  rs_arrays arrays;
  rs_offer own;
  char *shown_sources; /* of these arrays, as it was put up last */
  int64_t shown_bytes;
  uint64_t version;
  reached *ranks;         /* [comm->size] */
  const rs_offer **offer; /* [comm->size]; NULL: nothing comes from that rank */
  bool changed;           /* since a transfer was bound to these arrays and offers */
};

reshard_status rs_reach_create(reshard_comm comm, const struct reshard_plan_s *plan, rs_reach **reach) {
  rs_reach *made;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  made->comm = comm;
  made->plan = plan;
  reshard_status status = rs_alloc_zero(&made->ranks, comm->size, sizeof *made->ranks);
  RS_THEN(status, rs_alloc_zero((void *)&made->offer, comm->size, sizeof *made->offer));
  RS_TRY_OR(status, rs_reach_free(made));
  *reach = made;
  return RESHARD_SUCCESS;
}

void rs_reach_free(rs_reach *reach) {
  if (reach == NULL)
    return;
  for (int64_t r = 0; r < reach->comm->size; r++) {
    if (reach->offer != NULL && r != reach->comm->rank)
      rs_remote_sources_free(reach->offer[r]);
    if (reach->ranks != NULL)
      rs_mappings_free(reach->ranks[r].mappings);
  }
  rs_arrays_free(&reach->arrays);
  free(reach->shown_sources);
  free(reach->offer);
  free(reach->ranks);
  free(reach);
}

/* --- Before the meeting ------------------------------------------------------------------------------------------- */

static reshard_status bind_arrays(rs_reach *reach, const reshard_arrays *given) {
  rs_arrays arrays;
  if (reach->bound && rs_arrays_same(reach->plan, &reach->arrays, given))
    return RESHARD_SUCCESS;
  RS_TRY(rs_arrays_bind(reach->plan, given, &arrays));
  rs_arrays_free(&reach->arrays);
  reach->arrays = arrays;
  reach->own = (rs_offer){reach->comm->rank, reach->plan, &reach->arrays, NULL};
  reach->offer[reach->comm->rank] = &reach->own;
  reach->bound = true;
  reach->changed = true;
  return RESHARD_SUCCESS;
}

/* The same pointers may be another segment by now. */
static reshard_status write_sources(rs_reach *reach, rs_notice *notice, int64_t *private_entry) {
  rs_sources sources;
  char *shown_sources = NULL;
  int64_t bytes = 0;
  RS_TRY(rs_sources_describe(reach->comm->device, reach->plan, &reach->arrays, false, &sources));
  *private_entry = sources.private_entry;
  reshard_status status = sources.private_entry >= 0 ? RESHARD_SUCCESS
                                                     : rs_remote_sources_write(reach->comm, reach->plan, &reach->arrays,
                                                                               &sources, NULL, &shown_sources, &bytes);
  rs_sources_free(&sources);
  if (status != RESHARD_SUCCESS || *private_entry >= 0)
    return status;
  if (reach->shown_sources != NULL && bytes == reach->shown_bytes &&
      memcmp(shown_sources, reach->shown_sources, (size_t)bytes) == 0) {
    free(shown_sources);
    return RESHARD_SUCCESS;
  }
  free(reach->shown_sources);
  reach->shown_sources = shown_sources;
  reach->shown_bytes = bytes;
  reach->version = ++notice->last;
  return RESHARD_SUCCESS;
}

reshard_status rs_reach_show(rs_reach *reach, const reshard_arrays *arrays, rs_notice *notice, rs_shown *shown,
                             int64_t *private_entry) {
  RS_TRY(bind_arrays(reach, arrays));
  RS_TRY(write_sources(reach, notice, private_entry));
  if (*private_entry >= 0)
    return RESHARD_SUCCESS;
  RS_TRY(notice_reserve(notice, reach->shown_bytes));
  if (notice->version != reach->version)
    memcpy(notice->memory, reach->shown_sources, (size_t)reach->shown_bytes);
  notice->version = reach->version;
  shown->place = notice->place;
  shown->bytes = reach->shown_bytes;
  shown->version = reach->version;
  return RESHARD_SUCCESS;
}

/* --- After it ----------------------------------------------------------------------------------------------------- */

/* Takes a list in place of the last one, which keeps what both name mapped until then. */
static reshard_status take_list(rs_reach *reach, int64_t rank, const rs_shown *shown, const char *shown_sources) {
  rs_mappings *mappings;
  const rs_offer *offer = NULL;
  RS_TRY(rs_mappings_create(reach->comm, &mappings));
  reshard_status status = rs_remote_sources_read(reach->plan, rank, shown_sources, shown->bytes, mappings, &offer);
  if (status != RESHARD_SUCCESS) {
    rs_remote_sources_free(offer);
    rs_mappings_free(mappings);
    return status;
  }
  rs_remote_sources_free(reach->offer[rank]);
  rs_mappings_free(reach->ranks[rank].mappings);
  reach->offer[rank] = offer;
  reach->ranks[rank] = (reached){shown->version, mappings};
  reach->changed = true;
  return RESHARD_SUCCESS;
}

reshard_status rs_reach_take(rs_reach *reach, const rs_peer *partner, const rs_shown *shown) {
  const char *shown_sources;
  int64_t rank = partner->rank;
  if (reach->comm->memory.imports[rank] == NULL || shown->version == reach->ranks[rank].version ||
      partner->received == 0)
    return RESHARD_SUCCESS;
  if (shown->bytes < 0 || shown->bytes > shown->place.bytes)
    return rs_error(RESHARD_ERROR_MISMATCH, "rank %lld shows %lld bytes in a notice of %lld", (long long)rank,
                    (long long)shown->bytes, (long long)shown->place.bytes);
  RS_TRY(rs_import_map(reach->comm->memory.imports[rank], &shown->place, &shown_sources));
  reshard_status status = take_list(reach, rank, shown, shown_sources);
  rs_import_unmap(reach->comm->memory.imports[rank], &shown->place);
  return status;
}

const rs_offer *const *rs_reach_offers(rs_reach *reach, bool *changed) {
  *changed = reach->changed;
  reach->changed = false;
  return reach->offer;
}
