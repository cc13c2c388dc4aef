/* Inside of a storage pool.
 *
 * A piece is memory as the device's allocator gave it; blocks divide it, each in use or free. A lane is a stream as the
 * pool sees it, with the free blocks that are its own. A mark is an event that was recorded on a lane: the n-th of that
 * lane, so that "after mark n" is a comparison of numbers, and a lane remembers for every other one the last mark that
 * it was made to wait for. A free block needs, of its lane, a mark that is not there yet or that others can wait for;
 * the lane itself needs none. Where the block was used on more streams, their marks are with it: taken when it was
 * freed, since what these streams are given later is no use of it, and waited for only when the block is taken. */
#ifndef RS_DEVICE_STORAGE_INSIDE_H
#define RS_DEVICE_STORAGE_INSIDE_H

#include "device/memory/pool.h"

#include <pthread.h>

typedef struct rs_lane rs_lane;
typedef struct rs_store rs_store; /* a block, with what is not shown of it */
typedef struct rs_pool_piece rs_pool_piece;

/* Blocks of slabs, blocks of pieces that were made for them, and memory that is no part of a piece. */
typedef enum rs_kind { RS_SMALL, RS_LARGE, RS_KINDS, RS_ALONE = RS_KINDS, RS_ALL } rs_kind;

typedef struct rs_mark {
  rs_event *event;
  uint64_t number; /* on its lane, from 1 on */
  int64_t references;
  struct rs_mark *next; /* of those that may be recorded again */
} rs_mark;

/* In use: a lane that uses the block, mark NULL and needs 0. Free: a mark of the last use there; or, of the lane that
 * it was allocated on, only which one it needs, as in rs_store: mostly it is that lane that takes it again. */
typedef struct rs_after {
  rs_lane *lane;
  rs_mark *mark;
  uint64_t needs;
} rs_after;

typedef struct rs_ring { /* in a list of free blocks; first, so that it is the block */
  struct rs_ring *next, *prev;
} rs_ring;

struct rs_store {
  rs_ring ring;
  rs_block block;
  size_t size;               /* bytes of the piece */
  rs_pool_piece *piece;      /* NULL: memory of its own, that goes back at once */
  rs_store *before, *behind; /* its neighbours there */
  rs_lane *lane;             /* in use: allocated on; free: whose list it is in */
  uint64_t needs;            /* free: number of the lane's mark, there or not, after which others may use it */
  bool free;
  RS_VEC(rs_after) after;
};

struct rs_pool_piece {
  rs_pool_piece *next, *prev;   /* of all */
  rs_pool_piece *older, *newer; /* of those without a block in use */
  rs_store *first;
  size_t bytes;
  int64_t used; /* blocks */
  rs_kind kind; /* RS_SMALL or RS_LARGE */
};

/* Free blocks of a lane by size: a list for each eighth of a power of two, and a bit where it is not empty. */
enum { RS_SMALLEST = 8, RS_LARGEST = 47, RS_EIGHTHS = 8 };
typedef struct rs_bins {
  uint64_t powers;
  uint8_t eighths[RS_LARGEST - RS_SMALLEST + 1];
  rs_ring list[RS_LARGEST - RS_SMALLEST + 1][RS_EIGHTHS];
} rs_bins;

typedef struct rs_thread {
  const void *place; /* in memory of the thread; NULL: none */
  int64_t since;
} rs_thread;

struct rs_lane {
  void *stream;
  rs_thread thread; /* whose stream it is, where the handle means another one in each thread */
  bool ended;       /* forgotten: its last mark covers everything */
  int64_t index;
  int64_t references; /* of blocks */
  uint64_t marks;     /* so far */
  rs_mark *last;
  RS_VEC(uint64_t) seen; /* by index of the other lane: its mark that this one comes after */
  rs_bins bins[RS_KINDS];
};

struct rs_storage_pool {
  rs_device *device;
  reshard_allocator upstream;
  size_t limit;
  int64_t keep;
  size_t alone, small;      /* sizes below have memory of their own; come from slabs. 0: none */
  size_t granule[RS_KINDS]; /* sizes are multiples */
  reshard_status failure;   /* of upstream */
  pthread_mutex_t mutex;
  RS_VEC(rs_lane *) lanes;
  rs_lane *sweeper; /* side stream on which memory goes back; NULL: not made yet */
  rs_pool_piece *pieces, *oldest, *newest;
  rs_store *spare; /* blocks that are none */
  rs_store *stuck; /* freed, and waiting for streams that are being captured; linked by ring.next */
  rs_mark *spare_marks;
  /* Bytes that upstream has given, by kind and of all; of pieces with blocks in use; the most of these at one time. */
  size_t held[RS_ALL + 1], busy[RS_KINDS], most_busy[RS_KINDS];
  reshard_memory_stats stats;
};

