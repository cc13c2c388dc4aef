/* Metadata as JSON. */
#include "base/json.h"
#include "metadata/metadata.h"

reshard_status reshard_metadata_print_json(reshard_metadata metadata, char *text, size_t size, size_t *needed) {
  const struct reshard_metadata_s *m = metadata;
  if (m == NULL || (text == NULL && size > 0))
    return rs_error_null("reshard_metadata_print_json", m == NULL ? "metadata" : "text");
  rs_json j = {.text = {.at = text, .size = size}, .spaced = true};
  char placement[RS_PLACEMENT_TEXT];
  rs_json_open(&j, NULL, '{');
  rs_json_list(&j, "shape", m->ndim, m->shape);
  rs_json_string(&j, "dtype", reshard_dtype_string(m->properties.dtype));
  rs_json_string(&j, "memory_format", rs_memory_format_string(m->properties.memory_format));
  rs_json_bool(&j, "requires_grad", m->properties.requires_grad);
  rs_json_bool(&j, "pin_memory", m->properties.pin_memory);
  rs_json_open(&j, "shards", '[');
  for (int64_t i = 0; i < m->n; i++) {
    rs_json_open(&j, NULL, '{');
    rs_json_list(&j, "offsets", m->ndim, m->shards[i].box.offset);
    rs_json_list(&j, "sizes", m->ndim, m->shards[i].box.extent);
    rs_json_string(&j, "placement", rs_placement_text(placement, &m->shards[i].placement));
    rs_json_close(&j, '}');
  }
  rs_json_close(&j, ']');
  rs_json_close(&j, '}');
  return rs_text_finish(&j.text, needed);
}
