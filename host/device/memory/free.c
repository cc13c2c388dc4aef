/* Uses of a block, and freeing it.
 *
 * free has to be told nothing that the pool does not know: which streams use the block was said before, and what they
 * have been given until now is what has to be over before another has the block. That is marked at once on streams that
 * only used it, because what these are given next has nothing to do with it; the stream that frees it, and the one that
 * it was allocated on, are marked when another one first wants the block, since mostly none does. */
#include "device/memory/pool_internal.h"
#include "device/stream.h"

#include <stddef.h>

static rs_store *store_of(rs_block *block) { return (rs_store *)((char *)block - offsetof(rs_store, block)); }

static reshard_status add_use(rs_store *store, rs_lane *lane) {
  if (lane == store->lane)
    return RESHARD_SUCCESS;
  for (int64_t i = 0; i < store->after.n; i++)
    if (store->after.at[i].lane == lane)
      return RESHARD_SUCCESS;
  RS_TRY(rs_vec_reserve(&store->after, store->after.n + 2)); /* with one for the lane that it was allocated on */
  store->after.at[store->after.n++] = (rs_after){lane, NULL, 0};
  lane->references++;
  return RESHARD_SUCCESS;
}

reshard_status rs_storage_pool_use(rs_storage_pool *pool, rs_block *block, void *stream) {
  rs_lane *lane;
  if (block == NULL || block->memory == NULL || !pool->device->ops->streams)
    return RESHARD_SUCCESS;
  pthread_mutex_lock(&pool->mutex);
  reshard_status status = rs_lane_of(pool, stream, &lane);
  if (status == RESHARD_SUCCESS)
    status = add_use(store_of(block), lane);
  pthread_mutex_unlock(&pool->mutex);
  return status;
}

/* Of the mark that covers all that a lane has been given. */
static uint64_t next_mark(const rs_lane *lane) { return lane->ended ? lane->marks : lane->marks + 1; }

/* Uses on other lanes than the block's become marks. Where an event cannot be had the host waits; false: it cannot do
 * that either, since the stream is being captured (or the device is lost). Those that are marked stay so. */
static bool mark_uses(rs_storage_pool *pool, rs_store *store) {
  int64_t n = store->after.n;
  bool all = true;
  store->after.n = 0;
  for (int64_t i = 0; i < n; i++) {
    rs_after use = store->after.at[i];
    bool past = use.lane == store->lane;
    if (!past && use.mark == NULL && use.needs == 0) {
      if (rs_lane_mark(pool, use.lane, RS_EDGE("storage: free after use")) == RESHARD_SUCCESS) {
        use.mark = use.lane->last;
        use.mark->references++;
      } else {
        past = rs_lane_wait(pool, use.lane);
        all &= past;
      }
    }
    if (past)
      use.lane->references--;
    else
      store->after.at[store->after.n++] = use;
  }
  return all;
}

/* Into the list of the lane that it was given to. */
static bool finish_free(rs_storage_pool *pool, rs_store *store) {
  if (store->after.n > 0 && !mark_uses(pool, store))
    return false;
  store->needs = next_mark(store->lane);
  pool->stats.in_use_bytes -= store->size;
  store->free = true;
  rs_piece_unuse(pool, store->piece);
  rs_store_put(pool, store);
  return true;
}

/* From the lane that a block was allocated on, which uses it, to the one that frees it. false: there is no memory to
 * remember that, and the host cannot wait: nobody may have the block again. */
static bool change_lane(rs_storage_pool *pool, rs_store *store, void *stream) {
  rs_lane *home = store->lane, *lane;
  if (rs_lane_of(pool, stream, &lane) != RESHARD_SUCCESS)
    return pool->device->ops->synchronize(pool->device, stream) == RESHARD_SUCCESS;
  if (lane == home)
    return true;
  rs_store_set_lane(store, lane);
  if (add_use(store, home) == RESHARD_SUCCESS) {
    store->after.at[store->after.n - 1].needs = next_mark(home);
    return true;
  }
  if (rs_lane_wait(pool, home))
    return true;
  rs_store_set_lane(store, home);
  return false;
}

void rs_storage_retry(rs_storage_pool *pool) {
  rs_store *stuck = pool->stuck;
  pool->stuck = NULL;
  for (rs_store *next; stuck != NULL; stuck = next) {
    next = (rs_store *)stuck->ring.next;
    if (!finish_free(pool, stuck)) {
      stuck->ring.next = (rs_ring *)pool->stuck;
      pool->stuck = stuck;
    }
  }
}

/* home: in the order of the lane that it was allocated on, whatever stream is. */
static void free_store(rs_storage_pool *pool, rs_store *store, bool home, void *stream) {
  pool->stats.frees++;
  if (store->piece == NULL) {
    if (store->size > 0)
      rs_upstream_free(pool, RS_ALONE, store->block.memory, store->size, stream);
    pool->stats.in_use_bytes -= store->size;
    rs_store_give_spare(pool, store);
    return;
  }
  if (!home && !change_lane(pool, store, stream))
    return;
  if (finish_free(pool, store)) {
    rs_pieces_keep_within(pool);
  } else {
    store->ring.next = (rs_ring *)pool->stuck;
    pool->stuck = store;
  }
}

void rs_storage_pool_free(rs_storage_pool *pool, rs_block *block, void *stream) {
  if (block == NULL)
    return;
  pthread_mutex_lock(&pool->mutex);
  free_store(pool, store_of(block), false, stream);
  pthread_mutex_unlock(&pool->mutex);
}

void rs_storage_pool_drop(rs_storage_pool *pool, rs_block *block) {
  if (block == NULL)
    return;
  pthread_mutex_lock(&pool->mutex);
  free_store(pool, store_of(block), true, NULL);
  pthread_mutex_unlock(&pool->mutex);
}

reshard_status rs_storage_pool_forget(rs_storage_pool *pool, void *stream) {
  rs_lane *lane;
  if (!pool->device->ops->streams)
    return RESHARD_SUCCESS;
  pthread_mutex_lock(&pool->mutex);
  reshard_status status = rs_lane_of(pool, stream, &lane);
  if (status == RESHARD_SUCCESS && lane->references > 0)
    status = rs_lane_mark(pool, lane, RS_EDGE("storage: forget stream"));
  if (status == RESHARD_SUCCESS)
    lane->ended = true;
  pthread_mutex_unlock(&pool->mutex);
  return status;
}
