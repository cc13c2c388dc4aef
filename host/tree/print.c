/* A tree as a drawing. Nodes at several places get numbers, so the tree is gone through twice: to find them, and to
 * draw. The lines that lead down to a node are a text that grows and shrinks with the walk. It stops growing at a depth
 * that no reader follows, so that a drawing is as long as the tree has nodes. */
#include "base/text.h"
#include "tensor/tensor.h"
#include "tree/walk.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DRAWN = 32 }; /* levels */

typedef struct drawing {
  rs_text *out;
  rs_walk walk;
  RS_VEC(char) rails;     /* text before the children of the innermost container */
  RS_VEC(int64_t) widths; /* of the rails of each container in the walk's stack */
  rs_names nodes;         /* that may be at several places */
  RS_VEC(int64_t) marks;  /* of these: ONCE, SEVERAL, or the number with which it was drawn */
  int64_t numbers;
} drawing;
enum { ONCE = 0, SEVERAL = -1 };

static void drawing_free(drawing *d) {
  rs_walk_free(&d->walk);
  rs_names_free(&d->nodes);
  free(d->rails.at);
  free(d->widths.at);
  free(d->marks.at);
}

/* --- One node ------------------------------------------------------------------------------------------------- */

static void draw_tensor(rs_text *out, reshard_tensor tensor) {
  const reshard_tensor_info *info = &tensor->info;
  char shape[RS_SHAPE_TEXT];
  rs_text_add(out, "tensor %s %s", reshard_dtype_string(info->dtype), rs_shape_text(shape, info->ndim, info->shape));
  if (info->device_type == RESHARD_DEVICE_CUDA)
    rs_text_add(out, " on cuda:%d", info->device_index);
  if (info->requires_grad)
    rs_text_add(out, " requires_grad");
  if (!reshard_data_allocated(tensor))
    rs_text_add(out, " freed");
}

static void draw_numbers(rs_text *out, const char *name, const int64_t *numbers, int64_t n) {
  if (numbers == NULL)
    return;
  rs_text_add(out, ", %s ", name);
  rs_text_numbers(out, n, numbers, " ");
}

/* Draws short text in quotes, other bytes by their number. */
static void draw_bytes(rs_text *out, const char *bytes, size_t size) {
  bool text = size <= 60;
  for (size_t i = 0; i < size && text; i++)
    text = bytes[i] >= ' ' && bytes[i] <= '~' && bytes[i] != '"';
  if (text)
    rs_text_add(out, "\"%.*s\"", (int)size, size > 0 ? bytes : "");
  else
    rs_text_add(out, "%zu bytes", size);
}

/* Draws the name of the type, and its text of the value. */
static void draw_value(rs_text *out, reshard_tree node) {
  char quoted[RS_QUOTE], text[1024] = "";
  rs_text_add(out, "<%s>", rs_quote(quoted, sizeof quoted, node->type->name));
  if (node->type->print == NULL)
    return;
  node->type->print(node->value, text, sizeof text);
  rs_text_add(out, " %s", text);
}

static void draw_node(rs_text *out, reshard_tree node) {
  char quoted[RS_QUOTE], number[RS_FLOAT_TEXT];
  const rs_tree_form *form = rs_node_is_container(node) ? node->form : NULL;
  switch (node->kind) {
  case RESHARD_TREE_DICT: rs_text_add(out, "dict"); break;
  case RESHARD_TREE_LIST: rs_text_add(out, "list"); break;
  case RESHARD_TREE_TUPLE: rs_text_add(out, "tuple"); break;
  case RESHARD_TREE_SET: rs_text_add(out, "set"); break;
  case RESHARD_TREE_STRUCT: rs_text_add(out, "struct %s", rs_quote(quoted, sizeof quoted, form->name)); break;
  case RESHARD_TREE_PACKED:
    rs_text_add(out, "packed sequence");
    draw_numbers(out, "batch sizes", form->sizes, form->steps);
    draw_numbers(out, "sorted", form->order, form->sizes[0]);
    draw_numbers(out, "unsorted", form->back, form->sizes[0]);
    break;
  case RESHARD_TREE_TENSOR: draw_tensor(out, node->tensor); break;
  case RESHARD_TREE_OPAQUE: draw_value(out, node); break;
  case RESHARD_TREE_BYTES: draw_bytes(out, node->bytes, node->size); break;
  case RESHARD_TREE_INT: rs_text_add(out, "%lld", (long long)node->integer); break;
  case RESHARD_TREE_FLOAT: rs_text_add(out, "%s", rs_float_text(number, node->real)); break;
  case RESHARD_TREE_BOOL: rs_text_add(out, node->integer != 0 ? "true" : "false"); break;
  case RESHARD_TREE_NULL: rs_text_add(out, "null"); break;
  }
  if (rs_node_is_container(node) && node->children.n == 0)
    rs_text_add(out, ", empty");
}

/* --- Nodes at several places ---------------------------------------------------------------------------------- */

