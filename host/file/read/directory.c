/* A directory: of safetensors files, with an index or without; of .distcp files, which distcp.c opens; or of files of
 * torch.save with an index. */
#include "file/read/directory.h"

#include "base/text.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

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
  const char *set; /* only files of the set of this one; NULL: all */
  names files;
  names indexes, torch_indexes; /* of safetensors files, of files of torch.save */
  names variants;               /* the first other index, such as model.safetensors.index.fp16.json */
  names distcp;                 /* the first .distcp file, or metadata of one rank */
  bool metadata;                /* .metadata is there */
} listing;

static reshard_status list_name(const char *name, listing *l) {
  bool part = rs_ends(name, ".distcp") || (name[0] != '.' && rs_ends(name, ".metadata"));
  names *to = rs_ends(name, ".safetensors.index.json")                                          ? &l->indexes
              : rs_ends(name, ".bin.index.json")                                                ? &l->torch_indexes
              : rs_ends(name, ".safetensors")                                                   ? &l->files
              : rs_ends(name, ".json") && strstr(name, ".index.") != NULL && l->variants.n == 0 ? &l->variants
                                                                                                : NULL;
  l->metadata |= strcmp(name, ".metadata") == 0;
  if (part && l->distcp.n == 0)
    to = &l->distcp;
  if (l->set != NULL)
    to = rs_set_has(l->set, name) ? &l->files : NULL;
  if (to == NULL || name[0] == '.')
    return RESHARD_SUCCESS;
  RS_TRY(rs_vec_reserve(to, to->n + 1));
  RS_TRY(rs_alloc_copy(&to->at[to->n], name, (int64_t)strlen(name) + 1, 1));
  to->n++;
  return RESHARD_SUCCESS;
}

static void free_listing(listing *l) {
  free_names(&l->files);
  free_names(&l->indexes);
  free_names(&l->torch_indexes);
  free_names(&l->variants);
  free_names(&l->distcp);
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

static void close_files(rs_opening *opening) {
  rs_store *s = &opening->checkpoint->store;
  for (int64_t f = 0; f < s->files.n; f++) {
    rs_safetensors_free(&opening->headers[f]);
    rs_file_close(&s->files.at[f]);
  }
  s->files.n = 0;
  free(opening->headers);
  opening->headers = NULL;
  opening->below = 0;
}

reshard_status rs_open_set(rs_opening *opening, const char *directory, const char *path, bool *set) {
  listing l = {.set = path};
  *set = false;
  reshard_status status = list_directory(opening, directory, &l);
  if (status == RESHARD_SUCCESS && l.files.n > 1) {
    status = open_files(opening, directory, &l.files);
    RS_THEN(status, rs_open_read(opening));
    *set = status == RESHARD_SUCCESS;
    for (int64_t f = 0; f < l.files.n && *set && opening->kind == RS_OPENING_HEADERS; f++)
      *set = opening->headers[f].sharding == NULL;
    if (*set)
      status = rs_note_set(opening, path);
    else if (status == RESHARD_SUCCESS)
      close_files(opening);
  }
  free_listing(&l);
  return status;
}

/* The index that counts: the only one, or the one of the usual name. */
static reshard_status open_index(rs_opening *opening, const char *path, const names *indexes, const char *usual) {
  rs_path_text whole = {0};
  const char *name = indexes->at[0];
  for (int64_t i = 1; i < indexes->n; i++)
    if (strcmp(indexes->at[i], usual) == 0)
      name = indexes->at[i];
  if (indexes->n > 1 && strcmp(name, usual) != 0) {
    char first[RS_QUOTE], second[RS_QUOTE];
    return rs_error(RESHARD_ERROR_INVALID, "%s: two indexes, '%s' and '%s', and neither is %s: name one of them",
                    opening->where, rs_quote(first, sizeof first, indexes->at[0]),
                    rs_quote(second, sizeof second, indexes->at[1]), usual);
  }
  RS_TRY(rs_path_join(path, name, &whole));
  reshard_status status = rs_open_index(opening, path, whole.at);
  free(whole.at);
  return status;
}

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

static reshard_status open_listed(rs_opening *opening, const char *path, const listing *l) {
  char other[RS_QUOTE];
  if (l->metadata || l->distcp.n > 0) {
    RS_TRY(check_distcp(opening, l));
    opening->kind = RS_OPENING_PLACED;
    return rs_open_distcp(opening, path);
  }
  if (l->indexes.n > 0) {
    RS_TRY(open_index(opening, path, &l->indexes, "model.safetensors.index.json"));
    if (opening->checkpoint->store.files.n > 0 || l->files.n == 0)
      return RESHARD_SUCCESS;
    free(opening->headers); /* it is of no tensors and names no files: they have metadata alone */
    opening->headers = NULL;
    RS_TRY(open_files(opening, path, &l->files));
    return rs_open_headers(opening);
  }
  if (l->files.n == 0 && l->torch_indexes.n > 0)
    return open_index(opening, path, &l->torch_indexes, "pytorch_model.bin.index.json");
  const char *variant = l->variants.n > 0 ? l->variants.at[0] : NULL;
  if (l->files.n == 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: a directory without .safetensors or .distcp files%s%s%s",
                    opening->where, variant != NULL ? "; name the index '" : "",
                    variant != NULL ? rs_quote(other, sizeof other, variant) : "", variant != NULL ? "' itself" : "");
  RS_TRY(open_files(opening, path, &l->files));
  RS_TRY(rs_open_headers(opening));
  return opening->headers[0].sharding == NULL ? rs_note_sets(opening, path, variant) : RESHARD_SUCCESS;
}

reshard_status rs_open_directory(rs_opening *opening, const char *path) {
  listing l = {.metadata = false};
  reshard_status status = list_directory(opening, path, &l);
  RS_THEN(status, open_listed(opening, path, &l));
  free_listing(&l);
  return status;
}
