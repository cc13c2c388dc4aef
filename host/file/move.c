/* Moving data from store to store.
 *
 * Threads take batches of tiles (tiles.h), each on its own. Of a batch, the parts of the source's arrays are read into
 * memory, once for all ranks that hold the same. Then, for each rank of the target in turn, a plan of the batch's tiles
 * says which boxes of them go where in that rank's parts, as it says for ranks in memory; they are copied, and each
 * part written to wherever it is stored. A part that is one run of what was read is written from there. All this memory
 * is a few tiles, and is used over and over, so that what a tile costs beside its system calls stays in the cache.
 *
 * Files are read and written by system calls, not mapped: pages of a mapped target cost a fault each, which makes it
 * slower than cp here, and a file that another process cuts short is an error, not a signal. */
#include "device/cpu.h"
#include "device/pool.h"
#include "exec/transfer.h"
#include "file/tiles.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MEMORY = 96 << 20 }; /* of all threads' tiles on either side */

/* What one array has in a tile. */
typedef struct part {
  int64_t tile; /* of the batch */
  int64_t cell; /* of the layout: arrays of one cell hold the same */
  int64_t rank, array;
  const rs_hold *hold; /* NULL: not stored */
  char *memory;        /* its place */
  const char *data;    /* target: what it has, there or where it was read */
  int64_t bytes;
  int64_t lo[RESHARD_MAX_DIMS], extent[RESHARD_MAX_DIMS]; /* in the array's indices */
  bool done;                                              /* target: written with another part of its cell */
} part;
typedef RS_VEC(part) parts;

typedef struct job {
  const rs_move *move;
  int64_t world, bytes;
  rs_tiling tiling;
  pthread_mutex_t lock; /* of tiling, and what follows */
  int64_t done;
  reshard_status status; /* the first failure */
  char text[512];
  int64_t next_report_ns;
  struct worker *workers;
} job;

typedef struct worker {
  job *job;
  rs_device *device;
  rs_tiles batch;
  reshard_entry *entries;
  int64_t nentries;
  parts src, dst;
  RS_VEC(part *) cells; /* dst by cell */
  RS_VEC(char) src_memory;
  RS_VEC(char) dst_memory;
  rs_scratch scratch, compared;
  rs_copies copies;
  int64_t rank_first, rank_count; /* of dst: the parts of the rank in hand */
} worker;

/* --- The parts of a batch --------------------------------------------------------------------------------------------
 */

typedef struct finder {
  worker *worker;
  bool source;
  int64_t tile, tensor;
  const int64_t *offset, *extent;
  reshard_status status;
} finder;

static int add_part(void *user, int64_t rank, int64_t array, int64_t held) {
  (void)held;
  finder *f = user;
  const rs_move *m = f->worker->job->move;
  if (!f->source && m->only_rank >= 0 && rank != m->only_rank)
    return 0;
  const rs_store *store = f->source ? m->src : m->dst;
  reshard_layout layout = store->tensors.at[f->tensor].layout;
  parts *list = f->source ? &f->worker->src : &f->worker->dst;
  f->status = rs_vec_reserve(list, list->n + 1);
  if (f->status != RESHARD_SUCCESS)
    return 1;
  part *p = &list->at[list->n++];
  *p = (part){.tile = f->tile, .rank = rank, .array = array};
  p->cell = rs_layout_cell(layout, rank, array);
  p->hold = rs_store_find(store, f->tensor, rank, array);
  p->bytes = (int64_t)reshard_dtype_size(store->model->tensors.at[f->tensor].dtype);
  for (int d = 0; d < layout->ndim; d++) {
    int64_t end;
    rs_layout_clip(layout, p->cell, d, f->offset[d], f->offset[d] + f->extent[d], &p->lo[d], &end);
    p->extent[d] = end - p->lo[d];
    p->bytes *= p->extent[d];
  }
  return 0;
}

