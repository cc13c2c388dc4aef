/* Descriptors of all ranks, exchanged while a transfer is made or bound anew. */
#include "exec/descriptor.h"

#include "comm/gather.h"
#include "exec/direct/peers.h"
#include "exec/record.h"

#include <stdlib.h>

void rs_descriptor_view(const rs_descriptor *descriptor, int64_t entry, bool source, int64_t array, rs_view *view) {
  const rs_entry *e = &descriptor->plan->entries[entry];
  int64_t first = descriptor->first != NULL ? descriptor->first[entry] : source ? e->src_buffer : e->dst_buffer;
  rs_buffer_view(descriptor->arrays, &descriptor->plan->classes.at[e->class_], source, descriptor->rank, first, array,
                 view);
}

void rs_descriptors_free(rs_descriptors *descriptors) {
  if (descriptors == NULL)
    return;
  for (int64_t r = 0; descriptors->descriptor != NULL && r < descriptors->n; r++)
    rs_remote_sources_free(descriptors->descriptor[r]);
  free(descriptors->descriptor);
  free(descriptors->flags);
  free(descriptors);
}

/* Local: reads the strings of those that send to this rank, and where ranks meet those of all peers. */
static reshard_status read_descriptors(reshard_comm comm, const struct reshard_plan_s *plan, rs_partners partners,
                                       const rs_strings *all, bool meet, rs_descriptors **out) {
  rs_descriptors *made;
  reshard_status status;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  made->n = comm->size;
  RS_TRY_GOTO(status, rs_alloc_zero((void *)&made->descriptor, made->n, sizeof *made->descriptor), fail);
  RS_TRY_GOTO(status, rs_alloc_zero((void *)&made->flags, made->n, sizeof *made->flags), fail);
  RS_TRY_GOTO(status, rs_mappings_create(comm, &made->mappings), fail);
  for (int64_t i = 0; i < partners.n; i++) {
    int64_t rank = partners.at[i].rank;
    const char *theirs = all->bytes + all->first[rank];
    if (comm->memory.imports[rank] == NULL)
      continue;
    if (meet)
      RS_TRY_GOTO(status, rs_remote_flags_open(rank, theirs, made->mappings, &made->flags[rank]), fail);
    if (partners.at[i].received > 0)
      RS_TRY_GOTO(status,
                  rs_remote_sources_read(plan, rank, theirs, all->first[rank + 1] - all->first[rank], made->mappings,
                                         &made->descriptor[rank]),
                  fail);
  }
  *out = made;
  return RESHARD_SUCCESS;
fail:
  rs_mappings_free(made->mappings);
  rs_descriptors_free(made);
  return status;
}

/* Descriptors of the memory in the strings come to those who read it. */
static reshard_status pass_files(reshard_comm comm, rs_partners partners, const rs_strings *all) {
  rs_peer_list *lists;
  bool good = true;
  if (comm->device->processes == NULL)
    return rs_files_pass(comm, partners);
  lists = rs_peers_lists(comm);
  for (int64_t r = 0; r < comm->size; r++)
    good &= rs_remote_sources_list(all->bytes + all->first[r], all->first[r + 1] - all->first[r], &lists[r]);
  if (!good)
    return rs_error(RESHARD_ERROR_MISMATCH, "a string of sources of %lld ranks is too short", (long long)comm->size);
  return rs_peers_pass(comm, partners);
}

reshard_status rs_descriptors_exchange(reshard_comm comm, reshard_status status, const struct reshard_plan_s *plan,
                                       rs_partners partners, const rs_arrays *arrays, const rs_sources *sources,
                                       const rs_shared_flags *flags, rs_descriptors **descriptors) {
  char *mine = NULL;
  int64_t size = 0;
  rs_strings *all;
  RS_THEN(status, rs_remote_sources_write(comm, plan, arrays, sources, flags, &mine, &size));
  status = rs_comm_gather_bytes(comm, status, mine, size, &all);
  free(mine);
  RS_TRY(status);
  rs_descriptors *made = NULL;
  status = pass_files(comm, partners, all);
  RS_THEN(status, read_descriptors(comm, plan, partners, all, flags != NULL, &made));
  if (status != RESHARD_ERROR_TIMEOUT) /* which has ended the communicator: this rank comes to no meeting */
    status = rs_agree(comm, status);
  if (status == RESHARD_SUCCESS) {
    *descriptors = made;
  } else if (made != NULL) {
    rs_mappings_free(made->mappings);
    rs_descriptors_free(made);
  }
  rs_peers_settle(comm, status == RESHARD_SUCCESS);
  rs_files_settle(comm, status == RESHARD_SUCCESS);
  rs_strings_release(all);
  return status;
}

bool rs_descriptors_outdated(reshard_comm comm) { return rs_peers_have_freed(comm); }

bool rs_descriptors_gone(reshard_comm comm) { return rs_peers_have_gone(comm); }

reshard_status rs_descriptors_publish_freed(reshard_comm comm) {
  uint64_t *live = NULL;
  int64_t nlive = 0, bytes = sizeof *live;
  rs_strings *all;
  reshard_status status = rs_peers_prepare(comm, 0, &live, &nlive);
  status = rs_comm_gather_bytes(comm, status, live, nlive * bytes, &all);
  free(live);
  RS_TRY(status);
  rs_peer_list *lists = rs_peers_lists(comm);
  for (int64_t r = 0; r < comm->size; r++)
    lists[r] = (rs_peer_list){.live = all->bytes + all->first[r], .nlive = (all->first[r + 1] - all->first[r]) / bytes};
  rs_peers_hear(comm);
  rs_strings_release(all);
  return RESHARD_SUCCESS;
}

reshard_status rs_descriptors_meet(reshard_comm comm, uint64_t key) {
  const void *gathered;
  RS_TRY(rs_comm_allgather(comm, &key, sizeof key, &gathered));
  const uint64_t *all = gathered;
  for (int64_t r = 1; r < comm->size; r++)
    if (all[r] != all[0])
      return rs_error(RESHARD_ERROR_MISMATCH, "ranks 0 and %lld execute different transfers", (long long)r);
  return RESHARD_SUCCESS;
}
