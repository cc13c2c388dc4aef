/* One line of a map for one match: the target's tensors that it makes, and their regions.
 *
 * An expression on the right side becomes a value: a shape, and a run of regions, one for each tensor in it. A region
 * says where a tensor's box lies in the value, and which dim of the tensor walks each dim. concat moves the boxes along
 * a dim; interleave also cuts them in groups; stack inserts a dim and moves them along that; transpose permutes; all of
 * it nests.
 *
 * On the left side the same is done downwards, until names are reached. concat cuts regions along a dim, interleave
 * takes a part's piece of each group, stack also removes the dim, and transpose permutes the dims back.
 *
 * A part of zeros is a region of no tensor. It comes behind those of the tensors beside it, which say its shape. */
#include "file/map/line.h"

#include "base/dtype.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

/* The regions of a value are the last ones, from `first` on. */
typedef struct value {
  reshard_dtype dtype;
  uint8_t packed;
  bool cast;             /* some cast has said the dtype, */
  bool multiplied;       /* and multiplies by scales, */
  reshard_blocks blocks; /* or makes scales */
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS];
  int64_t first;
} value;

static const rs_map_node *node_at(const rs_map_work *w, int64_t i) { return &w->source.map->nodes.at[i]; }
static const rs_model_tensor *tensor_at(const rs_map_work *w, int64_t i) { return &w->source.model->tensors.at[i]; }

#define WRONG(w, node, ...) rs_map_error((w)->source.map, (node)->line, (node)->column, __VA_ARGS__)

/* "4x8 bf16 ('name')": a shape in an error, and the first tensor that it comes from. */
#define TERM (RS_SHAPE_TEXT + RS_QUOTE + 16)
static const char *describe_typed(char buffer[TERM], const rs_map_work *w, int ndim, const int64_t *shape,
                                  const char *type, int64_t tensor) {
  char extents[RS_SHAPE_TEXT], name[RS_QUOTE];
  rs_text text = {.at = buffer, .size = TERM};
  rs_text_add(&text, "%s %s ('%s')", rs_shape_text(extents, ndim, shape), type,
              rs_quote(name, sizeof name, rs_model_name(w->source.model, tensor)));
  return buffer;
}

static const char *describe_term(char buffer[TERM], const rs_map_work *w, int ndim, const int64_t *shape,
                                 int64_t tensor) {
  const rs_model_tensor *t = tensor_at(w, tensor);
  return describe_typed(buffer, w, ndim, shape, rs_type_text(t->dtype, t->packed), tensor);
}

static const char *describe_value(char buffer[TERM], const rs_map_work *w, const value *v) {
  char blocks[RS_BLOCKS_TEXT];
  int64_t tensor = w->regions.at[v->first].src;
  return describe_typed(buffer, w, v->ndim, v->shape,
                        v->blocks.rows > 0 ? rs_blocks_text(blocks, &v->blocks)
                                           : rs_type_text(v->dtype, tensor_at(w, tensor)->packed),
                        tensor);
}

/* --- Dims -------------------------------------------------------------------------------------------------------- */

/* The dim of concat or stack, of `dims` that there are: one more than ndim where stack inserts one. */
static reshard_status dim_of(const rs_map_work *w, const rs_map_node *op, int dims, int ndim, const int64_t *shape,
                             int64_t tensor, int *dim) {
  char text[TERM];
  int given = op->ndims > 0 ? op->dims[0] : 0;
  *dim = given < 0 ? given + dims : given;
  if (dims > RESHARD_MAX_DIMS)
    return WRONG(w, op, "stack: %d dims, %d at most, in a stack of %s", dims, RESHARD_MAX_DIMS,
                 describe_term(text, w, ndim, shape, tensor));
  if (*dim < 0 || *dim >= dims)
    return WRONG(w, op, "%s: no dim %d in %s%s", rs_map_kind_text(op->kind), given, dims > ndim ? "a stack of " : "",
                 describe_term(text, w, ndim, shape, tensor));
  return RESHARD_SUCCESS;
}

