/* An open checkpoint: queries. */
#include "file/read/checkpoint.h"

#include "base/text.h"
#include "file/ground/digest.h"
#include "file/ground/file.h"
#include "file/move/move.h"
#include "file/read/directory.h"
#include "file/read/rank_files.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

const char *reshard_file_format_string(reshard_file_format format) {
  switch (format) {
  case RESHARD_FORMAT_NPY: return "npy";
  case RESHARD_FORMAT_SAFETENSORS: return "safetensors";
  case RESHARD_FORMAT_WHOLE: return "whole";
  case RESHARD_FORMAT_SHARDS: return "shards";
  case RESHARD_FORMAT_DISTCP: return "distcp";
  case RESHARD_FORMAT_TORCH: return "torch";
  }
  return "unknown";
}

reshard_status reshard_checkpoint_open(const char *path, reshard_checkpoint *checkpoint) {
  if (path == NULL || checkpoint == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_checkpoint_open: NULL argument");
  return rs_checkpoint_open(path, &(rs_checkpoint_options){0}, checkpoint);
}

reshard_status reshard_checkpoint_open_ranks(const char *path, const char *pattern, const char *layout,
                                             reshard_rules rules, int64_t world, reshard_checkpoint *checkpoint) {
  RS_TRY(RS_GIVEN("reshard_checkpoint_open_ranks", path, checkpoint));
  if ((layout == NULL) == (rules == NULL) || world < 0)
    return rs_error(RESHARD_ERROR_INVALID,
                    "reshard_checkpoint_open_ranks: %s, world %lld: one of layout and rules is due",
                    layout == NULL ? "neither layout nor rules" : "a layout and rules", (long long)world);
  const rs_rank_files ranks = {pattern, layout, rules, world};
  return rs_checkpoint_open(path, &(rs_checkpoint_options){.ranks = &ranks}, checkpoint);
}

void reshard_checkpoint_close(reshard_checkpoint checkpoint) {
  if (checkpoint == NULL)
    return;
  rs_names_free(&checkpoint->names);
  rs_leaves_free(&checkpoint->leaves);
  rs_store_free(&checkpoint->store);
  rs_text_pairs_free(&checkpoint->owner);
  free(checkpoint->notes.at);
  free(checkpoint);
}

reshard_status reshard_checkpoint_get_info(reshard_checkpoint checkpoint, reshard_checkpoint_info *info) {
  if (checkpoint == NULL || info == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_checkpoint_get_info: NULL argument");
  *info = checkpoint->info;
  return RESHARD_SUCCESS;
}

reshard_model reshard_checkpoint_model(reshard_checkpoint checkpoint) {
  return checkpoint != NULL ? checkpoint->store.model : NULL;
}

reshard_status reshard_checkpoint_find(reshard_checkpoint checkpoint, const char *name, int64_t *tensor) {
  char quoted[RS_QUOTE];
  if (checkpoint == NULL || name == NULL || tensor == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_checkpoint_find: NULL argument");
  int64_t found = rs_names_find(&checkpoint->names, name, strlen(name));
  if (found < 0)
    return rs_error(RESHARD_ERROR_INVALID, "the checkpoint has no tensor '%s'", rs_quote(quoted, sizeof quoted, name));
  *tensor = found;
  return RESHARD_SUCCESS;
}

/* The names that the tensors are found by: those of the model, which stays. */
static reshard_status put_names(reshard_checkpoint checkpoint) {
  rs_names_free(&checkpoint->names);
  reshard_model model = checkpoint->store.model;
  RS_TRY(rs_names_reserve(&checkpoint->names, model->tensors.n));
  for (int64_t i = 0, number; i < model->tensors.n; i++) {
    const char *name = rs_model_name(model, i);
    RS_TRY(rs_names_put(&checkpoint->names, name, strlen(name), &number));
  }
  return RESHARD_SUCCESS;
}

/* A writer that replaces a directory puts another one in its place in one step. Files are opened by name, some before
 * that step and some after it, so that it has to be seen: files of two checkpoints may fit each other. */
reshard_status rs_checkpoint_in_place(reshard_checkpoint checkpoint, const char *path) {
  struct stat info;
  char where[RS_WHERE];
  if (!checkpoint->directory)
    return RESHARD_SUCCESS;
  rs_where(where, "checkpoint", path);
  if (stat(path, &info) != 0)
    return rs_file_error(where, errno);
  if ((uint64_t)info.st_dev == checkpoint->device && (uint64_t)info.st_ino == checkpoint->inode)
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_SYSTEM, "%s: another directory took its place while it was opened: inode %llu was %llu",
                  where, (unsigned long long)info.st_ino, (unsigned long long)checkpoint->inode);
}

reshard_status rs_checkpoint_note(reshard_checkpoint c, const char *format, ...) {
  char line[2 * RS_WHERE];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  return rs_vec_append(&c->notes, line, strlen(line) + 1);
}

/* path: of an index, or of a file of a set; NULL: all files of the directory, or those that an index in it names. */
static reshard_status open_files(rs_opening *opening, const char *directory, const char *path, bool *set) {
  struct stat info;
  reshard_checkpoint c = opening->checkpoint;
  reshard_status status = RESHARD_SUCCESS;
  if (stat(directory, &info) != 0)
    return rs_file_error(opening->where, errno);
  c->directory = true;
  c->device = (uint64_t)info.st_dev;
  c->inode = (uint64_t)info.st_ino;
  if (opening->options.ranks != NULL) {
    RS_TRY(rs_open_ranks(opening, directory));
    opening->kind = RS_OPENING_PLACED;
  } else {
    RS_TRY(path == NULL             ? rs_open_directory(opening, directory)
           : rs_ends(path, ".json") ? rs_open_index(opening, directory, path)
                                    : rs_open_set(opening, directory, path, set));
  }
  if (!*set) {
    c->directory = false;
    return RESHARD_SUCCESS;
  }
  RS_TRY(rs_checkpoint_in_place(c, directory));
  if (opening->kind == RS_OPENING_HEADERS)
    return rs_open_headed(opening, RESHARD_FORMAT_WHOLE);
  for (int64_t f = 0; f < c->store.files.n && opening->kind == RS_OPENING_TORCH && status == RESHARD_SUCCESS; f++)
    status = rs_open_state_dict(opening, f);
  return status;
}

static reshard_status open_beside(rs_opening *opening, const char *path, bool *set) {
  const char *slash = strrchr(path, '/');
  int64_t n = slash != NULL ? slash - path + 1 : 2;
  char *directory = NULL;
  RS_TRY(rs_alloc_copy(&directory, slash != NULL ? path : "./", n + 1, 1));
  directory[n] = '\0';
  reshard_status status = open_files(opening, directory, path, set);
  free(directory);
  return status;
}

static reshard_status open_path(rs_opening *opening, const char *path) {
  struct stat info;
  bool set = true;
  reshard_checkpoint c = opening->checkpoint;
  if (stat(path, &info) != 0)
    return rs_file_error(opening->where, errno);
  RS_TRY(rs_model_new(&c->store.model));
  if (opening->options.ranks != NULL && !S_ISDIR(info.st_mode))
    return rs_error(RESHARD_ERROR_INVALID, "%s: no directory of files of ranks", opening->where);
  if (S_ISDIR(info.st_mode))
    RS_TRY(open_files(opening, path, NULL, &set));
  else if (rs_ends(path, ".json") || (!opening->options.gaps_allowed && rs_set_has(path, path)))
    RS_TRY(open_beside(opening, path, &set));
  else
    set = false;
  if (!set)
    RS_TRY(rs_open_file(opening, path));
  if (opening->options.source_dtype != RESHARD_DTYPE_NONE && c->info.format != RESHARD_FORMAT_NPY)
    return rs_error(RESHARD_ERROR_INVALID, "%s: --source-dtype is for an .npy file of raw bytes, this is %s",
                    opening->where, reshard_file_format_string(c->info.format));
  RS_TRY(put_names(c));
  if (opening->index != NULL)
    RS_TRY(rs_index_check(opening));
  RS_TRY(rs_leaves_settle(&c->leaves, &c->names, &c->info.left_out));
  c->info.leaves = c->leaves.all.n;
  RS_TRY(rs_text_pairs_settle(&c->owner));
  c->info.metadata = c->owner.all.n;
  c->info.tensors = c->store.model->tensors.n;
  c->info.files = c->store.files.n;
  c->info.bytes = c->store.model->bytes;
  return RESHARD_SUCCESS;
}

reshard_status rs_checkpoint_open(const char *path, const rs_checkpoint_options *options,
                                  reshard_checkpoint *checkpoint) {
  char where[RS_WHERE];
  rs_opening opening = {.where = rs_where(where, "checkpoint", path), .options = *options};
  if (!options->gaps_allowed)
    RS_TRY(rs_temporary_refuse(opening.where, path));
  RS_TRY(rs_alloc_zero(&opening.checkpoint, 1, sizeof *opening.checkpoint));
  reshard_status status = open_path(&opening, path);
  for (int64_t f = 0; opening.headers != NULL && f < opening.checkpoint->store.files.n; f++)
    rs_safetensors_free(&opening.headers[f]);
  free(opening.headers);
  rs_index_free(&opening);
  if (status != RESHARD_SUCCESS)
    reshard_checkpoint_close(opening.checkpoint);
  else
    *checkpoint = opening.checkpoint;
  return status;
}

int64_t rs_checkpoint_checked(reshard_checkpoint checkpoint, int64_t *unchecked) {
  int64_t bytes = 0;
  *unchecked = 0;
  for (int64_t f = 0; f < checkpoint->store.files.n; f++) {
    rs_digests *digests = checkpoint->store.files.at[f].digests;
    *unchecked += digests == NULL;
    bytes += digests != NULL ? atomic_load(&digests->checked) : 0;
  }
  return bytes;
}

reshard_status rs_checkpoint_given(const char *call, reshard_checkpoint checkpoint, int64_t tensor, const void *out) {
  if (checkpoint == NULL || out == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: NULL argument", call);
  if (tensor < 0 || tensor >= checkpoint->info.tensors)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor %lld of a checkpoint with %lld", call, (long long)tensor,
                    (long long)checkpoint->info.tensors);
  return RESHARD_SUCCESS;
}

reshard_status reshard_checkpoint_layout(reshard_checkpoint checkpoint, int64_t tensor, reshard_layout *layout) {
  RS_TRY(rs_checkpoint_given("reshard_checkpoint_layout", checkpoint, tensor, layout));
  const rs_stored_tensor *stored = &checkpoint->store.tensors.at[tensor];
  if (!stored->reversed) {
    *layout = reshard_layout_retain(stored->layout);
    return RESHARD_SUCCESS;
  }
  const rs_model_tensor *t = &checkpoint->store.model->tensors.at[tensor];
  return reshard_layout_create_single(t->ndim, t->shape, 1, 0, layout);
}

/* The block of piece i, and the box that it has. */
static reshard_status find_piece(const rs_store *s, const rs_stored_tensor *stored, const char *name, int64_t i,
                                 const rs_stored_block **block, reshard_box *box) {
  int64_t before = 0;
  for (int64_t k = stored->first; k < stored->first + stored->count; before += s->arrays.at[k].count, k++) {
    const rs_stored_array *a = &s->arrays.at[k];
    int64_t boxes;
    if (i < before || i >= before + a->count)
      continue;
    RS_TRY(rs_array_boxes(stored->layout, a->rank, a->index, &boxes, NULL));
    if (boxes != a->count)
      return rs_error(RESHARD_ERROR_UNSUPPORTED, "tensor '%s': piece %lld has %lld boxes in one", name, (long long)i,
                      (long long)boxes);
    *block = &s->blocks.at[a->first + i - before];
    return rs_array_box(stored->layout, a->rank, a->index, i - before, box, NULL);
  }
  return rs_error(RESHARD_ERROR_INVALID, "tensor '%s': piece %lld of %lld", name, (long long)i, (long long)before);
}

/* The same in a file. */
static reshard_status find_stored(const rs_store *s, int64_t tensor, const char *name, int64_t i, const rs_file **file,
                                  int64_t *offset, reshard_box *box) {
  const rs_stored_block *block = NULL;
  if (s->tensors.at[tensor].reversed)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "tensor '%s' is stored in Fortran order", name);
  RS_TRY(find_piece(s, &s->tensors.at[tensor], name, i, &block, box));
  *file = &s->files.at[block->file];
  *offset = block->offset;
  if ((*file)->zeros)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "tensor '%s': piece %lld is zeros, which no file has", name,
                    (long long)i);
  return RESHARD_SUCCESS;
}

