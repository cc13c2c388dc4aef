/* Text behind the type of a leaf in a printed tree: dtype, shape and layout. */
#include "state/state.h"

#include "dtensor/dtensor.h"
#include "metadata/metadata.h"

#include <string.h>

enum { LAYOUT_TEXT = 192 }; /* a longer one is cut off */

static void print_layout(rs_text *out, reshard_layout layout) {
  char text[LAYOUT_TEXT];
  if (reshard_layout_print(layout, text, sizeof text, NULL) != RESHARD_SUCCESS)
    memcpy(text + sizeof text - 4, "...", 4);
  rs_text_add(out, " %s", text);
}

static void print_tensor(rs_text *out, const reshard_properties *properties, int ndim, const int64_t *shape) {
  char text[RS_SHAPE_TEXT];
  rs_text_add(out, "%s %s", reshard_dtype_string(properties->dtype), rs_shape_text(text, ndim, shape));
}

static void print_flags(rs_text *out, const reshard_properties *properties) {
  if (properties->requires_grad)
    rs_text_add(out, " requires_grad");
}

static void print_sharded(rs_text *out, reshard_sharded_tensor tensor) {
  reshard_metadata m = tensor->metadata;
  print_tensor(out, &m->properties, m->ndim, m->shape);
  print_layout(out, tensor->local.layout);
  print_flags(out, &m->properties);
}

void rs_sharded_print(const void *value, char *text, size_t size) {
  print_sharded(&(rs_text){text, size, 0}, (reshard_sharded_tensor)value);
}

void rs_dtensor_print(const void *value, char *text, size_t size) {
  const struct reshard_dtensor_s *tensor = value;
  rs_text out = {text, size, 0};
  print_tensor(&out, &tensor->properties, tensor->local.layout->ndim, tensor->local.layout->shape);
  print_layout(&out, tensor->local.layout);
  print_flags(&out, &tensor->properties);
}

/* Prints the outer tensor, then this rank's inner ones, as deep as they go. */
static void print_nested(rs_text *out, const rs_nested *nested) {
  reshard_metadata m = nested->outer;
  print_tensor(out, &m->properties, m->ndim, m->shape);
  print_flags(out, &m->properties);
  rs_text_add(out, ", %lld of %lld shards here", (long long)nested->n, (long long)m->n);
  for (int64_t i = 0; i < nested->n; i++) {
    char box[RS_BOX_TEXT];
    const reshard_box *at = &m->shards[nested->entries[i]].box;
    rs_text_add(out, "%s %s of ", i == 0 ? ":" : ",", rs_box_text(box, m->ndim, at->offset, at->extent));
    if (rs_leaf_sharded(nested->inner[i]) != NULL) {
      print_sharded(out, rs_leaf_sharded(nested->inner[i]));
    } else if (rs_leaf_nested(nested->inner[i]) != NULL && out->length < out->size) {
      rs_text_add(out, "(");
      print_nested(out, rs_leaf_nested(nested->inner[i]));
      rs_text_add(out, ")");
    }
  }
}

void rs_nested_print(const void *value, char *text, size_t size) { print_nested(&(rs_text){text, size, 0}, value); }
