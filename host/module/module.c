/* Modules: named members, in the order in which they were named, found by name in O(1). */
#include "module/module.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

static const char *member_text(rs_member_kind kind) {
  switch (kind) {
  case RS_MEMBER_CHILD: return "child";
  case RS_MEMBER_PARAMETER: return "parameter";
  case RS_MEMBER_BUFFER: return "buffer";
  }
  return "member";
}

reshard_status reshard_module_create(reshard_module *module) {
  reshard_module made;
  RS_TRY(RS_GIVEN("reshard_module_create", module));
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  atomic_init(&made->references, 1);
  atomic_init(&made->contained, false);
  *module = made;
  return RESHARD_SUCCESS;
}

reshard_module reshard_module_retain(reshard_module module) { return RS_RETAIN(module); }

/* Drops a reference; the last one puts the module on the list of those to be freed. */
static void release_module(reshard_module m, reshard_module *dead) {
  if (!RS_DROP(m))
    return;
  m->next = *dead;
  *dead = m;
}

void reshard_module_release(reshard_module module) {
  reshard_module dead = NULL;
  for (release_module(module, &dead); dead != NULL;) {
    reshard_module m = dead;
    dead = m->next;
    for (int64_t i = 0; i < m->members.n; i++) {
      release_module(m->members.at[i].child, &dead);
      reshard_tensor_release(m->members.at[i].tensor);
      free(m->members.at[i].name);
    }
    free(m->members.at);
    rs_names_free(&m->names);
    free(m);
  }
}

/* Finds out that a module is inside a child. A module that was never a child is in nothing, and nothing is in a child
 * without members. Else every module in the child is looked at once. */
static reshard_status find_cycle(reshard_module module, reshard_module child, bool *cycle) {
  rs_names seen = {0}; /* addresses of modules, in the order in which they are looked at */
  int64_t number;
  *cycle = child == module;
  if (*cycle || child->members.n == 0 || !atomic_load_explicit(&module->contained, memory_order_relaxed))
    return RESHARD_SUCCESS;
  reshard_status status = rs_names_put(&seen, &child, sizeof child, &number);
  for (int64_t i = 0; i < seen.all.n && !*cycle && status == RESHARD_SUCCESS; i++) {
    reshard_module m;
    memcpy(&m, seen.all.at[i].at, sizeof m);
    for (int64_t j = 0; j < m->members.n && !*cycle && status == RESHARD_SUCCESS; j++) {
      const rs_member *member = &m->members.at[j];
      *cycle = member->child == module;
      if (member->child != NULL)
        status = rs_names_put(&seen, &member->child, sizeof member->child, &number);
    }
  }
  rs_names_free(&seen);
  return status;
}

static reshard_status check_member(const char *call, reshard_module module, const rs_member *member) {
  char quoted[RS_QUOTE];
  const char *name = member->name;
  if (module == NULL || name == NULL || (member->child == NULL && member->tensor == NULL))
    return rs_error_null(call, module == NULL ? "module" : name == NULL ? "name" : member_text(member->kind));
  if (*name == '\0')
    return rs_error(RESHARD_ERROR_INVALID, "%s: the name is empty", call);
  if (strchr(name, '.') != NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the name '%s' has a '.' in it", call,
                    rs_quote(quoted, sizeof quoted, name));
  bool cycle = false;
  if (member->child != NULL)
    RS_TRY(find_cycle(module, member->child, &cycle));
  return cycle ? rs_error(RESHARD_ERROR_INVALID, "%s: the child '%s' has the module inside it", call,
                          rs_quote(quoted, sizeof quoted, name))
               : RESHARD_SUCCESS;
}

/* Adds a member at the end; its name is copied. */
static reshard_status add_member(reshard_module module, const rs_member *given, rs_member **out) {
  size_t length = strlen(given->name);
  int64_t number;
  char *name;
  RS_TRY(rs_vec_reserve(&module->members, module->members.n + 1));
  RS_TRY(rs_alloc_copy(&name, given->name, (int64_t)length + 1, 1));
  RS_TRY_OR(rs_names_put(&module->names, name, length, &number), free(name));
  *out = &module->members.at[module->members.n++];
  **out = (rs_member){.name = name, .kind = given->kind};
  return RESHARD_SUCCESS;
}