/* The dims of transpose, all in 0..ndim-1. */
static reshard_status dims_of(const rs_map_work *w, const rs_map_node *op, int ndim, const int64_t *shape,
                              int64_t tensor, int *from) {
  char text[TERM];
  unsigned seen = 0;
  for (int d = 0; d < ndim && (op->ndims == 0 || op->ndims == ndim); d++) {
    int given = op->ndims > 0 ? op->dims[d] : d < ndim - 2 ? d : 2 * ndim - 3 - d;
    from[d] = given < 0 ? given + ndim : given;
    if (from[d] >= 0 && from[d] < ndim)
      seen |= 1u << from[d];
  }
  if (ndim < 2)
    return WRONG(w, op, "transpose: fewer than two dims: %s", describe_term(text, w, ndim, shape, tensor));
  if (seen != (1u << ndim) - 1)
    return WRONG(w, op, "transpose: each of the %d dims must be there once: %s", ndim,
                 describe_term(text, w, ndim, shape, tensor));
  return RESHARD_SUCCESS;
}

/* --- The right side: up from names to a value -------------------------------------------------------------------- */

static reshard_status up_name(rs_map_work *w, int64_t tensor, value *v) {
  const rs_model_tensor *t = tensor_at(w, tensor);
  RS_TRY(rs_model_check_dtype(w->source.model, tensor));
  *v = (value){.dtype = t->dtype, .packed = t->packed, .ndim = t->ndim, .first = w->regions.n};
  memcpy(v->shape, t->shape, sizeof v->shape);
  RS_TRY(rs_vec_reserve(&w->regions, w->regions.n + 1));
  rs_region_whole(t, tensor, -1, &w->regions.at[w->regions.n++]);
  return RESHARD_SUCCESS;
}

/* Puts part i behind those before along dim; its regions are the last ones. */
static reshard_status join_part(rs_map_work *w, const rs_map_node *op, int dim, int64_t i, value *all,
                                const value *part) {
  bool stack = op->kind == RS_MAP_STACK, same = all->dtype == part->dtype && all->ndim == part->ndim;
  same = same && all->packed == part->packed && all->blocks.rows == part->blocks.rows &&
         all->blocks.columns == part->blocks.columns && all->blocks.scales == part->blocks.scales;
  for (int d = 0; d < all->ndim && same; d++)
    same = all->shape[d] == part->shape[d] || (!stack && d == dim);
  int64_t offset = stack ? i : i > 0 ? all->shape[dim] : 0, end = 0;
  if (!same || !rs_add(offset, stack ? 1 : part->shape[dim], &end)) {
    char left[TERM], right[TERM];
    return WRONG(w, op, "%s along dim %d: %s and %s do not fit", rs_map_kind_text(op->kind), dim,
                 describe_value(left, w, all), describe_value(right, w, part));
  }
  int from[RESHARD_MAX_DIMS];
  for (int d = 0; stack && d <= all->ndim; d++)
    from[d] = d == dim ? -1 : d - (d > dim);
  for (int64_t r = part->first; r < w->regions.n; r++) {
    if (stack)
      rs_region_arrange(&w->regions.at[r], all->ndim + 1, from);
    w->regions.at[r].dst_offset[dim] += offset;
  }
  if (!stack)
    all->shape[dim] = end;
  all->cast = all->cast || part->cast;
  all->multiplied = all->multiplied || part->multiplied;
  return RESHARD_SUCCESS;
}

/* Gives a value, which no cast has made, another dtype. Numbers are then converted once, from the source's. Scales of
 * FP8 go into the numbers that they multiply. */
static reshard_status cast_value(rs_map_work *w, const rs_map_node *op, value *v) {
  char text[TERM], blocks[RS_BLOCKS_TEXT];
  if (v->cast)
    return WRONG(w, op, "cast: a cast inside of a cast: %s", describe_value(text, w, v));
  if (op->blocks.rows > 0 && (v->packed != 0 || !rs_blocks_know(v->dtype)))
    return WRONG(w, op, "cast: %s is made of f32, f16 and bf16, not of %s", rs_blocks_text(blocks, &op->blocks),
                 describe_value(text, w, v));
  if (v->dtype != op->dtype && (v->packed != 0 || !rs_cast_supported(v->dtype, op->dtype)))
    return WRONG(w, op, "cast: no cast to %s: %s", reshard_dtype_string(op->dtype), describe_value(text, w, v));
  for (int64_t r = v->first; r < w->regions.n && rs_map_multiplies(v->dtype, op->dtype); r++)
    if (w->regions.at[r].src >= 0 && rs_map_take_scales(&w->source, w->regions.at[r].src))
      v->multiplied = true;
  v->dtype = op->dtype;
  v->blocks = op->blocks;
  v->cast = true;
  return RESHARD_SUCCESS;
}

