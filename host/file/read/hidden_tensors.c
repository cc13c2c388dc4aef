/* Tensors below what is left out. All values that can be reached from there are listed once, level by level, each with
 * the one that it was reached from: so the way to a tensor can be told. */
#include "file/read/state_walk.h"

#include <stdlib.h>
#include <string.h>

typedef struct listed_value {
  uint32_t value, key; /* NONE: it is no dict's */
  int32_t from;        /* of the list; -1: left[root] */
  bool storages;       /* of a tensor that was counted: only its storages are looked at */
} listed_value;

#define NONE UINT32_MAX

typedef struct hidden_search {
  rs_state_walk *walk;
  uint8_t *seen; /* bit per word */
  RS_VEC(listed_value) all;
  int64_t tensors, bytes;
  int64_t first, first_left; /* the first tensor, in the list; what it is below */
} hidden_search;

static bool take_bit(uint8_t *bits, int64_t value) {
  uint8_t bit = (uint8_t)(1u << (value >> 1 & 7));
  bool taken = (bits[value >> 4] & bit) != 0;
  bits[value >> 4] |= bit;
  return taken;
}

static bool has_words(int64_t value) { return value >= 0 && (value & 1) != 0; }

/* Appends a value that was not listed, and may have a tensor below it. */
static reshard_status list_value(hidden_search *s, int64_t value, int64_t key, int64_t from, bool storages) {
  if (!has_words(value) || take_bit(s->seen, value))
    return RESHARD_SUCCESS;
  RS_TRY(rs_vec_reserve(&s->all, s->all.n + 1));
  RS_TRY(rs_state_walk_check(s->walk, s->all.cap * (int64_t)sizeof *s->all.at));
  s->all.at[s->all.n++] = (listed_value){(uint32_t)value, (uint32_t)key, (int32_t)from, storages};
  return RESHARD_SUCCESS;
}

static reshard_status list_items(hidden_search *s, int64_t value, int64_t from, bool storages) {
  const rs_pickle *p = &s->walk->torch->pickle;
  bool dict = rs_pickle_is(p, value, RS_PICKLE_DICT);
  rs_pickle_cursor items = rs_pickle_begin(p, value);
  for (int64_t item, key = -1; rs_pickle_next(&items, &item);) {
    if (dict) {
      key = item;
      RS_TRY(list_value(s, key, -1, from, storages));
      if (!rs_pickle_next(&items, &item))
        break;
    }
    RS_TRY(list_value(s, item, key, from, storages));
  }
  return RESHARD_SUCCESS;
}

/* Bytes of a storage, from its entry in the archive. */
static int64_t storage_bytes(const rs_torch *t, int64_t value) {
  const rs_pickle *p = &t->pickle;
  int64_t key = rs_pickle_item(p, rs_pickle_parts_of(p, value).arguments, 2), size = 0;
  char path[64] = "data/";
  if (!rs_pickle_is(p, key, RS_PICKLE_TEXT))
    return 0;
  const char *text = rs_pickle_text_of(p, key, &size);
  if (size > (int64_t)sizeof path - 6)
    return 0;
  memcpy(path + 5, text, (size_t)size);
  int64_t entry = rs_zip_find(&t->zip, path, 5 + (size_t)size);
  return entry >= 0 ? t->zip.entries.at[entry].size : 0;
}

/* Counts a tensor that was not read. *storages: its bytes are those of its storages. */
static void count_tensor(hidden_search *s, int64_t at, int64_t left, bool *storages) {
  rs_torch_tensor t;
  int64_t bytes = 0;
  if (s->tensors++ == 0) {
    s->first = at;
    s->first_left = left;
  }
  *storages = rs_torch_tensor_read(s->walk->torch, "", s->all.at[at].value, &t) != RESHARD_SUCCESS ||
              rs_tensor_bytes(t.ndim, t.shape, rs_stored_width(t.dtype), &bytes) != RESHARD_SUCCESS;
  if (!*storages && !rs_add(s->bytes, bytes, &s->bytes))
    s->bytes = INT64_MAX;
}

static reshard_status look_at(hidden_search *s, int64_t at, int64_t left) {
  const rs_torch *torch = s->walk->torch;
  const rs_pickle *p = &torch->pickle;
  const listed_value listed = s->all.at[at];
  rs_pickle_kind kind = rs_pickle_kind_of(p, listed.value);
  bool storages = listed.storages, tensor = rs_torch_is_tensor(torch, listed.value);
  if (tensor && (s->walk->read[listed.value >> 4] & (1u << (listed.value >> 1 & 7))) != 0)
    return RESHARD_SUCCESS;
  if (kind == RS_PICKLE_PERSISTENT) {
    if (!storages) {
      s->first = s->tensors == 0 ? at : s->first;
      s->first_left = s->tensors == 0 ? left : s->first_left;
      s->tensors++;
    }
    if (!rs_add(s->bytes, storage_bytes(torch, listed.value), &s->bytes))
      s->bytes = INT64_MAX;
    return RESHARD_SUCCESS;
  }
  if (tensor && !storages) {
    count_tensor(s, at, left, &storages);
    if (!storages)
      return RESHARD_SUCCESS;
  }
  rs_pickle_parts parts = rs_pickle_parts_of(p, listed.value);
  RS_TRY(list_items(s, listed.value, at, storages));
  RS_TRY(list_value(s, parts.class, -1, at, storages));
  RS_TRY(list_value(s, parts.arguments, -1, at, storages));
  RS_TRY(list_value(s, parts.state, -1, at, storages));
  return list_value(s, parts.more, -1, at, storages);
}

