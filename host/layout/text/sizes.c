/* Layout strings before they are parsed for shapes: sizes and boxes that are put into them.
 *
 * Mesh dims may be named without a size: mesh(fsdp;S0), mesh(fsdp,tp=8;S0,S1). One such dim gets what the ranks leave,
 * so that the same string serves any number of ranks. Where there are several, sizes are put into the text first.
 *
 * Boxes of a pipe, as of boxes(@<(...)) in a shell, can be read once, and a string is parsed for each shape. */
#include "layout/text/spec.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int shown_length(rs_spec_name name) { return (int)rs_min((int64_t)name.length, 64); }

reshard_status rs_spec_sizes(const rs_scan *scan, rs_spec *spec, int64_t world) {
  int64_t size = 1, ranks = spec->ranks.n > 0 ? spec->rank_count : world, open = -1;
  for (int64_t i = 0; i < spec->extents.n; i++) {
    if (spec->extents.at[i] > 0) {
      size *= spec->extents.at[i]; /* no overflow: counted when it was read */
      continue;
    }
    if (open >= 0)
      return rs_scan_error(scan, spec->names.at[i].at, RESHARD_ERROR_INVALID,
                           "mesh dims %.*s and %.*s have no size, at most one may be left out",
                           shown_length(spec->names.at[open]), spec->names.at[open].at, shown_length(spec->names.at[i]),
                           spec->names.at[i].at);
    open = i;
  }
  if (open < 0)
    return RESHARD_SUCCESS;
  if (ranks % size != 0)
    return rs_scan_error(scan, spec->names.at[open].at, RESHARD_ERROR_INVALID,
                         "mesh dim %.*s has no size, and %lld ranks are no multiple of the other dims' %lld",
                         shown_length(spec->names.at[open]), spec->names.at[open].at, (long long)ranks,
                         (long long)size);
  spec->extents.at[open] = ranks / size;
  return RESHARD_SUCCESS;
}

static reshard_status insert_size(const char *text, size_t at, int64_t size, char **out) {
  size_t room = strlen(text) + 24;
  char *made;
  RS_TRY(rs_alloc(&made, (int64_t)room, 1));
  rs_text written = {.at = made, .size = room};
  rs_text_add(&written, "%.*s=%lld%s", (int)at, text, (long long)size, text + at);
  *out = made;
  return RESHARD_SUCCESS;
}

reshard_status rs_layout_text_size(const char *text, const char *name, int64_t size, char **out) {
  rs_scan scan = {.begin = text, .end = text + strlen(text), .at = text};
  rs_spec spec = {.ndim = -1};
  const char *word;
  rs_scan word_scan = scan;
  *out = NULL;
  if (rs_scan_word(&word_scan, &word) != 4 || memcmp(word, "mesh", 4) != 0)
    return RESHARD_SUCCESS; /* no other kind has dims with names */
  reshard_status status = rs_spec_parse(&scan, &spec);
  for (int64_t i = 0; i < spec.names.n && status == RESHARD_SUCCESS; i++) {
    const rs_spec_name *n = &spec.names.at[i];
    if (spec.extents.at[i] == 0 && n->length == strlen(name) && memcmp(n->at, name, n->length) == 0) {
      status = insert_size(text, (size_t)(n->at - text) + n->length, size, out);
      break;
    }
  }
  rs_spec_free(&spec);
  return status;
}

/* True where a string names a box file that is no regular one. */
static bool names_pipe(const char *text, size_t at, char *path) {
  struct stat info;
  const char *end = strrchr(text, ')');
  if (strncmp(text, "boxes", 5) != 0 || text[at] == '\0' || end == NULL || end < text + at)
    return false;
  memcpy(path, text + at + 1, (size_t)(end - text) - at - 1);
  return stat(path, &info) == 0 && !S_ISREG(info.st_mode);
}

static void print_spec(const rs_spec *spec, rs_text *out) {
  int ndim = (int)rs_max(spec->box_ndim, 0);
  rs_text_string(out, spec->replicated ? "boxes(replicated;" : "boxes(");
  for (int64_t i = 0; i < spec->boxes.n; i++) {
    rs_text_string(out, i > 0 ? ";" : "");
    rs_text_number(out, spec->box_ranks.at[i]);
    rs_text_string(out, ":");
    rs_text_list(out, ndim, spec->boxes.at[i].offset);
    rs_text_string(out, "+");
    rs_text_list(out, ndim, spec->boxes.at[i].extent);
  }
  rs_text_string(out, ")");
}

reshard_status rs_layout_text_piped(const char *text, char **out) {
  char *path;
  rs_text made = {.grows = true};
  rs_scan scan = {.begin = text, .end = text + strlen(text), .at = text};
  rs_spec spec = {.ndim = -1};
  *out = NULL;
  RS_TRY(rs_alloc_zero(&path, (int64_t)strlen(text) + 1, 1));
  bool pipe = names_pipe(text, strcspn(text, "@"), path);
  free(path);
  if (!pipe)
    return RESHARD_SUCCESS;
  reshard_status status = rs_spec_parse(&scan, &spec);
  if (status == RESHARD_SUCCESS) {
    print_spec(&spec, &made);
    status = made.status;
  }
  rs_spec_free(&spec);
  RS_TRY_OR(status, free(made.at));
  *out = made.at;
  return RESHARD_SUCCESS;
}
