/* Nodes of a state dict. Whatever goes through a tree keeps its own list of where it is, so that depth costs no stack.
 */
#include "state/state.h"

#include "file/file.h"

#include <stdlib.h>
#include <string.h>

reshard_status rs_state_new(const char *call, reshard_state_kind kind, reshard_state *output) {
  if (output == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: state is NULL", call);
  struct reshard_state_s *made;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  atomic_init(&made->references, 1);
  atomic_init(&made->placed, false);
  made->kind = kind;
  *output = made;
  return RESHARD_SUCCESS;
}

const char *rs_state_kind_text(reshard_state_kind kind) {
  switch (kind) {
  case RESHARD_STATE_DICT: return "a dict";
  case RESHARD_STATE_LIST: return "a list";
  case RESHARD_STATE_TENSOR: return "a tensor";
  case RESHARD_STATE_SHARDED: return "a sharded tensor";
  case RESHARD_STATE_DTENSOR: return "a DTensor";
  case RESHARD_STATE_NESTED: return "a nested sharded tensor";
  case RESHARD_STATE_BYTES: return "bytes";
  case RESHARD_STATE_INT: return "an integer";
  case RESHARD_STATE_FLOAT: return "a float";
  case RESHARD_STATE_BOOL: return "a bool";
  case RESHARD_STATE_NULL: return "a null";
  }
  return "NULL";
}

reshard_status rs_state_path_error(const char *path, reshard_status status) {
  char why[768], quoted[RS_QUOTE];
  rs_text_add(&(rs_text){why, sizeof why, 0}, "%s", reshard_last_error());
  return rs_error(status, "path '%s': %s", rs_quote(quoted, sizeof quoted, path), why);
}

/* --- Making --------------------------------------------------------------------------------------------------- */

reshard_status reshard_state_dict(reshard_state *state) {
  return rs_state_new("reshard_state_dict", RESHARD_STATE_DICT, state);
}

reshard_status reshard_state_list(reshard_state *state) {
  return rs_state_new("reshard_state_list", RESHARD_STATE_LIST, state);
}

reshard_status reshard_state_null(reshard_state *state) {
  return rs_state_new("reshard_state_null", RESHARD_STATE_NULL, state);
}

reshard_status reshard_state_tensor(reshard_tensor tensor, reshard_state *state) {
  if (tensor == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_state_tensor: tensor is NULL");
  RS_TRY(rs_state_new("reshard_state_tensor", RESHARD_STATE_TENSOR, state));
  (*state)->tensor = reshard_tensor_retain(tensor);
  return RESHARD_SUCCESS;
}

reshard_status reshard_state_sharded(reshard_sharded_tensor tensor, reshard_state *state) {
  if (tensor == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_state_sharded: tensor is NULL");
  RS_TRY(rs_state_new("reshard_state_sharded", RESHARD_STATE_SHARDED, state));
  (*state)->sharded = reshard_sharded_tensor_retain(tensor);
  return RESHARD_SUCCESS;
}

reshard_status reshard_state_dtensor(reshard_dtensor tensor, reshard_state *state) {
  if (tensor == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_state_dtensor: tensor is NULL");
  RS_TRY(rs_state_new("reshard_state_dtensor", RESHARD_STATE_DTENSOR, state));
  (*state)->dtensor = reshard_dtensor_retain(tensor);
  return RESHARD_SUCCESS;
}

reshard_status reshard_state_bytes(const void *bytes, size_t size, reshard_state *state) {
  char *copy = NULL;
  if (bytes == NULL && size > 0)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_state_bytes: bytes is NULL, size is %zu", size);
  if (size > INT64_MAX)
    return rs_error_memory(size);
  RS_TRY(rs_alloc_copy(&copy, bytes, (int64_t)size, 1));
  reshard_status status = rs_state_new("reshard_state_bytes", RESHARD_STATE_BYTES, state);
  if (status != RESHARD_SUCCESS) {
    free(copy);
    return status;
  }
  (*state)->bytes = copy;
  (*state)->size = size;
  return RESHARD_SUCCESS;
}

reshard_status reshard_state_int(int64_t value, reshard_state *state) {
  RS_TRY(rs_state_new("reshard_state_int", RESHARD_STATE_INT, state));
  (*state)->integer = value;
  return RESHARD_SUCCESS;
}

reshard_status reshard_state_bool(int value, reshard_state *state) {
  RS_TRY(rs_state_new("reshard_state_bool", RESHARD_STATE_BOOL, state));
  (*state)->integer = value != 0;
  return RESHARD_SUCCESS;
}

reshard_status reshard_state_float(double value, reshard_state *state) {
  RS_TRY(rs_state_new("reshard_state_float", RESHARD_STATE_FLOAT, state));
  (*state)->real = value;
  return RESHARD_SUCCESS;
}

/* --- Lives ---------------------------------------------------------------------------------------------------- */

reshard_state reshard_state_retain(reshard_state state) {
  if (state != NULL)
    atomic_fetch_add_explicit(&state->references, 1, memory_order_relaxed);
  return state;
}

/* One reference less; the last one puts the node on the list of those to be freed. */
static void drop(reshard_state s, reshard_state *dead) {
  if (s == NULL || atomic_fetch_sub_explicit(&s->references, 1, memory_order_acq_rel) != 1)
    return;
  s->next = *dead;
  *dead = s;
}

void reshard_state_release(reshard_state state) {
  reshard_state dead = NULL;
  for (drop(state, &dead); dead != NULL;) {
    reshard_state s = dead;
    dead = s->next;
    if (rs_state_holds(s)) {
      for (int64_t i = 0; i < s->children.n; i++) {
        drop(s->children.at[i].node, &dead);
        free(s->children.at[i].key);
      }
      free(s->children.at);
      rs_names_free(&s->keys);
    } else if (s->kind == RESHARD_STATE_NESTED) {
      for (int64_t i = 0; i < s->nested.n; i++)
        drop(s->nested.inner[i], &dead);
      free(s->nested.inner);
      free(s->nested.entries);
      free(s->nested.given);
      reshard_metadata_release(s->nested.outer);
    } else if (s->kind == RESHARD_STATE_TENSOR) {
      reshard_tensor_release(s->tensor);
    } else if (s->kind == RESHARD_STATE_SHARDED) {
      reshard_sharded_tensor_release(s->sharded);
    } else if (s->kind == RESHARD_STATE_DTENSOR) {
      reshard_dtensor_release(s->dtensor);
    } else if (s->kind == RESHARD_STATE_BYTES) {
      free(s->bytes);
    }
    free(s);
  }
}

/* --- Filling -------------------------------------------------------------------------------------------------- */

/* Whether a container is inside a child. Mostly plain: a container that was never put anywhere is in nothing, and
 * nothing is in an empty one - trees that are built from the leaves or from the root cost no search. Else every
 * container in the child is looked at once. */
static reshard_status find_cycle(reshard_state container, reshard_state child, bool *cycle) {
  rs_names seen = {0}; /* addresses of containers, in the order in which they are looked at */
  int64_t number;
  *cycle = child == container;
  if (*cycle || reshard_state_count(child) == 0 || !atomic_load_explicit(&container->placed, memory_order_relaxed))
    return RESHARD_SUCCESS;
  reshard_status status = rs_names_put(&seen, &child, sizeof child, &number);
  for (int64_t i = 0; i < seen.all.n && !*cycle; i++) {
    reshard_state s;
    memcpy(&s, seen.all.at[i].at, sizeof s);
    for (int64_t j = 0; j < s->children.n && status == RESHARD_SUCCESS && !*cycle; j++) {
      const rs_child *c = &s->children.at[j];
      *cycle = c->node == container;
      if (reshard_state_count(c->node) > 0)
        status = rs_names_put(&seen, &c->node, sizeof c->node, &number);
    }
  }
  rs_names_free(&seen);
  return status;
}

static reshard_status check_child(const char *call, reshard_state_kind kind, reshard_state container,
                                  reshard_state child) {
  bool cycle;
  if (container == NULL || child == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %s is NULL", call, container == NULL ? "the container" : "the child");
  if (container->kind != kind)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the container is %s, not %s", call, rs_state_kind_text(container->kind),
                    rs_state_kind_text(kind));
  RS_TRY(find_cycle(container, child, &cycle));
  return cycle ? rs_error(RESHARD_ERROR_INVALID, "%s: the child has the container inside it", call) : RESHARD_SUCCESS;
}

static reshard_state place(reshard_state child) {
  atomic_store_explicit(&child->placed, true, memory_order_relaxed);
  return reshard_state_retain(child);
}

reshard_status rs_state_add(reshard_state container, const char *key, reshard_state child) {
  size_t length = key != NULL ? strlen(key) : 0;
  char *copy = NULL;
  RS_TRY(rs_vec_reserve(&container->children, container->children.n + 1));
  if (key != NULL) {
    int64_t number;
    RS_TRY(rs_alloc_copy(&copy, key, (int64_t)length + 1, 1));
    reshard_status status = rs_names_put(&container->keys, copy, length, &number);
    if (status != RESHARD_SUCCESS) {
      free(copy);
      return status;
    }
    if (length > container->longest)
      container->longest = length;
  }
  container->children.at[container->children.n++] = (rs_child){copy, place(child)};
  return RESHARD_SUCCESS;
}

void rs_state_replace(reshard_state parent, int64_t i, reshard_state child) {
  reshard_state before = parent->children.at[i].node;
  parent->children.at[i].node = place(child);
  reshard_state_release(before);
}

reshard_status reshard_state_set(reshard_state dict, const char *key, reshard_state child) {
  if (key == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_state_set: the key is NULL");
  RS_TRY(check_child("reshard_state_set", RESHARD_STATE_DICT, dict, child));
  int64_t number = rs_names_find(&dict->keys, key, strlen(key));
  if (number >= 0) {
    rs_state_replace(dict, number, child);
    return RESHARD_SUCCESS;
  }
  return rs_state_add(dict, key, child);
}

reshard_status reshard_state_append(reshard_state list, reshard_state child) {
  RS_TRY(check_child("reshard_state_append", RESHARD_STATE_LIST, list, child));
  return rs_state_add(list, NULL, child);
}

/* --- Looking -------------------------------------------------------------------------------------------------- */

reshard_state_kind reshard_state_get_kind(reshard_state state) {
  return state != NULL ? state->kind : (reshard_state_kind)0;
}

int64_t reshard_state_count(reshard_state state) {
  return state != NULL && rs_state_holds(state) ? state->children.n : 0;
}

reshard_status reshard_state_child(reshard_state state, int64_t i, const char **key, reshard_state *child) {
  if (i < 0 || i >= reshard_state_count(state))
    return rs_error(RESHARD_ERROR_INVALID, "reshard_state_child: child %lld of %s with %lld", (long long)i,
                    rs_state_kind_text(reshard_state_get_kind(state)), (long long)reshard_state_count(state));
  if (key != NULL)
    *key = state->children.at[i].key;
  if (child != NULL)
    *child = state->children.at[i].node;
  return RESHARD_SUCCESS;
}

/* Of this kind, with somewhere to put the answer? */
static reshard_status check_kind(const char *call, reshard_state state, reshard_state_kind kind, const void *output) {
  if (state == NULL || output == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %s is NULL", call, state == NULL ? "state" : "the output");
  if (state->kind != kind)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the state is %s, not %s", call, rs_state_kind_text(state->kind),
                    rs_state_kind_text(kind));
  return RESHARD_SUCCESS;
}

reshard_status reshard_state_find(reshard_state dict, const char *key, reshard_state *child) {
  char quoted[RS_QUOTE];
  RS_TRY(check_kind("reshard_state_find", dict, RESHARD_STATE_DICT, child));
  if (key == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_state_find: the key is NULL");
  int64_t number = rs_names_find(&dict->keys, key, strlen(key));
  if (number < 0)
    return rs_error(RESHARD_ERROR_INVALID, "the dict has no key '%s'", rs_quote(quoted, sizeof quoted, key));
  *child = dict->children.at[number].node;
  return RESHARD_SUCCESS;
}

reshard_status reshard_state_get_tensor(reshard_state state, reshard_tensor *tensor) {
  RS_TRY(check_kind("reshard_state_get_tensor", state, RESHARD_STATE_TENSOR, tensor));
  *tensor = state->tensor;
  return RESHARD_SUCCESS;
}

reshard_status reshard_state_get_sharded(reshard_state state, reshard_sharded_tensor *tensor) {
  RS_TRY(check_kind("reshard_state_get_sharded", state, RESHARD_STATE_SHARDED, tensor));
  *tensor = state->sharded;
  return RESHARD_SUCCESS;
}

reshard_status reshard_state_get_dtensor(reshard_state state, reshard_dtensor *tensor) {
  RS_TRY(check_kind("reshard_state_get_dtensor", state, RESHARD_STATE_DTENSOR, tensor));
  *tensor = state->dtensor;
  return RESHARD_SUCCESS;
}

reshard_status reshard_state_get_bytes(reshard_state state, const void **bytes, size_t *size) {
  RS_TRY(check_kind("reshard_state_get_bytes", state, RESHARD_STATE_BYTES, bytes != NULL ? (void *)size : NULL));
  *bytes = state->bytes;
  *size = state->size;
  return RESHARD_SUCCESS;
}

reshard_status reshard_state_get_int(reshard_state state, int64_t *value) {
  RS_TRY(check_kind("reshard_state_get_int", state, RESHARD_STATE_INT, value));
  *value = state->integer;
  return RESHARD_SUCCESS;
}

reshard_status reshard_state_get_float(reshard_state state, double *value) {
  RS_TRY(check_kind("reshard_state_get_float", state, RESHARD_STATE_FLOAT, value));
  *value = state->real;
  return RESHARD_SUCCESS;
}

reshard_status reshard_state_get_bool(reshard_state state, int *value) {
  RS_TRY(check_kind("reshard_state_get_bool", state, RESHARD_STATE_BOOL, value));
  *value = (int)state->integer;
  return RESHARD_SUCCESS;
}
