/* Directories of naive files, and what it means that two are the same. */
#include "file_directory.h"

#ifdef RS_HAVE_JANSSON

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool directory_wrong(rs_text *why, const char *path, const char *what) {
  cli_add(why, "%s: %s", path, what);
  return false;
}

static int64_t width_of(const naive_tensor *t) { return (int64_t)reshard_dtype_size(t->dtype); }

static const char index_name[] = "model.safetensors.index.json";

naive_file *naive_dir_add(naive_dir *dir, const char *name) {
  dir->file = cli_realloc(dir->file, dir->n + 1, sizeof *dir->file);
  dir->file[dir->n] = (naive_file){.name = cli_strdup(name)};
  return &dir->file[dir->n++];
}

void naive_dir_free(naive_dir *dir) {
  for (int64_t i = 0; i < dir->n; i++)
    naive_file_free(&dir->file[i]);
  free(dir->file);
  json_decref(dir->index);
  *dir = (naive_dir){0};
}

static char *join(const char *path, const char *name) {
  rs_text text = {0};
  cli_add(&text, "%s/%s", path, name);
  return text.at;
}

void naive_write_dir(rng *r, const char *path, const naive_dir *dir) {
  if (mkdir(path, 0777) != 0)
    cli_exit(EXIT_FAILED, "%s: %s", path, strerror(errno));
  for (int64_t i = 0; i < dir->n; i++) {
    char *name = join(path, dir->file[i].name);
    naive_write_safetensors(r, name, &dir->file[i]);
    free(name);
  }
  if (dir->index == NULL)
    return;
  char *name = join(path, index_name), *json = json_dumps(dir->index, JSON_INDENT(2));
  cli_write_file(name, json, strlen(json));
  free(json);
  free(name);
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const naive_file *)a)->name, ((const naive_file *)b)->name);
}

bool naive_read_dir(const char *path, naive_dir *out, rs_text *why) {
  *out = (naive_dir){0};
  DIR *open = opendir(path);
  bool right = open != NULL || directory_wrong(why, path, strerror(errno));
  for (struct dirent *entry; right && (entry = readdir(open)) != NULL;) {
    size_t n = strlen(entry->d_name);
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
      continue;
    char *name = join(path, entry->d_name);
    if (strcmp(entry->d_name, index_name) == 0) {
      out->index = json_load_file(name, JSON_REJECT_DUPLICATES, NULL);
      right = out->index != NULL || directory_wrong(why, name, "no JSON");
    } else if (n > 12 && strcmp(entry->d_name + n - 12, ".safetensors") == 0) {
      naive_file *file = naive_dir_add(out, entry->d_name);
      naive_file_free(file);
      right = naive_read_safetensors(name, file, why);
    } else
      right = directory_wrong(why, name, "does not belong there");
    free(name);
  }
  if (open != NULL)
    closedir(open);
  if (out->n > 1)
    qsort(out->file, (size_t)out->n, sizeof *out->file, by_name);
  return right;
}

void naive_index_dir(const naive_set *set, int64_t most_bytes, naive_dir *out) {
  *out = (naive_dir){0};
  int64_t *file_of = cli_alloc(set->n, sizeof *file_of), files = 0, in_file = 0, all = 0;
  for (int64_t i = 0; i < set->n; i++) {
    int64_t bytes = set->at[i].n * width_of(&set->at[i]);
    if (files == 0 || in_file + bytes > most_bytes) {
      files++;
      in_file = 0;
    }
    file_of[i] = files - 1;
    in_file += bytes;
    all += bytes;
  }
  json_t *map = json_object();
  char name[64];
  files = files > 0 ? files : 1;
  for (int64_t f = 0; f < files; f++) {
    snprintf(name, sizeof name, "model-%05lld-of-%05lld.safetensors", (long long)f + 1, (long long)files);
    naive_file *file = naive_dir_add(out, name);
    file->metadata = json_pack("{s:s}", "format", "pt");
    for (int64_t i = 0; i < set->n; i++) {
      const naive_tensor *t = &set->at[i];
      if (file_of[i] != f)
        continue;
      memcpy(naive_add(&file->set, t->name, t->dtype, t->ndim, t->shape)->bytes, t->bytes,
             (size_t)(t->n * width_of(t)));
      json_object_set_new(map, t->name, json_pack("s", name));
    }
  }
  out->index = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)all, "weight_map", map);
  free(file_of);
}

/* --- Comparison -------------------------------------------------------------------------------------------------- */

static bool same_tensor(const naive_tensor *is, const naive_tensor *should, rs_text *why) {
  if (is == NULL || is->dtype != should->dtype || is->ndim != should->ndim ||
      memcmp(is->shape, should->shape, (size_t)is->ndim * sizeof *is->shape) != 0) {
    cli_add(why, "tensor '%s' is %s", should->name, is == NULL ? "not there" : "of another dtype or shape");
    return false;
  }
  int64_t width = width_of(should);
  for (int64_t e = 0; e < should->n; e++)
    if (memcmp(is->bytes + e * width, should->bytes + e * width, (size_t)width) != 0) {
      cli_add(why, "tensor '%s': element %lld of %lld (%s) is wrong", should->name, (long long)e, (long long)should->n,
              reshard_dtype_string(should->dtype));
      return false;
    }
  return true;
}

bool naive_same_set(const naive_set *is, const naive_set *should, rs_text *why) {
  for (int64_t i = 0; i < should->n; i++)
    if (!same_tensor(naive_find(is, should->at[i].name), &should->at[i], why))
      return false;
  if (is->n == should->n)
    return true;
  cli_add(why, "%lld tensors, should be %lld", (long long)is->n, (long long)should->n);
  return false;
}

static bool same_json(json_t *is, json_t *should, const char *where, rs_text *why) {
  if (is == should || (is != NULL && should != NULL && json_equal(is, should)))
    return true;
  char *a = json_dumps(is, JSON_ENCODE_ANY), *b = json_dumps(should, JSON_ENCODE_ANY);
  cli_add(why, "%s: metadata is %s, should be %s", where, a != NULL ? a : "missing", b != NULL ? b : "missing");
  free(a);
  free(b);
  return false;
}

bool naive_same_dir(const naive_dir *is, const naive_dir *should, rs_text *why) {
  for (int64_t i = 0; i < is->n || i < should->n; i++)
    if (i >= is->n || i >= should->n || strcmp(is->file[i].name, should->file[i].name) != 0) {
      cli_add(why, "file %lld is %s, should be %s (%lld files, should be %lld)", (long long)i,
              i < is->n ? is->file[i].name : "missing", i < should->n ? should->file[i].name : "missing",
              (long long)is->n, (long long)should->n);
      return false;
    }
  for (int64_t i = 0; i < is->n; i++) {
    if (!naive_same_set(&is->file[i].set, &should->file[i].set, why)) {
      cli_add(why, " in file %s", is->file[i].name);
      return false;
    }
    if (!same_json(is->file[i].metadata, should->file[i].metadata, is->file[i].name, why))
      return false;
  }
  return same_json(is->index, should->index, index_name, why);
}

#endif
