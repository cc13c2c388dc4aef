/* Opening a single file, and files whose headers are read. The content tells the format: the temporary of a writer has
 * no telling name. A single file of a set of shards is opened as a set of one file. So a part that says that it is one
 * is never taken for the whole. */
#include "file/read/open.h"

#include "base/text.h"
#include "file/format/npy.h"
#include "file/format/torch.h"
#include "file/ground/file.h"
#include "file/read/directory.h"
#include "file/read/shards.h"

#include <stdlib.h>
#include <string.h>

const char *rs_opening_name(const rs_opening *opening, int64_t file) {
  const char *path = opening->checkpoint->store.files.at[file].path, *slash = strrchr(path, '/');
  if (opening->below > 0)
    return path + opening->below;
  return slash != NULL ? slash + 1 : path;
}

const char *rs_opening_where(const rs_opening *opening, int64_t file, char where[RS_WHERE]) {
  return rs_where(where, "file", opening->checkpoint->store.files.at[file].path);
}

/* Files that are compared come from their device, headers too. */
static void drop_old_pages(const rs_opening *opening, rs_file *file) {
  file->dropped = opening->options.gaps_allowed && rs_file_drop_pages(file);
}

reshard_status rs_opening_add(rs_opening *opening, const char *path, const char *name, int64_t files) {
  rs_store *s = &opening->checkpoint->store;
  rs_path_text whole = {0};
  char where[RS_WHERE];
  reshard_status status = rs_path_join(path, name, &whole);
  opening->below = status == RESHARD_SUCCESS ? strlen(whole.at) - strlen(name) : 0;
  RS_THEN(status, rs_file_open(rs_where(where, "file", whole.at), whole.at, files, &s->files.at[s->files.n]));
  if (status == RESHARD_SUCCESS)
    drop_old_pages(opening, &s->files.at[s->files.n++]);
  free(whole.at);
  return status;
}

bool rs_opening_leaves(const rs_opening *opening, const reshard_model_tensor *t) {
  reshard_checkpoint_info *info = &opening->checkpoint->info;
  bool leaves = t->dtype == RESHARD_DTYPE_NONE && opening->options.leave_out;
  info->left_out_tensors += leaves;
  if (leaves && !rs_add(info->left_out_bytes, t->shape[0], &info->left_out_bytes))
    info->left_out_bytes = INT64_MAX;
  return leaves;
}

int64_t rs_opening_memory(const rs_opening *opening) {
  const reshard_checkpoint c = opening->checkpoint;
  const rs_store *s = &c->store;
  const reshard_model model = s->model;
  return opening->beside + rs_leaves_memory(&c->leaves) + model->names.cap +
         model->tensors.cap * (int64_t)sizeof *model->tensors.at + s->tensors.cap * (int64_t)sizeof *s->tensors.at +
         s->arrays.cap * (int64_t)sizeof *s->arrays.at + s->blocks.cap * (int64_t)sizeof *s->blocks.at +
         c->names.all.cap * (int64_t)sizeof *c->names.all.at + c->names.slots * (int64_t)sizeof *c->names.slot;
}

/* Appends a tensor and, where it has elements, its place. */
reshard_status rs_open_add(rs_opening *opening, rs_layout_cache *layouts, const char *where,
                           const rs_whole_tensor *whole) {
  rs_store *s = &opening->checkpoint->store;
  const reshard_model_tensor *t = &whole->tensor;
  int64_t shape[RESHARD_MAX_DIMS], number, i = s->tensors.n;
  if (!rs_opening_takes(opening, whole->file, t->name))
    return RESHARD_SUCCESS;
  if (rs_opening_leaves(opening, t)) {
    rs_index_forget(opening, t->name);
    return RESHARD_SUCCESS;
  }
  for (int d = 0; d < t->ndim; d++)
    shape[d] = t->shape[whole->reversed ? t->ndim - 1 - d : d];
  RS_TRY(rs_model_add(s->model, where, t->name, rs_name_length(t->name, whole->solid), t->dtype, t->ndim, t->shape));
  s->model->tensors.at[i].packed = whole->packed;
  s->model->tensors.at[i].solid = whole->solid;
  int64_t made = layouts->made.n;
  RS_TRY(rs_layout_cache_single(layouts, t->ndim, shape, &number));
  opening->beside += (layouts->made.n - made) * RS_LAYOUT_MEMORY;
  RS_TRY(rs_vec_reserve(&s->tensors, i + 1));
  RS_TRY(rs_vec_reserve(&s->arrays, s->arrays.n + 1));
  RS_TRY(rs_vec_reserve(&s->blocks, s->blocks.n + 1));
  reshard_layout layout = layouts->made.at[number];
  bool stored = layout->elements > 0;
  s->tensors.at[s->tensors.n++] = (rs_stored_tensor){reshard_layout_retain(layout), .first = s->arrays.n,
                                                     .count = stored, .reversed = whole->reversed};
  if (stored) {
    s->arrays.at[s->arrays.n++] = (rs_stored_array){.first = s->blocks.n, .count = 1};
    s->blocks.at[s->blocks.n++] = (rs_stored_block){whole->offset, (int32_t)whole->file};
  }
  return RESHARD_SUCCESS;
}

