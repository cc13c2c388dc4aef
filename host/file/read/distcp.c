/* A directory as PyTorch's distributed checkpoint writes it by default: .metadata, and files that are torch.save after
 * torch.save, one of each chunk of a tensor. A chunk's bytes lie dense in its archive; they are read from there.
 *
 * Which rank had a chunk is R of its file's name __R_N.distcp. From there on chunks are shards as others are. */
#include "file/read/open.h"

#include "base/text.h"
#include "file/format/distcp.h"
#include "file/format/torch.h"
#include "file/read/shards.h"
#include "file/read/state_walk.h"

#include <stdlib.h>
#include <string.h>

#define METADATA_LIMIT ((int64_t)1 << 30)
#define RANK_LIMIT     ((int64_t)1 << 20) /* as the world of shards */
#define CHUNK_LIMIT    ((int64_t)1 << 16) /* PyTorch writes less than 1 KiB for a tensor alone */

static reshard_status read_metadata_file(rs_distcp *d, const char *path, char where[RS_WHERE]) {
  rs_path_text whole = {0};
  rs_file file = {.fd = -1};
  RS_TRY(rs_path_join(path, ".metadata", &whole));
  d->where = rs_where(where, "file", whole.at);
  reshard_status status = rs_file_open(where, whole.at, 1, &file);
  free(whole.at);
  RS_TRY(status);
  int64_t size = file.size;
  if (size > METADATA_LIMIT)
    status = rs_error(RESHARD_ERROR_INVALID, "%s: %lld bytes, at most %lld are read", where, (long long)size,
                      (long long)METADATA_LIMIT);
  RS_THEN(status, rs_alloc(&d->text, size + 1, 1));
  RS_THEN(status, rs_file_read_at(&file, 0, d->text, size));
  rs_file_close(&file);
  return status == RESHARD_SUCCESS ? rs_distcp_read(d, size) : status;
}

static reshard_status open_chunk_files(rs_opening *opening, const rs_distcp *d, const char *path) {
  int64_t n = d->paths.all.n;
  RS_TRY(rs_vec_reserve(&opening->checkpoint->store.files, n));
  for (int64_t f = 0; f < n; f++) {
    char *name;
    RS_TRY(rs_alloc_zero(&name, (int64_t)d->paths.all.at[f].size + 1, 1));
    memcpy(name, d->paths.all.at[f].at, d->paths.all.at[f].size);
    reshard_status status = rs_opening_add(opening, path, name, n);
    free(name);
    RS_TRY(status);
  }
  return RESHARD_SUCCESS;
}

/* R of __R_N.distcp; -1: another name. */
static int64_t rank_of(const char *name) {
  char *end;
  if (strncmp(name, "__", 2) != 0 || name[2] < '0' || name[2] > '9')
    return -1;
  long long rank = strtoll(name + 2, &end, 10);
  if (end[0] != '_' || end[1] < '0' || end[1] > '9' || rank >= RANK_LIMIT)
    return -1;
  strtoll(end + 1, &end, 10);
  return strcmp(end, ".distcp") == 0 ? rank : -1;
}

static reshard_status rank_files(rs_shards *s) {
  int64_t files = s->opening->checkpoint->store.files.n, world = 1;
  bool named = true;
  RS_TRY(rs_vec_reserve(&s->rank, files));
  for (int64_t f = 0; f < files; f++) {
    s->rank.at[f] = rank_of(rs_opening_name(s->opening, f));
    named &= s->rank.at[f] >= 0;
    world = rs_max(world, s->rank.at[f] + 1);
  }
  for (int64_t f = 0; f < files && !named; f++)
    s->rank.at[f] = f;
  s->rank.n = files;
  s->world = named ? world : rs_max(files, 1);
  return RESHARD_SUCCESS;
}

/* The value at a place. */
typedef struct found_chunk {
  bool known;
  rs_torch_tensor tensor;
} found_chunk;

