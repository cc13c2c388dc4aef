/* Comparison of two trees, side by side. Where both have containers that may be at several places the pair is recorded,
 * and compared once. So trees that share much are compared in the time of their nodes, not of their paths. A pair whose
 * comparison is under way counts as equal, for there are no cycles. */
#include "tree/tree.h"

#include <stdlib.h>
#include <string.h>

typedef struct node_pair {
  reshard_tree a, b;
} node_pair;

typedef struct compared_level {
  node_pair node;
  int64_t next; /* child */
} compared_level;

typedef struct comparison {
  RS_VEC(compared_level) levels;
  rs_names seen; /* pairs, each in memory of its own */
} comparison;

static bool same_numbers(const int64_t *a, const int64_t *b, int64_t n) {
  return (a == NULL) == (b == NULL) && (a == NULL || memcmp(a, b, (size_t)n * sizeof *a) == 0);
}

/* Compares names, and the rows of a packed sequence. Both containers are of one kind and have as many children. */
static bool same_forms(const rs_tree_form *a, const rs_tree_form *b) {
  if (a == b || a == NULL || b == NULL) /* a dict without keys may have one or not */
    return true;
  if (a->name != NULL && strcmp(a->name, b->name) != 0)
    return false;
  for (int64_t i = 0; i < a->keys.all.n; i++)
    if (a->keys.all.at[i].size != b->keys.all.at[i].size ||
        memcmp(a->keys.all.at[i].at, b->keys.all.at[i].at, a->keys.all.at[i].size) != 0)
      return false;
  return a->steps == b->steps && same_numbers(a->sizes, b->sizes, a->steps) &&
         same_numbers(a->order, b->order, a->steps > 0 ? a->sizes[0] : 0) &&
         same_numbers(a->back, b->back, a->steps > 0 ? a->sizes[0] : 0);
}

/* Compares two nodes but for their children. */
static bool same_nodes(reshard_tree a, reshard_tree b) {
  if (a->kind != b->kind)
    return false;
  switch (a->kind) {
  case RESHARD_TREE_DICT:
  case RESHARD_TREE_LIST:
  case RESHARD_TREE_TUPLE:
  case RESHARD_TREE_STRUCT:
  case RESHARD_TREE_PACKED: return a->children.n == b->children.n && same_forms(a->form, b->form);
  case RESHARD_TREE_SET: return a->children.n == b->children.n;
  case RESHARD_TREE_TENSOR: return a->tensor == b->tensor;
  case RESHARD_TREE_OPAQUE: return a->type == b->type && a->value == b->value;
  case RESHARD_TREE_BYTES: return a->size == b->size && (a->size == 0 || memcmp(a->bytes, b->bytes, a->size) == 0);
  case RESHARD_TREE_INT:
  case RESHARD_TREE_BOOL: return a->integer == b->integer;
  case RESHARD_TREE_FLOAT: return a->real == b->real || (a->real != a->real && b->real != b->real);
  case RESHARD_TREE_NULL: return true;
  }
  return false;
}

/* Records a pair; *is_new: it was not there before. */
static reshard_status mark_pair(comparison *c, node_pair pair, bool *is_new) {
  node_pair *kept;
  int64_t number, before = c->seen.all.n;
  *is_new = true;
  if (!rs_node_shared(pair.a) || !rs_node_shared(pair.b))
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc_copy(&kept, &pair, 1, sizeof pair));
  reshard_status status = rs_names_put(&c->seen, kept, sizeof *kept, &number);
  *is_new = status == RESHARD_SUCCESS && number == before;
  if (!*is_new)
    free(kept);
  return status;
}

/* Compares two nodes; containers that are alike become a level. */
static reshard_status compare_nodes(comparison *c, node_pair pair, bool *equal) {
  bool is_new;
  *equal = pair.a == pair.b || same_nodes(pair.a, pair.b);
  if (!*equal || pair.a == pair.b || reshard_tree_count(pair.a) == 0)
    return RESHARD_SUCCESS;
  if (pair.a->kind == RESHARD_TREE_SET)
    return rs_sets_equal(pair.a, pair.b, equal);
  RS_TRY(mark_pair(c, pair, &is_new));
  if (!is_new)
    return RESHARD_SUCCESS;
  return rs_vec_push(&c->levels, (compared_level){pair, 0});
}

static reshard_status compare_trees(comparison *c, node_pair trees, bool *equal) {
  RS_TRY(compare_nodes(c, trees, equal));
  while (c->levels.n > 0 && *equal) {
    compared_level *l = &c->levels.at[c->levels.n - 1];
    if (l->next == l->node.a->children.n) {
      c->levels.n--;
      continue;
    }
    int64_t i = l->next++;
    RS_TRY(compare_nodes(c, (node_pair){l->node.a->children.at[i], l->node.b->children.at[i]}, equal));
  }
  return RESHARD_SUCCESS;
}

reshard_status reshard_tree_equal(reshard_tree a, reshard_tree b, int *equal) {
  comparison c = {0};
  bool same = false;
  if (a == NULL || b == NULL || equal == NULL)
    return rs_error_null("reshard_tree_equal", a == NULL ? "a" : b == NULL ? "b" : "the output");
  reshard_status status = compare_trees(&c, (node_pair){a, b}, &same);
  rs_names_free_all(&c.seen);
  free(c.levels.at);
  if (status == RESHARD_SUCCESS)
    *equal = same;
  return status;
}
