/* The boxes are sorted along a Z-order curve through their centres: the bits of the centre's coordinates, taken in
 * turn, make one key. A range of the sorted keys is split where the highest bit that differs in it changes. That is a
 * clean cut of space in one dim, so neighbours do not overlap where the boxes do not. Up to WIDTH ranges make one node:
 * a node is a few vector compares wide, and a million boxes are seven levels deep. Splitting takes the largest range
 * first, which evens the children out. Nodes are laid out level by level in one array, children side by side, without
 * pointers.
 *
 * Two economies. A dim in which all boxes have the same interval is compared once, at the root. And node boxes are
 * 32-bit. A dim longer than that is shifted right, low ends rounded down and high ends up, and hits are then checked
 * with the exact corners. */
#include "layout/boxes.h"

#include "layout/sort.h"

#include <stdlib.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define WIDTH 8
/* Each level splits by a key bit or, where all keys are equal, halves. */
#define DEPTH_MOST 128

typedef int32_t lanes __attribute__((vector_size(16), may_alias));

typedef struct node {
  int64_t base;  /* leaf: first of its boxes in tree order; else number of its first child */
  int32_t count; /* of boxes or children */
  int32_t leaf;
  int32_t box[][2][WIDTH]; /* per active dim: lo and hi of each child */
} node;

struct rs_tree {
  int ndim;
  int64_t n;
  const int64_t *corners;
  int64_t *box, *id;            /* [n] in tree order */
  int64_t lo[RESHARD_MAX_DIMS]; /* bounds of all boxes */
  int64_t hi[RESHARD_MAX_DIMS];
  int nactive;
  int active[RESHARD_MAX_DIMS]; /* dims in which the boxes differ */
  int shift[RESHARD_MAX_DIMS];  /* by active dim */
  bool exact;                   /* no shift at all */
  size_t stride;                /* bytes of a node */
  char *nodes;
};

typedef struct range {
  int64_t begin, count;
} range;
typedef RS_VEC(range) ranges;

static inline node *node_at(const rs_tree *tree, int64_t i) {
  return (node *)(void *)(tree->nodes + (size_t)i * tree->stride);
}

static void find_bounds(rs_tree *tree, const int64_t *box) {
  int ndim = tree->ndim;
  const int64_t *first = tree->corners + box[0] * 2 * ndim;
  bool differs[RESHARD_MAX_DIMS] = {false};
  memcpy(tree->lo, first, (size_t)ndim * sizeof *first);
  memcpy(tree->hi, first + ndim, (size_t)ndim * sizeof *first);
  for (int64_t i = 1; i < tree->n; i++) {
    const int64_t *lo = tree->corners + box[i] * 2 * ndim, *hi = lo + ndim;
    for (int d = 0; d < ndim; d++) {
      differs[d] |= (lo[d] != first[d]) | (hi[d] != first[ndim + d]);
      tree->lo[d] = rs_min(tree->lo[d], lo[d]);
      tree->hi[d] = rs_max(tree->hi[d], hi[d]);
    }
  }
  tree->exact = true;
  for (int d = 0; d < ndim; d++)
    if (differs[d]) {
      int bits = rs_bits((uint64_t)tree->hi[d]);
      tree->shift[tree->nactive] = bits > 30 ? bits - 30 : 0;
      tree->exact &= bits <= 30;
      tree->active[tree->nactive++] = d;
    }
}

/* table[b]: the bits of b, `step` apart. */
static void fill_spread(uint64_t table[256], int step) {
  for (int b = 0; b < 256; b++) {
    table[b] = 0;
    for (int bit = 0; bit < 8 && bit * step < 64; bit++)
      table[b] |= (uint64_t)(b >> bit & 1) << (bit * step);
  }
}

/* Fills pairs with {key, i}; returns the number of key bits. */
static int make_keys(const rs_tree *tree, const int64_t *box, rs_pair *pairs) {
  int k = tree->nactive, ndim = tree->ndim, most = 0, span[RESHARD_MAX_DIMS];
  uint64_t table[256];
  if (k == 0) {
    for (int64_t i = 0; i < tree->n; i++)
      pairs[i] = (rs_pair){0, (uint64_t)i};
    return 0;
  }
  for (int a = 0; a < k; a++) {
    int d = tree->active[a];
    span[a] = rs_bits(2 * (uint64_t)(tree->hi[d] - tree->lo[d]));
    most = span[a] > most ? span[a] : most;
  }
  int bits = most < 63 / k ? most : 63 / k;
  bits = bits < 32 ? bits : 32;
  fill_spread(table, k);
  for (int64_t i = 0; i < tree->n; i++) {
    const int64_t *lo = tree->corners + box[i] * 2 * ndim, *hi = lo + ndim;
    uint64_t key = 0;
    for (int a = 0; a < k; a++) {
      int d = tree->active[a];
      uint64_t centre = (uint64_t)(lo[d] - tree->lo[d]) + (uint64_t)(hi[d] - tree->lo[d]);
      centre = span[a] > bits ? centre >> (span[a] - bits) : centre << (bits - span[a]);
      uint64_t spread = 0;
      for (int byte = 0; byte * 8 < bits; byte++)
        spread |= table[centre >> (byte * 8) & 255] << (byte * 8 * k);
      key |= spread << (k - 1 - a);
    }
    pairs[i] = (rs_pair){key, (uint64_t)i};
  }
  return bits * k;
}