static reshard_status apply_up(rs_map_work *w, int64_t at, value *v);

/* Appends zeros behind what is there along dim, or before it. */
static reshard_status add_zeros(rs_map_work *w, const rs_map_node *op, int dim, int64_t size, bool before, value *all) {
  int64_t end;
  if (!rs_add(all->shape[dim], size, &end))
    return WRONG(w, op, "concat: the sizes add up to more than 2^63");
  for (int64_t r = all->first; r < w->regions.n && before; r++)
    w->regions.at[r].dst_offset[dim] += size;
  rs_model_tensor zeros = {.ndim = all->ndim};
  memcpy(zeros.shape, all->shape, sizeof zeros.shape);
  zeros.shape[dim] = size;
  RS_TRY(rs_vec_reserve(&w->regions, w->regions.n + 1));
  rs_copy_region *region = &w->regions.at[w->regions.n];
  rs_region_whole(&zeros, -1, -1, region);
  region->dst_offset[dim] = before ? 0 : all->shape[dim];
  w->regions.n += size > 0;
  all->shape[dim] = end;
  return RESHARD_SUCCESS;
}

/* Moves what lies part behind part along dim to its place in groups. w->ends has the parts' ends from `first` on. */
static reshard_status interleave_parts(rs_map_work *w, const rs_map_node *op, int dim, int64_t first, value *all) {
  int64_t made = w->regions.n, groups = op->groups, total = all->shape[dim] / groups, begin = 0, to = all->first;
  char text[TERM];
  for (int64_t p = first; p < w->ends.n; begin = w->ends.at[p++]) {
    int64_t size = (w->ends.at[p] - begin) / groups;
    if (size * groups != w->ends.at[p] - begin)
      return WRONG(w, op, "interleave: part %lld has %lld indices, no multiple of %lld groups, in %s",
                   (long long)(p - first), (long long)(w->ends.at[p] - begin), (long long)groups,
                   describe_value(text, w, all));
    for (int64_t r = all->first; r < made && size > 0; r++)
      for (int64_t g = 0; g < groups; g++) {
        rs_copy_region piece;
        if (!rs_region_clip(&w->regions.at[r], dim, begin + g * size, begin + (g + 1) * size,
                            g * total + begin / groups, &piece))
          continue;
        RS_TRY(rs_vec_push(&w->regions, piece));
      }
  }
  if (w->regions.n == made) /* nothing is in it */
    return RESHARD_SUCCESS;
  if (w->regions.at[made].src < 0) { /* zeros behind a part of nothing, which still says name and dtype */
    rs_copy_region empty, *name = &w->regions.at[to++];
    rs_region_clip(name, dim, name->dst_offset[dim], name->dst_offset[dim], 0, &empty);
    *name = empty;
  }
  memmove(w->regions.at + to, w->regions.at + made, (size_t)(w->regions.n - made) * sizeof *w->regions.at);
  w->regions.n -= made - to;
  return RESHARD_SUCCESS;
}

