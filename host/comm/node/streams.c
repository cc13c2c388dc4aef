/* Messages of a round between processes with GPUs, in the order of their streams: no host waits for another.
 *
 * A rank has a mailbox for each peer, in memory of its GPU that the peers have open: two slots, which the chunks of a
 * message go through by turns. The sender copies a chunk into a slot; the streams meet, and the receiver copies it out.
 * By the next meeting the copy is done, and by the one after that the slot is filled again. A last meeting ends the
 * exchange with empty slots, so that each begins alike: also one in a graph, where the host does not count.
 *
 * Only ranks that have messages for each other meet, and publish which transfer the exchange is of: unequal ones end
 * the communicator. Exchanges follow one another, on whatever streams they are. */
#include "comm/node/streams.h"

#include "comm/gather.h"
#include "comm/node/create.h"
#include "comm/node/wait.h"
#include "device/stream.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A slot is to take so long to copy that launches and meetings do not count; not measured yet. Slots of all peers are
 * bounded, as long as each has the least. */
enum { SLOT = 2 << 20, SLOTS = 64 << 20, SLOT_LEAST = 64 << 10, SLOT_STEP = 256 };

/* A peer's memory. */
typedef struct opened_box {
  rs_exported_memory memory;
  void *at; /* NULL: it is not open */
} opened_box;

struct rs_node_boxes {
  rs_stream_barrier *barrier; /* with room for the slots */
  int64_t slot;
  opened_box *opened; /* [size - 1] by peer */
  bool *with;         /* [size - 1] */
  rs_span *spans;     /* [size - 1] */
  rs_event *end;      /* of the last exchange that is in no graph */
  bool used;          /* there was one */
  /* The same of the last one that is in a graph, and the capture that it came by; 0: there was none. */
  rs_event *captured_end;
  uint64_t capture;
};

/* Other ranks in their order. */
static int64_t peer_of(int64_t me, int64_t rank) { return rank - (rank > me); }

static int64_t slot_bytes_on_gpu(int64_t peers) {
  int64_t bytes = SLOTS / 2 / peers / SLOT_STEP * SLOT_STEP;
  return rs_min(rs_max(bytes, SLOT_LEAST), SLOT);
}

/* --- Making ------------------------------------------------------------------------------------------------------- */

static void free_boxes(rs_node *c) {
  struct rs_node_boxes *b = c->boxes;
  rs_device *device = c->base.device;
  if (b == NULL)
    return;
  if (b->barrier != NULL)
    device->processes->destroy(device, b->barrier);
  for (int64_t i = 0; b->opened != NULL && i < c->base.size - 1; i++)
    device->processes->close(device, &b->opened[i].memory, b->opened[i].at);
  if (b->end != NULL)
    device->streams->event_destroy(device, b->end);
  if (b->captured_end != NULL)
    device->streams->event_destroy(device, b->captured_end);
  free(b->opened);
  free(b->with);
  free(b->spans);
  free(b);
  c->boxes = NULL;
}

/* Local. After an error the caller frees what there is. */
static reshard_status alloc_boxes(rs_node *c, rs_shared_flags *mine) {
  rs_device *device = c->base.device;
  int64_t peers = c->base.size - 1;
  RS_TRY(rs_alloc_zero(&c->boxes, 1, sizeof *c->boxes));
  c->boxes->slot = slot_bytes_on_gpu(peers);
  RS_TRY(rs_alloc_zero(&c->boxes->opened, peers, sizeof *c->boxes->opened));
  RS_TRY(rs_alloc_zero(&c->boxes->with, peers, sizeof *c->boxes->with));
  RS_TRY(rs_alloc(&c->boxes->spans, peers, sizeof *c->boxes->spans));
  RS_TRY(device->streams->event_create(device, &c->boxes->end));
  RS_TRY(device->streams->event_create(device, &c->boxes->captured_end));
  return device->processes->create(device, c->base.size, 2 * peers * c->boxes->slot, &c->base.waits.barriers,
                                   &c->boxes->barrier, mine);
}

