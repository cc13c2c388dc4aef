/* The direct path: strided source to strided destination, in one pass, for all ranks of the process in one program.
 *
 * Each rank lists what comes to it - from itself and, through their addresses, from the others. One rank then compiles
 * the lists of all: the device sees which copies share source lines or destination lines, whichever ranks they belong
 * to. */
#include "exec/transfer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* rs_view_of of a transfer: peers have shown where their arrays are. */
static reshard_status view_of(void *user, int64_t rank, int64_t entry, bool source, int64_t array, rs_view *view) {
  const rs_offer *offer = ((const rs_offer *const *)user)[rank];
  rs_arrays_view(offer->arrays, offer->plan, entry, source, array, view);
  return RESHARD_SUCCESS;
}

/* What a rank brings to the meeting that compiles. */
typedef struct binder {
  reshard_transfer transfer;
  rs_binding *binding;
  const rs_copies *copies;
  reshard_status status;
  char text[512];
} binder;

static reshard_status append(rs_copies *all, const rs_copies *more) {
  int64_t axes = all->axis.n;
  RS_TRY(rs_vec_reserve(&all->copy, all->copy.n + more->copy.n));
  RS_TRY(rs_vec_reserve(&all->axis, all->axis.n + more->axis.n));
  for (int64_t i = 0; i < more->copy.n; i++) {
    all->copy.at[all->copy.n] = more->copy.at[i];
    all->copy.at[all->copy.n++].axes += axes;
  }
  if (more->axis.n > 0)
    memcpy(all->axis.at + axes, more->axis.at, (size_t)more->axis.n * sizeof *more->axis.at);
  all->axis.n += more->axis.n;
  all->bytes += more->bytes;
  return RESHARD_SUCCESS;
}

/* For all ranks of the process: the first failure, or one program shared by all. */
static reshard_status compile(int64_t n, void **all) {
  binder *const *b = (binder *const *)all;
  for (int64_t i = 0; i < n; i++)
    if (b[i]->status != RESHARD_SUCCESS)
      return rs_error(b[i]->status, "rank %lld: %s", (long long)b[i]->transfer->comm->rank, b[i]->text);
  rs_device *device = b[0]->transfer->comm->device;
  rs_copies merged = {0};
  rs_shared *shared = NULL;
  reshard_status status;
  for (int64_t i = 0; i < n; i++)
    RS_TRY_GOTO(status, append(&merged, b[i]->copies), done);
  RS_TRY_GOTO(status, rs_alloc_zero(&shared, 1, sizeof *shared), done);
  shared->device = device;
  atomic_init(&shared->users, n);
  RS_TRY_GOTO(status, device->ops->compile(device, &merged, merged.bytes, &shared->program), done);
  for (int64_t i = 0; i < n; i++)
    b[i]->binding->direct = shared;
  shared = NULL;
done:
  free(shared);
  rs_copies_free(&merged);
  return status;
}

reshard_status rs_bind_direct(reshard_transfer t, rs_binding *binding, const rs_offer *const *offers) {
  rs_copies copies = {0};
  binder mine = {.transfer = t, .binding = binding, .copies = &copies};
  mine.status = t->comm->ops->enter(t->comm);
  if (mine.status == RESHARD_SUCCESS) {
    mine.status = rs_pull(t->plan, view_of, (void *)offers, &copies, &binding->foreign_bytes);
    t->comm->ops->leave(t->comm);
  }
  if (mine.status != RESHARD_SUCCESS)
    snprintf(mine.text, sizeof mine.text, "%s", reshard_last_error());
  reshard_status status = t->comm->ops->together(t->comm, compile, &mine);
  binding->info = (reshard_transfer_info){.path = RESHARD_PATH_DIRECT, .copies = copies.copy.n, .rounds = 1};
  rs_copies_free(&copies);
  return status;
}
