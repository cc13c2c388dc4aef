/* The cache of plans, and the one way in which sharded tensors move data.
 *
 * The cache is a list, used last first: a plan that is asked for again and again is found at once, and the last one is
 * evicted. It holds plans, metadata, and what ranks have made between them for a plan (rs_cached_transfer).
 *
 * A rank's part in a collective call depends on its cache. So the cache follows from what all ranks know: a call that
 * succeeds on one rank does so on all, and it alone puts its plan first. Local calls have a cache of their own. */
#include "sharded/sharder.h"

#include "metadata/group.h"
#include "plan/topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CACHED_PLANS = 64 };

/* Finds the device from whose pool new arrays come: the one that is given, or one of the sharder's own, which copies
 * nothing. Tensors keep it. */
static reshard_status find_device(reshard_comm comm, const reshard_sharder_options *options, reshard_device *device) {
  const rs_device *of_comm = comm->device;
  const reshard_device_options own = {.size = RESHARD_DEVICE_OPTIONS_INIT,
                                      .threads = 1,
                                      .keep_bytes = options->keep_bytes,
                                      .shared = rs_comm_opens_nodes(comm) ? options->path == RESHARD_PATH_MIXED
                                                                          : comm->memory.imports != NULL};
  char name[32] = "cpu";
  if (of_comm->type == RESHARD_DEVICE_CUDA)
    snprintf(name, sizeof name, "cuda:%d", of_comm->index);
  if (options->device == NULL)
    return reshard_device_create(name, &own, device);
  const rs_device *given = options->device->device;
  if (given->type != of_comm->type || given->index != of_comm->index)
    return rs_error(RESHARD_ERROR_INVALID, "the device given is %s:%d, the communicator's is %s", given->name,
                    given->index, name);
  *device = reshard_device_retain(options->device);
  return RESHARD_SUCCESS;
}

static reshard_status read_options(reshard_comm comm, const reshard_sharder_options *options,
                                   struct reshard_sharder_s *s) {
  const reshard_sharder_options defaults = {.size = RESHARD_SHARDER_OPTIONS_INIT};
  if (options == NULL)
    options = &defaults;
  RS_TRY(RS_SIZED(reshard_sharder_options, options));
  if (options->cached_plans < -1 || options->workspace_limit < RESHARD_NO_LIMIT)
    return rs_error(RESHARD_ERROR_INVALID, "%lld cached plans, workspace limit %lld: -1 is the least of both",
                    (long long)options->cached_plans, (long long)options->workspace_limit);
  if (options->keep_bytes < -1 || (options->device != NULL && options->keep_bytes != 0))
    return rs_error(RESHARD_ERROR_INVALID,
                    options->device == NULL ? "%lld bytes kept: -1 is the least"
                                            : "%lld bytes kept: the device given says that",
                    (long long)options->keep_bytes);
  if ((int)options->path < RESHARD_PATH_AUTO || options->path > RESHARD_PATH_MIXED)
    return rs_error(RESHARD_ERROR_INVALID, "unknown path %d", (int)options->path);
  if (options->group.n != 0 && options->group.n != comm->size)
    return rs_error(RESHARD_ERROR_INVALID, "a group of %lld ranks for a communicator of %lld",
                    (long long)options->group.n, (long long)comm->size);
  s->comm = comm;
  s->group.n = comm->size;
  s->path = options->path;
  s->options = (struct reshard_plan_s){
      .rank = comm->rank, .world = comm->size, .nentries = 1, .limit = options->workspace_limit};
  s->limit = options->cached_plans == -1 ? 0 : options->cached_plans == 0 ? CACHED_PLANS : options->cached_plans;
  if (options->topology != NULL)
    RS_TRY(rs_topology_read(&s->options, options->topology, NULL));
  RS_TRY(find_device(comm, options, &s->device));
  if (comm->device->streams->asynchronous || !rs_comm_keeps_messages(comm)) /* else messages may be left in it */
    RS_TRY(rs_device_pool(s->device, &s->memory.staging_cache.pool));
  const int64_t *given = options->group.n == 0 ? reshard_comm_global_ranks(comm) : options->group.ranks;
  if (given == NULL)
    return RESHARD_SUCCESS;
  int64_t *ranks;
  RS_TRY(rs_group_check(&(reshard_group){comm->size, given}));
  RS_TRY(rs_alloc_copy(&ranks, given, comm->size, sizeof *ranks));
  s->group.ranks = ranks;
  return RESHARD_SUCCESS;
}

