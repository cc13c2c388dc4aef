/* Nested tensors with other local tensors. Depth costs no stack: outer tensors that are gone through are levels of a
 * list, each with the results of its inner ones so far. */
#include "state/state.h"

#include "metadata/metadata.h"

#include <stdlib.h>

typedef struct mapped_level {
  const rs_nested *nested;
  reshard_tree *inner; /* [n], owned; NULL: not known yet */
  int64_t next;
  bool changed;
  reshard_properties properties; /* of the outer tensor: what changes in inner ones changes in it */
  reshard_device_type type;
} mapped_level;

typedef struct nested_mapping {
  RS_VEC(mapped_level) levels;
  const rs_tensor_mapper *mapper;
} nested_mapping;

static reshard_status enter_level(nested_mapping *m, const rs_nested *nested) {
  mapped_level l = {.nested = nested,
                    .properties = nested->outer->properties,
                    .type = rs_metadata_type(nested->outer, nested->sharder)};
  RS_TRY(rs_vec_reserve(&m->levels, m->levels.n + 1));
  RS_TRY(rs_alloc_zero(&l.inner, nested->n, sizeof(reshard_tree)));
  m->levels.at[m->levels.n++] = l;
  return RESHARD_SUCCESS;
}

static void leave_level(nested_mapping *m) {
  mapped_level *l = &m->levels.at[--m->levels.n];
  for (int64_t i = 0; i < l->nested->n; i++)
    reshard_tree_release(l->inner[i]);
  free(l->inner);
}

/* Delivers the next inner tensor of the innermost level: `became`, which is taken over, or itself for NULL. */
static reshard_status deliver_inner(nested_mapping *m, reshard_tree became, const reshard_properties *had,
                                    const reshard_properties *p, reshard_device_type type) {
  mapped_level *l = &m->levels.at[m->levels.n - 1];
  int64_t i = l->next++;
  l->changed |= became != NULL;
  l->inner[i] = became != NULL ? became : reshard_tree_retain(l->nested->inner[i]);
  if (i > 0 && p->dtype != l->properties.dtype)
    return rs_path_error(m->mapper->path,
                         rs_error(RESHARD_ERROR_INVALID, "inner tensor %lld would be %s, the one before it is %s",
                                  (long long)i, reshard_dtype_string(p->dtype),
                                  reshard_dtype_string(l->properties.dtype)));
  l->properties.dtype = p->dtype;
  if (p->requires_grad != had->requires_grad)
    l->properties.requires_grad = p->requires_grad;
  if (p->pin_memory != had->pin_memory)
    l->properties.pin_memory = p->pin_memory;
  l->type = type;
  return RESHARD_SUCCESS;
}

static reshard_status map_plain(nested_mapping *m, reshard_sharded_tensor plain) {
  reshard_sharded_tensor mapped;
  reshard_tree leaf = NULL;
  RS_TRY(rs_sharded_map(plain, m->mapper, &mapped));
  reshard_metadata metadata = mapped != NULL ? mapped->metadata : plain->metadata;
  reshard_properties properties = metadata->properties;
  reshard_device_type type = rs_metadata_type(metadata, plain->sharder);
  if (mapped != NULL)
    RS_TRY(rs_sharded_leaf(mapped, &leaf));
  return deliver_inner(m, leaf, &plain->metadata->properties, &properties, type);
}

/* Makes the nested tensor of a level whose inner tensors are all known, and some are others. */
static reshard_status make_nested(mapped_level *l, rs_nested **made) {
  rs_nested *n;
  RS_TRY(rs_alloc_zero(&n, 1, sizeof *n));
  n->sharder = l->nested->sharder;
  reshard_status status;
  RS_TRY_GOTO(status, rs_metadata_as(l->nested->outer, &l->properties, l->type, &n->outer), failed);
  RS_TRY_GOTO(status, rs_alloc_copy(&n->entries, l->nested->entries, l->nested->n, sizeof *n->entries), failed);
  RS_TRY_GOTO(status, rs_alloc_copy(&n->given, l->nested->given, l->nested->outer->n, sizeof *n->given), failed);
  RS_TRY_GOTO(status, rs_alloc_zero(&n->inner, l->nested->n, sizeof *n->inner), failed);
  for (; n->n < l->nested->n; n->n++) {
    n->inner[n->n] = l->inner[n->n];
    l->inner[n->n] = NULL;
  }
  *made = n;
  return status;
failed:
  rs_nested_release(n);
  return status;
}

/* All inner tensors of the innermost level are known; *made: its replacement, NULL: itself. */
static reshard_status finish_level(nested_mapping *m, rs_nested **made) {
  mapped_level *l = &m->levels.at[m->levels.n - 1];
  *made = NULL;
  if (l->nested->n == 0)
    RS_TRY(rs_placeholder_map(l->nested->sharder, m->mapper, &l->properties, &l->type, &l->changed));
  return l->changed ? make_nested(l, made) : RESHARD_SUCCESS;
}

static reshard_status finish_inner(nested_mapping *m) {
  rs_nested *made;
  reshard_tree leaf = NULL;
  RS_TRY(finish_level(m, &made));
  const mapped_level *l = &m->levels.at[m->levels.n - 1];
  const reshard_properties *had = &l->nested->outer->properties;
  reshard_properties properties = l->properties;
  reshard_device_type type = l->type;
  if (made != NULL)
    RS_TRY_OR(reshard_tree_opaque(&rs_nested_type, made, &leaf), rs_nested_release(made));
  leave_level(m);
  return deliver_inner(m, leaf, had, &properties, type);
}

static reshard_status map_levels(nested_mapping *m, const rs_nested *nested, rs_nested **mapped) {
  RS_TRY(enter_level(m, nested));
  for (;;) {
    const mapped_level *l = &m->levels.at[m->levels.n - 1];
    if (l->next == l->nested->n && m->levels.n == 1)
      return finish_level(m, mapped);
    if (l->next == l->nested->n) {
      RS_TRY(finish_inner(m));
      continue;
    }
    reshard_tree inner = l->nested->inner[l->next];
    RS_TRY(rs_leaf_nested(inner) != NULL ? enter_level(m, rs_leaf_nested(inner))
                                         : map_plain(m, rs_leaf_sharded(inner)));
  }
}

reshard_status rs_nested_map(const rs_nested *nested, const rs_tensor_mapper *mapper, rs_nested **mapped) {
  nested_mapping m = {.mapper = mapper};
  *mapped = NULL;
  reshard_status status = map_levels(&m, nested, mapped);
  while (m.levels.n > 0)
    leave_level(&m);
  free(m.levels.at);
  return status;
}
