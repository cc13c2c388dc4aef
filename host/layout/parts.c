/* A dim that is cut part by part: S0{4096,1024,1024}, S0{32:8/8:8/8}, S0/4.
 *
 * The layout keeps a list as it is printed, and behind it, in the same memory, as a cut wants it: without empty parts.
 * So lists that cut alike compare equal. */
#include "layout/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARTS_TEXT 96

void rs_parts_text(rs_text *text, const reshard_placement *p) {
  for (int k = 0; k < p->nparts; k++) {
    if (p->nparts > 1) {
      rs_text_string(text, k == 0 ? "{" : p->ratio ? ":" : ",");
      rs_text_number(text, p->parts[k].size);
    }
    if (p->parts[k].pieces > 0) {
      rs_text_string(text, "/");
      rs_text_number(text, p->parts[k].pieces);
    }
  }
  rs_text_string(text, p->nparts > 1 ? "}" : "");
}

static const char *shown_parts(char buffer[PARTS_TEXT], const reshard_placement *p) {
  rs_text text = {.at = buffer, .size = PARTS_TEXT};
  rs_parts_text(&text, p);
  if (text.length >= PARTS_TEXT)
    memcpy(buffer + PARTS_TEXT - 5, "...}", 5);
  return buffer;
}

/* The sum of the sizes, each of which is checked. */
static reshard_status add_sizes(const reshard_placement *p, int m, int64_t *sum) {
  *sum = 0;
  for (int k = 0; k < p->nparts; k++) {
    const reshard_part *part = &p->parts[k];
    if (part->size < (p->ratio && p->nparts > 1) || part->pieces < 0)
      return rs_error(RESHARD_ERROR_INVALID, "mesh: part %d of mesh dim %d: %s %lld in %lld pieces", k, m,
                      p->ratio ? "number" : "size", (long long)part->size, (long long)part->pieces);
    if (p->nparts > 1 && !rs_add(*sum, part->size, sum))
      return rs_error(RESHARD_ERROR_INVALID, "mesh: the parts of mesh dim %d overflow 63 bits", m);
  }
  return RESHARD_SUCCESS;
}

/* Sizes add up to the extent, or are a ratio whose sum divides it. */
static reshard_status check_sizes(const reshard_placement *p, int m, int64_t extent) {
  char text[PARTS_TEXT];
  int64_t sum;
  RS_TRY(add_sizes(p, m, &sum));
  if (p->nparts == 1 || (p->ratio ? extent % sum == 0 : sum == extent))
    return RESHARD_SUCCESS;
  if (p->ratio)
    return rs_error(RESHARD_ERROR_INVALID, "mesh: dim %d: the sum of %s, %lld, does not divide %lld", p->dim,
                    shown_parts(text, p), (long long)sum, (long long)extent);
  return rs_error(RESHARD_ERROR_INVALID, "mesh: dim %d: %s is %lld of %lld", p->dim, shown_parts(text, p),
                  (long long)sum, (long long)extent);
}

/* Sizes and pieces as they are printed. */
static reshard_status settle_parts(reshard_placement *p, reshard_part *parts, int64_t extent, int64_t ranks) {
  int64_t sum = 0;
  for (int k = 0; k < p->nparts; k++)
    sum += p->ratio ? parts[k].size : 0;
  for (int k = 0; k < p->nparts; k++) {
    reshard_part *part = &parts[k];
    if (p->nparts == 1)
      part->size = extent;
    else if (p->ratio)
      part->size *= extent / sum;
    if (part->pieces >= ranks)
      part->pieces = 0;
    if (part->pieces > 0 && ranks % part->pieces != 0)
      return rs_error(RESHARD_ERROR_INVALID, "mesh: dim %d: /%lld of %lld ranks, which it does not divide", p->dim,
                      (long long)part->pieces, (long long)ranks);
  }
  p->ratio = 0;
  return RESHARD_SUCCESS;
}

static reshard_status keep_list(struct reshard_layout_s *l, int m, const reshard_placement *given) {
  reshard_placement *p = &l->placements[m];
  if (given->nparts < 0 || (given->nparts > 0 && given->parts == NULL))
    return rs_error(RESHARD_ERROR_INVALID, "mesh: %d parts of mesh dim %d, or NULL", given->nparts, m);
  if (given->nparts > RESHARD_MAX_PARTS)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "mesh: %d parts of mesh dim %d, at most %d", given->nparts, m,
                    RESHARD_MAX_PARTS);
  if (given->nparts == 0)
    return RESHARD_SUCCESS;
  reshard_placement checked = *given;
  checked.dim = p->dim;
  RS_TRY(check_sizes(&checked, m, l->shape[p->dim]));
  reshard_part *parts;
  RS_TRY(rs_alloc_zero(&parts, given->nparts, sizeof *parts + sizeof(rs_cut_part) + sizeof(rs_part_run)));
  memcpy(parts, given->parts, (size_t)given->nparts * sizeof *parts);
  p->parts = parts;
  p->nparts = given->nparts;
  p->ratio = given->ratio;
  RS_TRY(settle_parts(p, parts, l->shape[p->dim], l->mesh_shape[m]));
  if (p->nparts == 1 && parts->pieces == 0) { /* a Shard without parts */
    free(parts);
    p->parts = NULL;
    p->nparts = 0;
  }
  return RESHARD_SUCCESS;
}