static void free_options(reshard_sharder s) {
  free(s->options.nodes);
  free(s->options.topology);
}

reshard_status rs_sharder_new(reshard_comm comm, const reshard_sharder_options *options, reshard_sharder *sharder) {
  struct reshard_sharder_s *made;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  reshard_status status = read_options(comm, options, made);
  if (status != RESHARD_SUCCESS) {
    reshard_device_release(made->device);
    free_options(made);
    free(made);
    return status;
  }
  rs_comm_hold(comm);
  *sharder = made;
  return RESHARD_SUCCESS;
}

static uint64_t hash_group(const void *group, int64_t first, int64_t end, uint64_t hash) {
  for (int64_t i = first; i < end; i++)
    hash = rs_hash(hash, &(int64_t){rs_group_at(group, i)}, sizeof(int64_t));
  return hash;
}

/* Collective: names the first rank that rank 0 and `rank` know by other global ranks. */
static reshard_status error_groups(reshard_comm comm, const reshard_group *group, int64_t rank) {
  int64_t at;
  char field[48], values[2][24];
  const void *gathered;
  RS_TRY(rs_find_difference(comm, group->n, rank, hash_group, group, &at));
  RS_TRY(rs_comm_allgather(comm, &(int64_t){rs_group_at(group, at)}, sizeof(int64_t), &gathered));
  const int64_t *all = gathered;
  snprintf(field, sizeof field, "global rank of rank %lld:", (long long)at);
  for (int i = 0; i < 2; i++)
    snprintf(values[i], sizeof values[i], "%lld", (long long)all[i == 0 ? 0 : rank]);
  return rs_error_differ(field, 0, values[0], rank, values[1]);
}

/* Two ranks' options; without a word where they are alike. The same on all ranks, as all look at the same records. */
static reshard_status compare_terms(const rs_record *zero, const rs_record *other, int64_t rank) {
  const rs_sharder_terms *a = &zero->terms, *b = &other->terms;
  char values[2][24];
  if (a->cached_plans != b->cached_plans) {
    snprintf(values[0], sizeof values[0], "%lld", (long long)a->cached_plans);
    snprintf(values[1], sizeof values[1], "%lld", (long long)b->cached_plans);
    return rs_error_differ("cached_plans", 0, values[0], rank, values[1]);
  }
  if (a->path != b->path)
    return rs_error_differ("path", 0, reshard_path_string((reshard_path)a->path), rank,
                           reshard_path_string((reshard_path)b->path));
  return RESHARD_SUCCESS;
}

/* Collective: all ranks have made their sharders, of equal options; or all get one error. mine: this rank's status,
 * with which s may be NULL. */
static reshard_status agree_on_sharders(reshard_comm comm, reshard_status mine, const struct reshard_sharder_s *s) {
  rs_record record = {.call = RS_RECORD_SHARDER, .private_entry = -1};
  const rs_record *all;
  if (mine == RESHARD_SUCCESS)
    record.terms = (rs_sharder_terms){(int32_t)s->path, s->limit, hash_group(&s->group, 0, s->group.n, 0),
                                      rs_plan_hash_options(&s->options)};
  rs_record_set_status(&record, mine);
  RS_TRY(rs_records_exchange(comm, NULL, &record, &all));
  for (int64_t r = 1; r < comm->size; r++)
    RS_TRY(compare_terms(&all[0], &all[r], r));
  for (int64_t r = 1; r < comm->size; r++)
    if (all[r].terms.plans != all[0].terms.plans)
      return rs_plans_differ(comm, &s->options, RS_FIELD_OPTIONS, r, 0, 0);
  for (int64_t r = 1; r < comm->size; r++)
    if (all[r].terms.group != all[0].terms.group)
      return error_groups(comm, &s->group, r);
  return RESHARD_SUCCESS;
}

