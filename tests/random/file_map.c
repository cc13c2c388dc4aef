/* Random maps. A tree of concat, stack and transpose is drawn from its root down: a tensor is cut in the parts that the
 * operation would join, until the parts are names. On the right side of a line the root is a target and the names are
 * sources; on the left it is the other way round. A line with stars is one tree, walked once for each label. */
#include "random/file_case.h"

#ifdef RS_HAVE_JANSSON

#include <stdlib.h>
#include <string.h>

typedef struct drawing {
  bool left;
  int group, leaves;
  const char *label;        /* that the line's star stands for; NULL: no star */
  bool npy;                 /* the root is named as .npy files name their tensor */
  naive_set *roots, *names; /* what the root is added to, and what the names are */
  rs_text text;
} drawing;

/* A part of a tensor: its dim d walks dim[d] of it (-1: one index) from first on. */
static naive_tensor part_of(const naive_tensor *t, int ndim, const int64_t *shape, const int *dim,
                            const int64_t *first) {
  naive_set set = {0};
  naive_tensor *out = naive_add(&set, "", t->dtype, ndim, shape);
  size_t width = reshard_dtype_size(t->dtype);
  for (int64_t e = 0; e < out->n; e++) {
    int64_t at[RESHARD_MAX_DIMS], rest = e, linear = 0;
    memcpy(at, first, sizeof at);
    for (int d = ndim - 1; d >= 0; d--) {
      if (dim[d] >= 0)
        at[dim[d]] += rest % shape[d];
      rest /= shape[d];
    }
    for (int d = 0; d < t->ndim; d++)
      linear = linear * t->shape[d] + at[d];
    memcpy(out->bytes + e * (int64_t)width, t->bytes + linear * (int64_t)width, width);
  }
  naive_tensor copy = *out;
  free(set.at);
  return copy;
}

static naive_tensor slice(const naive_tensor *t, int dim, int64_t begin, int64_t n) {
  int64_t shape[RESHARD_MAX_DIMS], first[RESHARD_MAX_DIMS] = {0};
  int walk[RESHARD_MAX_DIMS];
  for (int d = 0; d < t->ndim; d++) {
    shape[d] = d == dim ? n : t->shape[d];
    walk[d] = d;
  }
  first[dim] = begin;
  return part_of(t, t->ndim, shape, walk, first);
}

static naive_tensor plane(const naive_tensor *t, int dim, int64_t index) {
  int64_t shape[RESHARD_MAX_DIMS], first[RESHARD_MAX_DIMS] = {0};
  int walk[RESHARD_MAX_DIMS], n = 0;
  for (int d = 0; d < t->ndim; d++)
    if (d != dim) {
      shape[n] = t->shape[d];
      walk[n++] = d;
    }
  first[dim] = index;
  return part_of(t, n, shape, walk, first);
}

static void free_part(naive_tensor *t) {
  free(t->name);
  free(t->bytes);
}

static void keep(naive_set *set, const char *name, const naive_tensor *t) {
  naive_tensor *to = naive_add(set, name, t->dtype, t->ndim, t->shape);
  memcpy(to->bytes, t->bytes, (size_t)t->n * reshard_dtype_size(t->dtype));
}

/* A name as it stands in the map, and as it is. index: of a spread name, else -1; its star is not the line's. */
static void add_name(rng *r, drawing *d, const char *what, int64_t index, const naive_tensor *t, naive_set *set,
                     bool write) {
  rs_text name = {0}, text = {0};
  bool odd = rng_one_in(r, 5), quoted = odd || rng_one_in(r, 8);
  cli_add(&name, "g%d%s%s.%s", d->group, d->label != NULL ? "." : "", d->label != NULL ? d->label : "", what);
  cli_add(&text, quoted ? "\"g%d\"%s.%s" : "g%d%s.%s", d->group, d->label != NULL ? ".*" : "", what);
  if (index >= 0) {
    cli_add(&name, ".%lld.w", (long long)index);
    cli_add(&text, ".*.w");
  }
  if (odd) {
    cli_add(&name, " #\\\"=*(x\xc3\xa9,");
    cli_add(&text, "\" #\\\\\\\"=*(x\xc3\xa9,\"");
  }
  keep(set, name.at, t);
  if (write)
    cli_add(&d->text, "%s", text.at);
  free(name.at);
  free(text.at);
}

