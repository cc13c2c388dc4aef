/* A case from a seed. What is rare is drawn often: scalars, tensors without elements, arrays of more boxes than are
 * stored one by one, names that JSON must escape; now and then a tensor of megabytes, or a hundred small ones. */
#include "random/file_case.h"

#include "base/dtype.h"
#include "bench/cli/naive_cast.h"

#ifdef RS_HAVE_JANSSON

#include <stdlib.h>
#include <string.h>

const char *const file_source_name[SOURCES] = {"npy", "npy F", "safetensors", "whole", "index", "shards", "torch"};
const char *const file_target_name[TARGETS] = {"npy", "safetensors", "index", "shards", "dedup"};

static bool in_npy(const file_case *c) { return c->in <= FROM_FORTRAN; }
static bool in_shards(const file_case *c) { return c->in >= FROM_SHARDS; }
static bool out_shards(const file_case *c) { return c->out >= TO_SHARDS; }

static bool any_dtype(reshard_dtype dtype) { return dtype != RESHARD_DTYPE_NONE; }
static bool both_have(reshard_dtype dtype) { return naive_numpy_has(dtype) && naive_safetensors_has(dtype); }

static void copy_tensors(const naive_set *from, naive_set *to) {
  for (int64_t i = 0; i < from->n; i++) {
    const naive_tensor *t = &from->at[i];
    memcpy(naive_add(to, t->name, t->dtype, t->ndim, t->shape)->bytes, t->bytes,
           (size_t)t->n * reshard_dtype_size(t->dtype));
  }
}

void file_cast_set(naive_set *set, reshard_dtype dtype) {
  for (int64_t i = 0; i < set->n; i++) {
    naive_tensor *t = &set->at[i];
    size_t from = reshard_dtype_size(t->dtype), to = reshard_dtype_size(dtype);
    if (!rs_cast_supported(t->dtype, dtype))
      continue;
    unsigned char *cast = cli_alloc(t->n, to);
    for (int64_t e = 0; e < t->n; e++) {
      uint64_t bits = 0;
      memcpy(&bits, t->bytes + (size_t)e * from, from);
      bits = naive_cast(t->dtype, dtype, bits);
      memcpy(cast + (size_t)e * to, &bits, to);
    }
    free(t->bytes);
    t->bytes = cast;
    t->dtype = dtype;
  }
}

/* In one case of three. What else is drawn stays as it was. */
static void draw_dtype(file_case *c) {
  static const reshard_dtype numbers[] = {RESHARD_F64,  RESHARD_F32,     RESHARD_F16,
                                          RESHARD_BF16, RESHARD_F8_E4M3, RESHARD_F8_E5M2};
  rng own;
  rng_seed(&own, c->seed ^ 0x6474797065u ^ (uint64_t)c->out << 40);
  if (c->by_writer || !rng_one_in(&own, 3))
    return;
  c->dtype = numbers[rng_below(&own, c->out == TO_NPY ? 3 : 6)];
  file_cast_set(&c->dst, c->dtype);
}

static void draw_tensors(file_case *c, bool (*allowed)(reshard_dtype)) {
  rng *r = &c->r;
  bool one = in_npy(c) || c->out == TO_NPY, large = rng_one_in(r, 40), many = !one && !large && rng_one_in(r, 30);
  int64_t n = one ? 1 : many ? rng_in(r, 40, 120) : large ? rng_in(r, 1, 2) : rng_in(r, rng_one_in(r, 20) ? 0 : 1, 6);
  int64_t most = large ? 400000 : many ? 60 : rng_one_in(r, 4) ? 2500 : 200;
  for (int64_t i = 0; i < n; i++) {
    int64_t shape[RESHARD_MAX_DIMS];
    rs_text name = {0};
    reshard_dtype dtype;
    do
      dtype = naive_draw_dtype(r);
    while (!allowed(dtype));
    if (in_npy(c))
      cli_add(&name, "tensor");
    else
      file_draw_name(r, i, &name);
    int ndim = naive_draw_shape(r, most, shape);
    naive_fill(naive_add(&c->src, name.at, dtype, ndim, shape), rng_next(r));
    free(name.at);
  }
  copy_tensors(&c->src, &c->dst);
}

