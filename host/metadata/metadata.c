/* Metadata: references, fields, and what is always true of them. */
#include "metadata/metadata.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>

static reshard_status check_properties(const reshard_properties *p) {
  if (p == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "metadata: properties is NULL");
  if (reshard_dtype_size(p->dtype) == 0)
    return rs_error(RESHARD_ERROR_INVALID, "metadata: %d is no dtype", (int)p->dtype);
  if (p->memory_format != RESHARD_MEMORY_CONTIGUOUS && p->memory_format != RESHARD_MEMORY_PRESERVE)
    return rs_error(RESHARD_ERROR_INVALID, "metadata: %d is no memory format", (int)p->memory_format);
  if ((p->requires_grad | 1) != 1 || (p->pin_memory | 1) != 1)
    return rs_error(RESHARD_ERROR_INVALID, "metadata: requires_grad is %d, pin_memory is %d: either is 0 or 1",
                    p->requires_grad, p->pin_memory);
  return RESHARD_SUCCESS;
}

/* As a layout's shape: no zero hides an overflow. */
reshard_status rs_metadata_check_shape(int ndim, const int64_t *shape) {
  char text[RS_SHAPE_TEXT];
  int64_t span = 1;
  if (ndim < 0 || ndim > RESHARD_MAX_DIMS)
    return rs_error(RESHARD_ERROR_INVALID, "metadata: %d dims, 0 to %d are allowed", ndim, RESHARD_MAX_DIMS);
  if (ndim > 0 && shape == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "metadata: shape is NULL");
  for (int d = 0; d < ndim; d++) {
    if (shape[d] < 0)
      return rs_error(RESHARD_ERROR_INVALID, "metadata: size %lld of dim %d is negative", (long long)shape[d], d);
    if (!rs_mul(span, rs_max(1, shape[d]), &span))
      return rs_error(RESHARD_ERROR_INVALID, "metadata: the elements of shape %s overflow 63 bits",
                      rs_shape_text(text, ndim, shape));
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_metadata_new(const reshard_properties *properties, int ndim, const int64_t *shape, int64_t n,
                               reshard_metadata *out) {
  RS_TRY(check_properties(properties));
  RS_TRY(rs_metadata_check_shape(ndim, shape));
  struct reshard_metadata_s *m;
  int64_t bytes;
  if (n < 0)
    return rs_error(RESHARD_ERROR_INVALID, "metadata: %lld shards", (long long)n);
  if (!rs_mul(n, (int64_t)sizeof(reshard_shard), &bytes) || !rs_add(bytes, (int64_t)sizeof *m, &bytes))
    return rs_error_memory(SIZE_MAX);
  RS_TRY(rs_alloc_zero(&m, bytes, 1));
  atomic_init(&m->references, 1);
  m->ndim = ndim;
  for (int d = 0; d < ndim; d++)
    m->shape[d] = shape[d];
  m->properties = *properties;
  m->n = n;
  *out = m;
  return RESHARD_SUCCESS;
}

reshard_status rs_placement_check(const char *what, int64_t i, const reshard_remote_device *p) {
  if (p->rank < -1)
    return rs_error(RESHARD_ERROR_INVALID, "metadata: %s %lld is on rank %lld", what, (long long)i, (long long)p->rank);
  if (p->type != RESHARD_DEVICE_CPU && p->type != RESHARD_DEVICE_CUDA)
    return rs_error(RESHARD_ERROR_INVALID, "metadata: %s %lld is on a device of type %d, which is none", what,
                    (long long)i, (int)p->type);
  if (p->index < -1)
    return rs_error(RESHARD_ERROR_INVALID, "metadata: %s %lld is on device %d", what, (long long)i, p->index);
  return RESHARD_SUCCESS;
}

reshard_status rs_metadata_check_shards(const struct reshard_metadata_s *m) {
  for (int64_t i = 0; i < m->n; i++) {
    const reshard_shard *s = &m->shards[i];
    int64_t end, elements = 1;
    for (int d = 0; d < m->ndim; d++) {
      if (s->box.offset[d] < 0 || s->box.extent[d] < 0 || !rs_add(s->box.offset[d], s->box.extent[d], &end))
        return rs_error(RESHARD_ERROR_INVALID, "metadata: shard %lld has offset %lld and size %lld in dim %d",
                        (long long)i, (long long)s->box.offset[d], (long long)s->box.extent[d], d);
      if (!rs_mul(elements, rs_max(1, s->box.extent[d]), &elements))
        return rs_error(RESHARD_ERROR_INVALID, "metadata: the elements of shard %lld overflow 63 bits", (long long)i);
    }
    RS_TRY(rs_placement_check("shard", i, &s->placement));
  }
  return RESHARD_SUCCESS;
}

reshard_status reshard_metadata_create(const reshard_properties *properties, int ndim, const int64_t *shape, int64_t n,
                                       const reshard_shard *shards, reshard_metadata *metadata) {
  if (metadata == NULL || (n > 0 && shards == NULL))
    return rs_error_null("reshard_metadata_create", metadata == NULL ? "metadata" : "shards");
  reshard_metadata made;
  RS_TRY(rs_metadata_new(properties, ndim, shape, n, &made));
  for (int64_t i = 0; i < n; i++) {
    for (int d = 0; d < ndim; d++) {
      made->shards[i].box.offset[d] = shards[i].box.offset[d];
      made->shards[i].box.extent[d] = shards[i].box.extent[d];
    }
    made->shards[i].placement = shards[i].placement;
  }
  RS_TRY_OR(rs_metadata_check_shards(made), reshard_metadata_release(made));
  *metadata = made;
  return RESHARD_SUCCESS;
}

reshard_metadata reshard_metadata_retain(reshard_metadata metadata) { return RS_RETAIN(metadata); }

void reshard_metadata_release(reshard_metadata metadata) {
  if (RS_DROP(metadata))
    free(metadata);
}

int reshard_metadata_ndim(reshard_metadata metadata) { return metadata != NULL ? metadata->ndim : 0; }
const int64_t *reshard_metadata_shape(reshard_metadata metadata) { return metadata != NULL ? metadata->shape : NULL; }
reshard_properties reshard_metadata_properties(reshard_metadata metadata) {
  return metadata != NULL ? metadata->properties : (reshard_properties){.dtype = RESHARD_DTYPE_NONE};
}
int64_t reshard_metadata_count(reshard_metadata metadata) { return metadata != NULL ? metadata->n : 0; }
const reshard_shard *reshard_metadata_shards(reshard_metadata metadata) {
  return metadata != NULL ? metadata->shards : NULL;
}

/* Compares bytes: neither struct has padding, and unused dims are 0. */
_Static_assert(sizeof(reshard_properties) == 4 * sizeof(int), "properties are compared as bytes");
_Static_assert(sizeof(reshard_shard) == (2 * RESHARD_MAX_DIMS + 2) * sizeof(int64_t), "shards are compared as bytes");

int reshard_metadata_equal(reshard_metadata a, reshard_metadata b) {
  if (a == b)
    return 1;
  return a != NULL && b != NULL && a->n == b->n && rs_shape_equal(a->ndim, a->shape, b->ndim, b->shape) &&
         memcmp(&a->properties, &b->properties, sizeof a->properties) == 0 &&
         memcmp(a->shards, b->shards, (size_t)a->n * sizeof *a->shards) == 0;
}

uint64_t reshard_metadata_hash(reshard_metadata metadata) {
  if (metadata == NULL)
    return 0;
  const struct reshard_metadata_s *m = metadata;
  uint64_t h = rs_hash((uint64_t)m->ndim, m->shape, sizeof m->shape);
  h = rs_hash(h, &m->properties, sizeof m->properties);
  return rs_hash(h, m->shards, (size_t)m->n * sizeof *m->shards);
}

reshard_status rs_metadata_dim(const char *what, int d, int ndim, int *out) {
  if (d < -ndim || d >= ndim)
    return rs_error(RESHARD_ERROR_INVALID, "%s: dim %d of a tensor of %d dims", what, d, ndim);
  *out = d < 0 ? d + ndim : d;
  return RESHARD_SUCCESS;
}

const char *rs_memory_format_string(reshard_memory_format format) {
  return format == RESHARD_MEMORY_PRESERVE ? "preserve" : "contiguous";
}

/* --- As JSON ------------------------------------------------------------------------------------------------------ */

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
