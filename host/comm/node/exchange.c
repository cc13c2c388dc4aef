/* Messages of a round between processes. A pair of ranks has a mailbox of two slots, which a message goes through by
 * turns, a chunk at a time: the sender fills one while the receiver empties the other. A message of a transfer fits a
 * slot, so programs pack and unpack there, and what is contiguous is copied.
 *
 * The first chunks are in their slots before the ranks meet. An error of that meeting takes them back. */
#define _GNU_SOURCE
#include "comm/node/streams.h"
#include "comm/node/wait.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

reshard_status rs_node_reserve(reshard_comm comm, int64_t most) {
  rs_node *c = rs_node_of(comm);
  int64_t *progress = NULL;
  if (comm->device->processes != NULL)
    return rs_node_boxes_make(c);
  if (most <= c->reserved)
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc(&progress, 2 * most, sizeof *progress));
  free(c->progress);
  c->progress = progress;
  c->reserved = most;
  return RESHARD_SUCCESS;
}

reshard_status rs_node_mailbox(reshard_comm comm, int64_t peer, bool sending, int slot, int64_t bytes, char **at) {
  rs_node *c = rs_node_of(comm);
  RS_TRY(rs_node_check(c, false));
  if (bytes > comm->messages.mailbox)
    return rs_error(RESHARD_ERROR_INTERNAL, "a message of %lld bytes in slots of %lld", (long long)bytes,
                    (long long)comm->messages.mailbox);
  *at = sending ? rs_node_mailbox_of(c, comm->rank, peer, slot) : rs_node_mailbox_of(c, peer, comm->rank, slot);
#ifdef MADV_POPULATE_WRITE /* else memory that the system has not ends the process when it is written */
  int64_t *there = &c->there[2 * peer + slot], pages = (bytes + RS_NODE_PAGE - 1) / RS_NODE_PAGE * RS_NODE_PAGE;
  if (sending && pages > *there) {
    if (madvise(*at, (size_t)pages, MADV_POPULATE_WRITE) != 0 && errno != EINVAL)
      return rs_error(RESHARD_ERROR_OUT_OF_MEMORY, "%lld bytes of shared memory: %s", (long long)pages,
                      strerror(errno));
    *there = pages;
  }
#endif
  return RESHARD_SUCCESS;
}

/* An exchange under way. */
typedef struct node_exchange {
  rs_node *c;
  const rs_exchange *exchange;
  int64_t first; /* slot of messages that are whole: other executes than the one before it takes */
  int64_t total_bytes;
  int64_t *sent, *received; /* bytes of each message */
  bool moved;               /* since it was cleared */
  bool refused;             /* by the meeting: the same on all ranks */
} node_exchange;

/* The slot in which a part begins. */
static int64_t slot_of(const node_exchange *x, const rs_part *p) {
  return p->mailbox_slot < 0 ? x->first : p->mailbox_slot;
}

static reshard_status run_program(const node_exchange *x, const rs_part *p) {
  rs_program *one = p->mailbox_slot < 0 && p->in_mailbox && x->first == 1 ? p->other_program : p->program;
  rs_device *device = x->c->base.device;
  return one == NULL ? RESHARD_SUCCESS : device->work->run(device, 1, &one, NULL);
}

static reshard_status copy_chunk(const node_exchange *x, char *dst, const char *src, int64_t bytes, bool staging) {
  rs_device *device = x->c->base.device;
  return device->work->copy(device, 1, &(rs_span){src, dst, bytes, staging}, x->total_bytes, NULL);
}

/* The sender publishes that it waits for an empty slot, and then looks once more. The receiver looks for that after it
 * has emptied one, so one of them finds the other. */
static bool is_full(rs_node_slot *slot, uint32_t sent) {
  if (sent == atomic_load_explicit(&slot->taken, memory_order_acquire))
    return false;
  if (!atomic_load(&slot->waits))
    atomic_store(&slot->waits, true);
  return sent != atomic_load(&slot->taken);
}

/* Fills the slots of a message as far as they are empty. */
static reshard_status send_some(node_exchange *x, const rs_part *p, int64_t *done) {
  rs_node *c = x->c;
  while (*done < p->bytes) {
    int64_t slots = c->base.messages.mailbox, number = slot_of(x, p) + *done / slots,
            bytes = rs_min(slots, p->bytes - *done), me = c->base.rank;
    rs_node_slot *slot = rs_node_slot_of(c, me, p->peer, number);
    uint32_t sent = atomic_load_explicit(&slot->sent, memory_order_relaxed);
    if (is_full(slot, sent))
      return RESHARD_SUCCESS;
    if (*done == 0)
      RS_TRY(run_program(x, p));
    if (!p->in_mailbox)
      RS_TRY(copy_chunk(x, rs_node_mailbox_of(c, me, p->peer, number), p->at + *done, bytes, true));
    slot->bytes = bytes;
    atomic_store(&slot->sent, sent + 1);
    if (!c->due) /* else the meeting tells */
      rs_node_ring(c, p->peer);
    *done += bytes;
    x->moved = true;
  }
  return RESHARD_SUCCESS;
}

