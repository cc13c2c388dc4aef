/* Streams as a storage pool sees them, and the order between them. */
#include "base/range.h"
#include "device/memory/bins.h"
#include "device/stream.h"

#include <sched.h>
#include <stdlib.h>

/* Names a thread: its address tells living threads apart, the time those that had the address one after another. */
static rs_pool_thread this_thread(void) {
  static _Thread_local int64_t since;
  if (since == 0)
    since = rs_now_ns();
  return (rs_pool_thread){&since, since};
}

static bool same_thread(rs_pool_thread a, rs_pool_thread b) { return a.place == b.place && a.since == b.since; }

static bool per_thread(const rs_storage_pool *pool, const void *stream) {
  return stream != NULL && stream == pool->device->thread_stream;
}

/* Finds a stream to use again: ended, or of a thread whose place a new one has, and of no block any more. */
static rs_pool_stream *unused_stream(rs_storage_pool *pool, rs_pool_thread thread) {
  for (int64_t i = 0; i < pool->streams.n; i++) {
    rs_pool_stream *at = pool->streams.at[i];
    bool ended = at->ended || (thread.place != NULL && at->thread.place == thread.place);
    if (ended && at->references == 0)
      return at;
  }
  return NULL;
}

static reshard_status new_stream(rs_storage_pool *pool, rs_pool_thread thread, rs_pool_stream **stream) {
  rs_pool_stream *made = unused_stream(pool, thread); /* its new events have higher numbers than others have seen */
  if (made != NULL) {
    *stream = made;
    return RESHARD_SUCCESS;
  }
  int64_t n = pool->streams.n;
  RS_TRY(rs_vec_reserve(&pool->streams, n + 1));
  for (int64_t i = 0; i < n; i++) {
    RS_TRY(rs_vec_reserve(&pool->streams.at[i]->seen, n + 1));
    pool->streams.at[i]->seen.at[n] = 0;
  }
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  RS_TRY_OR(rs_vec_reserve(&made->seen, n + 1), free(made));
  made->index = n;
  rs_pool_bins_init(&made->bins[RS_POOL_SMALL]);
  rs_pool_bins_init(&made->bins[RS_POOL_LARGE]);
  pool->streams.at[pool->streams.n++] = made;
  *stream = made;
  return RESHARD_SUCCESS;
}

reshard_status rs_pool_stream_of(rs_storage_pool *pool, void *handle, rs_pool_stream **stream) {
  rs_pool_thread thread = per_thread(pool, handle) ? this_thread() : (rs_pool_thread){NULL, 0};
  for (int64_t i = 0; i < pool->streams.n; i++) {
    rs_pool_stream *at = pool->streams.at[i];
    if (at->handle == handle && same_thread(at->thread, thread) && !at->ended && at != pool->release_stream) {
      *stream = at;
      return RESHARD_SUCCESS;
    }
  }
  RS_TRY(new_stream(pool, thread, stream));
  (*stream)->handle = handle;
  (*stream)->thread = thread;
  (*stream)->ended = false;
  for (int64_t i = 0; i < pool->streams.n; i++)
    (*stream)->seen.at[i] = 0;
  return RESHARD_SUCCESS;
}

void rs_pool_stream_free(rs_storage_pool *pool, rs_pool_stream *stream) {
  rs_pool_event_release(pool, stream->last);
  free(stream->seen.at);
  free(stream);
}

/* --- Events ------------------------------------------------------------------------------------------------------ */

void rs_pool_event_release(rs_storage_pool *pool, rs_pool_event *event) {
  if (event == NULL || --event->references > 0)
    return;
  event->next = pool->spare_events; /* no stream will wait for its record any more */
  pool->spare_events = event;
}

static reshard_status take_event(rs_storage_pool *pool, rs_pool_event **event) {
  rs_pool_event *made = pool->spare_events;
  if (made != NULL) {
    pool->spare_events = made->next;
  } else {
    RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
    RS_TRY_OR(pool->device->streams->event_create(pool->device, &made->handle), free(made));
  }
  made->references = 1;
  *event = made;
  return RESHARD_SUCCESS;
}

/* Stream on which an event comes after all work of the pool stream: in another thread the legacy stream, which comes
 * after the streams of all threads. */
static void *stream_to_record(const rs_storage_pool *pool, const rs_pool_stream *stream) {
  bool other = stream->thread.place != NULL && !same_thread(stream->thread, this_thread());
  return other ? pool->device->legacy_stream : stream->handle;
}

/* An event that is recorded on a captured stream belongs to the graph: no other stream can wait for it. */
bool rs_pool_stream_captured(rs_storage_pool *pool, const rs_pool_stream *stream) {
  bool captured = false;
  return !stream->ended && (pool->device->streams->capturing(pool->device, stream_to_record(pool, stream), &captured) !=
                                RESHARD_SUCCESS ||
                            captured);
}