/* Names that begin alike have the same layout only if one is the beginning of the other's pattern. The '.' after the
 * number rules that out. Names of maps hold nothing that a pattern minds but in their odd end. */
static void add_rule(const char *name, const char *layout, rs_text *rules) {
  for (const char *at = name; *at != '\0'; at++) {
    bool tame = (*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'z') || *at == '.' || *at == '_' || *at == '-';
    if (tame || strchr("\"#(,;:*?[]\\\n\t =", *at) == NULL)
      cli_add_bytes(rules, at, 1);
    else
      cli_add(rules, strchr("*?[]\\", *at) != NULL ? "\\%c" : "?", *at);
  }
  cli_add(rules, " %s\n", layout);
}

/* Targets of whole tensors are on one rank. */
static bool draw_sides(file_case *c, const naive_set *set, int64_t world, bool source, bool dedup, bool whole,
                       int64_t most_boxes, naive_side **out, char **rules, rs_text *why) {
  rs_text text = {0};
  *out = cli_alloc(set->n, sizeof **out);
  cli_add(&text, "# tensors by name\n");
  for (int64_t i = 0; i < set->n; i++) {
    const naive_tensor *t = &set->at[i];
    reshard_layout_kind kind = whole ? RESHARD_LAYOUT_SINGLE : RESHARD_LAYOUT_KIND_COUNT;
    do { /* PyTorch has nothing like arrays of many boxes */
      naive_side_free(&(*out)[i]);
      if (!naive_side_make(&c->r, t->ndim, t->shape, world, source, kind, most_boxes, dedup, &(*out)[i], why)) {
        free(text.at);
        return false;
      }
    } while (c->in == FROM_TORCH && source && (*out)[i].cut.n > 0 && (*out)[i].cut.at[0].whole);
    add_rule(t->name, (*out)[i].text, &text);
  }
  *rules = text.at;
  return true;
}

/* Largest rank that a list of sides names, and one. */
static int64_t named_world(const naive_set *set, const naive_side *sides) {
  int64_t world = 0;
  for (int64_t i = 0; sides != NULL && i < set->n; i++) {
    int64_t named = 0;
    if (reshard_layout_parse_world(sides[i].text, &named) == RESHARD_SUCCESS && named > world)
      world = named;
  }
  return world;
}

/* Strings that mean the same in any world. */
static void make_canonical(const naive_set *set, naive_side *sides, char **rules) {
  rs_text text = {0};
  for (int64_t i = 0; sides != NULL && i < set->n; i++) {
    size_t needed = 0;
    reshard_layout_print(sides[i].layout, NULL, 0, &needed);
    sides[i].text = cli_realloc(sides[i].text, (int64_t)needed, 1);
    reshard_layout_print(sides[i].layout, sides[i].text, needed, NULL);
    add_rule(set->at[i].name, sides[i].text, &text);
  }
  if (sides == NULL)
    return;
  free(*rules);
  *rules = text.at != NULL ? text.at : cli_strdup("");
}

/* Sides for the target's tensors, and the rules that say so. */
static bool draw_target(file_case *c, int64_t world, rs_text *why) {
  bool whole = !out_shards(c);
  c->index_bytes = c->out == TO_INDEX ? rng_log(&c->r, 20000) : 0;
  if (!draw_sides(c, &c->dst, world, false, c->out == TO_DEDUP, whole, 64, &c->to, &c->dst_rules, why))
    return false;
  c->world = c->out_world = world;
  if (!rng_one_in(&c->r, 3) || c->by_writer || c->dst.n == 0)
    return true;
  make_canonical(&c->src, c->from, &c->src_rules);
  make_canonical(&c->dst, c->to, &c->dst_rules);
  int64_t src = in_shards(c) ? c->in_world : c->from != NULL ? named_world(&c->src, c->from) : 1;
  int64_t dst = named_world(&c->dst, c->to);
  c->world = 0;
  c->out_world = dst > 0 ? dst : src;
  if (c->out_world < 1)
    c->out_world = 1;
  return true;
}