/* Items of a range's first half. */
static int64_t split_range(const rs_pair *sorted, range r) {
  const rs_pair *at = sorted + r.begin;
  uint64_t differ = at[0].key ^ at[r.count - 1].key;
  if (differ == 0)
    return r.count / 2;
  uint64_t bit = (uint64_t)1 << (rs_bits(differ) - 1);
  int64_t without = 0, with = r.count - 1;
  while (with - without > 1) {
    int64_t middle = without + (with - without) / 2;
    if (at[middle].key & bit)
      with = middle;
    else
      without = middle;
  }
  return with;
}

/* Splits a range in up to WIDTH children, in order; returns how many. A child that a full subtree holds is left whole:
 * so it is the nodes near the root that have few children, and not those near the leaves, which are many. */
static int split_node(const rs_pair *sorted, range r, range child[WIDTH]) {
  int count = 1;
  int64_t full = WIDTH;
  while (full < (r.count - 1) / WIDTH + 1)
    full *= WIDTH;
  child[0] = r;
  while (count < WIDTH) {
    int largest = 0;
    for (int c = 1; c < count; c++)
      if (child[c].count > child[largest].count)
        largest = c;
    if (child[largest].count <= full)
      break;
    int64_t first = split_range(sorted, child[largest]);
    memmove(child + largest + 1, child + largest, (size_t)(count - largest) * sizeof *child);
    child[largest].count = first;
    child[largest + 1].begin += first;
    child[largest + 1].count -= first;
    count++;
  }
  return count;
}

static inline int32_t narrow_lo(int64_t lo, int shift) { return (int32_t)(lo >> shift); }
static inline int32_t narrow_hi(int64_t hi, int shift) { return (int32_t)(((hi - 1) >> shift) + 1); }

static void fill_leaf(const rs_tree *tree, node *at) {
  for (int a = 0; a < tree->nactive; a++)
    for (int c = 0; c < at->count; c++) {
      const int64_t *lo = tree->corners + tree->box[at->base + c] * 2 * tree->ndim + tree->active[a];
      at->box[a][0][c] = narrow_lo(lo[0], tree->shift[a]);
      at->box[a][1][c] = narrow_hi(lo[tree->ndim], tree->shift[a]);
    }
}

static void fill_inner(const rs_tree *tree, node *at) {
  for (int c = 0; c < at->count; c++) {
    const node *child = node_at(tree, at->base + c);
    for (int a = 0; a < tree->nactive; a++) {
      int32_t lo = child->box[a][0][0], hi = child->box[a][1][0];
      for (int i = 1; i < child->count; i++) {
        lo = child->box[a][0][i] < lo ? child->box[a][0][i] : lo;
        hi = child->box[a][1][i] > hi ? child->box[a][1][i] : hi;
      }
      at->box[a][0][c] = lo;
      at->box[a][1][c] = hi;
    }
  }
}

/* A node's range is split when its turn comes, and its children are appended together: level by level. */
static reshard_status make_nodes(rs_tree *tree, const rs_pair *sorted) {
  reshard_status status;
  RS_VEC(node) plan = {0}; /* base and count only */
  ranges todo = {0};
  RS_TRY_GOTO(status, rs_vec_reserve(&todo, tree->n / 4 + 1), done);
  todo.at[todo.n++] = (range){0, tree->n};
  for (int64_t i = 0; i < todo.n; i++) {
    range r = todo.at[i], child[WIDTH];
    RS_TRY_GOTO(status, rs_vec_reserve(&plan, i + 1), done);
    plan.n = i + 1;
    if (r.count <= WIDTH) {
      plan.at[i] = (node){.base = r.begin, .count = (int32_t)r.count, .leaf = 1};
      continue;
    }
    int count = split_node(sorted, r, child);
    plan.at[i] = (node){.base = todo.n, .count = count, .leaf = 0};
    RS_TRY_GOTO(status, rs_vec_append(&todo, child, count), done);
  }
  tree->stride = sizeof(node) + (size_t)tree->nactive * sizeof(((node *)0)->box[0]);
  RS_TRY_GOTO(status, rs_alloc(&tree->nodes, plan.n, tree->stride), done);
  for (int64_t i = plan.n - 1; i >= 0; i--) {
    node *at = node_at(tree, i);
    memset(at, 0, tree->stride);
    memcpy(at, &plan.at[i], sizeof plan.at[i]);
    if (at->leaf)
      fill_leaf(tree, at);
    else
      fill_inner(tree, at);
  }
done:
  free(plan.at);
  free(todo.at);
  return status;
}