reshard_status reshard_sharder_create(reshard_comm comm, const reshard_sharder_options *options,
                                      reshard_sharder *sharder) {
  RS_TRY(RS_GIVEN("reshard_sharder_create", comm));
  RS_CALL(comm, 0);
  if (rs_comm_is_forked(comm))
    return rs_comm_alive(comm);
  reshard_sharder made = NULL;
  reshard_status status = RS_GIVEN("reshard_sharder_create", sharder);
  RS_THEN(status, rs_sharder_new(comm, options, &made));
  RS_TRY_OR(agree_on_sharders(comm, status, made), reshard_sharder_destroy(made));
  *sharder = made;
  return RESHARD_SUCCESS;
}

static void free_plan(rs_cached_plan *p) {
  if (p == NULL)
    return;
  rs_cached_free(&p->cached);
  for (int64_t i = 0; p->tensors != NULL && i < p->n; i++) {
    reshard_layout_release(p->tensors[i].src);
    reshard_layout_release(p->tensors[i].dst);
    reshard_metadata_release(p->tensors[i].metadata);
  }
  reshard_plan_destroy(p->plan);
  free(p->tensors);
  free(p->pointers);
  free(p->strides);
  free(p);
}

/* Evicts plans used longest ago until no more than `most` are left. */
static void evict_plans(reshard_sharder s, rs_cached_plans *plans, int64_t most) {
  while (plans->n > most) {
    free_plan(plans->at[--plans->n]);
    s->stats.evicted += s->limit > 0;
  }
}

void reshard_sharder_destroy(reshard_sharder sharder) {
  RS_HOLD_CANCEL;
  if (sharder == NULL || rs_comm_is_forked(sharder->comm)) /* all that it has is of the ranks that are there */
    return;
  if (sharder->attached != NULL)
    sharder->attached_free(sharder->attached);
  free_plan(sharder->candidate);
  evict_plans(sharder, &sharder->plans, 0);
  evict_plans(sharder, &sharder->own, 0);
  free(sharder->plans.at);
  free(sharder->own.at);
  reshard_device_release(sharder->device);
  rs_request_memory_free(&sharder->memory, sharder->comm);
  free((void *)sharder->group.ranks);
  free_options(sharder);
  rs_comm_let_go(sharder->comm);
  free(sharder);
}

reshard_status reshard_sharder_get_stats(reshard_sharder sharder, reshard_sharder_stats *stats) {
  RS_TRY(RS_GIVEN("reshard_sharder_get_stats", sharder, stats));
  *stats = sharder->stats;
  stats->cached = sharder->plans.n + sharder->own.n;
  return RESHARD_SUCCESS;
}

static uint64_t hash_entries(int64_t n, const rs_sharder_entry *entries) {
  uint64_t h = (uint64_t)n;
  for (int64_t i = 0; i < n; i++) {
    uint64_t words[4] = {rs_layout_hash(entries[i].src->layout), rs_layout_hash(entries[i].dst->layout),
                         (uint64_t)entries[i].dtype, (uint64_t)entries[i].dst_dtype};
    h = rs_hash(h, words, sizeof words);
  }
  return h;
}

static bool plan_matches(const rs_cached_plan *p, uint64_t hash, int64_t n, const rs_sharder_entry *entries) {
  if (p->hash != hash || p->n != n)
    return false;
  for (int64_t i = 0; i < n; i++)
    if (p->tensors[i].dtype != entries[i].dtype || p->tensors[i].dst_dtype != entries[i].dst_dtype ||
        !reshard_layout_equal(p->tensors[i].src, entries[i].src->layout) ||
        !reshard_layout_equal(p->tensors[i].dst, entries[i].dst->layout))
      return false;
  return true;
}

