/* Nodes of a tree: made, retained, freed. Every walk through a tree keeps a list of its own, so that depth costs no
 * stack. */
#include "tree/tree.h"

#include "base/text.h"

#include <stdlib.h>

reshard_status rs_node_new(const char *call, reshard_tree_kind kind, reshard_tree *output) {
  if (output == NULL)
    return rs_error_null(call, "the output");
  struct reshard_tree_s *made;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  atomic_init(&made->references, 1);
  atomic_init(&made->contained, false);
  made->kind = kind;
  *output = made;
  return RESHARD_SUCCESS;
}

/* --- Blocks --------------------------------------------------------------------------------------------------- */

enum { BLOCK = 60 }; /* nodes: with the counter a page at most */

struct rs_node_block {
  atomic_int left; /* nodes that are, or may still be made */
  struct reshard_tree_s nodes[BLOCK];
};

static void release_block(rs_node_block *block, int nodes) {
  if (atomic_fetch_sub_explicit(&block->left, nodes, memory_order_acq_rel) == nodes)
    free(block);
}

reshard_status rs_node_make(rs_node_maker *maker, reshard_tree_kind kind, reshard_tree *output) {
  if (maker->block == NULL || maker->used == BLOCK) {
    rs_node_block *block;
    RS_TRY(rs_alloc_zero(&block, 1, sizeof *block));
    atomic_init(&block->left, BLOCK);
    maker->block = block;
    maker->used = 0;
  }
  reshard_tree made = &maker->block->nodes[maker->used++];
  atomic_init(&made->references, 1);
  atomic_init(&made->contained, false);
  made->kind = kind;
  made->block = maker->block;
  *output = made;
  return RESHARD_SUCCESS;
}

void rs_node_maker_end(rs_node_maker *maker) {
  if (maker->block != NULL && maker->used < BLOCK)
    release_block(maker->block, BLOCK - maker->used);
  *maker = (rs_node_maker){0};
}

static void free_node(reshard_tree node) {
  if (node->block != NULL)
    release_block(node->block, 1);
  else
    free(node);
}

/* --- Texts ---------------------------------------------------------------------------------------------------- */

const char *rs_kind_text(reshard_tree_kind kind) {
  switch (kind) {
  case RESHARD_TREE_DICT: return "a dict";
  case RESHARD_TREE_LIST: return "a list";
  case RESHARD_TREE_TUPLE: return "a tuple";
  case RESHARD_TREE_STRUCT: return "a struct";
  case RESHARD_TREE_PACKED: return "a packed sequence";
  case RESHARD_TREE_SET: return "a set";
  case RESHARD_TREE_TENSOR: return "a tensor";
  case RESHARD_TREE_OPAQUE: return "an opaque value";
  case RESHARD_TREE_BYTES: return "bytes";
  case RESHARD_TREE_INT: return "an integer";
  case RESHARD_TREE_FLOAT: return "a float";
  case RESHARD_TREE_BOOL: return "a bool";
  case RESHARD_TREE_NULL: return "a null";
  }
  return "NULL";
}

const char *rs_node_text(char buffer[RS_NODE_TEXT], reshard_tree node) {
  char name[RS_NODE_TEXT - 4];
  rs_text text = {.at = buffer, .size = RS_NODE_TEXT};
  if (reshard_tree_get_kind(node) != RESHARD_TREE_OPAQUE)
    return rs_kind_text(reshard_tree_get_kind(node));
  rs_text_add(&text, "a %s", rs_quote(name, sizeof name, node->type->name));
  return buffer;
}

reshard_status rs_path_error(const char *path, reshard_status status) {
  char why[768], quoted[RS_QUOTE];
  rs_text_add(&(rs_text){.at = why, .size = sizeof why}, "%s", reshard_last_error());
  return rs_error(status, "path '%s': %s", rs_quote(quoted, sizeof quoted, path), why);
}

/* --- Leaves --------------------------------------------------------------------------------------------------- */

reshard_status reshard_tree_null(reshard_tree *tree) {
  return rs_node_new("reshard_tree_null", RESHARD_TREE_NULL, tree);
}

