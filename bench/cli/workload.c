/* Tensors and layouts from the command line. A layout is made once for each (shape, layout string), so that a model of
 * tens of thousands of tensors has a few dozen. The plan then finds equal entries by their pointers. */
#include "bench/cli/workload.h"

#include "file/model/layouts.h"
#include "file/model/model.h"
#include "layout/blocks.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --src or --dst. */
struct workload_side {
  workload_layouts l;
  rs_layouts layouts; /* of l */
};

static void read_shape(const char *text, int *ndim, int64_t *shape) {
  *ndim = 0;
  if (strcmp(text, "scalar") == 0)
    return;
  for (const char *at = text;; at++) {
    char *end;
    errno = 0;
    if (*ndim == RESHARD_MAX_DIMS)
      cli_exit(EXIT_USAGE, "--shape %s: more than %d dims", text, RESHARD_MAX_DIMS);
    long long extent = *at >= '0' && *at <= '9' ? strtoll(at, &end, 10) : -1;
    if (extent < 0 || errno != 0)
      cli_exit(EXIT_USAGE, "--shape %s: column %lld: an extent is needed here%s", text, (long long)(at - text + 1),
               errno == ERANGE ? " that fits 63 bits" : " (such as 13x21, or scalar)");
    shape[(*ndim)++] = extent;
    at = end;
    if (*at == '\0')
      return;
    if (*at != 'x')
      cli_exit(EXIT_USAGE, "--shape %s: column %lld: 'x' is needed between extents", text, (long long)(at - text + 1));
  }
}

static struct workload_side *read_side(const char *option, const char *text, workload_mesh *mesh, bool alone) {
  struct workload_side *side = cli_alloc(1, sizeof *side);
  if (text == NULL)
    cli_exit(EXIT_USAGE, "%s is missing: a layout string such as chunk(0), or @FILE of rules", option);
  workload_read_layouts(option, text, mesh, &side->l);
  side->layouts = (rs_layouts){.name = option, .text = side->l.text, .rules = side->l.rules, .alone = alone};
  return side;
}

static reshard_layout scaled_layout(const workload_tensor *t) { return t->dtype == RESHARD_F8_E4M3 ? t->src : t->dst; }

int64_t workload_scale_bytes(const workload_tensor *t) {
  int64_t bytes = t->blocks.rows > 0 ? (int64_t)reshard_dtype_size(t->blocks.scales) : 0;
  for (int d = 0; d < t->ndim && bytes > 0; d++)
    bytes *= rs_ceil_div(reshard_layout_shape(scaled_layout(t))[d], t->block[d]);
  return bytes;
}

void workload_make_scales(workload *w) {
  for (int64_t i = 0; i < w->n; i++) {
    workload_tensor *t = &w->tensor[i];
    rs_block_cut cut = {.dim = -1};
    if (t->blocks.rows == 0 || t->scales != NULL)
      continue;
    CLI_TRY("", rs_layout_find_cut(scaled_layout(t), t->block, &cut));
    if (cut.dim < 0)
      CLI_TRY("", rs_layout_blocks(scaled_layout(t), t->block, &t->scales));
  }
}

const char *workload_dtype_text(const workload_tensor *t, bool source, char text[RS_BLOCKS_TEXT]) {
  reshard_dtype dtype = source ? t->dtype : t->dst_dtype;
  return t->blocks.rows > 0 && dtype == RESHARD_F8_E4M3 ? rs_blocks_text(text, &t->blocks)
                                                        : reshard_dtype_string(dtype);
}

static void count_bytes(workload *w) {
  w->bytes = 0;
  for (int64_t i = 0; i < w->n; i++) {
    int64_t bytes, scales = w->tensor[i].dtype == RESHARD_F8_E4M3 ? workload_scale_bytes(&w->tensor[i]) : 0;
    if (__builtin_mul_overflow(reshard_layout_elements(w->tensor[i].src),
                               (int64_t)reshard_dtype_size(w->tensor[i].dtype), &bytes) ||
        __builtin_add_overflow(w->bytes, bytes, &w->bytes) || __builtin_add_overflow(w->bytes, scales, &w->bytes))
      cli_exit(EXIT_USAGE, "tensor '%s': the bytes of all tensors overflow 63 bits", w->tensor[i].name);
  }
}

