/* What a plan or a benchmark is about: tensors, and their layouts before and after. */
#ifndef BENCH_WHAT_H
#define BENCH_WHAT_H

#include "bench/cli/options.h"

#include <reshard/file.h>

/* Sizes of --mesh, for mesh dims that layouts name without one. */
typedef struct what_mesh {
  int n;
  struct what_mesh_dim {
    char name[64];
    int64_t size, used; /* used: layouts that it has gone into */
  } dim[RESHARD_MAX_DIMS];
} what_mesh;
/* Reads "fsdp=8,tp=2"; NULL: none. Ends the program where something is wrong. */
void what_read_mesh(const char *text, what_mesh *out);
/* Ends the program where a size has gone into no layout. */
void what_check_mesh(const what_mesh *mesh);

/* L of --src or --dst: a layout string, or the rules of "@FILE" (a bare name, with ".rules" or without, is looked up
 * among the rules that come with the program too), with the sizes of --mesh, and the ranks that they name. The caller
 * frees it. Ends the program where something is wrong. */
typedef struct what_layouts {
  char *text;          /* a layout string, or NULL */
  reshard_rules rules; /* or rules */
  int64_t world;       /* that it names */
} what_layouts;
void what_read_layouts(const char *option, const char *text, what_mesh *mesh, what_layouts *out);
void what_free_layouts(what_layouts *l);

typedef struct what_tensor {
  const char *name;
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS]; /* of the source */
  reshard_dtype dtype;
  reshard_layout src, dst; /* equal (shape, layout string) share one object */
} what_tensor;

typedef struct what {
  int64_t n;
  what_tensor *tensor;
  int64_t world;
  int64_t bytes;       /* of all tensors */
  reshard_model model; /* NULL with --shape */
  struct what_side *side[2];
  bool permuted;                     /* the one tensor's dims are: */
  int permutation[RESHARD_MAX_DIMS]; /* as in reshard_entry */
} what;

/* Reads --shape and --dtype or --model, --src and --dst, and the world: --ranks, else the larger of what the two sides
 * name. Ends the program where something is wrong. */
void what_read(const cli_options *o, what *out);
/* The same for another shape of the one tensor. */
void what_set_shape(what *w, int ndim, const int64_t *shape);
void what_free(what *w);

/* Entries of a plan over all tensors, whole to whole; to be freed, and to be used while w is there. */
reshard_entry *what_entries(const what *w);

#define WHAT_SHAPE_TEXT 200
const char *what_shape_text(char buffer[WHAT_SHAPE_TEXT], int ndim, const int64_t *shape);

#endif