static reshard_status up_parts(rs_map_work *w, const rs_map_node *op, value *all) {
  bool stack = op->kind == RS_MAP_STACK, spread = node_at(w, op->parts)->spread;
  int64_t count = op->count, at = op->parts, joined = 0, ahead = 0, ends = w->ends.n;
  int dim = 0;
  if (spread) {
    RS_TRY(rs_map_take_all(&w->source, node_at(w, op->parts)));
    count = w->source.spread.n;
  }
  for (int64_t i = 0; i < count; i++) {
    const rs_map_node *node = node_at(w, at);
    value part;
    if (node->kind == RS_MAP_ZEROS && joined > 0) {
      RS_TRY(add_zeros(w, op, dim, node->size, false, all));
    } else if (node->kind == RS_MAP_ZEROS) {
      if (!rs_add(ahead, node->size, &ahead))
        return WRONG(w, op, "concat: the sizes add up to more than 2^63");
    } else {
      RS_TRY(spread ? up_name(w, w->source.spread.at[i], &part) : apply_up(w, at, &part));
      if (joined == 0) {
        *all = part;
        RS_TRY(dim_of(w, op, all->ndim + stack, all->ndim, all->shape, w->regions.at[all->first].src, &dim));
      }
      RS_TRY(join_part(w, op, dim, joined++, all, &part));
      if (joined == 1 && ahead > 0)
        RS_TRY(add_zeros(w, op, dim, ahead, true, all));
      RS_TRY(rs_vec_push(&w->ends, stack ? i : all->shape[dim]));
    }
    at = spread ? at : node->next;
  }
  if (op->kind == RS_MAP_INTERLEAVE)
    RS_TRY(interleave_parts(w, op, dim, ends, all));
  w->ends.n = ends;
  if (stack) {
    memmove(all->shape + dim + 1, all->shape + dim, (size_t)(all->ndim - dim) * sizeof *all->shape);
    all->shape[dim] = count;
    all->ndim++;
  }
  return RESHARD_SUCCESS;
}

static reshard_status apply_up(rs_map_work *w, int64_t at, value *v) {
  const rs_map_node *node = node_at(w, at);
  if (node->kind == RS_MAP_NAME) {
    int64_t tensor;
    RS_TRY(rs_map_take(&w->source, node, &tensor));
    return up_name(w, tensor, v);
  }
  if (node->kind != RS_MAP_TRANSPOSE && node->kind != RS_MAP_CAST)
    return up_parts(w, node, v);
  RS_TRY(apply_up(w, node->parts, v));
  if (node->kind == RS_MAP_CAST)
    return cast_value(w, node, v);
  int from[RESHARD_MAX_DIMS];
  RS_TRY(dims_of(w, node, v->ndim, v->shape, w->regions.at[v->first].src, from));
  value old = *v;
  for (int d = 0; d < v->ndim; d++)
    v->shape[d] = old.shape[from[d]];
  for (int64_t r = v->first; r < w->regions.n; r++)
    rs_region_arrange(&w->regions.at[r], v->ndim, from);
  return RESHARD_SUCCESS;
}

/* --- The left side: down from a region to names ------------------------------------------------------------------- */

/* A tensor of the target named source.text; the regions of the value, the last ones, lead to it. */
static reshard_status add_target_tensor(rs_map_work *w, const value *v) {
  const rs_map_source *s = &w->source;
  RS_TRY(rs_vec_reserve(&w->lines, w->lines.n + 1));
  char blocks[RS_BLOCKS_TEXT], text[TERM];
  if (v->blocks.rows > 0 && v->ndim != 2 && v->ndim != 3)
    return rs_map_error(s->map, s->line->line, 0, "%s is of 2 dims, or 3: %s", rs_blocks_text(blocks, &v->blocks),
                        describe_value(text, w, v));
  const char *source = rs_model_name(s->model, w->regions.at[v->first].src);
  bool solid = s->model->tensors.at[w->regions.at[v->first].src].solid;
  if (solid) /* the shape behind its name */
    RS_TRY(rs_map_text_add(&w->source, source + strlen(source),
                           rs_model_name_length(s->model, w->regions.at[v->first].src) - strlen(source)));
  RS_TRY(rs_model_add(w->target, w->where, s->text.at, (size_t)s->text.n, v->dtype, v->ndim, v->shape));
  rs_model_tensor *made = &w->target->tensors.at[w->lines.n];
  made->packed = v->packed;
  made->cast = v->cast;
  made->multiplied = v->multiplied;
  made->blocks = v->blocks;
  made->solid = solid;
  for (int64_t r = v->first; r < w->regions.n; r++)
    w->regions.at[r].dst = w->lines.n;
  w->lines.at[w->lines.n++] = s->line->line;
  return RESHARD_SUCCESS;
}

