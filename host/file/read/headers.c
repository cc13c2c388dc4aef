/* Headers of safetensors files, read by threads. */
#include "file/read/directory.h"

#include "device/cpu/cpu.h"
#include "file/format/torch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Smaller files are read before a thread has started. */
#define THREAD_BYTES (1 << 20)

/* Headers. What a thread cannot read it leaves, and the caller's thread tries it again: so the error is that of the
 * first such file, whatever the threads did. */
static reshard_status read_one(rs_opening *opening, int64_t f) {
  rs_safetensors *header = &opening->headers[f];
  rs_file *file = &opening->checkpoint->store.files.at[f];
  char where[RS_WHERE];
  rs_opening_where(opening, f, where);
  reshard_status status = rs_safetensors_read(where, file, header);
  if (status == RESHARD_SUCCESS && header->sharding != NULL)
    status = rs_safetensors_read_sharding(where, header);
  if (status == RESHARD_ERROR_INVALID && opening->options.check) /* a malformed header was not written so */
    status = RESHARD_ERROR_CORRUPT;
  if (status == RESHARD_SUCCESS && opening->options.check)
    status = rs_safetensors_read_digests(where, header, file);
  if (status != RESHARD_SUCCESS)
    rs_safetensors_free(header);
  return status;
}

typedef struct readers {
  rs_opening *opening;
  _Atomic int64_t next;
} readers;

static void *read_some(void *with) {
  readers *r = with;
  int64_t f;
  while ((f = atomic_fetch_add(&r->next, 1)) < r->opening->checkpoint->store.files.n)
    read_one(r->opening, f);
  return NULL;
}

static reshard_status read_threaded(rs_opening *opening, int64_t threads) {
  readers r = {.opening = opening};
  pthread_t *thread = NULL;
  int64_t started = 0;
  int number = 0;
  RS_TRY(rs_alloc(&thread, threads, sizeof *thread));
  while (started < threads && (number = pthread_create(&thread[started], NULL, read_some, &r)) == 0)
    started++;
  if (number == 0)
    read_some(&r);
  for (int64_t t = 0; t < started; t++)
    pthread_join(thread[t], NULL);
  free(thread);
  return number == 0
             ? RESHARD_SUCCESS
             : rs_error(RESHARD_ERROR_SYSTEM, "%s: no thread to read headers: %s", opening->where, strerror(number));
}

reshard_status rs_open_headers(rs_opening *opening) {
  const rs_store *s = &opening->checkpoint->store;
  int64_t all = 0, threads = s->files.n > 1 ? rs_min(s->files.n, rs_device_cpu_cores()) : 1;
  for (int64_t f = 0; f < s->files.n; f++)
    all = rs_min(all + s->files.at[f].size, INT64_MAX / 2);
  if (threads > 1 && all > THREAD_BYTES)
    RS_TRY(read_threaded(opening, threads - 1));
  for (int64_t f = 0; f < s->files.n; f++)
    if (opening->headers[f].model == NULL)
      RS_TRY(read_one(opening, f));
  return RESHARD_SUCCESS;
}

reshard_status rs_open_read(rs_opening *o) {
  char magic[sizeof RS_ZIP_MAGIC] = "";
  const rs_file *first = o->checkpoint->store.files.at;
  if (o->checkpoint->store.files.n > 0)
    RS_TRY(rs_file_read_at(first, 0, magic, rs_min(first->size, sizeof magic - 1)));
  o->kind = strcmp(magic, RS_ZIP_MAGIC) == 0 ? RS_OPENING_TORCH : RS_OPENING_HEADERS;
  return o->kind == RS_OPENING_HEADERS ? rs_open_headers(o) : RESHARD_SUCCESS;
}