/* NCCL's names of elements, in the order of nccl-tests. */
static const struct {
  const char *name;
  reshard_dtype dtype;
} nccl_dtypes[] = {{"int8", RESHARD_I8},       {"uint8", RESHARD_U8},       {"int32", RESHARD_I32},
                   {"uint32", RESHARD_U32},    {"int64", RESHARD_I64},      {"uint64", RESHARD_U64},
                   {"half", RESHARD_F16},      {"float", RESHARD_F32},      {"double", RESHARD_F64},
                   {"bfloat16", RESHARD_BF16}, {"f8e4m3", RESHARD_F8_E4M3}, {"f8e5m2", RESHARD_F8_E5M2},
                   {"int", RESHARD_I32},       {"char", RESHARD_I8}};

const char *workload_nccl_dtype(int64_t i) { return i < 12 ? nccl_dtypes[i].name : NULL; }

reshard_dtype workload_dtype(const char *option, const char *text, reshard_blocks *blocks) {
  reshard_dtype dtype = RESHARD_DTYPE_NONE;
  reshard_blocks read = {0};
  for (size_t i = 0; i < sizeof nccl_dtypes / sizeof *nccl_dtypes; i++)
    if (strcmp(text, nccl_dtypes[i].name) == 0)
      return nccl_dtypes[i].dtype;
  cli_try_option(option, reshard_dtype_parse_blocks(text, &dtype, &read));
  if (blocks == NULL && read.rows > 0)
    cli_exit(EXIT_LACKING, "%s %s: there are no scales here", option, text);
  if (blocks != NULL)
    *blocks = read;
  return dtype;
}

/* Makes a tensor f8_e4m3 with scales, as convert does: to it of f32, f16 or bf16, or back; of 2 dims, or 3. */
static bool set_blocks(workload_tensor *t, const reshard_blocks *blocks) {
  bool back = t->dtype == RESHARD_F8_E4M3;
  if (!rs_blocks_know(back ? t->dst_dtype : t->dtype) || t->ndim < 2 || t->ndim > 3)
    return false;
  t->dst_dtype = back ? t->dst_dtype : RESHARD_F8_E4M3;
  t->blocks = *blocks;
  t->block[0] = 1;
  t->block[t->ndim - 2] = blocks->rows;
  t->block[t->ndim - 1] = blocks->columns;
  return true;
}

/* Converts the tensors to --dst-dtype: of a model those that hold numbers of a dtype with casts. scaled: blocks that
 * the source has. */
static void read_dst_dtype(const cli_options *o, const reshard_blocks *scaled, workload *w) {
  reshard_blocks blocks = {0};
  reshard_dtype to = o->dst_dtype != NULL ? workload_dtype("--dst-dtype", o->dst_dtype, &blocks) : RESHARD_DTYPE_NONE;
  if (to != RESHARD_DTYPE_NONE && !rs_cast_knows(to))
    cli_exit(EXIT_LACKING, "--dst-dtype %s: there are no casts to it", o->dst_dtype);
  for (int64_t i = 0; i < w->n; i++) {
    workload_tensor *t = &w->tensor[i];
    bool known = rs_cast_knows(t->dtype);
    t->dst_dtype = t->dtype;
    if (blocks.rows > 0 && scaled->rows == 0) {
      if (!(t->dtype != RESHARD_F8_E4M3 && set_blocks(t, &blocks)) && w->model == NULL)
        cli_exit(EXIT_LACKING, "--dst-dtype %s: of f32, f16 and bf16 with 2 dims, or 3", o->dst_dtype);
      continue;
    }
    if (to != RESHARD_DTYPE_NONE && !known && w->model == NULL)
      cli_exit(EXIT_LACKING, "--dst-dtype %s: no cast from %s", o->dst_dtype, reshard_dtype_string(t->dtype));
    t->dst_dtype = to != RESHARD_DTYPE_NONE && known ? to : t->dtype;
    if (scaled->rows > 0 && !(blocks.rows == 0 && set_blocks(t, scaled)))
      cli_exit(EXIT_LACKING, "--dtype %s: to f32, f16 and bf16 by --dst-dtype, with 2 dims, or 3", o->dtype);
  }
}

