/* One thread's work on a batch of tiles.
 *
 * It finds the parts of the target's arrays in the batch, and the source's. It goes through the ranks of the target. As
 * for ranks in memory, a plan of the tiles says which boxes of the source's parts go where. The thread reads the
 * source's parts that this rank needs, each once for all ranks. It copies what is left, and writes each part of the
 * target to wherever it is stored.
 *
 * Needless copies are left out. A part of the target that is one run of what was read is written from there. Where the
 * target is a caller's memory, a part of the source that is one run of it is read to there. Arrays in a caller's
 * memory, on either side, are neither read nor written: copies begin or end in them. */
#include "file/move/batch.h"

#include <stdlib.h>
#include <string.h>

static bool in_memory(const rs_store *store) { return store->views.n > 0; }

/* The dtype that copies see on a side: where it has scales that of the other, before and after which it is converted.
 */
static reshard_dtype moved_dtype(const rs_store_move *m, const rs_copy_region *r, bool source) {
  reshard_dtype from = m->src->model->tensors.at[r->src].dtype, to = m->dst->model->tensors.at[r->dst].dtype;
  bool scaled = rs_region_scaled(r, source ? from : to);
  return scaled == source ? to : from;
}

/* --- The parts of a batch ---------------------------------------------------------------------------------------- */

typedef struct finder {
  rs_batch *batch;
  bool source;
  int64_t tile, tensor;
  const int64_t *offset, *extent;
  reshard_status status;
} finder;

static int add_part(void *user, int64_t rank, int64_t array, int64_t held) {
  (void)held;
  finder *f = user;
  const rs_store_move *m = f->batch->move;
  const rs_store *store = f->source ? m->src : m->dst;
  const rs_stored_array *stored = rs_store_find(store, f->tensor, rank, array);
  bool elsewhere = stored == NULL && in_memory(store),
       left_out = !f->source && m->only_rank >= 0 && rank != m->only_rank;
  if (elsewhere || left_out)
    return 0;
  reshard_layout layout = store->tensors.at[f->tensor].layout;
  rs_tile_parts *list = f->source ? &f->batch->src : &f->batch->dst;
  f->status = rs_vec_reserve(list, list->n + 1);
  if (f->status != RESHARD_SUCCESS)
    return 1;
  rs_tile_part *p = &list->at[list->n++];
  *p = (rs_tile_part){.tile = f->tile, .rank = rank, .array = array, .stored = stored};
  p->cell = rs_layout_cell(layout, rank, array);
  p->bytes = (int64_t)reshard_dtype_size(moved_dtype(m, &m->regions[f->batch->tiles.at[f->tile].region], f->source));
  for (int d = 0; d < layout->ndim; d++) {
    int64_t end;
    rs_layout_clip(layout, p->cell, d, f->offset[d], f->offset[d] + f->extent[d], &p->lo[d], &end);
    p->extent[d] = end - p->lo[d];
    p->bytes *= p->extent[d];
  }
  return 0;
}