static reshard_status plan_entries(reshard_sharder s, int64_t n, const rs_sharder_entry *entries, rs_cached_plan *p) {
  bool domains = s->options.topology != NULL;
  const reshard_topology topology = domains ? rs_topology_of(&s->options) : (reshard_topology){0};
  const reshard_plan_options options = {
      .size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = s->options.limit, .topology = domains ? &topology : NULL};
  reshard_entry *list;
  RS_TRY(rs_alloc_zero(&p->tensors, n, sizeof *p->tensors));
  RS_TRY(rs_alloc(&list, n, sizeof *list));
  for (int64_t i = 0; i < n; i++) {
    reshard_layout src = entries[i].src->layout, dst = entries[i].dst->layout;
    p->tensors[i] = (rs_cached_plan_entry){reshard_layout_retain(src), reshard_layout_retain(dst), entries[i].dtype,
                                           entries[i].dst_dtype, NULL};
    list[i] = (reshard_entry){RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = entries[i].dtype,
                              .dst_dtype = entries[i].dst_dtype};
  }
  reshard_status status = reshard_plan_create(n, list, s->comm->rank, &options, &p->plan);
  free(list);
  RS_TRY(status);
  RS_TRY(rs_alloc(&p->pointers, p->plan->nsrc + p->plan->ndst, sizeof *p->pointers));
  return rs_alloc((void *)&p->strides, p->plan->nsrc + p->plan->ndst, sizeof *p->strides);
}

static reshard_status make_plan(reshard_sharder s, uint64_t hash, int64_t n, const rs_sharder_entry *entries,
                                rs_cached_plan **plan) {
  rs_cached_plan *p;
  RS_TRY(rs_alloc_zero(&p, 1, sizeof *p));
  p->hash = hash;
  p->n = n;
  RS_TRY_OR(plan_entries(s, n, entries, p), free_plan(p));
  s->stats.misses++;
  *plan = p;
  return RESHARD_SUCCESS;
}

static rs_cached_plan *find_plan(reshard_sharder s, const rs_cached_plans *plans, uint64_t hash, int64_t n,
                                 const rs_sharder_entry *entries) {
  for (int64_t i = 0; i < plans->n; i++)
    if (plan_matches(plans->at[i], hash, n, entries)) {
      s->stats.hits++;
      return plans->at[i];
    }
  return NULL;
}

/* Puts a plan first that is in the list, or for which there is room. */
static void put_first(rs_cached_plans *plans, rs_cached_plan *plan) {
  int64_t i = 0;
  while (i < plans->n && plans->at[i] != plan)
    i++;
  plans->n += i == plans->n;
  memmove(plans->at + 1, plans->at, (size_t)i * sizeof *plans->at);
  plans->at[0] = plan;
}

reshard_status rs_sharder_plan(reshard_sharder s, int64_t n, const rs_sharder_entry *entries, rs_cached_plan **plan) {
  uint64_t hash = hash_entries(n, entries);
  rs_cached_plan *found = find_plan(s, &s->plans, hash, n, entries);
  s->looked_up = true;
  if (found == NULL) {
    RS_TRY(rs_vec_reserve(&s->plans, s->plans.n + 1));
    RS_TRY(make_plan(s, hash, n, entries, &found));
    free_plan(s->candidate);
    s->candidate = found;
  }
  *plan = found;
  return RESHARD_SUCCESS;
}

reshard_status rs_sharder_plan_local(reshard_sharder s, int64_t n, const rs_sharder_entry *entries,
                                     rs_cached_plan **plan) {
  uint64_t hash = hash_entries(n, entries);
  rs_cached_plan *found = find_plan(s, &s->own, hash, n, entries);
  if (found == NULL) {
    RS_TRY(rs_vec_reserve(&s->own, s->own.n + 1));
    RS_TRY(make_plan(s, hash, n, entries, &found));
    evict_plans(s, &s->own, rs_max(0, s->limit - 1));
  }
  put_first(&s->own, found);
  *plan = found;
  return RESHARD_SUCCESS;
}

/* Caches the plan of a collective call that has succeeded. */
static void keep_plan(reshard_sharder s, rs_cached_plan *plan) {
  if (plan == NULL || s->limit == 0)
    return;
  if (plan == s->candidate) {
    evict_plans(s, &s->plans, s->limit - 1);
    s->candidate = NULL;
  }
  put_first(&s->plans, plan);
}

static bool same_properties(const reshard_properties *a, const reshard_properties *b) {
  return a->dtype == b->dtype && a->memory_format == b->memory_format && a->requires_grad == b->requires_grad &&
         a->pin_memory == b->pin_memory;
}