reshard_status reshard_checkpoint_stored(reshard_checkpoint checkpoint, int64_t tensor, int64_t i, const char **file,
                                         int64_t *offset, reshard_box *box) {
  const rs_file *in;
  reshard_model_tensor t;
  reshard_box found;
  int64_t at;
  RS_TRY(RS_GIVEN("reshard_checkpoint_stored", checkpoint, file, offset, box));
  RS_TRY(rs_checkpoint_given("reshard_checkpoint_stored", checkpoint, tensor, file));
  RS_TRY(reshard_model_get(checkpoint->store.model, tensor, &t));
  RS_TRY(find_stored(&checkpoint->store, tensor, t.name, i, &in, &at, &found));
  *file = in->path;
  *offset = at;
  *box = found;
  return RESHARD_SUCCESS;
}

/* Bytes of a page before an offset of a file, or before an address. */
static size_t before_in_page(uintptr_t at) { return at % (uintptr_t)sysconf(_SC_PAGESIZE); }

static reshard_status map_bytes(const rs_file *file, int64_t offset, int64_t bytes, const void **data) {
  char where[RS_WHERE];
  int64_t size, changed_ns;
  size_t before = before_in_page((uintptr_t)offset);
  rs_where(where, "file", file->path);
  RS_TRY(rs_file_stat(where, file->fd, &size, &changed_ns));
  if (size < offset + bytes) /* a page beyond the end would be a signal to the reader */
    return rs_error(RESHARD_ERROR_SYSTEM, "%s: became shorter: %lld bytes when it was opened, %lld now", where,
                    (long long)file->size, (long long)size);
  void *at = mmap(NULL, before + (size_t)bytes, PROT_READ, MAP_SHARED, file->fd, (off_t)(offset - (int64_t)before));
  if (at == MAP_FAILED)
    return rs_file_error(where, errno);
  *data = (char *)at + before;
  return RESHARD_SUCCESS;
}