/* Number of parts of concat, interleave and stack, and the size of those without one. */
static reshard_status share_extent(const rs_map_work *w, const rs_map_node *op, int64_t extent, const char *of,
                                   int64_t *count, int64_t *share) {
  int64_t sum = 0, unsized = 0;
  const rs_map_node *first = node_at(w, op->parts);
  const char *what = rs_map_kind_text(op->kind);
  if (op->kind == RS_MAP_STACK) {
    *count = first->spread ? extent : op->count;
    *share = 1;
    if (*count != extent)
      return WRONG(w, op, "stack: %lld parts for %lld indices: %s", (long long)op->count, (long long)extent, of);
    return RESHARD_SUCCESS;
  }
  if (first->spread) {
    *count = extent / first->size;
    *share = first->size;
    if (extent % first->size != 0)
      return WRONG(w, first, "%s: parts of %lld do not divide %lld: %s", what, (long long)first->size,
                   (long long)extent, of);
    return RESHARD_SUCCESS;
  }
  *count = op->count;
  for (int64_t i = op->parts; i >= 0; i = node_at(w, i)->next) {
    unsized += node_at(w, i)->size < 0;
    if (!rs_add(sum, rs_max(node_at(w, i)->size, 0), &sum))
      return WRONG(w, node_at(w, i), "%s: the sizes add up to more than 2^63", what);
  }
  *share = unsized > 0 ? (extent - sum) / unsized : 0;
  if (sum > extent || (unsized == 0 && sum != extent))
    return WRONG(w, op, "%s: the sizes add up to %lld, not %lld: %s", what, (long long)sum, (long long)extent, of);
  if (unsized > 0 && (extent - sum) % unsized != 0)
    return WRONG(w, op, "%s: %lld do not divide in %lld equal parts: %s", what, (long long)(extent - sum),
                 (long long)unsized, of);
  return RESHARD_SUCCESS;
}

/* A value of the left side: a shape, and the regions that lead to it. */
typedef struct lower_value {
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS];
  int64_t n;
  rs_copy_region *regions;
} lower_value;

static reshard_status apply_down(rs_map_work *w, int64_t at, const lower_value *v);

/* A name of the left side; index: of a spread one. */
static reshard_status down_name(rs_map_work *w, const rs_map_node *name, int64_t index, const lower_value *v) {
  const char *rest;
  RS_TRY(rs_map_name(&w->source, name, &rest));
  if (name->spread) {
    char digits[24];
    rs_text text = {.at = digits, .size = sizeof digits};
    rs_text_add(&text, "%lld", (long long)index);
    RS_TRY(rs_map_text_add(&w->source, digits, text.length));
    RS_TRY(rs_map_text_add(&w->source, rest, strlen(rest)));
  }
  const rs_model_tensor *from = tensor_at(w, v->regions->src);
  value made = {.dtype = w->cast.cast ? w->cast.dtype : from->dtype,
                .packed = from->packed,
                .cast = w->cast.cast,
                .multiplied = w->cast.multiplied,
                .blocks = w->cast.blocks,
                .ndim = v->ndim,
                .first = w->regions.n};
  memcpy(made.shape, v->shape, sizeof made.shape);
  RS_TRY(rs_vec_append(&w->regions, v->regions, v->n));
  return add_target_tensor(w, &made);
}

/* Indices [begin, begin + size) of a dim become a value of their own; of an interleave, in which that is its place in
 * each of the groups, all groups do. Memory of part->regions: the caller's. */
static void cut_part(const rs_map_node *op, const lower_value *v, int dim, int64_t begin, int64_t size,
                     lower_value *part) {
  int64_t groups = op->kind == RS_MAP_INTERLEAVE ? op->groups : 1, step = v->shape[dim] / groups;
  int from[RESHARD_MAX_DIMS];
  part->ndim = v->ndim;
  part->n = 0;
  memcpy(part->shape, v->shape, sizeof part->shape);
  part->shape[dim] = size;
  for (int64_t g = 0; g < groups && size > 0; g++)
    for (int64_t r = 0; r < v->n; r++) {
      int64_t lo = g * step + begin / groups;
      if (rs_region_clip(&v->regions[r], dim, lo, lo + size / groups, g * (size / groups), &part->regions[part->n]))
        part->n++;
    }
  if (part->n == 0) { /* a part of nothing has the name of where it comes from */
    rs_region_clip(&v->regions[0], dim, v->regions[0].dst_offset[dim], v->regions[0].dst_offset[dim], 0, part->regions);
    part->n = 1;
  }
  if (op->kind != RS_MAP_STACK)
    return;
  for (int d = 0; d < v->ndim - 1; d++) {
    from[d] = d + (d >= dim);
    part->shape[d] = part->shape[from[d]];
  }
  part->ndim--;
  for (int64_t r = 0; r < part->n; r++)
    rs_region_arrange(&part->regions[r], part->ndim, from);
}