reshard_status rs_tree_create(int ndim, const int64_t *corners, int64_t n, const int64_t *box, const int64_t *id,
                              rs_tree **out) {
  reshard_status status;
  rs_tree *tree = NULL;
  rs_pair *pairs = NULL, *spare = NULL;
  RS_TRY(rs_alloc_zero(&tree, 1, sizeof *tree));
  tree->ndim = ndim;
  tree->n = n;
  tree->corners = corners;
  if (n > 0) {
    RS_TRY_GOTO(status, rs_alloc(&tree->box, n, sizeof *tree->box), fail);
    RS_TRY_GOTO(status, rs_alloc(&tree->id, n, sizeof *tree->id), fail);
    RS_TRY_GOTO(status, rs_alloc(&pairs, n, sizeof *pairs), fail);
    RS_TRY_GOTO(status, rs_alloc(&spare, n, sizeof *spare), fail);
    find_bounds(tree, box);
    const rs_pair *sorted = rs_sort_pairs(pairs, spare, n, false, 0, make_keys(tree, box, pairs));
    for (int64_t i = 0; i < n; i++) {
      tree->box[i] = box[sorted[i].value];
      tree->id[i] = id[sorted[i].value];
    }
    RS_TRY_GOTO(status, make_nodes(tree, sorted), fail);
  }
  free(pairs);
  free(spare);
  *out = tree;
  return RESHARD_SUCCESS;
fail:
  free(pairs);
  free(spare);
  rs_tree_free(tree);
  return status;
}

void rs_tree_free(rs_tree *tree) {
  if (tree == NULL)
    return;
  free(tree->box);
  free(tree->id);
  free(tree->nodes);
  free(tree);
}

static inline lanes all_lanes(int32_t x) { return (lanes){x, x, x, x}; }

/* Bit c is set where lane c of the comparison's result is true. */
static inline unsigned bits_of(lanes mask) {
#if defined(__SSE2__)
  return (unsigned)_mm_movemask_ps((__m128)mask);
#else
  return (unsigned)((mask[0] & 1) | (mask[1] & 2) | (mask[2] & 4) | (mask[3] & 8));
#endif
}

/* Children of a node that meet the query, as bits. */
static inline unsigned meeting_children(const node *at, int k, const lanes *lo, const lanes *hi) {
  unsigned mask = 0;
  for (int half = 0; half < WIDTH / 4; half++) {
    lanes m = all_lanes(-1);
    for (int a = 0; a < k; a++) {
      lanes child_lo, child_hi;
      memcpy(&child_lo, &at->box[a][0][half * 4], sizeof child_lo);
      memcpy(&child_hi, &at->box[a][1][half * 4], sizeof child_hi);
      m &= (child_lo < hi[a]) & (child_hi > lo[a]);
    }
    mask |= bits_of(m) << (half * 4);
  }
  return mask & ((1u << at->count) - 1);
}

static inline int highest_bit(unsigned mask) { return 31 - __builtin_clz(mask); }

static bool meets_exactly(const rs_tree *tree, int64_t box, const int64_t *lo, const int64_t *hi) {
  const int64_t *at = tree->corners + box * 2 * tree->ndim;
  for (int d = 0; d < tree->ndim; d++)
    if (at[d] >= hi[d] || at[tree->ndim + d] <= lo[d])
      return false;
  return true;
}

/* A box that is looked for: clipped to the bounds of all boxes, in the active dims. */
typedef struct wanted {
  int64_t lo[RESHARD_MAX_DIMS], hi[RESHARD_MAX_DIMS];
  lanes narrow_lo[RESHARD_MAX_DIMS], narrow_hi[RESHARD_MAX_DIMS];
} wanted;

