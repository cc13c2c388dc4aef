/* Moving data from store to store: threads take batches of tiles (tiles.c), each on its own (batch.c). All memory in
 * use is a few tiles, used again and again, which stay in the cache.
 *
 * Files are read and written by system calls, not mapped. Pages of a mapped target cost a fault each, which makes it
 * slower than cp here. A file that another process cuts short is then an error, not a signal. */
#include "file/move/move.h"

#include "device/cpu/cpu.h"
#include "device/cpu/threads.h"
#include "device/environment.h"
#include "file/move/batch.h"

#include <fenv.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
  MEMORY = 96 << 20, /* of all threads' tiles on either side */
  PIECE = 4 << 20,   /* bytes that are worth a thread */
};

typedef struct job {
  const rs_store_move *move;
  int64_t bytes;
  rs_tiling tiling;
  pthread_mutex_t lock; /* of tiling, and what follows */
  int64_t done;
  rs_saved_error failed;
  int64_t next_report_ns;
  rs_batch *batches; /* per thread */
} job;

/* Tells the caller how far it is, in the caller's thread. With the lock held, which is let go meanwhile. */
static void report_progress(job *j) {
  int64_t now = rs_now_ns(), done = j->done;
  if (j->move->progress == NULL || now <= j->next_report_ns)
    return;
  j->next_report_ns = now + 50000000;
  pthread_mutex_unlock(&j->lock);
  int cancel = j->move->progress(j->move->user, j->move->compare ? "comparing" : "moving", done, j->bytes);
  pthread_mutex_lock(&j->lock);
  if (cancel != 0)
    rs_error_save(&j->failed, rs_error(RESHARD_ERROR_CANCELLED, "cancelled after %lld of %lld bytes", (long long)done,
                                       (long long)j->bytes));
}

/* Each thread that comes takes batches until there are none. */
static void move_batches(const void *user, rs_claim *claim) {
  job *j = *(job *const *)user;
  rs_batch *b = &j->batches[claim->thread];
  fenv_t caller;
  while (rs_threads_next(claim) >= 0) {
    pthread_mutex_lock(&j->lock);
    while (j->failed.status == RESHARD_SUCCESS) {
      rs_error_save(&j->failed, rs_tiling_next(&j->tiling, &b->tiles));
      if (j->failed.status != RESHARD_SUCCESS || b->tiles.n == 0)
        break;
      pthread_mutex_unlock(&j->lock);
      fegetenv(&caller);
      fesetenv(FE_DFL_ENV); /* scaled values do not depend on it */
      reshard_status status = rs_batch_move(b);
      fesetenv(&caller);
      pthread_mutex_lock(&j->lock);
      rs_error_save(&j->failed, status);
      for (int64_t i = 0; i < b->tiles.n; i++)
        j->done += b->tiles.at[i].bytes;
      if (claim->thread == 0)
        report_progress(j);
    }
    pthread_mutex_unlock(&j->lock);
  }
}

static int64_t world_of(const rs_store *store, int64_t world) {
  for (int64_t i = 0; i < store->tensors.n; i++)
    world = rs_max(world, store->tensors.at[i].layout->world);
  return world;
}

reshard_status rs_store_move_run(const rs_store_move *move) {
  int threads = move->threads;
  reshard_isa isa = RESHARD_ISA_AUTO;
  RS_TRY(rs_environment_cpu(&threads, &isa));
  threads = threads > 0 ? threads : rs_device_cpu_cores();
  job j = {.move = move};
  int64_t world = world_of(move->dst, world_of(move->src, 1));
  rs_threads *pool = NULL;
  reshard_status status;
  RS_TRY(rs_tiling_start(&j.tiling, move, rs_min(MEMORY / threads, 16 << 20), &j.bytes));
  threads = (int)rs_min(threads, rs_max(1, rs_ceil_div(j.bytes, PIECE)));
  RS_TRY(rs_alloc_zero(&j.batches, threads, sizeof *j.batches));
  for (int i = 0; i < threads; i++) {
    rs_batch *b = &j.batches[i];
    *b = (rs_batch){.move = move, .world = world, .all_bytes = j.bytes};
    RS_TRY_GOTO(status, rs_device_cpu_create(1, isa, &b->device), done);
  }
  if (threads > 1)
    RS_TRY_GOTO(status, rs_threads_create(threads, &pool), done);
  pthread_mutex_init(&j.lock, NULL);
  job *shared = &j;
  if (threads > 1)
    rs_threads_run(pool, threads, move_batches, &shared);
  else
    rs_threads_run_alone(1, move_batches, &shared);
  pthread_mutex_destroy(&j.lock);
  status = rs_error_restore(&j.failed);
done:
  rs_threads_destroy(pool);
  for (int i = 0; i < threads; i++) {
    if (move->read_bytes != NULL)
      *move->read_bytes += j.batches[i].read_bytes;
    rs_batch_free(&j.batches[i]);
  }
  free(j.batches);
  return status;
}
