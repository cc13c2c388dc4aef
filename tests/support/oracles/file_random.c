/* Random tensors and random cuts of them. */
#include "file_random.h"

#ifdef RS_HAVE_JANSSON

#include <stdlib.h>
#include <string.h>

int naive_draw_shape(rng *r, int64_t most, int64_t *shape) {
  static const rng_shapes shapes = {17, {0, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6, 7, 8}, 3, 2, 25};
  return rng_shape(r, &shapes, most, shape);
}

reshard_dtype naive_draw_dtype(rng *r) { return (reshard_dtype)rng_in(r, 1, RESHARD_DTYPE_COUNT - 1); }

void naive_fill(naive_tensor *t, uint64_t key) {
  size_t width = reshard_dtype_size(t->dtype);
  for (int64_t e = 0; e < t->n; e++) {
    unsigned char bytes[16];
    oracle_stamp(key, e, width, bytes);
    memcpy(t->bytes + e * (int64_t)width, bytes, width);
  }
}

/* A kind of its own choice, or this one; a shape without dims has no chunks. */
static void describe(rng *r, int ndim, const int64_t *shape, int64_t world, bool source, reshard_layout_kind kind,
                     oracle_layout *out) {
  bool impossible = ndim == 0 && (kind == RESHARD_LAYOUT_CHUNK || kind == RESHARD_LAYOUT_CYCLIC);
  for (;;) {
    case_describe(r, ndim, shape, world, source, out);
    bool right = kind == RESHARD_LAYOUT_KIND_COUNT || impossible || out->kind == kind;
    if (right && (out->kind != RESHARD_LAYOUT_BOXES || out->nboxes > 0)) /* no boxes have no string */
      break;
    case_describe_free(out);
  }
  if (out->kind == RESHARD_LAYOUT_CYCLIC && rng_one_in(r, 3)) /* many boxes */
    for (int d = 0; d < ndim; d++)
      out->block[d] = 1;
}

static bool same_elements(const oracle_buffer *a, const oracle_buffer *b) {
  return a->n == b->n && memcmp(a->index, b->index, (size_t)a->n * sizeof *a->index) == 0;
}

/* Elements that nobody holds, or that boxes which differ hold. Boxes alone can have either. */
static void find_faults(naive_side *side) {
  const oracle_layout *l = &side->what;
  int64_t n = naive_volume(l->ndim, l->shape), *holder = cli_alloc(n, sizeof *holder); /* a buffer's number + 1 */
  for (int64_t b = 0; b < side->held.first[l->world]; b++) {
    const oracle_buffer *mine = &side->held.buffer[b];
    for (int64_t e = 0, last = 0; e < mine->n; e++) {
      int64_t *h = &holder[mine->index[e]];
      if (*h > 0 && *h != last && l->kind == RESHARD_LAYOUT_BOXES && !same_elements(mine, &side->held.buffer[*h - 1]))
        side->haloed = true;
      last = *h;
      *h = b + 1;
    }
  }
  for (int64_t e = 0; e < n; e++)
    side->gapped = side->gapped || holder[e] == 0;
  free(holder);
}

static bool find_text(naive_side *side, rs_text *why) {
  static const char suffix[] = " by constructor";
  char *at = strstr(side->text, suffix);
  if (at == NULL)
    return true;
  size_t needed = 0;
  reshard_layout_print(side->layout, NULL, 0, &needed);
  free(side->text);
  side->text = cli_alloc((int64_t)needed, 1);
  if (reshard_layout_print(side->layout, side->text, needed, NULL) == RESHARD_SUCCESS)
    return true;
  cli_add(why, "a layout cannot be printed: %s", reshard_last_error());
  return false;
}

bool naive_side_make(rng *r, int ndim, const int64_t *shape, int64_t world, bool source, reshard_layout_kind kind,
                     int64_t most_boxes, bool dedup, naive_side *out, rs_text *why) {
  *out = (naive_side){0};
  describe(r, ndim, shape, world, source, kind, &out->what);
  oracle_evaluate(&out->what, &out->held);
  find_faults(out);
  naive_cut_make(&out->what, &out->held, most_boxes, dedup, &out->cut);
  if (case_build(r, &out->what, &out->layout, &out->text) == RESHARD_SUCCESS)
    return find_text(out, why);
  cli_add(why, "layout %s refused: %s", out->text, reshard_last_error());
  return false;
}

void naive_side_free(naive_side *side) {
  case_describe_free(&side->what);
  if (side->held.buffer != NULL)
    oracle_buffers_free(&side->held, side->what.world);
  reshard_layout_release(side->layout);
  free(side->text);
  naive_cut_free(&side->cut);
  *side = (naive_side){0};
}

#endif
