/* A list of boxes is prepared in five linear or n log n steps: the ranks' own lists (a radix sort by rank), cells (a
 * hash table of equal boxes), holders of each cell, and coverage (corners.c). Queries have a tree (tree.c).
 *
 * Only a list that does not cover the shape exactly once can have boxes that overlap without being equal. Only then are
 * trees searched for overlaps, one tree per rank: boxes of different ranks may overlap on a destination. */
#include "layout/boxes.h"

#include "layout/sort.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Fewer boxes than this are compared pair by pair. */
#define PAIRWISE    16
#define REASON_TEXT (RS_BOX_TEXT + 256)

static reshard_status take_boxes(rs_boxes *b, const int64_t *shape, int64_t world, const int64_t *ranks,
                                 const reshard_box *boxes) {
  char text[RS_SHAPE_TEXT];
  RS_TRY(rs_alloc_copy(&b->ranks, ranks, b->n, sizeof *ranks));
  int64_t numbers;
  if (!rs_mul(b->n, 2 * b->ndim, &numbers))
    return rs_error_memory(SIZE_MAX);
  RS_TRY(rs_alloc(&b->corners, rs_max(numbers, 1), sizeof *b->corners)); /* not NULL for boxes without dims */
  for (int64_t i = 0; i < b->n; i++) {
    if (ranks[i] < 0 || ranks[i] >= world)
      return rs_error(RESHARD_ERROR_INVALID, "box %lld is on rank %lld, which is not in the world of %lld",
                      (long long)i, (long long)ranks[i], (long long)world);
    int64_t *lo = b->corners + i * 2 * b->ndim, *hi = lo + b->ndim;
    for (int d = 0; d < b->ndim; d++) {
      int64_t offset = boxes[i].offset[d], extent = boxes[i].extent[d];
      if (offset < 0 || extent < 0 || offset > shape[d] || extent > shape[d] - offset)
        return rs_error(RESHARD_ERROR_INVALID,
                        "box %lld of rank %lld has offset %lld and extent %lld in dim %d of shape %s", (long long)i,
                        (long long)ranks[i], (long long)offset, (long long)extent, d,
                        rs_shape_text(text, b->ndim, shape));
      lo[d] = offset;
      hi[d] = offset + extent;
    }
  }
  return RESHARD_SUCCESS;
}

static bool is_empty(const rs_boxes *b, int64_t box) {
  const int64_t *lo = rs_boxes_lo(b, box), *hi = rs_boxes_hi(b, box);
  bool empty = false;
  for (int d = 0; d < b->ndim; d++)
    empty |= lo[d] == hi[d];
  return empty;
}

static int64_t box_elements(const rs_boxes *b, int64_t box) {
  const int64_t *lo = rs_boxes_lo(b, box), *hi = rs_boxes_hi(b, box);
  int64_t elements = 1;
  for (int d = 0; d < b->ndim; d++)
    elements *= hi[d] - lo[d];
  return elements;
}

/* Boxes that overlap within a rank are refused later, whatever the sum is. */
static reshard_status add_elements(rs_boxes *b) {
  RS_TRY(rs_alloc_zero(&b->rank_elements, b->nranks, sizeof *b->rank_elements));
  for (int64_t r = 0; r < b->nranks; r++)
    for (int64_t j = b->rank_first[r]; j < b->rank_first[r + 1]; j++)
      b->rank_elements[r] = (int64_t)((uint64_t)b->rank_elements[r] + (uint64_t)box_elements(b, b->by_rank[j]));
  return RESHARD_SUCCESS;
}