reshard_status reshard_checkpoint_map(reshard_checkpoint checkpoint, int64_t tensor, const void **data) {
  const rs_file *file;
  reshard_model_tensor t;
  reshard_box box;
  int64_t offset, bytes, pieces = 0;
  RS_TRY(rs_checkpoint_given("reshard_checkpoint_map", checkpoint, tensor, data));
  RS_TRY(reshard_model_get(checkpoint->store.model, tensor, &t));
  RS_TRY(rs_tensor_bytes(t.ndim, t.shape, reshard_dtype_size(t.dtype), &bytes));
  if (bytes == 0) {
    *data = NULL;
    return RESHARD_SUCCESS;
  }
  do {
    reshard_status status = find_stored(&checkpoint->store, tensor, t.name, pieces++, &file, &offset, &box);
    if (status == RESHARD_ERROR_INVALID)
      return rs_error(RESHARD_ERROR_UNSUPPORTED, "tensor '%s' lies in %lld pieces, none of them whole: read it", t.name,
                      (long long)pieces - 1);
    RS_TRY(status);
  } while (memcmp(box.extent, t.shape, (size_t)t.ndim * sizeof *t.shape) != 0);
  return map_bytes(file, offset, bytes, data);
}

void reshard_checkpoint_unmap(const void *data, size_t bytes) {
  if (data == NULL)
    return;
  size_t before = before_in_page((uintptr_t)data);
  (void)munmap((char *)(uintptr_t)data - before, before + bytes);
}

