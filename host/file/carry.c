#include "file/carry.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

/* A tensor of the source whose name is a key. */
typedef struct key_tensor {
  int64_t pair;    /* of the owner's metadata; -1: its name is no key */
  int64_t changed; /* a tensor of the target that has it in another form; -1: none */
  bool carried;
} key_tensor;

typedef struct carrier {
  reshard_checkpoint in;
  reshard_model target;
  rs_text_pairs *carried;
  key_tensor *tensors; /* by tensor of the source */
  int64_t *parts;      /* regions of each tensor of the target */
} carrier;

static reshard_status carry_pair(carrier *c, const char *key, const char *value) {
  bool differs = false;
  char quoted[RS_QUOTE];
  if (rs_text_pairs_own(key))
    return RESHARD_SUCCESS;
  RS_TRY(rs_text_pairs_put(c->carried, key, value, &differs));
  return differs ? rs_checkpoint_note(c->in, "'%s' of \"__metadata__\" has two values by the map: left out",
                                      rs_quote(quoted, sizeof quoted, key))
                 : RESHARD_SUCCESS;
}

/* True for a region that is all of both tensors, as it is. */
static bool is_whole(const carrier *c, const rs_copy_region *r) {
  const rs_model_tensor *from = &c->in->store.model->tensors.at[r->src], *to = &c->target->tensors.at[r->dst];
  bool whole = c->parts[r->dst] == 1 && from->ndim == to->ndim && from->dtype == to->dtype;
  for (int d = 0; d < from->ndim && whole; d++)
    whole = r->permutation[d] == d && r->src_extent[d] == from->shape[d] && from->shape[d] == to->shape[d];
  return whole;
}

/* Finds the tensors whose names are keys; other keys are carried as they are. */
static reshard_status find_keys(carrier *c, int64_t *found) {
  const rs_text_pairs *owner = &c->in->owner;
  for (int64_t i = 0; i < c->in->info.tensors; i++)
    c->tensors[i] = (key_tensor){.pair = -1, .changed = -1};
  *found = 0;
  for (int64_t i = 0; i < owner->all.n; i++) {
    const char *key = owner->all.at[i].key;
    int64_t tensor = strcmp(key, "format") != 0 ? rs_names_find(&c->in->names, key, strlen(key)) : -1;
    if (tensor < 0)
      RS_TRY(carry_pair(c, key, owner->all.at[i].value));
    else
      c->tensors[tensor].pair = i;
    *found += tensor >= 0;
  }
  return RESHARD_SUCCESS;
}

static reshard_status follow_tensors(carrier *c, const rs_copy_regions *regions) {
  char quoted[RS_QUOTE], other[RS_QUOTE];
  const rs_text_pairs *owner = &c->in->owner;
  for (int64_t i = 0; i < regions->n; i++)
    c->parts[regions->at[i].dst]++;
  for (int64_t i = 0; i < regions->n; i++) {
    const rs_copy_region *r = &regions->at[i];
    if (r->src < 0) /* zeros */
      continue;
    key_tensor *t = &c->tensors[r->src];
    if (t->pair >= 0 && is_whole(c, r)) {
      t->carried = true;
      RS_TRY(carry_pair(c, rs_model_name(c->target, r->dst), owner->all.at[t->pair].value));
    } else if (t->pair >= 0 && t->changed < 0) {
      t->changed = r->dst;
    }
  }
  for (int64_t i = 0; i < c->in->info.tensors; i++)
    if (c->tensors[i].changed >= 0 && !c->tensors[i].carried)
      RS_TRY(rs_checkpoint_note(c->in, "'%s' of \"__metadata__\" is left out: '%s' has its tensor in another form",
                                rs_quote(quoted, sizeof quoted, rs_model_name(c->in->store.model, i)),
                                rs_quote(other, sizeof other, rs_model_name(c->target, c->tensors[i].changed))));
  return RESHARD_SUCCESS;
}

reshard_status rs_carry_metadata(reshard_checkpoint in, reshard_model target, const rs_copy_regions *regions,
                                 rs_text_pairs *carried) {
  carrier c = {.in = in, .target = target, .carried = carried};
  int64_t found = 0;
  RS_TRY(rs_alloc(&c.tensors, in->info.tensors, sizeof *c.tensors));
  reshard_status status = rs_alloc_zero(&c.parts, target->tensors.n, sizeof *c.parts);
  RS_THEN(status, find_keys(&c, &found));
  if (found > 0)
    RS_THEN(status, follow_tensors(&c, regions));
  RS_THEN(status, rs_text_pairs_settle(carried));
  free(c.tensors);
  free(c.parts);
  return status;
}

reshard_status rs_carry_compare(const rs_text_pairs *carried, reshard_checkpoint back) {
  const rs_text_pairs *read = &back->owner;
  char quoted[RS_QUOTE];
  bool format = rs_text_pairs_find(carried, "format") != NULL; /* else the writer has one of its own */
  if (read->all.n != carried->all.n + !format)
    return rs_error(RESHARD_ERROR_CORRUPT, "%lld entries of metadata are read back, %lld were written",
                    (long long)read->all.n, (long long)(carried->all.n + !format));
  for (int64_t i = 0; i < carried->all.n; i++) {
    const rs_text_pair *pair = &carried->all.at[i];
    const char *value = rs_text_pairs_find(read, pair->key);
    if (value == NULL || strcmp(value, pair->value) != 0)
      return rs_error(RESHARD_ERROR_CORRUPT, "'%s' of \"__metadata__\" has %s when read back",
                      rs_quote(quoted, sizeof quoted, pair->key), value == NULL ? "no value" : "another value");
  }
  return RESHARD_SUCCESS;
}
