/* A store: tensors, and where their bytes lie. What a checkpoint that is read, one that is written, and a caller's
 * memory have in common; data moves from store to store (move.h).
 *
 * Each tensor has a layout. What a rank holds of it is the layout's arrays; an array is stored whole, as one dense
 * block, or cut in its boxes - the products of its maximal runs per dim, row-major - each a dense block. */
#ifndef RS_FILE_STORE_H
#define RS_FILE_STORE_H

#include "exec/pull.h"
#include "file/model/internal.h"
#include "file/ground/names.h"
#include "file/ground/print.h"

/* Boxes that an array may be cut in; one of more is stored whole. */
#define RS_MOST_BOXES 64

typedef struct rs_file {
  char *path;         /* owned; for errors */
  int fd;             /* -1: none, owned else */
  char *memory;       /* a caller's buffer in place of a file; borrowed */
  int64_t size;       /* bytes */
  int64_t changed_ns; /* of a file that is read: time of its last change when it was opened */
} rs_file;

/* Where a dense block begins. */
typedef struct rs_spot {
  int64_t offset; /* in the file */
  int32_t file;
} rs_spot;

/* An array of a tensor: its blocks are spots[first .. first + count). count 1: the whole array (which may be one box);
 * above 1: box j at spot j. Arrays that are not stored (replicas left out, arrays without elements) have no hold. */
typedef struct rs_hold {
  int64_t rank, array;
  int64_t first;
  int32_t count;
} rs_hold;

typedef struct rs_stored {
  reshard_layout layout; /* owned reference; its shape is that of the model's tensor, reversed where `reversed` */
  int64_t first, count;  /* its holds, ascending by (rank, array) */
  bool reversed;         /* Fortran order: stored row-major with the dims in reverse */
} rs_stored;

typedef struct rs_store {
  reshard_model model;       /* owned; names, dtypes, shapes */
  RS_VEC(rs_stored) tensors; /* one per tensor of the model */
  RS_VEC(rs_hold) holds;
  RS_VEC(rs_spot) spots;
  RS_VEC(rs_file) files;
  RS_VEC(rs_view) views; /* one per hold, of arrays in a caller's memory of any strides: there are no spots and files */
} rs_store;

/* Closes the files, frees everything in it, and zeroes it. */
void rs_store_free(rs_store *store);

/* NULL when the array is not stored. */
const rs_hold *rs_store_find(const rs_store *store, int64_t tensor, int64_t rank, int64_t array);

/* Number of boxes of an array, and its extent in each dim (either may be NULL). */
reshard_status rs_array_boxes(reshard_layout layout, int64_t rank, int64_t array, int64_t *count, int64_t *shape);
/* Its box j, row-major: global offset and extent, and local: the first index of each dim in the array. Either may be
 * NULL. count must be at most RS_MOST_BOXES. */
reshard_status rs_array_box(reshard_layout layout, int64_t rank, int64_t array, int64_t j, reshard_box *global,
                            int64_t *local);

/* Moves the part [lo, lo + extent) of an array (its own indices, per dim) between its blocks and dense row-major memory
 * of that extent. Scratch memory is the caller's, grown here where it is needed. The error of a file that is shorter
 * than it was names it. */
typedef RS_VEC(char) rs_scratch;
reshard_status rs_store_read(const rs_store *store, int64_t tensor, const rs_hold *hold, const int64_t *lo,
                             const int64_t *extent, char *memory, rs_scratch *scratch);
reshard_status rs_store_write(const rs_store *store, int64_t tensor, const rs_hold *hold, const int64_t *lo,
                              const int64_t *extent, const char *memory, rs_scratch *scratch);

/* Bytes [offset, offset + n) of a file of the store, or of memory: short reads and writes, EINTR, end of file. */
reshard_status rs_file_get(const rs_file *file, int64_t offset, void *to, int64_t n);
reshard_status rs_file_put(const rs_file *file, int64_t offset, const void *from, int64_t n);

/* A region of a source tensor becomes a region of a target tensor, as in reshard_entry. Offsets and extents are in the
 * model's dims on both sides. */
typedef struct rs_route {
  int64_t src, dst; /* tensors of the two stores */
  int64_t src_offset[RESHARD_MAX_DIMS], src_extent[RESHARD_MAX_DIMS];
  int64_t dst_offset[RESHARD_MAX_DIMS], dst_extent[RESHARD_MAX_DIMS];
  int permutation[RESHARD_MAX_DIMS]; /* per dim of dst: the dim of src, or -1 for an inserted dim of extent 1 */
} rs_route;
typedef RS_VEC(rs_route) rs_routes;

/* map_apply.c: the target's model and the routes to it. map NULL: each tensor whole to itself, in the same order. */
reshard_status rs_map_apply(reshard_map map, reshard_model source, reshard_model *target, rs_routes *routes);

