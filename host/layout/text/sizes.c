/* Mesh dims that a layout string names without a size: mesh(fsdp;S0), mesh(fsdp,tp=8;S0,S1). One such dim gets what the
 * ranks leave, so that the same string serves any number of ranks. Where there are several, sizes are put into the text
 * first. */
#include "layout/text/spec.h"

#include <string.h>

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
