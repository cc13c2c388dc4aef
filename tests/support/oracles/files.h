/* The file formats once more, naively: element by element, whole files in memory, JSON by jansson, and nothing of the
 * room file in it. What the library writes is read by this, and what this writes is read by the library.
 *
 * Checks and reads return true when all was right; else they add what was not to `why`. */
#ifndef TESTS_NAIVE_FILES_H
#define TESTS_NAIVE_FILES_H

#include "bench/verify/case_run.h"

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
bool naive_read_npy(const char *path, naive_set *out, rs_text *why);

/* A .safetensors file. */
typedef struct naive_file {
  char *name; /* in its directory; owned */
  naive_set set;
  json_t *metadata; /* owned object; NULL: none. The values of DCP_SHARDING_INFO and reshard are parsed;
                       reshard_digests is left out */
} naive_file;

void naive_write_safetensors(rng *r, const char *path, const naive_file *file);
bool naive_read_safetensors(const char *path, naive_file *out, rs_text *why);
void naive_file_free(naive_file *file);

#endif
#endif
