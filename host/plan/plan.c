/* Making a plan: check entries, sort them into classes, intersect each class once, add up. */
#include "base/dtype.h"
#include "base/range.h"
#include "plan/hops.h"
#include "plan/intersect.h"
#include "plan/rounds.h"
#include "plan/scaled.h"
#include "plan/topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const op_names[] = {"copy", "sum", "avg", "min", "max", "prod"};

static const char *name_of(const reshard_entry *e) { return e->name != NULL ? e->name : "tensor"; }

#define LABEL_TEXT 96
static const char *label_of(char text[LABEL_TEXT], int64_t i, const reshard_entry *e) {
  snprintf(text, LABEL_TEXT, "entry %lld '%.64s'", (long long)i, name_of(e));
  return text;
}

/* Segments have narrow numbers of arrays. Only boxes, an array each, could be too many. */
static reshard_status check_arrays(const char *label, const char *side, const struct reshard_layout_s *l) {
  return l->kind == RESHARD_LAYOUT_BOXES && l->boxes->n > INT32_MAX
             ? rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: %s layout has %lld boxes, a plan takes %d at most", label, side,
                        (long long)l->boxes->n, INT32_MAX)
             : RESHARD_SUCCESS;
}

static reshard_dtype dst_dtype_of(const reshard_entry *e) {
  return e->dst_dtype != RESHARD_DTYPE_NONE ? e->dst_dtype : e->dtype;
}

