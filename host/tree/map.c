/* Trees of the structure of another one, made by one walk.
 *
 * A node with more references than its place in the container needs may be at several places. It is looked up in a
 * table, and so mapped once; nodes with one reference, nearly all of them, are not. A container is copied when the
 * first of its children has changed, with the children before it. Later ones are appended as the walk comes to them. A
 * copy shares the names of its original. So unchanged nodes are never touched, and a changed one costs its node and its
 * place.
 *
 * Flattening is a mapping that changes nothing; rebuilding is one that replaces each leaf. */
#include "tensor/tensor.h"
#include "tree/walk.h"

#include <stdlib.h>
#include <string.h>

/* The copy of a container that the walk is in. */
typedef struct container_copy {
  reshard_tree made; /* owned; NULL: nothing in it has changed so far */
  int64_t number;    /* of those that may be at several places; -1: it is at one */
} container_copy;

typedef struct tree_mapping {
  reshard_tree_leaf_map map;
  void *user;
  bool sets; /* leaves of sets are mapped, too */
  rs_walk walk;
  RS_VEC(container_copy) copies; /* of the containers in the walk's stack */
  rs_names seen;                 /* nodes that may be at several places */
  RS_VEC(reshard_tree) results;  /* of these nodes, owned; NULL: unchanged, or not known yet */
} tree_mapping;

static void mapping_free(tree_mapping *m) {
  for (int64_t i = 0; i < m->copies.n; i++)
    reshard_tree_release(m->copies.at[i].made);
  for (int64_t i = 0; i < m->results.n; i++)
    reshard_tree_release(m->results.at[i]);
  rs_walk_free(&m->walk);
  rs_names_free(&m->seen);
  free(m->copies.at);
  free(m->results.at);
}

/* Checks that the data of a packed sequence keep their rows. */
static reshard_status check_packed(reshard_tree before, reshard_tree after) {
  char text[RS_NODE_TEXT];
  if (after->kind != RESHARD_TREE_TENSOR)
    return rs_error(RESHARD_ERROR_INVALID, "the data of a packed sequence would become %s", rs_node_text(text, after));
  const reshard_tensor_info *was = &before->tensor->info, *is = &after->tensor->info;
  if (is->ndim == 0 || is->shape[0] != was->shape[0])
    return rs_error(RESHARD_ERROR_INVALID, "the data of a packed sequence has %lld rows, and would have %lld",
                    (long long)was->shape[0], is->ndim == 0 ? 0ll : (long long)is->shape[0]);
  return RESHARD_SUCCESS;
}

/* Checks that a member of a set becomes a leaf. */
static reshard_status check_member(reshard_tree after) {
  char text[RS_NODE_TEXT];
  if (rs_node_is_container(after))
    return rs_error(RESHARD_ERROR_INVALID, "a leaf of a set would become %s", rs_node_text(text, after));
  return RESHARD_SUCCESS;
}

/* Copies a container with its first n children. */
static reshard_status copy_first(reshard_tree container, int64_t n, reshard_tree *made) {
  RS_TRY(rs_node_like(container, made));
  for (int64_t i = 0; i < n; i++)
    (*made)->children.at[(*made)->children.n++] = reshard_tree_retain(container->children.at[i]);
  return RESHARD_SUCCESS;
}

/* Replaces the child that the walk took last, by a node that is taken over; NULL: it stays. The outermost result goes
 * to *root. */
static reshard_status replace_child(tree_mapping *m, reshard_tree child, reshard_tree became, reshard_tree *root) {
  if (m->walk.stack.n == 0) {
    *root = became != NULL ? became : reshard_tree_retain(child);
    return RESHARD_SUCCESS;
  }
  const rs_frame *f = &m->walk.stack.at[m->walk.stack.n - 1];
  container_copy *c = &m->copies.at[m->copies.n - 1];
  reshard_status status = RESHARD_SUCCESS;
  if (became == NULL && c->made == NULL)
    return RESHARD_SUCCESS;
  if (became != NULL && f->node->kind == RESHARD_TREE_PACKED)
    status = check_packed(child, became);
  else if (became != NULL && f->node->kind == RESHARD_TREE_SET)
    status = check_member(became);
  if (status != RESHARD_SUCCESS)
    rs_path_error(m->walk.path.at, status);
  if (status == RESHARD_SUCCESS && c->made == NULL)
    status = copy_first(f->node, f->next - 1, &c->made);
  RS_TRY_OR(status, reshard_tree_release(became));
  if (became == NULL)
    became = reshard_tree_retain(child);
  rs_node_mark_contained(became);
  c->made->children.at[c->made->children.n++] = became;
  return RESHARD_SUCCESS;
}

