/* Inside of a storage pool.
 *
 * A segment is memory as the device's allocator gave it. Blocks divide it, each in use or free. A pool stream is a
 * stream with the free blocks that are its own, and counts the events that were recorded on it. "After event n" is
 * then a comparison of numbers; each stream remembers of every other one the last event that it waited for.
 *
 * A free block names the event of its stream after which others may use it, recorded already or not; its own stream
 * needs none. Other streams that used the block have their events in `uses`. These are recorded when the block is
 * freed, since later work of these streams does not use it. They are waited for when the block is allocated again. */
#ifndef RS_DEVICE_MEMORY_POOL_INTERNAL_H
#define RS_DEVICE_MEMORY_POOL_INTERNAL_H

#include "device/memory/pool.h"

#include <pthread.h>

typedef struct rs_pool_stream rs_pool_stream;
typedef struct rs_pool_block rs_pool_block;
typedef struct rs_pool_segment rs_pool_segment;

/* Blocks of slabs; blocks of segments of their own size; memory that is no part of a segment. */
typedef enum rs_pool_kind {
  RS_POOL_SMALL,
  RS_POOL_LARGE,
  RS_POOL_KINDS,
  RS_POOL_DEDICATED = RS_POOL_KINDS,
  RS_POOL_ALL
} rs_pool_kind;

typedef struct rs_pool_event {
  rs_event *handle;
  uint64_t number; /* on its stream, from 1 on */
  int64_t references;
  struct rs_pool_event *next; /* spare events */
} rs_pool_event;

/* Of a block in use: a stream that uses it; event NULL, needs 0. Of a free one: the event after the last use there. Of
 * the stream that it was allocated on only the event's number, as in rs_pool_block: mostly that stream takes it again.
 */
typedef struct rs_pool_use {
  rs_pool_stream *stream;
  rs_pool_event *event;
  uint64_t needs;
} rs_pool_use;

typedef struct rs_pool_link {
  struct rs_pool_link *next, *prev;
} rs_pool_link;

struct rs_pool_block {
  rs_pool_link link; /* in a list of free blocks; first, so that a link is its block */
  rs_block base;
  size_t size;                /* bytes of the segment */
  rs_pool_segment *segment;   /* NULL: dedicated memory */
  rs_pool_block *prev, *next; /* neighbours in the segment */
  rs_pool_stream *stream;     /* in use: allocated on; free: whose list it is in */
  uint64_t needs;             /* free: number of the stream's event after which others may use it */
  bool free;
  RS_VEC(rs_pool_use) uses;
};

struct rs_pool_segment {
  rs_pool_segment *next, *prev;   /* of all */
  rs_pool_segment *older, *newer; /* of those without a block in use */
  rs_pool_block *first;
  size_t bytes;
  int64_t used;      /* blocks */
  rs_pool_kind kind; /* RS_POOL_SMALL or RS_POOL_LARGE */
};

/* Free blocks of a stream by size: a list for each eighth of a power of two, and a bit where it is not empty. */
enum { RS_BIN_SMALLEST = 8, RS_BIN_LARGEST = 47, RS_BIN_EIGHTHS = 8 };
typedef struct rs_pool_bins {
  uint64_t powers;
  uint8_t eighths[RS_BIN_LARGEST - RS_BIN_SMALLEST + 1];
  rs_pool_link list[RS_BIN_LARGEST - RS_BIN_SMALLEST + 1][RS_BIN_EIGHTHS];
} rs_pool_bins;

typedef struct rs_pool_thread {
  const void *place; /* in memory of the thread; NULL: none */
  int64_t since;
} rs_pool_thread;

struct rs_pool_stream {
  void *handle;
  rs_pool_thread thread; /* where the handle means another stream in each thread */
  bool ended;            /* forgotten: its last event comes after everything */
  int64_t index;
  int64_t references; /* of blocks */
  uint64_t records;   /* events so far */
  rs_pool_event *last;
  RS_VEC(uint64_t) seen; /* by index of the other stream: its last event that this one comes after */
  rs_pool_bins bins[RS_POOL_KINDS];
};

struct rs_storage_pool {
  rs_device *device;
  reshard_allocator upstream;
  size_t limit;
  int64_t keep;
  size_t dedicated_below, slabs_below; /* smaller sizes get dedicated memory; come from slabs. 0: none do */
  size_t granule[RS_POOL_KINDS];       /* sizes are multiples */
  size_t segment_granule;              /* those of segments are, too */
  reshard_status failure;              /* of upstream */
  pthread_mutex_t mutex;
  RS_VEC(rs_pool_stream *) streams;
  rs_pool_stream *release_stream; /* side stream on which memory goes back; NULL: not made yet */
  /* Side stream of memory that all streams use, which has no other work; NULL: not made yet. Blocks of such memory, by
   * address. */
  rs_pool_stream *plain_stream;
  RS_VEC(rs_pool_block *) plain;
  rs_pool_segment *segments, *oldest, *newest;
  rs_pool_block *spare;         /* records without memory */
  rs_pool_block *pending_frees; /* freed while a stream that uses them was being captured; linked by link.next */
  rs_pool_event *spare_events;
  /* Bytes that upstream has given, by kind and of all; of segments with blocks in use; the most of these. */
  size_t held[RS_POOL_ALL + 1], busy[RS_POOL_KINDS], most_busy[RS_POOL_KINDS];
  reshard_memory_stats stats;
};