static reshard_status set_member(const char *call, reshard_module module, const rs_member *given) {
  char quoted[RS_QUOTE];
  RS_TRY(check_member(call, module, given));
  int64_t number = rs_names_find(&module->names, given->name, strlen(given->name));
  rs_member *member = number >= 0 ? &module->members.at[number] : NULL;
  if (member == NULL)
    RS_TRY(add_member(module, given, &member));
  else if (member->kind != given->kind)
    return rs_error(RESHARD_ERROR_INVALID, "%s: '%s' is a %s of the module already", call,
                    rs_quote(quoted, sizeof quoted, given->name), member_text(member->kind));
  rs_member before = *member;
  if (given->child != NULL)
    atomic_store_explicit(&given->child->contained, true, memory_order_relaxed);
  member->child = reshard_module_retain(given->child);
  member->tensor = reshard_tensor_retain(given->tensor);
  reshard_module_release(before.child);
  reshard_tensor_release(before.tensor);
  return RESHARD_SUCCESS;
}

reshard_status reshard_module_set_child(reshard_module module, const char *name, reshard_module child) {
  return set_member("reshard_module_set_child", module, &(rs_member){(char *)name, RS_MEMBER_CHILD, child, NULL});
}

reshard_status reshard_module_set_parameter(reshard_module module, const char *name, reshard_tensor parameter) {
  return set_member("reshard_module_set_parameter", module,
                    &(rs_member){(char *)name, RS_MEMBER_PARAMETER, NULL, parameter});
}

reshard_status reshard_module_set_buffer(reshard_module module, const char *name, reshard_tensor buffer) {
  return set_member("reshard_module_set_buffer", module, &(rs_member){(char *)name, RS_MEMBER_BUFFER, NULL, buffer});
}

/* Finds the member of a full name and of this kind. */
static reshard_status get_member(const char *call, reshard_module module, rs_member_kind kind, const char *name,
                                 const rs_member **found) {
  char quoted[RS_QUOTE], place[RS_QUOTE];
  for (const char *at = name;; at++) {
    size_t length = strcspn(at, ".");
    rs_member_kind wanted = at[length] == '.' ? RS_MEMBER_CHILD : kind;
    int64_t number = rs_names_find(&module->names, at, length);
    const rs_member *member = number >= 0 ? &module->members.at[number] : NULL;
    if (member == NULL || member->kind != wanted) {
      rs_text up = {.at = place, .size = sizeof place}; /* the name as far as it was found */
      place[0] = '\0';
      rs_text_add(&up, "%.*s", (int)rs_min(at - name, RS_QUOTE) - (at > name), name);
      return rs_error(RESHARD_ERROR_INVALID, "%s: no %s '%s': the module '%s' has %s %s '%.*s'", call,
                      member_text(kind), rs_quote(quoted, sizeof quoted, name), place, member == NULL ? "no" : "a",
                      member_text(member == NULL ? wanted : member->kind), (int)rs_min((int64_t)length, RS_QUOTE), at);
    }
    at += length;
    if (*at == '\0') {
      *found = member;
      return RESHARD_SUCCESS;
    }
    module = member->child;
  }
}

static reshard_status check_get(const char *call, reshard_module module, const char *name, const void *output) {
  if (module != NULL && name != NULL && output != NULL)
    return RESHARD_SUCCESS;
  return rs_error_null(call, module == NULL ? "module" : name == NULL ? "name" : "the output");
}

reshard_status reshard_module_get_child(reshard_module module, const char *name, reshard_module *child) {
  const rs_member *found;
  RS_TRY(check_get("reshard_module_get_child", module, name, child));
  if (*name == '\0') {
    *child = module;
    return RESHARD_SUCCESS;
  }
  RS_TRY(get_member("reshard_module_get_child", module, RS_MEMBER_CHILD, name, &found));
  *child = found->child;
  return RESHARD_SUCCESS;
}

static reshard_status get_tensor(const char *call, reshard_module module, rs_member_kind kind, const char *name,
                                 reshard_tensor *tensor) {
  const rs_member *found;
  RS_TRY(check_get(call, module, name, tensor));
  RS_TRY(get_member(call, module, kind, name, &found));
  *tensor = found->tensor;
  return RESHARD_SUCCESS;
}

reshard_status reshard_module_get_parameter(reshard_module module, const char *name, reshard_tensor *parameter) {
  return get_tensor("reshard_module_get_parameter", module, RS_MEMBER_PARAMETER, name, parameter);
}

reshard_status reshard_module_get_buffer(reshard_module module, const char *name, reshard_tensor *buffer) {
  return get_tensor("reshard_module_get_buffer", module, RS_MEMBER_BUFFER, name, buffer);
}
