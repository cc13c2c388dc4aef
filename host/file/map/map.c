/* Maps as the public header has them: made from text, freed, and asked for the model that they make. */
#include "file/map/map.h"

#include "base/text.h"
#include "file/ground/file.h"
#include "file/map/dtypes.h"
#include "file/map/line.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *rs_map_kind_text(rs_map_kind kind) {
  static const char *const texts[] = {"name", "concat", "interleave", "stack", "transpose", "cast", "zeros", "drop"};
  return texts[kind];
}

reshard_status rs_map_error(const struct reshard_map_s *map, int64_t line, int64_t column, const char *format, ...) {
  char file[RS_WHERE / 2], why[768], place[32] = "";
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(why, sizeof why, format, arguments);
  va_end(arguments);
  if (column > 0)
    snprintf(place, sizeof place, ":%lld", (long long)column);
  return rs_error(RESHARD_ERROR_INVALID, "%s:%lld%s: %s", rs_quote(file, sizeof file, map->name), (long long)line,
                  place, why);
}

reshard_status reshard_map_parse(const char *text, const char *name, reshard_map *map) {
  RS_TRY(RS_GIVEN("reshard_map_parse", text, map));
  reshard_map made;
  reshard_status status;
  name = name != NULL ? name : "map";
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  RS_TRY_GOTO(status, rs_alloc_copy(&made->name, name, (int64_t)strlen(name) + 1, 1), fail);
  RS_TRY_GOTO(status, rs_map_read(made, text), fail);
  *map = made;
  return RESHARD_SUCCESS;
fail:
  reshard_map_free(made);
  return status;
}

reshard_status reshard_map_load(const char *path, reshard_map *map) {
  RS_TRY(RS_GIVEN("reshard_map_load", path, map));
  char where[RS_WHERE], *text;
  int64_t size;
  RS_TRY(rs_read_all(rs_where(where, "map file", path), path, RS_TEXT_LIMIT, RS_TEXT_WAIT_MS, &text, &size));
  reshard_status status =
      (int64_t)strlen(text) == size
          ? reshard_map_parse(text, path, map)
          : rs_error(RESHARD_ERROR_INVALID, "%s: byte %zu is NUL, this is no text", where, strlen(text));
  free(text);
  return status;
}

void reshard_map_free(reshard_map map) {
  if (map == NULL)
    return;
  free(map->lines.at);
  free(map->nodes.at);
  free(map->text.at);
  free(map->name);
  free(map);
}

/* Scales that casts make, and those that they multiply by. */
static reshard_status settle_scales(reshard_model source, reshard_model made, rs_copy_regions *regions) {
  const rs_layouts none = {0};
  const reshard_blocks no_blocks = {0};
  reshard_convert_report report = {0};
  rs_names names = {0};
  int64_t number;
  const rs_dtype_choice choice = {source, &names, regions, &none, &none, RESHARD_DTYPE_NONE, &no_blocks};
  reshard_status status = rs_names_reserve(&names, source->tensors.n);
  for (int64_t i = 0; i < source->tensors.n && status == RESHARD_SUCCESS; i++)
    status = rs_names_put(&names, rs_model_name(source, i), strlen(rs_model_name(source, i)), &number);
  RS_THEN(status, rs_dtypes_choose(&choice, made, &report));
  rs_names_free(&names);
  return status;
}

reshard_status reshard_map_model(reshard_map map, reshard_model source, reshard_model *target) {
  RS_TRY(RS_GIVEN("reshard_map_model", source, target));
  rs_copy_regions regions;
  reshard_model made;
  RS_TRY(rs_map_apply(map, source, &made, &regions));
  reshard_status status = settle_scales(source, made, &regions);
  free(regions.at);
  RS_TRY_OR(status, reshard_model_free(made));
  *target = made;
  return RESHARD_SUCCESS;
}
