/* A walk through a tree, leaf by leaf. */
#include "tree/walk.h"

#include <stdlib.h>
#include <string.h>

enum { AHEAD = 4 }; /* children: nodes and keys lie anywhere in memory */

void rs_walk_free(rs_walk *w) {
  free(w->stack.at);
  free(w->path.at);
  *w = (rs_walk){0};
}

reshard_status rs_walk_enter(rs_walk *w, reshard_tree container) {
  RS_TRY(rs_vec_reserve(&w->stack, w->stack.n + 1));
  RS_TRY(rs_vec_reserve(&w->path, 1));
  if (w->stack.n == 0)
    w->path.at[w->path.n = 0] = '\0';
  w->stack.at[w->stack.n++] = (rs_frame){.node = container, .path = w->path.n};
  return RESHARD_SUCCESS;
}

/* Writes the digits of a number that is not negative, up to end; returns their begin. Faster than snprintf, which every
 * child of a list would cost. */
static char *put_number(int64_t number, char *end) {
  do
    *--end = (char)('0' + number % 10);
  while ((number /= 10) > 0);
  return end;
}

reshard_status rs_walk_next(rs_walk *w, reshard_tree **slot) {
  rs_frame *f = &w->stack.at[w->stack.n - 1];
  reshard_tree node = f->node;
  if (f->next == node->children.n) {
    w->stack.n--;
    *slot = NULL;
    return RESHARD_SUCCESS;
  }
  char number[24], *end = number + sizeof number;
  bool more = f->next + AHEAD < node->children.n;
  rs_name key;
  if (more)
    __builtin_prefetch(node->children.at[f->next + AHEAD]);
  if (rs_node_keyed(node)) {
    if (more)
      __builtin_prefetch(node->form->keys.all.at[f->next + AHEAD].at);
    key = node->form->keys.all.at[f->next];
    key.size = rs_key_length(&key);
  } else {
    key.at = put_number(f->next, end);
    key.size = (size_t)(end - (const char *)key.at);
  }
  int64_t dot = w->stack.n > 1, length = f->path + dot + (int64_t)key.size;
  RS_TRY(rs_vec_reserve(&w->path, length + 1));
  if (dot)
    w->path.at[f->path] = '.';
  memcpy(w->path.at + f->path + dot, key.at, key.size);
  w->path.at[length] = '\0';
  w->path.n = length;
  *slot = &node->children.at[f->next++];
  return RESHARD_SUCCESS;
}

static reshard_status walk_on(rs_walk *w, rs_tree_visitor visit, void *user) {
  while (w->stack.n > 0) {
    reshard_tree parent = w->stack.at[w->stack.n - 1].node, *slot;
    int64_t index = w->stack.at[w->stack.n - 1].next;
    RS_TRY(rs_walk_next(w, &slot));
    if (slot != NULL)
      RS_TRY(rs_node_is_container(*slot) ? rs_walk_enter(w, *slot) : visit(user, w->path.at, parent, index, *slot));
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_tree_walk(reshard_tree tree, rs_tree_visitor visit, void *user) {
  rs_walk w = {0};
  if (!rs_node_is_container(tree))
    return visit(user, "", NULL, 0, tree);
  reshard_status status = rs_walk_enter(&w, tree);
  RS_THEN(status, walk_on(&w, visit, user));
  rs_walk_free(&w);
  return status;
}

typedef struct visitor {
  reshard_tree_visitor visit;
  void *user;
} visitor;

static reshard_status visit_leaf(void *user, const char *path, reshard_tree parent, int64_t index, reshard_tree leaf) {
  const visitor *v = user;
  (void)parent;
  (void)index;
  return v->visit(v->user, path, leaf);
}

reshard_status reshard_tree_visit(reshard_tree tree, reshard_tree_visitor visit, void *user) {
  RS_TRY(RS_GIVEN("reshard_tree_visit", tree, visit));
  return rs_tree_walk(tree, visit_leaf, &(visitor){visit, user});
}
