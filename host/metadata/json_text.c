/* Metadata as JSON. Nothing in it needs escapes: numbers, names of the library, placements. */
#include "metadata/metadata.h"

static void add_list(rs_text *text, int ndim, const int64_t *numbers) {
  for (int d = 0; d < ndim; d++)
    rs_text_add(text, d > 0 ? ", %lld" : "[%lld", (long long)numbers[d]);
  rs_text_add(text, ndim > 0 ? "]" : "[]");
}

reshard_status reshard_metadata_print_json(reshard_metadata metadata, char *text, size_t size, size_t *needed) {
  const struct reshard_metadata_s *m = metadata;
  if (m == NULL || (text == NULL && size > 0))
    return rs_error_null("reshard_metadata_print_json", m == NULL ? "metadata" : "text");
  rs_text out = {text, size, 0};
  char placement[RS_PLACEMENT_TEXT];
  rs_text_add(&out, "{\"shape\": ");
  add_list(&out, m->ndim, m->shape);
  rs_text_add(&out, ", \"dtype\": \"%s\", \"memory_format\": \"%s\", \"requires_grad\": %s, \"pin_memory\": %s",
              reshard_dtype_string(m->properties.dtype), rs_memory_format_string(m->properties.memory_format),
              m->properties.requires_grad ? "true" : "false", m->properties.pin_memory ? "true" : "false");
  rs_text_add(&out, ", \"shards\": [");
  for (int64_t i = 0; i < m->n; i++) {
    rs_text_add(&out, i > 0 ? ", {\"offsets\": " : "{\"offsets\": ");
    add_list(&out, m->ndim, m->shards[i].box.offset);
    rs_text_add(&out, ", \"sizes\": ");
    add_list(&out, m->ndim, m->shards[i].box.extent);
    rs_text_add(&out, ", \"placement\": \"%s\"}", rs_placement_text(placement, &m->shards[i].placement));
  }
  rs_text_add(&out, "]}");
  return rs_text_finish(&out, needed);
}