/* Descriptors on their way: of this rank's memory, and of the others'. */
typedef struct boxes_passing {
  const rs_shared_flags *flags; /* [size] */
  int *files;                   /* [size]; -1: none has come */
  bool *sent, *taken;           /* [size]; this rank's own are true */
  int own;
  int64_t since;        /* something has moved last */
  rs_saved_error first; /* the rank goes on with the others */
} boxes_passing;

static void pass_to(rs_node *c, boxes_passing *p, int64_t rank) {
  bool done;
  reshard_status status = rs_node_pass(&c->base, rank, p->since, p->flags[c->base.rank].memory.number, p->own, &done);
  rs_error_save(&p->first, status);
  p->sent[rank] = done || status != RESHARD_SUCCESS;
  if (done)
    p->since = rs_now_ns();
}

static void take_from(rs_node *c, boxes_passing *p, int64_t rank) {
  uint64_t number = 0;
  bool done;
  reshard_status status = rs_node_take(&c->base, rank, p->since, &number, &p->files[rank], &done);
  if (done && status == RESHARD_SUCCESS && number != p->flags[rank].memory.number)
    status = rs_error(RESHARD_ERROR_INTERNAL, "rank %lld passes on other memory than its mailboxes", (long long)rank);
  rs_error_save(&p->first, status);
  p->taken[rank] = done || status != RESHARD_SUCCESS;
  if (done)
    p->since = rs_now_ns();
}

static reshard_status pass_boxes(rs_node *c, boxes_passing *p) {
  rs_device *device = c->base.device;
  rs_error_save(&p->first, device->processes->file(device, p->flags[c->base.rank].memory.number, &p->own));
  p->since = rs_now_ns();
  for (bool more = true; more;) {
    more = false;
    for (int64_t i = 1; i < c->base.size; i++) {
      int64_t to = (c->base.rank + i) % c->base.size, from = (c->base.rank + c->base.size - i) % c->base.size;
      if (!p->sent[to])
        pass_to(c, p, to);
      if (!p->taken[from])
        take_from(c, p, from);
      more |= !p->sent[to] || !p->taken[from];
    }
  }
  return rs_error_restore(&p->first);
}

/* Opens the others' memory; `peers` and `theirs` have room for them. */
static reshard_status open_boxes(rs_node *c, const boxes_passing *p, int64_t *peers, void **theirs) {
  rs_device *device = c->base.device;
  for (int64_t r = 0; r < c->base.size; r++) {
    int64_t i = peer_of(c->base.rank, r);
    opened_box *box = &c->boxes->opened[i];
    if (r == c->base.rank)
      continue;
    box->memory = p->flags[r].memory;
    RS_TRY(device->processes->open(device, &box->memory, p->files[r], &box->at));
    peers[i] = r;
    theirs[i] = (char *)box->at + p->flags[r].inside;
  }
  return RESHARD_SUCCESS;
}

static reshard_status connect_boxes(rs_node *c, const boxes_passing *p) {
  int64_t *peers, n = c->base.size - 1;
  void **theirs = NULL;
  RS_TRY(rs_alloc(&peers, n, sizeof *peers));
  reshard_status status = rs_alloc((void *)&theirs, n, sizeof *theirs);
  RS_THEN(status, open_boxes(c, p, peers, theirs));
  const rs_stream_barrier_terms terms = {.rank = c->base.rank,
                                         .npeers = n,
                                         .peers = peers,
                                         .flags = theirs,
                                         .ended = c->base.waits.ended,
                                         .late = c->base.waits.late,
                                         .timeout_ms = c->base.timeout_ms};
  RS_THEN(status, c->base.device->processes->connect(c->base.device, c->boxes->barrier, &terms));
  free(theirs);
  free(peers);
  return status;
}

