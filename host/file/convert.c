/* Converts a checkpoint: open, map, lay out, reserve, move, sync, compare, put in place. Whatever step fails, or is
 * killed, the path of the target has what it had. */
#include "base/text.h"
#include "device/environment.h"
#include "file/carry.h"
#include "file/ground/digest.h"
#include "file/map/dtypes.h"
#include "file/map/line.h"
#include "file/map/wire.h"
#include "file/model/layouts.h"
#include "file/move/move.h"
#include "file/read/checkpoint.h"
#include "file/read/rank_files.h"
#include "file/write/writer.h"
#include "layout/blocks.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct conversion {
  const reshard_convert_options *options;
  rs_layouts src, dst;
  reshard_checkpoint in, back;
  bool from_ranks; /* in is a directory of files of ranks */
  reshard_model target;
  rs_copy_regions regions;
  rs_text_pairs owner;                       /* metadata for the target */
  reshard_layout *src_layouts, *dst_layouts; /* by tensor of the source (as if in memory), of the target */
  reshard_writer writer;
  int64_t world, src_world; /* of the target, of the source */
  reshard_convert_report report;
} conversion;

/* --- Paths ------------------------------------------------------------------------------------------------------- */

static bool is_within(const char *path, const char *directory) {
  size_t n = strlen(directory);
  return strncmp(path, directory, n) == 0 && (path[n] == '/' || path[n] == '\0' || n == 1);
}