/* storage_bins.c */
void rs_bins_init(rs_bins *bins);
void rs_bins_put(rs_bins *bins, rs_store *store);
void rs_bins_remove(rs_bins *bins, rs_store *store);
/* Of `size` at least, and little more where that is there; NULL: none. */
rs_store *rs_bins_find(const rs_bins *bins, size_t size);

/* storage_lane.c */
/* The lane of a stream that the calling thread gave. */
reshard_status rs_lane_of(rs_storage_pool *pool, void *stream, rs_lane **lane);
void rs_lane_free(rs_storage_pool *pool, rs_lane *lane);
/* The lane's last mark is one of the lane as it is now. */
reshard_status rs_lane_mark(rs_storage_pool *pool, rs_lane *lane, const char *edge);
void rs_mark_drop(rs_storage_pool *pool, rs_mark *mark);
/* How much a lane needs to come after a free block: 0: nothing, 1: waits, 2: marks and waits, 3: it cannot. */
int rs_lane_distance(rs_storage_pool *pool, const rs_lane *lane, const rs_store *store);
/* lane comes after a free block, which then is free for it, and is left alone otherwise. */
reshard_status rs_lane_order(rs_storage_pool *pool, rs_lane *lane, const rs_store *store);
bool rs_lane_captured(rs_storage_pool *pool, const rs_lane *lane);
/* The host comes after a lane, or after a block's uses: where nothing else works. */
bool rs_lane_wait(rs_storage_pool *pool, const rs_lane *lane);
void rs_store_wait(rs_storage_pool *pool, const rs_store *store);
void rs_store_set_lane(rs_store *store, rs_lane *lane);
void rs_store_drop_after(rs_storage_pool *pool, rs_store *store);

/* storage_piece.c */
reshard_status rs_store_take_spare(rs_storage_pool *pool, rs_store **store);
void rs_store_give_spare(rs_storage_pool *pool, rs_store *store);
/* Memory of the pool's upstream, for which idle pieces are given back where that is needed. */
reshard_status rs_upstream_alloc(rs_storage_pool *pool, rs_kind kind, size_t bytes, rs_lane *lane, void **memory);
void rs_upstream_free(rs_storage_pool *pool, rs_kind kind, void *memory, size_t bytes, void *stream);
/* A new piece, as one free block of a lane that is in no list. */
reshard_status rs_piece_grow(rs_storage_pool *pool, rs_kind kind, size_t size, rs_lane *lane, rs_store **store);
/* One block more of it, or one less, is in use. */
void rs_piece_use(rs_storage_pool *pool, rs_pool_piece *piece);
void rs_piece_unuse(rs_storage_pool *pool, rs_pool_piece *piece);
static inline size_t rs_pool_kept(const rs_storage_pool *pool) { return pool->held[RS_ALL] - pool->stats.in_use_bytes; }
/* Gives pieces back of which nothing is in use, oldest first, until no more than `keep` bytes are kept. */
void rs_pieces_trim(rs_storage_pool *pool, size_t keep);
/* What keep_bytes says beyond what growing keeps to. */
void rs_pieces_keep_within(rs_storage_pool *pool);
/* All of them, whatever that takes. */
void rs_pieces_free(rs_storage_pool *pool);
/* Free blocks from first to last, which are neighbours and in no list, as one of the first's lane. */
rs_store *rs_store_join(rs_storage_pool *pool, rs_store *first, const rs_store *last);
/* A free block that is in no list, with its neighbours that are free for its lane alone, into the list. */
void rs_store_put(rs_storage_pool *pool, rs_store *store);
/* Cuts off what is behind `size`, where that is worth while and possible: it is put in the lane's list. */
void rs_store_cut(rs_storage_pool *pool, rs_store *store, size_t size);

/* storage_free.c: frees what was stuck, where that is possible now. */
void rs_storage_retry(rs_storage_pool *pool);

static inline rs_bins *rs_bins_of(rs_lane *lane, const rs_store *store) { return &lane->bins[store->piece->kind]; }

#endif