/* Empties the slots of a message as far as they are full. */
static reshard_status receive_some(node_exchange *x, const rs_part *p, int64_t *done) {
  rs_node *c = x->c;
  while (*done < p->bytes) {
    int64_t slots = c->base.messages.mailbox, number = slot_of(x, p) + *done / slots,
            bytes = rs_min(slots, p->bytes - *done), me = c->base.rank;
    rs_node_slot *slot = rs_node_slot_of(c, p->peer, me, number);
    uint32_t taken = atomic_load_explicit(&slot->taken, memory_order_relaxed);
    if (taken == atomic_load_explicit(&slot->sent, memory_order_acquire))
      return RESHARD_SUCCESS;
    if (slot->bytes != bytes)
      return rs_error(RESHARD_ERROR_INTERNAL, "rank %lld expects %lld bytes from rank %lld, which sends %lld",
                      (long long)me, (long long)bytes, (long long)p->peer, (long long)slot->bytes);
    if (!p->in_mailbox)
      RS_TRY(copy_chunk(x, p->at + *done, rs_node_mailbox_of(c, p->peer, me, number), bytes, p->staged));
    if (*done + bytes == p->bytes)
      RS_TRY(run_program(x, p));
    atomic_store(&slot->taken, taken + 1);
    if (atomic_load(&slot->waits)) {
      atomic_store(&slot->waits, false);
      rs_node_ring(c, p->peer);
    }
    *done += bytes;
    x->moved = true;
  }
  return RESHARD_SUCCESS;
}

static reshard_status send_all(node_exchange *x) {
  int64_t n = x->exchange->nsends, first = rs_parts_begin(x->exchange->sends, n, x->c->base.rank);
  for (int64_t i = 0; i < n; i++) {
    int64_t s = (first + i) % n;
    RS_TRY(send_some(x, &x->exchange->sends[s], &x->sent[s]));
  }
  return RESHARD_SUCCESS;
}

static reshard_status receive_all(node_exchange *x) {
  int64_t n = x->exchange->nreceives, first = rs_parts_begin(x->exchange->receives, n, x->c->base.rank);
  for (int64_t i = 0; i < n; i++) {
    int64_t r = (first + n - 1 - i) % n; /* the rank before this one has begun with it */
    RS_TRY(receive_some(x, &x->exchange->receives[r], &x->received[r]));
  }
  return RESHARD_SUCCESS;
}

static bool all_moved(const node_exchange *x) {
  for (int64_t i = 0; i < x->exchange->nsends; i++)
    if (x->sent[i] < x->exchange->sends[i].bytes)
      return false;
  for (int64_t i = 0; i < x->exchange->nreceives; i++)
    if (x->received[i] < x->exchange->receives[i].bytes)
      return false;
  return true;
}

static void mark_messages(rs_node *c, const void *user) {
  const node_exchange *x = user;
  for (int64_t i = 0; i < x->exchange->nsends; i++)
    c->missing[x->exchange->sends[i].peer] |= x->sent[i] < x->exchange->sends[i].bytes;
  for (int64_t i = 0; i < x->exchange->nreceives; i++)
    c->missing[x->exchange->receives[i].peer] |= x->received[i] < x->exchange->receives[i].bytes;
}

/* Empties the slots that were filled before the meeting: no rank has looked into them. */
static void take_back(node_exchange *x) {
  for (int64_t i = 0; i < x->exchange->nsends; i++)
    for (int64_t chunk = 0; chunk * x->c->base.messages.mailbox < x->sent[i]; chunk++) {
      const rs_part *p = &x->exchange->sends[i];
      atomic_fetch_sub(&rs_node_slot_of(x->c, x->c->base.rank, p->peer, slot_of(x, p) + chunk)->sent, 1);
    }
}

static reshard_status move_messages(node_exchange *x) {
  rs_node *c = x->c;
  rs_node_wait w = {.step = "messages of a round", .mark = mark_messages, .user = x};
  if (c->due) {
    reshard_status status = rs_node_meet(c, send_all(x));
    x->refused = status != RESHARD_SUCCESS;
    if (x->refused)
      take_back(x);
    RS_TRY(status);
  }
  rs_node_wait_begin(&w);
  for (;;) {
    uint32_t seen = rs_node_rings(c);
    x->moved = false;
    RS_TRY(send_all(x));
    RS_TRY(receive_all(x));
    bool done = all_moved(x);
    if (done || x->moved)
      rs_node_wait_end(c, &w);
    if (done)
      return RESHARD_SUCCESS;
    if (x->moved)
      rs_node_wait_begin(&w);
    else
      RS_TRY(rs_node_wait_more(c, &w, seen));
  }
}

/* One rank is here: there is one exchange. An error that is not the meeting's is this rank's alone: the communicator
 * ends. */
reshard_status rs_node_exchange(int64_t n, const rs_exchange *exchanges, int64_t total_bytes) {
  rs_node *c = rs_node_of(exchanges[0].comm);
  node_exchange x = {.c = c, .exchange = exchanges, .total_bytes = total_bytes};
  (void)n;
  if (c->boxes != NULL)
    return rs_node_exchange_on_stream(c, exchanges);
  RS_TRY(rs_node_check(c, false));
  if (exchanges->nreceives > c->reserved || exchanges->nsends > c->reserved)
    return rs_error(RESHARD_ERROR_INTERNAL, "%lld receives and %lld sends in a round, %lld were reserved",
                    (long long)exchanges->nreceives, (long long)exchanges->nsends, (long long)c->reserved);
  x.first = (int64_t)((c->meetings + c->due) % 2); /* the same for all ranks: they are in one call */
  x.sent = c->progress;
  x.received = c->progress + c->reserved;
  for (int64_t i = 0; i < exchanges->nsends; i++)
    x.sent[i] = 0;
  for (int64_t i = 0; i < exchanges->nreceives; i++)
    x.received[i] = 0;
  reshard_status status = move_messages(&x);
  if (status != RESHARD_SUCCESS && !x.refused)
    return rs_node_give_up(c, status, NULL);
  RS_TRY(status);
  rs_comm_count_exchange(exchanges);
  return RESHARD_SUCCESS;
}