static reshard_status find_parts(worker *w, bool source) {
  const rs_move *m = w->job->move;
  (source ? &w->src : &w->dst)->n = 0;
  for (int64_t i = 0; i < w->batch.n; i++) {
    const rs_tile *t = &w->batch.at[i];
    const rs_route *r = &m->routes[t->route];
    finder f = {w,
                source,
                i,
                source ? r->src : r->dst,
                source ? t->src_offset : t->dst_offset,
                source ? t->src_extent : t->dst_extent,
                RESHARD_SUCCESS};
    reshard_box box;
    reshard_layout layout = (source ? m->src : m->dst)->tensors.at[f.tensor].layout;
    memcpy(box.offset, f.offset, sizeof box.offset);
    memcpy(box.extent, f.extent, sizeof box.extent);
    RS_TRY(reshard_layout_meet(layout, &box, add_part, &f));
    RS_TRY(f.status);
  }
  return RESHARD_SUCCESS;
}

/* By (tile, cell), those that are stored first. */
static int by_cell(const void *a, const void *b) {
  const part *x = a, *y = b;
  if (x->tile != y->tile)
    return x->tile < y->tile ? -1 : 1;
  if (x->cell != y->cell)
    return x->cell < y->cell ? -1 : 1;
  return (x->hold == NULL) - (y->hold == NULL);
}

/* By (rank, tile, array). */
static int by_rank(const void *a, const void *b) {
  const part *x = a, *y = b;
  if (x->rank != y->rank)
    return x->rank < y->rank ? -1 : 1;
  if (x->tile != y->tile)
    return x->tile < y->tile ? -1 : 1;
  return x->array < y->array ? -1 : x->array > y->array;
}

/* Reads every cell of the source that the batch needs, once. */
static reshard_status read_parts(worker *w) {
  const rs_move *m = w->job->move;
  RS_TRY(find_parts(w, true));
  parts *list = &w->src;
  if (list->n > 1)
    qsort(list->at, (size_t)list->n, sizeof *list->at, by_cell);
  int64_t kept = 0, bytes = 0;
  for (int64_t i = 0; i < list->n; i++)
    if (i == 0 || list->at[i].tile != list->at[kept - 1].tile || list->at[i].cell != list->at[kept - 1].cell) {
      list->at[kept++] = list->at[i];
      bytes += list->at[i].bytes;
    }
  list->n = kept;
  RS_TRY(rs_vec_reserve(&w->src_memory, bytes));
  char *memory = w->src_memory.at;
  for (int64_t i = 0; i < list->n; i++) {
    part *p = &list->at[i];
    int64_t tensor = m->routes[w->batch.at[p->tile].route].src;
    if (p->hold == NULL)
      return rs_error(RESHARD_ERROR_INTERNAL, "tensor '%s': the array of rank %lld is not stored",
                      m->src->model->names.at + m->src->model->tensors.at[tensor].name, (long long)p->rank);
    p->memory = memory;
    memory += p->bytes;
    RS_TRY(rs_store_read(m->src, tensor, p->hold, p->lo, p->extent, p->memory, &w->scratch));
  }
  return RESHARD_SUCCESS;
}

/* --- One rank of the target ------------------------------------------------------------------------------------------
 */

static const part *find_source(const worker *w, int64_t tile, int64_t cell) {
  int64_t low = 0, high = w->src.n;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    const part *p = &w->src.at[middle];
    if (p->tile < tile || (p->tile == tile && p->cell < cell))
      low = middle + 1;
    else
      high = middle;
  }
  return &w->src.at[low];
}

static const part *find_target(const worker *w, int64_t tile, int64_t array) {
  int64_t low = w->rank_first, high = w->rank_first + w->rank_count;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    const part *p = &w->dst.at[middle];
    if (p->tile < tile || (p->tile == tile && p->array < array))
      low = middle + 1;
    else
      high = middle;
  }
  return &w->dst.at[low];
}

/* Where the whole array would be, were its part in memory a part of it: only addresses within the part are used. */
static reshard_status view_of(void *user, int64_t rank, int64_t entry, bool source, int64_t array, rs_view *view) {
  const worker *w = user;
  const rs_move *m = w->job->move;
  const rs_route *r = &m->routes[w->batch.at[entry].route];
  const rs_store *store = source ? m->src : m->dst;
  int64_t tensor = source ? r->src : r->dst;
  reshard_layout layout = store->tensors.at[tensor].layout;
  const part *p = source ? find_source(w, entry, rs_layout_cell(layout, rank, array)) : find_target(w, entry, array);
  int64_t stride = (int64_t)reshard_dtype_size(store->model->tensors.at[tensor].dtype), before = 0;
  for (int d = layout->ndim - 1; d >= 0; d--) {
    view->strides[d] = stride;
    before += p->lo[d] * stride;
    stride *= p->extent[d];
  }
  view->at = (char *)((uintptr_t)p->memory - (uintptr_t)before);
  return RESHARD_SUCCESS;
}

