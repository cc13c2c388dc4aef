/* Queries on the values of a pickle, for its readers. */
#include "base/text.h"
#include "file/format/pickle.h"
#include "file/format/pickle_words.h"

#include <string.h>

/* Of a dict that is searched; objects have a handful, and many may share one. */
#define MOST_KEYS 128 /* keys and values */

static const unsigned char kinds[256] = {
    ['N'] = RS_PICKLE_NONE,      [0x88] = RS_PICKLE_BOOL,  [0x89] = RS_PICKLE_BOOL,   ['K'] = RS_PICKLE_INT,
    ['M'] = RS_PICKLE_INT,       ['J'] = RS_PICKLE_INT,    [0x8a] = RS_PICKLE_INT,    [0x8b] = RS_PICKLE_INT,
    ['G'] = RS_PICKLE_FLOAT,     ['C'] = RS_PICKLE_OTHER,  ['B'] = RS_PICKLE_OTHER,   [0x8e] = RS_PICKLE_OTHER,
    [0x96] = RS_PICKLE_OTHER,    [0x8c] = RS_PICKLE_TEXT,  ['U'] = RS_PICKLE_TEXT,    ['X'] = RS_PICKLE_TEXT,
    ['T'] = RS_PICKLE_TEXT,      [0x8d] = RS_PICKLE_TEXT,  [')'] = RS_PICKLE_TUPLE,   [0x85] = RS_PICKLE_TUPLE,
    [0x86] = RS_PICKLE_TUPLE,    [0x87] = RS_PICKLE_TUPLE, ['t'] = RS_PICKLE_TUPLE,   [0x91] = RS_PICKLE_TUPLE,
    [']'] = RS_PICKLE_LIST,      [0x8f] = RS_PICKLE_LIST,  ['}'] = RS_PICKLE_DICT,    ['c'] = RS_PICKLE_GLOBAL,
    [0x93] = RS_PICKLE_GLOBAL,   ['R'] = RS_PICKLE_OBJECT, [0x81] = RS_PICKLE_OBJECT, [0x92] = RS_PICKLE_OBJECT,
    ['Q'] = RS_PICKLE_PERSISTENT};

/* Words of a value that has some, else NULL. */
static const uint32_t *words_of(const rs_pickle *p, int64_t value) {
  return (value & 1) != 0 ? p->words.at + (value >> 1) : NULL;
}

static int64_t value_of(uint32_t word) { return word == RS_PICKLE_NO_WORD ? -1 : (int64_t)word; }

int64_t rs_pickle_byte(const rs_pickle *p, int64_t value) {
  const uint32_t *w = words_of(p, value);
  return w != NULL ? w[0] & RS_WORD_BYTE : value >> 1;
}

/* The opcode, and what follows it. */
static const char *opcode_of(const rs_pickle *p, int64_t value) { return p->bytes + rs_pickle_byte(p, value); }

/* Bytes of the length or number that follows an opcode. */
static int width_of(unsigned char op) {
  switch (op) {
  case 'K':
  case 0x8a:
  case 0x8c:
  case 'C':
  case 'U': return 1;
  case 'M': return 2;
  case 0x8d:
  case 0x8e:
  case 0x96: return 8;
  default: return 4;
  }
}

rs_pickle_kind rs_pickle_kind_of(const rs_pickle *p, int64_t value) {
  const uint32_t *w = words_of(p, value);
  if (w != NULL && (w[0] & ~RS_WORD_BYTE) != 0)
    return (w[0] & RS_WORD_DICT) != 0 ? RS_PICKLE_DICT : RS_PICKLE_LIST;
  const char *at = opcode_of(p, value);
  unsigned char op = (unsigned char)*at;
  bool large = (op == 0x8a || op == 0x8b) && rs_pickle_little(at + 1, width_of(op)) > 8;
  return large ? RS_PICKLE_OTHER : (rs_pickle_kind)kinds[op];
}

