/* Pieces of memory as the upstream allocator gives them, and the blocks that divide them.
 *
 * What is kept is bounded by pieces of which nothing is in use, because only these can go back: `busy` is what the
 * others hold, and with keep_bytes 0 a piece is added only after so many idle ones went that no more is held than was
 * busy at one time. A loop that asks for the same again and again therefore asks upstream for nothing from its second
 * turn on.
 *
 * A piece goes back in the order of its lane where it is all that one's, else of a side stream that waits for all who
 * used it: no stream of the caller's waits because of it. Only where room for a new piece is needed does the stream
 * that wants that wait, because what it frees it may then have. */
#include "device/memory/pool_internal.h"

#include <stdlib.h>

enum { SLAB = 2 << 20 };

/* --- Block records ---------------------------------------------------------------------------------------------- */

reshard_status rs_store_take_spare(rs_storage_pool *pool, rs_store **store) {
  if (pool->spare == NULL)
    return rs_alloc_zero(store, 1, sizeof **store);
  *store = pool->spare;
  pool->spare = pool->spare->behind;
  return RESHARD_SUCCESS;
}

void rs_store_give_spare(rs_storage_pool *pool, rs_store *store) {
  rs_store_drop_after(pool, store);
  rs_store_set_lane(store, NULL);
  store->piece = NULL;
  store->before = NULL;
  store->behind = pool->spare;
  pool->spare = store;
}

/* --- Blocks of a piece ------------------------------------------------------------------------------------------ */

rs_store *rs_store_join(rs_storage_pool *pool, rs_store *first, const rs_store *last) {
  while (first != last) {
    rs_store *next = first->behind;
    bool end = next == last;
    first->size += next->size;
    first->needs = first->needs > next->needs ? first->needs : next->needs;
    first->behind = next->behind;
    if (next->behind != NULL)
      next->behind->before = first;
    rs_store_give_spare(pool, next);
    if (end)
      break;
  }
  return first;
}

static bool mergeable(const rs_store *a, const rs_store *b) {
  return b != NULL && b->free && b->lane == a->lane && b->after.n == 0;
}

void rs_store_put(rs_storage_pool *pool, rs_store *store) {
  rs_bins *bins = rs_bins_of(store->lane, store);
  if (store->after.n == 0) {
    rs_store *last = store;
    if (mergeable(store, store->behind)) {
      last = store->behind;
      rs_bins_remove(bins, last);
    }
    if (mergeable(store, store->before)) {
      store = store->before;
      rs_bins_remove(bins, store);
    }
    store = rs_store_join(pool, store, last);
  }
  rs_bins_put(bins, store);
}

void rs_store_cut(rs_storage_pool *pool, rs_store *store, size_t size) {
  rs_store *rest;
  if (store->size - size < pool->granule[store->piece->kind] || rs_store_take_spare(pool, &rest) != RESHARD_SUCCESS)
    return; /* a little more than was asked for */
  rest->block.memory = (char *)store->block.memory + size;
  rest->size = store->size - size;
  rest->piece = store->piece;
  rest->before = store;
  rest->behind = store->behind;
  if (rest->behind != NULL)
    rest->behind->before = rest;
  store->behind = rest;
  store->size = size;
  rs_store_set_lane(rest, store->lane);
  rest->needs = store->needs;
  rest->free = true;
  rs_store_put(pool, rest);
}

/* --- Pieces in use ---------------------------------------------------------------------------------------------- */

static void unlink_idle(rs_storage_pool *pool, rs_pool_piece *piece) {
  *(piece->older != NULL ? &piece->older->newer : &pool->oldest) = piece->newer;
  *(piece->newer != NULL ? &piece->newer->older : &pool->newest) = piece->older;
}

static void link_idle(rs_storage_pool *pool, rs_pool_piece *piece) {
  piece->older = pool->newest;
  piece->newer = NULL;
  *(pool->newest != NULL ? &pool->newest->newer : &pool->oldest) = piece;
  pool->newest = piece;
}

