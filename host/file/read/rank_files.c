/* Files that the ranks of an engine have written each for itself: model-rank-R-part-P.safetensors, consolidated.0R.pth.
 * Nothing in them says how their tensors were cut. The caller says it, by a layout or rules; the shape of a tensor
 * follows from that and from the parts. In each dim it is the sum of the extents of all different parts. Which ranks
 * have the same part of a dim is asked of the layout for a probe, a tensor that can be cut evenly.
 *
 * Then the layout for that shape must give each rank what it has. From there on parts are shards as others are. */
#include "file/read/rank_files.h"

#include "base/text.h"
#include "file/model/layouts.h"
#include "file/read/directory.h"
#include "file/read/shards.h"
#include "file/read/state_walk.h"

#include <stdlib.h>
#include <string.h>

#define TORCH_LIMIT ((int64_t)1 << 30) /* of the directory and of data.pkl */

enum { COMPARED = 1 << 20 };

/* A tensor of one file. */
typedef struct rank_part {
  int64_t tensor, rank, file, offset;
  int64_t elements, shape[RESHARD_MAX_DIMS];
} rank_part;

typedef struct rank_set {
  rs_opening *opening;
  const rs_rank_files *said;
  rs_layouts layouts;
  rs_shards shards;
  int64_t file; /* that is read */
  rs_rank_names files;
  RS_VEC(rank_part) parts; /* rank by rank */
  RS_VEC(int64_t) of;      /* parts of the tensor in hand, by rank; -1: none */
  RS_VEC(int64_t) first;   /* per cell: the first part; -1: none */
  RS_VEC(char *) names;    /* of tensors; owned */
  char *buffers;           /* two of COMPARED bytes */
} rank_set;

/* --- Files ------------------------------------------------------------------------------------------------------- */

/* Every rank has a file, and every file a rank. */
static reshard_status check_ranks(rank_set *r) {
  const rs_opening *o = r->opening;
  char quoted[RS_QUOTE];
  if (r->files.n == 0)
    return rs_rank_names_error(o->where, r->said->pattern);
  const rs_rank_file *last = &r->files.at[r->files.n - 1];
  r->shards.world = r->said->world > 0 ? r->said->world : rs_max(r->layouts.world, last->rank + 1);
  if (last->rank >= r->shards.world)
    return rs_error(RESHARD_ERROR_INVALID, "%s: file '%s' is of rank %lld, the world has %lld ranks", o->where,
                    rs_quote(quoted, sizeof quoted, last->name), (long long)last->rank, (long long)r->shards.world);
  for (int64_t i = 0, rank = 0; rank < r->shards.world; rank++) {
    if (i == r->files.n || r->files.at[i].rank != rank)
      return rs_error(RESHARD_ERROR_INVALID, "%s: no file of rank %lld, the world has %lld ranks", o->where,
                      (long long)rank, (long long)r->shards.world);
    while (i < r->files.n && r->files.at[i].rank == rank)
      i++;
  }
  return RESHARD_SUCCESS;
}

/* --- Parts ------------------------------------------------------------------------------------------------------- */

static const char *file_of(const rank_set *r, int64_t part, char quoted[RS_QUOTE]) {
  return rs_quote(quoted, RS_QUOTE, rs_opening_name(r->opening, r->parts.at[part].file));
}

static const char *name_of(const rank_set *r, int64_t tensor, char quoted[RS_QUOTE]) {
  return rs_quote(quoted, RS_QUOTE, r->shards.tensors.at[tensor].name);
}

