/* Files of a directory without an index, as sets: those whose names differ by "-I-of-N" alone are one. Several sets are
 * often several models, or one model twice, so that whoever opens the directory is told of them. The name of a file
 * stands for its set. */
#include "file/read/directory.h"

#include "base/text.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS "0123456789"

#define SET_NAME (NAME_MAX + 8)
/* The name of a file with "-*-of-*" for its "-I-of-N": files that differ by this alone are one set. */
static const char *name_set(const char *file, char set[SET_NAME]) {
  rs_text text = {.at = set, .size = SET_NAME};
  for (const char *at = strchr(file, '-'); at != NULL; at = strchr(at + 1, '-')) {
    size_t part = strspn(at + 1, DIGITS), of = 0;
    if (part > 0 && strncmp(at + 1 + part, "-of-", 4) == 0)
      of = strspn(at + 5 + part, DIGITS);
    if (of == 0)
      continue;
    rs_text_add(&text, "%.*s-*-of-*%s", (int)(at - file), file, at + 5 + part + of);
    return set;
  }
  rs_text_add(&text, "%s", file);
  return set;
}

static const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash != NULL ? slash + 1 : path;
}

bool rs_set_has(const char *set, const char *file) {
  char first[SET_NAME], second[SET_NAME];
  set = base_name(set);
  file = base_name(file);
  if (strlen(set) > NAME_MAX || strlen(file) > NAME_MAX || strcmp(name_set(set, first), set) == 0)
    return false;
  bool model = rs_ends(set, ".safetensors") || rs_ends(set, ".bin") || rs_ends(set, ".pt") || rs_ends(set, ".pth");
  return model && strcmp(first, name_set(file, second)) == 0;
}

reshard_status rs_note_set(rs_opening *opening, const char *path) {
  char set[SET_NAME], quoted[RS_QUOTE];
  return rs_checkpoint_note(opening->checkpoint, "%s is one of %lld files of the set '%s', which is taken",
                            opening->where, (long long)opening->checkpoint->store.files.n,
                            rs_quote(quoted, sizeof quoted, name_set(base_name(path), set)));
}

typedef struct file_set {
  char name[SET_NAME];
  int64_t files, tensors, bytes;
} file_set;

/* Sets that have tensors, in the order of their first files. */
typedef RS_VEC(file_set) file_sets;

static reshard_status find_sets(const rs_opening *opening, file_sets *sets) {
  rs_names names = {0};
  int64_t n = opening->checkpoint->store.files.n, number;
  reshard_status status = rs_vec_reserve(sets, n);
  for (int64_t f = 0; f < n && status == RESHARD_SUCCESS; f++) {
    const struct reshard_model_s *model = opening->headers[f].model;
    file_set *set = &sets->at[sets->n];
    *set = (file_set){.files = 0};
    name_set(rs_opening_name(opening, f), set->name);
    if (model->tensors.n == 0)
      continue;
    status = rs_names_put(&names, set->name, strlen(set->name), &number);
    if (status != RESHARD_SUCCESS)
      break;
    sets->n = names.all.n;
    sets->at[number].files++;
    sets->at[number].tensors += model->tensors.n;
    sets->at[number].bytes += model->bytes;
  }
  rs_names_free(&names);
  return status;
}

/* "to take one, name a file of it, 'in/FILE', or an index, 'in/model.safetensors.index.fp16.json'". */
static void tell_how(rs_opening *opening, const char *path, const char *other) {
  char directory[RS_QUOTE], variant[RS_QUOTE];
  rs_text how = {.at = opening->sets, .size = sizeof opening->sets};
  rs_quote(directory, sizeof directory, path);
  rs_text_add(&how, "to take one, name a file of it, '%s/FILE'", directory);
  if (other != NULL)
    rs_text_add(&how, ", or an index, '%s/%s'", directory, rs_quote(variant, sizeof variant, other));
}

enum { SETS_TOLD = 8 };

reshard_status rs_note_sets(rs_opening *opening, const char *path, const char *other) {
  file_sets sets = {0};
  char quoted[RS_QUOTE];
  reshard_checkpoint c = opening->checkpoint;
  reshard_status status = find_sets(opening, &sets);
  if (status == RESHARD_SUCCESS && sets.n > 1) {
    tell_how(opening, path, other);
    status = rs_checkpoint_note(c, "%s has no index, and files of %lld sets, which are taken together; %s",
                                opening->where, (long long)sets.n, opening->sets);
  }
  for (int64_t i = 0; i < sets.n && i < SETS_TOLD && sets.n > 1 && status == RESHARD_SUCCESS; i++)
    status = rs_checkpoint_note(c, "set '%s': %lld file%s, %lld tensor%s, %lld bytes",
                                rs_quote(quoted, sizeof quoted, sets.at[i].name), (long long)sets.at[i].files,
                                sets.at[i].files == 1 ? "" : "s", (long long)sets.at[i].tensors,
                                sets.at[i].tensors == 1 ? "" : "s", (long long)sets.at[i].bytes);
  if (sets.n > SETS_TOLD && status == RESHARD_SUCCESS)
    status = rs_checkpoint_note(c, "and %lld sets more", (long long)(sets.n - SETS_TOLD));
  free(sets.at);
  return status;
}
