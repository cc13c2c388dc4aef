/* The file formats once more, naively: element by element, whole files in memory, JSON by jansson, and nothing of the
 * room file in it. What the library writes is read by this, and what this writes is read by the library.
 *
 * Checks and reads return true when all was right; else they add what was not to `why`. */
#ifndef TESTS_NAIVE_FILES_H
#define TESTS_NAIVE_FILES_H

#include "bench/verify/cases.h"

#ifdef RS_HAVE_JANSSON
#include <jansson.h>

typedef struct naive_tensor {
  char *name; /* owned */
  reshard_dtype dtype;
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS];
  int64_t n;            /* elements */
  unsigned char *bytes; /* owned; row-major */
} naive_tensor;

/* A list of tensors; in a file of shards, the parts of tensors that it has. */
typedef struct naive_set {
  int64_t n;
  naive_tensor *at;
} naive_set;

/* Appends a tensor whose bytes are zero; it is valid until the next one is appended. */
naive_tensor *naive_add(naive_set *set, const char *name, reshard_dtype dtype, int ndim, const int64_t *shape);
const naive_tensor *naive_find(const naive_set *set, const char *name); /* NULL when there is none */
void naive_set_free(naive_set *set);
int64_t naive_volume(int ndim, const int64_t *shape);

bool naive_numpy_has(reshard_dtype dtype);
bool naive_safetensors_has(reshard_dtype dtype);

/* The random numbers decide what a format leaves open: versions, padding, the order of the data. */
void naive_write_npy(rng *r, const char *path, const naive_tensor *tensor, bool fortran);
bool naive_read_npy(const char *path, naive_set *out, cli_text *why);

/* A .safetensors file. */
typedef struct naive_file {
  char *name; /* in its directory; owned */
  naive_set set;
  json_t *metadata; /* owned object; NULL: none. The values of DCP_SHARDING_INFO and reshard are parsed */
} naive_file;

void naive_write_safetensors(rng *r, const char *path, const naive_file *file);
bool naive_read_safetensors(const char *path, naive_file *out, cli_text *why);
void naive_file_free(naive_file *file);

typedef struct naive_dir {
  int64_t n;
  naive_file *file; /* by name */
  json_t *index;    /* model.safetensors.index.json; owned, or NULL */
} naive_dir;

naive_file *naive_dir_add(naive_dir *dir, const char *name);
void naive_write_dir(rng *r, const char *path, const naive_dir *dir);
/* Anything in the directory but these files is wrong. */
bool naive_read_dir(const char *path, naive_dir *out, cli_text *why);
void naive_dir_free(naive_dir *dir);

/* Names, dtypes, shapes, and every element; in any order. */
bool naive_same_set(const naive_set *is, const naive_set *should, cli_text *why);
/* Files by name, their tensors and their metadata. */
bool naive_same_dir(const naive_dir *is, const naive_dir *should, cli_text *why);

/* Whole tensors in files of at most so many bytes each, in the order of the set, with an index. */
void naive_index_dir(const naive_set *set, int64_t most_bytes, naive_dir *out);

/* One stored shard of a tensor: a box, or (whole) an array of more than 64 boxes. */
typedef struct naive_shard {
  int64_t rank, array, number; /* number: among what the rank stores of the tensor */
  bool whole;
  reshard_box box;   /* whole: first index and number of indices per dim */
  int64_t n, *index; /* global row-major number of each element, in the order in which they are stored; owned */
  int64_t nruns[RESHARD_MAX_DIMS];
  reshard_interval *runs[RESHARD_MAX_DIMS]; /* maximal runs of indices per dim; owned */
} naive_shard;

typedef struct naive_cut {
  int64_t n; /* by rank, then number */
  naive_shard *at;
} naive_cut;

/* most_boxes: 64. dedup: what a lower rank stores too is left out. */
void naive_cut_make(const oracle_layout *layout, const oracle_held *held, int64_t most_boxes, bool dedup,
                    naive_cut *out);
void naive_cut_free(naive_cut *cut);

/* A random layout of a tensor: drawn, described for the oracle, and built by the library. */
typedef struct naive_side {
  oracle_layout what;
  oracle_held held;
  reshard_layout layout;
  char *text; /* a string that makes it, in a world of what.world */
  naive_cut cut;
  bool gapped, haloed; /* elements that nobody holds; that boxes which differ hold */
} naive_side;

/* kind: RESHARD_LAYOUT_KIND_COUNT for any. source: whole, and what several ranks hold is declared. most_boxes and dedup
 * as above. */
bool naive_side_make(rng *r, int ndim, const int64_t *shape, int64_t world, bool source, reshard_layout_kind kind,
                     int64_t most_boxes, bool dedup, naive_side *out, cli_text *why);
void naive_side_free(naive_side *side);

/* Extents whose product is at most `most`, 0 now and then; returns ndim. */
int naive_draw_shape(rng *r, int64_t most, int64_t *shape);
reshard_dtype naive_draw_dtype(rng *r);
/* Every element different, as far as its width allows. */
void naive_fill(naive_tensor *tensor, uint64_t key);

/* The directory of shards that these cuts make, one per tensor of the set. layouts: strings for the "reshard" metadata;
 * NULL: none is written, as PyTorch does. */
void naive_shards_dir(const naive_set *set, const naive_cut *cuts, int64_t world, const char *const *layouts,
                      naive_dir *out);

#endif
#endif