/* Files that a source of shards has, each of which is a rank where nothing says otherwise. */
static int64_t count_files(const file_case *c, int64_t world) {
  naive_cut *cuts = cli_alloc(c->src.n, sizeof *cuts);
  naive_set none = {.n = c->src.n, .at = c->src.at};
  naive_dir dir;
  for (int64_t i = 0; i < c->src.n; i++)
    cuts[i] = c->from[i].cut;
  naive_shards_dir(&none, cuts, world, NULL, &dir);
  int64_t n = dir.n;
  naive_dir_free(&dir);
  free(cuts);
  return n;
}

static void free_sides(naive_set *set, naive_side **sides) {
  for (int64_t i = 0; *sides != NULL && i < set->n; i++)
    naive_side_free(&(*sides)[i]);
  free(*sides);
  *sides = NULL;
}

static bool draw_source(file_case *c, int64_t *world, rs_text *why) {
  rng *r = &c->r;
  int64_t most_boxes = 64, in_world = rng_one_in(r, 3) ? rng_in(r, 1, *world) : *world;
  bool dedup = c->in == FROM_TORCH ? !rng_one_in(r, 4) : rng_one_in(r, 4);
  if (!in_shards(c)) {
    if (rng_one_in(r, 2))
      return draw_sides(c, &c->src, *world, true, false, false, most_boxes, &c->from, &c->src_rules, why);
    return true;
  }
  for (;; in_world = 1 + in_world / 2) {
    if (!draw_sides(c, &c->src, in_world, true, dedup, false, most_boxes, &c->from, &c->src_rules, why))
      return false;
    c->in_world = c->in == FROM_TORCH ? count_files(c, in_world) : in_world;
    if (c->in_world <= ORACLE_WORLD)
      break;
    free_sides(&c->src, &c->from);
    free(c->src_rules);
    c->src_rules = NULL;
  }
  *world = c->in_world > *world ? c->in_world : *world;
  return true;
}

bool file_case_make(uint64_t seed, file_case *c, rs_text *why) {
  *c = (file_case){.seed = seed, .in = (file_source)(seed % SOURCES), .out = (file_target)(seed / SOURCES % TARGETS)};
  rng *r = &c->r;
  rng_seed(r, seed ^ 0x66696c6573u);
  bool npy = in_npy(c) || c->out == TO_NPY, safetensors = !in_npy(c) || c->out != TO_NPY;
  bool (*allowed)(reshard_dtype) = npy && safetensors ? both_have
                                   : npy              ? naive_numpy_has
                                   : safetensors      ? naive_safetensors_has
                                                      : any_dtype;
  rs_text map = {0};
  if (rng_one_in(r, 4))
    file_draw_map(r, allowed, in_npy(c), c->out == TO_NPY, rng_one_in(r, 3) ? 1500 : 150, &map, &c->src, &c->dst);
  else
    draw_tensors(c, allowed);
  c->map = map.at;
  int64_t world = rng_one_in(r, 8) ? rng_in(r, 9, 24) : rng_in(r, 1, 8);
  c->verify = rng_one_in(r, 3);
  c->force = rng_one_in(r, 8);
  c->cancel = rng_one_in(r, 25);
  c->by_writer = c->map == NULL && rng_one_in(r, 6);
  c->threads = (int)rng_in(r, 1, 3);
  draw_dtype(c);
  return draw_source(c, &world, why) && draw_target(c, world, why);
}