static void leaf(rng *r, drawing *d, const naive_tensor *t) {
  char what[32];
  snprintf(what, sizeof what, "n%d", d->leaves++);
  add_name(r, d, what, -1, t, d->names, true);
}

static void add_root(rng *r, drawing *d, const naive_tensor *t) {
  if (!d->npy) {
    add_name(r, d, "root", -1, t, d->roots, true);
    return;
  }
  keep(d->roots, "tensor", t);
  cli_add(&d->text, "tensor");
}

static void space(rng *r, drawing *d) {
  cli_add(&d->text, "%s", rng_one_in(r, 3) ? rng_one_in(r, 8) ? "\n\t" : "" : " ");
}

static int signed_dim(rng *r, int dim, int ndim) { return rng_one_in(r, 3) ? dim - ndim : dim; }

static void tree(rng *r, drawing *d, const naive_tensor *t, int depth);

/* Equal parts, all of one name that ends in an index. */
static void spread(rng *r, drawing *d, const naive_tensor *t, int dim, int64_t n, bool stack) {
  char what[32];
  snprintf(what, sizeof what, "e%d", d->leaves++);
  rng same = *r;
  int64_t size = t->shape[dim] / n;
  for (int64_t i = 0; i < n; i++) {
    naive_tensor part = stack ? plane(t, dim, i) : slice(t, dim, i * size, size);
    *r = same; /* the name is drawn once */
    add_name(r, d, what, i, &part, d->names, i == 0);
    free_part(&part);
  }
  if (d->left && !stack)
    cli_add(&d->text, ":%lld", (long long)size);
}

static void stack(rng *r, drawing *d, const naive_tensor *t, int dim, int depth) {
  int64_t n = t->shape[dim];
  cli_add(&d->text, "stack(");
  if (dim > 0 || rng_one_in(r, 2)) {
    cli_add(&d->text, "%d;", signed_dim(r, dim, t->ndim));
    space(r, d);
  }
  if (n > 6 || rng_one_in(r, 3))
    spread(r, d, t, dim, n, true);
  else
    for (int64_t i = 0; i < n; i++) {
      naive_tensor part = plane(t, dim, i);
      if (i > 0)
        cli_add(&d->text, ",");
      space(r, d);
      tree(r, d, &part, depth - 1);
      free_part(&part);
    }
  cli_add(&d->text, ")");
}

/* On the left a part's size is written, or it is an equal share of what is left. */
static void concat(rng *r, drawing *d, const naive_tensor *t, int dim, int depth) {
  int64_t extent = t->shape[dim], n = rng_in(r, 1, extent < 5 ? extent : 5), at = 0, sizes[5], rest = extent;
  bool sized[5] = {false};
  while (extent % n != 0)
    n--;
  cli_add(&d->text, "concat(%d;", signed_dim(r, dim, t->ndim));
  if (rng_one_in(r, 4)) {
    space(r, d);
    spread(r, d, t, dim, n, false);
    cli_add(&d->text, ")");
    return;
  }
  n = rng_in(r, 1, extent < 5 ? extent : 5);
  for (int64_t i = 0; i < n; i++) {
    sizes[i] = i == n - 1 ? rest : rng_in(r, rng_one_in(r, 10) ? 0 : 1, rest - (n - 1 - i));
    rest -= sizes[i];
    sized[i] = true;
  }
  if (d->left && rng_one_in(r, 2)) { /* the last ones share */
    int64_t shared = rng_in(r, 1, n), all = 0;
    for (int64_t i = n - shared; i < n; i++)
      all += sizes[i];
    for (int64_t i = n - shared; i < n && all % shared == 0; i++) {
      sizes[i] = all / shared;
      sized[i] = false;
    }
  }
  for (int64_t i = 0; i < n; i++) {
    naive_tensor part = slice(t, dim, at, sizes[i]);
    at += sizes[i];
    if (i > 0)
      cli_add(&d->text, ",");
    space(r, d);
    if (d->left && sized[i] && i > 0 && rng_one_in(r, 6)) {
      cli_add(&d->text, "drop():%lld", (long long)sizes[i]);
    } else if (d->left && sized[i]) {
      leaf(r, d, &part);
      cli_add(&d->text, ":%lld", (long long)sizes[i]);
    } else
      tree(r, d, &part, depth - 1);
    free_part(&part);
  }
  cli_add(&d->text, ")");
}