/* Notes a tensor that comes for the first time. */
static reshard_status note_tensor(rank_set *r, const reshard_model_tensor *t, const rs_model_tensor *from,
                                  int64_t *tensor) {
  rs_shards *s = &r->shards;
  *tensor = rs_names_find(&s->names, t->name, strlen(t->name));
  if (*tensor >= 0)
    return RESHARD_SUCCESS;
  RS_TRY(rs_vec_reserve(&r->names, r->names.n + 1));
  RS_TRY(rs_vec_reserve(&s->tensors, s->tensors.n + 1));
  RS_TRY(rs_alloc_copy(&r->names.at[r->names.n], t->name, (int64_t)rs_name_length(t->name, from->solid) + 1, 1));
  const char *name = r->names.at[r->names.n++];
  RS_TRY(rs_names_put(&s->names, name, strlen(name), tensor));
  s->tensors.at[s->tensors.n++] = (rs_global_tensor){.name = name,
                                                     .dtype = t->dtype,
                                                     .packed = from->packed,
                                                     .solid = from->solid,
                                                     .ndim = t->ndim,
                                                     .file = r->file,
                                                     .layout = -1};
  return RESHARD_SUCCESS;
}

/* from: as the header has it. */
static reshard_status add_part(rank_set *r, const reshard_model_tensor *t, const rs_model_tensor *from,
                               int64_t offset) {
  rank_part part = {.file = r->file, .rank = r->files.at[r->file].rank, .offset = offset};
  char quoted[RS_QUOTE], first[RS_WHERE], second[RS_WHERE];
  RS_TRY(note_tensor(r, t, from, &part.tensor));
  const rs_global_tensor *global = &r->shards.tensors.at[part.tensor];
  if (global->dtype != t->dtype || global->packed != from->packed || global->solid != from->solid ||
      global->ndim != t->ndim)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s' is %s of %d dims, in %s it is %s of %d",
                    rs_opening_where(r->opening, r->file, second), name_of(r, part.tensor, quoted),
                    rs_type_text(t->dtype, from->packed), t->ndim, rs_opening_where(r->opening, global->file, first),
                    rs_type_text(global->dtype, global->packed), global->ndim);
  RS_TRY(rs_tensor_bytes(t->ndim, t->shape, 1, &part.elements));
  memcpy(part.shape, t->shape, sizeof part.shape);
  RS_TRY(rs_vec_push(&r->parts, part));
  r->opening->beside += (int64_t)(sizeof part + sizeof(rs_global_tensor) + sizeof(char *) + strlen(t->name) + 1);
  r->opening->checkpoint->info.stored_bytes += part.elements * rs_max((int64_t)reshard_dtype_size(t->dtype), 1);
  return RESHARD_SUCCESS;
}

static reshard_status add_torch_part(void *user, const char *name, const rs_torch_tensor *t) {
  rank_set *r = user;
  char where[RS_WHERE], quoted[RS_QUOTE];
  reshard_model_tensor tensor = {.name = name, .dtype = t->dtype, .ndim = t->ndim};
  if (t->reversed)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: tensor '%s' is in Fortran order: " RS_TORCH_PYTHON,
                    rs_opening_where(r->opening, r->file, where), rs_quote(quoted, sizeof quoted, name));
  memcpy(tensor.shape, t->shape, sizeof tensor.shape);
  return add_part(r, &tensor, &(rs_model_tensor){.packed = t->packed, .solid = t->dtype == RESHARD_DTYPE_NONE},
                  t->offset);
}

/* Numbers and texts are those of rank 0. */
static reshard_status read_torch(rank_set *r) {
  char where[RS_WHERE];
  rs_torch torch;
  reshard_checkpoint c = r->opening->checkpoint;
  const rs_file *file = &c->store.files.at[r->file];
  int64_t leaves = c->leaves.all.n, text = c->leaves.text.n, left_out = c->info.left_out;
  rs_opening_where(r->opening, r->file, where);
  reshard_status status = rs_torch_open(where, file, 0, file->size, TORCH_LIMIT, &torch);
  RS_THEN(status, rs_state_walk_all(r->opening, &torch, "", add_torch_part, r));
  rs_torch_free(&torch);
  if (r->files.at[r->file].rank > 0) {
    c->leaves.all.n = leaves;
    c->leaves.text.n = text;
    c->info.left_out = left_out;
  }
  return status;
}