/* move.c: moves all routes from store to store, by T threads (0: one per core). The caller's thread takes part and
 * calls progress. compare: nothing is written, what would be is compared with what is there: RESHARD_ERROR_CORRUPT
 * naming tensor, file and offset. only_rank >= 0: arrays of that rank of the target alone, and of a source in memory.
 */
typedef struct rs_move {
  const rs_store *src, *dst;
  int64_t nroutes;
  const rs_route *routes;
  int threads;
  bool compare;
  int64_t only_rank;   /* -1: all */
  int64_t *read_bytes; /* grows by what was read of the source's files; may be NULL */
  int (*progress)(void *user, const char *stage, int64_t done, int64_t all);
  void *user;
} rs_move;
reshard_status rs_move_run(const rs_move *move);

/* memory.c: appends a tensor without arrays. Names are not looked at. */
reshard_status rs_memory_add(rs_store *store, reshard_dtype dtype, reshard_layout layout);
/* Appends arrays of a rank to the last tensor, in memory: views[a] of array a of the layout. Ranks ascend. */
reshard_status rs_memory_hold(rs_store *store, int64_t rank, const rs_view *views);
/* Views of contiguous buffers, as reshard_checkpoint_read takes them, appended to `views`. what begins the text of the
 * error that a buffer is NULL. */
typedef RS_VEC(rs_view) rs_views;
reshard_status rs_memory_views(const char *what, reshard_layout layout, int64_t rank, reshard_dtype dtype,
                               void *const *buffers, rs_views *views);
/* Appends routes from a source's tensor to the same boxes of a target's tensor: all that a rank of the target holds.
 * They have nothing else in them, so that nothing else is read, unless both layouts are one. */
reshard_status rs_rank_routes(const rs_store *src, int64_t from, const rs_store *dst, int64_t to, int64_t rank,
                              rs_routes *routes);
/* Appends the route from a whole tensor to a whole tensor of the same shape. */
reshard_status rs_whole_route(int64_t from, const rs_store *dst, int64_t to, rs_routes *routes);

/* Whether a source of this format says itself which rank has what. */
static inline bool rs_has_ranks(reshard_file_format format) {
  return format == RESHARD_FORMAT_SHARDS || format == RESHARD_FORMAT_DISTCP;
}

/* open.c */
struct reshard_checkpoint_s {
  rs_store store;
  reshard_checkpoint_info info;
  rs_names names; /* of the tensors; the text is the model's */
  bool directory; /* by the numbers that tell it from another of its name: */
  uint64_t device, inode;
};
/* As reshard_checkpoint_open; gaps_allowed: tensors need not be covered, boxes may overlap, and a writer's
 * temporary is not refused (what is read is then a target to compare with, never a source). */
reshard_status rs_checkpoint_open(const char *path, bool gaps_allowed, reshard_checkpoint *checkpoint);
/* RESHARD_ERROR_SYSTEM when its path, a directory's, leads to another directory by now: what is read from there by name
 * does not belong to what was opened. */
reshard_status rs_checkpoint_in_place(reshard_checkpoint checkpoint, const char *path);
/* RESHARD_ERROR_SYSTEM naming a file that is not as it was when it was opened (size, time of last change). */
reshard_status rs_checkpoint_unchanged(reshard_checkpoint checkpoint);

/* writer.c: a writer's store (the target of a move, in temporary files until the commit), the path of the temporary,
 * and what it did. */
typedef struct rs_writer_report {
  reshard_file_format format;
  int64_t files, bytes, whole_arrays;
  double reserve_seconds;
} rs_writer_report;
const rs_store *rs_writer_store(reshard_writer writer);
/* Another process's part in the directory of shards that a writer of these tensors has made at `temporary`
 * (rs_writer_path), deduplicated: the same store, of which the files of one rank are open. It is synced and abandoned,
 * never committed or published. */
reshard_status rs_writer_join(const char *temporary, int64_t rank, int64_t n, const reshard_writer_tensor *tensors,
                              reshard_writer *writer);
/* One file more, of that text, in the directory that is written: no tensors are in it, and readers of checkpoints do
 * not look at it. Before anything is put. */
reshard_status rs_writer_attach(reshard_writer writer, const char *name, const rs_print *text);
/* The temporary file or directory: what the commit will put in place; can be opened as a checkpoint of its kind once
 * all is written. */
const char *rs_writer_path(reshard_writer writer);
void rs_writer_get_report(reshard_writer writer, rs_writer_report *report);
/* The two halves of a commit: fsync of all files and directories (progress may be NULL, non-zero return cancels: the
 * writer can then only be abandoned); putting in place, with nothing more to write. rs_writer_publish frees the writer,
 * whether it succeeds or not. Neither checks what was put. */
reshard_status rs_writer_sync(reshard_writer writer,
                              int (*progress)(void *user, const char *stage, int64_t done, int64_t all), void *user);
reshard_status rs_writer_publish(reshard_writer writer);

#endif
