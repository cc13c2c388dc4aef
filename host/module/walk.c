/* A walk through a module tree: a stack of its own and one buffer for names, however deep the tree is. Modules that
 * were seen are a set of addresses, so that nothing is marked in modules that other threads read. */
#include "base/text.h"
#include "module/module.h"

#include <stdlib.h>
#include <string.h>

typedef struct frame {
  reshard_module module;
  int64_t next; /* member */
  int64_t path; /* bytes of the module's full name */
} frame;

typedef struct module_walk {
  rs_names seen;
  RS_VEC(frame) stack;
  RS_VEC(char) path; /* NUL-terminated */
} module_walk;

/* A function for each module; its full name has so many bytes in the walk's path. */
typedef reshard_status (*at_module)(void *user, module_walk *w, int64_t path, reshard_module module);

static void walk_free(module_walk *w) {
  rs_names_free(&w->seen);
  free(w->stack.at);
  free(w->path.at);
}

/* Appends a member's name to a module's. */
static reshard_status append_name(module_walk *w, int64_t path, const char *name, int64_t *end) {
  int64_t length = (int64_t)strlen(name), dot = path > 0;
  RS_TRY(rs_vec_reserve(&w->path, path + dot + length + 1));
  if (dot)
    w->path.at[path] = '.';
  memcpy(w->path.at + path + dot, name, (size_t)length + 1);
  *end = path + dot + length;
  return RESHARD_SUCCESS;
}

/* Marks an address as seen; *news: it was not before. */
static reshard_status mark_seen(rs_names *seen, const void *address, bool *fresh) {
  int64_t number, before = seen->all.n;
  RS_TRY(rs_names_put(seen, address, sizeof(void *), &number));
  *fresh = number == before;
  return RESHARD_SUCCESS;
}

static reshard_status enter_module(module_walk *w, int64_t path, reshard_module module, at_module visit, void *user) {
  RS_TRY(rs_vec_push(&w->stack, (frame){.module = module, .path = path}));
  return visit(user, w, path, module);
}

static reshard_status walk_on(module_walk *w, reshard_module *root, at_module visit, void *user) {
  bool fresh;
  int64_t path;
  RS_TRY(mark_seen(&w->seen, root, &fresh));
  RS_TRY(append_name(w, 0, "", &path));
  RS_TRY(enter_module(w, path, *root, visit, user));
  while (w->stack.n > 0) {
    frame *f = &w->stack.at[w->stack.n - 1];
    if (f->next == f->module->members.n) {
      w->stack.n--;
      continue;
    }
    const rs_member *member = &f->module->members.at[f->next++];
    if (member->child == NULL)
      continue;
    RS_TRY(mark_seen(&w->seen, &member->child, &fresh));
    if (!fresh)
      continue;
    RS_TRY(append_name(w, f->path, member->name, &path));
    RS_TRY(enter_module(w, path, member->child, visit, user));
  }
  return RESHARD_SUCCESS;
}

static reshard_status walk_modules(reshard_module root, at_module visit, void *user) {
  module_walk w = {0};
  reshard_status status = walk_on(&w, &root, visit, user);
  walk_free(&w);
  return status;
}

static reshard_status check_walk(const char *call, reshard_module module, bool visit) {
  if (module != NULL && visit)
    return RESHARD_SUCCESS;
  return rs_error_null(call, module == NULL ? "module" : "visit");
}

/* --- Modules ---------------------------------------------------------------------------------------------------- */

typedef struct modules_visitor {
  reshard_module_visitor visit;
  void *user;
} modules_visitor;

static reshard_status call_module_visitor(void *user, module_walk *w, int64_t path, reshard_module module) {
  const modules_visitor *v = user;
  (void)path;
  return v->visit(v->user, w->path.at, module);
}

reshard_status reshard_module_visit_modules(reshard_module module, reshard_module_visitor visit, void *user) {
  RS_TRY(check_walk("reshard_module_visit_modules", module, visit != NULL));
  return walk_modules(module, call_module_visitor, &(modules_visitor){visit, user});
}

/* --- Tensors ---------------------------------------------------------------------------------------------------- */

typedef struct tensors_visitor {
  rs_member_kind kind;
  const reshard_module_selection *selection; /* NULL: all */
  rs_names ignored, seen;                    /* tensors */
  reshard_module_tensor_visitor visit;
  void *user;
} tensors_visitor;

static bool is_selected(const tensors_visitor *v, const char *name, const rs_member *member) {
  if (rs_names_find(&v->ignored, &member->tensor, sizeof member->tensor) >= 0)
    return false;
  for (int64_t i = 0; v->selection != NULL && i < v->selection->nignored_names; i++)
    if (rs_pattern_matches(v->selection->ignored_names[i], name))
      return false;
  return true;
}

static reshard_status call_tensor_visitor(void *user, module_walk *w, int64_t path, reshard_module module) {
  tensors_visitor *v = user;
  for (int64_t i = 0; i < module->members.n; i++) {
    const rs_member *member = &module->members.at[i];
    bool fresh;
    int64_t end;
    if (member->kind != v->kind)
      continue;
    RS_TRY(mark_seen(&v->seen, &member->tensor, &fresh));
    if (!fresh)
      continue;
    RS_TRY(append_name(w, path, member->name, &end));
    if (is_selected(v, w->path.at, member))
      RS_TRY(v->visit(v->user, w->path.at, member->tensor));
  }
  return RESHARD_SUCCESS;
}