/* Maps a leaf; NULL where it stays. */
static reshard_status map_leaf(const tree_mapping *m, const char *path, reshard_tree leaf, reshard_tree *became) {
  *became = NULL;
  RS_TRY(m->map(m->user, path, leaf, became));
  if (*became == leaf) {
    reshard_tree_release(leaf); /* the reference that the function has returned */
    *became = NULL;
  }
  return RESHARD_SUCCESS;
}

/* Maps the child that the walk took last. */
static reshard_status map_child(tree_mapping *m, const reshard_tree *slot, reshard_tree *root) {
  reshard_tree child = *slot, became;
  int64_t number = -1, before = m->results.n;
  if (rs_node_shared(child)) {
    RS_TRY(rs_vec_reserve(&m->results, before + 1));
    RS_TRY(rs_names_put(&m->seen, slot, sizeof *slot, &number));
    if (number < before)
      return replace_child(m, child, reshard_tree_retain(m->results.at[number]), root);
    m->results.at[m->results.n++] = NULL;
  }
  if (child->kind == RESHARD_TREE_SET && !m->sets)
    return replace_child(m, child, NULL, root);
  if (rs_node_is_container(child)) {
    RS_TRY(rs_vec_reserve(&m->copies, m->copies.n + 1));
    RS_TRY(rs_walk_enter(&m->walk, child));
    m->copies.at[m->copies.n++] = (container_copy){NULL, number};
    return RESHARD_SUCCESS;
  }
  RS_TRY(map_leaf(m, m->walk.path.at, child, &became));
  if (number >= 0)
    m->results.at[number] = reshard_tree_retain(became);
  return replace_child(m, child, became, root);
}

/* Finishes a container that the walk has left. */
static reshard_status finish_container(tree_mapping *m, reshard_tree container, reshard_tree *root) {
  container_copy c = m->copies.at[m->copies.n - 1];
  if (c.made != NULL && c.made->kind == RESHARD_TREE_SET)
    RS_TRY(rs_set_merge(c.made));
  m->copies.n--;
  if (c.number >= 0)
    m->results.at[c.number] = reshard_tree_retain(c.made);
  return replace_child(m, container, c.made, root);
}