static void transpose(rng *r, drawing *d, const naive_tensor *t, int depth) {
  int p[RESHARD_MAX_DIMS], inverse[RESHARD_MAX_DIMS]; /* dim i of t is dim p[i] of the part */
  int64_t shape[RESHARD_MAX_DIMS], first[RESHARD_MAX_DIMS] = {0};
  bool last_two = t->ndim >= 2 && rng_one_in(r, 2);
  for (int i = 0; i < t->ndim; i++)
    p[i] = i;
  if (last_two) {
    p[t->ndim - 1] = t->ndim - 2;
    p[t->ndim - 2] = t->ndim - 1;
  }
  for (int i = 0; i < t->ndim && !last_two; i++) {
    int j = (int)rng_in(r, i, t->ndim - 1), was = p[i];
    p[i] = p[j];
    p[j] = was;
  }
  cli_add(&d->text, "transpose(");
  for (int i = 0; i < t->ndim && !last_two; i++)
    cli_add(&d->text, "%d%s", signed_dim(r, p[i], t->ndim), i + 1 < t->ndim ? "," : ";");
  for (int i = 0; i < t->ndim; i++)
    inverse[p[i]] = i;
  for (int i = 0; i < t->ndim; i++)
    shape[i] = t->shape[inverse[i]];
  naive_tensor part = part_of(t, t->ndim, shape, inverse, first);
  space(r, d);
  tree(r, d, &part, depth - 1);
  free_part(&part);
  cli_add(&d->text, ")");
}

static void tree(rng *r, drawing *d, const naive_tensor *t, int depth) {
  int kind = depth <= 0 || t->ndim == 0 ? 3 : (int)rng_below(r, 4), dim = t->ndim > 0 ? (int)rng_below(r, t->ndim) : 0;
  if (kind == 0 && t->shape[dim] >= 1 && t->shape[dim] <= 12)
    stack(r, d, t, dim, depth);
  else if (kind == 1 && t->shape[dim] >= 1)
    concat(r, d, t, dim, depth);
  else if (kind == 2 && t->ndim > 1)
    transpose(r, d, t, depth);
  else
    leaf(r, d, t);
}

/* Indices of dim 0 that are zeros at the end of a tensor. */
static int64_t padding(const naive_tensor *t) { return (t->shape[0] + 2) / 3; }

static void clear_end(naive_tensor *t, int64_t rows) {
  int64_t bytes = t->n / t->shape[0] * rows * (int64_t)reshard_dtype_size(t->dtype);
  memset(t->bytes + t->n * (int64_t)reshard_dtype_size(t->dtype) - bytes, 0, (size_t)bytes);
}

/* A tree of what stands before zeros. */
static void pad(rng *r, drawing *d, const naive_tensor *t) {
  int64_t rows = padding(t);
  naive_tensor part = slice(t, 0, 0, t->shape[0] - rows);
  cli_add(&d->text, "concat(%d; ", signed_dim(r, 0, t->ndim));
  tree(r, d, &part, 2);
  cli_add(&d->text, ", zeros():%lld)", (long long)rows);
  free_part(&part);
}