static reshard_status read_header(rank_set *r) {
  const rs_safetensors *header = &r->opening->headers[r->file];
  char where[RS_WHERE];
  if (header->sharding != NULL)
    return rs_error(RESHARD_ERROR_INVALID,
                    "%s: says itself what its shards are (DCP_SHARDING_INFO): it needs no layout",
                    rs_opening_where(r->opening, r->file, where));
  for (int64_t i = 0; i < header->model->tensors.n; i++) {
    reshard_model_tensor t;
    RS_TRY(reshard_model_get(header->model, i, &t));
    RS_TRY(add_part(r, &t, &header->model->tensors.at[i], header->offsets.at[i]));
  }
  return RESHARD_SUCCESS;
}

static reshard_status read_files(rank_set *r, const char *path) {
  rs_store *store = &r->opening->checkpoint->store;
  char first[16] = "";
  RS_TRY(rs_vec_reserve(&store->files, r->files.n));
  RS_TRY(rs_vec_reserve(&r->shards.rank, r->files.n));
  for (int64_t f = 0; f < r->files.n; f++) {
    RS_TRY(rs_opening_add(r->opening, path, r->files.at[f].name, r->files.n));
    r->shards.rank.at[r->shards.rank.n++] = r->files.at[f].rank;
  }
  RS_TRY(rs_file_read_at(&store->files.at[0], 0, first, rs_min(store->files.at[0].size, sizeof first)));
  bool torch = memcmp(first, "PK\3\4", 4) == 0 || rs_ends(r->files.at[0].name, ".pth");
  if (!torch) {
    RS_TRY(rs_alloc_zero(&r->opening->headers, r->files.n, sizeof *r->opening->headers));
    RS_TRY(rs_open_headers(r->opening));
  }
  for (r->file = 0; r->file < r->files.n; r->file++)
    RS_TRY(torch ? read_torch(r) : read_header(r));
  return RESHARD_SUCCESS;
}

/* --- A tensor ---------------------------------------------------------------------------------------------------- */

/* The parts of a tensor by rank; two of one rank are an error. */
static reshard_status list_parts(rank_set *r, const int64_t *part, int64_t n) {
  char quoted[RS_QUOTE], first[RS_QUOTE], second[RS_QUOTE];
  for (int64_t rank = 0; rank < r->shards.world; rank++)
    r->of.at[rank] = -1;
  for (int64_t i = 0; i < n; i++) {
    int64_t *of = &r->of.at[r->parts.at[part[i]].rank];
    if (*of >= 0)
      return rs_error(RESHARD_ERROR_INVALID, "%s: files '%s' and '%s' of rank %lld both have a tensor '%s'",
                      r->opening->where, file_of(r, *of, first), file_of(r, part[i], second),
                      (long long)r->parts.at[*of].rank, name_of(r, r->parts.at[*of].tensor, quoted));
    *of = part[i];
  }
  return RESHARD_SUCCESS;
}

static reshard_status layout_for(rank_set *r, int64_t tensor, const int64_t *shape, reshard_layout *layout) {
  const rs_global_tensor *global = &r->shards.tensors.at[tensor];
  char quoted[RS_QUOTE];
  const char *text = r->layouts.text;
  if (r->layouts.rules != NULL) /* an error comes again below, with its side */
    (void)reshard_rules_match(r->layouts.rules, global->name, &text, NULL);
  if (text != NULL && strchr(text, '{') != NULL) /* the parts of a rank tell no shape */
    return rs_error(RESHARD_ERROR_UNSUPPORTED,
                    "%s: tensor '%s': files of ranks are read where a rank has one box, not part by part: '%.96s'",
                    r->opening->where, name_of(r, tensor, quoted), text);
  RS_TRY((global->solid ? rs_layouts_whole : rs_layouts_get)(&r->layouts, global->name, global->ndim, shape,
                                                             r->shards.world, layout));
  reshard_layout_kind kind = (*layout)->kind;
  if (kind == RESHARD_LAYOUT_CHUNK || kind == RESHARD_LAYOUT_MESH || kind == RESHARD_LAYOUT_SINGLE)
    return RESHARD_SUCCESS;
  reshard_layout_release(*layout);
  *layout = NULL;
  return rs_error(
      RESHARD_ERROR_INVALID,
      "%s: tensor '%s': files of ranks are read as chunk, mesh and rank layouts, not as flat, cyclic and boxes",
      r->opening->where, name_of(r, tensor, quoted));
}

