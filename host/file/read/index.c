/* An index file, as Hugging Face has it: "weight_map" names the file of each tensor, relative to the index. It is what
 * holds. Of a file, the tensors that it gives to that file are taken; others, older ones below an overlay, are left out
 * and counted. Files may be safetensors, or those of torch.save. */
#include "file/read/directory.h"

#include "base/text.h"
#include "file/ground/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#ifdef RS_HAVE_JANSSON

#define INDEX_LIMIT ((int64_t)1 << 30)

static reshard_status read_index(const char *where, const char *path, json_t **root) {
  rs_file file = {.fd = -1};
  char *text = NULL;
  RS_TRY(rs_file_open(where, path, 1, &file));
  reshard_status status = RESHARD_SUCCESS;
  if (file.size > INDEX_LIMIT)
    status = rs_error(RESHARD_ERROR_INVALID, "%s: longer than %lld bytes", where, (long long)INDEX_LIMIT);
  RS_THEN(status, rs_alloc(&text, file.size, 1));
  RS_THEN(status, rs_file_read_at(&file, 0, text, file.size));
  RS_THEN(status, rs_json_parse(where, text != NULL ? text : "", file.size, file.size, root));
  free(text);
  rs_file_close(&file);
  return status;
}

/* True for a path that stays below the directory of the index. */
static bool is_below(const char *name) {
  bool below = *name != '\0' && *name != '/';
  for (const char *part = name; part != NULL && below; part = strchr(part, '/')) {
    part += *part == '/';
    below = strncmp(part, "..", 2) != 0 || (part[2] != '/' && part[2] != '\0');
  }
  return below;
}

/* Takes parts that are empty or "." out of a path, so that a file has one name; but for the last: "x/" is no file. */
static reshard_status clean_path(json_t *value) {
  const char *name = json_string_value(value);
  if (name[0] != '.' && strstr(name, "//") == NULL && strstr(name, "/./") == NULL)
    return RESHARD_SUCCESS;
  size_t size = strlen(name) + 1, length = 0;
  char *path = NULL;
  RS_TRY(rs_alloc(&path, (int64_t)size, 1));
  for (size_t n; *name != '\0'; name += n) {
    n = strcspn(name, "/");
    n += name[n] == '/';
    if (name[0] == '/' || strncmp(name, "./", 2) == 0)
      continue;
    memcpy(path + length, name, n);
    length += n;
  }
  int set = json_string_setn(value, path, length);
  free(path);
  return set == 0 ? RESHARD_SUCCESS : rs_error_memory(size);
}

static int by_name(const void *a, const void *b) { return strcmp(((const rs_name *)a)->at, ((const rs_name *)b)->at); }

/* The files that the index names, each once, sorted. */
static reshard_status list_files(const char *where, json_t *map, rs_names *files) {
  char quoted[RS_QUOTE], other[RS_QUOTE];
  const char *tensor;
  json_t *value;
  json_object_foreach(map, tensor, value) {
    const char *name = json_string_value(value);
    int64_t number;
    rs_quote(quoted, sizeof quoted, tensor);
    if (name == NULL)
      return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': the file is no string", where, quoted);
    if (!is_below(name))
      return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': file '%s' is no relative path without '..'", where,
                      quoted, rs_quote(other, sizeof other, name));
    RS_TRY(clean_path(value));
    name = json_string_value(value);
    RS_TRY(rs_names_put(files, name, strlen(name) + 1, &number));
  }
  if (files->all.n > 1)
    qsort(files->all.at, (size_t)files->all.n, sizeof *files->all.at, by_name); /* nothing is looked up any more */
  return RESHARD_SUCCESS;
}

/* The first tensor that the index gives to a file. */
static const char *tensor_of(json_t *map, const char *file) {
  const char *tensor;
  json_t *value;
  json_object_foreach(map, tensor, value) if (strcmp(json_string_value(value), file) == 0) return tensor;
  return "";
}

static reshard_status open_indexed(rs_opening *o, const char *where, const char *directory, const rs_names *files) {
  char quoted[RS_QUOTE], other[RS_QUOTE];
  int64_t n = files->all.n;
  struct stat info;
  RS_TRY(rs_vec_reserve(&o->checkpoint->store.files, n));
  RS_TRY(rs_alloc_zero(&o->headers, n, sizeof *o->headers));
  for (int64_t f = 0; f < n; f++) {
    const char *name = files->all.at[f].at;
    rs_path_text whole = {0};
    RS_TRY(rs_path_join(directory, name, &whole));
    bool missing = stat(whole.at, &info) != 0 && (errno == ENOENT || errno == ENOTDIR);
    free(whole.at);
    if (missing)
      return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': there is no file '%s'", where,
                      rs_quote(quoted, sizeof quoted, tensor_of(o->weight_map, name)),
                      rs_quote(other, sizeof other, name));
    RS_TRY(rs_opening_add(o, directory, name, n));
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_open_index(rs_opening *o, const char *directory, const char *path) {
  char where[RS_WHERE];
  rs_names files = {0};
  RS_TRY(read_index(rs_where(where, "index", path), path, &o->index));
  o->weight_map = json_object_get(o->index, "weight_map");
  if (!json_is_object(o->weight_map))
    return rs_error(RESHARD_ERROR_INVALID, "%s: \"weight_map\" is missing or no object", where);
  reshard_status status = list_files(where, o->weight_map, &files);
  RS_THEN(status, open_indexed(o, where, directory, &files));
  rs_names_free(&files);
  RS_TRY(status);
  return rs_open_read(o);
}

bool rs_opening_takes(rs_opening *o, int64_t file, const char *tensor) {
  if (o->index == NULL)
    return true;
  const char *said = json_string_value(json_object_get(o->weight_map, tensor));
  bool takes = said != NULL && strcmp(said, rs_opening_name(o, file)) == 0;
  o->checkpoint->info.unlisted += !takes;
  return takes;
}

void rs_index_forget(rs_opening *o, const char *tensor) { json_object_del(o->weight_map, tensor); }

reshard_status rs_index_check(const rs_opening *o) {
  char quoted[RS_QUOTE], other[RS_QUOTE];
  const char *tensor;
  json_t *value;
  json_object_foreach(o->weight_map, tensor, value) {
    if (rs_names_find(&o->checkpoint->names, tensor, strlen(tensor)) < 0)
      return rs_error(RESHARD_ERROR_INVALID, "%s: file '%s' has no tensor '%s', which its index gives to it", o->where,
                      rs_quote(other, sizeof other, json_string_value(value)), rs_quote(quoted, sizeof quoted, tensor));
  }
  return RESHARD_SUCCESS;
}

void rs_index_free(rs_opening *o) { json_decref(o->index); }

#else

reshard_status rs_open_index(rs_opening *o, const char *directory, const char *path) {
  (void)directory;
  (void)path;
  return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: this build reads no index, it was made without jansson", o->where);
}

bool rs_opening_takes(rs_opening *o, int64_t file, const char *tensor) {
  (void)o;
  (void)file;
  (void)tensor;
  return true;
}

void rs_index_forget(rs_opening *o, const char *tensor) {
  (void)o;
  (void)tensor;
}

reshard_status rs_index_check(const rs_opening *o) {
  (void)o;
  return RESHARD_SUCCESS;
}

void rs_index_free(rs_opening *o) { (void)o; }

#endif
