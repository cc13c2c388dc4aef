/* Layouts of --src and --dst: layout strings, rules by name, and the sizes of --mesh that go into both. */
#include "bench/cli/workload.h"

#include "layout/text/spec.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check_input(const char *option, reshard_status status) {
  if (status != RESHARD_SUCCESS)
    cli_fail(status, "%s: %s", option, reshard_last_error());
}

/* The directory of the rules that come with the program: beside a build, or installed. NULL: there is none. */
static char *find_shipped_rules(void) {
  char self[4096];
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  if (n <= 0)
    return NULL;
  self[n] = '\0';
  char *slash = strrchr(self, '/');
  static const char *const beside[] = {"models/rules", "../share/reshard/rules"};
  for (int i = 0; slash != NULL && i < 2; i++) {
    rs_text there = {0};
    cli_add(&there, "%.*s/%s", (int)(slash - self), self, beside[i]);
    if (access(there.at, R_OK) == 0)
      return there.at;
    free(there.at);
  }
  return NULL;
}

static int compare_names(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* "@ep-128 @flat ...", in order; "" where there are none. */
static void list_shipped(const char *directory, rs_text *out) {
  DIR *dir = directory != NULL ? opendir(directory) : NULL;
  char **names = NULL;
  int64_t n = 0;
  cli_add(out, "%s", "");
  for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;)
    if (rs_ends(entry->d_name, ".rules")) {
      names = cli_realloc(names, n + 1, sizeof *names);
      names[n] = cli_strdup(entry->d_name);
      names[n][strlen(names[n]) - strlen(".rules")] = '\0';
      n++;
    }
  if (dir != NULL)
    closedir(dir);
  if (n > 0)
    qsort(names, (size_t)n, sizeof *names, compare_names);
  for (int64_t i = 0; i < n; i++) {
    cli_add(out, "%s@%s", i > 0 ? " " : "", names[i]);
    free(names[i]);
  }
  free(names);
}

/* Finds a rule file: as given, else (a bare name) among the rules that come with the program. */
static char *find_rules(const char *option, const char *path) {
  if (access(path, F_OK) == 0 || strchr(path, '/') != NULL)
    return cli_strdup(path);
  char *directory = find_shipped_rules();
  for (int i = 0; directory != NULL && i < 2; i++) {
    rs_text there = {0};
    cli_add(&there, "%s/%s%s", directory, path, i == 0 ? "" : ".rules");
    if (access(there.at, R_OK) == 0) {
      free(directory);
      return there.at;
    }
    free(there.at);
  }
  static rs_text list; /* the program ends with it */
  list_shipped(directory, &list);
  free(directory);
  cli_exit(EXIT_USAGE, "%s: rule file '%s': No such file or directory%s%s", option, path,
           list.length > 0 ? "; rules that come with the program: " : "", list.at);
}

void workload_read_mesh(const char *text, workload_mesh *out) {
  *out = (workload_mesh){0};
  for (const char *at = text; at != NULL;) {
    size_t length = 0;
    while (isalnum((unsigned char)at[length]) || at[length] == '_')
      length++;
    char *end = (char *)at + length;
    errno = 0;
    long long size = *end == '=' && isdigit((unsigned char)end[1]) ? strtoll(end + 1, &end, 10) : 0;
    if (length == 0 || length >= sizeof out->dim->name || isdigit((unsigned char)*at) || size < 1 || errno != 0 ||
        (*end != '\0' && *end != ','))
      cli_exit(EXIT_USAGE, "--mesh %s: column %lld: a mesh dim with its size is needed here, such as tp=8", text,
               (long long)(at - text) + 1);
    if (out->n == RESHARD_MAX_DIMS)
      cli_exit(EXIT_USAGE, "--mesh %s: more than %d mesh dims", text, RESHARD_MAX_DIMS);
    struct workload_mesh_dim *dim = &out->dim[out->n++];
    snprintf(dim->name, sizeof dim->name, "%.*s", (int)length, at);
    dim->size = size;
    at = *end == ',' ? end + 1 : NULL;
  }
}

void workload_check_mesh(const workload_mesh *mesh) {
  for (int i = 0; i < mesh->n; i++)
    if (mesh->dim[i].used == 0)
      cli_exit(EXIT_USAGE, "--mesh %s=%lld: no layout has a mesh dim '%s' without a size", mesh->dim[i].name,
               (long long)mesh->dim[i].size, mesh->dim[i].name);
}

static void set_size(const char *option, struct workload_mesh_dim *dim, workload_layouts *l) {
  int64_t changed = 0;
  if (l->rules != NULL) {
    check_input(option, reshard_rules_set_size(l->rules, dim->name, dim->size, &changed));
    dim->used += changed;
    return;
  }
  char *made;
  check_input(option, rs_layout_text_size(l->text, dim->name, dim->size, &made));
  if (made == NULL)
    return;
  free(l->text);
  l->text = made;
  dim->used++;
}

void workload_read_layouts(const char *option, const char *text, workload_mesh *mesh, workload_layouts *out) {
  *out = (workload_layouts){0};
  if (text[0] == '@') {
    char *path = find_rules(option, text + 1);
    check_input(option, reshard_rules_load(path, &out->rules));
    free(path);
  } else
    out->text = cli_strdup(text);
  for (int i = 0; i < mesh->n; i++)
    set_size(option, &mesh->dim[i], out);
  check_input(option, out->rules != NULL ? reshard_rules_world(out->rules, &out->world)
                                         : reshard_layout_parse_world(out->text, &out->world));
}

void workload_free_layouts(workload_layouts *l) {
  free(l->text);
  reshard_rules_free(l->rules);
  *l = (workload_layouts){0};
}
