/* Tensors and layouts from the command line. A layout is made once for each (shape, layout string), so that a model of
 * tens of thousands of tensors has a few dozen. The plan then finds equal entries by their pointers. */
#include "bench/cli/workload.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct cached_layout {
  uint64_t key;
  const char *text;
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS];
  reshard_layout layout;
} cached_layout;

/* --src or --dst. */
struct workload_side {
  const char *option; /* "--src" */
  workload_layouts l;
  cached_layout *cache; /* open addressing, slots a power of two */
  int64_t used, slots;
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

static void check_input(const char *option, reshard_status status) {
  if (status != RESHARD_SUCCESS)
    cli_fail(status, "%s: %s", option, reshard_last_error());
}

static struct workload_side *read_side(const char *option, const char *text, workload_mesh *mesh) {
  struct workload_side *side = cli_alloc(1, sizeof *side);
  side->option = option;
  if (text == NULL)
    cli_exit(EXIT_USAGE, "%s is missing: a layout string such as chunk(0), or @FILE of rules", option);
  workload_read_layouts(option, text, mesh, &side->l);
  return side;
}

static uint64_t hash_key(const char *text, int ndim, const int64_t *shape) {
  uint64_t h = 0xcbf29ce484222325u + (uint64_t)ndim;
  for (int d = 0; d < ndim; d++)
    h = (h ^ (uint64_t)shape[d]) * 0x100000001b3u;
  h = (h ^ (uint64_t)(uintptr_t)text) * 0x9e3779b97f4a7c15u; /* strings of rules are one object each */
  return h ^ h >> 29;
}

static cached_layout *find_slot(struct workload_side *side, uint64_t key, const char *text, int ndim,
                                const int64_t *shape) {
  for (int64_t i = (int64_t)(key & (uint64_t)(side->slots - 1));; i = (i + 1) & (side->slots - 1)) {
    cached_layout *c = &side->cache[i];
    if (c->layout == NULL || (c->key == key && c->text == text && c->ndim == ndim &&
                              memcmp(c->shape, shape, (size_t)ndim * sizeof *shape) == 0))
      return c;
  }
}

static void grow_cache(struct workload_side *side) {
  cached_layout *old = side->cache;
  int64_t slots = side->slots;
  side->slots = slots > 0 ? 2 * slots : 64;
  side->cache = cli_alloc(side->slots, sizeof *side->cache);
  for (int64_t i = 0; i < slots; i++)
    if (old[i].layout != NULL)
      *find_slot(side, old[i].key, old[i].text, old[i].ndim, old[i].shape) = old[i];
  free(old);
}

/* The layout of a tensor; one reference for the caller. */
static reshard_layout find_layout(struct workload_side *side, const workload_tensor *t, int64_t world, bool named) {
  const char *text = side->l.text;
  if (side->l.rules != NULL)
    check_input(side->option, reshard_rules_match(side->l.rules, t->name, &text, NULL));
  if (2 * side->used >= side->slots)
    grow_cache(side);
  uint64_t key = hash_key(text, t->ndim, t->shape);
  cached_layout *c = find_slot(side, key, text, t->ndim, t->shape);
  if (c->layout == NULL) {
    reshard_status status = reshard_layout_parse(text, t->ndim, t->shape, world, &c->layout);
    if (status != RESHARD_SUCCESS) {
      char shape[RS_SHAPE_TEXT];
      rs_shape_text(shape, t->ndim, t->shape);
      if (named)
        cli_fail(status, "%s: tensor '%s' of shape %s: %s", side->option, t->name, shape, reshard_last_error());
      cli_fail(status, "%s: %s", side->option, reshard_last_error());
    }
    c->key = key;
    c->text = text;
    c->ndim = t->ndim;
    memcpy(c->shape, t->shape, sizeof c->shape);
    side->used++;
  }
  return reshard_layout_retain(c->layout);
}

static void count_bytes(workload *w) {
  w->bytes = 0;
  for (int64_t i = 0; i < w->n; i++) {
    int64_t bytes;
    if (__builtin_mul_overflow(reshard_layout_elements(w->tensor[i].src),
                               (int64_t)reshard_dtype_size(w->tensor[i].dtype), &bytes) ||
        __builtin_add_overflow(w->bytes, bytes, &w->bytes))
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

static void read_dtype(const char *text, reshard_dtype *dtype) {
  for (size_t i = 0; i < sizeof nccl_dtypes / sizeof *nccl_dtypes; i++)
    if (strcmp(text, nccl_dtypes[i].name) == 0) {
      *dtype = nccl_dtypes[i].dtype;
      return;
    }
  check_input("--dtype", reshard_dtype_parse(text, dtype));
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
  check_input("--model", reshard_model_open(o->model, &w->model));
  w->n = reshard_model_count(w->model);
  w->tensor = cli_alloc(w->n, sizeof *w->tensor);
  for (int64_t i = 0; i < w->n; i++) {
    reshard_model_tensor t;
    CLI_TRY("--model: ", reshard_model_get(w->model, i, &t));
    w->tensor[i] = (workload_tensor){.name = t.name, .ndim = t.ndim, .dtype = t.dtype};
    memcpy(w->tensor[i].shape, t.shape, sizeof t.shape);
  }
}

static void read_tensor(const cli_options *o, workload *w) {
  if (o->shape == NULL)
    cli_exit(EXIT_USAGE, "--shape or --model is missing");
  w->n = 1;
  w->tensor = cli_alloc(1, sizeof *w->tensor);
  w->tensor->name = "tensor";
  w->tensor->dtype = RESHARD_F32;
  if (o->dtype != NULL)
    read_dtype(o->dtype, &w->tensor->dtype);
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
  for (int64_t i = 0; i < w->n; i++) {
    workload_tensor there = w->tensor[i]; /* as the destination has it */
    for (int d = 0; w->permuted && d < there.ndim; d++)
      there.shape[d] = w->tensor[i].shape[w->permutation[d]];
    w->tensor[i].src = find_layout(w->side[0], &w->tensor[i], w->world, w->model != NULL);
    w->tensor[i].dst = find_layout(w->side[1], &there, w->world, w->model != NULL);
  }
  count_bytes(w);
}

void workload_read(const cli_options *o, workload *w) {
  *w = (workload){0};
  if (o->model != NULL)
    read_model(o, w);
  else
    read_tensor(o, w);
  scale_tensors(w, o->scale);
  read_permutation(o, w);
  workload_mesh mesh, other;
  workload_read_mesh(o->mesh, &mesh);
  workload_read_mesh(o->mesh_dst != NULL && o->mesh_dst[0] != '\0' ? o->mesh_dst : NULL, &other);
  w->side[0] = read_side("--src", o->src, &mesh);
  w->side[1] = read_side("--dst", o->dst, o->mesh_dst != NULL ? &other : &mesh);
  workload_check_mesh(&mesh);
  workload_check_mesh(&other);
  w->world = w->side[0]->l.world > w->side[1]->l.world ? w->side[0]->l.world : w->side[1]->l.world;
  if (o->ranks > 0)
    w->world = o->ranks;
  if (w->world < 1)
    cli_exit(EXIT_USAGE, "neither layout names its ranks: give --ranks");
  if (o->rank >= w->world)
    cli_exit(EXIT_USAGE, "--rank %lld: the world has %lld ranks", (long long)o->rank, (long long)w->world);
  make_layouts(w);
}

static void release_layouts(workload *w) {
  for (int64_t i = 0; i < w->n; i++) {
    reshard_layout_release(w->tensor[i].src);
    reshard_layout_release(w->tensor[i].dst);
    w->tensor[i].src = w->tensor[i].dst = NULL;
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
    for (int64_t i = 0; side != NULL && i < side->slots; i++)
      reshard_layout_release(side->cache[i].layout);
    if (side != NULL) {
      free(side->cache);
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
                                 .permutation = w->permuted ? w->permutation : NULL,
                                 .name = w->tensor[i].name};
  return entries;
}