/* The file in which tensor i is, counted over all headers. */
static int64_t file_of_tensor(const rs_opening *opening, int64_t i) {
  int64_t file = 0;
  for (; i >= opening->headers[file].model->tensors.n; file++)
    i -= opening->headers[file].model->tensors.n;
  return file;
}

/* held: memory of the headers, of files of so many bytes. */
static reshard_status add_file_tensors(rs_opening *opening, rs_layout_cache *layouts, int64_t file, int64_t held,
                                       int64_t bytes) {
  rs_names *names = &opening->checkpoint->names;
  const rs_safetensors *header = &opening->headers[file];
  char where[RS_WHERE], quoted[RS_QUOTE], first[RS_QUOTE], second[RS_QUOTE];
  rs_opening_where(opening, file, where);
  RS_TRY(rs_names_reserve(names, names->all.n + header->model->tensors.n));
  for (int64_t i = 0; i < header->model->tensors.n; i++) {
    rs_whole_tensor whole = {.file = file, .offset = header->offsets.at[i]};
    whole.packed = header->model->tensors.at[i].packed;
    whole.solid = header->model->tensors.at[i].solid;
    int64_t number, before = names->all.n;
    RS_TRY(reshard_model_get(header->model, i, &whole.tensor));
    RS_TRY(rs_names_put(names, whole.tensor.name, strlen(whole.tensor.name), &number));
    if (number < before && opening->index == NULL)
      return rs_error(RESHARD_ERROR_INVALID, "%s: files '%s' and '%s' both have a tensor '%s'%s%s", opening->where,
                      rs_quote(first, sizeof first, rs_opening_name(opening, file_of_tensor(opening, number))),
                      rs_quote(second, sizeof second, rs_opening_name(opening, file)),
                      rs_quote(quoted, sizeof quoted, whole.tensor.name), opening->sets[0] != '\0' ? "; " : "",
                      opening->sets);
    RS_TRY(rs_open_add(opening, layouts, where, &whole));
    RS_TRY(rs_budget_check(opening->where, bytes, held + rs_opening_memory(opening)));
  }
  return RESHARD_SUCCESS;
}

/* Fills the store from headers of whole tensors, and bytes stored and world of the info. */
static reshard_status open_whole(rs_opening *opening) {
  reshard_status status = RESHARD_SUCCESS;
  rs_layout_cache layouts = {0};
  int64_t files = opening->checkpoint->store.files.n, held = 0, bytes = 0;
  for (int64_t f = 0; f < files; f++) {
    const rs_safetensors *header = &opening->headers[f];
    held += header->model->names.cap + header->model->tensors.cap * (int64_t)sizeof *header->model->tensors.at +
            header->offsets.cap * (int64_t)sizeof *header->offsets.at;
    bytes = rs_min(bytes + header->file_bytes, INT64_MAX / 16);
  }
  for (int64_t f = 0; f < files && status == RESHARD_SUCCESS; f++)
    status = add_file_tensors(opening, &layouts, f, held, bytes);
  rs_layout_cache_free(&layouts);
  opening->checkpoint->info.stored_bytes = opening->checkpoint->store.model->bytes;
  opening->checkpoint->info.world = 1;
  return status;
}

static reshard_status open_npy(rs_opening *opening) {
  char where[RS_WHERE];
  rs_whole_tensor whole = {0};
  rs_layout_cache layouts = {0};
  RS_TRY(rs_npy_read(rs_opening_where(opening, 0, where), &opening->checkpoint->store.files.at[0],
                     opening->options.source_dtype, &whole));
  reshard_status status = rs_open_add(opening, &layouts, where, &whole);
  rs_layout_cache_free(&layouts);
  opening->checkpoint->info.stored_bytes = opening->checkpoint->store.model->bytes;
  opening->checkpoint->info.world = 1;
  return status;
}

