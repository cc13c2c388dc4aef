/* Streams as a storage pool sees them, and the order between them. */
#include "device/memory/pool_internal.h"
#include "device/stream.h"

#include <sched.h>
#include <stdlib.h>

/* An address tells threads apart that live, and the time those that had it one after another. */
static rs_thread this_thread(void) {
  static _Thread_local int64_t since;
  if (since == 0)
    since = rs_now_ns();
  return (rs_thread){&since, since};
}

static bool same(rs_thread a, rs_thread b) { return a.place == b.place && a.since == b.since; }

static bool per_thread(const rs_storage_pool *pool, const void *stream) {
  return stream != NULL && stream == pool->device->thread_stream;
}

/* Of the lanes that ended, or whose thread had the place that a new one has, one that no block knows any more. */
static rs_lane *unused(rs_storage_pool *pool, rs_thread thread) {
  for (int64_t i = 0; i < pool->lanes.n; i++) {
    rs_lane *at = pool->lanes.at[i];
    bool ended = at->ended || (thread.place != NULL && at->thread.place == thread.place);
    if (ended && at->references == 0)
      return at;
  }
  return NULL;
}

static reshard_status new_lane(rs_storage_pool *pool, rs_thread thread, rs_lane **lane) {
  rs_lane *made = unused(pool, thread); /* what others have seen of it is of lower numbers than the marks to come */
  if (made != NULL) {
    *lane = made;
    return RESHARD_SUCCESS;
  }
  int64_t n = pool->lanes.n;
  RS_TRY(rs_vec_reserve(&pool->lanes, n + 1));
  for (int64_t i = 0; i < n; i++) {
    RS_TRY(rs_vec_reserve(&pool->lanes.at[i]->seen, n + 1));
    pool->lanes.at[i]->seen.at[n] = 0;
  }
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  reshard_status status = rs_vec_reserve(&made->seen, n + 1);
  if (status != RESHARD_SUCCESS) {
    free(made);
    return status;
  }
  made->index = n;
  rs_bins_init(&made->bins[RS_SMALL]);
  rs_bins_init(&made->bins[RS_LARGE]);
  pool->lanes.at[pool->lanes.n++] = made;
  *lane = made;
  return RESHARD_SUCCESS;
}

reshard_status rs_lane_of(rs_storage_pool *pool, void *stream, rs_lane **lane) {
  rs_thread thread = per_thread(pool, stream) ? this_thread() : (rs_thread){NULL, 0};
  for (int64_t i = 0; i < pool->lanes.n; i++) {
    rs_lane *at = pool->lanes.at[i];
    if (at->stream == stream && same(at->thread, thread) && !at->ended && at != pool->sweeper) {
      *lane = at;
      return RESHARD_SUCCESS;
    }
  }
  RS_TRY(new_lane(pool, thread, lane));
  (*lane)->stream = stream;
  (*lane)->thread = thread;
  (*lane)->ended = false;
  for (int64_t i = 0; i < pool->lanes.n; i++)
    (*lane)->seen.at[i] = 0;
  return RESHARD_SUCCESS;
}

void rs_lane_free(rs_storage_pool *pool, rs_lane *lane) {
  rs_mark_drop(pool, lane->last);
  free(lane->seen.at);
  free(lane);
}

/* --- Marks ------------------------------------------------------------------------------------------------------ */

void rs_mark_drop(rs_storage_pool *pool, rs_mark *mark) {
  if (mark == NULL || --mark->references > 0)
    return;
  mark->next = pool->spare_marks; /* nobody will wait for what it was recorded at */
  pool->spare_marks = mark;
}

static reshard_status take_mark(rs_storage_pool *pool, rs_mark **mark) {
  rs_mark *made = pool->spare_marks;
  if (made != NULL) {
    pool->spare_marks = made->next;
  } else {
    RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
    reshard_status status = pool->device->ops->event_create(pool->device, &made->event);
    if (status != RESHARD_SUCCESS) {
      free(made);
      return status;
    }
  }
  made->references = 1;
  *mark = made;
  return RESHARD_SUCCESS;
}

/* Where an event can be recorded that comes after all that the lane was given: in another thread, the stream that
 * comes after the streams of all threads. */
static void *stream_to_mark(const rs_storage_pool *pool, const rs_lane *lane) {
  bool other = lane->thread.place != NULL && !same(lane->thread, this_thread());
  return other ? pool->device->legacy_stream : lane->stream;
}

/* What is recorded on a captured stream is of the graph: nobody outside can wait for it. */
bool rs_lane_captured(rs_storage_pool *pool, const rs_lane *lane) {
  bool captured = false;
  return !lane->ended &&
         (pool->device->ops->capturing(pool->device, stream_to_mark(pool, lane), &captured) != RESHARD_SUCCESS ||
          captured);
}

