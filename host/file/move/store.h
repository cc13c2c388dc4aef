/* A store: tensors, and where their bytes lie. A checkpoint that is read, one that is written, and a caller's memory
 * are stores; data moves from store to store (move.h).
 *
 * Each tensor has a layout, and a rank holds the layout's arrays. An array is stored whole, as one dense block, or cut
 * in its boxes, each a dense block. Boxes are the products of its maximal runs per dim, row-major. */
#ifndef RS_FILE_STORE_H
#define RS_FILE_STORE_H

#include "exec/arrays.h"
#include "file/ground/file.h"
#include "file/model/model.h"

/* Boxes that an array may be cut in; one of more is stored whole. */
#define RS_MOST_BOXES 64

/* First byte of a dense block. */
typedef struct rs_stored_block {
  int64_t offset; /* in the file */
  int32_t file;
} rs_stored_block;

/* An array of a tensor: its blocks are blocks[first .. first + count). With a count of 1 that is the whole array, which
 * may be one box; above 1 box j is in block j. Arrays that are not stored (replicas left out, arrays without elements)
 * are not in the list. */
typedef struct rs_stored_array {
  int64_t rank, index; /* on the rank */
  int64_t first;
  int32_t count;
} rs_stored_array;

typedef struct rs_stored_tensor {
  reshard_layout layout; /* owned reference; its shape is that of the model's tensor, reversed where `reversed` */
  int64_t first, count;  /* its arrays, ascending by (rank, array) */
  bool reversed;         /* Fortran order: stored row-major with the dims in reverse */
} rs_stored_tensor;

typedef struct rs_store {
  reshard_model model;              /* owned; names, dtypes, shapes */
  RS_VEC(rs_stored_tensor) tensors; /* one per tensor of the model */
  RS_VEC(rs_stored_array) arrays;
  RS_VEC(rs_stored_block) blocks;
  RS_VEC(rs_file) files;
  RS_VEC(rs_view) views; /* one per array in a caller's memory, of any strides; there are then no blocks and files */
} rs_store;

/* Closes the files, frees everything in it, and zeroes it. */
void rs_store_free(rs_store *store);

/* NULL when the array is not stored. */
const rs_stored_array *rs_store_find(const rs_store *store, int64_t tensor, int64_t rank, int64_t array);

/* Number of boxes of an array, and its extent in each dim (either may be NULL). */
reshard_status rs_array_boxes(reshard_layout layout, int64_t rank, int64_t array, int64_t *count, int64_t *shape);
/* Box j of an array, row-major: global offset and extent, and local: the first index of each dim in the array. Either
 * may be NULL. count must be at most RS_MOST_BOXES. */
reshard_status rs_array_box(reshard_layout layout, int64_t rank, int64_t array, int64_t j, reshard_box *global,
                            int64_t *local);

/* Moves the part [lo, lo + extent) of an array (its own indices, per dim) between its blocks and dense row-major memory
 * of that extent. Scratch memory is the caller's, grown here where it is needed. The error of a file that is shorter
 * than it was names it. */
typedef RS_VEC(char) rs_scratch;
reshard_status rs_store_read(const rs_store *store, int64_t tensor, const rs_stored_array *array, const int64_t *lo,
                             const int64_t *extent, char *memory, rs_scratch *scratch);
reshard_status rs_store_write(const rs_store *store, int64_t tensor, const rs_stored_array *array, const int64_t *lo,
                              const int64_t *extent, const char *memory, rs_scratch *scratch);

#endif