static reshard_status group_ranks(rs_boxes *b) {
  reshard_status status;
  rs_pair *pairs = NULL, *spare = NULL;
  uint64_t largest = 0;
  bool ascending = true;
  RS_TRY_GOTO(status, rs_alloc(&b->by_rank, b->n, sizeof *b->by_rank), done);
  for (int64_t i = 0; i < b->n; i++) {
    largest |= (uint64_t)b->ranks[i];
    ascending &= i == 0 || b->ranks[i] >= b->ranks[i - 1];
    b->by_rank[i] = i;
  }
  if (!ascending) {
    RS_TRY_GOTO(status, rs_alloc(&pairs, b->n, sizeof *pairs), done);
    RS_TRY_GOTO(status, rs_alloc(&spare, b->n, sizeof *spare), done);
    for (int64_t i = 0; i < b->n; i++)
      pairs[i] = (rs_pair){(uint64_t)b->ranks[i], (uint64_t)i};
    const rs_pair *sorted = rs_sort_pairs(pairs, spare, b->n, false, 0, rs_bits(largest));
    for (int64_t i = 0; i < b->n; i++)
      b->by_rank[i] = (int64_t)sorted[i].value;
  }
  for (int64_t i = 0; i < b->n; i++)
    b->nranks += i == 0 || b->ranks[b->by_rank[i]] != b->ranks[b->by_rank[i - 1]];
  RS_TRY_GOTO(status, rs_alloc(&b->rank, b->nranks, sizeof *b->rank), done);
  RS_TRY_GOTO(status, rs_alloc(&b->rank_first, b->nranks + 1, sizeof *b->rank_first), done);
  int64_t r = 0;
  for (int64_t i = 0; i < b->n; i++)
    if (i == 0 || b->ranks[b->by_rank[i]] != b->rank[r - 1]) {
      b->rank[r] = b->ranks[b->by_rank[i]];
      b->rank_first[r++] = i;
    }
  b->rank_first[r] = b->n;
done:
  free(pairs);
  free(spare);
  return status;
}

/* Equal boxes share an entry of an open-addressed table, half full at most. An entry is a cell's number + 1 under the
 * top bits of its hash, which spare nearly all comparisons of unequal boxes. Entries are fetched a batch ahead, since
 * each is a miss of the cache. */
#define CELL_BITS 40
#define BATCH     16

static reshard_status make_cells(rs_boxes *b) {
  reshard_status status;
  uint64_t *table = NULL, hash[BATCH];
  const uint64_t cell_mask = ((uint64_t)1 << CELL_BITS) - 1;
  size_t bytes = 2 * (size_t)b->ndim * sizeof *b->corners;
  int64_t slots = (int64_t)1 << rs_bits((uint64_t)b->n * 2);
  RS_TRY_GOTO(status, rs_alloc(&b->cell_box, b->n, sizeof *b->cell_box), done);
  RS_TRY_GOTO(status, rs_alloc(&b->cell_of, b->n, sizeof *b->cell_of), done);
  RS_TRY_GOTO(status, rs_alloc_zero(&table, slots, sizeof *table), done);
  for (int64_t i = 0; i < b->n; i++) {
    const int64_t *lo = rs_boxes_lo(b, i);
    for (int64_t j = i; i % BATCH == 0 && j < b->n && j < i + BATCH; j++) {
      hash[j % BATCH] = rs_hash(0, rs_boxes_lo(b, j), bytes);
      __builtin_prefetch(&table[hash[j % BATCH] & (uint64_t)(slots - 1)], 1);
    }
    uint64_t at = hash[i % BATCH] & (uint64_t)(slots - 1), tag = hash[i % BATCH] & ~cell_mask;
    while (table[at] != 0 && ((table[at] & ~cell_mask) != tag ||
                              memcmp(rs_boxes_lo(b, b->cell_box[(table[at] & cell_mask) - 1]), lo, bytes) != 0))
      at = (at + 1) & (uint64_t)(slots - 1);
    if (table[at] == 0) {
      b->cell_box[b->ncells++] = i;
      table[at] = (uint64_t)b->ncells | tag;
    }
    b->cell_of[i] = (int64_t)(table[at] & cell_mask) - 1;
  }
done:
  free(table);
  return status;
}