static reshard_status find_parts(rs_batch *b, bool source) {
  const rs_store_move *m = b->move;
  (source ? &b->src : &b->dst)->n = 0;
  for (int64_t i = 0; i < b->tiles.n; i++) {
    const rs_tile *t = &b->tiles.at[i];
    const rs_copy_region *r = &m->regions[t->region];
    finder f = {.batch = b, .source = source, .tile = i, .tensor = source ? r->src : r->dst};
    f.offset = source ? t->src_offset : t->dst_offset;
    f.extent = source ? t->src_extent : t->dst_extent;
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
  const rs_tile_part *x = a, *y = b;
  if (x->tile != y->tile)
    return x->tile < y->tile ? -1 : 1;
  if (x->cell != y->cell)
    return x->cell < y->cell ? -1 : 1;
  return (x->stored == NULL) - (y->stored == NULL);
}

/* By (rank, tile, array). */
static int by_rank(const void *a, const void *b) {
  const rs_tile_part *x = a, *y = b;
  if (x->rank != y->rank)
    return x->rank < y->rank ? -1 : 1;
  if (x->tile != y->tile)
    return x->tile < y->tile ? -1 : 1;
  return x->array < y->array ? -1 : x->array > y->array;
}

static int by_cell_of(const void *a, const void *b) {
  return by_cell(*(rs_tile_part *const *)a, *(rs_tile_part *const *)b);
}

/* Every cell of the source that the batch meets, once, and its place in memory. */
static reshard_status find_sources(rs_batch *b) {
  RS_TRY(find_parts(b, true));
  rs_tile_parts *list = &b->src;
  if (list->n > 1)
    qsort(list->at, (size_t)list->n, sizeof *list->at, by_cell);
  int64_t kept = 0, bytes = 0;
  for (int64_t i = 0; i < list->n; i++)
    if (i == 0 || list->at[i].tile != list->at[kept - 1].tile || list->at[i].cell != list->at[kept - 1].cell) {
      list->at[kept++] = list->at[i];
      bytes += list->at[i].bytes;
    }
  list->n = kept;
  if (in_memory(b->move->src))
    return RESHARD_SUCCESS;
  RS_TRY(rs_vec_reserve(&b->src_memory, bytes));
  char *memory = b->src_memory.at;
  for (int64_t i = 0; i < list->n; i++) {
    list->at[i].memory = memory;
    memory += list->at[i].bytes;
  }
  return RESHARD_SUCCESS;
}

/* The parts of the target that the batch meets, by rank; and by cell. */
static reshard_status find_targets(rs_batch *b) {
  RS_TRY(find_parts(b, false));
  if (b->dst.n > 1)
    qsort(b->dst.at, (size_t)b->dst.n, sizeof *b->dst.at, by_rank);
  RS_TRY(rs_vec_reserve(&b->cells, b->dst.n));
  for (int64_t i = 0; i < b->dst.n; i++)
    b->cells.at[i] = &b->dst.at[i];
  b->cells.n = b->dst.n;
  int64_t held = 0, all = 0;
  for (int64_t i = 0; i < b->dst.n; i++)
    held += b->dst.at[i].bytes;
  for (int64_t i = 0; i < b->tiles.n; i++)
    all += b->tiles.at[i].bytes;
  b->exclusive = held <= all; /* where ranks have different elements, what there is none of is no replica either */
  if (b->cells.n > 1)
    qsort(b->cells.at, (size_t)b->cells.n, sizeof *b->cells.at, by_cell_of);
  return RESHARD_SUCCESS;
}

/* --- The plan of one rank of the target -------------------------------------------------------------------------- */

/* The part of a tile and a cell, or an array, in a list by these. It is there. */
static const rs_tile_part *find_part(const rs_tile_part *list, int64_t n, int64_t tile, bool cell, int64_t number) {
  int64_t low = 0, high = n;
  RS_LOWER_BOUND(low, high,
                 list[i].tile < tile || (list[i].tile == tile && (cell ? list[i].cell : list[i].array) < number));
  return &list[low];
}

/* View of the whole array around its part in memory: only addresses within the part are used. */
static reshard_status view_of(void *user, int64_t rank, int64_t entry, bool source, int64_t array, rs_view *view) {
  const rs_batch *b = user;
  const rs_store_move *m = b->move;
  int64_t t = b->entry_tile.at[entry];
  const rs_copy_region *r = &m->regions[b->tiles.at[t].region];
  const rs_store *store = source ? m->src : m->dst;
  int64_t tensor = source ? r->src : r->dst;
  reshard_layout layout = store->tensors.at[tensor].layout;
  const rs_tile_part *p = source ? find_part(b->src.at, b->src.n, t, true, rs_layout_cell(layout, rank, array))
                                 : find_part(&b->dst.at[b->rank_first], b->rank_count, t, false, array);
  if (in_memory(store)) {
    *view = store->views.at[p->stored - store->arrays.at];
    return RESHARD_SUCCESS;
  }
  int64_t stride = (int64_t)reshard_dtype_size(moved_dtype(m, r, source)), before = 0;
  for (int d = layout->ndim - 1; d >= 0; d--) {
    view->strides[d] = stride;
    before += p->lo[d] * stride;
    stride *= p->extent[d];
  }
  view->at = (char *)((uintptr_t)p->memory - (uintptr_t)before);
  return RESHARD_SUCCESS;
}

/* An entry for each tile that the rank in hand has parts of. */
static reshard_status make_entries(rs_batch *b) {
  const rs_store_move *m = b->move;
  const char *names = m->dst->model->names.at;
  RS_TRY(rs_vec_reserve(&b->entries, b->rank_count));
  RS_TRY(rs_vec_reserve(&b->entry_tile, b->rank_count));
  b->entries.n = b->entry_tile.n = 0;
  for (int64_t i = b->rank_first; i < b->rank_first + b->rank_count; i++) {
    int64_t tile = b->dst.at[i].tile;
    if (i > b->rank_first && tile == b->dst.at[i - 1].tile)
      continue;
    const rs_tile *t = &b->tiles.at[tile];
    const rs_copy_region *r = &m->regions[t->region];
    b->entry_tile.at[b->entry_tile.n++] = tile;
    b->entries.at[b->entries.n++] = (reshard_entry){.size = RESHARD_ENTRY_INIT,
                                                    .src = m->src->tensors.at[r->src].layout,
                                                    .dst = m->dst->tensors.at[r->dst].layout,
                                                    .dtype = moved_dtype(m, r, true),
                                                    .dst_dtype = moved_dtype(m, r, false),
                                                    .name = names + m->dst->model->tensors.at[r->dst].name,
                                                    .src_offset = t->src_offset,
                                                    .src_extent = t->src_extent,
                                                    .dst_offset = t->dst_offset,
                                                    .dst_extent = t->dst_extent,
                                                    .permutation = t->permutation};
  }
  return RESHARD_SUCCESS;
}

/* Into b->copies: what comes to the rank's parts from where the source's parts are, or will be once they are read. */
static reshard_status plan_copies(rs_batch *b, int64_t rank) {
  reshard_plan plan = NULL;
  int64_t foreign = 0;
  b->copies.copy.n = b->copies.axis.n = b->copies.bytes = 0;
  b->copies.staging = !in_memory(b->move->dst);
  RS_TRY(make_entries(b));
  RS_TRY(rs_plan_create_wide(b->entries.n, b->entries.at, rank, b->world, &plan));
  reshard_status status = rs_pull(plan, NULL, view_of, NULL, b, &b->copies, &foreign);
  reshard_plan_destroy(plan);
  return status;
}

/* --- Reading ----------------------------------------------------------------------------------------------------- */

/* The last part of an ascending list that begins at an address or before it. */
static rs_tile_part *part_at(rs_tile_part *parts, int64_t n, const char *address) {
  int64_t low = 0, high = n;
  RS_LOWER_BOUND(low, high, parts[i].memory <= address);
  return low > 0 ? &parts[low - 1] : NULL;
}

/* Marks the parts of the source that the copies take from, and those that go to one place as they are. */
static void find_shifts(rs_batch *b) {
  for (int64_t i = 0; i < b->copies.copy.n; i++) {
    const rs_copy *c = &b->copies.copy.at[i];
    rs_tile_part *p = part_at(b->src.at, b->src.n, c->src);
    uintptr_t shift = (uintptr_t)c->dst - (uintptr_t)c->src;
    if (!p->wanted)
      p->shift = shift;
    p->wanted = true;
    p->shifted = c->naxes > 0 || c->from != c->to || p->shift != shift || p->shifted < 0 ? -1 : p->shifted + c->run;
  }
}

/* Reads the parts that the copies take from, and drops the copies of those that are read to where they go. */
static reshard_status read_parts(rs_batch *b) {
  const rs_store_move *m = b->move;
  bool to_memory = in_memory(m->dst) && b->exclusive; /* no other place needs what is read to its own */
  find_shifts(b);
  for (int64_t i = 0; i < b->src.n; i++) {
    rs_tile_part *p = &b->src.at[i];
    int64_t tensor = m->regions[b->tiles.at[p->tile].region].src;
    if (!p->wanted || p->done)
      continue;
    if (p->stored == NULL)
      return rs_error(RESHARD_ERROR_INTERNAL, "tensor '%s': the array of rank %lld is not stored",
                      rs_model_name(m->src->model, tensor), (long long)p->rank);
    p->in_place = to_memory && p->shifted == p->bytes;
    char *to = p->in_place ? (char *)((uintptr_t)p->memory + p->shift) : p->memory;
    if (rs_region_scaled(&m->regions[b->tiles.at[p->tile].region], m->src->model->tensors.at[tensor].dtype))
      RS_TRY(rs_scaled_read(b, p, to));
    else
      RS_TRY(rs_store_read(m->src, tensor, p->stored, p->lo, p->extent, to, &b->scratch));
    b->read_bytes += p->bytes;
    p->done = true;
  }
  if (!to_memory)
    return RESHARD_SUCCESS;
  int64_t kept = 0;
  for (int64_t i = 0; i < b->copies.copy.n; i++) {
    const rs_copy *c = &b->copies.copy.at[i];
    if (part_at(b->src.at, b->src.n, c->src)->in_place)
      b->copies.bytes -= c->run;
    else
      b->copies.copy.at[kept++] = *c;
  }
  b->copies.copy.n = kept;
  return RESHARD_SUCCESS;
}

/* --- Writing ----------------------------------------------------------------------------------------------------- */

/* Copies that are a whole part need not be made: the part's data is where its source is. The rank's parts lie in memory
 * in their order. */
static void take_in_place(rs_batch *b) {
  int64_t kept = 0;
  for (int64_t i = 0; i < b->copies.copy.n; i++) {
    const rs_copy *c = &b->copies.copy.at[i];
    rs_tile_part *p = part_at(&b->dst.at[b->rank_first], b->rank_count, c->dst);
    if (c->naxes == 0 && c->from == c->to && p->memory == c->dst && p->bytes == c->run) {
      p->data = c->src;
      b->copies.bytes -= c->run;
    } else {
      b->copies.copy.at[kept++] = *c;
    }
  }
  b->copies.copy.n = kept;
}

reshard_status rs_tile_write(rs_batch *b, int64_t tensor, const rs_tile_part *p, const rs_stored_array *array) {
  return b->move->compare ? rs_tile_compare(b, tensor, p, array)
                          : rs_store_write(b->move->dst, tensor, array, p->lo, p->extent, p->data, &b->scratch);
}

/* To wherever arrays of its cell are stored. Other arrays of the cell may have the scales alone. */
static reshard_status write_part(rs_batch *b, const rs_tile_part *p) {
  const rs_copy_region *r = &b->move->regions[b->tiles.at[p->tile].region];
  bool scaled = rs_region_scaled(r, b->move->dst->model->tensors.at[r->dst].dtype);
  rs_tile_part values = *p, scales = {0};
  if (scaled)
    RS_TRY(rs_scaled_make(b, p, &values, &scales));
  int64_t low = 0, high = b->cells.n;
  RS_LOWER_BOUND(low, high,
                 b->cells.at[i]->tile < p->tile || (b->cells.at[i]->tile == p->tile && b->cells.at[i]->cell < p->cell));
  for (; low < b->cells.n && b->cells.at[low]->tile == p->tile && b->cells.at[low]->cell == p->cell; low++) {
    rs_tile_part *q = b->cells.at[low];
    const rs_stored_array *beside = scaled ? rs_store_find(b->move->dst, r->scales, q->rank, q->array) : NULL;
    if (beside != NULL)
      RS_TRY(rs_tile_write(b, r->scales, &scales, beside));
    if (q->stored == NULL)
      continue;
    RS_TRY(rs_tile_write(b, r->dst, &values, q->stored));
    q->done = true;
  }
  return RESHARD_SUCCESS;
}

static reshard_status run_copies(rs_batch *b) {
  rs_program *program = NULL;
  if (b->copies.copy.n == 0)
    return RESHARD_SUCCESS;
  int64_t together = b->copies.staging ? b->copies.bytes : b->all_bytes;
  RS_TRY(b->device->work->compile(b->device, &b->copies, together, &program));
  reshard_status status = b->device->work->run(b->device, 1, &program, NULL);
  b->device->work->release(b->device, program);
  return status;
}

/* The parts of one rank, unless other ranks of their cells have had them all written. */
static reshard_status move_rank(rs_batch *b) {
  rs_tile_part *first = &b->dst.at[b->rank_first], *end = first + b->rank_count;
  bool todo = false, to_files = !in_memory(b->move->dst);
  int64_t bytes = 0;
  for (rs_tile_part *p = first; p < end; p++) {
    todo = todo || (p->stored != NULL && !p->done);
    bytes += p->bytes;
  }
  if (!todo)
    return RESHARD_SUCCESS;
  if (to_files)
    RS_TRY(rs_vec_reserve(&b->dst_memory, bytes));
  char *memory = to_files ? b->dst_memory.at : NULL;
  for (rs_tile_part *p = first; p < end && to_files; p++) {
    p->data = p->memory = memory;
    memory += p->bytes;
  }
  RS_TRY(plan_copies(b, first->rank));
  if (!in_memory(b->move->src))
    RS_TRY(read_parts(b));
  if (to_files)
    take_in_place(b);
  RS_TRY(run_copies(b));
  for (rs_tile_part *p = first; p < end && to_files; p++)
    if (p->stored != NULL && !p->done)
      RS_TRY(write_part(b, p));
  return RESHARD_SUCCESS;
}

reshard_status rs_batch_move(rs_batch *b) {
  b->scaled_tile = -1;
  RS_TRY(find_targets(b));
  if (b->dst.n == 0) /* a target with gaps */
    return RESHARD_SUCCESS;
  RS_TRY(find_sources(b));
  for (b->rank_first = 0; b->rank_first < b->dst.n; b->rank_first += b->rank_count) {
    b->rank_count = 1;
    while (b->rank_first + b->rank_count < b->dst.n &&
           b->dst.at[b->rank_first + b->rank_count].rank == b->dst.at[b->rank_first].rank)
      b->rank_count++;
    RS_TRY(move_rank(b));
  }
  return RESHARD_SUCCESS;
}

void rs_batch_free(rs_batch *b) {
  if (b->device != NULL)
    b->device->destroy(b->device);
  rs_copies_free(&b->copies);
  free(b->tiles.at);
  free(b->entries.at);
  free(b->entry_tile.at);
  free(b->src.at);
  free(b->dst.at);
  free(b->cells.at);
  free(b->src_memory.at);
  free(b->dst_memory.at);
  free(b->scratch.at);
  free(b->compared.at);
  free(b->values.at);
  free(b->scales.at);
}