/* One line, over its labels. single: it makes or takes one tensor; one: both, so no operation has several parts. */
static void line(rng *r, drawing *d, const naive_tensor *shape_of, bool single, bool one, rs_text *text) {
  static const char *const labels[] = {"0", "1", "10", "2", "x y", "b\xc3\xa9"};
  int n = !single && rng_one_in(r, 3) ? (int)rng_in(r, 1, 6) : 0;
  bool pads = !d->left && !one && shape_of->ndim > 0 && shape_of->n > 0 && rng_one_in(r, 4);
  rng same = *r;
  for (int i = 0; i < (n > 0 ? n : 1); i++) {
    naive_tensor root = *shape_of;
    root.bytes = cli_alloc(root.n, reshard_dtype_size(root.dtype));
    *r = same;
    naive_fill(&root, rng_next(r) + (uint64_t)i);
    d->label = n > 0 ? labels[i] : NULL;
    d->leaves = 0;
    d->text.length = 0;
    if (pads)
      clear_end(&root, padding(&root));
    if (!d->left) {
      add_root(r, d, &root);
      cli_add(&d->text, rng_one_in(r, 2) ? " = " : "=");
    }
    if (pads)
      pad(r, d, &root);
    else if (one && root.ndim > 1)
      transpose(r, d, &root, 0);
    else
      tree(r, d, &root, one ? 0 : 3);
    if (d->left) {
      cli_add(&d->text, rng_one_in(r, 2) ? " = " : "=");
      add_root(r, d, &root);
    }
    free(root.bytes);
  }
  cli_add(text, "%s%s\n", d->text.at, rng_one_in(r, 4) ? "  # why not" : "");
}

void file_draw_name(rng *r, int64_t number, rs_text *name) {
  static const char *const odd[] = {
      "weight", "layers.0.q_proj.weight", "a b",      "a\"b\\c", "../x/",        "new\nline",
      "\t\x01", "\xf0\x9f\x98\x80",       "[0]*?",    " # x",    "__metadata__", "a=b;c,(d):e",
      "\x7f",   "\xe2\x80\xa8",           "\xc3\xa9", "null"};
  cli_add(name, "t%lld.%s", (long long)number, odd[rng_below(r, 16)]);
  for (int64_t i = rng_one_in(r, 30) ? 300 : 0; i > 0; i--)
    cli_add(name, "x");
}

static void draw_root(rng *r, bool (*allowed)(reshard_dtype), int64_t most, naive_tensor *out) {
  *out = (naive_tensor){0};
  do
    out->dtype = naive_draw_dtype(r);
  while (!allowed(out->dtype));
  do
    out->ndim = naive_draw_shape(r, most, out->shape);
  while (out->ndim > 5); /* stack adds dims */
  out->n = naive_volume(out->ndim, out->shape);
}

/* Tensors that no line names: copied by the last one, or dropped. */
static void others(rng *r, bool (*allowed)(reshard_dtype), int64_t most, rs_text *text, naive_set *src,
                   naive_set *dst) {
  bool left = false;
  for (int64_t i = 0, n = rng_below(r, 4); i < n; i++) {
    naive_tensor root;
    rs_text name = {0};
    draw_root(r, allowed, most, &root);
    file_draw_name(r, i, &name);
    naive_fill(naive_add(src, name.at, root.dtype, root.ndim, root.shape), rng_next(r));
    if (strchr(name.at + 3, '.') == NULL && rng_one_in(r, 4)) /* a star stands for no dot */
      cli_add(text, "drop(t%lld.*)\n", (long long)i);
    else {
      keep(dst, name.at, &src->at[src->n - 1]);
      left = true;
    }
    free(name.at);
  }
  if (left)
    cli_add(text, "* = *\n");
}

void file_draw_map(rng *r, bool (*allowed)(reshard_dtype), bool one_source, bool one_target, int64_t most,
                   rs_text *text, naive_set *src, naive_set *dst) {
  bool single = one_source || one_target;
  int lines = single ? 1 : (int)rng_in(r, 1, 3);
  cli_add(text, "# drawn\n\n");
  for (int i = 0; i < lines; i++) {
    naive_tensor root;
    draw_root(r, allowed, most, &root);
    drawing d = {.group = i, .npy = one_source, .left = one_source || (!one_target && rng_one_in(r, 2))};
    d.roots = d.left ? src : dst;
    d.names = d.left ? dst : src;
    line(r, &d, &root, single, one_source && one_target, text);
    free(d.text.at);
  }
  if (!single)
    others(r, allowed, most, text, src, dst);
}

#endif