static reshard_status make_entries(worker *w) {
  const rs_move *m = w->job->move;
  if (w->batch.n > w->nentries) {
    free(w->entries);
    w->nentries = 0;
    RS_TRY(rs_alloc(&w->entries, w->batch.n, sizeof *w->entries));
    w->nentries = w->batch.n;
  }
  for (int64_t i = 0; i < w->batch.n; i++) {
    const rs_tile *t = &w->batch.at[i];
    const rs_route *r = &m->routes[t->route];
    w->entries[i] = (reshard_entry){.size = RESHARD_ENTRY_INIT,
                                    .src = m->src->tensors.at[r->src].layout,
                                    .dst = m->dst->tensors.at[r->dst].layout,
                                    .dtype = m->dst->model->tensors.at[r->dst].dtype,
                                    .src_offset = t->src_offset,
                                    .src_extent = t->src_extent,
                                    .dst_offset = t->dst_offset,
                                    .dst_extent = t->dst_extent,
                                    .permutation = t->permutation};
  }
  return RESHARD_SUCCESS;
}

/* Copies that are a whole part need not be made: the part's data is where its source is. */
static void take_in_place(worker *w) {
  int64_t kept = 0;
  for (int64_t i = 0; i < w->copies.copy.n; i++) {
    const rs_copy *c = &w->copies.copy.at[i];
    int64_t low = w->rank_first, high = w->rank_first + w->rank_count;
    while (low < high && c->naxes == 0) { /* the rank's parts lie in memory in their order */
      int64_t middle = low + (high - low) / 2;
      if (w->dst.at[middle].memory < c->dst)
        low = middle + 1;
      else
        high = middle;
    }
    part *p = &w->dst.at[low];
    if (c->naxes == 0 && low < w->rank_first + w->rank_count && p->memory == c->dst && p->bytes == c->run) {
      p->data = c->src;
      w->copies.bytes -= c->run;
    } else {
      w->copies.copy.at[kept++] = *c;
    }
  }
  w->copies.copy.n = kept;
}

static reshard_status copy_rank(worker *w, int64_t rank) {
  reshard_plan plan = NULL;
  rs_program *program = NULL;
  int64_t foreign = 0;
  reshard_status status;
  w->copies.copy.n = w->copies.axis.n = w->copies.bytes = 0;
  w->copies.staging = true;
  RS_TRY(rs_plan_create_wide(w->batch.n, w->entries, rank, w->job->world, &plan));
  RS_TRY_GOTO(status, rs_pull(plan, view_of, w, &w->copies, &foreign), done);
  take_in_place(w);
  if (w->copies.copy.n == 0)
    goto done;
  RS_TRY_GOTO(status, w->device->ops->compile(w->device, &w->copies, w->copies.bytes, &program), done);
  status = w->device->ops->run(w->device, 1, &program, NULL);
  w->device->ops->release(w->device, program);
done:
  reshard_plan_destroy(plan);
  return status;
}

/* The file that has an index of an array. */
static const rs_file *file_of(const rs_store *store, reshard_layout layout, const rs_hold *hold, const int64_t *index) {
  int32_t j = 0;
  for (; j < hold->count - 1; j++) {
    reshard_box box;
    int64_t first[RESHARD_MAX_DIMS];
    bool inside = rs_array_box(layout, hold->rank, hold->array, j, &box, first) == RESHARD_SUCCESS;
    for (int d = 0; d < layout->ndim && inside; d++)
      inside = index[d] >= first[d] && index[d] < first[d] + box.extent[d];
    if (inside)
      break;
  }
  return &store->files.at[store->spots.at[hold->first + j].file];
}

