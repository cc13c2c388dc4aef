#include "contract.h"

#include "bench/cli/util.h"
#include "comm/gather.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool contract_check(contract_rank *s, bool so, const char *what, const char *file, int line) {
  if (so)
    return true;
  if (s->wrong++ < 3)
    fprintf(stderr, "%s:%d: rank %d of %d: not so: %s (%s)\n", file, line, (int)reshard_comm_rank(s->comm),
            (int)reshard_comm_size(s->comm), what, reshard_last_error());
  return false;
}

void contract_all(contract_rank *s, reshard_status status, reshard_status wanted, const char *part, const char *what,
                  const char *file, int line) {
  char mine[1024] = "";
  rs_strings *all;
  snprintf(mine, sizeof mine, "%d %s", (int)status, status != RESHARD_SUCCESS ? reshard_last_error() : "");
  contract_check(s, status == wanted, what, file, line);
  contract_check(s, status == RESHARD_SUCCESS || part == NULL || strstr(mine, part) != NULL, part, file, line);
  if (!CONTRACT_SUCCEEDS(s, rs_comm_gather_bytes(s->comm, RESHARD_SUCCESS, mine, (int64_t)strlen(mine), &all)))
    return;
  for (int64_t r = 0; r < all->n; r++)
    if (all->first[r + 1] - all->first[r] != (int64_t)strlen(mine) ||
        memcmp(all->bytes + all->first[r], mine, strlen(mine)) != 0)
      contract_check(s, false, "all ranks have one status and text", file, line);
  rs_strings_release(all);
}

/* --- Memory ------------------------------------------------------------------------------------------------------ */

void contract_copy(const contract_rank *s, void *dst, const void *src, size_t bytes) {
  if (bytes > 0 && s->copy != NULL)
    s->copy(s->stream, dst, src, bytes);
  else if (bytes > 0)
    memcpy(dst, src, bytes);
}

static reshard_status tensor_create(const contract_rank *s, reshard_dtype dtype, int ndim, const int64_t *shape,
                                    reshard_tensor *out) {
  return s->device != NULL ? reshard_tensor_create_on(s->device, dtype, ndim, shape, s->stream, out)
                           : reshard_tensor_create(dtype, ndim, shape, out);
}

reshard_tensor contract_tensor(contract_rank *s, reshard_dtype dtype, int ndim, const int64_t *shape, bool strided) {
  int64_t strides[RESHARD_MAX_DIMS], step = 2;
  reshard_tensor whole = NULL, view = NULL;
  if (!strided)
    return CONTRACT_SUCCEEDS(s, tensor_create(s, dtype, ndim, shape, &whole)) ? whole : NULL;
  for (int d = 0; d < ndim; d++) {
    strides[d] = step;
    step *= shape[d] > 0 ? shape[d] : 1;
  }
  if (CONTRACT_SUCCEEDS(s, tensor_create(s, dtype, 1, &step, &whole)))
    CONTRACT_SUCCEEDS(s, reshard_tensor_as_strided(whole, ndim, shape, strides, 0, &view));
  reshard_tensor_release(whole);
  return view;
}

/* Elements from the first to the last of an array, and where element e is. */
static int64_t reach_of(const reshard_tensor_info *info) {
  int64_t reach = info->elements > 0;
  for (int d = 0; d < info->ndim && info->elements > 0; d++)
    reach += (info->shape[d] - 1) * info->strides[d];
  return reach;
}

static int64_t place_of(const reshard_tensor_info *info, int64_t e) {
  int64_t place = 0;
  for (int d = info->ndim - 1; d >= 0; d--) {
    place += e % info->shape[d] * info->strides[d];
    e /= info->shape[d];
  }
  return place;
}

void contract_fill(contract_rank *s, reshard_tensor array, int64_t n, const int64_t *index, bool flat, uint64_t key) {
  reshard_tensor_info info;
  if (!CONTRACT_SUCCEEDS(s, reshard_tensor_get_info(array, &info)) || !CONTRACT_CHECK(s, flat || info.elements == n))
    return;
  size_t width = reshard_dtype_size(info.dtype), bytes = (size_t)(flat ? n : reach_of(&info)) * width;
  unsigned char *host = cli_alloc((int64_t)bytes + 1, 1);
  memset(host, 0x5a, bytes);
  for (int64_t e = 0; e < n; e++)
    oracle_stamp(key, index != NULL ? index[e] : e, width, host + (size_t)(flat ? e : place_of(&info, e)) * width);
  contract_copy(s, info.data, host, bytes);
  free(host);
}

int64_t contract_count_wrong(contract_rank *s, reshard_tensor array, int64_t n, const int64_t *index, bool flat,
                             uint64_t key) {
  reshard_tensor_info info;
  if (array == NULL || reshard_tensor_get_info(array, &info) != RESHARD_SUCCESS || (!flat && info.elements != n))
    return n + 1;
  size_t width = reshard_dtype_size(info.dtype);
  int64_t wrong = 0, held = flat || info.contiguous ? n : reach_of(&info);
  unsigned char *host = cli_alloc(held * (int64_t)width + 1, 1), stamp[16];
  if (flat || info.contiguous)
    contract_copy(s, host, info.data, (size_t)held * width);
  else /* what lies between was never written */
    for (int64_t e = 0; e < n; e++)
      contract_copy(s, host + (size_t)place_of(&info, e) * width,
                    (char *)info.data + (size_t)place_of(&info, e) * width, width);
  for (int64_t e = 0; e < n; e++) {
    oracle_stamp(key, index != NULL ? index[e] : e, width, stamp);
    wrong += memcmp(host + (size_t)(flat || info.contiguous ? e : place_of(&info, e)) * width, stamp, width) != 0;
  }
  free(host);
  return wrong;
}

static int64_t elements_of(reshard_tensor tensor) {
  reshard_tensor_info info = {0};
  return reshard_tensor_get_info(tensor, &info) == RESHARD_SUCCESS ? info.elements : -1;
}

void contract_fill_whole(contract_rank *s, reshard_tensor whole, uint64_t key) {
  contract_fill(s, whole, elements_of(whole), NULL, false, key);
}

int64_t contract_count_wrong_whole(contract_rank *s, reshard_tensor whole, uint64_t key) {
  return contract_count_wrong(s, whole, elements_of(whole), NULL, false, key);
}

int64_t contract_received(const contract_rank *s) {
  reshard_comm_stats stats = {0};
  reshard_comm_get_stats(s->comm, &stats);
  return stats.received_bytes;
}

/* --- Other communicators ----------------------------------------------------------------------------------------- */

bool contract_rank_open_on(const contract_rank *s, reshard_comm comm, const reshard_sharder_options *options,
                           contract_rank *other) {
  reshard_sharder_options complete = {.size = RESHARD_SHARDER_OPTIONS_INIT};
  if (options != NULL)
    complete = *options;
  if (complete.device == NULL)
    complete.device = s->device;
  *other = *s;
  other->comm = comm;
  other->sharder = NULL;
  other->wrong = 0;
  return CONTRACT_SUCCEEDS(other, reshard_sharder_create(comm, &complete, &other->sharder));
}

void contract_rank_close_on(contract_rank *s, contract_rank *other) {
  reshard_sharder_destroy(other->sharder);
  s->wrong += other->wrong;
}