static reshard_status visit_kind(const char *call, rs_member_kind kind, reshard_module module,
                                 reshard_module_tensor_visitor visit, void *user) {
  tensors_visitor v = {.kind = kind, .visit = visit, .user = user};
  RS_TRY(check_walk(call, module, visit != NULL));
  reshard_status status = walk_modules(module, call_tensor_visitor, &v);
  rs_names_free(&v.seen);
  return status;
}

reshard_status reshard_module_visit_parameters(reshard_module module, reshard_module_tensor_visitor visit, void *user) {
  return visit_kind("reshard_module_visit_parameters", RS_MEMBER_PARAMETER, module, visit, user);
}

reshard_status reshard_module_visit_buffers(reshard_module module, reshard_module_tensor_visitor visit, void *user) {
  return visit_kind("reshard_module_visit_buffers", RS_MEMBER_BUFFER, module, visit, user);
}

static reshard_status read_selection(const reshard_module_selection *s, rs_names *ignored) {
  static const char call[] = "reshard_module_visit_states";
  char quoted[RS_QUOTE];
  if (s == NULL)
    return RESHARD_SUCCESS;
  RS_TRY(RS_SIZED(reshard_module_selection, s));
  if (s->nignored_names < 0 || (s->nignored_names > 0 && s->ignored_names == NULL) || s->nignored < 0 ||
      (s->nignored > 0 && s->ignored == NULL))
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld ignored names, %s, and %lld ignored tensors, %s", call,
                    (long long)s->nignored_names, s->ignored_names == NULL ? "NULL" : "given", (long long)s->nignored,
                    s->ignored == NULL ? "NULL" : "given");
  for (int64_t i = 0; i < s->nignored_names; i++) {
    int64_t at = 0;
    if (s->ignored_names[i] == NULL)
      return rs_error(RESHARD_ERROR_INVALID, "%s: ignored name %lld is NULL", call, (long long)i);
    const char *problem = rs_pattern_problem(s->ignored_names[i], &at);
    if (problem != NULL)
      return rs_error(RESHARD_ERROR_INVALID, "%s: ignored name %lld '%s', column %lld: %s", call, (long long)i,
                      rs_quote(quoted, sizeof quoted, s->ignored_names[i]), (long long)at + 1, problem);
  }
  for (int64_t i = 0; i < s->nignored; i++) {
    bool fresh;
    RS_TRY(mark_seen(ignored, &s->ignored[i], &fresh));
  }
  return RESHARD_SUCCESS;
}

reshard_status reshard_module_visit_states(reshard_module module, const reshard_module_selection *selection,
                                           reshard_module_tensor_visitor visit, void *user) {
  tensors_visitor v = {.kind = RS_MEMBER_PARAMETER, .selection = selection, .visit = visit, .user = user};
  RS_TRY(check_walk("reshard_module_visit_states", module, visit != NULL));
  reshard_status status = read_selection(selection, &v.ignored);
  RS_THEN(status, walk_modules(module, call_tensor_visitor, &v));
  v.kind = RS_MEMBER_BUFFER;
  if (status == RESHARD_SUCCESS && (selection == NULL || !selection->no_buffers))
    status = walk_modules(module, call_tensor_visitor, &v);
  rs_names_free(&v.ignored);
  rs_names_free(&v.seen);
  return status;
}

/* --- Roots ------------------------------------------------------------------------------------------------------ */

/* Numbers all modules that the listed ones have in them, the listed ones first; inside[number]: it is a child of one of
 * them. No module has itself inside it, so a listed one that is a child of any of these is inside another. */
static reshard_status number_modules(int64_t n, const reshard_module *modules, rs_names *seen, char **inside) {
  int64_t number, cap = 0;
  for (int64_t i = 0; i < n; i++)
    RS_TRY(rs_names_put(seen, &modules[i], sizeof *modules, &number));
  for (int64_t i = 0; i < seen->all.n; i++) {
    reshard_module m;
    memcpy(&m, seen->all.at[i].at, sizeof m);
    for (int64_t j = 0; j < m->members.n; j++) {
      const rs_member *member = &m->members.at[j];
      if (member->child == NULL)
        continue;
      RS_TRY(rs_names_put(seen, &member->child, sizeof member->child, &number));
      int64_t before = cap;
      RS_TRY(rs_grow(inside, &cap, seen->all.n, 1));
      memset(*inside + before, 0, (size_t)(cap - before));
      (*inside)[number] = 1;
    }
  }
  return RESHARD_SUCCESS;
}

reshard_status reshard_module_roots(int64_t n, const reshard_module *modules, int64_t *nroots, reshard_module *roots) {
  static const char call[] = "reshard_module_roots";
  if (n < 0 || nroots == NULL || (n > 0 && (modules == NULL || roots == NULL)))
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld modules, modules %s, nroots %s, roots %s", call, (long long)n,
                    modules == NULL ? "NULL" : "given", nroots == NULL ? "NULL" : "given",
                    roots == NULL ? "NULL" : "given");
  for (int64_t i = 0; i < n; i++)
    if (modules[i] == NULL)
      return rs_error(RESHARD_ERROR_INVALID, "%s: module %lld is NULL", call, (long long)i);
  rs_names seen = {0};
  char *inside = NULL;
  int64_t found = 0;
  reshard_status status = number_modules(n, modules, &seen, &inside);
  for (int64_t i = 0; i < n && status == RESHARD_SUCCESS; i++) {
    int64_t number = rs_names_find(&seen, &modules[i], sizeof *modules);
    if (inside == NULL || !inside[number])
      roots[found++] = modules[i];
  }
  if (status == RESHARD_SUCCESS)
    *nroots = found;
  rs_names_free(&seen);
  free(inside);
  return status;
}
