/* Opening a checkpoint: which format it is, by what is in it (the temporary of a writer has no telling name), then the
 * headers, then the store that they describe. A single file of a set of shards is opened as a set of one file, so that
 * a part is never taken for the whole where it says that it is a part. */
#include "file/read/open.h"
#include "file/format/npy.h"
#include "file/write/target.h"
#include "file/format/torch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const char *rs_opening_name(const rs_opening *opening, int64_t file) {
  const char *path = opening->checkpoint->store.files.at[file].path, *slash = strrchr(path, '/');
  return slash != NULL ? slash + 1 : path;
}

const char *rs_opening_where(const rs_opening *opening, int64_t file, char where[RS_WHERE]) {
  return rs_where(where, "file", opening->checkpoint->store.files.at[file].path);
}

static reshard_status open_npy(rs_opening *opening) {
  char where[RS_WHERE];
  rs_whole whole = {0};
  rs_layouts layouts = {0};
  RS_TRY(rs_npy_read(rs_opening_where(opening, 0, where), &opening->checkpoint->store.files.at[0], &whole));
  reshard_status status = rs_open_add(opening, &layouts, &whole);
  rs_layouts_free(&layouts);
  opening->checkpoint->info.stored_bytes = opening->checkpoint->store.model->bytes;
  opening->checkpoint->info.world = 1;
  return status;
}

/* What a directory or a safetensors file is, once its headers are read. */
static reshard_status open_read(rs_opening *opening, reshard_file_format format) {
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
  return sharded > 0 ? rs_open_shards(opening) : rs_open_whole(opening);
}

static reshard_status open_file(rs_opening *opening, const char *path) {
  rs_store *s = &opening->checkpoint->store;
  char where[RS_WHERE], first[16] = {0};
  RS_TRY(rs_vec_reserve(&s->files, 1));
  RS_TRY(rs_file_open(rs_where(where, "file", path), path, 1, &s->files.at[0]));
  s->files.n = 1;
  RS_TRY(rs_file_get(&s->files.at[0], 0, first, rs_min(s->files.at[0].size, sizeof first)));
  bool npy = memcmp(first, RS_NPY_MAGIC, sizeof RS_NPY_MAGIC - 1) == 0;
  if (npy || rs_ends(path, ".npy")) {
    opening->checkpoint->info.format = RESHARD_FORMAT_NPY;
    return open_npy(opening);
  }
  if (rs_ends(path, ".distcp") || rs_ends(path, ".metadata"))
    return rs_error(RESHARD_ERROR_INVALID, "%s: a part of a .distcp checkpoint: name its directory", where);
  if (memcmp(first, "PK\3\4", 4) == 0)
    return rs_open_state_dict(opening);
  if (memcmp(first, RS_TORCH_OLD_MAGIC, sizeof RS_TORCH_OLD_MAGIC - 1) == 0)
    return rs_error(RESHARD_ERROR_UNSUPPORTED,
                    "%s: what torch.save wrote before version 1.6 of PyTorch, no zip archive: " RS_TORCH_PYTHON, where);
  if (first[8] != '{' && !rs_ends(path, ".safetensors"))
    return rs_error(RESHARD_ERROR_INVALID, "%s: neither an .npy nor a .safetensors file, nor one of torch.save", where);
  RS_TRY(rs_alloc_zero(&opening->headers, 1, sizeof *opening->headers));
  RS_TRY(rs_open_headers(opening));
  return open_read(opening, RESHARD_FORMAT_SAFETENSORS);
}

/* The names that the tensors are found by: those of the model, which stays. */
static reshard_status put_names(reshard_checkpoint checkpoint) {
  rs_names_free(&checkpoint->names);
  reshard_model model = checkpoint->store.model;
  for (int64_t i = 0, number; i < model->tensors.n; i++) {
    const char *name = model->names.at + model->tensors.at[i].name;
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

static reshard_status open_path(rs_opening *opening, const char *path) {
  struct stat info;
  reshard_checkpoint c = opening->checkpoint;
  if (stat(path, &info) != 0)
    return rs_file_error(opening->where, errno);
  RS_TRY(rs_model_new(&c->store.model));
  if (S_ISDIR(info.st_mode)) {
    c->directory = true;
    c->device = (uint64_t)info.st_dev;
    c->inode = (uint64_t)info.st_ino;
    bool distcp;
    RS_TRY(rs_open_directory(opening, path, &distcp));
    if (distcp)
      RS_TRY(rs_open_distcp(opening, path));
    RS_TRY(rs_checkpoint_in_place(c, path));
    if (!distcp)
      RS_TRY(open_read(opening, RESHARD_FORMAT_WHOLE));
  } else {
    RS_TRY(open_file(opening, path));
  }
  RS_TRY(put_names(c));
  c->info.tensors = c->store.model->tensors.n;
  c->info.files = c->store.files.n;
  c->info.bytes = c->store.model->bytes;
  return RESHARD_SUCCESS;
}

reshard_status rs_checkpoint_open(const char *path, bool gaps_allowed, reshard_checkpoint *checkpoint) {
  char where[RS_WHERE];
  rs_opening opening = {.where = rs_where(where, "checkpoint", path), .gaps_allowed = gaps_allowed};
  if (!gaps_allowed)
    RS_TRY(rs_target_refuse(opening.where, path));
  RS_TRY(rs_alloc_zero(&opening.checkpoint, 1, sizeof *opening.checkpoint));
  reshard_status status = open_path(&opening, path);
  for (int64_t f = 0; opening.headers != NULL && f < opening.checkpoint->store.files.n; f++)
    rs_header_free(&opening.headers[f]);
  free(opening.headers);
  if (status != RESHARD_SUCCESS)
    reshard_checkpoint_close(opening.checkpoint);
  else
    *checkpoint = opening.checkpoint;
  return status;
}