static reshard_status down_parts(rs_map_work *w, const rs_map_node *op, const lower_value *v) {
  char of[TERM];
  int dim;
  int64_t count = 0, share = 0, offset = 0, at = op->parts;
  lower_value part = {0};
  RS_TRY(dim_of(w, op, v->ndim, v->ndim, v->shape, v->regions->src, &dim));
  describe_term(of, w, v->ndim, v->shape, v->regions->src);
  RS_TRY(share_extent(w, op, v->shape[dim], of, &count, &share));
  int64_t most = v->n;
  if (op->kind == RS_MAP_INTERLEAVE && !rs_mul(most, rs_min(op->groups, rs_max(1, v->shape[dim])), &most))
    return WRONG(w, op, "interleave: the regions of %lld groups overflow 63 bits", (long long)op->groups);
  RS_TRY(rs_alloc(&part.regions, most, sizeof *part.regions));
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0; i < count && status == RESHARD_SUCCESS; i++) {
    const rs_map_node *name = node_at(w, at);
    int64_t size = name->size >= 0 ? name->size : share;
    if (op->kind == RS_MAP_INTERLEAVE && size % op->groups != 0) {
      status = WRONG(w, op, "interleave: part %lld has %lld indices, no multiple of %lld groups, in %s", (long long)i,
                     (long long)size, (long long)op->groups, of);
      break;
    }
    if (name->kind != RS_MAP_DROP) {
      cut_part(op, v, dim, offset, size, &part);
      status = name->spread ? down_name(w, name, i, &part) : apply_down(w, at, &part);
    }
    offset += size;
    at = name->spread ? at : node_at(w, at)->next;
  }
  free(part.regions);
  return status;
}

static reshard_status apply_down(rs_map_work *w, int64_t at, const lower_value *v) {
  const rs_map_node *node = node_at(w, at);
  if (node->kind == RS_MAP_NAME)
    return down_name(w, node, 0, v);
  if (node->kind != RS_MAP_TRANSPOSE)
    return down_parts(w, node, v);
  int from[RESHARD_MAX_DIMS], back[RESHARD_MAX_DIMS];
  RS_TRY(dims_of(w, node, v->ndim, v->shape, v->regions->src, from));
  lower_value turned = *v;
  RS_TRY(rs_alloc_copy(&turned.regions, v->regions, v->n, sizeof *v->regions));
  for (int d = 0; d < v->ndim; d++)
    back[from[d]] = d;
  for (int d = 0; d < v->ndim; d++)
    turned.shape[d] = v->shape[back[d]];
  for (int64_t r = 0; r < v->n; r++)
    rs_region_arrange(&turned.regions[r], v->ndim, back);
  reshard_status status = apply_down(w, node->parts, &turned);
  free(turned.regions);
  return status;
}

reshard_status rs_map_apply_match(rs_map_work *w) {
  const rs_map_line *line = w->source.line;
  value v;
  if (line->target < 0) {
    int64_t tensor;
    return rs_map_take(&w->source, node_at(w, line->source), &tensor);
  }
  RS_TRY(apply_up(w, line->source, &v));
  if (node_at(w, line->target)->kind == RS_MAP_NAME) {
    const char *rest;
    RS_TRY(rs_map_name(&w->source, node_at(w, line->target), &rest));
    return add_target_tensor(w, &v);
  }
  rs_copy_region region = w->regions.at[--w->regions.n]; /* of a name, or of its cast */
  w->cast = (rs_model_tensor){.dtype = v.dtype, .cast = v.cast, .multiplied = v.multiplied, .blocks = v.blocks};
  lower_value all = {.ndim = v.ndim, .n = 1, .regions = &region};
  memcpy(all.shape, v.shape, sizeof all.shape);
  return apply_down(w, line->target, &all);
}
