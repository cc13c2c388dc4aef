/* The packed path: packs, sends, receives and unpacks round after round, all with addresses that are known when the
 * arrays are bound.
 *
 * A message that is contiguous in the user's memory is sent from there or received there. Where the communicator sends
 * from strided sources, long runs go from there too, if all is one round then. Every other message goes through
 * staging. In one round each has a place of its own there. In several it has one for a piece in each of two halves,
 * which rounds take by turns.
 *
 * A device with streams packs all that a round sends in one launch, and unpacks all that came in another: one program
 * each. Else every message has its own, which the communicator runs when it suits it. */
#include "exec/packed/packed.h"

#include "device/plain.h"
#include "device/trace.h"
#include "exec/record.h"

#include <stdlib.h>
#include <string.h>

/* Mailboxes are memory of the CPU. */
static bool packed_applicable(reshard_comm comm, reshard_path asked) {
  (void)asked;
  return comm->messages.mailbox == 0 || !comm->device->streams->asynchronous;
}

/* The leader's part of a packed transfer: room for the receives that one exchange can bring. */
static reshard_status reserve_exchange(int64_t n, void **all) {
  int64_t most = 0;
  for (int64_t i = 0; i < n; i++) {
    const rs_binding *b = &((const rs_bind_call *)all[i])->t->binding;
    int64_t mine = 0;
    for (int64_t r = 0; r < b->nrounds; r++)
      mine = rs_max(mine, rs_max(b->rounds[r].nsends, b->rounds[r].nreceives));
    most += mine;
  }
  reshard_comm comm = ((const rs_bind_call *)all[0])->t->comm;
  return rs_comm_reserve(comm, most);
}

/* Connections to the peers that messages go to or come from: every rank has bound its arrays. */
static reshard_status connect_peers(reshard_transfer t) {
  const rs_partners all = rs_transfer_partners(t);
  int64_t *sends = NULL, *receives = NULL, nsends = 0, nreceives = 0;
  reshard_status status = rs_alloc(&sends, all.n, sizeof *sends);
  RS_THEN(status, rs_alloc(&receives, all.n, sizeof *receives));
  for (int64_t i = 0; i < all.n && status == RESHARD_SUCCESS; i++) {
    const rs_peer *p = &all.at[i];
    if (rs_transfer_maps(t, p->rank) && !t->messages.schedule.passes) /* else some of it may be passed on */
      continue;
    if (p->sent > 0)
      sends[nsends++] = p->rank;
    if (p->received > 0)
      receives[nreceives++] = p->rank;
  }
  status = rs_agree(t->comm, status);
  const rs_links links = {sends, receives, nsends, nreceives, t->messages.collective.root, t->messages.collective.kind};
  RS_THEN(status, rs_agree(t->comm, t->comm->ops->messages->connect(t->comm, &links)));
  free(sends);
  free(receives);
  return status;
}

/* Prepares the communicator for the exchanges of a packed transfer, on all ranks or on none. */
reshard_status rs_packed_prepare(const rs_bind_calls *calls) {
  reshard_comm comm = calls->comm;
  reshard_status status = rs_bind_calls_combine(calls, reserve_exchange);
  if (comm->locals < comm->size) /* ranks that do not meet may fail one by one */
    status = rs_agree(comm, status);
  return status == RESHARD_SUCCESS && comm->ops->messages->connect != NULL ? connect_peers(calls->rank[0]->t) : status;
}

int64_t rs_packed_next_round(const rs_execution *x) {
  struct reshard_transfer_s *const *t = x->t;
  int64_t n = x->n;
  const rs_round *first = NULL;
  int64_t *cursor = t[0]->team.cursor;
  for (int64_t i = 0; i < n; i++) {
    if (cursor[i] == t[i]->binding.nrounds)
      continue;
    const rs_round *r = &t[i]->binding.rounds[cursor[i]];
    if (first == NULL || r->number < first->number)
      first = r;
  }
  for (int64_t i = 0; i < n && first != NULL; i++) {
    const rs_binding *b = &t[i]->binding;
    const rs_round *r = cursor[i] < b->nrounds ? &b->rounds[cursor[i]] : NULL;
    bool in = r != NULL && r->number == first->number;
    const int64_t *domains = t[i]->plan->topology != NULL ? t[i]->plan->nodes : NULL;
    const rs_collective *collective = in && r->collective.kind != RESHARD_COLLECTIVE_NONE ? &r->collective : NULL;
    t[0]->team.exchanges[i] =
        in ? (rs_exchange){t[i]->comm, r->nsends, r->nreceives, r->sends, r->receives, collective, NULL, NULL, domains}
           : (rs_exchange){.comm = t[i]->comm};
    cursor[i] += in;
  }
  return first != NULL ? first->number : -1;
}

