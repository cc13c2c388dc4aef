/* The rank of each file. Names of files carry no meaning, but the layouts that the metadata names do. The first element
 * of each block is held by some ranks, and the file's rank is among those that hold them all.
 *
 * Files for which that is one rank get it first. Where several ranks hold it all (replicas: files alike), a file gets
 * the lowest of them that has not got the same box from another file. So boxes of a rank are disjoint. Where none is
 * left, it gets a rank of its own beyond those of the layouts. A rank may have several files.
 *
 * Blocks of one layout with one box are looked up once a file: there are thousands of them. */

#include "file/read/shards.h"

#include "base/order.h"

#include <stdlib.h>
#include <string.h>

#ifdef RS_HAVE_JANSSON

/* A box that a file has: the layout that it is a part of, and its cell there. */
typedef struct shard_cell {
  const struct reshard_layout_s *layout;
  int64_t cell;
  const rs_shard *shard;
} shard_cell;

typedef struct search {
  const rs_shards *shards;
  rs_lists lists;
  RS_VEC(shard_cell) pieces;
  RS_VEC(rs_holder) holders;
  RS_VEC(int64_t) taken;
  const rs_shard **last; /* per layout: the shard of this file that was looked up last */
} search;

static bool same_box(int ndim, const reshard_box *a, const reshard_box *b) {
  size_t size = (size_t)ndim * sizeof(int64_t);
  return memcmp(a->offset, b->offset, size) == 0 && memcmp(a->extent, b->extent, size) == 0;
}

/* Cells that hold the first element of a box; of a layout that may have several, the one that is the box. */
typedef struct seek {
  const struct reshard_layout_s *layout;
  const reshard_box *box;
  int64_t cell;
} seek;

static reshard_status visit_cell(void *user, const rs_hit *hit) {
  seek *s = user;
  int64_t lo[RESHARD_MAX_DIMS], hi[RESHARD_MAX_DIMS];
  bool same = true;
  if (!rs_layout_regular(s->layout)) {
    rs_layout_cell_box(s->layout, hit->cell, lo, hi);
    for (int d = 0; d < s->layout->ndim; d++)
      same &= lo[d] == s->box->offset[d] && hi[d] - lo[d] == s->box->extent[d];
  }
  if (same)
    s->cell = hit->cell;
  return RESHARD_SUCCESS;
}

static reshard_status find_cell(search *s, const rs_shard *shard, const struct reshard_layout_s *layout) {
  seek found = {layout, &shard->box, -1};
  rs_piece piece_of[RESHARD_MAX_DIMS];
  rs_query query;
  for (int d = 0; d < layout->ndim; d++) {
    piece_of[d] = (rs_piece){shard->box.offset[d], 1, 0};
    query.count[d] = 1;
    query.pieces[d] = &piece_of[d];
  }
  s->lists.run.n = s->lists.list.n = s->lists.found.n = s->lists.group.n = 0;
  RS_TRY(rs_layout_query(layout, &query, &s->lists, visit_cell, &found));
  if (found.cell < 0) {
    char where[RS_SHARD_WHERE], text[RS_BOX_TEXT];
    return rs_error(RESHARD_ERROR_INVALID, "%s: %s is no box of the layout that its metadata names",
                    rs_shard_where(s->shards, shard, where),
                    rs_box_text(text, layout->ndim, shard->box.offset, shard->box.extent));
  }
  return rs_vec_push(&s->pieces, (shard_cell){layout, found.cell, shard});
}

static reshard_status find_pieces(search *s, int64_t f) {
  const rs_shards *all = s->shards;
  s->pieces.n = 0;
  for (int64_t i = 0; i < all->layouts.made.n; i++)
    s->last[i] = NULL;
  for (int64_t i = all->file_first.at[f]; i < all->file_first.at[f + 1]; i++) {
    const rs_shard *shard = &all->all.at[i];
    const rs_global_tensor *global = &all->tensors.at[shard->tensor];
    if (shard->empty || global->layout < 0) /* of an unknown dtype: any rank will do */
      continue;
    const rs_shard **last = &s->last[global->layout];
    if ((*last != NULL && same_box(global->ndim, &(*last)->box, &shard->box)))
      continue;
    RS_TRY(find_cell(s, shard, all->layouts.made.at[global->layout]));
    *last = shard;
  }
  return RESHARD_SUCCESS;
}

/* Adds the ranks of other files that have the box of a shard, as far as they are known. */
static reshard_status find_taken(search *s, const rs_shard *shard) {
  const rs_shards *all = s->shards;
  const rs_global_tensor *global = &all->tensors.at[shard->tensor];
  for (int64_t i = global->first; i < global->first + global->count; i++) {
    const rs_shard *other = &all->all.at[all->by_tensor.at[i]];
    if (other->file == shard->file || all->rank.at[other->file] < 0 ||
        !same_box(global->ndim, &other->box, &shard->box))
      continue;
    RS_TRY(rs_vec_push(&s->taken, all->rank.at[other->file]));
  }
  return RESHARD_SUCCESS;
}