static reshard_status compare_part(worker *w, int64_t tensor, const part *p, const rs_hold *hold) {
  const rs_store *store = w->job->move->dst;
  RS_TRY(rs_vec_reserve(&w->compared, p->bytes));
  RS_TRY(rs_store_read(store, tensor, hold, p->lo, p->extent, w->compared.at, &w->scratch));
  if (memcmp(p->data, w->compared.at, (size_t)p->bytes) == 0)
    return RESHARD_SUCCESS;
  int64_t at = 0, index[RESHARD_MAX_DIMS];
  while (p->data[at] == w->compared.at[at])
    at++;
  reshard_layout layout = store->tensors.at[tensor].layout;
  int ndim = layout->ndim;
  int64_t element = at / (int64_t)reshard_dtype_size(store->model->tensors.at[tensor].dtype);
  char quoted[RS_QUOTE], where[RS_WHERE], text[RS_SHAPE_TEXT];
  for (int d = ndim - 1; d >= 0; d--) {
    index[d] = p->lo[d] + element % p->extent[d];
    element /= p->extent[d];
  }
  const rs_file *file = file_of(store, layout, hold, index);
  return rs_error(RESHARD_ERROR_CORRUPT,
                  "tensor '%s': %s: rank %lld: index %s is 0x%02x when read back, 0x%02x was written",
                  rs_quote(quoted, sizeof quoted, store->model->names.at + store->model->tensors.at[tensor].name),
                  rs_where(where, "file", file->path != NULL ? file->path : "memory"), (long long)p->rank,
                  rs_shape_text(text, ndim, index), (unsigned char)w->compared.at[at], (unsigned char)p->data[at]);
}

static int by_cell_of(const void *a, const void *b) { return by_cell(*(part *const *)a, *(part *const *)b); }

/* The parts of the target that the batch meets, by rank; and by cell. */
static reshard_status find_targets(worker *w) {
  RS_TRY(find_parts(w, false));
  if (w->dst.n > 1)
    qsort(w->dst.at, (size_t)w->dst.n, sizeof *w->dst.at, by_rank);
  RS_TRY(rs_vec_reserve(&w->cells, w->dst.n));
  for (int64_t i = 0; i < w->dst.n; i++)
    w->cells.at[i] = &w->dst.at[i];
  w->cells.n = w->dst.n;
  if (w->cells.n > 1)
    qsort(w->cells.at, (size_t)w->cells.n, sizeof *w->cells.at, by_cell_of);
  return RESHARD_SUCCESS;
}

/* To wherever arrays of its cell are stored. */
static reshard_status write_part(worker *w, const part *p) {
  const rs_move *m = w->job->move;
  int64_t tensor = m->routes[w->batch.at[p->tile].route].dst;
  int64_t low = 0, high = w->cells.n;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    const part *q = w->cells.at[middle];
    if (q->tile < p->tile || (q->tile == p->tile && q->cell < p->cell))
      low = middle + 1;
    else
      high = middle;
  }
  for (; low < w->cells.n && w->cells.at[low]->tile == p->tile && w->cells.at[low]->cell == p->cell; low++) {
    part *q = w->cells.at[low];
    if (q->hold == NULL)
      break; /* the rest is not stored either */
    RS_TRY(m->compare ? compare_part(w, tensor, p, q->hold)
                      : rs_store_write(m->dst, tensor, q->hold, p->lo, p->extent, p->data, &w->scratch));
    q->done = true;
  }
  return RESHARD_SUCCESS;
}

/* The parts of one rank, unless other ranks of their cells have had them all written. */
static reshard_status move_rank(worker *w) {
  part *first = &w->dst.at[w->rank_first], *end = first + w->rank_count;
  bool todo = false;
  int64_t bytes = 0;
  for (part *p = first; p < end; p++) {
    todo = todo || (p->hold != NULL && !p->done);
    bytes += p->bytes;
  }
  if (!todo)
    return RESHARD_SUCCESS;
  RS_TRY(rs_vec_reserve(&w->dst_memory, bytes));
  char *memory = w->dst_memory.at;
  for (part *p = first; p < end; p++) {
    p->data = p->memory = memory;
    memory += p->bytes;
  }
  RS_TRY(copy_rank(w, first->rank));
  for (part *p = first; p < end; p++)
    if (p->hold != NULL && !p->done)
      RS_TRY(write_part(w, p));
  return RESHARD_SUCCESS;
}