static reshard_status open_chunk(const char *where, const rs_file *file, const rs_distcp_place *place,
                                 const char *quoted, rs_torch_tensor *tensor) {
  rs_torch torch;
  reshard_status status = rs_torch_open(where, file, place->offset, place->length, CHUNK_LIMIT, &torch);
  RS_THEN(status, rs_torch_tensor_read(&torch, quoted, torch.pickle.root, tensor));
  rs_torch_free(&torch);
  if (status == RESHARD_ERROR_INVALID || status == RESHARD_ERROR_UNSUPPORTED) {
    const char *why = reshard_last_error();
    return strstr(why, "tensor '") != NULL ? status : rs_error(status, "%s (tensor '%s')", why, quoted);
  }
  return status;
}

/* Finds the bytes of a chunk and checks that they are what the metadata says. */
static reshard_status locate_chunk(const rs_shards *s, const rs_distcp_place *place, found_chunk *found,
                                   rs_shard *shard) {
  const rs_global_tensor *global = &s->tensors.at[shard->tensor];
  const rs_file *file = &s->opening->checkpoint->store.files.at[shard->file];
  char where[RS_WHERE], quoted[RS_QUOTE], is[RS_SHAPE_TEXT], said[RS_SHAPE_TEXT];
  rs_opening_where(s->opening, shard->file, where);
  rs_quote(quoted, sizeof quoted, global->name);
  if (place->offset > file->size || place->length > file->size - place->offset)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': %lld bytes from byte %lld on, the file has %lld", where,
                    quoted, (long long)place->length, (long long)place->offset, (long long)file->size);
  if (!found->known)
    RS_TRY(open_chunk(where, file, place, quoted, &found->tensor));
  found->known = true;
  const rs_torch_tensor t = found->tensor;
  bool known = t.dtype != RESHARD_DTYPE_NONE;
  if (t.dtype != global->dtype || t.packed != global->packed ||
      (known && !rs_shape_equal(t.ndim, t.shape, global->ndim, shard->box.extent)))
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': %s %s at byte %lld, .metadata says %s %s", where, quoted,
                    rs_type_text(t.dtype, t.packed), rs_shape_text(is, t.ndim, t.shape), (long long)place->offset,
                    rs_type_text(global->dtype, global->packed), rs_shape_text(said, global->ndim, shard->box.extent));
  if (t.reversed)
    return rs_error(RESHARD_ERROR_UNSUPPORTED,
                    "%s: tensor '%s': a chunk of shape %s in Fortran order: " RS_DISTCP_PYTHON, where, quoted,
                    rs_shape_text(is, t.ndim, t.shape));
  shard->offset = t.offset;
  return RESHARD_SUCCESS;
}

