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