/* The node is told from equal ones by its place; a number is not. */
static bool has_identity(reshard_tree node) {
  return rs_node_is_container(node) || node->kind == RESHARD_TREE_TENSOR || node->kind == RESHARD_TREE_OPAQUE;
}

/* Records the child; *is_new: it was not there before. */
static reshard_status record_node(drawing *d, const reshard_tree *slot, bool *is_new) {
  int64_t number, before = d->marks.n;
  *is_new = true;
  if (!rs_node_shared(*slot) || !has_identity(*slot))
    return RESHARD_SUCCESS;
  RS_TRY(rs_vec_reserve(&d->marks, before + 1));
  RS_TRY(rs_names_put(&d->nodes, slot, sizeof *slot, &number));
  *is_new = number == before;
  if (*is_new)
    d->marks.at[d->marks.n++] = ONCE;
  else
    d->marks.at[number] = SEVERAL;
  return RESHARD_SUCCESS;
}

static reshard_status find_shared_nodes(drawing *d, reshard_tree tree) {
  bool is_new;
  RS_TRY(rs_walk_enter(&d->walk, tree));
  while (d->walk.stack.n > 0) {
    reshard_tree *slot;
    RS_TRY(rs_walk_next(&d->walk, &slot));
    if (slot == NULL)
      continue;
    RS_TRY(record_node(d, slot, &is_new));
    if (is_new && rs_node_is_container(*slot))
      RS_TRY(rs_walk_enter(&d->walk, *slot));
  }
  return RESHARD_SUCCESS;
}

/* --- Lines ---------------------------------------------------------------------------------------------------- */

static reshard_status enter_container(drawing *d, reshard_tree container, const char *rail) {
  int64_t n = (int64_t)strlen(rail), width = d->rails.n;
  RS_TRY(rs_vec_reserve(&d->rails, width + n + 1));
  RS_TRY(rs_vec_reserve(&d->widths, d->widths.n + 1));
  RS_TRY(rs_walk_enter(&d->walk, container));
  memcpy(d->rails.at + width, rail, (size_t)n + 1);
  d->rails.n += n;
  d->widths.at[d->widths.n++] = width;
  return RESHARD_SUCCESS;
}

/* Draws the line of the child that the walk took last. */
static reshard_status draw_child(drawing *d, const reshard_tree *slot) {
  const rs_frame *f = &d->walk.stack.at[d->walk.stack.n - 1];
  int64_t i = f->next - 1, depth = d->walk.stack.n;
  const char *key = rs_node_key(f->node, i);
  bool last = f->next == f->node->children.n;
  char quoted[RS_QUOTE];
  rs_text_add(d->out, "\n%s%s", d->rails.at, last ? "└── " : "├── ");
  if (depth > DRAWN)
    rs_text_add(d->out, "(level %lld) ", (long long)depth);
  if (key != NULL && rs_key_is_int(&f->node->form->keys.all.at[i]))
    rs_text_add(d->out, "[%s]: ", key);
  else if (key != NULL)
    rs_text_add(d->out, "%s: ", rs_quote(quoted, sizeof quoted, key));
  else
    rs_text_add(d->out, "%lld: ", (long long)i);
  int64_t number = rs_node_shared(*slot) && has_identity(*slot) ? rs_names_find(&d->nodes, slot, sizeof *slot) : -1;
  int64_t *mark = number >= 0 ? &d->marks.at[number] : NULL;
  if (mark != NULL && *mark > 0) {
    rs_text_add(d->out, "*%lld", (long long)*mark);
    return RESHARD_SUCCESS;
  }
  if (mark != NULL && *mark == SEVERAL)
    rs_text_add(d->out, "&%lld ", (long long)(*mark = ++d->numbers));
  draw_node(d->out, *slot);
  if (!rs_node_is_container(*slot))
    return RESHARD_SUCCESS;
  return enter_container(d, *slot, depth >= DRAWN ? "" : last ? "    " : "│   ");
}

static reshard_status draw_all(drawing *d, reshard_tree tree) {
  draw_node(d->out, tree);
  if (!rs_node_is_container(tree))
    return RESHARD_SUCCESS;
  RS_TRY(find_shared_nodes(d, tree));
  RS_TRY(enter_container(d, tree, ""));
  while (d->walk.stack.n > 0) {
    reshard_tree *slot;
    RS_TRY(rs_walk_next(&d->walk, &slot));
    if (slot != NULL) {
      RS_TRY(draw_child(d, slot));
    } else {
      d->rails.n = d->widths.at[--d->widths.n];
      d->rails.at[d->rails.n] = '\0';
    }
  }
  return RESHARD_SUCCESS;
}

reshard_status reshard_tree_print(reshard_tree tree, char *buffer, size_t size, size_t *needed) {
  if (tree == NULL || (buffer == NULL && size > 0))
    return rs_error_null("reshard_tree_print", tree == NULL ? "tree" : "the buffer");
  rs_text out = {.at = buffer, .size = size};
  drawing d = {.out = &out};
  reshard_status status = draw_all(&d, tree);
  drawing_free(&d);
  RS_TRY(status);
  rs_text_add(&out, "\n");
  return rs_text_finish(&out, needed);
}
