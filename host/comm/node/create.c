/* Making and releasing node communicators.
 *
 * Every rank listens at a socket, and publishes an address where that is, in the one all-gather that it has.
 * Each then connects to those before it. Rank 0 makes the block of memory and passes it on. Between these steps rank 0
 * asks all for their status and tells all the verdict, so that they have the same. */
#define _GNU_SOURCE
#include "comm/node/create.h"

#include "comm/gather.h"
#include "comm/node/wait.h"
#include "device/cpu/cpu.h"
#include "device/cpu/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

enum { SPINS = 2000, LOOK_MS = 50, PATIENCE_MS = 2000, GRACE_MS = 500 };

/* --- Handles ------------------------------------------------------------------------------------------------------ */

void rs_node_close_sockets(rs_node *c) {
  for (int64_t r = 0; c->sockets != NULL && r < c->base.size; r++)
    if (c->sockets[r] >= 0) {
      close(c->sockets[r]);
      c->sockets[r] = -1;
    }
}

static void unmap_block(rs_node *c) {
  if (c->pinned != NULL)
    c->base.device->processes->unpin(c->base.device, c->block);
  c->pinned = NULL;
  if (c->block != NULL)
    munmap(c->block, (size_t)c->block_bytes);
  c->block = NULL;
}

static void free_node(rs_node *c) {
  rs_board_leave(&c->base);
  rs_node_close_sockets(c);
  unmap_block(c);
  rs_comm_close_imports(&c->base);
  if (c->parent != NULL)
    rs_node_release(c->parent);
  reshard_device_release(c->handle);
  pthread_mutex_destroy(&c->ending);
  free(c->sockets);
  free(c->gathered);
  free(c->missing);
  free(c->progress);
  free(c->compared);
  free(c->there);
  free(c->base.global_ranks);
  free(c);
}

void rs_node_release(rs_node *c) {
  if (atomic_fetch_sub(&c->users, 1) == 1)
    free_node(c);
}

/* Bytes of a slot between so many ranks: the more they are the shorter are their messages. */
static int64_t slot_bytes(int64_t size) {
  int64_t pages = RS_NODE_MAILBOXES / RS_NODE_PAGE / 2 / size / size;
  return rs_min(rs_max(pages * RS_NODE_PAGE, RS_NODE_SLOT_LEAST), RS_NODE_SLOT);
}

reshard_status rs_node_alloc(int64_t size, int64_t rank, int64_t *global_ranks, rs_node **out) {
  rs_node *c = NULL;
  reshard_status status;
  RS_TRY(rs_alloc_zero(&c, 1, sizeof *c));
  pthread_mutex_init(&c->ending, NULL);
  rs_comm_init(&c->base, &rs_node_ops, rank, size);
  c->base.messages.mailbox = slot_bytes(size);
  atomic_init(&c->users, 1);
  RS_TRY_GOTO(status, rs_alloc(&c->sockets, size, sizeof *c->sockets), fail);
  for (int64_t r = 0; r < size; r++)
    c->sockets[r] = -1;
  RS_TRY_GOTO(status, rs_alloc(&c->gathered, size, RS_COMM_RECORD), fail);
  RS_TRY_GOTO(status, rs_alloc(&c->missing, size, sizeof *c->missing), fail);
  RS_TRY_GOTO(status, rs_alloc_zero(&c->compared, size, sizeof *c->compared), fail);
  RS_TRY_GOTO(status, rs_alloc_zero(&c->there, 2 * size, sizeof *c->there), fail);
  c->base.global_ranks = global_ranks;
  *out = c;
  return RESHARD_SUCCESS;
fail:
  free_node(c);
  return status;
}

/* --- Cards -------------------------------------------------------------------------------------------------------- */

uint64_t rs_node_hash(void) {
  char name[64] = "";
  uint64_t node = rs_system_hash("net");
  if (node == 0) {
    (void)gethostname(name, sizeof name - 1);
    node = rs_hash(0, name, strlen(name));
  }
  return node;
}

