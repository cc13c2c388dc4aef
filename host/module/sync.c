/* One rank's tensors to all: plans from rank(src) to the other ranks as replicas, which move all data.
 *
 * The source rank is no destination: its tensors stay where they are. Ranks of one process copy from tensor to tensor,
 * in one plan for all. Else a bucket is half of a plan's workspace limit: the next one is packed while one travels. All
 * tensors that fit a bucket are one plan, in as many rounds as that takes. A larger one is a plan of its own: its
 * message is one range of its memory, which goes without packing where it is contiguous. The size alone, which all
 * ranks know, decides that.
 *
 * The communicator keeps the plans and transfers of its last call. Ranks compare their lists in each call, and keep or
 * drop after what all have come to, so all have the same ones. The rounds of a transfer are for what is staged: where
 * that may be other than before on any rank, all make new transfers of the plans. */
#include "module/module.h"

#include "device/stream.h"
#include "exec/call.h"
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

#define BUCKET ((int64_t)250 << 20)
enum { STEP = 256 }; /* of pieces */

typedef struct tensor_batch {
  int64_t first, n; /* in the order of tensors */
  reshard_plan plan;
  rs_cached_transfer cached;
} tensor_batch;

/* Kept by the communicator. */
typedef struct sync_plans {
  int64_t src, bucket, path;
  int64_t nbatches;
  tensor_batch *batches;
  uint64_t places; /* hash of which of this rank's tensors may go in place */
  rs_request_memory memory;
} sync_plans;

/* Both sides of tensors of one shape. */
typedef struct sides {
  reshard_layout src, dst;
} sides;

typedef struct sync {
  reshard_comm comm;
  rs_listed *listed;
  void *stream;
  uint64_t places; /* as in sync_plans */
  bool whole;      /* no buckets: ranks reach each other's memory */
  int64_t *others; /* ranks but src, ascending */
  int64_t *order;  /* tensors with elements: those of one plan together */
  int64_t n;       /* of them */
  void **pointers, **none;
  const int64_t **strides; /* by order */
  rs_names shapes;         /* in the order of sides */
  RS_VEC(sides) sides;
  sync_plans *plans; /* the communicator's, or new */
  reshard_sync_report report;
} sync;

static int64_t bytes_of(const sync *s, int64_t i) {
  const reshard_tensor_info *info = &s->listed->tensors[i]->info;
  return info->elements * (int64_t)reshard_dtype_size(info->dtype);
}

static reshard_status read_options(reshard_comm comm, const reshard_sync_options *options, rs_listed *l) {
  const reshard_sync_options defaults = {.size = RESHARD_SYNC_OPTIONS_INIT};
  if (options == NULL)
    options = &defaults;
  RS_TRY(RS_SIZED(reshard_sync_options, options));
  if (options->bucket_bytes < 0 || options->bucket_bytes > INT64_MAX / 8)
    return rs_error(RESHARD_ERROR_INVALID, "%s: a bucket of %lld bytes", l->call, (long long)options->bucket_bytes);
  if ((int)options->path < RESHARD_PATH_AUTO || options->path > RESHARD_PATH_MIXED)
    return rs_error(RESHARD_ERROR_INVALID, "%s: unknown path %d", l->call, (int)options->path);
  if (l->src < 0 || l->src >= comm->size)
    return rs_error(RESHARD_ERROR_INVALID, "%s: source rank %lld of a communicator of %lld", l->call, (long long)l->src,
                    (long long)comm->size);
  l->bucket = options->bucket_bytes == 0 ? BUCKET : rs_ceil_div(options->bucket_bytes, STEP) * STEP;
  l->path = options->path;
  return RESHARD_SUCCESS;
}

/* --- Plans ------------------------------------------------------------------------------------------------------ */

/* Finds the layouts of a shape, or makes them: a model has few shapes. */
static reshard_status find_sides(sync *s, const reshard_tensor_info *info, const sides **out) {
  static const reshard_placement replicate = {.kind = RESHARD_PLACEMENT_REPLICATE};
  int64_t world = s->comm->size, others = world - 1, number;
  RS_TRY(rs_vec_reserve(&s->sides, s->sides.n + 1));
  RS_TRY(rs_names_put(&s->shapes, info->shape, (size_t)info->ndim * sizeof *info->shape, &number));
  sides *made = &s->sides.at[number];
  if (number == s->sides.n) {
    *made = (sides){NULL, NULL};
    s->sides.n++; /* from here on free_sync frees it */
    RS_TRY(reshard_layout_create_single(info->ndim, info->shape, world, s->listed->src, &made->src));
    RS_TRY(reshard_layout_create_mesh(info->ndim, info->shape, world, 1, &others, NULL, &replicate, NULL, s->others,
                                      &made->dst));
  }
  *out = made;
  return RESHARD_SUCCESS;
}