static bool is_divided(const reshard_placement *p) {
  for (int k = 0; k < p->nparts; k++)
    if (p->parts[k].pieces > 0)
      return true;
  return false;
}

static const char *mesh_dim_text(char buffer[24], const struct reshard_layout_s *l, int m) {
  snprintf(buffer, 24, "%d", m);
  return l->names != NULL ? l->names[m] : buffer;
}

/* The order in which mesh dim m cuts before mesh dim `before`. */
static reshard_status refuse_order(const struct reshard_layout_s *l, int m, int before) {
  char order[128], parts[PARTS_TEXT], number[24];
  rs_text text = {.at = order, .size = sizeof order};
  for (int i = 0; i < l->mesh_ndim; i++) {
    int at = l->order != NULL ? l->order[i] : i;
    if (at == before)
      rs_text_add(&text, "%s,", mesh_dim_text(number, l, m));
    if (at != m)
      rs_text_add(&text, "%s,", mesh_dim_text(number, l, at));
  }
  if (text.length > 0 && text.length < sizeof order)
    order[text.length - 1] = '\0'; /* the comma */
  return rs_error(RESHARD_ERROR_INVALID, "mesh: S%d%s of mesh dim %s cuts behind mesh dim %s: say order=%s",
                  l->placements[m].dim, shown_parts(parts, &l->placements[m]), mesh_dim_text(number, l, m),
                  mesh_dim_text((char[24]){0}, l, before), order);
}

/* Parts are the first cut of their dim, and with fewer pieces than ranks the only one, in one dim. A mesh dim of one
 * rank cuts nothing. */
static reshard_status check_cuts(const struct reshard_layout_s *l) {
  int divided = -1;
  for (int i = 0; i < l->mesh_ndim; i++) {
    int m = l->order != NULL ? l->order[i] : i;
    const reshard_placement *p = &l->placements[m];
    if (p->nparts == 0 || l->mesh_shape[m] == 1)
      continue;
    for (int j = 0; j < l->mesh_ndim; j++) {
      int other = l->order != NULL ? l->order[j] : j;
      const reshard_placement *q = &l->placements[other];
      if (other == m || q->kind == RESHARD_PLACEMENT_REPLICATE || q->dim != p->dim || l->mesh_shape[other] == 1)
        continue;
      if (is_divided(p) || is_divided(q))
        return rs_error(RESHARD_ERROR_INVALID, "mesh: mesh dims %d and %d cut dim %d, which parts with / allow to one",
                        m, other, p->dim);
      if (q->nparts > 0)
        return rs_error(RESHARD_ERROR_INVALID, "mesh: mesh dims %d and %d both cut dim %d part by part", m, other,
                        p->dim);
      if (j < i)
        return refuse_order(l, m, other);
    }
    if (is_divided(p) && divided >= 0)
      return rs_error(RESHARD_ERROR_INVALID, "mesh: parts with / in dims %d and %d, one dim of a layout may have them",
                      divided, p->dim);
    if (is_divided(p))
      divided = p->dim;
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_parts_keep(struct reshard_layout_s *l, const reshard_placement *given) {
  for (int m = 0; m < l->mesh_ndim; m++)
    if (l->placements[m].kind == RESHARD_PLACEMENT_SHARD)
      RS_TRY(keep_list(l, m, &given[m]));
    else if (l->placements[m].kind == RESHARD_PLACEMENT_STRIDED_SHARD && given[m].nparts != 0)
      return rs_error(RESHARD_ERROR_INVALID, "mesh: %d parts of mesh dim %d, which is strided: a Shard has parts",
                      given[m].nparts, m);
  return check_cuts(l);
}

void rs_parts_free(struct reshard_layout_s *l) {
  for (int m = 0; l->placements != NULL && m < l->mesh_ndim; m++)
    free((void *)l->placements[m].parts);
}

rs_cut rs_parts_cut(const struct reshard_layout_s *l, int m, int64_t stride, rs_replica *replica) {
  const reshard_placement *p = &l->placements[m];
  int64_t ranks = l->mesh_shape[m];
  rs_cut cut = {.kind = RS_CUT_SHARD, .w = ranks, .factor = 1, .stride = stride, .ranks = ranks, .nruns = 1};
  *replica = (rs_replica){1, stride};
  if (p->nparts == 0)
    return cut;
  rs_cut_part *parts = (rs_cut_part *)(void *)(p->parts + p->nparts);
  rs_cut_set_parts(&cut, p->nparts, p->parts, parts, (rs_part_run *)(void *)(parts + p->nparts));
  if (cut.nruns > 1)
    return cut;
  int64_t pieces = cut.nruns == 1 ? cut.w : p->parts->pieces > 0 ? p->parts->pieces : ranks;
  *replica = (rs_replica){ranks / pieces, stride}; /* one number of pieces: a mesh of pieces by ranks that share each */
  cut.w = cut.ranks = pieces;
  cut.stride *= ranks / pieces;
  cut.nruns = 1;
  if (cut.nparts < 2) { /* a plain Shard */
    cut.kind = RS_CUT_SHARD;
    cut.nparts = 0;
  }
  return cut;
}