void rs_node_make_address(const rs_node *c, uint64_t job, reshard_status status, rs_node_address *address,
                          int *listener) {
  int failed = 0;
  *address = (rs_node_address){0};
  *listener = -1;
  if (c != NULL)
    *address = (rs_node_address){
        .build = rs_hash(sizeof(rs_node_rank), RESHARD_VERSION_STRING, strlen(RESHARD_VERSION_STRING)),
        .node = rs_node_hash(),
        .job = job,
        .size = c->base.size,
        .rank = c->base.rank,
        .timeout_ms = c->base.timeout_ms,
        .uid = (int32_t)geteuid(),
        .device = c->base.device != NULL ? (int32_t)c->base.device->type : 0};
  if (c != NULL && status == RESHARD_SUCCESS)
    failed = rs_node_listen(address, listener);
  if (*listener >= 0 && getrandom(address->secret, sizeof address->secret, 0) != (ssize_t)sizeof address->secret)
    failed = errno;
  if (failed != 0)
    status = rs_error(RESHARD_ERROR_SYSTEM, "no socket to listen at: %s", strerror(failed));
  address->status = status;
  if (status != RESHARD_SUCCESS)
    snprintf(address->text, sizeof address->text, "%s", reshard_last_error());
}

/* --- Connections -------------------------------------------------------------------------------------------------- */

/* The first message of those who connect. */
typedef struct node_greeting {
  unsigned char secret[16];
  int64_t rank;
} node_greeting;

/* Ranks that are being connected. */
typedef struct node_joining {
  rs_node *c;
  const char *call;
  const rs_node_address *addresses;
  int listener;
  int64_t end; /* 0: never */
  uid_t user;  /* of the process that was dialed last */
} node_joining;

static reshard_status error_absent(const node_joining *j) {
  char text[160];
  int64_t few[64], n = 0; /* a text has no room for more */
  for (int64_t r = 0; r < j->c->base.size && n < 64; r++)
    if (r != j->c->base.rank && j->c->sockets[r] < 0)
      few[n++] = rs_node_name(j->c, r);
  return rs_error(RESHARD_ERROR_TIMEOUT, "%s: connecting %lld processes: not done within %lld ms; missing: %s", j->call,
                  (long long)j->c->base.size, (long long)j->c->base.timeout_ms,
                  rs_ranges_text(text, sizeof text, n, few));
}

static reshard_status error_of(const node_joining *j, int64_t rank, int failed) {
  long long name = (long long)rs_node_name(j->c, rank);
  if (failed == ECANCELED)
    return rs_node_error_look(j->c);
  if (failed == ETIMEDOUT)
    return error_absent(j);
  if (failed == EKEYREJECTED)
    return rs_error(RESHARD_ERROR_UNSUPPORTED,
                    "%s: rank %lld runs as user %d, it says, and user %u listens at its socket", j->call, name,
                    j->addresses[rank].uid, (unsigned)j->user);
  if (failed == ECONNREFUSED || failed == ECONNRESET || failed == EPIPE)
    return rs_error(RESHARD_ERROR_PEER, "%s: rank %lld is gone", j->call, name);
  return rs_error(RESHARD_ERROR_SYSTEM, "%s: connecting to rank %lld: %s", j->call, name, strerror(failed));
}

static reshard_status connect_before(node_joining *j) {
  rs_node *c = j->c;
  for (int64_t r = 0; r < c->base.rank; r++) {
    node_greeting g = {.rank = c->base.rank};
    memcpy(g.secret, j->addresses[r].secret, sizeof g.secret);
    int failed = rs_node_dial_to(c, r, &j->addresses[r], j->end, &j->user);
    if (failed == 0)
      failed = rs_node_send_to(c, r, RS_NODE_GREETING, &g, sizeof g, -1, j->end);
    if (failed != 0)
      return error_of(j, r, failed);
  }
  return RESHARD_SUCCESS;
}

/* Lets in those who wait at the door, and keeps those who know the secret. */
static int64_t admit_some(const node_joining *j) {
  rs_node *c = j->c;
  int64_t kept = 0;
  for (int fd; (fd = rs_node_admit(j->listener)) >= 0;) {
    node_greeting g;
    int64_t end = rs_now_ns() + PATIENCE_MS * (int64_t)1000000, until = j->end != 0 ? rs_min(end, j->end) : end;
    bool known = rs_node_receive(fd, RS_NODE_GREETING, &g, sizeof g, NULL, until) == 0 &&
                 memcmp(g.secret, j->addresses[c->base.rank].secret, sizeof g.secret) == 0 && g.rank > c->base.rank &&
                 g.rank < c->base.size && c->sockets[g.rank] < 0;
    if (known)
      c->sockets[g.rank] = fd;
    else
      close(fd);
    kept += known;
  }
  return kept;
}

