/* Names of files of ranks: a shell pattern with "{R}" in the place of the rank. */
#include "file/read/rank_files.h"

#include "base/text.h"
#include "file/ground/file.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PLACE       "{R}"
#define WORLD_LIMIT ((int64_t)1 << 20) /* as the world of shards */

static const char *const usual[] = {"model-rank-" PLACE "-part-*.safetensors", "consolidated." PLACE ".pth"};

/* The two patterns around the rank. */
typedef struct rank_pattern {
  char before[256], behind[256];
} rank_pattern;

static reshard_status split_pattern(const char *pattern, rank_pattern *p) {
  char quoted[RS_QUOTE];
  const char *place = strstr(pattern, PLACE), *problem = NULL;
  int64_t at;
  if (place == NULL || strstr(place + 1, PLACE) != NULL || strchr(pattern, '/') != NULL ||
      strlen(pattern) >= sizeof p->before)
    problem = "it has no '" PLACE "' or two, a '/', or more than 255 bytes";
  if (problem == NULL) {
    *p = (rank_pattern){.before = ""};
    memcpy(p->before, pattern, (size_t)(place - pattern));
    strcpy(p->behind, place + sizeof PLACE - 1);
    problem = rs_pattern_problem(p->before, &at);
    problem = problem != NULL ? problem : rs_pattern_problem(p->behind, &at);
  }
  return problem == NULL ? RESHARD_SUCCESS
                         : rs_error(RESHARD_ERROR_INVALID, "pattern of rank files '%s': %s",
                                    rs_quote(quoted, sizeof quoted, pattern), problem);
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* *rank: the number in the pattern's place. */
static bool match_name(const rank_pattern *p, const char *name, int64_t *rank) {
  char before[256];
  if (strlen(name) >= sizeof before)
    return false;
  for (size_t i = 0; name[i] != '\0'; i++) {
    if (!is_digit(name[i]) || (i > 0 && is_digit(name[i - 1])))
      continue;
    size_t end = i;
    int64_t number = 0;
    for (; is_digit(name[end]); end++)
      number = rs_min(10 * number + (name[end] - '0'), WORLD_LIMIT);
    memcpy(before, name, i);
    before[i] = '\0';
    if (rs_pattern_matches(p->before, before) && rs_pattern_matches(p->behind, name + end)) {
      *rank = number;
      return true;
    }
  }
  return false;
}

static int by_rank_and_name(const void *a, const void *b) {
  const rs_rank_file *x = a, *y = b;
  return x->rank != y->rank ? (x->rank < y->rank ? -1 : 1) : strcmp(x->name, y->name);
}

void rs_rank_names_free(rs_rank_names *names) {
  for (int64_t i = 0; i < names->n; i++)
    free(names->at[i].name);
  free(names->at);
  *names = (rs_rank_names){0};
}

static reshard_status list_pattern(const char *path, const char *pattern, rs_rank_names *names) {
  rank_pattern p;
  char where[RS_WHERE];
  RS_TRY(split_pattern(pattern, &p));
  DIR *directory = opendir(path);
  if (directory == NULL)
    return errno == ENOMEM ? rs_error_memory(sizeof(DIR *)) : rs_file_error(rs_where(where, "directory", path), errno);
  reshard_status status = RESHARD_SUCCESS;
  for (struct dirent *entry; status == RESHARD_SUCCESS && (entry = readdir(directory)) != NULL;) {
    rs_rank_file file = {.name = NULL};
    if (!match_name(&p, entry->d_name, &file.rank))
      continue;
    status = rs_vec_reserve(names, names->n + 1);
    RS_THEN(status, rs_alloc_copy(&file.name, entry->d_name, (int64_t)strlen(entry->d_name) + 1, 1));
    if (status == RESHARD_SUCCESS)
      names->at[names->n++] = file;
  }
  closedir(directory);
  if (names->n > 0)
    qsort(names->at, (size_t)names->n, sizeof *names->at, by_rank_and_name);
  return status;
}

reshard_status rs_rank_names_list(const char *path, const char *pattern, rs_rank_names *names) {
  if (pattern != NULL)
    return list_pattern(path, pattern, names);
  for (size_t i = 0; i < sizeof usual / sizeof *usual && names->n == 0; i++)
    RS_TRY(list_pattern(path, usual[i], names));
  return RESHARD_SUCCESS;
}

reshard_status rs_rank_names_error(const char *where, const char *pattern) {
  char quoted[RS_QUOTE];
  bool said = pattern != NULL;
  return rs_error(RESHARD_ERROR_INVALID, "%s: no file of a rank: its pattern is '%s'%s%s%s", where,
                  rs_quote(quoted, sizeof quoted, said ? pattern : usual[0]), said ? "" : " or '", said ? "" : usual[1],
                  said ? "" : "'");
}

reshard_status rs_rank_files_found(const char *path, bool *found) {
  rs_rank_names names = {0};
  struct stat info;
  *found = false;
  if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) /* what it is instead is told when it is opened */
    return RESHARD_SUCCESS;
  reshard_status status = rs_rank_names_list(path, NULL, &names);
  *found = names.n > 0;
  rs_rank_names_free(&names);
  return status;
}