bool rs_pickle_is(const rs_pickle *p, int64_t value, rs_pickle_kind kind) {
  return value >= 0 && rs_pickle_kind_of(p, value) == kind;
}

const rs_pickle_name *rs_pickle_name_of(const rs_pickle *p, int64_t value) {
  const uint32_t *w = words_of(p, value);
  if (rs_pickle_is(p, value, RS_PICKLE_OBJECT)) {
    value = w[RS_OBJECT_CLASS];
    w = words_of(p, value);
  }
  return rs_pickle_is(p, value, RS_PICKLE_GLOBAL) && w[RS_GLOBAL_NUMBER] != RS_PICKLE_NO_WORD
             ? rs_pickle_name_at(w[RS_GLOBAL_NUMBER])
             : NULL;
}

bool rs_pickle_is_object(const rs_pickle *p, int64_t value, rs_pickle_role role) {
  if (!rs_pickle_is(p, value, RS_PICKLE_OBJECT))
    return false;
  const rs_pickle_name *name = rs_pickle_name_of(p, value);
  return name != NULL && name->role == role;
}

const char *rs_pickle_text_of(const rs_pickle *p, int64_t value, int64_t *size) {
  const char *at = opcode_of(p, value);
  int width = width_of((unsigned char)*at);
  *size = (int64_t)rs_pickle_little(at + 1, width);
  return at + 1 + width;
}

bool rs_pickle_is_text(const rs_pickle *p, int64_t value, const char *text) {
  int64_t size = 0;
  if (!rs_pickle_is(p, value, RS_PICKLE_TEXT))
    return false;
  const char *is = rs_pickle_text_of(p, value, &size);
  return (size_t)size == strlen(text) && memcmp(is, text, (size_t)size) == 0;
}

int64_t rs_pickle_number(const rs_pickle *p, int64_t value) {
  const char *at = opcode_of(p, value);
  unsigned char op = (unsigned char)*at;
  int width = width_of(op);
  if (op == 0x88 || op == 0x89)
    return op == 0x88;
  uint64_t n = rs_pickle_little(at + 1, width);
  if (op == 'J')
    return (int32_t)(uint32_t)n;
  if (op == 'K' || op == 'M')
    return (int64_t)n;
  int bytes = (int)n;
  n = rs_pickle_little(at + 1 + width, bytes);
  if (bytes > 0 && bytes < 8 && (at[width + bytes] & 0x80) != 0)
    n |= UINT64_MAX << (8 * bytes);
  return (int64_t)n;
}

double rs_pickle_float(const rs_pickle *p, int64_t value) {
  const char *at = opcode_of(p, value) + 1;
  uint64_t bits = 0;
  double real;
  for (int i = 0; i < 8; i++) /* big-endian, unlike all else */
    bits = bits << 8 | (unsigned char)at[i];
  memcpy(&real, &bits, sizeof real);
  return real;
}

rs_pickle_parts rs_pickle_parts_of(const rs_pickle *p, int64_t value) {
  const uint32_t *w = words_of(p, value);
  rs_pickle_parts parts = {-1, -1, -1, -1};
  if (rs_pickle_is(p, value, RS_PICKLE_OBJECT)) {
    parts = (rs_pickle_parts){value_of(w[RS_OBJECT_CLASS]), value_of(w[RS_OBJECT_ARGUMENTS]),
                              value_of(w[RS_OBJECT_STATE]), value_of(w[RS_WORD_MORE])};
  } else if (rs_pickle_is(p, value, RS_PICKLE_PERSISTENT)) {
    parts.arguments = value_of(w[RS_PERSISTENT_ID]);
  } else if (rs_pickle_is(p, value, RS_PICKLE_DICT)) {
    parts.more = value_of(w[RS_WORD_MORE]);
  }
  return parts;
}

/* --- Items ------------------------------------------------------------------------------------------------------- */

static bool has_chunks(rs_pickle_kind kind) { return kind == RS_PICKLE_LIST || kind == RS_PICKLE_DICT; }

