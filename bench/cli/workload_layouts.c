/* Layouts of --src and --dst: layout strings, rules by name, and the sizes of --mesh that go into both. */
#include "bench/cli/shipped.h"
#include "bench/cli/workload.h"

#include "layout/text/spec.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
    cli_try_option(option, reshard_rules_set_size(l->rules, dim->name, dim->size, &changed));
    dim->used += changed;
    return;
  }
  char *made;
  cli_try_option(option, rs_layout_text_size(l->text, dim->name, dim->size, &made));
  if (made == NULL)
    return;
  free(l->text);
  l->text = made;
  dim->used++;
}

/* Rules of a file are asked for by "@": ends the program where a layout string is the name of some. */
static void refuse_rules_without_mark(const char *option, const char *text) {
  bool shipped = shipped_has(&shipped_rules, text);
  if (strchr(text, '(') == NULL && (shipped || access(text, F_OK) == 0))
    cli_exit(EXIT_USAGE, "%s: '%s' is a file of rules%s: did you mean %s @%s?", option, text,
             shipped ? " of the program" : "", option, text);
}

void workload_read_layouts(const char *option, const char *text, workload_mesh *mesh, workload_layouts *out) {
  *out = (workload_layouts){0};
  if (text[0] == '@') {
    char *path = shipped_find(&shipped_rules, option, text + 1);
    cli_try_option(option, reshard_rules_load(path, &out->rules));
    out->shipped = shipped_is(&shipped_rules, path);
    free(path);
  } else {
    refuse_rules_without_mark(option, text);
    cli_try_option(option, rs_layout_text_piped(text, &out->text));
    out->text = out->text != NULL ? out->text : cli_strdup(text);
  }
  for (int i = 0; i < mesh->n; i++)
    set_size(option, &mesh->dim[i], out);
  cli_try_option(option, out->rules != NULL ? reshard_rules_world(out->rules, &out->world)
                                            : reshard_layout_parse_world(out->text, &out->world));
}

void workload_free_layouts(workload_layouts *l) {
  free(l->text);
  reshard_rules_free(l->rules);
  *l = (workload_layouts){0};
}
