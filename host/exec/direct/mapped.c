/* The direct path between processes for arrays that are other ones in each call.
 *
 * A rank writes where its sources are into a publication, which the others map. The record of the meeting before the
 * copies says where the publication is, and its version: a rank maps and lists anew only what has changed since its
 * last call with the plan. Segments stay mapped as long as an earlier list names them. */
#include "exec/direct/peers.h"

#include <stdlib.h>
#include <string.h>

void rs_publication_free(rs_publication *publication) {
  rs_shared_free(publication->memory);
  *publication = (rs_publication){.memory = NULL};
}

/* A publication with room for so many bytes, with nothing in it where it had less. */
static reshard_status publication_reserve(rs_publication *publication, int64_t bytes) {
  void *memory;
  int64_t inside, room = 4096;
  if (publication->memory != NULL && publication->place.bytes >= bytes)
    return RESHARD_SUCCESS;
  while (room < bytes)
    room *= 2;
  RS_TRY(rs_shared_alloc((size_t)room, &memory));
  rs_shared_free(publication->memory);
  publication->memory = memory;
  publication->version = 0;
  (void)rs_shared_find(memory, (char *)memory + room, &publication->place, &inside);
  return RESHARD_SUCCESS;
}

/* The last list of a rank that sends to this one. */
typedef struct mapped_list {
  uint64_t version; /* 0: none */
  rs_mappings *mappings;
} mapped_list;

struct rs_mapped_sources {
  reshard_comm comm;
  const struct reshard_plan_s *plan;
  bool bound; /* arrays are */
  rs_arrays arrays;
  rs_descriptor own;
  char *published_sources; /* of these arrays, as they were written last */
  int64_t published_bytes;
  uint64_t version;
  mapped_list *ranks;               /* [comm->size] */
  const rs_descriptor **descriptor; /* [comm->size]; NULL: nothing comes from that rank */
  bool changed;                     /* since a transfer was bound to these arrays and descriptors */
};

reshard_status rs_mapped_sources_create(reshard_comm comm, const struct reshard_plan_s *plan,
                                        rs_mapped_sources **mapped) {
  rs_mapped_sources *made;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  made->comm = comm;
  made->plan = plan;
  reshard_status status = rs_alloc_zero(&made->ranks, comm->size, sizeof *made->ranks);
  RS_THEN(status, rs_alloc_zero((void *)&made->descriptor, comm->size, sizeof *made->descriptor));
  RS_TRY_OR(status, rs_mapped_sources_free(made));
  *mapped = made;
  return RESHARD_SUCCESS;
}

void rs_mapped_sources_free(rs_mapped_sources *mapped) {
  if (mapped == NULL)
    return;
  for (int64_t r = 0; r < mapped->comm->size; r++) {
    if (mapped->descriptor != NULL && r != mapped->comm->rank)
      rs_remote_sources_free(mapped->descriptor[r]);
    if (mapped->ranks != NULL)
      rs_mappings_free(mapped->ranks[r].mappings);
  }
  rs_arrays_free(&mapped->arrays);
  free(mapped->published_sources);
  free(mapped->descriptor);
  free(mapped->ranks);
  free(mapped);
}

/* --- Before the meeting ------------------------------------------------------------------------------------------- */

static reshard_status bind_arrays(rs_mapped_sources *mapped, const reshard_arrays *given) {
  rs_arrays arrays;
  if (mapped->bound && rs_arrays_same(mapped->plan, &mapped->arrays, given))
    return RESHARD_SUCCESS;
  RS_TRY(rs_arrays_bind(mapped->plan, given, &arrays));
  rs_arrays_free(&mapped->arrays);
  mapped->arrays = arrays;
  mapped->own = (rs_descriptor){mapped->comm->rank, mapped->plan, &mapped->arrays, NULL};
  mapped->descriptor[mapped->comm->rank] = &mapped->own;
  mapped->bound = true;
  mapped->changed = true;
  return RESHARD_SUCCESS;
}

