#include "bench/verify/case_context.h"

#include <stdarg.h>
#include <stdlib.h>

bool case_failed(case_context *l, const char *format, ...) {
  char text[1500];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  pthread_mutex_lock(&l->lock);
  if (l->why.length == 0)
    cli_add(&l->why, "%s", text);
  pthread_mutex_unlock(&l->lock);
  return false;
}

bool case_failed_call(case_context *l, const char *call, int64_t rank, reshard_status status) {
  return case_failed(l, "rank %lld: %s: %s: %s", (long long)rank, call, reshard_status_string(status),
                     reshard_last_error());
}

bool case_take_reason(case_context *l, rs_text *why) {
  bool right = why->length == 0 || case_failed(l, "%s", why->at);
  free(why->at);
  return right;
}

bool case_barrier(case_context *l, int64_t rank, bool ok) {
  session *remote = l->runner->remote;
  if (remote == NULL || remote->processes.n == 1)
    return rank_pool_barrier(l->runner->pool, ok);
  return session_barrier(remote, rank - l->first, ok);
}

/* --- Communicators ------------------------------------------------------------------------------------------------ */

#define COMMS      12    /* communicators kept */
#define TIMEOUT_MS 60000 /* a hang becomes an error */

typedef struct comm_set {
  int64_t n;
  int threads;
  reshard_isa isa;
  reshard_comm *comms;
  uint64_t used;
} comm_set;

struct case_comms {
  const reshard_device *devices;
  int64_t ndevices;
  comm_set sets[COMMS];
  uint64_t clock;
};

case_comms *case_comms_create(const reshard_device *devices, int64_t ndevices) {
  case_comms *shared = cli_alloc(1, sizeof *shared);
  shared->devices = devices;
  shared->ndevices = ndevices;
  return shared;
}

static void comm_set_drop(comm_set *set) {
  for (int64_t r = 0; set->comms != NULL && r < set->n; r++)
    reshard_comm_destroy(set->comms[r]);
  free(set->comms);
  *set = (comm_set){0};
}

void case_comms_free(case_comms *shared) {
  for (int i = 0; i < COMMS; i++)
    comm_set_drop(&shared->sets[i]);
  free(shared);
}

void case_comms_drop(case_comms *shared, reshard_comm *handles) {
  for (int i = 0; i < COMMS; i++)
    if (shared->sets[i].comms == handles)
      comm_set_drop(&shared->sets[i]);
}

reshard_comm *case_comms_get(case_comms *shared, int64_t n, int threads, reshard_isa isa, rs_text *why) {
  comm_set *oldest = &shared->sets[0];
  for (int i = 0; i < COMMS; i++) {
    comm_set *set = &shared->sets[i];
    if (set->comms != NULL && set->n == n && set->threads == threads && set->isa == isa) {
      set->used = ++shared->clock;
      return set->comms;
    }
    if (set->used < oldest->used)
      oldest = set;
  }
  comm_set_drop(oldest);
  reshard_local_options options = {
      RESHARD_LOCAL_OPTIONS_INIT, threads, isa, TIMEOUT_MS, shared->devices, shared->ndevices};
  reshard_comm *comms = cli_alloc(n, sizeof *comms);
  if (reshard_comm_create_local(n, &options, comms) != RESHARD_SUCCESS) {
    cli_add(why, "local communicator of %lld ranks, %d threads, %s: %s", (long long)n, threads, reshard_isa_string(isa),
            reshard_last_error());
    free(comms);
    return NULL;
  }
  *oldest = (comm_set){n, threads, isa, comms, ++shared->clock};
  return comms;
}
