#include "bench/cli/shipped.h"
#include "bench/cli/util.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const shipped_kind shipped_rules = {"rules", ".rules", "rule file", "@"};
const shipped_kind shipped_maps = {"maps", ".map", "map", ""};

/* The directory of a kind: beside a build, or installed. NULL: there is none. */
static char *find_folder(const shipped_kind *kind) {
  char self[4096];
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  if (n <= 0)
    return NULL;
  self[n] = '\0';
  char *slash = strrchr(self, '/');
  static const char *const beside[] = {"models", "../share/reshard"};
  for (int i = 0; slash != NULL && i < 2; i++) {
    rs_text there = {0};
    cli_add(&there, "%.*s/%s/%s", (int)(slash - self), self, beside[i], kind->folder);
    if (access(there.at, R_OK) == 0)
      return there.at;
    free(there.at);
  }
  return NULL;
}

static int compare_names(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* "@ep-128 @flat ...", in order; "" where there are none. */
static void list_names(const shipped_kind *kind, rs_text *out) {
  char *folder = find_folder(kind), **names = NULL;
  DIR *dir = folder != NULL ? opendir(folder) : NULL;
  int64_t n = 0;
  cli_add(out, "%s", "");
  for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;)
    if (rs_ends(entry->d_name, kind->suffix)) {
      names = cli_realloc(names, n + 1, sizeof *names);
      names[n] = cli_strdup(entry->d_name);
      names[n][strlen(names[n]) - strlen(kind->suffix)] = '\0';
      n++;
    }
  if (dir != NULL)
    closedir(dir);
  free(folder);
  if (n > 0)
    qsort(names, (size_t)n, sizeof *names, compare_names);
  for (int64_t i = 0; i < n; i++) {
    cli_add(out, "%s%s%s", i > 0 ? " " : "", kind->mark, names[i]);
    free(names[i]);
  }
  free(names);
}

/* The path of the program's file of this name; NULL: there is none. */
static char *find_named(const shipped_kind *kind, const char *name) {
  char *folder = strchr(name, '/') == NULL && name[0] != '\0' ? find_folder(kind) : NULL, *found = NULL;
  for (int i = 0; folder != NULL && found == NULL && i < 2; i++) {
    rs_text there = {0};
    cli_add(&there, "%s/%s%s", folder, name, i == 0 ? "" : kind->suffix);
    if (rs_ends(there.at, kind->suffix) && access(there.at, R_OK) == 0)
      found = there.at;
    else
      free(there.at);
  }
  free(folder);
  return found;
}

bool shipped_is(const shipped_kind *kind, const char *path) {
  char *folder = find_folder(kind), *from = folder != NULL ? realpath(folder, NULL) : NULL, *to = realpath(path, NULL);
  size_t n = from != NULL ? strlen(from) : 0;
  bool is = n > 0 && to != NULL && strncmp(to, from, n) == 0 && to[n] == '/';
  free(folder);
  free(from);
  free(to);
  return is;
}

bool shipped_has(const shipped_kind *kind, const char *name) {
  char *found = find_named(kind, name);
  free(found);
  return found != NULL;
}

char *shipped_find(const shipped_kind *kind, const char *option, const char *name) {
  if (access(name, F_OK) == 0)
    return cli_strdup(name);
  char *found = find_named(kind, name);
  if (found != NULL)
    return found;
  static rs_text list; /* the program ends with it */
  if (strchr(name, '/') == NULL)
    list_names(kind, &list);
  cli_exit(EXIT_USAGE, "%s: %s '%s': No such file or directory%s%s", option, kind->what, name,
           list.length > 0 ? "; those that come with the program: " : "", list.length > 0 ? list.at : "");
}