/* A rule's dtype goes before --dst-dtype; a rule of the source may say the tensor's own. */
static void read_rule_dtypes(workload *w) {
  for (int64_t i = 0; i < w->n; i++) {
    workload_tensor *t = &w->tensor[i];
    reshard_dtype said;
    reshard_blocks had, blocks;
    CLI_TRY("", rs_layouts_dtype(&w->side[0]->layouts, t->name, t->dtype, 0, false, &said, &had));
    CLI_TRY("", rs_layouts_dtype(&w->side[1]->layouts, t->name, t->dtype, 0, true, &said, &blocks));
    if (said != RESHARD_DTYPE_NONE) {
      t->blocks = (reshard_blocks){0};
      t->dst_dtype = said;
    }
    if (blocks.rows > 0 && !(t->dtype != RESHARD_F8_E4M3 && set_blocks(t, &blocks)))
      cli_exit(EXIT_LACKING,
               "tensor '%s' is to be f8_e4m3 with scales by its rule: of f32, f16 and bf16 with 2 dims, or 3", t->name);
    if (had.rows > 0 && t->dst_dtype != t->dtype && !set_blocks(t, &had))
      cli_exit(EXIT_LACKING, "tensor '%s' has scales by its rule: to f32, f16 and bf16 with 2 dims, or 3", t->name);
  }
}

/* Multiplies dim 0 of each tensor, which keeps a row at least. */
static void scale_tensors(workload *w, double scale) {
  for (int64_t i = 0; i < w->n && scale > 0; i++) {
    workload_tensor *t = &w->tensor[i];
    double rows = t->ndim > 0 ? ceil((double)t->shape[0] * scale) : 0;
    if (rows >= 9e18)
      cli_exit(EXIT_USAGE, "--scale %g: tensor '%s': %lld rows times that overflow 63 bits", scale, t->name,
               (long long)t->shape[0]);
    if (t->ndim > 0)
      t->shape[0] = (int64_t)rows;
  }
}

static void read_model(const cli_options *o, workload *w) {
  if (o->shape != NULL)
    cli_exit(EXIT_USAGE, "--shape and --model are both given");
  if (o->dtype != NULL)
    cli_exit(EXIT_USAGE, "--dtype belongs to --shape; a model's tensors have their own");
  cli_try_option("--model", reshard_model_open(o->model, &w->model));
  w->n = reshard_model_count(w->model);
  w->tensor = cli_alloc(w->n, sizeof *w->tensor);
  for (int64_t i = 0; i < w->n; i++) {
    reshard_model_tensor t;
    CLI_TRY("--model: ", reshard_model_get(w->model, i, &t));
    if (t.dtype == RESHARD_DTYPE_NONE)
      cli_exit(EXIT_USAGE, "--model: the dtype of tensor '%s' is unknown", t.name);
    w->tensor[i] = (workload_tensor){.name = t.name, .ndim = t.ndim, .dtype = t.dtype};
    memcpy(w->tensor[i].shape, t.shape, sizeof t.shape);
  }
}

static void read_tensor(const cli_options *o, workload *w, reshard_blocks *scaled) {
  if (o->shape == NULL)
    cli_exit(EXIT_USAGE, "--shape or --model is missing");
  w->n = 1;
  w->tensor = cli_alloc(1, sizeof *w->tensor);
  w->tensor->name = "tensor";
  w->tensor->dtype = RESHARD_F32;
  if (o->dtype != NULL)
    w->tensor->dtype = workload_dtype("--dtype", o->dtype, scaled);
  read_shape(o->shape, &w->tensor->ndim, w->tensor->shape);
}

static void read_permutation(const cli_options *o, workload *w) {
  if (o->permutation == NULL)
    return;
  if (w->model != NULL)
    cli_exit(EXIT_USAGE, "--permutation belongs to --shape");
  const char *at = o->permutation;
  int ndim = w->tensor[0].ndim, n = 0;
  bool named[RESHARD_MAX_DIMS] = {false};
  for (; n < ndim && *at >= '0' && *at < '0' + ndim && !named[*at - '0']; n++) {
    named[w->permutation[n] = *at++ - '0'] = true;
    if (*at == ',' && n + 1 < ndim)
      at++;
  }
  if (n < ndim || *at != '\0')
    cli_exit(EXIT_USAGE, "--permutation %s: column %lld: each of the %d dims is needed once", o->permutation,
             (long long)(at - o->permutation + 1), ndim);
  w->permuted = true;
}