/* Adds up a dim: of the ranks that have one part of it, the first counts. probe: the layout of `ways` there, and 1 in
 * the other dims. */
static reshard_status add_extents(rank_set *r, reshard_layout probe, int dim, int64_t ways, int64_t *extent) {
  *extent = 0;
  RS_TRY(rs_vec_reserve(&r->first, ways));
  for (int64_t i = 0; i < ways; i++)
    r->first.at[i] = -1;
  for (int64_t rank = 0; rank < r->shards.world; rank++) {
    reshard_interval run;
    int64_t count = 0;
    if (rs_layout_arrays(probe, rank) == 0)
      continue;
    RS_TRY(reshard_layout_array_intervals(probe, rank, 0, dim, 0, 1, &run, &count));
    if (count == 0 || r->first.at[run.begin] >= 0 || r->of.at[rank] < 0)
      continue;
    r->first.at[run.begin] = rank;
    if (!rs_add(*extent, r->parts.at[r->of.at[rank]].shape[dim], extent))
      return rs_error(RESHARD_ERROR_INVALID, "%s: the parts of a dim have more than 2^63 indices", r->opening->where);
  }
  return RESHARD_SUCCESS;
}

/* The shape of a tensor. One that is cut in no dim has that of any part. */
static reshard_status find_shape(rank_set *r, int64_t tensor, const rank_part *any, int64_t *shape) {
  int ndim = r->shards.tensors.at[tensor].ndim;
  int64_t ways = 0;
  reshard_layout layout = NULL;
  RS_TRY(layout_for(r, tensor, any->shape, &layout));
  for (int64_t rank = 0; rank < r->shards.world; rank++)
    ways += rs_layout_arrays(layout, rank) > 0;
  reshard_layout_release(layout);
  for (int d = 0; d < ndim; d++) {
    int64_t probe[RESHARD_MAX_DIMS];
    for (int i = 0; i < ndim; i++)
      probe[i] = i == d ? ways : 1;
    RS_TRY(layout_for(r, tensor, probe, &layout));
    reshard_status status = add_extents(r, layout, d, ways, &shape[d]);
    reshard_layout_release(layout);
    RS_TRY(status);
  }
  return RESHARD_SUCCESS;
}

/* Compares the bytes of two parts that are one. */
static reshard_status compare_parts(rank_set *r, int64_t first, int64_t second) {
  const rank_part *a = &r->parts.at[first], *b = &r->parts.at[second];
  const rs_file *files = r->opening->checkpoint->store.files.at;
  int64_t bytes = a->elements * (int64_t)reshard_dtype_size(r->shards.tensors.at[a->tensor].dtype);
  char quoted[RS_QUOTE], one[RS_QUOTE], other[RS_QUOTE];
  if (r->buffers == NULL)
    RS_TRY(rs_alloc(&r->buffers, 2, COMPARED));
  for (int64_t at = 0, n; at < bytes; at += n) {
    n = rs_min(bytes - at, COMPARED);
    RS_TRY(rs_file_read_at(&files[a->file], a->offset + at, r->buffers, n));
    RS_TRY(rs_file_read_at(&files[b->file], b->offset + at, r->buffers + COMPARED, n));
    for (int64_t i = 0; memcmp(r->buffers, r->buffers + COMPARED, (size_t)n) != 0 && i < n; i++)
      if (r->buffers[i] != r->buffers[COMPARED + i])
        return rs_error(RESHARD_ERROR_INVALID,
                        "%s: tensor '%s': files '%s' and '%s' have the same part of it, and differ at byte %lld",
                        r->opening->where, name_of(r, a->tensor, quoted), file_of(r, first, one),
                        file_of(r, second, other), (long long)(at + i));
  }
  return RESHARD_SUCCESS;
}