static reshard_status map_all(tree_mapping *m, reshard_tree tree, reshard_tree *root) {
  if (tree->kind == RESHARD_TREE_SET && !m->sets)
    return replace_child(m, tree, NULL, root);
  if (!rs_node_is_container(tree)) {
    reshard_tree became;
    RS_TRY(map_leaf(m, "", tree, &became));
    return replace_child(m, tree, became, root);
  }
  RS_TRY(rs_vec_reserve(&m->copies, 1));
  RS_TRY(rs_walk_enter(&m->walk, tree));
  m->copies.at[m->copies.n++] = (container_copy){NULL, -1};
  while (m->walk.stack.n > 0) {
    reshard_tree container = m->walk.stack.at[m->walk.stack.n - 1].node, *slot;
    RS_TRY(rs_walk_next(&m->walk, &slot));
    RS_TRY(slot != NULL ? map_child(m, slot, root) : finish_container(m, container, root));
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_tree_map(reshard_tree tree, reshard_tree_leaf_map map, void *user, bool sets, reshard_tree *mapped) {
  tree_mapping m = {.map = map, .user = user, .sets = sets};
  reshard_tree root = NULL;
  reshard_status status = map_all(&m, tree, &root);
  mapping_free(&m);
  if (status == RESHARD_SUCCESS)
    *mapped = root;
  return status;
}

static reshard_status check_arguments(const char *call, reshard_tree tree, bool map, const reshard_tree *mapped) {
  if (tree == NULL || !map || mapped == NULL)
    return rs_error_null(call, tree == NULL ? "tree" : !map ? "map" : "the output");
  return RESHARD_SUCCESS;
}

reshard_status reshard_tree_map(reshard_tree tree, reshard_tree_leaf_map map, void *user, reshard_tree *mapped) {
  RS_TRY(check_arguments("reshard_tree_map", tree, map != NULL, mapped));
  return rs_tree_map(tree, map, user, true, mapped);
}

/* --- To leaves and back --------------------------------------------------------------------------------------- */

typedef struct tree_flattening {
  RS_VEC(reshard_tree) leaves; /* owned */
  RS_VEC(int64_t) begins;      /* of the paths in the text */
  RS_VEC(char) text;
} tree_flattening;

static reshard_status list_leaf(void *user, const char *path, reshard_tree leaf, reshard_tree *mapped) {
  tree_flattening *f = user;
  (void)mapped;
  RS_TRY(rs_vec_push(&f->begins, f->text.n));
  RS_TRY(rs_vec_append(&f->text, path, strlen(path) + 1));
  return rs_vec_push(&f->leaves, reshard_tree_retain(leaf));
}

/* The lists, with the struct in front of its paths. */
typedef struct leaf_list {
  reshard_tree_leaves leaves;
  reshard_tree *nodes;
  char *text;
  const char *paths[];
} leaf_list;

static reshard_status make_leaf_list(tree_flattening *f, const reshard_tree_leaves **leaves) {
  leaf_list *l;
  int64_t n = f->leaves.n;
  RS_TRY(rs_alloc(&l, (int64_t)sizeof *l + n * (int64_t)sizeof *l->paths, 1));
  for (int64_t i = 0; i < n; i++)
    l->paths[i] = f->text.at + f->begins.at[i];
  l->nodes = f->leaves.at;
  l->text = f->text.at;
  l->leaves = (reshard_tree_leaves){n, l->paths, l->nodes};
  *leaves = &l->leaves;
  return RESHARD_SUCCESS;
}

reshard_status reshard_tree_flatten(reshard_tree tree, const reshard_tree_leaves **leaves) {
  tree_flattening f = {0};
  reshard_tree same = NULL;
  if (tree == NULL || leaves == NULL)
    return rs_error_null("reshard_tree_flatten", tree == NULL ? "tree" : "the output");
  reshard_status status = rs_tree_map(tree, list_leaf, &f, true, &same);
  reshard_tree_release(same);
  RS_THEN(status, make_leaf_list(&f, leaves));
  free(f.begins.at);
  if (status != RESHARD_SUCCESS) {
    for (int64_t i = 0; i < f.leaves.n; i++)
      reshard_tree_release(f.leaves.at[i]);
    free(f.leaves.at);
    free(f.text.at);
  }
  return status;
}

void reshard_tree_leaves_release(const reshard_tree_leaves *leaves) {
  leaf_list *l = (leaf_list *)leaves;
  if (l == NULL)
    return;
  for (int64_t i = 0; i < l->leaves.n; i++)
    reshard_tree_release(l->nodes[i]);
  free(l->nodes);
  free(l->text);
  free(l);
}

typedef struct rebuilding {
  int64_t n, next;
  const reshard_tree *leaves;
} rebuilding;

static reshard_status replace_leaf(void *user, const char *path, reshard_tree leaf, reshard_tree *mapped) {
  rebuilding *r = user;
  int64_t i = r->next++;
  (void)path;
  if (i >= r->n)
    return RESHARD_SUCCESS; /* the caller compares the number */
  if (r->leaves[i] == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_tree_rebuild: leaf %lld is NULL", (long long)i);
  if (r->leaves[i] != leaf)
    *mapped = reshard_tree_retain(r->leaves[i]);
  return RESHARD_SUCCESS;
}

reshard_status reshard_tree_rebuild(reshard_tree structure, int64_t n, const reshard_tree *leaves, reshard_tree *tree) {
  static const char call[] = "reshard_tree_rebuild";
  rebuilding r = {n, 0, leaves};
  reshard_tree made;
  if (structure == NULL || tree == NULL || (leaves == NULL && n > 0))
    return rs_error_null(call, structure == NULL ? "structure" : tree == NULL ? "the output" : "leaves");
  RS_TRY(rs_tree_map(structure, replace_leaf, &r, true, &made));
  if (r.next != n) {
    reshard_tree_release(made);
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld leaves, the structure has %lld", call, (long long)n,
                    (long long)r.next);
  }
  *tree = made;
  return RESHARD_SUCCESS;
}
