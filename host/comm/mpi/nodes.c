/* Ranks that are on one node, and their memory files (device/cpu/segment.h), for paths that read other processes'
 * arrays.
 *
 * A rank opens the file of another one through /proc, where the system lets it: they run for one user, and see each
 * other's numbers. What it has opened is compared with what that rank says its file is. One rank that cannot open the
 * file of a rank on its node leaves all ranks without: no rank takes a path alone.
 *
 * A part of a communicator takes over what that has open. Who is on which node all ranks know of each other, so the
 * ranks of the part come to the same without asking.
 *
 * A note that a rank has given up takes its time, and its caller may write to its arrays meanwhile. Each rank therefore
 * has a flag in its file, too, which it clears first. Ranks that have read those arrays look at it then.
 *
 * All communicators of a process have their flags in the same segments: the others map these once, however many parts
 * are made. A flag has another value each time that it is given out, so a rank that is late sees that it was given
 * back. */
#include "comm/mpi/nodes.h"

#include "device/cpu/segment.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* MPI copies messages between processes of one node. Short ones are still in the cache then, with what is packed next.
 * Messages to other nodes are better long. Measured: profiles/results/limits.md. */
enum { STAGED_ON_NODE = 256 << 10 };
/* MPI sends long runs from where they are in short pieces: one is packed while another is received, which asks the
 * system for no copy, and ranks wait for each other at the end alone. Into strided arrays it is slower than staging.
 * Measured: profiles/results/limits.md. */
enum { LEAST_RUN = 1 << 10 };

/* A rank's process and file, as all ranks see them. */
typedef struct mpi_process {
  int64_t shares; /* 0: it has no file, and the rest is not set */
  int64_t number; /* of the node, on one system */
  int64_t process, fd;
  uint64_t device, inode; /* of the file */
  uint64_t system;        /* rs_system_hash: where it is the same, so is the process of a number */
} mpi_process;

static bool on_one_node(const mpi_process *a, const mpi_process *b) {
  return a->number == b->number && a->system == b->system;
}

/* Describes this rank's process: a file is opened for it where its device shares memory. */
static void describe_own(const rs_mpi *c, mpi_process *own) {
  struct stat info = {.st_ino = 0};
  int fd;
  own->number = c->base.process.node;
  own->system = rs_system_hash("pid");
  if (!c->base.device->memory->shared || own->system == 0 || rs_shared_open(&fd) != RESHARD_SUCCESS)
    return;
  own->shares = fstat(fd, &info) == 0;
  own->process = getpid();
  own->fd = fd;
  own->device = (uint64_t)info.st_dev;
  own->inode = (uint64_t)info.st_ino;
  if (!own->shares)
    rs_shared_close();
}

/* Opens the file of another process; NULL: this one cannot. */
static rs_import *open_file(const mpi_process *other) {
  char path[64];
  struct stat info;
  rs_import *import = NULL;
  snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)other->process, (long long)other->fd);
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return NULL;
  if (fstat(fd, &info) != 0 || (uint64_t)info.st_dev != other->device || (uint64_t)info.st_ino != other->inode) {
    close(fd);
    return NULL;
  }
  return rs_import_open(fd, &import) == RESHARD_SUCCESS ? import : NULL;
}

static bool all_on_one_node(int64_t n, const mpi_process *all) {
  for (int64_t r = 0; r < n; r++)
    if (all[r].system == 0 || !on_one_node(&all[0], &all[r]))
      return false;
  return true;
}

static bool all_share(int64_t n, const mpi_process *all) {
  for (int64_t r = 0; r < n; r++)
    if (!all[r].shares)
      return false;
  return true;
}

/* The lowest rank on each rank's node, for the link. */
static reshard_status find_nodes(int64_t n, const mpi_process *all, int64_t **nodes) {
  RS_TRY(rs_alloc(nodes, n, sizeof **nodes));
  for (int64_t r = 0; r < n; r++) {
    int64_t lowest = 0;
    while (!on_one_node(&all[lowest], &all[r]))
      lowest++;
    (*nodes)[r] = lowest;
  }
  return RESHARD_SUCCESS;
}

static int64_t node_of(const rs_mpi *c, int64_t rank) { return c->link->nodes[rs_mpi_rank(c, rank)]; }