/* Error of a rank that has something else than its layout gives it. */
static reshard_status part_error(const rank_set *r, reshard_layout layout, int64_t tensor, int64_t rank) {
  char quoted[RS_QUOTE], has[RS_SHAPE_TEXT] = "nothing", gives[RS_SHAPE_TEXT] = "nothing", shape[RS_SHAPE_TEXT];
  reshard_array_info info;
  if (r->of.at[rank] >= 0)
    rs_shape_text(has, layout->ndim, r->parts.at[r->of.at[rank]].shape);
  if (rs_layout_arrays(layout, rank) > 0) {
    RS_TRY(reshard_layout_array(layout, rank, 0, &info));
    rs_shape_text(gives, layout->ndim, info.shape);
  }
  return rs_error(RESHARD_ERROR_INVALID,
                  "%s: tensor '%s': rank %lld has %s, by its layout and shape %s it would have %s", r->opening->where,
                  name_of(r, tensor, quoted), (long long)rank, has, rs_shape_text(shape, layout->ndim, layout->shape),
                  gives);
}

/* Compares the part of a rank with what its layout gives it. A rank without a part is at fault first: the shape
 * lacks it. */
static reshard_status check_part(rank_set *r, reshard_layout layout, int64_t tensor, int64_t rank) {
  const rank_part *part = r->of.at[rank] >= 0 ? &r->parts.at[r->of.at[rank]] : NULL;
  reshard_array_info info = {.elements = 0};
  if (rs_layout_arrays(layout, rank) > 0)
    RS_TRY(reshard_layout_array(layout, rank, 0, &info));
  bool same = part == NULL         ? info.elements == 0
              : info.elements == 0 ? part->elements == 0
                                   : memcmp(part->shape, info.shape, (size_t)layout->ndim * sizeof *info.shape) == 0;
  if (same)
    return RESHARD_SUCCESS;
  for (int64_t other = 0; other < r->shards.world; other++)
    if (r->of.at[other] < 0 && rs_layout_arrays(layout, other) > 0)
      return part_error(r, layout, tensor, other);
  return part_error(r, layout, tensor, rank);
}

static reshard_status add_shard(rank_set *r, reshard_layout layout, int64_t rank) {
  rs_shards *s = &r->shards;
  const rank_part *part = &r->parts.at[r->of.at[rank]];
  rs_shard shard = {.tensor = part->tensor, .file = part->file, .offset = part->offset, .runs = -1};
  shard.empty = part->elements == 0;
  memcpy(shard.box.extent, part->shape, sizeof part->shape);
  if (!shard.empty) {
    int64_t boxes = 0, cell = rs_layout_cell(layout, rank, 0), *first = &r->first.at[cell];
    char quoted[RS_QUOTE];
    RS_TRY(rs_array_boxes(layout, rank, 0, &boxes, NULL));
    if (boxes != 1)
      return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: tensor '%s': what rank %lld has is %lld boxes, not one",
                      r->opening->where, name_of(r, part->tensor, quoted), (long long)rank, (long long)boxes);
    RS_TRY(rs_array_box(layout, rank, 0, 0, &shard.box, NULL));
    if (*first >= 0)
      RS_TRY(compare_parts(r, *first, r->of.at[rank]));
    else
      *first = r->of.at[rank];
  }
  RS_TRY(rs_vec_push(&s->all, shard));
  s->tensors.at[part->tensor].count++;
  return RESHARD_SUCCESS;
}

static reshard_status place_parts(rank_set *r, int64_t tensor, reshard_layout layout) {
  RS_TRY(rs_vec_reserve(&r->first, layout->cells));
  for (int64_t i = 0; i < layout->cells; i++)
    r->first.at[i] = -1;
  for (int64_t rank = 0; rank < r->shards.world; rank++) {
    RS_TRY(check_part(r, layout, tensor, rank));
    if (r->of.at[rank] >= 0)
      RS_TRY(add_shard(r, layout, rank));
  }
  return RESHARD_SUCCESS;
}