/* found: a place each, so that one that is there many times is opened once. */
static reshard_status collect_chunks(rs_shards *s, const rs_distcp *d, found_chunk *found) {
  reshard_checkpoint_info *info = &s->opening->checkpoint->info;
  bool checked = false;
  RS_TRY(rs_vec_reserve(&s->tensors, d->model->tensors.n));
  RS_TRY(rs_vec_reserve(&s->all, d->chunks.n));
  for (int64_t i = 0; i < d->model->tensors.n; i++) {
    const rs_model_tensor *t = &d->model->tensors.at[i];
    rs_global_tensor *global = &s->tensors.at[s->tensors.n++];
    *global = (rs_global_tensor){.name = d->model->names.at + t->name,
                                 .dtype = t->dtype,
                                 .packed = t->packed,
                                 .solid = t->solid,
                                 .ndim = t->ndim,
                                 .layout = -1};
    memcpy(global->shape, t->shape, sizeof t->shape);
  }
  for (int64_t i = 0; i < d->chunks.n; i++) {
    const rs_distcp_chunk *chunk = &d->chunks.at[i];
    rs_global_tensor *global = &s->tensors.at[chunk->tensor];
    rs_shard *shard = &s->all.at[s->all.n];
    int64_t bytes = 0;
    *shard = (rs_shard){.tensor = chunk->tensor, .runs = -1, .box = chunk->box, .empty = chunk->empty};
    if (!chunk->empty) {
      shard->file = d->places.at[chunk->place].path;
      reshard_status status = locate_chunk(s, &d->places.at[chunk->place], &found[chunk->place], shard);
      if (!checked && status != RESHARD_ERROR_UNSUPPORTED) /* data that is safetensors all has one place */
        RS_TRY(rs_distcp_check_overlap(d));
      RS_TRY(status);
      checked = true;
      const rs_torch_tensor *t = &found[chunk->place].tensor;
      RS_TRY(rs_tensor_bytes(t->ndim, t->shape, rs_stored_width(t->dtype), &bytes));
      if (!rs_add(info->stored_bytes, bytes, &info->stored_bytes))
        return rs_error(RESHARD_ERROR_INVALID, "%s: its chunks have more than 2^63 bytes", d->where);
    }
    if (global->dtype == RESHARD_DTYPE_NONE)
      RS_TRY(rs_shards_append(s, shard, bytes));
    else
      global->count++;
    s->all.n++;
  }
  return RESHARD_SUCCESS;
}

/* --- Leaves that are no tensors ---------------------------------------------------------------------------------- */

/* Tensors that a leaf has: a list of some is saved as a leaf. */
typedef struct leaf_tensors {
  rs_shards *shards;
  int64_t file;
  RS_VEC(char *) names; /* owned */
} leaf_tensors;

static reshard_status add_leaf_tensor(void *user, const char *name, const rs_torch_tensor *t) {
  leaf_tensors *l = user;
  rs_shards *s = l->shards;
  char where[RS_WHERE], quoted[RS_QUOTE];
  reshard_checkpoint_info *info = &s->opening->checkpoint->info;
  bool solid = t->dtype == RESHARD_DTYPE_NONE;
  rs_global_tensor global = {
      .dtype = t->dtype, .packed = t->packed, .solid = solid, .ndim = t->ndim, .count = 1, .layout = -1};
  rs_shard shard = {.tensor = s->tensors.n, .file = l->file, .offset = t->offset, .runs = -1};
  int64_t bytes = 0;
  if (t->reversed)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: tensor '%s': in Fortran order: " RS_DISTCP_PYTHON,
                    rs_opening_where(s->opening, l->file, where), rs_quote(quoted, sizeof quoted, name));
  RS_TRY(rs_tensor_bytes(t->ndim, t->shape, rs_stored_width(t->dtype), &bytes));
  RS_TRY(rs_vec_reserve(&s->tensors, s->tensors.n + 1));
  RS_TRY(rs_vec_reserve(&s->all, s->all.n + 1));
  RS_TRY(rs_vec_reserve(&l->names, l->names.n + 1));
  RS_TRY(rs_alloc_copy(&l->names.at[l->names.n], name, (int64_t)rs_name_length(name, solid) + 1, 1));
  global.name = l->names.at[l->names.n++];
  global.left_out = rs_opening_leaves(s->opening, &(reshard_model_tensor){.dtype = t->dtype, .shape = {t->shape[0]}});
  memcpy(global.shape, t->shape, sizeof t->shape);
  memcpy(shard.box.extent, t->shape, sizeof t->shape);
  shard.empty = bytes == 0;
  ((rs_opening *)s->opening)->beside += (int64_t)(sizeof global + sizeof shard + sizeof(char *) + strlen(name) + 1);
  info->stored_bytes += bytes; /* no more than the file has */
  s->tensors.at[s->tensors.n++] = global;
  s->all.at[s->all.n++] = shard;
  return RESHARD_SUCCESS;
}