/* Boxes are dealt to their cells rank by rank, so each cell's holders come out ascending. */
static reshard_status make_holders(rs_boxes *b) {
  RS_TRY(rs_alloc_zero(&b->cell_first, b->ncells + 1, sizeof *b->cell_first));
  RS_TRY(rs_alloc(&b->holders, b->n, sizeof *b->holders));
  for (int64_t i = 0; i < b->n; i++)
    b->cell_first[b->cell_of[i]]++;
  int64_t sum = 0;
  for (int64_t c = 0; c <= b->ncells; c++) {
    int64_t here = c < b->ncells ? b->cell_first[c] : 0;
    b->cell_first[c] = sum;
    sum += here;
  }
  for (int64_t r = 0; r < b->nranks; r++)
    for (int64_t j = b->rank_first[r]; j < b->rank_first[r + 1]; j++)
      b->holders[b->cell_first[b->cell_of[b->by_rank[j]]]++] = (rs_holder){b->rank[r], j - b->rank_first[r]};
  /* Each first has become the next one's. */
  memmove(b->cell_first + 1, b->cell_first, (size_t)b->ncells * sizeof *b->cell_first);
  b->cell_first[0] = 0;
  return RESHARD_SUCCESS;
}

/* Place of a rank among those that hold boxes; -1: it has none. */
static int64_t find_rank(const rs_boxes *b, int64_t rank) {
  int64_t low = 0, high = b->nranks;
  if (rank >= 0 && rank < high && b->rank[rank] == rank)
    return rank; /* all ranks up to this one hold boxes: the usual case */
  RS_LOWER_BOUND(low, high, b->rank[i] < rank);
  return low < b->nranks && b->rank[low] == rank ? low : -1;
}

void rs_boxes_of_rank(const rs_boxes *b, int64_t rank, int64_t *first, int64_t *count) {
  int64_t at = find_rank(b, rank);
  *first = at >= 0 ? b->rank_first[at] : 0;
  *count = at >= 0 ? b->rank_first[at + 1] - b->rank_first[at] : 0;
}

int64_t rs_boxes_elements(const rs_boxes *b, int64_t rank) {
  int64_t at = find_rank(b, rank);
  return at >= 0 ? b->rank_elements[at] : 0;
}

static int64_t holder_box(const rs_boxes *b, rs_holder holder) {
  int64_t first, count;
  rs_boxes_of_rank(b, holder.rank, &first, &count);
  return b->by_rank[first + holder.array];
}

/* "boxes 3 and 7 overlap at [0,4)x[8,12), both on rank 2" */
static void say_overlap(const rs_boxes *b, int64_t i, int64_t j, char text[REASON_TEXT]) {
  int64_t lo[RESHARD_MAX_DIMS], extent[RESHARD_MAX_DIMS];
  char box[RS_BOX_TEXT];
  if (i > j) {
    int64_t swap = i;
    i = j;
    j = swap;
  }
  for (int d = 0; d < b->ndim; d++) {
    lo[d] = rs_max(rs_boxes_lo(b, i)[d], rs_boxes_lo(b, j)[d]);
    extent[d] = rs_min(rs_boxes_hi(b, i)[d], rs_boxes_hi(b, j)[d]) - lo[d];
  }
  int n = snprintf(text, REASON_TEXT, "boxes %lld and %lld overlap at %s, ", (long long)i, (long long)j,
                   rs_box_text(box, b->ndim, lo, extent));
  if (b->ranks[i] == b->ranks[j])
    snprintf(text + n, REASON_TEXT - (size_t)n, "both on rank %lld", (long long)b->ranks[i]);
  else
    snprintf(text + n, REASON_TEXT - (size_t)n, "on ranks %lld and %lld", (long long)b->ranks[i],
             (long long)b->ranks[j]);
}

/* Two equal boxes that are not empty: of one rank where `within`, else of two. */
static bool find_equal(const rs_boxes *b, bool within, int64_t *i, int64_t *j) {
  for (int64_t c = 0; c < b->ncells; c++)
    for (int64_t h = b->cell_first[c] + 1; h < b->cell_first[c + 1]; h++)
      if ((b->holders[h].rank == b->holders[h - 1].rank) == within) {
        if (is_empty(b, b->cell_box[c]))
          break;
        *i = holder_box(b, b->holders[h - 1]);
        *j = holder_box(b, b->holders[h]);
        return true;
      }
  return false;
}