/* Local, with room for what passing takes. */
static reshard_status alloc_passing(rs_node *c, boxes_passing *p, rs_shared_flags **flags) {
  int64_t n = c->base.size;
  RS_TRY(rs_alloc(flags, n, sizeof **flags));
  p->flags = *flags;
  RS_TRY(rs_alloc(&p->files, n, sizeof *p->files));
  for (int64_t r = 0; r < n; r++)
    p->files[r] = -1;
  RS_TRY(rs_alloc_zero(&p->sent, n, sizeof *p->sent));
  RS_TRY(rs_alloc_zero(&p->taken, n, sizeof *p->taken));
  p->sent[c->base.rank] = p->taken[c->base.rank] = true;
  return RESHARD_SUCCESS;
}

static void free_passing(rs_node *c, const boxes_passing *p) {
  for (int64_t r = 0; p->files != NULL && r < c->base.size; r++)
    if (p->files[r] >= 0)
      close(p->files[r]);
  if (p->own >= 0)
    close(p->own);
  free(p->files);
  free(p->sent);
  free(p->taken);
}

reshard_status rs_node_boxes_make(rs_node *c) {
  boxes_passing p = {.own = -1};
  rs_shared_flags mine = {.inside = 0}, *flags = NULL;
  const void *all;
  if (c->boxes != NULL || c->base.size == 1)
    return RESHARD_SUCCESS;
  reshard_status status = alloc_passing(c, &p, &flags);
  RS_THEN(status, alloc_boxes(c, &mine));
  status = rs_comm_agree(&c->base, status);
  RS_THEN(status, rs_comm_allgather(&c->base, &mine, sizeof mine, &all));
  if (status == RESHARD_SUCCESS) {
    memcpy(flags, all, (size_t)c->base.size * sizeof *flags);
    status = pass_boxes(c, &p);
    RS_THEN(status, connect_boxes(c, &p));
    if (status != RESHARD_ERROR_TIMEOUT) /* which has ended the communicator: this rank comes to no meeting */
      status = rs_comm_agree(&c->base, status);
  }
  free_passing(c, &p);
  free(flags);
  RS_TRY_OR(status, free_boxes(c));
  c->base.waits.barrier = c->boxes->barrier;
  return RESHARD_SUCCESS;
}

/* Kernels of peers may come to this rank's memory still where the communicator has ended. A peer's mapping keeps the
 * memory for them, so nobody is waited for. */
void rs_node_boxes_free(rs_node *c) {
  c->base.waits.barrier = NULL;
  free_boxes(c);
}

/* --- Exchanges ---------------------------------------------------------------------------------------------------- */

/* The slot of a chunk from one rank to another, one of which is this one. */
static char *slot_of(const rs_node *c, int64_t from, int64_t to, int64_t chunk) {
  const struct rs_node_boxes *b = c->boxes;
  int64_t me = c->base.rank;
  char *room = c->base.device->processes->room(b->barrier, from == me ? -1 : peer_of(me, from));
  return room + (2 * peer_of(from, to) + chunk % 2) * b->slot;
}

/* Copies the chunks of this number between messages and slots. */
static reshard_status copy_chunks(rs_node *c, const rs_exchange *exchange, bool sending, int64_t chunk) {
  struct rs_node_boxes *b = c->boxes;
  rs_device *device = c->base.device;
  const rs_part *parts = sending ? exchange->sends : exchange->receives;
  int64_t n = sending ? exchange->nsends : exchange->nreceives, me = c->base.rank, begin = rs_parts_begin(parts, n, me),
          at = chunk * b->slot, listed = 0;
  for (int64_t i = 0; i < n; i++) {
    const rs_part *p = rs_parts_at(parts, n, begin, i);
    if (p->bytes <= at)
      continue;
    char *slot = sending ? slot_of(c, me, p->peer, chunk) : slot_of(c, p->peer, me, chunk);
    int64_t bytes = rs_min(b->slot, p->bytes - at);
    b->spans[listed++] =
        sending ? (rs_span){p->at + at, slot, bytes, true} : (rs_span){slot, p->at + at, bytes, p->staged};
  }
  return listed > 0 ? device->processes->copy(device, b->barrier, listed, b->spans, exchange->stream) : RESHARD_SUCCESS;
}