static reshard_status check_entry(const char *label, const reshard_entry *e, int64_t world, bool smaller) {
  if (e->size != sizeof *e)
    return rs_error(RESHARD_ERROR_INVALID, "%s: size field %zu, this library's reshard_entry has %zu", label, e->size,
                    sizeof *e);
  if (e->src == NULL || e->dst == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %s layout is NULL", label, e->src == NULL ? "src" : "dst");
  if (e->src->world > world || e->dst->world > world ||
      (!smaller && (e->src->world != world || e->dst->world != world)))
    return rs_error(RESHARD_ERROR_INVALID, "%s: layouts of worlds of %lld and %lld ranks, the plan's has %lld", label,
                    (long long)e->src->world, (long long)e->dst->world, (long long)world);
  if (reshard_dtype_size(e->dtype) == 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: unknown dtype %d", label, (int)e->dtype);
  if (e->dst_dtype != RESHARD_DTYPE_NONE && reshard_dtype_size(e->dst_dtype) == 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: unknown destination dtype %d", label, (int)e->dst_dtype);
  if (dst_dtype_of(e) != e->dtype && !rs_cast_supported(e->dtype, e->dst_dtype))
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: no cast from %s to %s", label, reshard_dtype_string(e->dtype),
                    reshard_dtype_string(e->dst_dtype));
  if ((int)e->op < 0 || e->op > RESHARD_OP_PROD)
    return rs_error(RESHARD_ERROR_INVALID, "%s: unknown operation %d", label, (int)e->op);
  if (e->op != RESHARD_OP_COPY)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: operation %s is not built, copy is", label, op_names[e->op]);
  RS_TRY(check_arrays(label, "src", e->src));
  RS_TRY(check_arrays(label, "dst", e->dst));
  reshard_status status = reshard_layout_check_source(e->src);
  if (status != RESHARD_SUCCESS) {
    char text[768];
    snprintf(text, sizeof text, "%s", reshard_last_error());
    return rs_error(status, "%s: src layout: %s", label, text);
  }
  return RESHARD_SUCCESS;
}

static uint64_t class_hash(const rs_class *c) {
  uint64_t words[5] = {rs_layout_hash(c->src), rs_layout_hash(c->dst), (uint64_t)c->from.width, (uint64_t)c->from.dtype,
                       (uint64_t)c->to.dtype};
  return rs_hash(rs_hash(0, words, sizeof words), &c->space, sizeof c->space);
}

static bool class_equal(const rs_class *a, const rs_class *b) {
  return rs_format_equal(a->from, b->from) && rs_format_equal(a->to, b->to) &&
         rs_scaling_equal(a->scaling, b->scaling) && memcmp(&a->space, &b->space, sizeof a->space) == 0 &&
         reshard_layout_equal(a->src, b->src) && reshard_layout_equal(a->dst, b->dst);
}

/* The narrower of both dtypes travels, the source's where they are equally wide. */
static void set_formats(rs_class *c, reshard_dtype from, reshard_dtype to) {
  bool converts = from != to;
  c->from = (rs_format){(int64_t)reshard_dtype_size(from), converts ? from : RESHARD_DTYPE_NONE};
  c->to = (rs_format){(int64_t)reshard_dtype_size(to), converts ? to : RESHARD_DTYPE_NONE};
  c->wire = c->to.width < c->from.width ? c->to : c->from;
}

/* Puts an entry into its class, a new one where there is none; table is open-addressed, of `slots` (a power of two). */
static reshard_status add_to_class(struct reshard_plan_s *plan, int64_t *table, int64_t slots, int64_t entry,
                                   const rs_class *wanted) {
  int64_t at = (int64_t)(class_hash(wanted) & (uint64_t)(slots - 1));
  while (table[at] >= 0 && !class_equal(&plan->classes.at[table[at]], wanted))
    at = (at + 1) & (slots - 1);
  if (table[at] < 0) {
    RS_TRY(rs_vec_reserve(&plan->classes, plan->classes.n + 1));
    rs_class *c = &plan->classes.at[plan->classes.n];
    rs_scaling *scaling;
    RS_TRY(rs_scaling_copy(wanted->scaling, &scaling));
    *c = *wanted;
    c->scaling = scaling;
    c->first_entry = entry;
    reshard_layout_retain(c->src);
    reshard_layout_retain(c->dst);
    table[at] = plan->classes.n++;
  }
  plan->entries[entry].class_ = table[at];
  plan->classes.at[table[at]].entries++;
  return RESHARD_SUCCESS;
}

/* Adds the bytes of an entry, or of a part of one, and puts it into its class. */
static reshard_status add_part(struct reshard_plan_s *plan, const char *label, int64_t i, int64_t *table, int64_t slots,
                               const rs_class *wanted) {
  int64_t bytes = wanted->wire.width * rs_space_elements(&wanted->space), whole;
  /* A rank sends each other one all bytes at most, and stages them in steps of 256. */
  if (!rs_add(plan->info.bytes, bytes, &plan->info.bytes) || !rs_add(plan->info.bytes, 512, &whole) ||
      !rs_mul(whole, plan->world, &whole))
    return rs_error(RESHARD_ERROR_INVALID, "%s: the bytes of all entries, on each of %lld ranks, overflow 63 bits",
                    label, (long long)plan->world);
  if (rs_class_in_blocks(wanted))
    plan->block = rs_max(plan->block, wanted->wire.width);
  return add_to_class(plan, table, slots, i, wanted);
}

/* The first part of an entry with scales is the entry itself, the others are behind all entries. */
static reshard_status add_parts(struct reshard_plan_s *plan, const char *label, int64_t i, int64_t *table,
                                int64_t slots, rs_scaling *scaling) {
  rs_class part;
  const rs_entry *whole = &plan->entries[i];
  for (int k = 0; rs_scaling_part(scaling, whole->dtype, whole->dst_dtype, k, &part); k++) {
    int64_t at = k == 0 ? i : plan->nentries++;
    if (k > 0)
      plan->entries[at] = *whole;
    RS_TRY(add_part(plan, label, at, table, slots, &part));
  }
  return RESHARD_SUCCESS;
}

static reshard_status add_entry(struct reshard_plan_s *plan, const reshard_entry *e, int64_t i, int64_t *table,
                                int64_t slots) {
  char label[LABEL_TEXT];
  label_of(label, i, e);
  RS_TRY(check_entry(label, e, plan->world, plan->smaller));
  rs_entry *kept = &plan->entries[i];
  int64_t length = (int64_t)strlen(name_of(e)) + 1;
  kept->name = memcpy(plan->names->at + plan->names->used, name_of(e), (size_t)length);
  plan->names->used += length;
  kept->of = i;
  kept->dtype = e->dtype;
  kept->dst_dtype = dst_dtype_of(e);
  kept->src_buffer = plan->nsrc;
  kept->dst_buffer = plan->ndst;
  rs_class wanted = {.src = e->src, .dst = e->dst};
  set_formats(&wanted, kept->dtype, kept->dst_dtype);
  int64_t widest = rs_max(wanted.from.width, wanted.to.width) + (e->block != NULL ? 4 : 0), whole;
  if (!rs_mul(rs_max(e->src->elements, e->dst->elements), widest, &whole) || !rs_mul(whole, plan->world, &whole))
    return rs_error(RESHARD_ERROR_INVALID, "%s: its bytes, on each of %lld ranks, overflow 63 bits", label,
                    (long long)plan->world); /* sums over replicas go that far */
  RS_TRY(rs_space_create(label, e, &wanted.space));
  rs_scaling *scaling;
  RS_TRY(rs_scaling_create(label, e, &wanted.space, &scaling));
  wanted.scaling = scaling;
  plan->nsrc += rs_class_buffers(&wanted, true, plan->rank);
  plan->ndst += rs_class_buffers(&wanted, false, plan->rank);
  reshard_status status = scaling != NULL ? add_parts(plan, label, i, table, slots, scaling)
                                          : add_part(plan, label, i, table, slots, &wanted);
  rs_scaling_free(scaling);
  return status;
}

static int64_t order_width(const rs_class *c) { return rs_class_in_blocks(c) ? 1 : c->wire.width; }

static reshard_status add_entries(struct reshard_plan_s *plan, int64_t n, const reshard_entry *entries) {
  int64_t *table = NULL, slots = 8, most = n, bytes = sizeof *plan->names;
  for (int64_t i = 0; i < n && entries[i].size == sizeof *entries; i++) { /* one of another size is refused */
    most += entries[i].block != NULL ? RS_SCALING_PARTS - 1 : 0;
    bytes += (int64_t)strlen(name_of(&entries[i])) + 1;
  }
  while (slots < 2 * most)
    slots *= 2;
  RS_TRY(rs_alloc_zero(&plan->entries, most, sizeof *plan->entries));
  RS_TRY(rs_alloc(&plan->names, bytes, 1));
  atomic_init(&plan->names->references, 1);
  plan->names->used = 0;
  RS_TRY(rs_alloc(&plan->order, most, sizeof *plan->order));
  RS_TRY(rs_alloc(&table, slots, sizeof *table));
  memset(table, -1, (size_t)slots * sizeof *table);
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0; i < n && status == RESHARD_SUCCESS; i++)
    status = add_entry(plan, &entries[i], i, table, slots);
  free(table);
  int64_t at = 0;
  for (int64_t width = 16; width >= 1; width /= 2)
    for (int64_t i = 0; i < plan->nentries && status == RESHARD_SUCCESS; i++)
      if (order_width(&plan->classes.at[plan->entries[i].class_]) == width)
        plan->order[at++] = i;
  return status;
}

/* The totals. Every message's bytes fit, since an entry's do and a rank receives an element once. */
static reshard_status add_up(struct reshard_plan_s *plan) {
  reshard_plan_info *info = &plan->info;
  const rs_peer *peers;
  RS_TRY(rs_plan_find_peers(plan));
  for (int64_t i = 0; i < plan->classes.n; i++) {
    const rs_class *c = &plan->classes.at[i];
    int64_t bytes = c->wire.width * c->entries;
    info->self_copy_bytes += c->kept * bytes;
    info->lower_bound_bytes += (c->wanted - c->kept) * bytes;
    info->exclusive_bytes += c->exclusive * bytes;
    info->segments += c->send.nsegments + c->receive.nsegments;
    info->memory_bytes += rs_class_memory(c);
  }
  if (plan->hops != NULL)
    info->memory_bytes += rs_hops_memory(plan->hops);
  for (int64_t i = 0, n = rs_plan_partners(plan, &peers); i < n; i++) {
    info->sent_bytes += peers[i].sent;
    info->received_bytes += peers[i].received;
    info->peers = i + 1;
  }
  info->entries = plan->ngiven;
  info->classes = plan->classes.n;
  info->rank = plan->rank;
  info->world = plan->nentries > 0 ? plan->world : 0;
  info->stages = 1;
  info->memory_bytes += (int64_t)sizeof *plan + plan->nentries * (int64_t)(sizeof(rs_entry) + sizeof(int64_t)) +
                        plan->peers.cap * (int64_t)sizeof(rs_peer);
  return RESHARD_SUCCESS;
}

uint64_t rs_plan_field(const struct reshard_plan_s *plan, int field, int64_t i, uint64_t before) {
  const rs_class *c = &plan->classes.at[plan->entries[i].class_];
  reshard_layout src = rs_class_layout(c, true), dst = rs_class_layout(c, false);
  int64_t dtypes[2] = {plan->entries[i].dtype, plan->entries[i].dst_dtype};
  uint64_t layouts[2];
  switch (field) {
  case RS_FIELD_TENSORS:
    before = rs_hash(before + 1, src->shape, (size_t)src->ndim * sizeof(int64_t));
    return rs_hash(before + 2, dst->shape, (size_t)dst->ndim * sizeof(int64_t));
  case RS_FIELD_LAYOUTS:
    layouts[0] = rs_layout_hash(src);
    layouts[1] = rs_layout_hash(dst);
    return rs_hash(before, layouts, sizeof layouts);
  case RS_FIELD_DTYPES:
    before = rs_hash(before, dtypes, sizeof dtypes);
    return c->scaling == NULL ? before
                              : rs_hash(rs_hash(before, c->scaling->block, sizeof c->scaling->block),
                                        &c->scaling->dtype, sizeof c->scaling->dtype);
  default: return rs_hash(before, rs_class_space(c), sizeof c->space);
  }
}

uint64_t rs_plan_hash_options(const struct reshard_plan_s *plan) {
  uint64_t hash = rs_hash(0, &plan->limit, sizeof plan->limit);
  if (plan->nodes != NULL)
    hash = rs_hash(hash, plan->nodes, (size_t)plan->world * sizeof *plan->nodes);
  return plan->topology != NULL ? rs_hash(hash, plan->topology, sizeof *plan->topology) : hash;
}

/* One hash per field that ranks compare. Names and strides are a rank's own business. */
static void hash_fields(struct reshard_plan_s *plan) {
  uint64_t *f = plan->fields;
  f[RS_FIELD_VERSION] = rs_hash(1, RESHARD_VERSION_STRING, sizeof RESHARD_VERSION_STRING);
  for (int64_t i = 0; i < plan->ngiven; i++)
    for (int field = RS_FIELD_TENSORS; field <= RS_FIELD_REGIONS; field++)
      f[field] = rs_plan_field(plan, field, i, f[field]);
  f[RS_FIELD_OPTIONS] = rs_plan_hash_options(plan);
}

static reshard_status read_options(struct reshard_plan_s *plan, const reshard_plan_options *options) {
  const reshard_plan_options defaults = RESHARD_PLAN_OPTIONS_DEFAULTS;
  if (options == NULL)
    options = &defaults;
  RS_TRY(RS_SIZED(reshard_plan_options, options));
  if (options->workspace_limit < RESHARD_NO_LIMIT)
    return rs_error(RESHARD_ERROR_INVALID, "workspace limit %lld: it may not be negative, but for RESHARD_NO_LIMIT, %d",
                    (long long)options->workspace_limit, RESHARD_NO_LIMIT);
  plan->limit = options->workspace_limit;
  plan->on_cpu = options->on_cpu != 0;
  if (options->topology != NULL)
    return rs_topology_read(plan, options->topology, options->nodes);
  return options->nodes == NULL || plan->nentries == 0
             ? RESHARD_SUCCESS /* and the number of ranks is not known */
             : rs_alloc_copy(&plan->nodes, options->nodes, plan->world, sizeof *plan->nodes);
}

reshard_status rs_plan_begin(int64_t nentries, const reshard_entry *entries, int64_t rank, int64_t world, bool smaller,
                             const reshard_plan_options *options, struct reshard_plan_s **plan) {
  if (rank < 0 || rank >= world)
    return rs_error(RESHARD_ERROR_INVALID, "rank %lld is not in the world of %lld ranks", (long long)rank,
                    (long long)world);
  struct reshard_plan_s *made;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  made->rank = rank;
  made->world = world;
  made->smaller = smaller;
  made->ngiven = made->nentries = nentries;
  reshard_status status;
  RS_TRY_GOTO(status, read_options(made, options), fail);
  RS_TRY_GOTO(status, add_entries(made, nentries, entries), fail);
  RS_TRY_GOTO(status, rs_plan_set_held(made), fail);
  if (made->topology != NULL && made->block == 0) /* streams are cut anywhere */
    RS_TRY_GOTO(status, rs_topology_choose(made), fail);
  hash_fields(made);
  *plan = made;
  return RESHARD_SUCCESS;
fail:
  reshard_plan_destroy(made);
  return status;
}

/* Copies the entries of another rank's plan; buffers are this rank's own. */
static reshard_status copy_entries(struct reshard_plan_s *plan, const struct reshard_plan_s *like) {
  RS_TRY(rs_alloc(&plan->entries, like->nentries, sizeof *plan->entries));
  plan->names = RS_RETAIN(like->names);
  RS_TRY(rs_alloc_copy(&plan->order, like->order, like->nentries, sizeof *plan->order));
  for (int64_t i = 0; i < like->nentries; i++) {
    const rs_entry *from = &like->entries[i];
    const rs_class *c = &like->classes.at[from->class_];
    const rs_entry *whole = i < like->ngiven ? NULL : &plan->entries[from->of];
    plan->entries[i] = *from;
    plan->entries[i].src_buffer = whole != NULL ? whole->src_buffer : plan->nsrc;
    plan->entries[i].dst_buffer = whole != NULL ? whole->dst_buffer : plan->ndst;
    if (whole != NULL)
      continue;
    plan->nsrc += rs_class_buffers(c, true, plan->rank);
    plan->ndst += rs_class_buffers(c, false, plan->rank);
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_plan_begin_like(const struct reshard_plan_s *like, int64_t rank, struct reshard_plan_s **plan) {
  struct reshard_plan_s *made;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  made->rank = rank;
  made->world = like->world;
  made->smaller = like->smaller;
  made->ngiven = like->ngiven;
  made->nentries = like->nentries;
  made->block = like->block;
  made->limit = like->limit;
  made->held = like->held;
  made->on_cpu = like->on_cpu;
  made->info.bytes = like->info.bytes;
  memcpy(made->fields, like->fields, sizeof made->fields);
  reshard_status status;
  if (like->nodes != NULL)
    RS_TRY_GOTO(status, rs_alloc_copy(&made->nodes, like->nodes, like->world, sizeof *made->nodes), fail);
  if (like->topology != NULL)
    RS_TRY_GOTO(status, rs_alloc_copy(&made->topology, like->topology, 1, sizeof *made->topology), fail);
  RS_TRY_GOTO(status, copy_entries(made, like), fail);
  RS_TRY_GOTO(status, rs_alloc(&made->classes.at, like->classes.n, sizeof(rs_class)), fail);
  made->classes.cap = like->classes.n;
  for (made->classes.n = 0; made->classes.n < like->classes.n; made->classes.n++) {
    rs_class *c = &made->classes.at[made->classes.n];
    const rs_class *from = &like->classes.at[made->classes.n];
    rs_scaling *scaling;
    RS_TRY_GOTO(status, rs_scaling_copy(from->scaling, &scaling), fail);
    *c = *from;
    c->scaling = scaling;
    reshard_layout_retain(c->src);
    reshard_layout_retain(c->dst);
  }
  *plan = made;
  return RESHARD_SUCCESS;
fail:
  reshard_plan_destroy(made);
  return status;
}

reshard_status rs_plan_finish(struct reshard_plan_s *plan) {
  if (plan->topology != NULL && plan->topology->chains > 0)
    RS_TRY(rs_hops_create(plan, &plan->hops));
  RS_TRY(add_up(plan));
  if (plan->topology != NULL)
    RS_TRY(rs_topology_count(plan));
  return rs_plan_set_rounds(plan);
}

static reshard_status create_plan(int64_t nentries, const reshard_entry *entries, int64_t rank, int64_t world,
                                  bool smaller, const reshard_plan_options *options, reshard_plan *plan) {
  int64_t start = rs_now_ns();
  struct reshard_plan_s *made;
  RS_TRY(rs_plan_begin(nentries, entries, rank, world, smaller, options, &made));
  reshard_status status;
  for (int64_t i = 0; i < made->classes.n; i++)
    RS_TRY_GOTO(status, rs_class_intersect(&made->classes.at[i], rank, world, made->nodes), fail);
  RS_TRY_GOTO(status, rs_plan_finish(made), fail);
  made->info.plan_ns = rs_now_ns() - start;
  *plan = made;
  return RESHARD_SUCCESS;
fail:
  reshard_plan_destroy(made);
  return status;
}

reshard_status rs_plan_world(const reshard_entry *first, int64_t *world) {
  if (first->size != sizeof *first || first->src == NULL)
    return check_entry("entry 0", first, 0, false);
  *world = first->src->world;
  return RESHARD_SUCCESS;
}

reshard_status reshard_plan_create(int64_t nentries, const reshard_entry *entries, int64_t rank,
                                   const reshard_plan_options *options, reshard_plan *plan) {
  if (plan == NULL || nentries < 0 || (nentries > 0 && entries == NULL))
    return rs_error(RESHARD_ERROR_INVALID, "reshard_plan_create: %lld entries, NULL argument", (long long)nentries);
  RS_RANGE("plan", -1, -1, -1, nentries);
  int64_t world = rank < INT64_MAX ? rank + 1 : rank; /* of a plan without entries: any communicator will do */
  if (nentries > 0)
    RS_TRY(rs_plan_world(&entries[0], &world));
  return create_plan(nentries, entries, rank, world, false, options, plan);
}

reshard_status rs_plan_create_wide(int64_t nentries, const reshard_entry *entries, int64_t rank, int64_t world,
                                   reshard_plan *plan) {
  return create_plan(nentries, entries, rank, world, true, NULL, plan);
}

void reshard_plan_destroy(reshard_plan plan) {
  if (plan == NULL)
    return;
  if (RS_DROP(plan->names))
    free(plan->names);
  for (int64_t i = 0; i < plan->classes.n; i++)
    rs_class_free(&plan->classes.at[i]);
  if (plan->shared == NULL)
    free(plan->peers.at);
  free(plan->entries);
  free(plan->order);
  free(plan->classes.at);
  free(plan->nodes);
  free(plan->topology);
  rs_hops_free(plan->hops);
  rs_shared_release(plan->shared);
  free(plan);
}

reshard_status reshard_plan_get_info(reshard_plan plan, reshard_plan_info *info) {
  RS_TRY(RS_GIVEN("reshard_plan_get_info", plan, info));
  *info = plan->info;
  return RESHARD_SUCCESS;
}

reshard_status reshard_plan_peer(reshard_plan plan, int64_t i, int64_t *rank, int64_t *sent_bytes,
                                 int64_t *received_bytes) {
  RS_TRY(RS_GIVEN("reshard_plan_peer", plan, rank, sent_bytes, received_bytes));
  const rs_peer *peers;
  int64_t n = rs_plan_partners(plan, &peers);
  if (i < 0 || i >= n)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_plan_peer: peer %lld of %lld", (long long)i, (long long)n);
  *rank = peers[i].rank;
  *sent_bytes = peers[i].sent;
  *received_bytes = peers[i].received;
  return RESHARD_SUCCESS;
}