int64_t rs_pickle_items(const rs_pickle *p, int64_t value) {
  const uint32_t *w = words_of(p, value);
  rs_pickle_kind kind = rs_pickle_kind_of(p, value);
  if (w == NULL)
    return 0;
  return has_chunks(kind) ? w[RS_LIST_ITEMS] : kind == RS_PICKLE_TUPLE ? w[RS_TUPLE_ITEMS] : 0;
}

static rs_pickle_cursor chunk_items(const rs_pickle *p, uint32_t chunk) {
  if (chunk == RS_PICKLE_NO_WORD)
    return (rs_pickle_cursor){p, 0, 0, RS_PICKLE_NO_WORD};
  return (rs_pickle_cursor){p, (int64_t)chunk + 2, (int64_t)chunk + 2 + p->words.at[chunk + 1], p->words.at[chunk]};
}

rs_pickle_cursor rs_pickle_begin(const rs_pickle *p, int64_t value) {
  const uint32_t *w = value >= 0 ? words_of(p, value) : NULL;
  rs_pickle_kind kind = w != NULL ? rs_pickle_kind_of(p, value) : RS_PICKLE_NONE;
  if (has_chunks(kind))
    return chunk_items(p, w[RS_LIST_FIRST]);
  if (kind != RS_PICKLE_TUPLE)
    return chunk_items(p, RS_PICKLE_NO_WORD);
  int64_t first = (value >> 1) + RS_TUPLE_FIRST;
  return (rs_pickle_cursor){p, first, first + w[RS_TUPLE_ITEMS], RS_PICKLE_NO_WORD};
}

bool rs_pickle_next(rs_pickle_cursor *c, int64_t *item) {
  if (c->at == c->end) /* no chunk is empty */
    *c = chunk_items(c->pickle, c->next);
  if (c->at == c->end)
    return false;
  *item = c->pickle->words.at[c->at++];
  return true;
}

int64_t rs_pickle_item(const rs_pickle *p, int64_t value, int64_t i) {
  if (!rs_pickle_is(p, value, RS_PICKLE_TUPLE) && !rs_pickle_is(p, value, RS_PICKLE_LIST))
    return -1;
  rs_pickle_cursor items = rs_pickle_begin(p, value);
  int64_t item = -1;
  for (; i >= 0; i--)
    if (!rs_pickle_next(&items, &item))
      return -1;
  return item;
}

int64_t rs_pickle_under(const rs_pickle *p, int64_t value, const char *key) {
  if (rs_pickle_is(p, value, RS_PICKLE_OBJECT))
    value = rs_pickle_parts_of(p, value).state;
  if (!rs_pickle_is(p, value, RS_PICKLE_DICT) || rs_pickle_items(p, value) > MOST_KEYS)
    return -1;
  int64_t found = -1, k, v; /* the last counts, as in Python */
  rs_pickle_cursor items = rs_pickle_begin(p, value);
  while (rs_pickle_next(&items, &k) && rs_pickle_next(&items, &v))
    if (rs_pickle_is_text(p, k, key))
      found = v;
  return found;
}

bool rs_pickle_count(const rs_pickle *p, int64_t value, int64_t *count) {
  if (!rs_pickle_is(p, value, RS_PICKLE_INT) || rs_pickle_number(p, value) < 0)
    return false;
  *count = rs_pickle_number(p, value);
  return true;
}

bool rs_pickle_extents(const rs_pickle *p, int64_t value, int most, int *n, int64_t *extents) {
  if ((!rs_pickle_is(p, value, RS_PICKLE_TUPLE) && !rs_pickle_is(p, value, RS_PICKLE_LIST)) ||
      rs_pickle_items(p, value) > most)
    return false;
  int made = 0;
  rs_pickle_cursor items = rs_pickle_begin(p, value);
  for (int64_t item; rs_pickle_next(&items, &item);)
    if (!rs_pickle_count(p, item, &extents[made++]))
      return false;
  *n = made;
  return true;
}