/* Finds out if some rank has another one on its node, and if some are on different ones; the same on all ranks. */
static reshard_status look_for_neighbours(const rs_mpi *c, bool *neighbours, bool *elsewhere) {
  int64_t n = c->base.size, most = 0;
  bool *seen;
  *neighbours = *elsewhere = false;
  for (int64_t r = 0; r < n; r++)
    most = rs_max(most, node_of(c, r));
  RS_TRY(rs_alloc_zero(&seen, most + 1, sizeof *seen));
  for (int64_t r = 0; r < n; r++) {
    int64_t node = node_of(c, r);
    *neighbours |= seen[node];
    *elsewhere |= node != node_of(c, 0);
    seen[node] = true;
  }
  free(seen);
  return RESHARD_SUCCESS;
}

/* --- Words ------------------------------------------------------------------------------------------------------- */

/* Values of a flag that is not given out, and of one whose communicator has ended; the others follow. */
enum { FLAG_FREE, FLAG_ENDED, FLAG_FIRST };

enum { SEGMENT_FLAGS = 512 };

typedef struct flags_segment {
  struct flags_segment *next;
  atomic_llong *flags; /* [SEGMENT_FLAGS] in the memory file */
  int64_t users;
} flags_segment;

/* The flags of this process. */
static struct {
  pthread_mutex_t mutex;
  flags_segment *segments;
  long long next; /* value */
} own_flags = {.mutex = PTHREAD_MUTEX_INITIALIZER, .next = FLAG_FIRST};

static reshard_status add_segment(flags_segment **out) {
  flags_segment *segment;
  void *memory;
  RS_TRY(rs_alloc_zero(&segment, 1, sizeof *segment));
  RS_TRY_OR(rs_shared_alloc(SEGMENT_FLAGS * sizeof *segment->flags, &memory), free(segment));
  segment->flags = memory;
  segment->next = own_flags.segments;
  own_flags.segments = *out = segment;
  return RESHARD_SUCCESS;
}

static reshard_status take_flag(rs_mpi *c) {
  flags_segment *segment = own_flags.segments;
  int64_t i = 0;
  while (segment != NULL && segment->users == SEGMENT_FLAGS)
    segment = segment->next;
  if (segment == NULL)
    RS_TRY(add_segment(&segment));
  while (segment->flags[i] != FLAG_FREE)
    i++;
  segment->users++;
  c->flag = &segment->flags[i];
  c->own_flag.value = own_flags.next++;
  atomic_store(c->flag, c->own_flag.value);
  (void)rs_shared_find(c->flag, c->flag + 1, &c->own_flag.segment, &c->own_flag.inside);
  return RESHARD_SUCCESS;
}

static reshard_status make_flag(rs_mpi *c) {
  pthread_mutex_lock(&own_flags.mutex);
  reshard_status status = take_flag(c);
  pthread_mutex_unlock(&own_flags.mutex);
  return status;
}

static void give_back_flag(rs_mpi *c) {
  flags_segment **at = &own_flags.segments;
  if (c->flag == NULL)
    return;
  pthread_mutex_lock(&own_flags.mutex);
  atomic_store(c->flag, FLAG_FREE);
  atomic_thread_fence(memory_order_seq_cst);
  while (c->flag < (*at)->flags || c->flag >= (*at)->flags + SEGMENT_FLAGS)
    at = &(*at)->next;
  flags_segment *segment = *at;
  if (--segment->users == 0) {
    *at = segment->next;
    rs_shared_free(segment->flags); /* others read 0 there from now on */
    free(segment);
  }
  pthread_mutex_unlock(&own_flags.mutex);
  c->flag = NULL;
}

void rs_mpi_clear_flag(rs_mpi *c) {
  if (c->flag != NULL)
    atomic_store(c->flag, FLAG_ENDED);
  atomic_thread_fence(memory_order_seq_cst); /* before what is written from now on */
}