void rs_piece_use(rs_storage_pool *pool, rs_pool_piece *piece) {
  if (piece->used++ > 0)
    return;
  unlink_idle(pool, piece);
  size_t *busy = &pool->busy[piece->kind], *most = &pool->most_busy[piece->kind];
  *busy += piece->bytes;
  *most = *busy > *most ? *busy : *most;
}

void rs_piece_unuse(rs_storage_pool *pool, rs_pool_piece *piece) {
  if (--piece->used > 0)
    return;
  pool->busy[piece->kind] -= piece->bytes;
  link_idle(pool, piece);
}

/* --- Giving back ------------------------------------------------------------------------------------------------ */

void rs_upstream_free(rs_storage_pool *pool, rs_kind kind, void *memory, size_t bytes, void *stream) {
  pool->upstream.free(pool->upstream.user, memory, bytes, stream);
  pool->stats.upstream_frees++;
  pool->held[kind] -= bytes;
  pool->held[RS_ALL] -= bytes;
}

/* The piece itself, when nothing uses it any more in the order of stream. */
static void drop(rs_storage_pool *pool, rs_pool_piece *piece, void *stream) {
  void *memory = piece->first->block.memory;
  for (rs_store *at = piece->first, *next; at != NULL; at = next) {
    next = at->behind;
    if (at->free)
      rs_bins_remove(rs_bins_of(at->lane, at), at);
    rs_store_give_spare(pool, at);
  }
  if (piece->used == 0)
    unlink_idle(pool, piece);
  *(piece->prev != NULL ? &piece->prev->next : &pool->pieces) = piece->next;
  if (piece->next != NULL)
    piece->next->prev = piece->prev;
  rs_upstream_free(pool, piece->kind, memory, piece->bytes, stream);
  free(piece);
}

/* The lane of all blocks, where they need no order and the calling thread can give its stream something. */
static rs_lane *only_lane(rs_storage_pool *pool, const rs_pool_piece *piece) {
  rs_lane *lane = piece->first->lane;
  for (const rs_store *at = piece->first; at != NULL; at = at->behind)
    if (at->lane != lane || at->after.n > 0)
      return NULL;
  return lane->ended || lane->thread.place != NULL || rs_lane_captured(pool, lane) ? NULL : lane;
}

static rs_lane *sweeper(rs_storage_pool *pool) {
  void *stream;
  if (pool->sweeper == NULL && pool->device->ops->stream_create(pool->device, &stream) == RESHARD_SUCCESS) {
    if (rs_lane_of(pool, stream, &pool->sweeper) != RESHARD_SUCCESS)
      pool->device->ops->stream_destroy(pool->device, stream);
  }
  return pool->sweeper;
}

/* In the order of lane, or NULL: of whichever is best. Nothing has changed when it fails. */
static reshard_status give_back(rs_storage_pool *pool, rs_pool_piece *piece, rs_lane *lane) {
  if (lane == NULL)
    lane = only_lane(pool, piece);
  if (lane == NULL && (lane = sweeper(pool)) == NULL)
    return RESHARD_ERROR_SYSTEM;
  for (const rs_store *at = piece->first; at != NULL; at = at->behind)
    RS_TRY(rs_lane_order(pool, lane, at));
  drop(pool, piece, lane->stream);
  return RESHARD_SUCCESS;
}

void rs_pieces_trim(rs_storage_pool *pool, size_t keep) {
  for (rs_pool_piece *at = pool->oldest, *next; at != NULL && rs_pool_kept(pool) > keep; at = next) {
    next = at->newer;
    (void)give_back(pool, at, NULL);
  }
}

void rs_pieces_keep_within(rs_storage_pool *pool) {
  if (pool->keep != 0)
    rs_pieces_trim(pool, pool->keep < 0 ? 0 : (size_t)pool->keep);
}

void rs_pieces_free(rs_storage_pool *pool) {
  rs_pieces_trim(pool, 0);
  while (pool->pieces != NULL) { /* what could not go back in any order, and what was given up in free */
    for (const rs_store *at = pool->pieces->first; at != NULL; at = at->behind)
      rs_store_wait(pool, at);
    drop(pool, pool->pieces, NULL);
  }
}