reshard_status reshard_checkpoint_metadata(reshard_checkpoint checkpoint, int64_t i, const char **key,
                                           const char **value) {
  RS_TRY(RS_GIVEN("reshard_checkpoint_metadata", checkpoint, key, value));
  if (i < 0 || i >= checkpoint->owner.all.n)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_checkpoint_metadata: entry %lld of a checkpoint with %lld",
                    (long long)i, (long long)checkpoint->owner.all.n);
  *key = checkpoint->owner.all.at[i].key;
  *value = checkpoint->owner.all.at[i].value;
  return RESHARD_SUCCESS;
}

reshard_status rs_checkpoint_unchanged(reshard_checkpoint checkpoint) {
  const rs_store *s = &checkpoint->store;
  for (int64_t f = 0; f < s->files.n; f++) {
    const rs_file *file = &s->files.at[f];
    char where[RS_WHERE];
    int64_t size, changed_ns;
    if (file->zeros)
      continue;
    RS_TRY(rs_file_stat(rs_where(where, "file", file->path), file->fd, &size, &changed_ns));
    if (size != file->size)
      return rs_error(RESHARD_ERROR_SYSTEM, "%s changed while it was read: %lld bytes when it was opened, %lld now",
                      where, (long long)file->size, (long long)size);
    if (changed_ns != file->changed_ns)
      return rs_error(RESHARD_ERROR_SYSTEM, "%s changed while it was read", where);
  }
  return RESHARD_SUCCESS;
}