reshard_status rs_lane_mark(rs_storage_pool *pool, rs_lane *lane, const char *edge) {
  rs_mark *made;
  bool captured;
  if (lane->ended)
    return RESHARD_SUCCESS;
  RS_TRY(pool->device->ops->capturing(pool->device, stream_to_mark(pool, lane), &captured));
  if (captured)
    return rs_error(RESHARD_ERROR_INVALID, "stream %p, that storage was used on, is being captured", lane->stream);
  RS_TRY(take_mark(pool, &made));
  reshard_status status = rs_stream_record(pool->device, made->event, stream_to_mark(pool, lane), edge);
  if (status != RESHARD_SUCCESS) {
    rs_mark_drop(pool, made);
    return status;
  }
  pool->stats.records++;
  made->number = ++lane->marks;
  rs_mark_drop(pool, lane->last);
  lane->last = made;
  return RESHARD_SUCCESS;
}

/* --- Order ------------------------------------------------------------------------------------------------------ */

/* To come after a mark of another lane, which may not be there yet. */
static int distance(rs_storage_pool *pool, const rs_lane *lane, const rs_lane *other, uint64_t needs) {
  if (other == lane || lane->seen.at[other->index] >= needs)
    return 0;
  if (other->marks >= needs)
    return 1;
  return rs_lane_captured(pool, other) ? 3 : 2;
}

int rs_lane_distance(rs_storage_pool *pool, const rs_lane *lane, const rs_store *store) {
  int most = distance(pool, lane, store->lane, store->needs);
  for (int64_t i = 0; i < store->after.n && most < 3; i++) {
    const rs_after *use = &store->after.at[i];
    int more = distance(pool, lane, use->lane, use->mark != NULL ? use->mark->number : use->needs);
    most = more > most ? more : most;
  }
  return most;
}

static reshard_status wait_for(rs_storage_pool *pool, rs_lane *lane, const rs_lane *other, const rs_mark *mark,
                               const char *edge) {
  if (other == lane || lane->seen.at[other->index] >= mark->number)
    return RESHARD_SUCCESS;
  RS_TRY(rs_stream_wait(pool->device, lane->stream, mark->event, edge));
  pool->stats.waits++;
  lane->seen.at[other->index] = mark->number;
  return RESHARD_SUCCESS;
}

/* The other lane's last mark serves, or a new one. */
static reshard_status wait_for_number(rs_storage_pool *pool, rs_lane *lane, rs_lane *other, uint64_t needs,
                                      const char *edge) {
  if (other == lane || lane->seen.at[other->index] >= needs)
    return RESHARD_SUCCESS;
  if (other->marks < needs)
    RS_TRY(rs_lane_mark(pool, other, edge));
  return wait_for(pool, lane, other, other->last, edge);
}

reshard_status rs_lane_order(rs_storage_pool *pool, rs_lane *lane, const rs_store *store) {
  RS_TRY(wait_for_number(pool, lane, store->lane, store->needs, RS_EDGE("storage: reuse after free")));
  for (int64_t i = 0; i < store->after.n; i++) {
    const rs_after *use = &store->after.at[i];
    if (use->mark != NULL)
      RS_TRY(wait_for(pool, lane, use->lane, use->mark, RS_EDGE("storage: reuse after use")));
    else
      RS_TRY(wait_for_number(pool, lane, use->lane, use->needs, RS_EDGE("storage: reuse after home")));
  }
  return RESHARD_SUCCESS;
}

static bool wait_for_mark(rs_storage_pool *pool, const rs_mark *mark) {
  bool done = mark == NULL;
  while (!done && pool->device->ops->event_done(pool->device, mark->event, &done) == RESHARD_SUCCESS)
    sched_yield();
  return done;
}

bool rs_lane_wait(rs_storage_pool *pool, const rs_lane *lane) {
  if (lane->ended)
    return wait_for_mark(pool, lane->last);
  return !rs_lane_captured(pool, lane) &&
         pool->device->ops->synchronize(pool->device, stream_to_mark(pool, lane)) == RESHARD_SUCCESS;
}

void rs_store_wait(rs_storage_pool *pool, const rs_store *store) {
  (void)rs_lane_wait(pool, store->lane);
  for (int64_t i = 0; i < store->after.n; i++)
    if (store->after.at[i].mark != NULL)
      (void)wait_for_mark(pool, store->after.at[i].mark);
    else
      (void)rs_lane_wait(pool, store->after.at[i].lane);
}

void rs_store_set_lane(rs_store *store, rs_lane *lane) {
  if (store->lane != NULL)
    store->lane->references--;
  store->lane = lane;
  if (lane != NULL)
    lane->references++;
}

void rs_store_drop_after(rs_storage_pool *pool, rs_store *store) {
  for (int64_t i = 0; i < store->after.n; i++) {
    store->after.at[i].lane->references--;
    rs_mark_drop(pool, store->after.at[i].mark);
  }
  store->after.n = 0;
}
