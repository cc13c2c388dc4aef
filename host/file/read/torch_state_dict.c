/* A file of torch.save: a nested dict or list of tensors, or a tensor alone. Names of tensors are the keys on the way,
 * with dots between, as PyTorch's distributed checkpoint flattens a state dict. Leaves that are no tensors are counted.
 *
 * Values may stand at several places; what a walk over all places can take is bounded. */
#include "file/read/open.h"

#include "base/text.h"
#include "file/format/torch.h"

#include <stdlib.h>
#include <string.h>

#define LIMIT ((int64_t)1 << 30) /* of the directory and of data.pkl */

enum { DEPTH = 64, NAME = 4096, AGAIN = 16, NAMES_AGAIN = 64, NAMES_MORE = 1 << 20 };

typedef struct dict_walk {
  rs_opening *opening;
  int64_t file;
  const rs_torch *torch;
  rs_layout_cache layouts;
  rs_pickle_text name; /* of the value that is looked at */
  int64_t visits;
  int64_t named; /* bytes of the names of all tensors */
} dict_walk;

static reshard_status visit_value(dict_walk *w, int64_t value, int depth);

static reshard_status add_tensor(dict_walk *w, int64_t value) {
  char quoted[RS_QUOTE];
  rs_torch_tensor t;
  const char *name = w->name.n > 0 ? w->name.at : "tensor";
  int64_t most = NAMES_AGAIN * w->torch->pickle.size + NAMES_MORE;
  w->named += w->name.n;
  if (w->named > most)
    return rs_error(RESHARD_ERROR_INVALID,
                    "%s: the names of its tensors have %lld bytes and more, at most %lld are made of a pickle of %lld",
                    w->torch->zip.where, (long long)w->named, (long long)most, (long long)w->torch->pickle.size);
  RS_TRY(rs_torch_tensor_read(w->torch, rs_quote(quoted, sizeof quoted, name), value, &t));
  rs_whole_tensor whole = {{.name = name, .dtype = t.dtype, .ndim = t.ndim}, t.reversed, w->file, t.offset};
  memcpy(whole.tensor.shape, t.shape, sizeof t.shape);
  return rs_open_add(w->opening, &w->layouts, &whole);
}

/* Appends a key to the name, visits what is there, and takes it off again. */
static reshard_status visit_under(dict_walk *w, int64_t key, int64_t number, int64_t value, int depth) {
  int64_t before = w->name.n;
  bool added = true;
  char digits[24], quoted[RS_QUOTE];
  RS_TRY(rs_vec_reserve(&w->name, before + 32));
  if (before > 0)
    w->name.at[w->name.n++] = '.';
  if (key >= 0) {
    RS_TRY(rs_pickle_add_text(&w->torch->pickle, key, &w->name, &added));
  } else {
    rs_text text = {.at = digits, .size = sizeof digits};
    rs_text_add(&text, "%lld", (long long)number);
    memcpy(w->name.at + w->name.n, digits, text.length + 1);
    w->name.n += (int64_t)text.length;
  }
  if (!added || w->name.n <= before + (before > 0) || w->name.n > NAME) {
    w->name.at[before] = '\0';
    return rs_error(
        RESHARD_ERROR_INVALID,
        "%s: a key that is no text of UTF-8 and no integer, is empty or makes a name of more than %d bytes, "
        "under '%s'",
        w->torch->zip.where, NAME, rs_quote(quoted, sizeof quoted, w->name.at));
  }
  RS_TRY(visit_value(w, value, depth + 1));
  w->name.n = before;
  w->name.at[before] = '\0';
  return RESHARD_SUCCESS;
}

static reshard_status visit_value(dict_walk *w, int64_t value, int depth) {
  const rs_pickle *p = &w->torch->pickle;
  const rs_pickle_value *v = &p->values.at[value];
  bool dict = v->kind == RS_PICKLE_DICT;
  if (w->visits++ > AGAIN * (p->cells.n + 1) || depth > DEPTH)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the same dicts stand at %lld places, or are more than %d deep",
                    w->torch->zip.where, (long long)w->visits, DEPTH);
  if (rs_torch_is_tensor(w->torch, value))
    return add_tensor(w, value);
  if (!dict && v->kind != RS_PICKLE_LIST && v->kind != RS_PICKLE_TUPLE) {
    w->opening->checkpoint->info.left_out++;
    return RESHARD_SUCCESS;
  }
  int64_t i = 0;
  for (int64_t cell = v->first; cell >= 0; cell = p->cells.at[cell].next, i++) {
    int64_t key = -1;
    if (dict) {
      key = p->cells.at[cell].value;
      cell = p->cells.at[cell].next;
    }
    RS_TRY(visit_under(w, key, i, p->cells.at[cell].value, depth));
  }
  return RESHARD_SUCCESS;
}

static reshard_status add_all(dict_walk *w) {
  const rs_pickle *p = &w->torch->pickle;
  char text[RS_QUOTE];
  if (!rs_torch_is_tensor(w->torch, p->root) && !rs_pickle_is(p, p->root, RS_PICKLE_DICT) &&
      !rs_pickle_is(p, p->root, RS_PICKLE_LIST) && !rs_pickle_is(p, p->root, RS_PICKLE_TUPLE))
    return rs_error(RESHARD_ERROR_INVALID, "%s: it holds %s, no state dict", w->torch->zip.where,
                    rs_pickle_describe(text, p, p->root));
  RS_TRY(visit_value(w, p->root, 0));
  return rs_model_check_names(w->opening->checkpoint->store.model, w->torch->zip.where);
}

reshard_status rs_open_state_dict(rs_opening *opening, int64_t number) {
  char where[RS_WHERE];
  reshard_checkpoint c = opening->checkpoint;
  const rs_file *file = &c->store.files.at[number];
  rs_torch torch;
  dict_walk w = {.opening = opening, .file = number, .torch = &torch};
  reshard_status status = rs_torch_open(rs_opening_where(opening, number, where), file, 0, file->size, LIMIT, &torch);
  RS_THEN(status, add_all(&w));
  rs_torch_free(&torch);
  rs_layout_cache_free(&w.layouts);
  free(w.name.at);
  c->info.format = RESHARD_FORMAT_TORCH;
  c->info.stored_bytes = c->store.model->bytes;
  c->info.world = 1;
  return status;
}