static reshard_status move_batch(worker *w) {
  RS_TRY(find_targets(w));
  if (w->dst.n == 0) /* a target with gaps */
    return RESHARD_SUCCESS;
  RS_TRY(make_entries(w));
  RS_TRY(read_parts(w));
  for (w->rank_first = 0; w->rank_first < w->dst.n; w->rank_first += w->rank_count) {
    w->rank_count = 1;
    while (w->rank_first + w->rank_count < w->dst.n &&
           w->dst.at[w->rank_first + w->rank_count].rank == w->dst.at[w->rank_first].rank)
      w->rank_count++;
    RS_TRY(move_rank(w));
  }
  return RESHARD_SUCCESS;
}

/* --- All of it
 * --------------------------------------------------------------------------------------------------------- */

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* With the lock held. The first failure is kept. */
static void fail(job *j, reshard_status status) {
  if (status == RESHARD_SUCCESS || j->status != RESHARD_SUCCESS)
    return;
  j->status = status;
  strncpy(j->text, reshard_last_error(), sizeof j->text - 1);
}

/* Tells the caller how far it is, in the caller's thread. With the lock held, which is let go meanwhile. */
static void report(job *j) {
  int64_t now = now_ns(), done = j->done;
  if (j->move->progress == NULL || now <= j->next_report_ns)
    return;
  j->next_report_ns = now + 50000000;
  pthread_mutex_unlock(&j->lock);
  int cancel = j->move->progress(j->move->user, j->move->compare ? "comparing" : "moving", done, j->bytes);
  pthread_mutex_lock(&j->lock);
  if (cancel != 0)
    fail(j,
         rs_error(RESHARD_ERROR_CANCELLED, "cancelled after %lld of %lld bytes", (long long)done, (long long)j->bytes));
}

/* Each thread that comes takes batches until there are none. */
static void work(const void *user, rs_claim *claim) {
  job *j = *(job *const *)user;
  worker *w = &j->workers[claim->thread];
  while (rs_pool_next(claim) >= 0) {
    pthread_mutex_lock(&j->lock);
    while (j->status == RESHARD_SUCCESS) {
      fail(j, rs_tiling_next(&j->tiling, &w->batch));
      if (j->status != RESHARD_SUCCESS || w->batch.n == 0)
        break;
      pthread_mutex_unlock(&j->lock);
      reshard_status status = move_batch(w);
      pthread_mutex_lock(&j->lock);
      fail(j, status);
      for (int64_t i = 0; i < w->batch.n; i++)
        j->done += w->batch.at[i].bytes;
      if (claim->thread == 0)
        report(j);
    }
    pthread_mutex_unlock(&j->lock);
  }
}

static void free_worker(worker *w) {
  if (w->device != NULL)
    w->device->ops->destroy(w->device);
  rs_copies_free(&w->copies);
  free(w->batch.at);
  free(w->entries);
  free(w->src.at);
  free(w->dst.at);
  free(w->cells.at);
  free(w->src_memory.at);
  free(w->dst_memory.at);
  free(w->scratch.at);
  free(w->compared.at);
}

static int64_t world_of(const rs_store *store, int64_t world) {
  for (int64_t i = 0; i < store->tensors.n; i++)
    world = rs_max(world, store->tensors.at[i].layout->world);
  return world;
}

reshard_status rs_move_run(const rs_move *move) {
  int threads = move->threads > 0 ? move->threads : rs_device_cpu_cores();
  job j = {.move = move, .world = world_of(move->dst, world_of(move->src, 1))};
  rs_pool *pool = NULL;
  reshard_status status;
  RS_TRY(rs_tiling_start(&j.tiling, move, rs_min(MEMORY / threads, 16 << 20), &j.bytes));
  RS_TRY(rs_alloc_zero(&j.workers, threads, sizeof *j.workers));
  for (int i = 0; i < threads; i++) {
    j.workers[i].job = &j;
    RS_TRY_GOTO(status, rs_device_cpu_create(1, RESHARD_ISA_AUTO, &j.workers[i].device), done);
  }
  RS_TRY_GOTO(status, rs_pool_create(threads, &pool), done);
  pthread_mutex_init(&j.lock, NULL);
  job *shared = &j;
  rs_pool_run(pool, threads, work, &shared);
  pthread_mutex_destroy(&j.lock);
  status = j.status;
  if (status != RESHARD_SUCCESS)
    rs_error_set(j.text);
done:
  rs_pool_destroy(pool);
  for (int i = 0; i < threads; i++)
    free_worker(&j.workers[i]);
  free(j.workers);
  return status;
}