static void make_layouts(workload *w) {
  w->scalars = 0;
  for (int64_t i = 0; i < w->n; i++) {
    workload_tensor there = w->tensor[i]; /* as the destination has it */
    for (int d = 0; w->permuted && d < there.ndim; d++)
      there.shape[d] = w->tensor[i].shape[w->permutation[d]];
    CLI_TRY("", rs_layouts_get(&w->side[0]->layouts, there.name, there.ndim, w->tensor[i].shape, w->world,
                               &w->tensor[i].src));
    CLI_TRY("", rs_layouts_get(&w->side[1]->layouts, there.name, there.ndim, there.shape, w->world, &w->tensor[i].dst));
    w->scalars += rs_layout_repeats_scalar(w->tensor[i].dst);
  }
  count_bytes(w);
}

void workload_read(const cli_options *o, workload *w) {
  reshard_blocks scaled = {0};
  *w = (workload){0};
  if (o->model != NULL)
    read_model(o, w);
  else
    read_tensor(o, w, &scaled);
  read_dst_dtype(o, &scaled, w);
  scale_tensors(w, o->scale);
  read_permutation(o, w);
  workload_mesh mesh, other;
  workload_read_mesh(o->mesh, &mesh);
  workload_read_mesh(o->mesh_dst != NULL && o->mesh_dst[0] != '\0' ? o->mesh_dst : NULL, &other);
  w->side[0] = read_side("--src", o->src, &mesh, w->model == NULL);
  w->side[1] = read_side("--dst", o->dst, o->mesh_dst != NULL ? &other : &mesh, w->model == NULL);
  workload_check_mesh(&mesh);
  workload_check_mesh(&other);
  read_rule_dtypes(w);
  w->world = w->side[0]->l.world > w->side[1]->l.world ? w->side[0]->l.world : w->side[1]->l.world;
  if (o->ranks > 0)
    w->world = o->ranks;
  if (w->world < 1)
    cli_exit(EXIT_USAGE, "neither layout names its ranks: give --ranks");
  if (o->rank >= w->world)
    cli_exit(EXIT_USAGE, "--rank %lld: the world has %lld ranks", (long long)o->rank, (long long)w->world);
  make_layouts(w);
  for (int s = 0; w->model != NULL && s < 2; s++)
    CLI_TRY("", rs_layouts_check(&w->side[s]->layouts, w->model, w->world));
}

const workload_layouts *workload_side_layouts(const workload *w, int side) { return &w->side[side]->l; }

reshard_model workload_model(const workload *w) {
  reshard_model model;
  CLI_TRY("", rs_model_new(&model));
  for (int64_t i = 0; i < w->n; i++) {
    const workload_tensor *t = &w->tensor[i];
    CLI_TRY("", rs_model_add(model, "model", t->name, strlen(t->name), t->dtype, t->ndim, t->shape));
  }
  return model;
}

static void release_layouts(workload *w) {
  for (int64_t i = 0; i < w->n; i++) {
    reshard_layout_release(w->tensor[i].src);
    reshard_layout_release(w->tensor[i].dst);
    reshard_layout_release(w->tensor[i].scales);
    w->tensor[i].src = w->tensor[i].dst = w->tensor[i].scales = NULL;
  }
}

void workload_set_shape(workload *w, int ndim, const int64_t *shape) {
  release_layouts(w);
  w->tensor[0].ndim = ndim;
  memcpy(w->tensor[0].shape, shape, (size_t)ndim * sizeof *shape);
  make_layouts(w);
}

void workload_free(workload *w) {
  release_layouts(w);
  for (int s = 0; s < 2; s++) {
    struct workload_side *side = w->side[s];
    if (side != NULL) {
      rs_layout_cache_free(&side->layouts.cache);
      workload_free_layouts(&side->l);
    }
    free(side);
  }
  free(w->tensor);
  reshard_model_free(w->model);
  *w = (workload){0};
}

reshard_entry *workload_entries(const workload *w) {
  reshard_entry *entries = cli_alloc(w->n, sizeof *entries);
  for (int64_t i = 0; i < w->n; i++)
    entries[i] = (reshard_entry){.size = RESHARD_ENTRY_INIT,
                                 .src = w->tensor[i].src,
                                 .dst = w->tensor[i].dst,
                                 .dtype = w->tensor[i].dtype,
                                 .dst_dtype = w->tensor[i].dst_dtype,
                                 .permutation = w->permuted ? w->permutation : NULL,
                                 .name = w->tensor[i].name,
                                 .block = w->tensor[i].blocks.rows > 0 ? w->tensor[i].block : NULL,
                                 .scale_dtype = w->tensor[i].blocks.scales};
  return entries;
}
