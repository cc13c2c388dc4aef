/* Opening a single file, and files whose headers are read. The content tells the format: the temporary of a writer has
 * no telling name. A single file of a set of shards is opened as a set of one file. So a part that says that it is one
 * is never taken for the whole. */
#include "file/read/open.h"

#include "base/text.h"
#include "file/format/npy.h"
#include "file/format/torch.h"
#include "file/read/shards.h"

#include <stdlib.h>
#include <string.h>

const char *rs_opening_name(const rs_opening *opening, int64_t file) {
  const char *path = opening->checkpoint->store.files.at[file].path, *slash = strrchr(path, '/');
  return slash != NULL ? slash + 1 : path;
}

const char *rs_opening_where(const rs_opening *opening, int64_t file, char where[RS_WHERE]) {
  return rs_where(where, "file", opening->checkpoint->store.files.at[file].path);
}

/* Files that are compared come from their device, headers too. */
static void drop_old_pages(const rs_opening *opening, rs_file *file) {
  file->dropped = opening->gaps_allowed && rs_file_drop_pages(file);
}

reshard_status rs_opening_add(rs_opening *opening, const char *path, const char *name, int64_t files) {
  rs_store *s = &opening->checkpoint->store;
  rs_path_text whole = {0};
  char where[RS_WHERE];
  reshard_status status = rs_path_join(path, name, &whole);
  RS_THEN(status, rs_file_open(rs_where(where, "file", whole.at), whole.at, files, &s->files.at[s->files.n]));
  if (status == RESHARD_SUCCESS)
    drop_old_pages(opening, &s->files.at[s->files.n++]);
  free(whole.at);
  return status;
}

static reshard_status open_npy(rs_opening *opening) {
  char where[RS_WHERE];
  rs_whole_tensor whole = {0};
  rs_layout_cache layouts = {0};
  RS_TRY(rs_npy_read(rs_opening_where(opening, 0, where), &opening->checkpoint->store.files.at[0], &whole));
  reshard_status status = rs_open_add(opening, &layouts, &whole);
  rs_layout_cache_free(&layouts);
  opening->checkpoint->info.stored_bytes = opening->checkpoint->store.model->bytes;
  opening->checkpoint->info.world = 1;
  return status;
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
  return sharded > 0 ? rs_open_shards(opening) : rs_open_whole(opening);
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
  if (memcmp(first, "PK\3\4", 4) == 0)
    return rs_open_state_dict(opening);
  if (memcmp(first, RS_TORCH_OLD_MAGIC, sizeof RS_TORCH_OLD_MAGIC - 1) == 0)
    return rs_error(RESHARD_ERROR_UNSUPPORTED,
                    "%s: what torch.save wrote before version 1.6 of PyTorch, no zip archive: " RS_TORCH_PYTHON, where);
  if (first[8] != '{' && !rs_ends(path, ".safetensors"))
    return rs_error(RESHARD_ERROR_INVALID, "%s: neither an .npy nor a .safetensors file, nor one of torch.save", where);
  RS_TRY(rs_alloc_zero(&opening->headers, 1, sizeof *opening->headers));
  RS_TRY(rs_open_headers(opening));
  return rs_open_headed(opening, RESHARD_FORMAT_SAFETENSORS);
}
