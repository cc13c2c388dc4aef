/* A rank's arrays, published to the others while all bind on the direct path. Ranks of one process publish the lists
 * that they have. Ranks that are processes tell in which segments of their memory files their sources lie
 * (device/cpu/segment.h), or in which memory of their GPU. */
#ifndef RS_EXEC_DESCRIPTOR_H
#define RS_EXEC_DESCRIPTOR_H

#include "comm/comm.h"
#include "device/cpu/segment.h"
#include "exec/arrays.h"
#include "exec/record.h"

/* Read by the other ranks until the path's bind returns. */
typedef struct rs_descriptor {
  int64_t rank;
  const struct reshard_plan_s *plan; /* of any rank: entries and layouts are the same */
  const rs_arrays *arrays;           /* at addresses of this process */
  const int64_t *first;              /* of the entries' source buffers in them; NULL: as the plan says */
} rs_descriptor;

void rs_descriptor_view(const rs_descriptor *descriptor, int64_t entry, bool source, int64_t array, rs_view *view);

/* Segments of other processes, or memory of their GPUs, that the arrays of one binding lie in. */
typedef struct rs_mappings rs_mappings;
/* NULL is allowed. */
void rs_mappings_free(rs_mappings *mappings);
/* Some of it is memory of GPUs that its owner has freed, as far as this rank has heard. NULL is allowed. */
bool rs_mappings_freed(const rs_mappings *mappings);

/* Memory that sources lie in: a segment of the process's memory file, or memory of its GPU. The other one is all 0. */
typedef struct rs_source_memory {
  rs_shared_place place;
  rs_exported_memory exported;
} rs_source_memory;

/* Where a rank's sources are, as other processes map them. All zero: not described. */
typedef struct rs_sources {
  RS_VEC(rs_source_memory) segments;
  struct rs_source_buffer *buffers; /* [plan->nsrc] */
  int64_t private_entry;            /* of the first source that others cannot map; -1: there is none */
  bool of_malloc;                   /* some lie in memory of cudaMalloc, which its owner may free meanwhile */
  uint64_t version;                 /* never 0; another one where other memory of a GPU is at the same addresses */
} rs_sources;
/* malloced: others map memory of cudaMalloc, too; else it is private. */
reshard_status rs_sources_describe(rs_device *device, const struct reshard_plan_s *plan, const rs_arrays *arrays,
                                   bool malloced, rs_sources *sources);
void rs_sources_free(rs_sources *sources);
/* The version of a description; 0: a source is private. */
reshard_status rs_sources_version(reshard_comm comm, const struct reshard_plan_s *plan, const rs_arrays *arrays,
                                  uint64_t *version);

/* Descriptors of ranks that are processes. */
typedef struct rs_descriptors {
  rs_mappings *mappings; /* the caller takes them, and frees them when nothing reads the arrays any more */
  int64_t n;
  const rs_descriptor **descriptor; /* [n] by rank; NULL: nothing comes from that rank, or it is on another node */
  void **flags;                     /* [n] of peers on the node that meet on streams */
} rs_descriptors;
/* Collective. Tells the others where this rank's sources are, none of which is private, and maps those of the partners
 * that send to it. Where ranks meet on streams it maps the flags of its peers, too, for those of this rank; NULL: they
 * do not. status: of this rank so far. All ranks succeed, or all get the same error. The communicator has the others'
 * memory files. */
reshard_status rs_descriptors_exchange(reshard_comm comm, reshard_status status, const struct reshard_plan_s *plan,
                                       rs_partners partners, const rs_arrays *arrays, const rs_sources *sources,
                                       const rs_shared_flags *flags, rs_descriptors **descriptors);
void rs_descriptors_free(rs_descriptors *descriptors); /* but for the mappings; NULL is allowed */
/* Local: this rank has freed memory of its GPU that others opened in an exchange, and they have not heard of it. */
bool rs_descriptors_outdated(reshard_comm comm);
/* Local: others have freed memory that bindings have open here, as far as this rank has heard. */
bool rs_descriptors_gone(reshard_comm comm);
/* Collective: ranks tell each other what they have freed, and close it where no binding has it. All ranks succeed, or
 * all get the same error. */
reshard_status rs_descriptors_publish_freed(reshard_comm comm);

/* --- Arrays that are other ones in each call (direct/mapped.c) ---------------------------------------------------- */

/* Memory that other processes map, in which a rank tells them of its sources: all zero at first. */
typedef struct rs_publication {
  void *memory;
  rs_shared_place place;
  uint64_t version, last; /* of what is there, 0 for nothing; the last one that was given to any sources */
} rs_publication;
void rs_publication_free(rs_publication *publication);

/* The others' sources, as a rank knows them for one plan. */
typedef struct rs_mapped_sources rs_mapped_sources;
reshard_status rs_mapped_sources_create(reshard_comm comm, const struct reshard_plan_s *plan,
                                        rs_mapped_sources **mapped);
void rs_mapped_sources_free(rs_mapped_sources *mapped); /* NULL is allowed */
/* Binds this rank's arrays, and writes its sources into the publication, unless one is private. Local; the publication
 * is read by others until the call ends. *private_entry: as in rs_sources. */
reshard_status rs_mapped_sources_publish(rs_mapped_sources *mapped, const reshard_arrays *arrays,
                                         rs_publication *publication, rs_published *published, int64_t *private_entry);
/* Takes what a partner publishes, if it sends to this rank; local, before that rank's call ends. */
reshard_status rs_mapped_sources_take(rs_mapped_sources *mapped, const rs_peer *partner, const rs_published *published);
/* Sources of this rank and of those that were taken, by rank, for a transfer to be bound to. *changed: since the last
 * call of this. */
const rs_descriptor *const *rs_mapped_sources_all(rs_mapped_sources *mapped, bool *changed);

/* Collective: returns when all ranks have come with this transfer. RESHARD_ERROR_MISMATCH where they have come with
 * others. */
reshard_status rs_descriptors_meet(reshard_comm comm, uint64_t key);

/* direct/files.c. Collective, of partners; on communicators that pass no memory files nothing: passes this rank's file
 * to those that read it and lack it, and takes theirs. A rank that fails goes on with the others. */
reshard_status rs_files_pass(reshard_comm comm, rs_partners with);
/* Local: tells whether all ranks have succeeded in the call. If not, what was passed in it is passed again. */
void rs_files_settle(reshard_comm comm, bool success);

#endif