/* Adds a plan for n tensors from `first` in the order on. */
static reshard_status add_batch(sync *s, int64_t first, int64_t n, reshard_entry *entries) {
  reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT};
  const rs_listed *l = s->listed;
  if (n == 0)
    return RESHARD_SUCCESS;
  if (!s->whole)
    options.workspace_limit = rs_max(2 * l->bucket, 256 * s->comm->size); /* the least there is */
  for (int64_t i = 0; i < n; i++) {
    int64_t number = s->order[first + i];
    const sides *both;
    RS_TRY(find_sides(s, &l->tensors[number]->info, &both));
    entries[i] = (reshard_entry){.size = RESHARD_ENTRY_INIT,
                                 .src = both->src,
                                 .dst = both->dst,
                                 .dtype = l->tensors[number]->info.dtype,
                                 .name = l->names != NULL ? l->names[number] : NULL};
  }
  tensor_batch *b = &s->plans->batches[s->plans->nbatches];
  RS_TRY(reshard_plan_create(n, entries, s->comm->rank, &options, &b->plan));
  b->first = first;
  b->n = n;
  s->plans->nbatches++;
  s->report.planned++;
  return RESHARD_SUCCESS;
}

static void free_plans(reshard_comm comm, sync_plans *p) {
  for (int64_t i = 0; p != NULL && i < p->nbatches; i++) {
    rs_cached_free(&p->batches[i].cached);
    reshard_plan_destroy(p->batches[i].plan);
  }
  if (p != NULL) {
    rs_request_memory_free(&p->memory, comm);
    free(p->batches);
  }
  free(p);
}

static void drop_cached_plans(reshard_comm comm) {
  free_plans(comm, comm->life.cached);
  comm->life.cached = NULL;
}

static bool tensor_planned(const sync *s, int64_t number, reshard_plan plan, int64_t entry) {
  const rs_listed *l = s->listed;
  const reshard_tensor_info *info = &l->tensors[number]->info;
  const rs_entry *e = &plan->entries[entry];
  const struct reshard_layout_s *dst = plan->classes.at[e->class_].dst;
  const char *name = l->names != NULL && l->names[number] != NULL ? l->names[number] : "tensor";
  return e->dtype == info->dtype && strcmp(e->name, name) == 0 &&
         rs_shape_equal(dst->ndim, dst->shape, info->ndim, info->shape);
}

/* True when the communicator has the plans of just these tensors. */
static bool has_plans(const sync *s) {
  const sync_plans *p = s->comm->life.cached;
  const rs_listed *l = s->listed;
  int64_t planned = 0;
  if (p == NULL || p->src != l->src || p->bucket != l->bucket || p->path != l->path)
    return false;
  for (int64_t b = 0; b < p->nbatches; b++)
    for (int64_t i = 0; i < p->batches[b].n; i++, planned++)
      if (planned == s->n || !tensor_planned(s, s->order[planned], p->batches[b].plan, i))
        return false;
  return planned == s->n;
}

/* Orders tensors: those that fit a bucket first, then the larger ones, each alone. */
static void put_in_order(sync *s) {
  const rs_listed *l = s->listed;
  for (int large = 0; large <= 1; large++)
    for (int64_t i = 0; i < l->n; i++) {
      int64_t bytes = bytes_of(s, i);
      if (bytes == 0 || (!s->whole && bytes > l->bucket) != large)
        continue;
      s->report.alone += large;
      s->order[s->n++] = i;
    }
}

/* Checks what a plan would find, too, but perhaps not before other plans have moved their tensors. */
static reshard_status check_tensors(sync *s) {
  const rs_listed *l = s->listed;
  bool written = s->comm->rank != l->src;
  char shape[RS_SHAPE_TEXT], strides[RS_SHAPE_TEXT];
  for (int64_t i = 0; i < l->n; i++) {
    const reshard_tensor_info *info = &l->tensors[i]->info;
    reshard_status status = rs_tensor_use_on(l->call, l->tensors[i], s->comm->device, s->stream);
    if (status != RESHARD_SUCCESS)
      return rs_error(status, "%s (tensor %lld)", reshard_last_error(), (long long)i);
    s->report.tensors++;
    if (!rs_add(s->report.bytes, bytes_of(s, i), &s->report.bytes))
      return rs_error(RESHARD_ERROR_INVALID, "%s: the bytes of all tensors overflow 63 bits at tensor %lld", l->call,
                      (long long)i);
    if (written && info->overlapping)
      return rs_error(RESHARD_ERROR_INVALID, "%s: strides %s of tensor %lld of shape %s overlap, and it is written to",
                      l->call, rs_shape_text(strides, info->ndim, info->strides), (long long)i,
                      rs_shape_text(shape, info->ndim, info->shape));
  }
  return RESHARD_SUCCESS;
}