bool file_case_next(file_case *c, file_case *next, rs_text *why) {
  static const file_source read_as[TARGETS] = {FROM_NPY, FROM_SAFETENSORS, FROM_INDEX, FROM_SHARDS, FROM_SHARDS};
  rng *r = &next->r;
  *next = (file_case){.seed = c->seed, .in = read_as[c->out]};
  next->in_world = c->dst.n > 0 ? c->out_world : 1;
  rng_seed(r, rng_next(&c->r));
  bool npy = c->dst.n == 1, safetensors = true;
  for (int64_t i = 0; i < c->dst.n; i++) {
    npy = npy && naive_numpy_has(c->dst.at[i].dtype);
    safetensors = safetensors && naive_safetensors_has(c->dst.at[i].dtype);
  }
  do
    next->out = (file_target)rng_below(r, TARGETS);
  while (next->out == TO_NPY ? !npy : !safetensors);
  copy_tensors(&c->dst, &next->src);
  copy_tensors(&c->dst, &next->dst);
  if (c->out == TO_NPY) {
    free(next->src.at[0].name);
    free(next->dst.at[0].name);
    next->src.at[0].name = cli_strdup("tensor");
    next->dst.at[0].name = cli_strdup("tensor");
  }
  next->owner = c->owner && c->out != TO_NPY;
  next->verify = rng_one_in(r, 3);
  next->threads = (int)rng_in(r, 1, 3);
  draw_dtype(next);
  int64_t world = rng_in(r, 1, 8);
  return draw_target(next, world, why); /* fewer ranks than the source's, too */
}

void file_case_free(file_case *c) {
  free_sides(&c->src, &c->from);
  free_sides(&c->dst, &c->to);
  naive_set_free(&c->src);
  naive_set_free(&c->dst);
  free(c->map);
  free(c->src_rules);
  free(c->dst_rules);
}

static void describe_set(const naive_set *set, const naive_side *sides, rs_text *out) {
  for (int64_t i = 0; i < set->n && i < 12; i++) {
    cli_add(out, "\n    '%.40s' %s [", set->at[i].name, reshard_dtype_string(set->at[i].dtype));
    for (int d = 0; d < set->at[i].ndim; d++)
      cli_add(out, d > 0 ? ",%lld" : "%lld", (long long)set->at[i].shape[d]);
    cli_add(out, "] %.300s", sides != NULL ? sides[i].text : "");
  }
}

void file_case_describe(const file_case *c, rs_text *out) {
  cli_add(out, "\n  %s of %lld ranks to %s of %lld (%lld asked for), %d threads%s%s%s%s", file_source_name[c->in],
          (long long)c->in_world, file_target_name[c->out], (long long)c->out_world, (long long)c->world, c->threads,
          c->verify ? ", verify" : "", c->force ? ", force" : "", c->cancel ? ", cancelled" : "",
          c->by_writer ? ", by the writer" : "");
  if (c->dtype != RESHARD_DTYPE_NONE)
    cli_add(out, "\n  as %s", reshard_dtype_string(c->dtype));
  cli_add(out, "\n  %lld source tensors:", (long long)c->src.n);
  describe_set(&c->src, c->from, out);
  cli_add(out, "\n  %lld target tensors:", (long long)c->dst.n);
  describe_set(&c->dst, c->to, out);
  if (c->map != NULL)
    cli_add(out, "\n  map:\n%s", c->map);
}

/* --- The source on disk ------------------------------------------------------------------------------------------ */

/* Names of files say nothing. */
static void rename_files(rng *r, naive_dir *dir) {
  for (int64_t i = 0; i < dir->n; i++) {
    rs_text name = {0};
    cli_add(&name, "%c%lld.safetensors", (char)('a' + rng_below(r, 26)), (long long)i);
    for (int64_t f = 0; f < dir->n; f++) {
      json_t *files = json_object_get(json_object_get(dir->file[f].metadata, "reshard"), "files");
      if (json_array_size(files) == (size_t)dir->n)
        json_array_set_new(files, (size_t)i, json_pack("s", name.at));
    }
    free(dir->file[i].name);
    dir->file[i].name = name.at;
  }
}