reshard_status reshard_tree_tensor(reshard_tensor tensor, reshard_tree *tree) {
  RS_TRY(RS_GIVEN("reshard_tree_tensor", tensor));
  RS_TRY(rs_node_new("reshard_tree_tensor", RESHARD_TREE_TENSOR, tree));
  (*tree)->tensor = reshard_tensor_retain(tensor);
  return RESHARD_SUCCESS;
}

reshard_status reshard_tree_opaque(const reshard_tree_type *type, void *value, reshard_tree *tree) {
  static const char call[] = "reshard_tree_opaque";
  if (type == NULL || type->name == NULL)
    return rs_error_null(call, type == NULL ? "type" : "the type's name");
  RS_TRY(rs_node_new(call, RESHARD_TREE_OPAQUE, tree));
  if (type->retain != NULL)
    type->retain(value);
  (*tree)->type = type;
  (*tree)->value = value;
  return RESHARD_SUCCESS;
}

reshard_status reshard_tree_bytes(const void *bytes, size_t size, reshard_tree *tree) {
  char *copy = NULL;
  if (bytes == NULL && size > 0)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_tree_bytes: bytes is NULL, size is %zu", size);
  if (size > INT64_MAX)
    return rs_error_memory(size);
  RS_TRY(rs_alloc_copy(&copy, bytes, (int64_t)size, 1));
  RS_TRY_OR(rs_node_new("reshard_tree_bytes", RESHARD_TREE_BYTES, tree), free(copy));
  (*tree)->bytes = copy;
  (*tree)->size = size;
  return RESHARD_SUCCESS;
}

reshard_status reshard_tree_int(int64_t value, reshard_tree *tree) {
  RS_TRY(rs_node_new("reshard_tree_int", RESHARD_TREE_INT, tree));
  (*tree)->integer = value;
  return RESHARD_SUCCESS;
}

reshard_status reshard_tree_bool(int value, reshard_tree *tree) {
  RS_TRY(rs_node_new("reshard_tree_bool", RESHARD_TREE_BOOL, tree));
  (*tree)->integer = value != 0;
  return RESHARD_SUCCESS;
}

reshard_status reshard_tree_float(double value, reshard_tree *tree) {
  RS_TRY(rs_node_new("reshard_tree_float", RESHARD_TREE_FLOAT, tree));
  (*tree)->real = value;
  return RESHARD_SUCCESS;
}

/* --- Lives ---------------------------------------------------------------------------------------------------- */

reshard_tree reshard_tree_retain(reshard_tree tree) { return RS_RETAIN(tree); }

static void free_leaf(reshard_tree leaf) {
  if (leaf->kind == RESHARD_TREE_TENSOR)
    reshard_tensor_release(leaf->tensor);
  else if (leaf->kind == RESHARD_TREE_BYTES)
    free(leaf->bytes);
  else if (leaf->kind == RESHARD_TREE_OPAQUE && leaf->type->release != NULL)
    leaf->type->release(leaf->value);
  free_node(leaf);
}

/* Frees a container and the leaves that go with it; containers that go with it come before the others in the list. */
static void free_container(reshard_tree node, reshard_tree *dead) {
  for (int64_t i = 0; i < node->children.n; i++) {
    reshard_tree child = node->children.at[i];
    if (rs_node_shared(child) && !RS_DROP(child)) /* the only reference needs no atomic change */
      continue;
    if (!rs_node_is_container(child)) {
      free_leaf(child);
    } else {
      child->next = *dead;
      *dead = child;
    }
  }
  free(node->children.at);
  rs_form_release(node->form);
  free_node(node);
}

void reshard_tree_release(reshard_tree tree) {
  if (!RS_DROP(tree))
    return;
  if (!rs_node_is_container(tree)) {
    free_leaf(tree);
    return;
  }
  tree->next = NULL;
  for (reshard_tree dead = tree; dead != NULL;) {
    reshard_tree node = dead;
    dead = node->next;
    free_container(node, &dead);
  }
}

void *rs_node_release_value(reshard_tree node, const reshard_tree_type *type) {
  void *value = rs_node_value(node, type);
  if (value == NULL) {
    reshard_tree_release(node);
    return NULL;
  }
  if (!RS_DROP(node))
    return NULL;
  free_node(node);
  return value;
}