/* Looks at a rank that has not connected; 0: it listens still. Other values: the rank has connected already, or never
 * will: it is gone, and maybe another user has its socket's name. */
static int look_at_listener(node_joining *j, int64_t rank) {
  int fd, failed = rs_node_dial(&j->addresses[rank], rs_now_ns(), &fd, &j->user);
  if (failed == 0)
    close(fd);
  return failed == ECONNREFUSED || failed == EKEYREJECTED ? failed : 0;
}

/* Rank 0 has found that a rank is gone: those that still come hear of that one, and not that rank 0 has left. */
static void admit_late(node_joining *j) {
  rs_node *c = j->c;
  int64_t since = rs_now_ns();
  for (int64_t r = 1; r < c->base.size; r++)
    while (c->sockets[r] < 0 && look_at_listener(j, r) == 0 && !rs_late(since, GRACE_MS)) {
      struct pollfd p = {j->listener, POLLIN, 0};
      (void)poll(&p, 1, LOOK_MS);
      (void)admit_some(j);
    }
}

static reshard_status admit_after(node_joining *j) {
  rs_node *c = j->c;
  int64_t wanted = c->base.size - 1 - c->base.rank;
  while (wanted > 0) {
    struct pollfd p = {j->listener, POLLIN, 0};
    int64_t left = j->end != 0 ? (j->end - rs_now_ns()) / 1000000 + 1 : LOOK_MS;
    if (left <= 0)
      return error_absent(j);
    RS_TRY(rs_node_look(c));
    int ready = poll(&p, 1, (int)rs_min(left, LOOK_MS)), failed;
    wanted -= admit_some(j);
    for (int64_t r = c->base.rank + 1; r < c->base.size && ready == 0; r++)
      if (c->sockets[r] < 0 && (failed = look_at_listener(j, r)) != 0) {
        wanted -= admit_some(j);
        if (c->sockets[r] < 0) {
          if (c->base.rank == 0)
            admit_late(j);
          return error_of(j, r, failed);
        }
      }
  }
  return RESHARD_SUCCESS;
}

/* --- The verdict -------------------------------------------------------------------------------------------------- */

typedef struct node_verdict {
  int64_t status;
  char text[RS_COMM_RECORD - sizeof(int64_t)];
} node_verdict;

static void set_verdict(node_verdict *v, reshard_status status) {
  v->status = status;
  if (status != RESHARD_SUCCESS)
    snprintf(v->text, sizeof v->text, "%s", reshard_last_error());
}

/* Rank 0: of those that failed, one with a reason of its own is told before one that misses another. */
static void collect_verdict(const node_joining *j, rs_node_step step, node_verdict *verdict) {
  int64_t end = j->end != 0 ? j->end + GRACE_MS / 2 * (int64_t)1000000 : 0;
  for (int64_t r = 1; r < j->c->base.size; r++) {
    node_verdict other;
    int failed = EPIPE;
    if (j->c->sockets[r] >= 0)
      failed = rs_node_receive_from(j->c, r, step, &other, sizeof other, NULL, end);
    if (failed == ETIMEDOUT)
      set_verdict(&other, rs_error(RESHARD_ERROR_TIMEOUT, "%s: not done within %lld ms; missing: %lld", j->call,
                                   (long long)j->c->base.timeout_ms, (long long)rs_node_name(j->c, r)));
    else if (failed != 0)
      set_verdict(&other, error_of(j, r, failed));
    bool reason = other.status != RESHARD_ERROR_PEER && other.status != RESHARD_SUCCESS;
    if (verdict->status == RESHARD_SUCCESS || (verdict->status == RESHARD_ERROR_PEER && reason))
      *verdict = other;
  }
}

