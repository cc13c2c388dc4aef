/* A directory of safetensors files, or one with .distcp files, which distcp.c opens. The index of Hugging Face,
 * model.safetensors.index.json, has a "weight_map" that names the file of each tensor. With it only the files that it
 * names are read, and it must be right in every tensor. */
#include "file/read/open.h"

#include "base/text.h"
#include "device/cpu/cpu.h"
#include "file/ground/json.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define MAIN_INDEX  "model.safetensors.index.json"
#define INDEX_LIMIT ((int64_t)1 << 30)
/* Smaller files are read before a thread has started. */
#define THREAD_BYTES (1 << 20)

/* Headers. What a thread cannot read it leaves, and the caller's thread tries it again: so the error is that of the
 * first such file, whatever the threads did. */
static reshard_status read_one(rs_opening *opening, int64_t f) {
  rs_safetensors *header = &opening->headers[f];
  rs_file *file = &opening->checkpoint->store.files.at[f];
  char where[RS_WHERE];
  rs_opening_where(opening, f, where);
  reshard_status status = rs_safetensors_read(where, file, header);
  if (status == RESHARD_SUCCESS && header->sharding != NULL)
    status = rs_safetensors_read_sharding(where, header);
  if (status == RESHARD_ERROR_INVALID && opening->options.check) /* a malformed header was not written so */
    status = RESHARD_ERROR_CORRUPT;
  if (status == RESHARD_SUCCESS && opening->options.check)
    status = rs_safetensors_read_digests(where, header, file);
  if (status != RESHARD_SUCCESS)
    rs_safetensors_free(header);
  return status;
}

typedef struct readers {
  rs_opening *opening;
  _Atomic int64_t next;
} readers;

static void *read_some(void *with) {
  readers *r = with;
  int64_t f;
  while ((f = atomic_fetch_add(&r->next, 1)) < r->opening->checkpoint->store.files.n)
    read_one(r->opening, f);
  return NULL;
}

static reshard_status read_threaded(rs_opening *opening, int64_t threads) {
  readers r = {.opening = opening};
  pthread_t *thread = NULL;
  int64_t started = 0;
  int number = 0;
  RS_TRY(rs_alloc(&thread, threads, sizeof *thread));
  while (started < threads && (number = pthread_create(&thread[started], NULL, read_some, &r)) == 0)
    started++;
  if (number == 0)
    read_some(&r);
  for (int64_t t = 0; t < started; t++)
    pthread_join(thread[t], NULL);
  free(thread);
  return number == 0
             ? RESHARD_SUCCESS
             : rs_error(RESHARD_ERROR_SYSTEM, "%s: no thread to read headers: %s", opening->where, strerror(number));
}

reshard_status rs_open_headers(rs_opening *opening) {
  const rs_store *s = &opening->checkpoint->store;
  int64_t all = 0, threads = rs_min(s->files.n, rs_device_cpu_cores());
  for (int64_t f = 0; f < s->files.n; f++)
    all = rs_min(all + s->files.at[f].size, INT64_MAX / 2);
  if (threads > 1 && all > THREAD_BYTES)
    RS_TRY(read_threaded(opening, threads - 1));
  for (int64_t f = 0; f < s->files.n; f++)
    if (opening->headers[f].model == NULL)
      RS_TRY(read_one(opening, f));
  return RESHARD_SUCCESS;
}

/* Names in a directory; owned. */
typedef RS_VEC(char *) names;

