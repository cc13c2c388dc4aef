/* One rank of a communicator of any kind, and how a test gets at the memory of its tensors: checks that are written
 * once and run by threads on the CPU, by threads on virtual GPUs over NCCL, and by processes over MPI.
 *
 * All ranks make the same calls with the same seeds. Nothing here ends a rank early - the others would wait for it -
 * what is not so is counted, and the first of it is told. */
#ifndef TESTS_SITE_H
#define TESTS_SITE_H

#include "bench/verify/oracle.h"
#include "bench/verify/random.h"

#include <reshard/dtensor.h>
#include <reshard/reshard.h>

#include <stdbool.h>

typedef struct site {
  reshard_comm comm;
  reshard_sharder sharder;
  reshard_device device; /* where new tensors are, and the sharder's; NULL: the CPU */
  void *stream;          /* NULL on the CPU */
  /* Bytes between the host's and the device's memory, when what stream was given before is done; NULL: memcpy. */
  void (*copy)(void *stream, void *dst, const void *src, size_t bytes);
  int64_t wrong; /* how much is not so */
} site;

/* What is not so counts as wrong, with the line and the last error. Are worth whether it is so. */
#define SITE_SO(s, what)   site_so(s, (what), #what, __FILE__, __LINE__)
#define SITE_GOOD(s, call) SITE_SO(s, (call) == RESHARD_SUCCESS)
bool site_so(site *s, bool so, const char *what, const char *file, int line);
/* Collective: all ranks have this status; where it is an error, one text, with `part` in it. */
#define SITE_ALL(s, call, wanted, part) site_all(s, (call), wanted, part, #call, __FILE__, __LINE__)
void site_all(site *s, reshard_status status, reshard_status wanted, const char *part, const char *what,
              const char *file, int line);

/* A tensor of the site's device; strided: every second element, its dims in reverse order. NULL when it failed. */
reshard_tensor site_tensor(site *s, reshard_dtype dtype, int ndim, const int64_t *shape, bool strided);
/* Element i of the array (row-major) is that of index[i]. flat: the array is the first of a flat piece, whose
 * elements lie end to end. */
void site_stamp(site *s, reshard_tensor array, int64_t n, const int64_t *index, bool flat, uint64_t key);
/* How many are not. */
int64_t site_unlike(site *s, reshard_tensor array, int64_t n, const int64_t *index, bool flat, uint64_t key);
/* The same of a whole tensor, whose elements are in their order. */
void site_stamp_whole(site *s, reshard_tensor whole, uint64_t key);
int64_t site_unlike_whole(site *s, reshard_tensor whole, uint64_t key);
/* Bytes between the host's and the device's memory, now. */
void site_copy(const site *s, void *dst, const void *src, size_t bytes);
/* Payload that has come to this rank. */
int64_t site_received(const site *s);

/* The same site on another communicator (a sub-communicator): with a sharder of its own. */
bool site_open_on(const site *s, reshard_comm comm, const reshard_sharder_options *options, site *other);
void site_close_on(site *s, site *other); /* adds what was wrong there */

/* --- The checks: collective over the site's communicator --------------------------------------------------------- */

/* Meshes of random shapes and ranks: the sub-communicator of each dim, of pairs in both orders, of all, of parts and
 * flattened ones; who is in it and where; kept; tensors resharded over it. Returns how many communicators were seen. */
int64_t site_check_meshes(site *s, uint64_t seed);
/* DTensors on the sub-meshes of the mesh's dims, each by its group alone, which makes other calls than the others do. */
void site_check_submeshes(site *s, reshard_mesh mesh, uint64_t seed);
/* A DTensor from local parts, redistributed to random placements on two meshes, made whole, distributed. */
void site_check_dtensor(site *s, uint64_t seed);
/* What ranks do wrong, alone and together: the same error on all. */
void site_check_refusals(site *s);
/* Chunks over a mesh (fsdp, tp), all-gathered; nested ones, flattened; flat records. 4 ranks or more. */
void site_check_fsdp(site *s, uint64_t seed);
/* A state dict of sharded, distributed and plain tensors and of numbers, saved by all ranks to a directory and loaded
 * into other layouts. Steps with one status on all ranks. */
void site_check_state(site *s, uint64_t seed, const char *directory);
/* A model under FSDP and TP with replicas, in one state dict: tensors of the FSDP group, nested ones, paths that are on
 * some ranks only or in several groups; flattened, gathered, saved, loaded by other groups and other numbers of ranks;
 * what is refused. 4 ranks or more; more of it with 6 and 8. */
void site_check_groups(site *s, const char *directory);
/* Metadata merged, sharded tensors created, gathered, scattered; chunks to chunks; indices
 * selected. */
void site_check_sharded(site *s, uint64_t seed);

#endif