/* All ranks succeed, or all have the same error. fd: passed from rank 0 to the others, which own it; NULL: none. */
static reshard_status agree_by_sockets(const node_joining *j, rs_node_step step, reshard_status status, int *fd) {
  rs_node *c = j->c;
  node_verdict verdict = {0};
  int failed = 0;
  set_verdict(&verdict, status);
  if (c->base.rank == 0) {
    collect_verdict(j, step, &verdict);
    int with = fd != NULL && verdict.status == RESHARD_SUCCESS ? *fd : -1;
    for (int64_t r = 1; r < c->base.size; r++)
      if (c->sockets[r] >= 0)
        (void)rs_node_send_to(c, r, step, &verdict, sizeof verdict, with, j->end);
  } else if (c->sockets[0] >= 0) {
    int64_t end = j->end != 0 ? j->end + GRACE_MS * (int64_t)1000000 : 0;
    failed = rs_node_send_to(c, 0, step, &verdict, sizeof verdict, -1, j->end);
    if (failed == 0 || failed == EPIPE || failed == ECONNRESET) /* rank 0 may have told all, and gone */
      failed = rs_node_receive_from(c, 0, step, &verdict, sizeof verdict, fd, end);
    if (failed == 0 && verdict.status == RESHARD_SUCCESS && fd != NULL && *fd < 0)
      failed = EPROTO;
    if (failed != 0 && status != RESHARD_SUCCESS && status != RESHARD_ERROR_PEER)
      return status; /* a peer that is gone may have gone because rank 0 has */
    if (failed == ETIMEDOUT)
      return rs_error(RESHARD_ERROR_TIMEOUT, "%s: not done within %lld ms; missing: %lld", j->call,
                      (long long)c->base.timeout_ms, (long long)rs_node_name(c, 0));
    if (failed != 0)
      return error_of(j, 0, failed);
  }
  if (verdict.status != RESHARD_SUCCESS)
    return rs_error((reshard_status)verdict.status, "%s", verdict.text);
  return RESHARD_SUCCESS;
}

/* --- The block ---------------------------------------------------------------------------------------------------- */

static int64_t round_up(int64_t bytes, int64_t step) { return rs_ceil_div(bytes, step) * step; }

/* The size of the block, and where the parts are in it, once it is mapped. */
static void place_parts(rs_node *c) {
  int64_t n = c->base.size, at = (int64_t)sizeof(rs_node_memory) + n * (int64_t)sizeof(uint64_t), losses = at;
  int64_t ranks = round_up(at + 2 * n * n, RS_NODE_LINE), slots = ranks + n * (int64_t)sizeof(rs_node_rank);
  int64_t mailbox = round_up(slots + 2 * n * n * (int64_t)sizeof(rs_node_slot), RS_NODE_PAGE);
  char *block = (char *)c->block;
  c->block_bytes = mailbox + 2 * n * n * c->base.messages.mailbox;
  if (block == NULL)
    return;
  c->losses = (_Atomic uint8_t *)(block + losses);
  c->awaited = c->losses + n * n;
  c->ranks = (rs_node_rank *)(block + ranks);
  c->slots = (rs_node_slot *)(block + slots);
  c->mailbox = block + mailbox;
}

/* Memory of the block beyond what this rank may have would end the process when it is touched. */
static reshard_status check_block(rs_node *c) {
  place_parts(c);
  int64_t limit = rs_memory_group_limit(c->block_bytes);
  if (limit >= c->block_bytes)
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_OUT_OF_MEMORY,
                  "shared memory of %lld bytes: rank %lld may have %lld more of memory (limit of its control group)",
                  (long long)c->block_bytes, (long long)c->base.rank, (long long)limit);
}

/* Rank 0: memory of all zero, of which what is always needed is there. */
static reshard_status create_block(rs_node *c, int *fd) {
  place_parts(c);
  int64_t mailbox = 2 * c->base.size * c->base.size * c->base.messages.mailbox;
  int failed = rs_memory_file_make("reshard", c->block_bytes, S_IRUSR | S_IWUSR, fd);
  while (failed == 0 && (failed = posix_fallocate(*fd, 0, c->block_bytes - mailbox)) == EINTR)
    failed = 0;
  if (failed == 0)
    return RESHARD_SUCCESS;
  if (*fd >= 0)
    close(*fd);
  *fd = -1;
  if (failed == EFBIG)
    return rs_error(RESHARD_ERROR_OUT_OF_MEMORY, "shared memory of %lld bytes: a file may have %lld (ulimit -f)",
                    (long long)c->block_bytes, (long long)rs_memory_file_limit(c->block_bytes));
  return rs_error(RESHARD_ERROR_OUT_OF_MEMORY, "shared memory of %lld bytes: %s", (long long)c->block_bytes,
                  strerror(failed));
}

