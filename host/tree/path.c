/* Nodes by their paths. Keys may have dots in them, so that several ways may lead to a node: they are tried in
 * order. */
#include "tree/tree.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

/* Finds the first child from number `from` on that has n characters as its key, a string or an integer; -1: none. */
static int64_t find_key(const rs_names *keys, const char *key, size_t n, int64_t from) {
  char text[RS_INT_KEY] = "";
  int64_t string = rs_names_find(keys, key, n), number = -1;
  if (n > 0 && n < sizeof text) {
    memcpy(text, key, n);
    number = rs_names_find(keys, text, n + 1);
  }
  if (string < from || (number >= from && number < string))
    return number >= from ? number : -1;
  return string;
}

/* The same for any container. */
static int64_t find_child(reshard_tree node, const char *key, size_t n, int64_t from) {
  int64_t index = 0;
  if (rs_node_keyed(node))
    return find_key(&node->form->keys, key, n, from);
  if (n == 0 || (key[0] == '0' && n > 1))
    return -1;
  for (size_t i = 0; i < n; i++) {
    if (key[i] < '0' || key[i] > '9')
      return -1;
    index = index * 10 + (key[i] - '0');
  }
  return index >= from && index < node->children.n ? index : -1;
}

/* A node on the way and the rest of the path from it. Each pair is tried once, however many ways lead to it. */
typedef struct fork_point {
  struct {
    reshard_tree node;
    const char *rest;
  } pair;
  int64_t next; /* children before it were tried */
  struct fork_point *up;
} fork_point;

/* Finds the first child not tried whose key begins the rest of the path, -1: none; *rest: the path behind it, NULL for
 * none. */
static int64_t next_match(const fork_point *f, const char **rest) {
  reshard_tree node = f->pair.node;
  const char *begin = f->pair.rest, *end = begin;
  if (reshard_tree_count(node) == 0)
    return -1;
  size_t longest = rs_node_keyed(node) ? node->form->longest : 18; /* digits that fit an int64_t */
  int64_t best = -1;
  for (;; end++) {
    end += strcspn(end, ".");
    if ((size_t)(end - begin) > longest)
      break;
    int64_t i = find_child(node, begin, (size_t)(end - begin), f->next);
    if (i >= 0 && (best < 0 || i < best)) {
      best = i;
      *rest = *end == '.' ? end + 1 : NULL;
    }
    if (*end == '\0')
      break;
  }
  return best;
}

/* Pushes a fork, unless the pair was tried before. tried has all forks, which are freed with it. */
static reshard_status push_fork(rs_names *tried, reshard_tree node, const char *rest, fork_point **last) {
  int64_t number, before = tried->all.n;
  fork_point *f;
  RS_TRY(rs_alloc_zero(&f, 1, sizeof *f));
  f->pair.node = node;
  f->pair.rest = rest;
  f->up = *last;
  reshard_status status = rs_names_put(tried, &f->pair, sizeof f->pair, &number);
  if (status == RESHARD_SUCCESS && number == before)
    *last = f;
  else
    free(f);
  return status;
}

reshard_status reshard_tree_at(reshard_tree tree, const char *path, reshard_tree *found) {
  rs_names tried = {0};
  fork_point *last = NULL;
  reshard_tree at = NULL;
  char quoted[RS_QUOTE];
  RS_TRY(RS_GIVEN("reshard_tree_at", tree, path, found));
  if (*path == '\0') {
    *found = tree;
    return RESHARD_SUCCESS;
  }
  reshard_status status = push_fork(&tried, tree, path, &last);
  while (status == RESHARD_SUCCESS && last != NULL && at == NULL) {
    const char *rest = NULL;
    int64_t i = next_match(last, &rest);
    if (i < 0) {
      last = last->up;
      continue;
    }
    last->next = i + 1;
    reshard_tree child = last->pair.node->children.at[i];
    if (rest == NULL)
      at = child;
    else
      status = push_fork(&tried, child, rest, &last);
  }
  rs_names_free_all(&tried);
  RS_TRY(status);
  if (at == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "the tree has no path '%s'", rs_quote(quoted, sizeof quoted, path));
  *found = at;
  return RESHARD_SUCCESS;
}