/* The same pointers may be another segment by now. */
static reshard_status write_sources(rs_mapped_sources *mapped, rs_publication *publication, int64_t *private_entry) {
  rs_sources sources;
  char *published_sources = NULL;
  int64_t bytes = 0;
  RS_TRY(rs_sources_describe(mapped->comm->device, mapped->plan, &mapped->arrays, false, &sources));
  *private_entry = sources.private_entry;
  reshard_status status = sources.private_entry >= 0
                              ? RESHARD_SUCCESS
                              : rs_remote_sources_write(mapped->comm, mapped->plan, &mapped->arrays, &sources, NULL,
                                                        &published_sources, &bytes);
  rs_sources_free(&sources);
  if (status != RESHARD_SUCCESS || *private_entry >= 0)
    return status;
  if (mapped->published_sources != NULL && bytes == mapped->published_bytes &&
      memcmp(published_sources, mapped->published_sources, (size_t)bytes) == 0) {
    free(published_sources);
    return RESHARD_SUCCESS;
  }
  free(mapped->published_sources);
  mapped->published_sources = published_sources;
  mapped->published_bytes = bytes;
  mapped->version = ++publication->last;
  return RESHARD_SUCCESS;
}

reshard_status rs_mapped_sources_publish(rs_mapped_sources *mapped, const reshard_arrays *arrays,
                                         rs_publication *publication, rs_published *published, int64_t *private_entry) {
  RS_TRY(bind_arrays(mapped, arrays));
  RS_TRY(write_sources(mapped, publication, private_entry));
  if (*private_entry >= 0)
    return RESHARD_SUCCESS;
  RS_TRY(publication_reserve(publication, mapped->published_bytes));
  if (publication->version != mapped->version)
    memcpy(publication->memory, mapped->published_sources, (size_t)mapped->published_bytes);
  publication->version = mapped->version;
  published->place = publication->place;
  published->bytes = mapped->published_bytes;
  published->version = mapped->version;
  return RESHARD_SUCCESS;
}

/* --- After it ----------------------------------------------------------------------------------------------------- */

/* Takes a list in place of the last one, which keeps what both name mapped until then. */
static reshard_status take_list(rs_mapped_sources *mapped, int64_t rank, const rs_published *published,
                                const char *published_sources) {
  rs_mappings *mappings;
  const rs_descriptor *descriptor = NULL;
  RS_TRY(rs_mappings_create(mapped->comm, &mappings));
  reshard_status status =
      rs_remote_sources_read(mapped->plan, rank, published_sources, published->bytes, mappings, &descriptor);
  if (status != RESHARD_SUCCESS) {
    rs_remote_sources_free(descriptor);
    rs_mappings_free(mappings);
    return status;
  }
  rs_remote_sources_free(mapped->descriptor[rank]);
  rs_mappings_free(mapped->ranks[rank].mappings);
  mapped->descriptor[rank] = descriptor;
  mapped->ranks[rank] = (mapped_list){published->version, mappings};
  mapped->changed = true;
  return RESHARD_SUCCESS;
}

reshard_status rs_mapped_sources_take(rs_mapped_sources *mapped, const rs_peer *partner,
                                      const rs_published *published) {
  const char *published_sources;
  int64_t rank = partner->rank;
  if (mapped->comm->memory.imports[rank] == NULL || published->version == mapped->ranks[rank].version ||
      partner->received == 0)
    return RESHARD_SUCCESS;
  if (published->bytes < 0 || published->bytes > published->place.bytes)
    return rs_error(RESHARD_ERROR_MISMATCH, "rank %lld publishes %lld bytes in %lld", (long long)rank,
                    (long long)published->bytes, (long long)published->place.bytes);
  RS_TRY(rs_import_map(mapped->comm->memory.imports[rank], &published->place, &published_sources));
  reshard_status status = take_list(mapped, rank, published, published_sources);
  rs_import_unmap(mapped->comm->memory.imports[rank], &published->place);
  return status;
}

const rs_descriptor *const *rs_mapped_sources_all(rs_mapped_sources *mapped, bool *changed) {
  *changed = mapped->changed;
  mapped->changed = false;
  return mapped->descriptor;
}