static void free_names(names *n) {
  for (int64_t i = 0; i < n->n; i++)
    free(n->at[i]);
  free(n->at);
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Names in a directory, by kind. */
typedef struct listing {
  names files, indexes;
  names distcp;  /* the first .distcp file, or metadata of one rank */
  bool metadata; /* .metadata is there */
} listing;

static reshard_status list_name(const char *name, listing *l) {
  bool part = rs_ends(name, ".distcp") || (name[0] != '.' && rs_ends(name, ".metadata"));
  names *to = rs_ends(name, ".safetensors.index.json") ? &l->indexes : rs_ends(name, ".safetensors") ? &l->files : NULL;
  l->metadata |= strcmp(name, ".metadata") == 0;
  if (part && l->distcp.n == 0)
    to = &l->distcp;
  if (to == NULL || name[0] == '.')
    return RESHARD_SUCCESS;
  RS_TRY(rs_vec_reserve(to, to->n + 1));
  RS_TRY(rs_alloc_copy(&to->at[to->n], name, (int64_t)strlen(name) + 1, 1));
  to->n++;
  return RESHARD_SUCCESS;
}

static reshard_status list_directory(const rs_opening *opening, const char *path, listing *l) {
  DIR *directory = opendir(path);
  if (directory == NULL)
    return errno == ENOMEM ? rs_error_memory(sizeof(DIR *)) : rs_file_error(opening->where, errno);
  reshard_status status = RESHARD_SUCCESS;
  while (status == RESHARD_SUCCESS) {
    errno = 0;
    struct dirent *entry = readdir(directory);
    if (entry == NULL) {
      if (errno != 0)
        status = rs_file_error(opening->where, errno);
      break;
    }
    status = list_name(entry->d_name, l);
  }
  closedir(directory);
  if (l->files.n > 0)
    qsort(l->files.at, (size_t)l->files.n, sizeof *l->files.at, by_name);
  return status;
}

static reshard_status open_files(rs_opening *opening, const char *path, const names *files) {
  RS_TRY(rs_vec_reserve(&opening->checkpoint->store.files, files->n));
  RS_TRY(rs_alloc_zero(&opening->headers, files->n, sizeof *opening->headers));
  for (int64_t f = 0; f < files->n; f++)
    RS_TRY(rs_opening_add(opening, path, files->at[f], files->n));
  return RESHARD_SUCCESS;
}

#ifdef RS_HAVE_JANSSON

/* Reads the index that counts; the caller releases *root. */
static reshard_status read_index(const rs_opening *opening, const char *path, const names *indexes,
                                 char where[RS_WHERE], json_t **root) {
  rs_path_text whole = {0};
  const char *name = indexes->at[0];
  for (int64_t i = 1; i < indexes->n; i++)
    if (strcmp(indexes->at[i], MAIN_INDEX) == 0)
      name = indexes->at[i];
  if (indexes->n > 1 && strcmp(name, MAIN_INDEX) != 0) {
    char first[RS_QUOTE], second[RS_QUOTE];
    return rs_error(RESHARD_ERROR_INVALID, "%s: two indexes, '%s' and '%s', and neither is " MAIN_INDEX, opening->where,
                    rs_quote(first, sizeof first, indexes->at[0]), rs_quote(second, sizeof second, indexes->at[1]));
  }
  rs_file file = {.fd = -1};
  RS_TRY(rs_path_join(path, name, &whole));
  reshard_status status = rs_file_open(rs_where(where, "index", whole.at), whole.at, 1, &file);
  free(whole.at);
  RS_TRY(status);
  char *text = NULL;
  if (file.size > INDEX_LIMIT)
    status = rs_error(RESHARD_ERROR_INVALID, "%s: longer than %lld bytes", where, (long long)INDEX_LIMIT);
  if (status == RESHARD_SUCCESS)
    status = rs_alloc(&text, file.size, 1);
  if (status == RESHARD_SUCCESS)
    status = rs_file_read_at(&file, 0, text, file.size);
  if (status == RESHARD_SUCCESS)
    status = rs_json_parse(where, text != NULL ? text : "", file.size, root);
  free(text);
  rs_file_close(&file);
  return status;
}

/* Leaves of the files those that the index names. */
static reshard_status select_files(const char *where, json_t *map, names *files) {
  char quoted[RS_QUOTE], other[RS_QUOTE];
  const char *tensor;
  json_t *value;
  bool *named = NULL;
  if (!json_is_object(map))
    return rs_error(RESHARD_ERROR_INVALID, "%s: \"weight_map\" is missing or no object", where);
  if (json_object_size(map) == 0) /* of no tensors: no file may have one */
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc_zero(&named, files->n, sizeof *named));
  reshard_status status = RESHARD_SUCCESS;
  json_object_foreach(map, tensor, value) {
    const char *name = json_string_value(value);
    char **found = NULL;
    if (name != NULL && files->n > 0)
      found = bsearch(&name, files->at, (size_t)files->n, sizeof *files->at, by_name);
    if (found == NULL) {
      rs_quote(quoted, sizeof quoted, tensor);
      status = name == NULL ? rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': the file is no string", where, quoted)
                            : rs_error(RESHARD_ERROR_INVALID,
                                       "%s: tensor '%s': there is no safetensors file '%s' in the directory", where,
                                       quoted, rs_quote(other, sizeof other, name));
      break;
    }
    named[found - files->at] = true;
  }
  int64_t kept = 0;
  for (int64_t i = 0; i < files->n && status == RESHARD_SUCCESS; i++) {
    char *name = files->at[i];
    files->at[i] = NULL;
    if (named[i])
      files->at[kept++] = name;
    else
      free(name);
  }
  if (status == RESHARD_SUCCESS)
    files->n = kept;
  free(named);
  return status;
}