/* PyTorch writes one of the shards that have nothing, which is at the end. */
static void add_empty_shard(rng *r, const naive_tensor *t, naive_dir *dir) {
  naive_file *file = &dir->file[rng_below(r, dir->n)];
  if (t->n == 0 || t->ndim == 0 || naive_find(&file->set, t->name) != NULL)
    return;
  int dim = (int)rng_below(r, t->ndim);
  int64_t shape[RESHARD_MAX_DIMS];
  json_t *offsets = json_array();
  for (int d = 0; d < t->ndim; d++) {
    shape[d] = d == dim ? 0 : t->shape[d];
    json_array_append_new(offsets, json_integer(d == dim ? t->shape[d] : 0));
  }
  naive_add(&file->set, t->name, t->dtype, t->ndim, shape);
  json_object_set_new(json_object_get(file->metadata, "DCP_SHARDING_INFO"), t->name,
                      json_pack("{s:o}", "saved_offsets", offsets));
}

static void make_shards(file_case *c, naive_dir *dir) {
  naive_cut *cuts = cli_alloc(c->src.n, sizeof *cuts);
  char **layouts = cli_alloc(c->src.n, sizeof *layouts);
  int64_t world = c->in_world;
  for (int64_t i = 0; i < c->src.n; i++) {
    cuts[i] = c->from[i].cut;
    layouts[i] = c->from[i].text;
    world = c->from[i].what.world;
  }
  naive_shards_dir(&c->src, cuts, world, c->in == FROM_SHARDS ? (const char *const *)layouts : NULL, dir);
  free(cuts);
  free(layouts);
  for (int64_t i = 0; i < c->src.n && c->in == FROM_TORCH; i++)
    add_empty_shard(&c->r, &c->src.at[i], dir);
}

static void make_whole(file_case *c, naive_dir *dir) {
  rng *r = &c->r;
  if (c->in == FROM_INDEX) {
    naive_index_dir(&c->src, rng_log(r, 20000), dir);
    return;
  }
  *dir = (naive_dir){0};
  int64_t n = rng_in(r, 1, 4);
  for (int64_t f = 0; f < n; f++) {
    char name[32];
    snprintf(name, sizeof name, "%c%lld.safetensors", (char)('a' + rng_below(r, 26)), (long long)f);
    naive_file *file = naive_dir_add(dir, name);
    if (rng_one_in(r, 2))
      file->metadata = rng_one_in(r, 2) ? json_object() : json_pack("{s:s}", "format", "pt");
  }
  for (int64_t i = 0; i < c->src.n; i++)
    copy_tensors(&(naive_set){1, &c->src.at[i]}, &dir->file[rng_below(r, n)].set);
}

static void add_owner(file_case *c, naive_dir *dir) {
  c->owner = c->seed % 3 == 0 && c->src.n > 0;
  for (int64_t f = 0; f < dir->n && c->owner; f++) {
    if (dir->file[f].metadata == NULL)
      dir->file[f].metadata = json_object();
    json_object_set_new(dir->file[f].metadata, FILE_CASE_KEY, json_string(FILE_CASE_VALUE));
  }
}

void file_write_source(file_case *c, const char *path) {
  rng *r = &c->r;
  naive_dir dir = {0};
  if (in_npy(c)) {
    naive_write_npy(r, path, &c->src.at[0], c->in == FROM_FORTRAN);
  } else if (c->in == FROM_SAFETENSORS) {
    naive_file *file = naive_dir_add(&dir, "");
    copy_tensors(&c->src, &file->set);
    add_owner(c, &dir);
    naive_write_safetensors(r, path, file);
  } else {
    if (in_shards(c))
      make_shards(c, &dir);
    else
      make_whole(c, &dir);
    if (in_shards(c) && rng_one_in(r, 2))
      rename_files(r, &dir);
    add_owner(c, &dir);
    naive_write_dir(r, path, &dir);
  }
  naive_dir_free(&dir);
}

#endif
