/* Memory files of the ranks on this node (device/cpu/segment.h), for paths that read other processes' arrays.
 *
 * A rank opens the file of another one through /proc, where the system lets it: they run for one user, and see each
 * other's numbers. What it has opened is compared with what that rank says its file is. One rank that cannot open the
 * file of a rank on its node leaves all ranks without: no rank takes a path alone. */
#include "comm/mpi/nodes.h"

#include "device/cpu/segment.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

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
  own->number = c->node;
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

/* True where some rank has another one on its node, and every rank shares memory; the same on all. */
static bool have_neighbours(int64_t n, const mpi_process *all, bool *elsewhere) {
  bool neighbours = false;
  for (int64_t r = 0; r < n; r++) {
    if (!all[r].shares)
      return false;
    *elsewhere |= !on_one_node(&all[0], &all[r]);
    for (int64_t other = 0; other < r; other++)
      neighbours |= on_one_node(&all[other], &all[r]);
  }
  return neighbours;
}

/* Opens the files of all ranks on this node, or none on any rank. This rank's own is open. */
static reshard_status open_files(rs_mpi *c, const mpi_process *all) {
  int64_t n = c->base.size, me = c->base.rank, failed;
  const void *gathered;
  bool have = true;
  failed = rs_alloc_zero((void *)&c->base.imports, n, sizeof *c->base.imports) != RESHARD_SUCCESS;
  for (int64_t r = 0; r < n && !failed; r++)
    if (r != me && on_one_node(&all[me], &all[r]))
      failed = (c->base.imports[r] = open_file(&all[r])) == NULL;
  if (c->base.imports == NULL)
    rs_shared_close();
  RS_TRY(rs_comm_allgather(&c->base, &failed, sizeof failed, &gathered));
  for (int64_t r = 0; r < n; r++)
    have = have && ((const int64_t *)gathered)[r] == 0;
  if (!have)
    rs_comm_close_imports(&c->base);
  return RESHARD_SUCCESS;
}

reshard_status rs_mpi_open_files(rs_mpi *c) {
  mpi_process own = {0};
  const void *all;
  bool elsewhere = false;
  describe_own(c, &own);
  reshard_status status = rs_comm_allgather(&c->base, &own, sizeof own, &all);
  if (status == RESHARD_SUCCESS && have_neighbours(c->base.size, all, &elsewhere)) {
    c->base.elsewhere = elsewhere;
    return open_files(c, all);
  }
  if (own.shares)
    rs_shared_close();
  return status;
}