/* Error that names a tensor of the index that is nowhere; there is one. */
static reshard_status missing_tensor(const rs_opening *opening, const char *where, json_t *map) {
  char quoted[RS_QUOTE], other[RS_QUOTE];
  const char *tensor;
  json_t *value;
  rs_names there = {0};
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t f = 0, number; f < opening->checkpoint->store.files.n; f++) {
    reshard_model model = opening->headers[f].model;
    for (int64_t i = 0; i < model->tensors.n; i++) {
      const char *name = rs_model_name(model, i);
      RS_TRY_GOTO(status, rs_names_put(&there, name, strlen(name), &number), done);
    }
  }
  json_object_foreach(map, tensor, value) if (status == RESHARD_SUCCESS &&
                                              rs_names_find(&there, tensor, strlen(tensor)) < 0) status =
      rs_error(RESHARD_ERROR_INVALID, "%s: file '%s' has no tensor '%s'", where,
               rs_quote(other, sizeof other, json_string_value(value)), rs_quote(quoted, sizeof quoted, tensor));
done:
  rs_names_free(&there);
  return status;
}

static reshard_status check_index(const rs_opening *opening, const char *where, json_t *map) {
  char quoted[RS_QUOTE], first[RS_QUOTE], second[RS_QUOTE];
  int64_t found = 0;
  for (int64_t f = 0; f < opening->checkpoint->store.files.n; f++) {
    reshard_model model = opening->headers[f].model;
    const char *file = rs_opening_name(opening, f);
    for (int64_t i = 0; i < model->tensors.n; i++) {
      const char *name = rs_model_name(model, i);
      const char *said = json_string_value(json_object_get(map, name));
      if (said != NULL && strcmp(said, file) == 0) {
        found++;
        continue;
      }
      rs_quote(quoted, sizeof quoted, name);
      rs_quote(first, sizeof first, file);
      if (said == NULL)
        return rs_error(RESHARD_ERROR_INVALID, "%s: file '%s' has a tensor '%s' that the index lacks", where, first,
                        quoted);
      return rs_error(RESHARD_ERROR_INVALID, "%s: file '%s' has tensor '%s', which the index puts in file '%s'", where,
                      first, quoted, rs_quote(second, sizeof second, said));
    }
  }
  return found == (int64_t)json_object_size(map) ? RESHARD_SUCCESS : missing_tensor(opening, where, map);
}

static reshard_status open_indexed(rs_opening *opening, const char *path, names *files, const names *indexes) {
  char where[RS_WHERE];
  json_t *root = NULL;
  RS_TRY(read_index(opening, path, indexes, where, &root));
  json_t *map = json_object_get(root, "weight_map");
  reshard_status status = select_files(where, map, files);
  if (status == RESHARD_SUCCESS)
    status = open_files(opening, path, files);
  if (status == RESHARD_SUCCESS)
    status = rs_open_headers(opening);
  if (status == RESHARD_SUCCESS)
    status = check_index(opening, where, map);
  json_decref(root);
  return status;
}

#else

static reshard_status open_indexed(rs_opening *opening, const char *path, names *files, const names *indexes) {
  (void)path;
  (void)files;
  (void)indexes;
  return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: this build reads no index, it was made without jansson",
                  opening->where);
}

#endif

/* A directory with .metadata, or with parts of such a checkpoint. */
static reshard_status check_distcp(const rs_opening *opening, const listing *l) {
  char part[RS_QUOTE], other[RS_QUOTE];
  if (!l->metadata)
    return rs_error(RESHARD_ERROR_INVALID,
                    "%s: holds '%s' and no .metadata: the save has not ended, or each rank has saved by itself",
                    opening->where, rs_quote(part, sizeof part, l->distcp.at[0]));
  if (l->files.n > 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: holds .metadata of .distcp files, and '%s': which is the checkpoint?",
                    opening->where, rs_quote(other, sizeof other, l->files.at[0]));
  return RESHARD_SUCCESS;
}

reshard_status rs_open_directory(rs_opening *opening, const char *path, bool *distcp) {
  listing l = {.metadata = false};
  reshard_status status = list_directory(opening, path, &l);
  *distcp = l.metadata || l.distcp.n > 0;
  if (status == RESHARD_SUCCESS && *distcp)
    status = check_distcp(opening, &l);
  else if (status == RESHARD_SUCCESS && l.files.n == 0)
    status = rs_error(RESHARD_ERROR_INVALID, "%s: a directory without .safetensors or .distcp files", opening->where);
  if (status == RESHARD_SUCCESS && !*distcp && l.indexes.n > 0)
    status = open_indexed(opening, path, &l.files, &l.indexes);
  else if (status == RESHARD_SUCCESS && !*distcp && (status = open_files(opening, path, &l.files)) == RESHARD_SUCCESS)
    status = rs_open_headers(opening);
  free_names(&l.files);
  free_names(&l.indexes);
  free_names(&l.distcp);
  return status;
}