/* Reads what is at a place; what is no archive of torch.save is a leaf that is left out. */
static reshard_status read_leaf(leaf_tensors *l, const rs_distcp *d, const rs_distcp_leaves *leaf, const char *name) {
  rs_opening *opening = (rs_opening *)l->shards->opening;
  const rs_distcp_place *place = &d->places.at[leaf->place];
  const rs_file *file = &opening->checkpoint->store.files.at[place->path];
  char where[RS_WHERE], quoted[RS_QUOTE], first[4] = "";
  rs_torch torch;
  rs_opening_where(opening, place->path, where);
  if (place->offset > file->size || place->length > file->size - place->offset)
    return rs_error(RESHARD_ERROR_INVALID, "%s: leaf '%s': %lld bytes from byte %lld on, the file has %lld", where,
                    rs_quote(quoted, sizeof quoted, name), (long long)place->length, (long long)place->offset,
                    (long long)file->size);
  RS_TRY(rs_file_read_at(file, place->offset, first, rs_min(place->length, sizeof first)));
  if (memcmp(first, "PK\3\4", sizeof first) != 0) {
    opening->checkpoint->info.left_out++;
    return RESHARD_SUCCESS;
  }
  l->file = place->path;
  reshard_status status = rs_torch_open(where, file, place->offset, place->length, METADATA_LIMIT, &torch);
  RS_THEN(status, rs_state_walk_all(opening, &torch, name, add_leaf_tensor, l));
  rs_torch_free(&torch);
  return status;
}

static reshard_status read_leaves(leaf_tensors *l, const rs_distcp *d) {
  rs_pickle_text name = {0};
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0; i < d->leaves.n && status == RESHARD_SUCCESS; i++) {
    const rs_distcp_leaves *leaf = &d->leaves.at[i];
    bool added = false;
    name.n = 0;
    status = rs_pickle_add_text(&d->pickle, leaf->name, &name, &added);
    if (status != RESHARD_SUCCESS)
      break;
    if (leaf->place >= 0 && added)
      status = read_leaf(l, d, leaf, name.at);
    else
      l->shards->opening->checkpoint->info.left_out++;
  }
  free(name.at);
  return status;
}

/* --- The checkpoint ---------------------------------------------------------------------------------------------- */

/* A checkpoint without files has tensors without elements alone; they are rank 0's. */
static reshard_status fill_store(rs_shards *s, const rs_distcp *d) {
  RS_TRY(rank_files(s));
  if (s->rank.n == 0) {
    RS_TRY(rs_vec_reserve(&s->rank, 1));
    s->rank.at[s->rank.n++] = 0;
  }
  found_chunk *found = NULL;
  leaf_tensors in_leaves = {.shards = s};
  RS_TRY(rs_alloc_zero(&found, d->places.n, sizeof *found));
  reshard_status status = collect_chunks(s, d, found);
  free(found);
  RS_THEN(status, read_leaves(&in_leaves, d));
  RS_THEN(status, rs_shards_group(s));
  RS_THEN(status, rs_shards_build(s));
  RS_THEN(status, rs_model_check_names(s->opening->checkpoint->store.model, d->where));
  for (int64_t i = 0; i < in_leaves.names.n; i++)
    free(in_leaves.names.at[i]);
  free(in_leaves.names.at);
  return status;
}

reshard_status rs_open_distcp(rs_opening *opening, const char *path) {
  char where[RS_WHERE];
  rs_distcp d = {.pickle.root = -1};
  rs_shards s = {.opening = opening};
  reshard_checkpoint_info *info = &opening->checkpoint->info;
  reshard_status status = read_metadata_file(&d, path, where);
  RS_THEN(status, open_chunk_files(opening, &d, path));
  RS_THEN(status, fill_store(&s, &d));
  info->format = RESHARD_FORMAT_DISTCP;
  info->world = s.world;
  info->described = 1;
  rs_shards_free(&s);
  rs_distcp_free(&d);
  return status;
}