static bool boxes_meet(const rs_boxes *b, int64_t i, int64_t j) {
  for (int d = 0; d < b->ndim; d++)
    if (rs_boxes_lo(b, i)[d] >= rs_boxes_hi(b, j)[d] || rs_boxes_lo(b, j)[d] >= rs_boxes_hi(b, i)[d])
      return false;
  return true;
}

/* Ends a walk at the first hit that is not `self`. */
typedef struct other {
  int64_t self, found;
} other;
static reshard_status visit_other(void *user, int64_t id) {
  other *o = user;
  if (id == o->self)
    return RESHARD_SUCCESS;
  o->found = id;
  return RESHARD_ERROR_BUSY;
}

/* First of n boxes, known to the tree by id, that shares elements with another of them: *i and *j are ids, or -1. */
static void search_overlap(const rs_boxes *b, const rs_tree *tree, int64_t n, const int64_t *box, const int64_t *id,
                           int64_t *i, int64_t *j) {
  *i = *j = -1;
  for (int64_t p = 0; p < n; p++) {
    other o = {id[p], -1};
    if (rs_tree_query(tree, rs_boxes_lo(b, box[p]), rs_boxes_hi(b, box[p]), visit_other, &o) != RESHARD_SUCCESS) {
      *i = id[p];
      *j = o.found;
      return;
    }
  }
}

/* Finds an overlap between the boxes of one rank, which are usually few; *i and *j are box numbers, or -1. */
static reshard_status find_overlap(const rs_boxes *b, int64_t n, const int64_t *box, int64_t *i, int64_t *j) {
  *i = *j = -1;
  if (n > PAIRWISE) {
    rs_tree *tree;
    RS_TRY(rs_tree_create(b->ndim, b->corners, n, box, box, &tree));
    search_overlap(b, tree, n, box, box, i, j);
    rs_tree_free(tree);
    return RESHARD_SUCCESS;
  }
  for (int64_t p = 0; p < n; p++)
    for (int64_t q = p + 1; q < n; q++)
      if (boxes_meet(b, box[p], box[q])) {
        *i = box[p];
        *j = box[q];
        return RESHARD_SUCCESS;
      }
  return RESHARD_SUCCESS;
}

static reshard_status check_ranks(const rs_boxes *b) {
  reshard_status status = RESHARD_SUCCESS;
  int64_t *list = NULL, i, j;
  char text[REASON_TEXT];
  if (find_equal(b, true, &i, &j)) {
    say_overlap(b, i, j, text);
    return rs_error(RESHARD_ERROR_INVALID, "%s", text);
  }
  if (b->covers)
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc(&list, b->n, sizeof *list));
  for (int64_t r = 0; r < b->nranks; r++) {
    int64_t n = 0;
    for (int64_t p = b->rank_first[r]; p < b->rank_first[r + 1]; p++)
      if (!is_empty(b, b->by_rank[p]))
        list[n++] = b->by_rank[p];
    RS_TRY_GOTO(status, find_overlap(b, n, list, &i, &j), done);
    if (i >= 0) {
      say_overlap(b, i, j, text);
      status = rs_error(RESHARD_ERROR_INVALID, "%s", text);
      goto done;
    }
  }
done:
  free(list);
  return status;
}

