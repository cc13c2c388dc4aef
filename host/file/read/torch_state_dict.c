/* A file of torch.save: a nested dict or list of tensors, or a tensor alone.
 *
 * Values may stand at several places; what a walk over all places can take is bounded. */
#include "base/text.h"
#include "file/ground/file.h"
#include "file/read/state_walk.h"

#include <stdlib.h>
#include <string.h>

#define LIMIT ((int64_t)1 << 30) /* of the directory and of data.pkl */

enum { DEPTH = 64, NAME = 4096, AGAIN = 16, LEAVES = 16 << 20 };

static reshard_status visit_value(rs_state_walk *w, int64_t value, int depth);

reshard_status rs_state_walk_check(const rs_state_walk *w, int64_t more) {
  int64_t taken = w->torch->pickle.held + w->torch->pickle.size +
                  w->torch->pickle.words.cap * (int64_t)sizeof(uint32_t) + w->left_names.cap +
                  w->left.cap * (int64_t)sizeof *w->left.at + rs_opening_memory(w->opening) - w->before + more;
  return rs_budget_check(w->torch->zip.where, w->torch->zip.file->size, taken);
}

/* Keeps a value that is not looked into, under the name that is looked at. */
static reshard_status leave_value(rs_state_walk *w, int64_t value, bool by_key) {
  rs_pickle_kind kind = rs_pickle_kind_of(&w->torch->pickle, value);
  if (kind < RS_PICKLE_TUPLE) /* nothing is below it */
    return RESHARD_SUCCESS;
  RS_TRY(rs_vec_reserve(&w->left, w->left.n + 1));
  RS_TRY(rs_vec_reserve(&w->left_names, w->left_names.n + w->name.n + 1));
  w->left.at[w->left.n++] = (rs_left_value){value, w->left_names.n, by_key};
  memcpy(w->left_names.at + w->left_names.n, w->name.n > 0 ? w->name.at : "", (size_t)w->name.n + 1);
  w->left_names.n += w->name.n + 1;
  return rs_state_walk_check(w, 0);
}

static reshard_status add_tensor(rs_state_walk *w, int64_t value) {
  char quoted[RS_QUOTE];
  rs_torch_tensor t;
  const char *name = w->name.n > 0 ? w->name.at : "tensor";
  char *unknown = NULL;
  RS_TRY(rs_torch_tensor_read(w->torch, rs_quote(quoted, sizeof quoted, name), value, &t));
  if (t.dtype == RESHARD_DTYPE_NONE)
    RS_TRY(rs_model_unknown(w->torch->zip.where, name, t.unknown, &unknown));
  reshard_status status = w->add(w->user, unknown != NULL ? unknown : name, &t);
  free(unknown);
  RS_TRY(status);
  RS_TRY(rs_state_walk_check(w, 0));
  w->read[value >> 4] |= (uint8_t)(1u << (value >> 1 & 7));
  int64_t attributes = rs_torch_attributes(w->torch, value);
  return attributes >= 0 ? leave_value(w, attributes, false) : RESHARD_SUCCESS;
}

/* Reads a number or a text. *is: false where it is neither, or no room is left for it. */
static reshard_status add_leaf(rs_state_walk *w, int64_t value, bool *is) {
  static const rs_leaf_kind kinds[] = {[RS_PICKLE_NONE] = RS_LEAF_NULL,
                                       [RS_PICKLE_BOOL] = RS_LEAF_BOOL,
                                       [RS_PICKLE_INT] = RS_LEAF_INT,
                                       [RS_PICKLE_FLOAT] = RS_LEAF_FLOAT,
                                       [RS_PICKLE_TEXT] = RS_LEAF_BYTES};
  const rs_pickle *p = &w->torch->pickle;
  rs_leaves *leaves = &w->opening->checkpoint->leaves;
  rs_pickle_kind kind = rs_pickle_kind_of(p, value);
  const char *bytes = NULL;
  *is = kind <= RS_PICKLE_TEXT && kind != RS_PICKLE_OTHER && w->name.n > 0;
  if (!*is)
    return RESHARD_SUCCESS;
  rs_leaf leaf = {.kind = kinds[kind]};
  if (kind == RS_PICKLE_TEXT)
    bytes = rs_pickle_text_of(p, value, &leaf.size);
  else if (kind == RS_PICKLE_FLOAT)
    leaf.real = rs_pickle_float(p, value);
  else if (kind != RS_PICKLE_NONE)
    leaf.integer = rs_pickle_number(p, value);
  *is = rs_leaves_memory(leaves) <= LEAVES && leaf.size <= LEAVES; /* state.json stays within its own limit */
  return *is ? rs_leaves_add(leaves, w->name.at, &leaf, bytes) : RESHARD_SUCCESS;
}

/* Many values may have one key: it is short before it is looked at. */
static bool is_long(const rs_pickle *p, int64_t key) {
  int64_t size = 0;
  if (rs_pickle_is(p, key, RS_PICKLE_TEXT))
    rs_pickle_text_of(p, key, &size);
  return size > NAME;
}