static reshard_status prepare_sync(sync *s) {
  const rs_listed *l = s->listed;
  RS_TRY(check_tensors(s));
  if (s->comm->size == 1)
    return RESHARD_SUCCESS; /* no peers */
  RS_TRY(rs_alloc(&s->others, s->comm->size - 1, sizeof *s->others));
  for (int64_t r = 0; r < s->comm->size - 1; r++)
    s->others[r] = r + (r >= l->src);
  RS_TRY(rs_alloc(&s->order, l->n, sizeof *s->order));
  put_in_order(s);
  RS_TRY(rs_alloc(&s->pointers, s->n, sizeof *s->pointers));
  RS_TRY(rs_alloc_zero(&s->none, s->n, sizeof *s->none));
  RS_TRY(rs_alloc((void *)&s->strides, s->n, sizeof *s->strides));
  for (int64_t i = 0; i < s->n; i++) {
    const reshard_tensor_info *info = &l->tensors[s->order[i]]->info;
    s->pointers[i] = rs_tensor_data(l->tensors[s->order[i]]);
    s->strides[i] = info->contiguous ? NULL : info->strides;
    bool in_place = info->contiguous && (uintptr_t)s->pointers[i] % rs_comm_alignment(s->comm) == 0;
    s->places = rs_hash(s->places, &in_place, sizeof in_place);
  }
  if (has_plans(s)) {
    s->plans = s->comm->life.cached;
    s->listed->moved = s->plans->places != s->places;
    return RESHARD_SUCCESS;
  }
  reshard_entry *entries;
  RS_TRY(rs_alloc_zero(&s->plans, 1, sizeof *s->plans));
  s->plans->src = l->src;
  s->plans->bucket = l->bucket;
  s->plans->path = l->path;
  RS_TRY(rs_alloc_zero(&s->plans->batches, s->report.alone + 1, sizeof *s->plans->batches));
  RS_TRY(rs_alloc(&entries, s->n, sizeof *entries));
  int64_t together = s->n - s->report.alone;
  reshard_status status = add_batch(s, 0, together, entries);
  for (int64_t i = together; i < s->n && status == RESHARD_SUCCESS; i++)
    status = add_batch(s, i, 1, entries);
  free(entries);
  return status;
}

/* --- Moving ----------------------------------------------------------------------------------------------------- */

/* Collective. */
static reshard_status run_batch(sync *s, tensor_batch *b) {
  bool gives = s->comm->rank == s->listed->src;
  void **mine = s->pointers + b->first, **none = s->none + b->first;
  const int64_t **strides = s->strides + b->first;
  const reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT,
                                 .src = gives ? mine : none,
                                 .dst = gives ? none : mine,
                                 .src_strides = gives ? strides : NULL,
                                 .dst_strides = gives ? NULL : strides};
  size_t staging = 0;
  const rs_request request = {
      .terms = {.plan = b->plan, .path = (reshard_path)s->listed->path, .cached = b->cached.transfer != NULL},
      .plan = b->plan,
      .arrays = &arrays,
      .cached = &b->cached,
      .stream = s->stream};
  reshard_status status = rs_request_execute(s->comm, &request, RESHARD_SUCCESS, &s->plans->memory, &staging);
  if (status != RESHARD_SUCCESS)
    return rs_error(status, "%s: %s", s->listed->call, reshard_last_error());
  s->report.workspace_bytes = rs_max(s->report.workspace_bytes, (int64_t)staging);
  return RESHARD_SUCCESS;
}

/* Collective. Staging comes from the pool of the tensors' device, or goes back to the device at once. */
static reshard_status run_plans(sync *s, bool moved) {
  reshard_comm comm = s->comm;
  reshard_status status = RESHARD_SUCCESS;
  if (s->plans == NULL || s->n == 0)
    return RESHARD_SUCCESS;
  for (int64_t i = 0; i < s->plans->nbatches && moved; i++)
    rs_cached_free(&s->plans->batches[i].cached);
  s->plans->places = s->places;
  rs_staging_cache *staging = &s->plans->memory.staging_cache;
  reshard_device device = rs_tensor_device(s->listed->tensors[s->order[0]]);
  staging->pool = NULL;
  if (device != NULL && (comm->device->streams->asynchronous || !rs_comm_keeps_messages(comm))) /* else messages stay */
    RS_THEN(status, rs_device_pool(device, &staging->pool));
  for (int64_t i = 0; i < s->plans->nbatches && status == RESHARD_SUCCESS; i++)
    status = run_batch(s, &s->plans->batches[i]);
  if (staging->pool == NULL)
    rs_staging_cache_free(staging, comm);
  return status;
}