/* --- Growing ---------------------------------------------------------------------------------------------------- */

/* Idle pieces of a kind go, oldest first, while more than `most` bytes would be held with `bytes` more. */
static void make_room(rs_storage_pool *pool, rs_kind kind, size_t bytes, size_t most, rs_lane *lane) {
  const size_t *held = &pool->held[kind];
  for (rs_pool_piece *at = pool->oldest, *next; at != NULL && (*held > most || bytes > most - *held); at = next) {
    next = at->newer;
    if (kind == RS_ALL || at->kind == kind)
      (void)give_back(pool, at, lane);
  }
}

/* For each kind by itself: else they would take turns in driving each other out. */
static void make_room_kept(rs_storage_pool *pool, rs_kind kind, size_t bytes) {
  size_t now = pool->busy[kind] + bytes;
  make_room(pool, kind, bytes, now > pool->most_busy[kind] ? now : pool->most_busy[kind], NULL);
}

static void *ask_upstream(rs_storage_pool *pool, size_t bytes, const rs_lane *lane) {
  pool->failure = RESHARD_ERROR_OUT_OF_MEMORY;
  return pool->upstream.alloc(pool->upstream.user, bytes, lane->stream);
}

reshard_status rs_upstream_alloc(rs_storage_pool *pool, rs_kind kind, size_t bytes, rs_lane *lane, void **memory) {
  size_t limit = pool->limit > 0 ? pool->limit : SIZE_MAX;
  make_room(pool, RS_ALL, bytes, limit, lane);
  if (pool->keep == 0 && kind != RS_ALONE)
    make_room_kept(pool, kind, bytes);
  if (pool->held[RS_ALL] > limit || bytes > limit - pool->held[RS_ALL])
    return RESHARD_ERROR_OUT_OF_MEMORY;
  void *made = ask_upstream(pool, bytes, lane);
  if (made == NULL && pool->oldest != NULL && pool->failure == RESHARD_ERROR_OUT_OF_MEMORY) {
    make_room(pool, RS_ALL, bytes, 0, lane);
    made = ask_upstream(pool, bytes, lane);
  }
  if (made == NULL)
    return pool->failure;
  pool->stats.upstream_allocs++;
  pool->held[kind] += bytes;
  pool->held[RS_ALL] += bytes;
  if (pool->held[RS_ALL] > pool->stats.peak_held_bytes)
    pool->stats.peak_held_bytes = pool->held[RS_ALL];
  *memory = made;
  return RESHARD_SUCCESS;
}

reshard_status rs_piece_grow(rs_storage_pool *pool, rs_kind kind, size_t size, rs_lane *lane, rs_store **out) {
  size_t bytes = kind == RS_SMALL ? SLAB : size;
  rs_pool_piece *piece;
  rs_store *store;
  RS_TRY(rs_alloc_zero(&piece, 1, sizeof *piece));
  reshard_status status;
  RS_TRY_GOTO(status, rs_store_take_spare(pool, &store), no_store);
  status = rs_upstream_alloc(pool, kind, bytes, lane, &store->block.memory);
  if (status == RESHARD_ERROR_OUT_OF_MEMORY && bytes > size)
    status = rs_upstream_alloc(pool, kind, bytes = size, lane, &store->block.memory);
  if (status != RESHARD_SUCCESS)
    goto no_memory;
  *piece = (rs_pool_piece){.next = pool->pieces, .first = store, .bytes = bytes, .kind = kind};
  if (pool->pieces != NULL)
    pool->pieces->prev = piece;
  pool->pieces = piece;
  link_idle(pool, piece);
  store->size = bytes;
  store->piece = piece;
  store->before = store->behind = NULL;
  store->free = true;
  rs_store_set_lane(store, lane);
  store->needs = lane->marks + 1;
  *out = store;
  return RESHARD_SUCCESS;
no_memory:
  rs_store_give_spare(pool, store);
no_store:
  free(piece);
  return status;
}
