/* A map applied to a model, line by line.
 *
 * A line with stars is applied once for each match, in the order of the source: a match is a tensor that fits one of
 * the right side's names and that no line has taken. It says what the stars are; the other names of the line follow and
 * must be there. Since that takes them, each further tensor of the same match is passed over when its turn comes. */

#include "base/text.h"
#include "file/map/line.h"

#include <stdlib.h>
#include <string.h>

static const rs_map_node *node_at(const rs_map_work *w, int64_t i) { return &w->source.map->nodes.at[i]; }

/* Tensors that fit the names of an expression. */
static reshard_status find_matches(rs_map_work *w, int64_t at) {
  if (node_at(w, at)->kind == RS_MAP_NAME)
    return rs_map_find_all(&w->source, at, &w->matches);
  for (int64_t i = node_at(w, at)->parts; i >= 0; i = node_at(w, i)->next)
    RS_TRY(find_matches(w, i));
  return RESHARD_SUCCESS;
}

static int64_t first_name(const rs_map_work *w, int64_t at) {
  while (node_at(w, at)->kind != RS_MAP_NAME)
    for (at = node_at(w, at)->parts; node_at(w, at)->kind >= RS_MAP_ZEROS;)
      at = node_at(w, at)->next;
  return at;
}

/* The dtype to which an expression casts; NONE: it has no cast. */
static reshard_dtype find_cast(const rs_map_work *w, int64_t at) {
  reshard_dtype found = node_at(w, at)->kind == RS_MAP_CAST ? node_at(w, at)->dtype : RESHARD_DTYPE_NONE;
  if (node_at(w, at)->kind != RS_MAP_NAME)
    for (int64_t i = node_at(w, at)->parts; i >= 0 && found == RESHARD_DTYPE_NONE; i = node_at(w, i)->next)
      found = find_cast(w, i);
  return found;
}

static reshard_status apply_line(rs_map_work *w, const rs_map_line *line) {
  char file[RS_WHERE / 2];
  rs_text where = {.at = w->where, .size = sizeof w->where};
  rs_text_add(&where, "%s:%lld", rs_quote(file, sizeof file, w->source.map->name), (long long)line->line);
  w->source.line = line;
  w->source.match = NULL;
  if (line->stars == 0)
    return rs_map_apply_match(w);
  w->matches.n = 0;
  RS_TRY(find_matches(w, line->source));
  if (w->matches.n == 0) {
    char pattern[RS_QUOTE];
    int64_t at = first_name(w, line->source);
    return rs_map_error(w->source.map, node_at(w, at)->line, node_at(w, at)->column,
                        "no tensor that the lines before have left matches '%s'",
                        rs_map_quote(pattern, sizeof pattern, w->source.map, node_at(w, at)));
  }
  RS_TRY(rs_vec_reserve(&w->spare, w->matches.n));
  const rs_pair *match =
      rs_sort_pairs(w->matches.at, w->spare.at, w->matches.n, false, 0, rs_bits((uint64_t)w->source.model->tensors.n));
  reshard_dtype to = find_cast(w, line->source);
  for (int64_t i = 0; i < w->matches.n; i++) /* scales before their values are no match of their own */
    if (rs_map_multiplies(w->source.model->tensors.at[match[i].key].dtype, to))
      (void)rs_map_take_scales(&w->source, (int64_t)match[i].key);
  for (int64_t i = 0; i < w->matches.n; i++) {
    if (w->source.taken[match[i].key] != 0)
      continue;
    RS_TRY(rs_map_match(&w->source, (int64_t)match[i].key, (int64_t)match[i].value));
    RS_TRY(rs_map_apply_match(w));
  }
  return RESHARD_SUCCESS;
}

/* Tensors of the source that no line has taken. */
static reshard_status check_left(const rs_map_work *w) {
  int64_t left = 0, first = -1;
  char quoted[RS_QUOTE], file[RS_WHERE / 2];
  for (int64_t i = w->source.model->tensors.n - 1; i >= 0; i--) {
    if (w->source.taken[i] == 0) {
      left++;
      first = i;
    }
  }
  if (left == 0)
    return RESHARD_SUCCESS;
  char more[48] = "";
  rs_text text = {.at = more, .size = sizeof more};
  if (left > 1)
    rs_text_add(&text, " and %lld more", (long long)(left - 1));
  return rs_error(RESHARD_ERROR_INVALID, "%s: no line takes '%s'%s; add one, such as '* = *' or 'drop(NAME)'",
                  rs_quote(file, sizeof file, w->source.map->name),
                  rs_quote(quoted, sizeof quoted, rs_model_name(w->source.model, first)), more);
}

static reshard_status check_twice(const rs_map_work *w) {
  rs_sorted_name *names;
  RS_TRY(rs_map_sort(w->target, &names));
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 1; i < w->lines.n && status == RESHARD_SUCCESS; i++) {
    char quoted[RS_QUOTE];
    if (strcmp(names[i - 1].name, names[i].name) == 0)
      status =
          rs_map_error(w->source.map, w->lines.at[names[i].tensor], 0, "'%s' is made twice, line %lld makes it too",
                       rs_quote(quoted, sizeof quoted, names[i].name), (long long)w->lines.at[names[i - 1].tensor]);
  }
  free(names);
  return status;
}

static reshard_status apply_map(rs_map_work *w) {
  RS_TRY(rs_map_sort(w->source.model, &w->source.names));
  RS_TRY(rs_alloc_zero(&w->source.taken, w->source.model->tensors.n, sizeof *w->source.taken));
  RS_TRY(rs_model_new(&w->target));
  for (int64_t i = 0; i < w->source.map->lines.n; i++)
    RS_TRY(apply_line(w, &w->source.map->lines.at[i]));
  RS_TRY(check_left(w));
  return check_twice(w);
}

static reshard_status apply_none(rs_map_work *w) {
  const struct reshard_model_s *source = w->source.model;
  int64_t n = source->tensors.n;
  RS_TRY(rs_model_new(&w->target));
  RS_TRY(rs_vec_reserve(&w->target->tensors, n));
  RS_TRY(rs_vec_reserve(&w->target->names, source->names.n));
  RS_TRY(rs_vec_reserve(&w->regions, n));
  if (n > 0) {
    memcpy(w->target->tensors.at, source->tensors.at, (size_t)n * sizeof *source->tensors.at);
    memcpy(w->target->names.at, source->names.at, (size_t)source->names.n);
  }
  w->target->tensors.n = n;
  w->target->names.n = source->names.n;
  w->target->bytes = source->bytes;
  for (int64_t i = 0; i < n; i++) {
    RS_TRY(rs_model_check_dtype(source, i));
    rs_region_whole(&source->tensors.at[i], i, i, &w->regions.at[w->regions.n++]);
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_map_apply(reshard_map map, reshard_model source, reshard_model *target, rs_copy_regions *regions) {
  rs_map_work w = {.source = {.map = map, .model = source}};
  reshard_status status = map != NULL ? apply_map(&w) : apply_none(&w);
  free(w.source.names);
  free(w.source.taken);
  free(w.source.star.at);
  free(w.source.text.at);
  free(w.source.spread.at);
  free(w.matches.at);
  free(w.spare.at);
  free(w.ends.at);
  free(w.lines.at);
  if (status != RESHARD_SUCCESS) {
    reshard_model_free(w.target);
    free(w.regions.at);
    return status;
  }
  *target = w.target;
  *regions = w.regions;
  return RESHARD_SUCCESS;
}
