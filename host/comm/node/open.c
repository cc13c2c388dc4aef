/* The public call that makes a node communicator: options, and what the ranks publish first. */
#define _GNU_SOURCE
#include "comm/node/create.h"

#include "device/cpu/cpu.h"
#include "device/environment.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char call[] = "reshard_comm_create_node";

/* A CPU for a process that has others beside it: a thread per core over all of them, unless the user says otherwise. */
static reshard_status create_device(int64_t size, reshard_device *device) {
  reshard_device_options options = {.size = RESHARD_DEVICE_OPTIONS_INIT, .shared = 1};
  int64_t threads = 0;
  RS_TRY(rs_environment_number("RESHARD_THREADS", &threads));
  if (threads == 0)
    options.threads = (int)rs_max(rs_device_cpu_cores() / size, 1);
  return reshard_device_create("cpu", &options, device);
}

static reshard_status read_options(rs_node *c, const reshard_node_options *options, uint64_t *job) {
  reshard_device device = options != NULL ? options->device : NULL;
  *job = 0;
  if (options != NULL) {
    RS_TRY(RS_SIZED(reshard_node_options, options));
    if (options->timeout_ms < 0)
      return rs_error(RESHARD_ERROR_INVALID, "%s: timeout_ms %lld ms", call, (long long)options->timeout_ms);
    c->base.timeout_ms = options->timeout_ms;
    if (options->job != NULL)
      *job = rs_hash(1, options->job, strlen(options->job));
  }
  if (c->base.timeout_ms == 0)
    RS_TRY(rs_environment_number("RESHARD_TIMEOUT_MS", &c->base.timeout_ms));
  if (device != NULL)
    c->handle = reshard_device_retain(device);
  else
    RS_TRY(create_device(c->base.size, &c->handle));
  c->base.device = c->handle->device;
  return rs_board_join(&c->base, NULL);
}

/* The same verdict on every rank, since all look at the same addresses. */
static reshard_status check_addresses(int64_t n, const rs_node_address *addresses) {
  for (int64_t r = 0; r < n; r++)
    if (addresses[r].rank != r || addresses[r].size != n)
      return rs_error(RESHARD_ERROR_MISMATCH, "%s: place %lld of the all-gather has rank %lld of %lld ranks", call,
                      (long long)r, (long long)addresses[r].rank, (long long)addresses[r].size);
  for (int64_t r = 0; r < n; r++)
    if (addresses[r].build != addresses[0].build)
      return rs_error(RESHARD_ERROR_MISMATCH, "%s: ranks 0 and %lld have different versions of the library", call,
                      (long long)r);
  for (int64_t r = 0; r < n; r++)
    if (addresses[r].status != RESHARD_SUCCESS)
      return rs_error((reshard_status)addresses[r].status, "rank %lld: %s", (long long)r, addresses[r].text);
  for (int64_t r = 1; r < n; r++) {
    if (addresses[r].job != addresses[0].job)
      return rs_error(RESHARD_ERROR_MISMATCH, "%s: ranks 0 and %lld give different names of the job", call,
                      (long long)r);
    if (addresses[r].device != addresses[0].device)
      return rs_error(RESHARD_ERROR_MISMATCH, "%s: ranks 0 and %lld have devices of different kinds", call,
                      (long long)r);
    if (addresses[r].node != addresses[0].node)
      return rs_error(RESHARD_ERROR_UNSUPPORTED,
                      "%s: rank %lld is on another node than rank 0, or in another network namespace", call,
                      (long long)r);
    if (addresses[r].uid != addresses[0].uid)
      return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: rank 0 runs as user %d, rank %lld as %d", call, addresses[0].uid,
                      (long long)r, addresses[r].uid);
  }
  return RESHARD_SUCCESS;
}

reshard_status reshard_comm_create_node(int64_t n, int64_t rank, reshard_allgather allgather, void *user,
                                        const reshard_node_options *options, reshard_comm *comm) {
  if (n < 1 || rank < 0 || rank >= n || allgather == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: rank %lld of %lld, all-gather %s", call, (long long)rank, (long long)n,
                    allgather == NULL ? "NULL" : "given");
  RS_HOLD_CANCEL;
  rs_node_address mine, *addresses = NULL;
  rs_node *c = NULL;
  uint64_t job = 0;
  int listener = -1;
  RS_TRY(rs_alloc(&addresses, n, sizeof *addresses));
  reshard_status status = rs_node_alloc(n, rank, NULL, &c);
  if (status != RESHARD_SUCCESS) { /* the others hear of it */
    rs_node none = {.base = {.size = n, .rank = rank}};
    rs_node_make_address(&none, 0, status, &mine, &listener);
    (void)allgather(user, &mine, sizeof mine, addresses);
    goto done;
  }
  status = comm != NULL ? read_options(c, options, &job) : rs_error_null(call, "comm");
  rs_node_make_address(c, job, status, &mine, &listener);
  unsigned long errors = rs_error_count();
  status = allgather(user, &mine, sizeof mine, addresses);
  if (status != RESHARD_SUCCESS) /* with its own text, where it is one of the library's */
    status = rs_error(status, "%s: the all-gather that was given failed: %s", call,
                      rs_error_count() != errors ? reshard_last_error() : reshard_status_string(status));
  RS_THEN(status, check_addresses(n, addresses));
  if (status == RESHARD_SUCCESS)
    status = rs_node_join(c, call, addresses, listener);
  else if (listener >= 0)
    close(listener);
  if (status == RESHARD_SUCCESS)
    *comm = &c->base;
  else
    rs_node_release(c);
done:
  free(addresses);
  return status;
}
