/* Memory files of the processes: each passes its own to the others, once. From then on a rank maps whatever another one
 * has in shared storage, by its offset there. */
#include "comm/node/create.h"

#include "device/cpu/segment.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static reshard_status error_passing(int64_t rank, int failed) {
  return rs_error(failed == ETIMEDOUT                       ? RESHARD_ERROR_TIMEOUT
                  : failed == EPIPE || failed == ECONNRESET ? RESHARD_ERROR_PEER
                                                            : RESHARD_ERROR_SYSTEM,
                  "memory file to or from rank %lld: %s", (long long)rank, strerror(failed));
}

reshard_status rs_node_pass_files(rs_node *c, int64_t end) {
  int64_t n = c->base.size, me = c->base.rank;
  int own;
  RS_TRY(rs_alloc_zero((void *)&c->base.imports, n, sizeof *c->base.imports));
  reshard_status status = rs_shared_open(&own);
  if (status != RESHARD_SUCCESS) { /* which says that the file is not to be closed */
    free(c->base.imports);
    c->base.imports = NULL;
    return status;
  }
  for (int64_t i = 1; i < n; i++) {
    int64_t r = (me + i) % n;
    int failed = rs_node_send(c->sockets[r], &me, sizeof me, &own, 1, end);
    if (failed != 0)
      return error_passing(r, failed);
  }
  for (int64_t i = 1; i < n; i++) {
    int64_t r = (me + n - i) % n, from;
    int fd, failed = rs_node_receive(c->sockets[r], &from, sizeof from, &fd, 1, end);
    if (failed != 0)
      return error_passing(r, failed);
    RS_TRY(rs_import_open(fd, &c->base.imports[r]));
  }
  return RESHARD_SUCCESS;
}

void rs_node_close_files(rs_node *c) {
  if (c->base.imports == NULL)
    return;
  for (int64_t r = 0; r < c->base.size; r++)
    rs_import_close(c->base.imports[r]);
  free(c->base.imports);
  c->base.imports = NULL;
  rs_shared_close();
}