/* Lets kernels of this rank's GPU see the end of the communicator, and tell of a rank that is late. */
static reshard_status pin_block(rs_node *c) {
  rs_device *device = c->base.device;
  int64_t ranks = (char *)c->ranks - (char *)c->block, own = ranks + c->base.rank * (int64_t)sizeof(rs_node_rank);
  if (device->processes == NULL)
    return RESHARD_SUCCESS;
  RS_TRY(device->processes->pin(device, c->block, (size_t)(ranks + c->base.size * (int64_t)sizeof(rs_node_rank)),
                                &c->pinned));
  c->base.waits.ended = c->pinned; /* the block begins with it */
  c->base.waits.late = (int64_t *)((char *)c->pinned + own + (int64_t)offsetof(rs_node_rank, late));
  return RESHARD_SUCCESS;
}

static reshard_status map_block(rs_node *c, int fd) {
  place_parts(c);
  void *at = mmap(NULL, (size_t)c->block_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED)
    return rs_error(RESHARD_ERROR_OUT_OF_MEMORY, "mapping %lld bytes of shared memory: %s", (long long)c->block_bytes,
                    strerror(errno));
  c->block = at;
  place_parts(c);
  return pin_block(c);
}

reshard_status rs_node_join(rs_node *c, const char *call, const rs_node_address *addresses, int listener) {
  node_joining j = {c, call, addresses, listener, rs_node_deadline(c->base.timeout_ms), 0};
  int fd = -1;
  if (c->base.device->processes != NULL)
    c->base.messages.mailbox = 0; /* those of GPUs are in their memory */
  reshard_status status = connect_before(&j);
  RS_THEN(status, admit_after(&j));
  close(listener);
  RS_THEN(status, check_block(c));
  if (c->base.rank == 0)
    RS_THEN(status, create_block(c, &fd));
  status = agree_by_sockets(&j, RS_NODE_CONNECTED, status, &fd);
  if (status == RESHARD_SUCCESS) {
    status = map_block(c, fd);
    RS_THEN(status, rs_node_mark_ranks(c));
    status = agree_by_sockets(&j, RS_NODE_MAPPED, status, NULL);
  }
  if (fd >= 0)
    close(fd);
  /* Ranks that all have a core may wait a little before they sleep: without that a meeting costs as much as some
   * copies. */
  c->spins = c->base.size <= rs_device_cpu_cores() ? SPINS : 0;
  c->base.messages.eager_limit = c->spins == 0 && !c->base.device->streams->asynchronous ? RS_NODE_MAILED : 0;
  return status;
}

/* Where an address has an error, all ranks find it, and none connects. */
reshard_status rs_node_connect(reshard_comm over, const char *call, reshard_status status, rs_node *c,
                               const int64_t *ranks) {
  rs_node_address mine, *addresses = NULL;
  const rs_node_address *all = NULL;
  const void *gathered;
  int listener;
  if (c != NULL)
    RS_THEN(status, rs_alloc(&addresses, c->base.size, sizeof *addresses));
  rs_node_make_address(c, 0, status, &mine, &listener);
  status = rs_comm_allgather(over, &mine, sizeof mine, &gathered);
  if (status == RESHARD_SUCCESS)
    all = gathered;
  for (int64_t r = 0; r < over->size && status == RESHARD_SUCCESS; r++)
    if (all[r].status != RESHARD_SUCCESS)
      status = rs_error((reshard_status)all[r].status, "rank %lld: %s", (long long)r, all[r].text);
  for (int64_t i = 0; c != NULL && i < c->base.size && status == RESHARD_SUCCESS; i++)
    addresses[i] = all[ranks[i]];
  if (status == RESHARD_SUCCESS)
    status = rs_comm_agree(over, c != NULL ? rs_node_join(c, call, addresses, listener) : RESHARD_SUCCESS);
  else if (listener >= 0)
    close(listener);
  free(addresses);
  return status;
}
