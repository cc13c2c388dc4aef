/* Going through a tree: leaf by leaf, and to a path. */
#include "state/state.h"

#include "file/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void rs_walk_free(rs_walk *w) {
  free(w->stack.at);
  free(w->path.at);
  *w = (rs_walk){0};
}

reshard_status rs_walk_enter(rs_walk *w, reshard_state container) {
  RS_TRY(rs_vec_reserve(&w->stack, w->stack.n + 1));
  RS_TRY(rs_vec_reserve(&w->path, 1));
  if (w->stack.n == 0)
    w->path.at[w->path.n = 0] = '\0';
  w->stack.at[w->stack.n++] = (rs_frame){.node = container, .path = w->path.n};
  return RESHARD_SUCCESS;
}

reshard_status rs_walk_next(rs_walk *w, const rs_child **child) {
  rs_frame *f = &w->stack.at[w->stack.n - 1];
  if (f->next == f->node->children.n) {
    w->stack.n--;
    *child = NULL;
    return RESHARD_SUCCESS;
  }
  const rs_child *c = &f->node->children.at[f->next];
  char number[24];
  const char *key = c->key;
  if (key == NULL) {
    snprintf(number, sizeof number, "%lld", (long long)f->next);
    key = number;
  }
  int64_t length = (int64_t)strlen(key), dot = w->stack.n > 1;
  RS_TRY(rs_vec_reserve(&w->path, f->path + dot + length + 1));
  if (dot)
    w->path.at[f->path] = '.';
  memcpy(w->path.at + f->path + dot, key, (size_t)length + 1);
  w->path.n = f->path + dot + length;
  f->next++;
  *child = c;
  return RESHARD_SUCCESS;
}

/* --- Leaf by leaf --------------------------------------------------------------------------------------------- */

static reshard_status walk_on(rs_walk *w, rs_state_visitor visit, void *user) {
  while (w->stack.n > 0) {
    reshard_state parent = w->stack.at[w->stack.n - 1].node;
    int64_t index = w->stack.at[w->stack.n - 1].next;
    const rs_child *child;
    RS_TRY(rs_walk_next(w, &child));
    if (child != NULL)
      RS_TRY(rs_state_holds(child->node) ? rs_walk_enter(w, child->node)
                                         : visit(user, w->path.at, parent, index, child->node));
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_state_walk(reshard_state state, rs_state_visitor visit, void *user) {
  rs_walk w = {0};
  if (!rs_state_holds(state))
    return visit(user, "", NULL, 0, state);
  reshard_status status = rs_walk_enter(&w, state);
  if (status == RESHARD_SUCCESS)
    status = walk_on(&w, visit, user);
  rs_walk_free(&w);
  return status;
}

typedef struct visitor {
  reshard_state_visitor visit;
  void *user;
} visitor;

static reshard_status visit_leaf(void *user, const char *path, reshard_state parent, int64_t index,
                                 reshard_state leaf) {
  const visitor *v = user;
  (void)parent;
  (void)index;
  return v->visit(v->user, path, leaf);
}

reshard_status reshard_state_visit(reshard_state state, reshard_state_visitor visit, void *user) {
  if (state == NULL || visit == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_state_visit: %s is NULL", state == NULL ? "state" : "visit");
  return rs_state_walk(state, visit_leaf, &(visitor){visit, user});
}

/* --- To a path ------------------------------------------------------------------------------------------------ */

/* Number of the child that n characters name; -1: none. */
static int64_t find_child(reshard_state s, const char *key, size_t n) {
  int64_t index = 0;
  if (s->kind == RESHARD_STATE_DICT)
    return rs_names_find(&s->keys, key, n);
  if (n == 0 || (key[0] == '0' && n > 1))
    return -1;
  for (size_t i = 0; i < n; i++) {
    if (key[i] < '0' || key[i] > '9')
      return -1;
    index = index * 10 + (key[i] - '0');
  }
  return index < s->children.n ? index : -1;
}

/* A node on the way and the rest of the path from it. Each pair is tried once, however many ways lead to it. */
typedef struct fork_point {
  struct {
    reshard_state node;
    const char *rest;
  } pair;
  int64_t next; /* children before it were tried */
  struct fork_point *up;
} fork_point;

/* The first child not tried whose key begins the rest of the path, -1: none; *rest: what is left behind it, NULL for
 * nothing. */
static int64_t next_match(const fork_point *f, const char **rest) {
  reshard_state s = f->pair.node;
  const char *begin = f->pair.rest, *end = begin;
  size_t longest = s->kind == RESHARD_STATE_DICT ? s->longest : 18; /* digits that int64_t can have without a look */
  int64_t best = -1;
  for (; rs_state_holds(s); end++) {
    end += strcspn(end, ".");
    if ((size_t)(end - begin) > longest)
      break;
    int64_t i = find_child(s, begin, (size_t)(end - begin));
    if (i >= f->next && (best < 0 || i < best)) {
      best = i;
      *rest = *end == '.' ? end + 1 : NULL;
    }
    if (*end == '\0')
      break;
  }
  return best;
}

/* The fork becomes the last one, unless the pair was tried before. tried has all forks, which are freed with it. */
static reshard_status push_fork(rs_names *tried, reshard_state node, const char *rest, fork_point **last) {
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

static void free_forks(rs_names *tried) {
  for (int64_t i = 0; i < tried->all.n; i++)
    free((void *)tried->all.at[i].at);
  rs_names_free(tried);
}

reshard_status reshard_state_at(reshard_state state, const char *path, reshard_state *found) {
  rs_names tried = {0};
  fork_point *last = NULL;
  reshard_state at = NULL;
  char quoted[RS_QUOTE];
  if (state == NULL || path == NULL || found == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_state_at: %s is NULL",
                    state == NULL  ? "state"
                    : path == NULL ? "path"
                                   : "found");
  if (*path == '\0') {
    *found = state;
    return RESHARD_SUCCESS;
  }
  reshard_status status = push_fork(&tried, state, path, &last);
  while (status == RESHARD_SUCCESS && last != NULL && at == NULL) {
    const char *rest = NULL;
    int64_t i = next_match(last, &rest);
    if (i < 0) {
      last = last->up;
      continue;
    }
    last->next = i + 1;
    reshard_state child = last->pair.node->children.at[i].node;
    if (rest == NULL)
      at = child;
    else
      status = push_fork(&tried, child, rest, &last);
  }
  free_forks(&tried);
  RS_TRY(status);
  if (at == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "the state has no path '%s'", rs_quote(quoted, sizeof quoted, path));
  *found = at;
  return RESHARD_SUCCESS;
}
