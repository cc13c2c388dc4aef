/* The workload of a plan or a benchmark: tensors, and their layouts before and after. */
#ifndef BENCH_WORKLOAD_H
#define BENCH_WORKLOAD_H

#include "base/dtype.h"
#include "bench/cli/options.h"

#include <reshard/file.h>

/* Sizes of --mesh, for mesh dims that layouts name without one. */
typedef struct workload_mesh {
  int n;
  struct workload_mesh_dim {
    char name[64];
    int64_t size, used; /* used: layouts that it has gone into */
  } dim[RESHARD_MAX_DIMS];
} workload_mesh;
/* Reads "fsdp=8,tp=2"; NULL: none. Ends the program where something is wrong. */
void workload_read_mesh(const char *text, workload_mesh *out);
/* Ends the program where a size has gone into no layout. */
void workload_check_mesh(const workload_mesh *mesh);

/* The argument of --src or --dst: a layout string, or the rules of "@FILE", with the sizes of --mesh. A bare name, with
 * ".rules" or without, is looked up among the program's own rules too. The caller frees it. Ends the program where
 * something is wrong. */
typedef struct workload_layouts {
  char *text;          /* a layout string, or NULL */
  reshard_rules rules; /* or rules */
  bool shipped;        /* rules that come with the program */
  int64_t world;       /* that it names */
} workload_layouts;
void workload_read_layouts(const char *option, const char *text, workload_mesh *mesh, workload_layouts *out);
void workload_free_layouts(workload_layouts *l);

typedef struct workload_tensor {
  const char *name;
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS]; /* of the source */
  reshard_dtype dtype, dst_dtype;  /* dst_dtype is never NONE */
  reshard_blocks blocks;           /* of the side that is f8_e4m3 with scales; rows 0: there are none */
  int64_t block[RESHARD_MAX_DIMS]; /* the same per dim of that side */
  reshard_layout scales;           /* of these, once they are made */
  reshard_layout src, dst;         /* equal (shape, layout string) share one object */
} workload_tensor;

typedef struct workload {
  int64_t n;
  workload_tensor *tensor;
  int64_t world;
  int64_t bytes;       /* of all tensors, in the source's dtypes */
  reshard_model model; /* NULL with --shape */
  int64_t scalars;     /* tensors without dims that several ranks of the destination have, each whole */
  struct workload_side *side[2];
  bool permuted;                     /* the one tensor's dims are: */
  int permutation[RESHARD_MAX_DIMS]; /* as in reshard_entry */
} workload;

/* Reads --shape and --dtype or --model, --src and --dst, and the world: --ranks, else the larger of what the two sides
 * name. Ends the program where something is wrong. */
void workload_read(const cli_options *o, workload *out);
/* The layouts of --src (0) or --dst (1), and the tensors as a model, which the caller frees. */
const workload_layouts *workload_side_layouts(const workload *w, int side);
reshard_model workload_model(const workload *w);
/* The i-th name that nccl-tests has for elements; NULL behind the last. */
const char *workload_nccl_dtype(int64_t i);
/* Reads the dtype of an option, by our names or NCCL's. blocks: of f8_e4m3 with scales; NULL: that is refused. */
reshard_dtype workload_dtype(const char *option, const char *text, reshard_blocks *blocks);
/* "bf16", or "f8_e4m3/128x128" of the side that has scales. */
const char *workload_dtype_text(const workload_tensor *t, bool source, char text[RS_BLOCKS_TEXT]);
int64_t workload_scale_bytes(const workload_tensor *t);
/* Makes the layouts of scales, where cuts lie on blocks; of others there is no plan. */
void workload_make_scales(workload *w);
/* Changes the shape of the one tensor. */
void workload_set_shape(workload *w, int ndim, const int64_t *shape);
void workload_free(workload *w);

/* Entries of a plan over all tensors, whole to whole. The caller frees them, and uses them no longer than w. */
reshard_entry *workload_entries(const workload *w);

#endif