void rs_mpi_take_flags(rs_mpi *c) {
  if (c->base.memory.imports == NULL ||
      (c->flags == NULL && rs_alloc_zero(&c->flags, c->base.size, sizeof *c->flags) != RESHARD_SUCCESS))
    return;
  for (int64_t r = 0; r < c->base.size; r++) {
    const rs_mpi_flag *flag = &c->records[r].flag;
    const char *at;
    if (c->flags[r].at != NULL || c->base.memory.imports[r] == NULL || flag->segment.bytes == 0 ||
        rs_import_map(c->base.memory.imports[r], &flag->segment, &at) != RESHARD_SUCCESS)
      continue;
    c->flags[r] = (rs_mpi_seen_flag){(const atomic_llong *)(const void *)(at + flag->inside), *flag};
  }
}

int64_t rs_mpi_find_left(const rs_mpi *c) {
  atomic_thread_fence(memory_order_seq_cst); /* after what was read */
  for (int64_t r = 0; c->flags != NULL && r < c->base.size; r++)
    if (c->flags[r].at != NULL && atomic_load(c->flags[r].at) != c->flags[r].flag.value)
      return r;
  return -1;
}

/* --- Files ------------------------------------------------------------------------------------------------------- */

void rs_mpi_close_files(rs_mpi *c) {
  for (int64_t r = 0; c->flags != NULL && r < c->base.size; r++)
    if (c->flags[r].at != NULL)
      rs_import_remove(c->base.memory.imports[r], &c->flags[r].flag.segment);
  free(c->flags);
  c->flags = NULL;
  give_back_flag(c);
  rs_comm_close_imports(&c->base);
}

/* Opens the files of all ranks on this node, or none on any rank. The rank's own is open. */
static reshard_status open_files(rs_mpi *c, const mpi_process *all) {
  int64_t n = c->base.size, me = c->base.rank, failed;
  const void *gathered;
  bool have = true, neighbours = true; /* where this rank has no memory to find out, it fails */
  failed = find_nodes(n, all, &c->link->nodes) != RESHARD_SUCCESS ||
           look_for_neighbours(c, &neighbours, &c->base.memory.multi_node) != RESHARD_SUCCESS ||
           (neighbours &&
            (rs_alloc_zero((void *)&c->base.memory.imports, n, sizeof *c->base.memory.imports) != RESHARD_SUCCESS ||
             make_flag(c) != RESHARD_SUCCESS));
  for (int64_t r = 0; r < n && !failed; r++)
    if (r != me && node_of(c, r) == node_of(c, me))
      failed = (c->base.memory.imports[r] = open_file(&all[r])) == NULL;
  if (c->base.memory.imports == NULL)
    rs_shared_close();
  RS_TRY(rs_comm_allgather(&c->base, &failed, sizeof failed, &gathered));
  for (int64_t r = 0; r < n; r++)
    have = have && ((const int64_t *)gathered)[r] == 0;
  if (!have)
    rs_mpi_close_files(c);
  return RESHARD_SUCCESS;
}

reshard_status rs_mpi_share_files(const rs_mpi *c, rs_mpi *part, const int64_t *ranks) {
  int64_t n = part->base.size, me = part->base.rank;
  bool neighbours;
  int own;
  if (c->base.memory.imports == NULL)
    return RESHARD_SUCCESS;
  RS_TRY(look_for_neighbours(part, &neighbours, &part->base.memory.multi_node));
  if (!neighbours)
    return RESHARD_SUCCESS;
  RS_TRY(rs_shared_open(&own));
  RS_TRY_OR(rs_alloc_zero((void *)&part->base.memory.imports, n, sizeof *part->base.memory.imports), rs_shared_close());
  for (int64_t r = 0; r < n; r++)
    if (r != me && node_of(part, r) == node_of(part, me))
      part->base.memory.imports[r] = rs_import_retain(c->base.memory.imports[ranks[r]]);
  return make_flag(part);
}

reshard_status rs_mpi_open_files(rs_mpi *c) {
  mpi_process own = {0};
  const void *all;
  describe_own(c, &own);
  reshard_status status = rs_comm_allgather(&c->base, &own, sizeof own, &all);
  if (status == RESHARD_SUCCESS && all_on_one_node(c->base.size, all)) {
    c->base.messages.best_staging = STAGED_ON_NODE;
    c->base.messages.least_run = c->base.messages.staged ? 0 : LEAST_RUN;
  }
  if (status == RESHARD_SUCCESS && all_share(c->base.size, all))
    return open_files(c, all);
  if (own.shares)
    rs_shared_close();
  return status;
}