/* streams.c */
/* The pool's stream of a handle that the calling thread gave. */
reshard_status rs_pool_stream_of(rs_storage_pool *pool, void *handle, rs_pool_stream **stream);
void rs_pool_stream_free(rs_storage_pool *pool, rs_pool_stream *stream);
/* Records an event on the stream as it is now: stream->last. */
reshard_status rs_pool_stream_record(rs_storage_pool *pool, rs_pool_stream *stream, const char *edge);
void rs_pool_event_release(rs_storage_pool *pool, rs_pool_event *event);
/* Cost for a stream to come after a free block: 0: nothing, 1: a wait, 2: a record and a wait, 3: impossible. */
int rs_pool_stream_distance(rs_storage_pool *pool, const rs_pool_stream *stream, const rs_pool_block *block);
/* Makes a stream come after a free block, which then is free for it. */
reshard_status rs_pool_stream_order(rs_storage_pool *pool, rs_pool_stream *stream, const rs_pool_block *block);
bool rs_pool_stream_captured(rs_storage_pool *pool, const rs_pool_stream *stream);
/* Makes the host wait for a stream, or for a block's uses: where nothing else works. */
bool rs_pool_stream_synchronize(rs_storage_pool *pool, const rs_pool_stream *stream);
void rs_pool_block_synchronize(rs_storage_pool *pool, const rs_pool_block *block);
void rs_pool_block_set_stream(rs_pool_block *block, rs_pool_stream *stream);
void rs_pool_block_drop_uses(rs_storage_pool *pool, rs_pool_block *block);

/* pool.c: allocates a block with memory of its own, which is no part of a segment; none for 0 bytes. */
reshard_status rs_pool_take_dedicated(rs_storage_pool *pool, rs_pool_stream *stream, size_t bytes,
                                      rs_pool_block **block);
/* Counts a block that is given out. */
void rs_pool_count_alloc(rs_storage_pool *pool, rs_pool_block *block, size_t bytes);
/* Counts bytes more as in use. */
void rs_pool_count_use(rs_storage_pool *pool, size_t bytes);
reshard_status rs_pool_error_memory(const rs_storage_pool *pool, size_t bytes);

/* blocks.c */
reshard_status rs_pool_block_new(rs_storage_pool *pool, rs_pool_block **block);
void rs_pool_block_recycle(rs_storage_pool *pool, rs_pool_block *block);
/* Allocates from the pool's upstream; gives idle segments back where that is needed. */
reshard_status rs_pool_upstream_alloc(rs_storage_pool *pool, rs_pool_kind kind, size_t bytes, rs_pool_stream *stream,
                                      void **memory);
void rs_pool_upstream_free(rs_storage_pool *pool, rs_pool_kind kind, void *memory, size_t bytes, void *stream);
/* Counts memory of the driver's as held and in use, within the limit; no more when it is given back. */
reshard_status rs_pool_count_driver(rs_storage_pool *pool, size_t bytes);
void rs_pool_uncount_driver(rs_storage_pool *pool, size_t bytes);
/* Adds a segment, as one free block of a stream that is in no list. */
reshard_status rs_pool_segment_add(rs_storage_pool *pool, rs_pool_kind kind, size_t size, rs_pool_stream *stream,
                                   rs_pool_block **block);
/* Counts one block more, or one less, of the segment as in use. */
void rs_pool_segment_use(rs_storage_pool *pool, rs_pool_segment *segment);
void rs_pool_segment_unuse(rs_storage_pool *pool, rs_pool_segment *segment);
static inline size_t rs_pool_kept(const rs_storage_pool *pool) {
  return pool->held[RS_POOL_ALL] - pool->stats.in_use_bytes;
}
/* Gives back segments of which nothing is in use, oldest first, until no more than `keep` bytes are kept. */
void rs_pool_segments_trim(rs_storage_pool *pool, size_t keep);
/* Trims to the pool's keep_bytes, where that is not 0: growing keeps to 0 by itself. */
void rs_pool_segments_keep_within(rs_storage_pool *pool);
/* Gives all segments back; blocks where that is needed. */
void rs_pool_segments_free(rs_storage_pool *pool);
/* Merges free blocks from first to last, which are neighbours and in no list, into one of the first's stream. */
rs_pool_block *rs_pool_blocks_merge(rs_storage_pool *pool, rs_pool_block *first, const rs_pool_block *last);
/* Puts a free block that is in no list into its stream's, merged with neighbours that are free for that stream. */
void rs_pool_block_insert(rs_storage_pool *pool, rs_pool_block *block);
/* Splits off all behind `size`, where that is possible and worth while, and puts it in the stream's list. */
void rs_pool_block_split(rs_storage_pool *pool, rs_pool_block *block, size_t size);

/* free.c: finishes pending frees, where that is possible now. */
void rs_pool_retry_frees(rs_storage_pool *pool);
/* Gives back memory of a block's own. */
void rs_pool_free_dedicated(rs_storage_pool *pool, rs_pool_block *block, void *stream);

static inline rs_pool_bins *rs_pool_bins_of(rs_pool_stream *stream, const rs_pool_block *block) {
  return &stream->bins[block->segment->kind];
}

#endif