/* Parts of an unknown dtype: bytes, those of each rank behind those before. */
static reshard_status append_parts(rank_set *r, int64_t tensor, const int64_t *part, int64_t n) {
  rs_shards *s = &r->shards;
  RS_TRY(rs_vec_reserve(&s->all, s->all.n + n));
  for (int64_t i = 0; i < n; i++) {
    const rank_part *from = &r->parts.at[part[i]];
    rs_shard shard = {.tensor = tensor, .file = from->file, .offset = from->offset, .runs = -1};
    shard.empty = from->elements == 0;
    RS_TRY(rs_shards_append(s, &shard, from->elements));
    s->all.at[s->all.n++] = shard;
  }
  return RESHARD_SUCCESS;
}

static reshard_status place_tensor(rank_set *r, int64_t tensor, const int64_t *part, int64_t n) {
  rs_global_tensor *global = &r->shards.tensors.at[tensor];
  reshard_layout layout = NULL;
  RS_TRY(list_parts(r, part, n));
  if (global->dtype == RESHARD_DTYPE_NONE)
    return append_parts(r, tensor, part, n);
  RS_TRY(find_shape(r, tensor, &r->parts.at[part[0]], global->shape));
  RS_TRY(layout_for(r, tensor, global->shape, &layout));
  reshard_status status = place_parts(r, tensor, layout);
  reshard_layout_release(layout);
  return status;
}

/* Parts of one tensor side by side, by counting. */
static reshard_status place_tensors(rank_set *r) {
  int64_t tensors = r->shards.tensors.n, *next = NULL, *sorted = NULL;
  reshard_status status = rs_alloc_zero(&next, tensors + 1, sizeof *next);
  RS_THEN(status, rs_alloc(&sorted, r->parts.n, sizeof *sorted));
  RS_THEN(status, rs_vec_reserve(&r->of, r->shards.world));
  if (status == RESHARD_SUCCESS) {
    for (int64_t i = 0; i < r->parts.n; i++)
      next[r->parts.at[i].tensor + 1]++;
    for (int64_t t = 0; t < tensors; t++)
      next[t + 1] += next[t];
    for (int64_t i = 0; i < r->parts.n; i++)
      sorted[next[r->parts.at[i].tensor]++] = i;
  }
  for (int64_t t = 0, first = 0; t < tensors && status == RESHARD_SUCCESS; first = next[t++])
    status = place_tensor(r, t, sorted + first, next[t] - first);
  free(next);
  free(sorted);
  return status;
}

static reshard_status name_world(rank_set *r) {
  return r->layouts.rules != NULL ? reshard_rules_world(r->layouts.rules, &r->layouts.world)
                                  : reshard_layout_parse_world(r->layouts.text, &r->layouts.world);
}

reshard_status rs_open_ranks(rs_opening *opening, const char *path) {
  const rs_rank_files *said = opening->options.ranks;
  reshard_checkpoint_info *info = &opening->checkpoint->info;
  rank_set r = {.opening = opening,
                .said = said,
                .layouts = {.name = "src", .text = said->layout, .rules = said->rules},
                .shards = {.opening = opening}};
  reshard_status status = name_world(&r);
  RS_THEN(status, rs_rank_names_list(path, said->pattern, &r.files));
  RS_THEN(status, check_ranks(&r));
  RS_THEN(status, read_files(&r, path));
  RS_THEN(status, place_tensors(&r));
  RS_THEN(status, rs_shards_group(&r.shards));
  RS_THEN(status, rs_shards_build(&r.shards));
  RS_THEN(status, rs_layouts_check(&r.layouts, opening->checkpoint->store.model, r.shards.world));
  info->format = RESHARD_FORMAT_SHARDS;
  info->world = r.shards.world;
  info->described = 1;
  rs_shards_free(&r.shards);
  rs_layout_cache_free(&r.layouts.cache);
  rs_rank_names_free(&r.files);
  for (int64_t i = 0; i < r.names.n; i++)
    free(r.names.at[i]);
  free(r.names.at);
  free(r.parts.at);
  free(r.of.at);
  free(r.first.at);
  free(r.buffers);
  return status;
}
