/* Text behind the type of a leaf in a printed tree: dtype, shape and layout. */
#include "state/state.h"

#include "dtensor/dtensor.h"
#include "metadata/metadata.h"

#include <string.h>

enum { LAYOUT_TEXT = 192 }; /* a longer one is cut off */

/* layout NULL: none is printed. */
static void print_tensor(rs_text *out, const reshard_properties *properties, int ndim, const int64_t *shape,
                         reshard_layout layout) {
  char text[RS_SHAPE_TEXT + LAYOUT_TEXT];
  rs_text_add(out, "%s %s", reshard_dtype_string(properties->dtype), rs_shape_text(text, ndim, shape));
  if (layout != NULL && reshard_layout_print(layout, text, LAYOUT_TEXT, NULL) != RESHARD_SUCCESS)
    memcpy(text + LAYOUT_TEXT - 4, "...", 4);
  if (layout != NULL)
    rs_text_add(out, " %s", text);
  if (properties->requires_grad)
    rs_text_add(out, " requires_grad");
}

static void print_sharded(rs_text *out, reshard_sharded_tensor tensor) {
  reshard_metadata m = tensor->metadata;
  print_tensor(out, &m->properties, m->ndim, m->shape, tensor->local.layout);
}

void rs_sharded_print(const void *value, char *text, size_t size) {
  print_sharded(&(rs_text){.at = text, .size = size}, (reshard_sharded_tensor)value);
}

void rs_dtensor_print(const void *value, char *text, size_t size) {
  const struct reshard_dtensor_s *tensor = value;
  reshard_layout layout = tensor->local.layout;
  print_tensor(&(rs_text){.at = text, .size = size}, &tensor->properties, layout->ndim, layout->shape, layout);
}

/* Prints the outer tensor, then this rank's inner ones, as deep as they go. */
static void print_nested(rs_text *out, const rs_nested *nested) {
  reshard_metadata m = nested->outer;
  print_tensor(out, &m->properties, m->ndim, m->shape, NULL);
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

void rs_nested_print(const void *value, char *text, size_t size) {
  print_nested(&(rs_text){.at = text, .size = size}, value);
}