/* Plans of a call that has succeeded stay. Those of one that has failed after ranks had compared do not. */
static void keep_plans(sync *s, bool compared, reshard_status status) {
  bool kept = s->plans == s->comm->life.cached;
  if (compared && (status != RESHARD_SUCCESS || !kept) && s->comm->life.cached != NULL)
    drop_cached_plans(s->comm);
  if (s->plans == NULL || kept)
    return;
  if (status != RESHARD_SUCCESS) {
    free_plans(s->comm, s->plans);
    return;
  }
  s->comm->life.cached = s->plans;
  s->comm->life.drop_cached = drop_cached_plans;
}

static void free_sync(sync *s) {
  for (int64_t i = 0; i < s->sides.n; i++) {
    reshard_layout_release(s->sides.at[i].src);
    reshard_layout_release(s->sides.at[i].dst);
  }
  rs_names_free(&s->shapes);
  free(s->sides.at);
  free(s->others);
  free(s->order);
  free(s->pointers);
  free(s->none);
  free(s->strides);
}

reshard_status rs_sync(reshard_comm comm, const rs_listed *given, reshard_status mine,
                       const reshard_sync_options *options, void *stream, reshard_sync_report *report) {
  rs_listed listed = *given;
  sync s = {.comm = comm, .listed = &listed, .stream = stream};
  reshard_status free_stream;
  (void)rs_request_begin(given->call, comm, RESHARD_PATH_AUTO, stream, &free_stream); /* all hear when they compare */
  RS_THEN(mine, free_stream);
  RS_THEN(mine, rs_stream_check(comm->device, stream, given->call));
  RS_THEN(mine, read_options(comm, options, &listed));
  RS_THEN(mine, rs_listed_check(&listed));
  s.whole = comm->memory.direct && listed.path != RESHARD_PATH_PACKED;
  RS_THEN(mine, prepare_sync(&s));
  bool moved = false;
  reshard_status status = rs_listed_compare(comm, &listed, mine, &moved);
  bool compared = status == RESHARD_SUCCESS;
  RS_THEN(status, run_plans(&s, moved));
  if (status == RESHARD_SUCCESS && report != NULL)
    *report = s.report;
  keep_plans(&s, compared, status);
  free_sync(&s);
  return status;
}

reshard_status reshard_sync_tensors(reshard_comm comm, int64_t src, int64_t n, const reshard_tensor *tensors,
                                    const char *const *names, const reshard_sync_options *options, void *stream,
                                    reshard_sync_report *report) {
  const rs_listed listed = {.call = "reshard_sync_tensors", .n = n, .tensors = tensors, .names = names, .src = src};
  if (comm == NULL)
    return rs_error_null(listed.call, "comm");
  RS_CALL(comm, 0);
  return rs_sync(comm, &listed, RESHARD_SUCCESS, options, stream, report);
}

/* --- One rank's module to all ------------------------------------------------------------------------------------- */

typedef struct states {
  RS_VEC(reshard_tensor) tensors; /* borrowed from the module */
  RS_VEC(int64_t) first;          /* of each tensor's name in text */
  RS_VEC(char) text;              /* names, NUL-terminated, one after the other */
  const char **names;             /* once all are known: the text may move before that */
} states;

static reshard_status add_tensor(void *user, const char *name, reshard_tensor tensor) {
  states *s = user;
  RS_TRY(rs_vec_push(&s->first, s->text.n));
  RS_TRY(rs_vec_append(&s->text, name, strlen(name) + 1));
  return rs_vec_push(&s->tensors, tensor);
}

static reshard_status collect_tensors(reshard_module module, const reshard_module_selection *selection, states *s) {
  RS_TRY(reshard_module_visit_states(module, selection, add_tensor, s));
  RS_TRY(rs_alloc((void *)&s->names, s->tensors.n, sizeof *s->names));
  for (int64_t i = 0; i < s->tensors.n; i++)
    s->names[i] = s->text.at + s->first.at[i];
  return RESHARD_SUCCESS;
}

reshard_status reshard_sync_module_states(reshard_comm comm, int64_t src, reshard_module module,
                                          const reshard_module_selection *selection,
                                          const reshard_sync_options *options, void *stream,
                                          reshard_sync_report *report) {
  static const char call[] = "reshard_sync_module_states";
  RS_TRY(RS_GIVEN(call, comm));
  RS_CALL(comm, 0);
  states s = {0};
  reshard_status mine = module == NULL ? rs_error_null(call, "module") : collect_tensors(module, selection, &s);
  const rs_listed listed = {.call = call, .n = s.tensors.n, .tensors = s.tensors.at, .names = s.names, .src = src};
  reshard_status status = rs_sync(comm, &listed, mine, options, stream, report);
  free(s.tensors.at);
  free(s.first.at);
  free(s.text.at);
  free(s.names);
  return status;
}