/* --- Texts ------------------------------------------------------------------------------------------------------- */

reshard_status rs_pickle_add_text(const rs_pickle *p, int64_t value, rs_pickle_text *to, bool *added) {
  char digits[24] = "";
  const char *from = digits;
  int64_t n = 0;
  *added = false;
  if (rs_pickle_is(p, value, RS_PICKLE_INT)) {
    rs_text text = {.at = digits, .size = sizeof digits};
    rs_text_add(&text, "%lld", (long long)rs_pickle_number(p, value));
    n = (int64_t)text.length;
  } else if (rs_pickle_is(p, value, RS_PICKLE_TEXT)) {
    from = rs_pickle_text_of(p, value, &n);
  } else {
    return RESHARD_SUCCESS;
  }
  RS_TRY(rs_vec_reserve(to, to->n + n + 1));
  memcpy(to->at + to->n, from, (size_t)n);
  to->at[to->n + n] = '\0';
  *added = memchr(from, '\0', (size_t)n) == NULL && rs_utf8_valid(to->at + to->n);
  to->n += *added ? n : 0;
  to->at[to->n] = '\0';
  return RESHARD_SUCCESS;
}

/* Appends at most half a text's room; what is left out is at its end. */
static void add_name(rs_text *to, const char *name, int64_t size) {
  rs_text_bytes(to, name, (size_t)rs_min(size, RS_QUOTE / 2 - 2));
}

/* "module.name" of a GLOBAL. */
static const char *class_text(char text[RS_QUOTE], const rs_pickle *p, int64_t value) {
  const uint32_t *w = words_of(p, value);
  char raw[RS_QUOTE];
  rs_text made = {.at = raw, .size = sizeof raw};
  const char *name[2], *at = opcode_of(p, value) + 1;
  int64_t size[2];
  for (int i = 0; i < 2; i++)
    if (w[RS_GLOBAL_MODULE] != RS_PICKLE_NO_WORD) {
      name[i] = rs_pickle_text_of(p, w[RS_GLOBAL_MODULE + i], &size[i]);
    } else {
      name[i] = at;
      size[i] = (const char *)memchr(at, '\n', (size_t)(p->bytes + p->size - at)) - at; /* was found before */
      at += size[i] + 1;
    }
  add_name(&made, name[0], size[0]);
  rs_text_string(&made, ".");
  add_name(&made, name[1], size[1]);
  return rs_quote(text, RS_QUOTE, raw);
}

const char *rs_pickle_describe(char text[RS_QUOTE], const rs_pickle *p, int64_t value) {
  static const char *const names[] = {[RS_PICKLE_NONE] = "None",
                                      [RS_PICKLE_BOOL] = "a bool",
                                      [RS_PICKLE_INT] = "an integer",
                                      [RS_PICKLE_FLOAT] = "a number",
                                      [RS_PICKLE_OTHER] = "a number or bytes",
                                      [RS_PICKLE_TEXT] = "a text",
                                      [RS_PICKLE_TUPLE] = "a tuple",
                                      [RS_PICKLE_LIST] = "a list",
                                      [RS_PICKLE_DICT] = "a dict",
                                      [RS_PICKLE_GLOBAL] = "a class",
                                      [RS_PICKLE_OBJECT] = "an object",
                                      [RS_PICKLE_PERSISTENT] = "a storage"};
  rs_text made = {.at = text, .size = RS_QUOTE};
  int64_t class = value;
  if (rs_pickle_is(p, value, RS_PICKLE_OBJECT))
    class = rs_pickle_parts_of(p, value).class;
  if (rs_pickle_is(p, class, RS_PICKLE_GLOBAL))
    return class_text(text, p, class);
  rs_text_string(&made, value < 0 ? "nothing" : names[rs_pickle_kind_of(p, value)]);
  return text;
}