/* Bytes that the ranks receive in a round, for a trace; -1: nobody listens. */
static int64_t received_bytes(const rs_execution *x, const rs_device *device) {
  int64_t bytes = 0;
  if (!rs_trace_heard(device))
    return -1;
  for (int64_t i = 0; i < x->n; i++)
    for (int64_t p = 0; p < x->t[0]->team.exchanges[i].nreceives; p++)
      bytes += x->t[0]->team.exchanges[i].receives[p].bytes;
  return bytes;
}

/* The next round; *more: there was one. beside: of the one rank that executes; NULL: nothing. */
static reshard_status run_round(const rs_execution *x, const rs_overlapped *overlapped, bool *more) {
  reshard_transfer t = x->t[0];
  rs_device *device = t->comm->device;
  int64_t number = rs_packed_next_round(x);
  *more = number >= 0;
  if (!*more)
    return RESHARD_SUCCESS;
  rs_trace_work(device, NULL, "round", number, received_bytes(x, device));
  int64_t bytes = t->plan->info.bytes;
  t->team.exchanges[0].overlapped = overlapped;
  reshard_status status = rs_comm_exchange(x->n, t->team.exchanges, bytes, number);
  rs_trace_worked(device, NULL);
  return status;
}

/* Copies what stays on the ranks, or comes from others of the node. user: the execution. */
static reshard_status keep_own(const void *user) {
  const rs_execution *x = user;
  reshard_transfer t = x->t[0];
  rs_device *device = t->comm->device;
  for (int64_t i = 0; i < x->n; i++)
    t->team.programs[i] = x->t[i]->binding.self_copy;
  rs_trace_work(device, NULL, "self_copy", -1, rs_execution_copied(x, device));
  reshard_status status = device->work->run(device, x->n, t->team.programs, NULL);
  rs_trace_worked(device, NULL);
  return status;
}

/* The first round comes first: it packs while ranks that are processes meet, and no destination is written before they
 * have met. Sources of others are read beside its messages: the node meets again after that, and waits for both. */
reshard_status rs_packed_run(rs_execution *x) {
  reshard_transfer t = x->t[0];
  const rs_overlapped overlapped = {keep_own, x, t->key};
  bool reads = t->path->reads_others, more;
  memset(t->team.cursor, 0, (size_t)x->n * sizeof *t->team.cursor);
  reshard_status status = run_round(x, reads ? &overlapped : NULL, &more);
  if (status == RESHARD_SUCCESS && !more)
    status = rs_comm_meet(t->comm);
  if (!reads || !more)
    RS_THEN(status, keep_own(x));
  while (status == RESHARD_SUCCESS && more)
    status = run_round(x, NULL, &more);
  return status;
}

static void release_types(reshard_comm comm, int64_t n, const rs_part *sends) {
  for (int64_t i = 0; i < n; i++)
    if (sends[i].type != NULL)
      comm->ops->messages->free_type(comm, sends[i].type);
}

void rs_packed_release(reshard_comm comm, rs_binding *b) {
  for (int64_t i = 0; i < b->nrounds; i++) {
    rs_round *r = &b->rounds[i];
    release_types(comm, r->nsends, r->sends);
    free(r->sends);
    free(r->receives);
    free(r->send_slots);
    free(r->receive_slots);
  }
  free(b->rounds);
  free(b->sent);
  free(b->received);
  rs_comm_retire(comm, b->workspace);
}

const rs_path_ops rs_packed_path = {
    .number = RESHARD_PATH_PACKED,
    .packs = true,
    .applicable = packed_applicable,
    .bind = rs_packed_bind,
    .prepare = rs_packed_prepare,
    .run = rs_packed_run,
    .run_on_streams = rs_packed_run_on_streams,
    .release = rs_packed_release,
};