/* False where it meets no box. */
static inline bool clip_wanted(const rs_tree *tree, const int64_t *lo, const int64_t *hi, wanted *w) {
  for (int d = 0; d < tree->ndim; d++) {
    w->lo[d] = rs_max(lo[d], tree->lo[d]);
    w->hi[d] = rs_min(hi[d], tree->hi[d]);
    if (w->lo[d] >= w->hi[d])
      return false;
  }
  for (int a = 0; a < tree->nactive; a++) {
    w->narrow_lo[a] = all_lanes(narrow_lo(w->lo[tree->active[a]], tree->shift[a]));
    w->narrow_hi[a] = all_lanes(narrow_hi(w->hi[tree->active[a]], tree->shift[a]));
  }
  return true;
}

/* Nodes still to be looked at. */
typedef struct tree_walk {
  int depth;
  int64_t stack[DEPTH_MOST * (WIDTH - 1) + 1];
} tree_walk;

/* Nodes are far from each other in memory, and several are looked at before this one. */
static inline void fetch_node(const rs_tree *tree, int64_t i) {
  const char *at = tree->nodes + (size_t)i * tree->stride;
  for (size_t line = 0; line < tree->stride; line += 64)
    __builtin_prefetch(at + line);
}

/* Goes to the next leaf that has a box that meets the wanted one; *mask: which. NULL: there is none. */
static inline const node *next_leaf(const rs_tree *tree, const wanted *w, tree_walk *walk, unsigned *mask) {
  while (walk->depth > 0) {
    const node *at = node_at(tree, walk->stack[--walk->depth]);
    *mask = meeting_children(at, tree->nactive, w->narrow_lo, w->narrow_hi);
    if (at->leaf && *mask != 0)
      return at;
    if (!at->leaf) /* the first on top: boxes come in tree order, often as they were given */
      for (; *mask != 0; *mask ^= 1u << highest_bit(*mask)) {
        int64_t child = at->base + highest_bit(*mask);
        fetch_node(tree, child);
        walk->stack[walk->depth++] = child;
      }
  }
  return NULL;
}

reshard_status rs_tree_query(const rs_tree *tree, const int64_t *lo, const int64_t *hi, rs_tree_visit visit,
                             void *user) {
  wanted w;
  tree_walk walk;
  unsigned mask;
  if (tree == NULL || tree->n == 0 || !clip_wanted(tree, lo, hi, &w))
    return RESHARD_SUCCESS;
  walk.depth = 1;
  walk.stack[0] = 0;
  for (const node *at; (at = next_leaf(tree, &w, &walk, &mask)) != NULL;)
    for (; mask != 0; mask &= mask - 1) {
      int64_t hit = at->base + __builtin_ctz(mask);
      if (tree->exact || meets_exactly(tree, tree->box[hit], w.lo, w.hi))
        RS_TRY(visit(user, tree->id[hit]));
    }
  return RESHARD_SUCCESS;
}

bool rs_tree_gather(const rs_tree *tree, const int64_t *lo, const int64_t *hi, rs_near *near) {
  wanted w;
  tree_walk walk;
  unsigned mask;
  near->tree = tree;
  near->n = 0;
  if (tree == NULL || tree->n == 0 || !clip_wanted(tree, lo, hi, &w))
    return true;
  if (!tree->exact)
    return false;
  walk.depth = 1;
  walk.stack[0] = 0;
  for (const node *at; (at = next_leaf(tree, &w, &walk, &mask)) != NULL;)
    for (; mask != 0; mask &= mask - 1) {
      int child = __builtin_ctz(mask);
      if (near->n == RS_NEAR)
        return false;
      for (int a = 0; a < tree->nactive; a++) {
        near->box[a][0][near->n] = at->box[a][0][child];
        near->box[a][1][near->n] = at->box[a][1][child];
      }
      near->id[near->n++] = tree->id[at->base + child];
    }
  return true;
}

reshard_status rs_near_query(const rs_near *near, const int64_t *lo, const int64_t *hi, rs_boxes_visit visit,
                             void *user) {
  const rs_tree *tree = near->tree;
  wanted w;
  if (near->n == 0 || !clip_wanted(tree, lo, hi, &w))
    return RESHARD_SUCCESS;
  for (int64_t i = 0; i < near->n; i += 4) {
    lanes m = all_lanes(-1);
    for (int a = 0; a < tree->nactive; a++) {
      lanes los, his;
      memcpy(&los, &near->box[a][0][i], sizeof los);
      memcpy(&his, &near->box[a][1][i], sizeof his);
      m &= (los < w.narrow_hi[a]) & (his > w.narrow_lo[a]);
    }
    unsigned mask = bits_of(m) & (near->n - i < 4 ? (1u << (near->n - i)) - 1 : 15u);
    for (; mask != 0; mask &= mask - 1)
      RS_TRY(visit(user, near->id[i + __builtin_ctz(mask)]));
  }
  return RESHARD_SUCCESS;
}