/* "model.encoder.weight": the name of what was left, and the keys on the way. */
static reshard_status add_way(const hidden_search *s, int64_t at, rs_pickle_text *way) {
  const char *left = s->walk->left_names.at + s->walk->left.at[s->first_left].name;
  RS_VEC(uint32_t) keys = {0};
  bool added = false;
  reshard_status status = RESHARD_SUCCESS;
  for (; at >= 0 && keys.n < 64 && status == RESHARD_SUCCESS; at = s->all.at[at].from)
    if (s->all.at[at].key != NONE) {
      status = rs_vec_reserve(&keys, keys.n + 1);
      if (status == RESHARD_SUCCESS)
        keys.at[keys.n++] = s->all.at[at].key;
    }
  RS_THEN(status, rs_vec_reserve(way, (int64_t)strlen(left) + 1));
  if (status == RESHARD_SUCCESS) {
    memcpy(way->at, left, strlen(left) + 1);
    way->n = (int64_t)strlen(left);
  }
  for (int64_t i = keys.n - 1; i >= 0 && status == RESHARD_SUCCESS && way->n < RS_QUOTE; i--) {
    status = rs_vec_reserve(way, way->n + 2);
    if (status == RESHARD_SUCCESS && way->n > 0)
      way->at[way->n++] = '.';
    if (status == RESHARD_SUCCESS)
      way->at[way->n] = '\0'; /* a key that is neither text nor integer appends nothing */
    RS_THEN(status, rs_pickle_add_text(&s->walk->torch->pickle, keys.at[i], way, &added));
  }
  free(keys.at);
  return status;
}

/* The class of what the first tensor is below. */
static const char *class_of(const hidden_search *s, char text[RS_QUOTE]) {
  const rs_pickle *p = &s->walk->torch->pickle;
  int64_t value = s->walk->left.at[s->first_left].value;
  for (int64_t at = s->first; at >= 0; at = s->all.at[at].from)
    if (at != s->first && rs_pickle_is(p, s->all.at[at].value, RS_PICKLE_OBJECT))
      value = s->all.at[at].value; /* the outermost */
  return rs_pickle_describe(text, p, value);
}

static reshard_status hidden_error(const hidden_search *s) {
  rs_pickle_text way = {0};
  const rs_left_value *left = &s->walk->left.at[s->first_left];
  char name[RS_QUOTE], class[RS_QUOTE], below[RS_QUOTE];
  reshard_status status = add_way(s, s->first, &way);
  rs_quote(name, sizeof name, way.at != NULL ? way.at : "");
  rs_quote(below, sizeof below, s->walk->left_names.at + left->name);
  free(way.at);
  RS_TRY(status);
  const char *plural = s->tensors == 1 ? "" : "s";
  if (left->by_key)
    return rs_error(RESHARD_ERROR_INVALID,
                    "%s: a key that is no text of UTF-8 and no integer, is empty or makes a name of more than 4096 "
                    "bytes, under '%s', has %lld tensor%s of %lld bytes: --leave-out (leave_out in C) leaves them out",
                    s->walk->torch->zip.where, below, (long long)s->tensors, plural, (long long)s->bytes);
  return rs_error(RESHARD_ERROR_INVALID,
                  "%s: '%s' is of '%s', which is not read, and %lld tensor%s of %lld bytes can be reached below it "
                  "alone, the first at '%s': --leave-out (leave_out in C) leaves them out",
                  s->walk->torch->zip.where, below, class_of(s, class), (long long)s->tensors, plural,
                  (long long)s->bytes, name);
}

reshard_status rs_hidden_tensors(rs_state_walk *walk) {
  hidden_search s = {.walk = walk};
  reshard_checkpoint_info *info = &walk->opening->checkpoint->info;
  reshard_status status = RESHARD_SUCCESS;
  if (walk->left.n == 0)
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc_zero(&s.seen, walk->torch->pickle.words.n / 8 + 1, 1));
  for (int64_t i = 0; i < walk->left.n && status == RESHARD_SUCCESS; i++) {
    int64_t at = s.all.n;
    status = list_value(&s, walk->left.at[i].value, -1, -1, false);
    for (; at < s.all.n && status == RESHARD_SUCCESS; at++)
      status = look_at(&s, at, i);
  }
  if (status == RESHARD_SUCCESS && s.tensors > 0 && !walk->opening->options.leave_out)
    status = hidden_error(&s);
  info->left_out_tensors += s.tensors;
  info->left_out_bytes = rs_add(info->left_out_bytes, s.bytes, &s.bytes) ? s.bytes : INT64_MAX;
  free(s.seen);
  free(s.all.at);
  return status;
}