/* The target must not be the source, in it, or around it: what is replaced would be what is read. */
static reshard_status check_paths(const char *in, const char *out) {
  char from[PATH_MAX], to[PATH_MAX], where[RS_WHERE];
  if (realpath(in, from) == NULL)
    return rs_file_error(rs_where(where, "input", in), errno);
  if (realpath(out, to) == NULL) { /* not there yet: its directory is */
    char copy[PATH_MAX];
    size_t n = strlen(out);
    while (n > 1 && out[n - 1] == '/')
      n--;
    if (n == 0 || n >= sizeof copy)
      return rs_error(RESHARD_ERROR_INVALID, "%s: a path of %zu characters", rs_where(where, "output", out), n);
    memcpy(copy, out, n);
    copy[n] = '\0';
    char *slash = strrchr(copy, '/');
    const char *base = slash != NULL ? slash + 1 : copy;
    char name[NAME_MAX + 1];
    if (strlen(base) > NAME_MAX)
      return rs_error(RESHARD_ERROR_INVALID, "%s: a name of %zu characters", rs_where(where, "output", out),
                      strlen(base));
    strcpy(name, base);
    if (slash != NULL)
      slash[slash == copy] = '\0';
    if (realpath(slash != NULL ? copy : ".", to) == NULL) {
      int error = errno;
      char text[RS_WHERE + 32];
      snprintf(text, sizeof text, "%s: its directory", rs_where(where, "output", out));
      return rs_file_error(text, error);
    }
    n = strlen(to);
    if (n + 1 + strlen(name) >= sizeof to)
      return rs_error(RESHARD_ERROR_INVALID, "%s: its path is longer than %zu", rs_where(where, "output", out),
                      sizeof to);
    if (n > 1)
      to[n++] = '/';
    strcpy(to + n, name);
  }
  struct stat a, b;
  bool same = stat(in, &a) == 0 && stat(out, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
  if (same || strcmp(from, to) == 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s is the input", rs_where(where, "output", out));
  if (is_within(to, from) || is_within(from, to))
    return rs_error(RESHARD_ERROR_INVALID, "%s %s the input", rs_where(where, "output", out),
                    is_within(to, from) ? "is inside" : "has inside it");
  return RESHARD_SUCCESS;
}

/* An index can have files in other places. */
static reshard_status check_source_files(const conversion *c, const char *out) {
  char from[PATH_MAX], to[PATH_MAX], where[RS_WHERE], quoted[RS_QUOTE];
  if (realpath(out, to) == NULL) /* nothing is there that could be replaced */
    return RESHARD_SUCCESS;
  for (int64_t f = 0; f < c->in->store.files.n; f++) {
    const char *path = c->in->store.files.at[f].path;
    if (realpath(path, from) != NULL && is_within(from, to))
      return rs_error(RESHARD_ERROR_INVALID, "%s: '%s' of the input is in it, or is it", rs_where(where, "output", out),
                      rs_quote(quoted, sizeof quoted, path));
  }
  return RESHARD_SUCCESS;
}

/* --- Layouts ----------------------------------------------------------------------------------------------------- */

static reshard_status read_side(rs_layouts *s, const char *name, const char *text, reshard_rules rules) {
  *s = (rs_layouts){.name = name, .text = text, .rules = rules};
  if (text != NULL && rules != NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: a layout and rules are both given", name);
  if (rules != NULL)
    return reshard_rules_world(rules, &s->world);
  if (text != NULL)
    return reshard_layout_parse_world(text, &s->world);
  s->text = "rank(0)";
  return RESHARD_SUCCESS;
}

/* The world of the target is the one given, else what the destination names, else the source's. Shards keep their own.
 * Layouts of whole tensors are of the target's world, or of more ranks where they name more. */
static reshard_status choose_worlds(conversion *c) {
  const reshard_convert_options *o = c->options;
  bool shards = rs_has_ranks(c->in->info.format);
  int64_t held = shards ? c->in->info.world : c->src.world;
  int64_t given = c->from_ranks ? 0 : o->world; /* files of ranks: it is the source's */
  c->world = given > 0 ? given : c->dst.world > 0 ? c->dst.world : held;
  if (c->world == 0 && (o->src != NULL || o->src_rules != NULL || o->dst != NULL || o->dst_rules != NULL))
    return rs_error(RESHARD_ERROR_INVALID, "neither layout names its ranks: their number is needed");
  c->world = rs_max(c->world, 1);
  c->src_world = shards ? held : rs_max(held, c->world);
  return RESHARD_SUCCESS;
}

/* Counts tensors that cannot be read back from the target. */
static void count_unreadable(conversion *c, reshard_layout layout) {
  if (layout->kind != RESHARD_LAYOUT_BOXES)
    return;
  c->report.haloed += layout->boxes->overlapping;
  c->report.gapped += !layout->boxes->covers && !layout->boxes->overlapping;
}

/* False where a rank's part of packed elements begins or ends between those that share bytes. */
static bool keeps_packed(reshard_layout layout, int64_t bytes) {
  reshard_interval runs[64];
  for (int64_t rank = 0; rank < layout->world; rank++)
    for (int64_t a = 0; a < rs_layout_arrays(layout, rank); a++)
      for (int64_t first = 0, n = 1; first < n; first += 64) {
        if (reshard_layout_array_intervals(layout, rank, a, layout->ndim - 1, first, 64, runs, &n) != RESHARD_SUCCESS)
          return false;
        for (int64_t i = 0; i < rs_min(n - first, 64); i++)
          if (runs[i].begin % bytes != 0 || runs[i].end % bytes != 0)
            return false;
      }
  return true;
}

/* The layout of tensor i of a model. One of packed elements that it would cut apart is whole on each of its ranks. */
static reshard_status make_layout(rs_layouts *side, reshard_model model, int64_t i, int64_t world,
                                  reshard_layout *layout) {
  const rs_model_tensor *t = &model->tensors.at[i];
  const char *name = rs_model_name(model, i);
  const rs_packed_type *type = &rs_packed_types[t->packed];
  RS_TRY((t->solid ? rs_layouts_whole : rs_layouts_get)(side, name, t->ndim, t->shape, world, layout));
  int64_t bytes = t->solid ? rs_max(t->shape[0], 1) : type->bytes;
  if (bytes == 1 || keeps_packed(*layout, bytes))
    return RESHARD_SUCCESS;
  reshard_layout_release(*layout);
  *layout = NULL;
  return rs_layouts_whole(side, name, t->ndim, t->shape, world, layout);
}

/* Packed elements share bytes along the last dim, which stays the last one and is cut where bytes end. */
static reshard_status check_packed(const conversion *c) {
  char quoted[RS_QUOTE];
  for (int64_t i = 0; i < c->regions.n; i++) {
    const rs_copy_region *r = &c->regions.at[i];
    const rs_model_tensor *to = &c->target->tensors.at[r->dst];
    const rs_packed_type *type = &rs_packed_types[to->packed];
    int last = to->ndim - 1, from = last < 0 ? 0 : r->permutation[last];
    if (type->elements == 1)
      continue;
    if (r->src < 0 && (r->dst_offset[last] % type->bytes != 0 || r->dst_extent[last] % type->bytes != 0))
      return rs_error(RESHARD_ERROR_INVALID, "'%s' of %s: a map puts zeros between elements that share bytes",
                      rs_quote(quoted, sizeof quoted, rs_model_name(c->target, r->dst)), type->name);
    if (r->src < 0)
      continue;
    const rs_model_tensor *t = &c->in->store.model->tensors.at[r->src];
    if (t->solid && (to->ndim != 1 || to->shape[0] != t->shape[0] || r->dst_extent[0] != t->shape[0]))
      return rs_error(RESHARD_ERROR_INVALID, "'%s' of %s: its last dim ends within a byte, a map leaves it whole",
                      rs_quote(quoted, sizeof quoted, rs_model_name(c->in->store.model, r->src)), type->name);
    if (from != c->in->store.model->tensors.at[r->src].ndim - 1 || r->src_offset[from] % type->bytes != 0 ||
        r->src_extent[from] % type->bytes != 0 || r->dst_offset[last] % type->bytes != 0)
      return rs_error(RESHARD_ERROR_INVALID,
                      "'%s' of %s: a map leaves its last dim, where elements share bytes, as it is",
                      rs_quote(quoted, sizeof quoted, rs_model_name(c->in->store.model, r->src)), type->name);
  }
  return RESHARD_SUCCESS;
}

/* Scales of the target lie where their blocks lie, which ranks do not share. */
static reshard_status lay_out_scales(conversion *c, const rs_copy_region *r) {
  const rs_model_tensor *t = &c->target->tensors.at[r->dst];
  int64_t block[RESHARD_MAX_DIMS];
  char quoted[RS_QUOTE], text[RS_BLOCKS_TEXT];
  rs_block_cut cut;
  if (!rs_region_scaled(r, t->dtype) || c->dst_layouts[r->scales] != NULL)
    return RESHARD_SUCCESS;
  for (int d = 0; d < t->ndim; d++)
    block[d] = rs_blocks_extent(&r->blocks, t->ndim, d);
  RS_TRY(rs_layout_find_cut(c->dst_layouts[r->dst], block, &cut));
  rs_quote(quoted, sizeof quoted, rs_model_name(c->target, r->dst));
  if (cut.dim >= 0)
    return rs_error(RESHARD_ERROR_INVALID,
                    "dst: tensor '%s': dim %d: rank %lld's part begins or ends at %lld, in a block of %lld (%s)",
                    quoted, cut.dim, (long long)cut.rank, (long long)cut.at, (long long)block[cut.dim],
                    rs_blocks_text(text, &r->blocks));
  reshard_status status = rs_layout_blocks(c->dst_layouts[r->dst], block, &c->dst_layouts[r->scales]);
  return status == RESHARD_SUCCESS ? status : rs_error(status, "dst: tensor '%s': %s", quoted, reshard_last_error());
}

static reshard_status make_layouts(conversion *c) {
  RS_TRY(choose_worlds(c));
  RS_TRY(check_packed(c));
  int64_t nsrc = c->in->info.tensors, ndst = reshard_model_count(c->target);
  reshard_model_tensor t;
  RS_TRY(rs_alloc_zero(&c->src_layouts, nsrc, sizeof *c->src_layouts));
  RS_TRY(rs_alloc_zero(&c->dst_layouts, ndst, sizeof *c->dst_layouts));
  for (int64_t r = 0; r < c->regions.n; r++) { /* what a map leaves out has none */
    int64_t i = c->regions.at[r].src;
    if (i < 0 || c->src_layouts[i] != NULL)
      continue;
    if (rs_has_ranks(c->in->info.format)) {
      c->src_layouts[i] = reshard_layout_retain(c->in->store.tensors.at[i].layout);
      continue;
    }
    RS_TRY(reshard_model_get(c->in->store.model, i, &t));
    RS_TRY(make_layout(&c->src, c->in->store.model, i, c->src_world, &c->src_layouts[i]));
    if (reshard_layout_check_source(c->src_layouts[i]) != RESHARD_SUCCESS) {
      char quoted[RS_QUOTE];
      return rs_error(RESHARD_ERROR_INVALID, "src: tensor '%s': %s", rs_quote(quoted, sizeof quoted, t.name),
                      reshard_last_error());
    }
  }
  for (int64_t i = 0; i < ndst - c->report.scaled; i++)
    RS_TRY(make_layout(&c->dst, c->target, i, c->world, &c->dst_layouts[i]));
  for (int64_t i = 0; i < c->regions.n; i++)
    RS_TRY(lay_out_scales(c, &c->regions.at[i]));
  for (int64_t i = 0; i < ndst; i++) {
    count_unreadable(c, c->dst_layouts[i]);
    c->report.scalars += rs_layout_repeats_scalar(c->dst_layouts[i]);
  }
  RS_TRY(rs_layouts_check(&c->src, c->in->store.model, c->src_world));
  return rs_layouts_check(&c->dst, c->target, c->world);
}

static reshard_status count_wire(conversion *c) {
  const rs_wire wire = {c->in->store.model, c->target,      &c->regions, c->in->info.tensors,
                        c->src_layouts,     c->dst_layouts, c->world};
  return rs_wire_count(&wire, &c->report.wire_bytes);
}

/* --- Data -------------------------------------------------------------------------------------------------------- */

/* Numbers and texts of the source: shards are what a state dict is saved as. */
static reshard_status attach_leaves(conversion *c) {
  rs_json json = {0};
  rs_writer_report written;
  rs_writer_get_report(c->writer, &written);
  if (written.format != RESHARD_FORMAT_SHARDS || c->in->leaves.all.n == 0)
    return RESHARD_SUCCESS;
  reshard_status status = rs_leaves_json(&c->in->leaves, c->options->no_digests == 0, &json);
  RS_THEN(status, rs_writer_attach(c->writer, RS_STATE_JSON, &json.text));
  c->report.leaves = c->in->leaves.all.n;
  free(json.text.at);
  return status;
}

/* The owner's metadata as the writer takes it; the caller frees it. */
static reshard_status list_metadata(conversion *c, const char *out, reshard_text_pair **list) {
  int64_t n = c->owner.all.n, format = rs_text_pairs_find(&c->owner, "format") != NULL;
  if (rs_ends(out, ".npy")) {
    rs_text_pairs_free(&c->owner);
    return n > format
               ? rs_checkpoint_note(c->in, "%lld entries of \"__metadata__\" are left out: .npy has no place for it",
                                    (long long)(n - format))
               : RESHARD_SUCCESS;
  }
  RS_TRY(rs_alloc(list, n, sizeof **list));
  for (int64_t i = 0; i < n; i++)
    (*list)[i] = (reshard_text_pair){c->owner.all.at[i].key, c->owner.all.at[i].value};
  return RESHARD_SUCCESS;
}

/* Users that may read the first file of the input may read the output: by its mode, and that of a directory. */
static int mode_of_input(const conversion *c) {
  const rs_file *first = c->in->store.files.n > 0 ? c->in->store.files.at : NULL;
  struct stat info;
  char directory[PATH_MAX];
  int mode = 0666;
  if (first != NULL && fstat(first->fd, &info) == 0)
    mode = (int)info.st_mode & 0666;
  const char *slash = first != NULL && c->in->directory ? strrchr(first->path, '/') : NULL;
  if (slash != NULL && slash - first->path < PATH_MAX) {
    snprintf(directory, sizeof directory, "%.*s", (int)(slash - first->path), first->path);
    if (stat(directory, &info) == 0)
      mode &= ((int)info.st_mode & 0111) * 7;
  }
  return mode | 0600;
}

static reshard_status create_writer(conversion *c, const char *out) {
  const reshard_convert_options *o = c->options;
  int64_t n = reshard_model_count(c->target);
  reshard_writer_tensor *tensors;
  RS_TRY(rs_alloc(&tensors, n, sizeof *tensors));
  for (int64_t i = 0; i < n; i++)
    tensors[i] =
        (reshard_writer_tensor){rs_model_name(c->target, i), c->target->tensors.at[i].dtype, c->dst_layouts[i]};
  reshard_text_pair *metadata = NULL;
  reshard_status status = list_metadata(c, out, &metadata);
  reshard_writer_options options = {.size = RESHARD_WRITER_OPTIONS_INIT,
                                    .force = o->force,
                                    .dedup = o->dedup,
                                    .index_bytes = o->index_bytes,
                                    .no_digests = o->no_digests,
                                    .nmetadata = c->owner.all.n,
                                    .metadata = metadata};
  RS_THEN(status, rs_writer_create(out, n, tensors, c->target, &options, mode_of_input(c), &c->writer));
  free(tensors);
  RS_THEN(status, attach_leaves(c));
  free(metadata);
  return status;
}

/* Moves from the input to what is written, or compares what the input has with what is read back. */
static reshard_status move_data(conversion *c, const rs_store *to, int64_t nregions, const rs_copy_region *regions,
                                bool compare) {
  rs_store_move m = {.src = &c->in->store,
                     .dst = to,
                     .nregions = nregions,
                     .regions = regions,
                     .threads = c->options->threads,
                     .compare = compare,
                     .only_rank = -1,
                     .progress = c->options->progress,
                     .user = c->options->user};
  return rs_store_move_run(&m);
}

/* Compares the output, read back, with the source; its headers give it an order and layouts of its own. */
static reshard_status compare_output(conversion *c) {
  rs_copy_region *regions;
  RS_TRY(rs_checkpoint_open(rs_writer_path(c->writer),
                            &(rs_checkpoint_options){.gaps_allowed = true, .check = rs_digest_built()}, &c->back));
  RS_TRY(rs_alloc_copy(&regions, c->regions.at, c->regions.n, sizeof *regions));
  reshard_status status = RESHARD_SUCCESS;
  c->report.from_device = 1;
  for (int64_t f = 0; f < c->back->store.files.n; f++)
    c->report.from_device &= c->back->store.files.at[f].dropped && rs_file_drop_pages(&c->back->store.files.at[f]);
  bool npy = c->back->info.format == RESHARD_FORMAT_NPY;
  if (!npy && c->back->store.files.n > 0)
    status = rs_carry_compare(&c->owner, c->back);
  if (status == RESHARD_SUCCESS && c->back->info.tensors != reshard_model_count(c->target))
    status = rs_error(RESHARD_ERROR_CORRUPT, "%lld tensors are read back, %lld were written",
                      (long long)c->back->info.tensors, (long long)reshard_model_count(c->target));
  int64_t kept = 0;
  for (int64_t i = 0; i < c->regions.n && status == RESHARD_SUCCESS; i++) {
    int64_t target = regions[i].dst;
    const rs_model_tensor *t = &c->target->tensors.at[target], *b;
    rs_copy_region *region = &regions[kept];
    *region = regions[i];
    region->dst = 0;
    if (!npy)
      status = reshard_checkpoint_find(c->back, c->target->names.at + t->name, &region->dst);
    if (status == RESHARD_SUCCESS && rs_region_scaled(region, t->dtype))
      status = reshard_checkpoint_find(c->back, rs_model_name(c->target, region->scales), &region->scales);
    bool empty = reshard_layout_elements(c->dst_layouts[target]) == 0;
    if (status != RESHARD_SUCCESS || (!empty && c->back->store.tensors.at[region->dst].count == 0))
      continue; /* nothing of it is stored: the target is all gap */
    b = &c->back->store.model->tensors.at[region->dst];
    kept++;
    if (b->dtype != t->dtype || b->packed != t->packed || !rs_shape_equal(b->ndim, b->shape, t->ndim, t->shape))
      status = rs_error(RESHARD_ERROR_CORRUPT, "tensor '%.128s' has another shape or dtype when read back",
                        c->target->names.at + t->name);
  }
  RS_THEN(status, move_data(c, &c->back->store, kept, regions, true));
  free(regions);
  return status;
}

static reshard_status check_options(const char *in, const char *out, const reshard_convert_options *o) {
  if (in == NULL || out == NULL || o == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_convert: NULL argument");
  RS_TRY(RS_SIZED(reshard_convert_options, o));
  if (o->world < 0 || o->index_bytes < 0 || o->threads < 0 || o->threads > 4096)
    return rs_error(RESHARD_ERROR_INVALID,
                    "%lld ranks, %lld bytes per file, %d threads: none may be negative, 4096 threads are the most",
                    (long long)o->world, (long long)o->index_bytes, o->threads);
  RS_TRY(rs_dtypes_check(o->dtype, &o->blocks));
  int threads = o->threads;
  reshard_isa isa = RESHARD_ISA_AUTO;
  return rs_environment_cpu(&threads, &isa); /* before anything is made */
}

/* Scales are found by the indices of their values. */
static reshard_status check_order(const conversion *c) {
  char quoted[RS_QUOTE];
  for (int64_t i = 0; i < c->regions.n; i++) {
    const rs_copy_region *r = &c->regions.at[i];
    if (r->src < 0 || !rs_region_scaled(r, c->in->store.model->tensors.at[r->src].dtype))
      continue;
    if (c->in->store.tensors.at[r->src].reversed || c->in->store.tensors.at[r->scales].reversed)
      return rs_error(RESHARD_ERROR_UNSUPPORTED, "tensor '%s': it, or its scales, is stored column by column",
                      rs_quote(quoted, sizeof quoted, rs_model_name(c->in->store.model, r->src)));
  }
  return RESHARD_SUCCESS;
}

static reshard_status prepare_output(conversion *c, const char *in, const char *out) {
  const reshard_convert_options *o = c->options;
  RS_TRY(check_paths(in, out));
  RS_TRY(read_side(&c->src, "src", o->src, o->src_rules));
  RS_TRY(read_side(&c->dst, "dst", o->dst, o->dst_rules));
  if (o->src != NULL || o->src_rules != NULL)
    RS_TRY(rs_rank_files_found(in, &c->from_ranks));
  const rs_rank_files ranks = {.layout = o->src, .rules = o->src_rules, .world = o->world};
  RS_TRY(rs_checkpoint_open(in,
                            &(rs_checkpoint_options){.check = o->verify != 0 && rs_digest_built(),
                                                     .source_dtype = o->source_dtype,
                                                     .ranks = c->from_ranks ? &ranks : NULL,
                                                     .leave_out = o->leave_out != 0},
                            &c->in));
  RS_TRY(check_source_files(c, out));
  if (rs_has_ranks(c->in->info.format) && !c->from_ranks && (o->src != NULL || o->src_rules != NULL)) {
    char where[RS_WHERE];
    return rs_error(RESHARD_ERROR_INVALID, "src: %s has shards, which say their own layout",
                    rs_where(where, "directory", in));
  }
  RS_TRY(rs_map_apply(o->map, c->in->store.model, &c->target, &c->regions));
  const rs_dtype_choice choice = {c->in->store.model, &c->in->names, &c->regions, &c->src, &c->dst,
                                  o->dtype,           &o->blocks};
  RS_TRY(rs_dtypes_choose(&choice, c->target, &c->report));
  RS_TRY(check_order(c));
  RS_TRY(rs_carry_metadata(c->in, c->target, &c->regions, &c->owner));
  RS_TRY(make_layouts(c));
  RS_TRY(count_wire(c));
  if (o->models != NULL) /* nothing is written yet that a caller who ends the process would leave */
    o->models(o->user, c->in->store.model, c->target);
  RS_TRY(rs_zero_regions(&c->in->store, c->target, &c->regions));
  return create_writer(c, out);
}

/* linked: what is replaced behind a link; NULL: there is no link. */
static reshard_status publish_output(conversion *c, const char *out, const char *linked) {
  char text[3 * RS_WHERE] = "", link[RS_WHERE], file[RS_WHERE];
  reshard_writer writer = c->writer;
  if (linked != NULL)
    snprintf(text, sizeof text, "%s is a symbolic link and stays: replaced was %s", rs_where(link, "output", out),
             rs_where(file, "file", linked));
  c->writer = NULL;
  RS_TRY(rs_writer_publish(writer));
  if (linked != NULL && c->options->note != NULL)
    c->options->note(c->options->user, text);
  return RESHARD_SUCCESS;
}

static reshard_status convert_checkpoint(conversion *c, const char *in, const char *out) {
  const reshard_convert_options *o = c->options;
  reshard_convert_report *r = &c->report;
  rs_writer_report written;
  int64_t unchecked;
  double start = rs_seconds();
  RS_TRY(prepare_output(c, in, out));
  rs_writer_get_report(c->writer, &written);
  double prepared = rs_seconds();
  RS_TRY(move_data(c, rs_writer_store(c->writer), c->regions.n, c->regions.at, false));
  RS_TRY(rs_checkpoint_unchanged(c->in));
  double moved = rs_seconds();
  RS_TRY(rs_writer_sync(c->writer, o->progress, o->user));
  double synced = rs_seconds();
  if (o->verify)
    RS_TRY(compare_output(c));
  double compared = rs_seconds();
  RS_TRY(publish_output(c, out, written.linked));
  for (int64_t i = 0; o->note != NULL && i < c->in->notes.n; i += (int64_t)strlen(c->in->notes.at + i) + 1)
    o->note(o->user, c->in->notes.at + i);
  r->source = c->in->info;
  r->format = written.format;
  r->tensors = reshard_model_count(c->target);
  r->files = written.files;
  r->world = c->world;
  r->bytes = written.bytes;
  r->whole_arrays = written.whole_arrays;
  r->digests = written.digests;
  r->checked_bytes = rs_checkpoint_checked(c->in, &unchecked);
  r->open_seconds = prepared - start - written.reserve_seconds;
  r->reserve_seconds = written.reserve_seconds;
  r->move_seconds = moved - prepared;
  r->verify_seconds = compared - synced;
  r->sync_seconds = synced - moved + (rs_seconds() - compared);
  return RESHARD_SUCCESS;
}

reshard_status reshard_convert(const char *in, const char *out, const reshard_convert_options *options,
                               reshard_convert_report *report) {
  RS_TRY(check_options(in, out, options));
  conversion c = {.options = options};
  reshard_status status = convert_checkpoint(&c, in, out);
  rs_saved_error saved = {.status = RESHARD_SUCCESS};
  rs_error_save(&saved, status);
  for (int64_t i = 0; c.src_layouts != NULL && i < c.in->info.tensors; i++)
    reshard_layout_release(c.src_layouts[i]);
  for (int64_t i = 0; c.dst_layouts != NULL && i < reshard_model_count(c.target); i++)
    reshard_layout_release(c.dst_layouts[i]);
  free(c.src_layouts);
  free(c.dst_layouts);
  free(c.regions.at);
  rs_text_pairs_free(&c.owner);
  rs_layout_cache_free(&c.src.cache);
  rs_layout_cache_free(&c.dst.cache);
  reshard_writer_abandon(c.writer);
  reshard_checkpoint_close(c.back);
  reshard_checkpoint_close(c.in);
  reshard_model_free(c.target);
  if (status == RESHARD_SUCCESS && report != NULL)
    *report = c.report;
  return rs_error_restore(&saved); /* not what tidying up has said */
}