/* Marks the peers of messages that have a chunk of this number. */
static void mark_peers(rs_node *c, const rs_exchange *exchange, int64_t chunk) {
  struct rs_node_boxes *b = c->boxes;
  memset(b->with, 0, (size_t)(c->base.size - 1) * sizeof *b->with);
  for (int64_t i = 0; i < exchange->nsends; i++)
    b->with[peer_of(c->base.rank, exchange->sends[i].peer)] |= exchange->sends[i].bytes > chunk * b->slot;
  for (int64_t i = 0; i < exchange->nreceives; i++)
    b->with[peer_of(c->base.rank, exchange->receives[i].peer)] |= exchange->receives[i].bytes > chunk * b->slot;
}

static int64_t count_chunks(const struct rs_node_boxes *b, const rs_exchange *exchange) {
  int64_t most = 0;
  for (int64_t i = 0; i < exchange->nsends; i++)
    most = rs_max(most, exchange->sends[i].bytes);
  for (int64_t i = 0; i < exchange->nreceives; i++)
    most = rs_max(most, exchange->receives[i].bytes);
  return rs_ceil_div(most, b->slot);
}

static reshard_status move_chunks(rs_node *c, const rs_exchange *exchange) {
  struct rs_node_boxes *b = c->boxes;
  rs_device *device = c->base.device;
  int64_t chunks = count_chunks(b, exchange);
  const uint32_t key = (uint32_t)c->base.meets.transfer; /* ranks that execute different transfers find that out */
  for (int64_t k = 0; k < chunks; k++) {
    RS_TRY(copy_chunks(c, exchange, true, k));
    mark_peers(c, exchange, k);
    RS_TRY(rs_stream_meet(device, b->barrier, b->with, key, exchange->stream, RS_EDGE("slots after peers")));
    RS_TRY(copy_chunks(c, exchange, false, k));
  }
  mark_peers(c, exchange, 0);
  return rs_stream_meet(device, b->barrier, b->with, key, exchange->stream, RS_EDGE("slots again after peers"));
}

/* Exchanges of one capture follow one another, and so do those outside of graphs. The launches of graphs are put in
 * order by who makes them. The event is waited for on its own stream too: a handle may be another stream by now. */
static reshard_status move_in_order(rs_node *c, const rs_exchange *exchange) {
  struct rs_node_boxes *b = c->boxes;
  rs_device *device = c->base.device;
  uint64_t capture;
  RS_TRY(device->processes->capture(device, exchange->stream, &capture));
  rs_event *end = capture != 0 ? b->captured_end : b->end;
  if (capture != 0 ? b->capture == capture : b->used)
    RS_TRY(rs_stream_wait(device, exchange->stream, end, RS_EDGE("slots after slots")));
  RS_TRY(move_chunks(c, exchange));
  if (capture != 0)
    b->capture = capture;
  else
    b->used = true;
  return rs_stream_record(device, end, exchange->stream, RS_EDGE("slots before slots"));
}

reshard_status rs_node_exchange_on_stream(rs_node *c, const rs_exchange *exchange) {
  RS_TRY(rs_node_check(c, false));
  if (exchange->nsends + exchange->nreceives == 0)
    return RESHARD_SUCCESS;
  reshard_status status = move_in_order(c, exchange);
  if (status != RESHARD_SUCCESS)
    return rs_node_give_up(c, status, NULL);
  rs_comm_count_exchange(exchange);
  return RESHARD_SUCCESS;
}