reshard_status rs_sharder_describe(reshard_sharder s, const reshard_properties *properties, reshard_layout layout,
                                   reshard_metadata *metadata) {
  return rs_metadata_from_layout(properties, layout, &s->group, NULL, s->comm->device->type, metadata);
}

reshard_status rs_sharder_metadata(reshard_sharder s, rs_cached_plan *p, int64_t i,
                                   const reshard_properties *properties, reshard_metadata *metadata) {
  rs_cached_plan_entry *t = &p->tensors[i];
  reshard_properties had = t->metadata != NULL ? reshard_metadata_properties(t->metadata) : (reshard_properties){0};
  if (t->metadata == NULL || !same_properties(&had, properties)) {
    reshard_metadata made;
    RS_TRY(rs_sharder_describe(s, properties, t->dst, &made));
    reshard_metadata_release(t->metadata);
    t->metadata = made;
  }
  *metadata = reshard_metadata_retain(t->metadata);
  return RESHARD_SUCCESS;
}

/* Lists pointers and strides of one side's buffers; a NULL stride list stands for contiguous. Returns their number;
 * sets *strided where there are strides. */
static int64_t list_buffers(const rs_local_arrays *local, int64_t rank, void **pointers, const int64_t **strides,
                            bool *strided) {
  int64_t n = rs_layout_buffers(local->layout, rank);
  bool bundles = rs_layout_bundles(local->layout);
  for (int64_t b = 0; b < n; b++) {
    reshard_tensor array = b < local->n ? local->arrays[b] : NULL;
    pointers[b] = array != NULL ? rs_tensor_data(array) : NULL;
    strides[b] = array != NULL && !array->info.contiguous && !bundles ? array->info.strides : NULL;
    *strided |= strides[b] != NULL;
  }
  for (int64_t a = local->n - 1; bundles && a >= 0; a--) { /* any that has elements tells where their buffer begins */
    reshard_array_info info;
    reshard_tensor array = local->arrays[a];
    if (array == NULL || array->info.elements == 0)
      continue;
    reshard_layout_array(local->layout, rank, a, &info);
    pointers[0] = (char *)rs_tensor_data(array) - info.offset * (int64_t)reshard_dtype_size(array->info.dtype);
  }
  return n;
}

/* Checks that all local arrays have memory, and lets stream use it. */
static reshard_status use_local_arrays(const char *side, const rs_local_arrays *local, const rs_device *device,
                                       void *stream) {
  for (int64_t i = 0; i < local->n; i++)
    if (local->arrays[i] != NULL)
      RS_TRY(rs_tensor_use_on(side, local->arrays[i], device, stream));
  return RESHARD_SUCCESS;
}

/* Lists the arrays of a transfer; the lists are the plan's. */
static reshard_status list_arrays(reshard_sharder s, rs_cached_plan *p, const rs_sharder_entry *entries, void *stream,
                                  reshard_arrays *arrays) {
  bool strided[2] = {false, false};
  int64_t nsrc = 0, ndst = p->plan->nsrc;
  for (int64_t i = 0; i < p->n; i++) {
    RS_TRY(use_local_arrays("source", entries[i].src, s->comm->device, stream));
    RS_TRY(use_local_arrays("destination", entries[i].dst, s->comm->device, stream));
    nsrc += list_buffers(entries[i].src, s->comm->rank, p->pointers + nsrc, p->strides + nsrc, &strided[0]);
    ndst += list_buffers(entries[i].dst, s->comm->rank, p->pointers + ndst, p->strides + ndst, &strided[1]);
  }
  *arrays = (reshard_arrays){.size = RESHARD_ARRAYS_INIT,
                             .src = p->pointers,
                             .dst = p->pointers + p->plan->nsrc,
                             .src_strides = strided[0] ? p->strides : NULL,
                             .dst_strides = strided[1] ? p->strides + p->plan->nsrc : NULL};
  return RESHARD_SUCCESS;
}

void rs_sharder_end_call(reshard_sharder s) {
  free_plan(s->candidate);
  s->candidate = NULL;
  s->looked_up = false;
}