/* -1: none is free; or, where the file must be `alone`, several ranks hold all that is in it. */
static reshard_status choose_rank(search *s, int64_t f, bool alone, int64_t *rank) {
  *rank = 0;
  if (s->pieces.n == 0)
    return RESHARD_SUCCESS;
  const shard_cell *fewest = &s->pieces.at[0];
  int64_t n = rs_layout_holder_count(fewest->layout, fewest->cell);
  for (int64_t i = 1; i < s->pieces.n; i++) {
    int64_t count = rs_layout_holder_count(s->pieces.at[i].layout, s->pieces.at[i].cell);
    if (count < n) {
      fewest = &s->pieces.at[i];
      n = count;
    }
  }
  RS_TRY(rs_vec_reserve(&s->holders, n));
  s->taken.n = 0;
  for (int64_t i = 0; i < s->pieces.n; i++)
    if (rs_layout_holder_count(s->pieces.at[i].layout, s->pieces.at[i].cell) > 1 || &s->pieces.at[i] == fewest)
      RS_TRY(find_taken(s, s->pieces.at[i].shard));
  if (s->taken.n > 1)
    qsort(s->taken.at, (size_t)s->taken.n, sizeof *s->taken.at, rs_order_numbers);
  const rs_holder *holders = rs_layout_holders(fewest->layout, fewest->cell, s->holders.at);
  int64_t left = 0, vacant = -1;
  for (int64_t i = 0, t = 0; i < n; i++) {
    bool holds = true;
    for (int64_t p = 0; p < s->pieces.n && holds; p++)
      holds = rs_layout_holds(s->pieces.at[p].layout, s->pieces.at[p].cell, holders[i].rank);
    left += holds;
    while (t < s->taken.n && s->taken.at[t] < holders[i].rank)
      t++;
    if (holds && vacant < 0 && (t == s->taken.n || s->taken.at[t] > holders[i].rank))
      vacant = holders[i].rank;
    if (vacant >= 0 && !alone)
      break;
  }
  char where[RS_WHERE];
  if (left == 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: no rank holds all that is in it, by the layouts of its metadata",
                    rs_opening_where(s->shards->opening, f, where));
  *rank = alone && left > 1 ? -1 : vacant;
  return RESHARD_SUCCESS;
}

/* Files taken one after the other may leave a last one without a rank where many hold the same. Which rank a box is on
 * matters for arrays stored whole alone: a file without them becomes a rank of its own. */
static reshard_status add_rank(rs_shards *shards, int64_t f) {
  char where[RS_WHERE];
  for (int64_t i = shards->file_first.at[f]; i < shards->file_first.at[f + 1]; i++)
    if (shards->tensors.at[shards->all.at[i].tensor].whole_arrays)
      return rs_error(RESHARD_ERROR_INVALID, "%s: more files have its boxes than its layouts have ranks for them",
                      rs_opening_where(shards->opening, f, where));
  if (shards->stated == 0)
    shards->stated = shards->world;
  shards->rank.at[f] = shards->world++;
  return RESHARD_SUCCESS;
}

reshard_status rs_shards_rank(rs_shards *shards) {
  int64_t files = shards->opening->checkpoint->store.files.n;
  search s = {.shards = shards};
  RS_TRY(rs_vec_reserve(&shards->rank, files));
  shards->rank.n = files;
  for (int64_t f = 0; f < files; f++)
    shards->rank.at[f] = f;
  if (shards->root == NULL)
    return RESHARD_SUCCESS;
  reshard_status status = rs_alloc(&s.last, shards->layouts.made.n, sizeof *s.last);
  for (int64_t f = 0; f < files; f++)
    shards->rank.at[f] = -1;
  /* Files that only one rank can have come first, so that no other takes it. */
  for (int64_t i = 0; i < 2 * files && status == RESHARD_SUCCESS; i++) {
    int64_t f = i % files;
    if (shards->rank.at[f] >= 0)
      continue;
    status = find_pieces(&s, f);
    RS_THEN(status, choose_rank(&s, f, i < files, &shards->rank.at[f]));
    if (status == RESHARD_SUCCESS && i >= files && shards->rank.at[f] < 0)
      status = add_rank(shards, f);
  }
  rs_lists_free(&s.lists);
  free(s.pieces.at);
  free(s.holders.at);
  free(s.taken.at);
  free(s.last);
  return status;
}

#endif