/* Coverage, tree, overlap and source_error. n boxes, one of each cell that is not empty: numbers and cells. */
static reshard_status check_cells(rs_boxes *b, const int64_t *shape, int64_t n, const int64_t *box,
                                  const int64_t *cell) {
  int64_t excess = 0, point[RESHARD_MAX_DIMS], extent[RESHARD_MAX_DIMS], i = -1, j = -1, first, second;
  char text[REASON_TEXT] = "", gap[RS_BOX_TEXT];
  bool elements = true;
  for (int d = 0; d < b->ndim; d++)
    elements &= shape[d] > 0;
  if (elements)
    RS_TRY(rs_corners_check(b->ndim, shape, b->corners, n, box, &excess, point));
  b->covers = excess == 0;
  RS_TRY(check_ranks(b));
  RS_TRY(rs_tree_create(b->ndim, b->corners, n, box, cell, (rs_tree **)&b->tree));
  if (excess > 0) {
    rs_corners_pair(b->ndim, b->corners, n, box, point, &i, &j);
    say_overlap(b, box[i], box[j], text);
  } else if (excess < 0) {
    rs_corners_gap(b->ndim, shape, b->corners, n, box, point, extent);
    for (int d = 0; d < b->ndim; d++)
      extent[d] -= point[d];
    snprintf(text, sizeof text, "no box holds %s", rs_box_text(gap, b->ndim, point, extent));
    search_overlap(b, b->tree, n, box, cell, &i, &j);
  } else if (!b->replicated && find_equal(b, false, &first, &second)) {
    snprintf(text, sizeof text,
             "boxes %lld and %lld are equal, on ranks %lld and %lld, and the layout is not declared replicated",
             (long long)first, (long long)second, (long long)b->ranks[first], (long long)b->ranks[second]);
  }
  b->overlapping = i >= 0;
  return text[0] == '\0' ? RESHARD_SUCCESS : rs_alloc_copy(&b->source_error, text, (int64_t)strlen(text) + 1, 1);
}

reshard_status rs_boxes_create(int ndim, const int64_t *shape, int64_t world, int64_t n, const int64_t *ranks,
                               const reshard_box *boxes, bool replicated, rs_boxes **out) {
  reshard_status status;
  rs_boxes *b = NULL;
  int64_t *box = NULL, *cell = NULL, filled = 0;
  RS_TRY(rs_alloc_zero(&b, 1, sizeof *b));
  b->ndim = ndim;
  b->n = n;
  b->replicated = replicated;
  RS_TRY_GOTO(status, take_boxes(b, shape, world, ranks, boxes), fail);
  RS_TRY_GOTO(status, group_ranks(b), fail);
  RS_TRY_GOTO(status, add_elements(b), fail);
  RS_TRY_GOTO(status, make_cells(b), fail);
  RS_TRY_GOTO(status, make_holders(b), fail);
  RS_TRY_GOTO(status, rs_alloc(&box, b->ncells, sizeof *box), fail);
  RS_TRY_GOTO(status, rs_alloc(&cell, b->ncells, sizeof *cell), fail);
  for (int64_t c = 0; c < b->ncells; c++)
    if (!is_empty(b, b->cell_box[c])) {
      box[filled] = b->cell_box[c];
      cell[filled++] = c;
    }
  RS_TRY_GOTO(status, check_cells(b, shape, filled, box, cell), fail);
  free(box);
  free(cell);
  *out = b;
  return RESHARD_SUCCESS;
fail:
  free(box);
  free(cell);
  rs_boxes_free(b);
  return status;
}

void rs_boxes_free(rs_boxes *b) {
  if (b == NULL)
    return;
  free(b->ranks);
  free(b->corners);
  free(b->rank);
  free(b->rank_first);
  free(b->rank_elements);
  free(b->by_rank);
  free(b->cell_box);
  free(b->cell_of);
  free(b->cell_first);
  free(b->holders);
  rs_tree_free(b->tree);
  free(b->source_error);
  free(b);
}

reshard_status rs_boxes_query(const rs_boxes *b, const int64_t *lo, const int64_t *hi, rs_boxes_visit visit,
                              void *user) {
  return rs_tree_query(b->tree, lo, hi, visit, user);
}

bool rs_boxes_gather(const rs_boxes *b, const int64_t *lo, const int64_t *hi, rs_near *near) {
  return rs_tree_gather(b->tree, lo, hi, near);
}