reshard_status rs_sharder_execute_with(reshard_sharder s, rs_cached_plan *p, const rs_sharder_entry *entries,
                                       reshard_status mine, const rs_argument *argument, void *stream,
                                       int64_t *workspace_bytes) {
  reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT};
  rs_request request = {.terms = {.path = s->path, .argument = argument, .cached = !s->looked_up && s->plans.n > 0},
                        .arrays = &arrays,
                        .stream = stream};
  RS_THEN(mine, list_arrays(s, p, entries, stream, &arrays));
  if (p != NULL) {
    request.terms.plan = request.plan = p->plan;
    request.terms.cached = p->cached.transfer != NULL;
    request.cached = s->limit > 0 ? &p->cached : NULL;
  }
  size_t staging = 0;
  reshard_status status = rs_request_execute(s->comm, &request, mine, &s->memory, &staging);
  if (status == RESHARD_SUCCESS && workspace_bytes != NULL)
    *workspace_bytes = (int64_t)staging;
  if (status == RESHARD_SUCCESS)
    keep_plan(s, p);
  rs_sharder_end_call(s);
  return status;
}

reshard_status rs_sharder_execute(reshard_sharder s, rs_cached_plan *p, const rs_sharder_entry *entries,
                                  reshard_status mine, void *stream, int64_t *workspace_bytes) {
  return rs_sharder_execute_with(s, p, entries, mine, NULL, stream, workspace_bytes);
}

reshard_status rs_sharder_copy_local(reshard_sharder s, rs_cached_plan *p, const rs_sharder_entry *entries,
                                     void *stream) {
  reshard_arrays arrays;
  reshard_status status = list_arrays(s, p, entries, stream, &arrays);
  RS_THEN(status, rs_execute_local(p->plan, s->comm, &arrays, &s->memory, stream));
  evict_plans(s, &s->own, s->limit);
  return status;
}

reshard_status rs_error_in(const char *where, reshard_status status) {
  return status == RESHARD_SUCCESS ? status : rs_error(status, "%s: %s", where, reshard_last_error());
}

reshard_status rs_check_layout(const char *call, reshard_sharder s, reshard_layout layout, int ndim,
                               const int64_t *shape) {
  char given[RS_SHAPE_TEXT], wanted[RS_SHAPE_TEXT];
  RS_TRY(RS_GIVEN(call, layout));
  if (reshard_layout_world(layout) != s->comm->size)
    return rs_error(RESHARD_ERROR_INVALID, "%s: a layout over %lld ranks on a communicator of %lld", call,
                    (long long)reshard_layout_world(layout), (long long)s->comm->size);
  if (ndim >= 0 && !rs_shape_equal(reshard_layout_ndim(layout), reshard_layout_shape(layout), ndim, shape))
    return rs_error(RESHARD_ERROR_INVALID, "%s: a layout of shape %s for a tensor of shape %s", call,
                    rs_shape_text(given, reshard_layout_ndim(layout), reshard_layout_shape(layout)),
                    rs_shape_text(wanted, ndim, shape));
  return rs_error_in(call, reshard_layout_check_source(layout)); /* a tensor with a gap cannot be read back whole */
}

reshard_status rs_check_new(const char *call, reshard_sharder s, reshard_layout layout,
                            const reshard_properties *properties) {
  if (s == NULL || properties == NULL)
    return rs_error_null(call, s == NULL ? "sharder" : "properties");
  return rs_check_layout(call, s, layout, -1, NULL);
}

reshard_status rs_find_sharder(const char *call, int64_t n, const void *tensors,
                               reshard_sharder (*tensor_sharder)(const void *tensors, int64_t i),
                               reshard_sharder *sharder) {
  *sharder = NULL;
  if (n < 0 || (n > 0 && tensors == NULL))
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld tensors, list %s", call, (long long)n,
                    tensors == NULL ? "NULL" : "given");
  for (int64_t i = 0; i < n && *sharder == NULL; i++)
    *sharder = tensor_sharder(tensors, i);
  return n == 0 || *sharder != NULL ? RESHARD_SUCCESS : rs_error_null(call, "tensor 0");
}