/* The owner's metadata of all files together. Shards say "pt" in the place of their owner's format. */
static reshard_status unite_metadata(rs_opening *opening) {
  reshard_checkpoint c = opening->checkpoint;
  bool shards = c->info.format == RESHARD_FORMAT_SHARDS, stated = rs_text_pairs_find(&c->owner, "format") != NULL;
  for (int64_t f = 0; f < c->store.files.n; f++) {
    const rs_text_pairs *owner = &opening->headers[f].owner;
    for (int64_t i = 0; i < owner->all.n; i++) {
      const rs_text_pair *pair = &owner->all.at[i];
      char quoted[RS_QUOTE], file[RS_WHERE];
      bool differs = false;
      if (!shards || !stated || strcmp(pair->key, "format") != 0)
        RS_TRY(rs_text_pairs_put(&c->owner, pair->key, pair->value, &differs));
      if (differs)
        RS_TRY(rs_checkpoint_note(c, "%s: '%s' of \"__metadata__\" has another value in other files: left out",
                                  rs_opening_where(opening, f, file), rs_quote(quoted, sizeof quoted, pair->key)));
    }
  }
  return RESHARD_SUCCESS;
}

/* Fills the store from a directory or a safetensors file whose headers are read. */
reshard_status rs_open_headed(rs_opening *opening, reshard_file_format format) {
  int64_t files = opening->checkpoint->store.files.n, sharded = 0, f[2] = {0, 0};
  for (int64_t i = 0; i < files; i++) {
    bool is = opening->headers[i].sharding != NULL;
    f[is] = i;
    sharded += is;
  }
  if (sharded > 0 && sharded < files) {
    char with[RS_QUOTE], without[RS_QUOTE];
    return rs_error(RESHARD_ERROR_INVALID,
                    "%s: file '%s' is one of shards (DCP_SHARDING_INFO in its metadata), file '%s' is not",
                    opening->where, rs_quote(with, sizeof with, rs_opening_name(opening, f[1])),
                    rs_quote(without, sizeof without, rs_opening_name(opening, f[0])));
  }
  opening->checkpoint->info.format = sharded > 0 ? RESHARD_FORMAT_SHARDS : format;
  RS_TRY(sharded > 0 ? rs_open_shards(opening) : open_whole(opening));
  return unite_metadata(opening);
}

reshard_status rs_open_file(rs_opening *opening, const char *path) {
  rs_store *s = &opening->checkpoint->store;
  char where[RS_WHERE], first[16] = {0};
  RS_TRY(rs_vec_reserve(&s->files, 1));
  RS_TRY(rs_file_open(rs_where(where, "file", path), path, 1, &s->files.at[0]));
  s->files.n = 1;
  drop_old_pages(opening, &s->files.at[0]);
  RS_TRY(rs_file_read_at(&s->files.at[0], 0, first, rs_min(s->files.at[0].size, sizeof first)));
  bool npy = memcmp(first, RS_NPY_MAGIC, sizeof RS_NPY_MAGIC - 1) == 0;
  if (npy || rs_ends(path, ".npy")) {
    opening->checkpoint->info.format = RESHARD_FORMAT_NPY;
    return open_npy(opening);
  }
  if (rs_ends(path, ".distcp") || rs_ends(path, ".metadata"))
    return rs_error(RESHARD_ERROR_INVALID, "%s: a part of a .distcp checkpoint: name its directory", where);
  if (memcmp(first, RS_ZIP_MAGIC, sizeof RS_ZIP_MAGIC - 1) == 0)
    return rs_open_state_dict(opening, 0);
  if (memcmp(first, RS_TORCH_OLD_MAGIC, sizeof RS_TORCH_OLD_MAGIC - 1) == 0)
    return rs_error(RESHARD_ERROR_UNSUPPORTED,
                    "%s: what torch.save wrote before version 1.6 of PyTorch, no zip archive: " RS_TORCH_PYTHON, where);
  if (first[8] != '{' && !rs_ends(path, ".safetensors"))
    return rs_error(RESHARD_ERROR_INVALID, "%s: neither an .npy nor a .safetensors file, nor one of torch.save", where);
  RS_TRY(rs_alloc_zero(&opening->headers, 1, sizeof *opening->headers));
  RS_TRY(rs_open_headers(opening));
  return rs_open_headed(opening, RESHARD_FORMAT_SAFETENSORS);
}