/* Appends a key to the name, visits what is there, and takes it off again. What has no name is left. */
static reshard_status visit_under(rs_state_walk *w, int64_t key, int64_t number, int64_t value, int depth) {
  int64_t before = w->name.n;
  bool added = true;
  char digits[24];
  RS_TRY(rs_vec_reserve(&w->name, before + 32));
  if (before > 0)
    w->name.at[w->name.n++] = '.';
  if (is_long(&w->torch->pickle, key)) {
    added = false;
  } else if (key >= 0) {
    RS_TRY(rs_pickle_add_text(&w->torch->pickle, key, &w->name, &added));
  } else {
    rs_text text = {.at = digits, .size = sizeof digits};
    rs_text_add(&text, "%lld", (long long)number);
    memcpy(w->name.at + w->name.n, digits, text.length + 1);
    w->name.n += (int64_t)text.length;
  }
  bool named = added && w->name.n > before + (before > 0) && w->name.n <= NAME;
  reshard_status status = RESHARD_SUCCESS;
  if (named)
    status = visit_value(w, value, depth + 1);
  w->name.n = before;
  w->name.at[before] = '\0';
  RS_TRY(status);
  if (named)
    return RESHARD_SUCCESS;
  w->opening->checkpoint->info.left_out++;
  if (key >= 0)
    RS_TRY(leave_value(w, key, true));
  return leave_value(w, value, true);
}

static reshard_status visit_items(rs_state_walk *w, int64_t value, bool dict, int depth) {
  rs_pickle_cursor items = rs_pickle_begin(&w->torch->pickle, value);
  for (int64_t i = 0, key = -1, item; rs_pickle_next(&items, &item); i++) {
    if (dict) {
      key = item;
      if (!rs_pickle_next(&items, &item))
        break;
    }
    RS_TRY(visit_under(w, key, i, item, depth));
  }
  return RESHARD_SUCCESS;
}

static reshard_status visit_value(rs_state_walk *w, int64_t value, int depth) {
  const rs_pickle *p = &w->torch->pickle;
  rs_pickle_kind kind = rs_pickle_kind_of(p, value);
  if (w->visits++ > AGAIN * (p->size + 1) || depth > DEPTH)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the same dicts stand at %lld places, or are more than %d deep",
                    w->torch->zip.where, (long long)w->visits, DEPTH);
  if (rs_torch_is_tensor(w->torch, value))
    return add_tensor(w, value);
  if (kind == RS_PICKLE_DICT && rs_pickle_parts_of(p, value).more >= 0)
    RS_TRY(leave_value(w, rs_pickle_parts_of(p, value).more, false));
  if (kind == RS_PICKLE_DICT || kind == RS_PICKLE_LIST || kind == RS_PICKLE_TUPLE)
    return visit_items(w, value, kind == RS_PICKLE_DICT, depth);
  bool is = false;
  RS_TRY(add_leaf(w, value, &is));
  if (is)
    return RESHARD_SUCCESS;
  w->opening->checkpoint->info.left_out++;
  return kind == RS_PICKLE_OBJECT ? leave_value(w, value, false) : RESHARD_SUCCESS;
}

reshard_status rs_state_walk_all(rs_opening *opening, const rs_torch *torch, const char *name,
                                 reshard_status (*add)(void *user, const char *name, const rs_torch_tensor *tensor),
                                 void *user) {
  rs_state_walk w = {
      .opening = opening, .torch = torch, .add = add, .user = user, .before = rs_opening_memory(opening)};
  int64_t size = (int64_t)strlen(name);
  reshard_status status = rs_vec_reserve(&w.name, size + 1);
  RS_THEN(status, rs_alloc_zero(&w.read, torch->pickle.words.n / 8 + 1, 1));
  if (status == RESHARD_SUCCESS) {
    memcpy(w.name.at, name, (size_t)size + 1);
    w.name.n = size;
    status = visit_value(&w, torch->pickle.root, 0);
  }
  RS_THEN(status, rs_hidden_tensors(&w));
  free(w.name.at);
  free(w.read);
  free(w.left.at);
  free(w.left_names.at);
  return status;
}

/* --- A file of torch.save ---------------------------------------------------------------------------------------- */

typedef struct state_dict_file {
  rs_opening *opening;
  const char *where;
  int64_t number;
  rs_layout_cache layouts;
} state_dict_file;

static reshard_status add_whole(void *user, const char *name, const rs_torch_tensor *t) {
  state_dict_file *d = user;
  rs_whole_tensor whole = {.tensor = {.name = name, .dtype = t->dtype, .ndim = t->ndim},
                           .reversed = t->reversed,
                           .file = d->number,
                           .offset = t->offset,
                           .packed = t->packed,
                           .solid = t->dtype == RESHARD_DTYPE_NONE};
  memcpy(whole.tensor.shape, t->shape, sizeof t->shape);
  return rs_open_add(d->opening, &d->layouts, d->where, &whole);
}

static reshard_status check_root(const rs_torch *t) {
  const rs_pickle *p = &t->pickle;
  char text[RS_QUOTE];
  if (rs_torch_is_tensor(t, p->root) || rs_pickle_is(p, p->root, RS_PICKLE_DICT) ||
      rs_pickle_is(p, p->root, RS_PICKLE_LIST) || rs_pickle_is(p, p->root, RS_PICKLE_TUPLE))
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_INVALID, "%s: it holds %s, no state dict", t->zip.where,
                  rs_pickle_describe(text, p, p->root));
}

reshard_status rs_open_state_dict(rs_opening *opening, int64_t number) {
  char where[RS_WHERE];
  reshard_checkpoint c = opening->checkpoint;
  const rs_file *file = &c->store.files.at[number];
  rs_torch torch;
  state_dict_file d = {.opening = opening, .where = rs_opening_where(opening, number, where), .number = number};
  reshard_status status = rs_torch_open(where, file, 0, file->size, LIMIT, &torch);
  RS_THEN(status, check_root(&torch));
  RS_THEN(status, rs_state_walk_all(opening, &torch, "", add_whole, &d));
  RS_THEN(status, rs_model_check_names(c->store.model, where));
  rs_torch_free(&torch);
  rs_layout_cache_free(&d.layouts);
  c->info.format = RESHARD_FORMAT_TORCH;
  c->info.stored_bytes = c->store.model->bytes;
  c->info.world = 1;
  return status;
}