reshard_status rs_pool_stream_record(rs_storage_pool *pool, rs_pool_stream *stream, const char *edge) {
  rs_pool_event *made;
  bool captured;
  if (stream->ended)
    return RESHARD_SUCCESS;
  RS_TRY(pool->device->streams->capturing(pool->device, stream_to_record(pool, stream), &captured));
  if (captured)
    return rs_error(RESHARD_ERROR_INVALID, "stream %p, that storage was used on, is being captured", stream->handle);
  RS_TRY(take_event(pool, &made));
  RS_TRY_OR(rs_stream_record(pool->device, made->handle, stream_to_record(pool, stream), edge),
            rs_pool_event_release(pool, made));
  pool->stats.records++;
  made->number = ++stream->records;
  rs_pool_event_release(pool, stream->last);
  stream->last = made;
  return RESHARD_SUCCESS;
}

/* --- Order ------------------------------------------------------------------------------------------------------ */

/* Cost to come after an event of another stream, which may not be recorded yet. */
static int stream_distance(rs_storage_pool *pool, const rs_pool_stream *stream, const rs_pool_stream *other,
                           uint64_t needs) {
  if (other == stream || stream->seen.at[other->index] >= needs)
    return 0;
  if (other->records >= needs)
    return 1;
  return rs_pool_stream_captured(pool, other) ? 3 : 2;
}

int rs_pool_stream_distance(rs_storage_pool *pool, const rs_pool_stream *stream, const rs_pool_block *block) {
  int most = stream_distance(pool, stream, block->stream, block->needs);
  for (int64_t i = 0; i < block->uses.n && most < 3; i++) {
    const rs_pool_use *use = &block->uses.at[i];
    int more = stream_distance(pool, stream, use->stream, use->event != NULL ? use->event->number : use->needs);
    most = more > most ? more : most;
  }
  return most;
}

static reshard_status wait_for_event(rs_storage_pool *pool, rs_pool_stream *stream, const rs_pool_stream *other,
                                     const rs_pool_event *event, const char *edge) {
  if (other == stream || stream->seen.at[other->index] >= event->number)
    return RESHARD_SUCCESS;
  RS_TRY(rs_stream_wait(pool->device, stream->handle, event->handle, edge));
  pool->stats.waits++;
  stream->seen.at[other->index] = event->number;
  return RESHARD_SUCCESS;
}

/* Waits for the other stream's last event where that is late enough, or for a new one. */
static reshard_status wait_for_event_number(rs_storage_pool *pool, rs_pool_stream *stream, rs_pool_stream *other,
                                            uint64_t needs, const char *edge) {
  if (other == stream || stream->seen.at[other->index] >= needs)
    return RESHARD_SUCCESS;
  if (other->records < needs)
    RS_TRY(rs_pool_stream_record(pool, other, edge));
  return wait_for_event(pool, stream, other, other->last, edge);
}

reshard_status rs_pool_stream_order(rs_storage_pool *pool, rs_pool_stream *stream, const rs_pool_block *block) {
  RS_TRY(wait_for_event_number(pool, stream, block->stream, block->needs, RS_EDGE("storage: reuse after free")));
  for (int64_t i = 0; i < block->uses.n; i++) {
    const rs_pool_use *use = &block->uses.at[i];
    if (use->event != NULL)
      RS_TRY(wait_for_event(pool, stream, use->stream, use->event, RS_EDGE("storage: reuse after use")));
    else
      RS_TRY(wait_for_event_number(pool, stream, use->stream, use->needs, RS_EDGE("storage: reuse after home")));
  }
  return RESHARD_SUCCESS;
}

static bool synchronize_event(rs_storage_pool *pool, const rs_pool_event *event) {
  bool done = event == NULL;
  RS_RANGE("wait", -1, -1, -1, -1);
  while (!done && pool->device->streams->event_done(pool->device, event->handle, &done) == RESHARD_SUCCESS)
    sched_yield();
  return done;
}

bool rs_pool_stream_synchronize(rs_storage_pool *pool, const rs_pool_stream *stream) {
  if (stream->ended)
    return synchronize_event(pool, stream->last);
  return !rs_pool_stream_captured(pool, stream) &&
         pool->device->streams->synchronize(pool->device, stream_to_record(pool, stream)) == RESHARD_SUCCESS;
}

void rs_pool_block_synchronize(rs_storage_pool *pool, const rs_pool_block *block) {
  (void)rs_pool_stream_synchronize(pool, block->stream);
  for (int64_t i = 0; i < block->uses.n; i++)
    if (block->uses.at[i].event != NULL)
      (void)synchronize_event(pool, block->uses.at[i].event);
    else
      (void)rs_pool_stream_synchronize(pool, block->uses.at[i].stream);
}

void rs_pool_block_set_stream(rs_pool_block *block, rs_pool_stream *stream) {
  if (block->stream != NULL)
    block->stream->references--;
  block->stream = stream;
  if (stream != NULL)
    stream->references++;
}

void rs_pool_block_drop_uses(rs_storage_pool *pool, rs_pool_block *block) {
  for (int64_t i = 0; i < block->uses.n; i++) {
    block->uses.at[i].stream->references--;
    rs_pool_event_release(pool, block->uses.at[i].event);
  }
  block->uses.n = 0;
}
