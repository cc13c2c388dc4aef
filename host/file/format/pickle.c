/* A stack machine: each opcode takes values from the stack and puts one there. A mark on a second stack says where the
 * items of a container begin. Values that are used again are kept under numbers, the memo. A call (REDUCE, NEWOBJ) is
 * kept as an object: its class and its arguments.
 *
 * A value takes 4 bytes where its opcode's place says it all: numbers, texts, None. Others have words of their own:
 *
 *     tuple        byte, items, each item
 *     list, dict   byte, items, first chunk, last chunk, more
 *     class        byte, number in the list of names, module, name
 *     object       byte, class, arguments, state, more
 *     storage      byte, description
 *
 * The kind is that of the opcode at the byte. A chunk is the next one, how many items, and the items. */
#define _GNU_SOURCE /* mremap */
#include "file/format/pickle.h"

#include "file/format/pickle_words.h"
#include "file/ground/file.h"

#include <string.h>
#include <sys/mman.h>

#define NONE RS_PICKLE_NO_WORD

typedef RS_VEC(uint32_t) words;

typedef struct pickle_machine {
  rs_pickle *p;
  int64_t at, op; /* the next byte; the opcode that is carried out */
  words stack, marks, memo;
  bool done;
} pickle_machine;

static reshard_status malformed_pickle(const pickle_machine *m, const char *why) {
  return rs_error(RESHARD_ERROR_INVALID, "%s: byte %lld of the pickle: %s", m->p->where, (long long)m->op, why);
}

static size_t room_bytes(int64_t cap) { return (size_t)cap * sizeof(uint32_t); }

/* Room for n words more of a list. Its pages move to where it grows: realloc would hold the old list beside the new
 * one, and leave holes that no later list fits into. */
static reshard_status reserve_words(pickle_machine *m, void *list, int64_t n) {
  enum { STEP = 1 << 14 };
  words *w = list;
  int64_t need = w->n + n;
  if (need <= w->cap)
    return RESHARD_SUCCESS;
  const rs_pickle *p = m->p;
  int64_t others = p->words.cap + m->stack.cap + m->marks.cap + m->memo.cap - w->cap;
  int64_t cap = ((need + need / 8) / STEP + 1) * STEP;
  RS_TRY(rs_budget_check(p->where, p->file_bytes, p->held + p->size + (int64_t)room_bytes(others + cap)));
  void *at = MAP_FAILED;
  if (cap <= INT32_MAX)
    at = w->cap > 0 ? mremap(w->at, room_bytes(w->cap), room_bytes(cap), MREMAP_MAYMOVE)
                    : mmap(NULL, room_bytes(cap), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED)
    return rs_error_memory(room_bytes(cap));
  w->at = at;
  w->cap = cap;
  return RESHARD_SUCCESS;
}

static void free_words(void *list) {
  words *w = list;
  if (w->cap > 0)
    munmap(w->at, room_bytes(w->cap));
}

/* n bytes, little-endian. */
static reshard_status take_number(pickle_machine *m, int n, uint64_t *number) {
  if (m->p->size - m->at < n)
    return malformed_pickle(m, "it ends in the middle of a number");
  *number = rs_pickle_little(m->p->bytes + m->at, n);
  m->at += n;
  return RESHARD_SUCCESS;
}

/* A length of n bytes, and as many bytes, which are left where they are. */
static reshard_status skip_bytes(pickle_machine *m, int n) {
  uint64_t length = 0;
  RS_TRY(take_number(m, n, &length));
  if (length > (uint64_t)(m->p->size - m->at))
    return rs_error(RESHARD_ERROR_INVALID, "%s: byte %lld of the pickle: %llu bytes follow, %lld are left", m->p->where,
                    (long long)m->op, (unsigned long long)length, (long long)(m->p->size - m->at));
  m->at += (int64_t)length;
  return RESHARD_SUCCESS;
}

static reshard_status push_value(pickle_machine *m, uint32_t value) {
  RS_TRY(reserve_words(m, &m->stack, 1));
  m->stack.at[m->stack.n++] = value;
  return RESHARD_SUCCESS;
}

/* The value that the opcode itself is. */
static reshard_status push_leaf(pickle_machine *m) { return push_value(m, (uint32_t)m->op << 1); }

/* n words of a new value, of which the first is its byte; *value is its number. */
static reshard_status add_words(pickle_machine *m, int64_t n, const uint32_t *from, uint32_t *value) {
  words *w = (words *)&m->p->words;
  RS_TRY(reserve_words(m, w, n));
  *value = (uint32_t)w->n << 1 | 1;
  memcpy(w->at + w->n, from, (size_t)n * sizeof *from);
  w->n += n;
  return RESHARD_SUCCESS;
}

static reshard_status push_words(pickle_machine *m, int64_t n, const uint32_t *from) {
  uint32_t value = NONE;
  RS_TRY(add_words(m, n, from, &value));
  return push_value(m, value);
}

static reshard_status push_container(pickle_machine *m, uint32_t flag) {
  return push_words(m, 5, (uint32_t[]){(uint32_t)m->op | flag, 0, NONE, NONE, NONE});
}

/* Values above the last mark, or on the whole stack. */
static int64_t above_mark(const pickle_machine *m) {
  return m->stack.n - (m->marks.n > 0 ? m->marks.at[m->marks.n - 1] : 0);
}

static reshard_status pop_value(pickle_machine *m, int64_t *value) {
  if (above_mark(m) < 1)
    return malformed_pickle(m, "no value is there for it");
  *value = m->stack.at[--m->stack.n];
  return RESHARD_SUCCESS;
}

/* *first: the stack's height at the last mark, which is taken away. */
static reshard_status pop_mark(pickle_machine *m, int64_t *first) {
  if (m->marks.n == 0)
    return malformed_pickle(m, "no mark is there for it");
  *first = m->marks.at[--m->marks.n];
  return RESHARD_SUCCESS;
}

/* --- Containers -------------------------------------------------------------------------------------------------- */

/* n values become the last items of a list or dict. A chunk that ends the words grows; another follows it else. */
static reshard_status append_items(pickle_machine *m, uint32_t container, int64_t n, const uint32_t *items) {
  words *w = (words *)&m->p->words;
  int64_t at = container >> 1;
  if (n == 0)
    return RESHARD_SUCCESS;
  RS_TRY(reserve_words(m, w, n + 2));
  uint32_t last = w->at[at + RS_LIST_LAST];
  if (last == NONE || last + 2 + w->at[last + 1] != w->n) {
    uint32_t chunk = (uint32_t)w->n;
    w->at[w->n++] = NONE;
    w->at[w->n++] = 0;
    w->at[last == NONE ? at + RS_LIST_FIRST : last] = chunk;
    w->at[at + RS_LIST_LAST] = last = chunk;
  }
  memcpy(w->at + w->n, items, (size_t)n * sizeof *items);
  w->n += n;
  w->at[last + 1] += (uint32_t)n;
  w->at[at + RS_LIST_ITEMS] += (uint32_t)n;
  return RESHARD_SUCCESS;
}

/* Values that an object, or a dict, takes beside its own. */
static reshard_status absorb_values(pickle_machine *m, uint32_t value, int64_t n, const uint32_t *values) {
  int64_t more = (value >> 1) + RS_WORD_MORE;
  if (n == 0)
    return RESHARD_SUCCESS;
  if (m->p->words.at[more] == NONE) {
    uint32_t list = NONE;
    RS_TRY(add_words(m, 5, (uint32_t[]){(uint32_t)m->op | RS_WORD_LIST, 0, NONE, NONE, NONE}, &list));
    m->p->words.at[more] = list;
  }
  return append_items(m, m->p->words.at[more], n, values);
}

/* A tuple of the stack's values from `first` on. */
static reshard_status collect_items(pickle_machine *m, int64_t first) {
  int64_t n = m->stack.n - first;
  uint32_t value = NONE;
  RS_TRY(add_words(m, 2, (uint32_t[]){(uint32_t)m->op, (uint32_t)n}, &value));
  RS_TRY(reserve_words(m, &m->p->words, n));
  if (n > 0)
    memcpy(m->p->words.at + m->p->words.n, m->stack.at + first, (size_t)n * sizeof value);
  m->p->words.n += n;
  m->stack.n = first;
  return push_value(m, value);
}

static reshard_status collect_last(pickle_machine *m, int64_t n) {
  return above_mark(m) < n ? malformed_pickle(m, "too few values are there for it") : collect_items(m, m->stack.n - n);
}

/* Items from `first` on go into the container below them. An object takes all that it is given. */
static reshard_status extend_items(pickle_machine *m, int64_t first, rs_pickle_kind kind) {
  int64_t bottom = m->marks.n > 0 ? m->marks.at[m->marks.n - 1] : 0;
  if (first <= bottom || first > m->stack.n)
    return malformed_pickle(m, "no container is there for its items");
  uint32_t container = m->stack.at[first - 1];
  rs_pickle_kind is = rs_pickle_kind_of(m->p, container);
  if (is != kind && is != RS_PICKLE_OBJECT)
    return malformed_pickle(m, kind == RS_PICKLE_DICT ? "keys and values for what is no dict"
                                                      : "items for what is no list");
  if (kind == RS_PICKLE_DICT && (m->stack.n - first) % 2 != 0)
    return malformed_pickle(m, "a key without a value");
  const uint32_t *items = m->stack.at + first;
  RS_TRY(is == RS_PICKLE_OBJECT ? absorb_values(m, container, m->stack.n - first, items)
                                : append_items(m, container, m->stack.n - first, items));
  m->stack.n = first;
  return RESHARD_SUCCESS;
}

/* --- Names and calls --------------------------------------------------------------------------------------------- */

static reshard_status push_name(pickle_machine *m, const char *module, size_t module_size, const char *name,
                                size_t name_size, int64_t module_value, int64_t name_value) {
  int64_t number = rs_pickle_find_name(module, module_size, name, name_size);
  return push_words(
      m, 4,
      (uint32_t[]){(uint32_t)m->op, (uint32_t)number, (uint32_t)module_value, (uint32_t)name_value}); /* -1: NONE */
}

/* GLOBAL: two lines. */
static reshard_status take_global(pickle_machine *m) {
  const char *line[2];
  size_t size[2];
  for (int i = 0; i < 2; i++) {
    line[i] = m->p->bytes + m->at;
    const char *end = memchr(line[i], '\n', (size_t)(m->p->size - m->at));
    if (end == NULL)
      return malformed_pickle(m, "a name without an end");
    size[i] = (size_t)(end - line[i]);
    m->at += (int64_t)size[i] + 1;
  }
  return push_name(m, line[0], size[0], line[1], size[1], -1, -1);
}

static reshard_status stack_global(pickle_machine *m) {
  int64_t value[2] = {-1, -1}, size[2];
  const char *text[2];
  for (int i = 1; i >= 0; i--) {
    RS_TRY(pop_value(m, &value[i]));
    if (!rs_pickle_is(m->p, value[i], RS_PICKLE_TEXT))
      return malformed_pickle(m, "a name that is no text");
    text[i] = rs_pickle_text_of(m->p, value[i], &size[i]);
  }
  return push_name(m, text[0], (size_t)size[0], text[1], (size_t)size[1], value[0], value[1]);
}

/* A new dict of pairs: OrderedDict([[key, value], ...]). */
static reshard_status push_pairs(pickle_machine *m, int64_t list) {
  RS_TRY(push_container(m, RS_WORD_DICT));
  uint32_t made = m->stack.at[m->stack.n - 1];
  rs_pickle_cursor pairs = rs_pickle_begin(m->p, list);
  for (int64_t pair; rs_pickle_next(&pairs, &pair);) {
    uint32_t items[2] = {(uint32_t)rs_pickle_item(m->p, pair, 0), (uint32_t)rs_pickle_item(m->p, pair, 1)};
    if (items[1] == NONE || rs_pickle_items(m->p, pair) != 2)
      return malformed_pickle(m, "a dict made of what are no pairs");
    RS_TRY(append_items(m, made, 2, items));
  }
  return RESHARD_SUCCESS;
}

/* A dict of another class is a dict from now on. Its arguments: none, a dict, a list of pairs; of a defaultdict first
 * what makes its values. */
static reshard_status call_dict(pickle_machine *m, const rs_pickle_name *of, int64_t arguments) {
  bool factory = strcmp(of->name, "defaultdict") == 0;
  int64_t n = rs_pickle_items(m->p, arguments), first = rs_pickle_item(m->p, arguments, factory);
  if (n > 1 + factory)
    return malformed_pickle(m, "a dict with more arguments than it takes");
  if (rs_pickle_is(m->p, first, RS_PICKLE_DICT))
    return push_value(m, (uint32_t)first);
  if (first < 0)
    return push_container(m, RS_WORD_DICT);
  return rs_pickle_is(m->p, first, RS_PICKLE_LIST) || rs_pickle_is(m->p, first, RS_PICKLE_TUPLE)
             ? push_pairs(m, first)
             : malformed_pickle(m, "a dict made of what are no pairs");
}

/* REDUCE, NEWOBJ, NEWOBJ_EX. */
static reshard_status call_class(pickle_machine *m, bool keywords) {
  int64_t class = -1, arguments = -1, more = -1;
  if (keywords) {
    RS_TRY(pop_value(m, &more));
    if (!rs_pickle_is(m->p, more, RS_PICKLE_DICT))
      return malformed_pickle(m, "a call with keywords that are no dict");
  }
  RS_TRY(pop_value(m, &arguments));
  RS_TRY(pop_value(m, &class));
  if ((!rs_pickle_is(m->p, class, RS_PICKLE_GLOBAL) && !rs_pickle_is(m->p, class, RS_PICKLE_OBJECT)) ||
      !rs_pickle_is(m->p, arguments, RS_PICKLE_TUPLE))
    return malformed_pickle(m, "a call of what is no class, or with what is no tuple");
  const rs_pickle_name *of = rs_pickle_is(m->p, class, RS_PICKLE_GLOBAL) ? rs_pickle_name_of(m->p, class) : NULL;
  bool plain = more < 0 || rs_pickle_items(m->p, more) == 0;
  int64_t first = rs_pickle_item(m->p, arguments, 0);
  if (of != NULL && of->role == RS_ROLE_DICT && plain)
    return call_dict(m, of, arguments);
  bool items = first < 0 || rs_pickle_is(m->p, first, RS_PICKLE_TUPLE) || rs_pickle_is(m->p, first, RS_PICKLE_LIST);
  if (of != NULL && (of->role == RS_ROLE_SIZE || of->role == RS_ROLE_SET) && plain && items &&
      rs_pickle_items(m->p, arguments) <= 1)
    return push_value(m, (uint32_t)(first < 0 ? arguments : first)); /* what it is made of */
  RS_TRY(push_words(m, 5, (uint32_t[]){(uint32_t)m->op, (uint32_t) class, (uint32_t)arguments, NONE, NONE}));
  return plain ? RESHARD_SUCCESS : absorb_values(m, m->stack.at[m->stack.n - 1], 1, &(uint32_t){(uint32_t)more});
}

/* The state of an object; of a dict it is attributes. */
static reshard_status build_object(pickle_machine *m) {
  int64_t state = -1;
  RS_TRY(pop_value(m, &state));
  if (above_mark(m) < 1)
    return malformed_pickle(m, "no object is there for a state");
  uint32_t value = m->stack.at[m->stack.n - 1];
  rs_pickle_kind kind = rs_pickle_kind_of(m->p, value);
  if (kind != RS_PICKLE_DICT && kind != RS_PICKLE_OBJECT)
    return malformed_pickle(m, "a state for what is no object");
  uint32_t *own = &m->p->words.at[(value >> 1) + RS_OBJECT_STATE];
  if (kind == RS_PICKLE_DICT || *own != NONE)
    return absorb_values(m, value, 1, &(uint32_t){(uint32_t)state});
  *own = (uint32_t)state;
  return RESHARD_SUCCESS;
}

static reshard_status load_persistent(pickle_machine *m) {
  int64_t id = -1;
  RS_TRY(pop_value(m, &id));
  return push_words(m, 2, (uint32_t[]){(uint32_t)m->op, (uint32_t)id});
}

/* --- Memo -------------------------------------------------------------------------------------------------------- */

static reshard_status memoize_top(pickle_machine *m, uint64_t number) {
  if (above_mark(m) < 1)
    return malformed_pickle(m, "no value is there to be kept");
  if (number >= (uint64_t)m->p->size)
    return malformed_pickle(m, "a number of the memo that is larger than the pickle");
  if ((int64_t)number >= m->memo.n)
    RS_TRY(reserve_words(m, &m->memo, (int64_t)number + 1 - m->memo.n));
  while (m->memo.n <= (int64_t)number)
    m->memo.at[m->memo.n++] = NONE;
  m->memo.at[number] = m->stack.at[m->stack.n - 1];
  return RESHARD_SUCCESS;
}

static reshard_status remember_value(pickle_machine *m, uint64_t number) {
  if (number >= (uint64_t)m->memo.n || m->memo.at[number] == NONE)
    return malformed_pickle(m, "nothing is in the memo under its number");
  return push_value(m, m->memo.at[number]);
}

/* --- Opcodes, by what they do ------------------------------------------------------------------------------------ */

#define NOT_MINE ((reshard_status)-1)

static reshard_status do_leaf(pickle_machine *m, unsigned char op) {
  uint64_t n = 0;
  switch (op) {
  case 'N':
  case 0x88:
  case 0x89:
  case ')': return push_leaf(m);
  case 'K': RS_TRY(take_number(m, 1, &n)); return push_leaf(m);
  case 'M': RS_TRY(take_number(m, 2, &n)); return push_leaf(m);
  case 'J': RS_TRY(take_number(m, 4, &n)); return push_leaf(m);
  case 'G': RS_TRY(take_number(m, 8, &n)); return push_leaf(m);
  case 0x8a:
  case 0x8c:
  case 'C':
  case 'U': RS_TRY(skip_bytes(m, 1)); return push_leaf(m);
  case 0x8b:
  case 'B':
  case 'X':
  case 'T': RS_TRY(skip_bytes(m, 4)); return push_leaf(m);
  case 0x8d:
  case 0x8e:
  case 0x96: RS_TRY(skip_bytes(m, 8)); return push_leaf(m);
  default: return NOT_MINE;
  }
}

static reshard_status do_container(pickle_machine *m, unsigned char op) {
  int64_t first = 0;
  switch (op) {
  case '(':
    RS_TRY(reserve_words(m, &m->marks, 1));
    m->marks.at[m->marks.n++] = (uint32_t)m->stack.n;
    return RESHARD_SUCCESS;
  case ']':
  case 0x8f:
  case '}': return push_container(m, 0);
  case 0x85: return collect_last(m, 1);
  case 0x86: return collect_last(m, 2);
  case 0x87: return collect_last(m, 3);
  case 't':
  case 0x91: RS_TRY(pop_mark(m, &first)); return collect_items(m, first);
  case 'a': return extend_items(m, m->stack.n - 1, RS_PICKLE_LIST);
  case 's': return extend_items(m, m->stack.n - 2, RS_PICKLE_DICT);
  case 'e':
  case 0x90: RS_TRY(pop_mark(m, &first)); return extend_items(m, first, RS_PICKLE_LIST);
  case 'u': RS_TRY(pop_mark(m, &first)); return extend_items(m, first, RS_PICKLE_DICT);
  case '0': return pop_value(m, &first);
  case '1':
    RS_TRY(pop_mark(m, &first));
    m->stack.n = first;
    return RESHARD_SUCCESS;
  default: return NOT_MINE;
  }
}

static reshard_status do_object(pickle_machine *m, unsigned char op) {
  uint64_t n = 0;
  switch (op) {
  case 'c': return take_global(m);
  case 0x93: return stack_global(m);
  case 'R':
  case 0x81: return call_class(m, false);
  case 0x92: return call_class(m, true);
  case 'b': return build_object(m);
  case 'Q': return load_persistent(m);
  case 'q': RS_TRY(take_number(m, 1, &n)); return memoize_top(m, n);
  case 'r': RS_TRY(take_number(m, 4, &n)); return memoize_top(m, n);
  case 0x94: return memoize_top(m, (uint64_t)m->memo.n);
  case 'h': RS_TRY(take_number(m, 1, &n)); return remember_value(m, n);
  case 'j': RS_TRY(take_number(m, 4, &n)); return remember_value(m, n);
  default: return NOT_MINE;
  }
}

static reshard_status do_frame(pickle_machine *m, unsigned char op) {
  uint64_t n = 0;
  switch (op) {
  case 0x80:
    RS_TRY(take_number(m, 1, &n));
    return n >= 2 && n <= 5 ? RESHARD_SUCCESS : malformed_pickle(m, "a protocol that is not read: 2 to 5 are");
  case 0x95: return take_number(m, 8, &n);
  case '.':
    RS_TRY(pop_value(m, &m->p->root));
    if (m->stack.n != 0 || m->marks.n != 0)
      return malformed_pickle(m, "it ends with more than one value");
    m->done = true;
    return RESHARD_SUCCESS;
  default:
    return rs_error(RESHARD_ERROR_INVALID, "%s: byte %lld of the pickle: opcode 0x%02x is not read", m->p->where,
                    (long long)m->op, op);
  }
}

static reshard_status run_opcodes(pickle_machine *m) {
  static reshard_status (*const groups[])(pickle_machine *, unsigned char) = {do_object, do_container, do_leaf,
                                                                              do_frame};
  while (!m->done) {
    m->op = m->at;
    if (m->at == m->p->size)
      return malformed_pickle(m, "it ends without a STOP");
    unsigned char op = (unsigned char)m->p->bytes[m->at++];
    reshard_status status = NOT_MINE;
    for (size_t i = 0; status == NOT_MINE; i++) /* the last group takes all */
      status = groups[i](m, op);
    RS_TRY(status);
  }
  if (m->at != m->p->size)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the pickle ends at byte %lld of %lld", m->p->where, (long long)m->at,
                    (long long)m->p->size);
  return RESHARD_SUCCESS;
}

reshard_status rs_pickle_read(const char *where, const char *bytes, int64_t size, int64_t file_bytes, int64_t held,
                              rs_pickle *pickle) {
  *pickle =
      (rs_pickle){.where = where, .bytes = bytes, .size = size, .file_bytes = file_bytes, .held = held, .root = -1};
  pickle_machine m = {.p = pickle};
  if (size > RS_WORD_BYTE)
    return rs_error(RESHARD_ERROR_INVALID, "%s: a pickle of %lld bytes, at most %lld are read", where, (long long)size,
                    (long long)RS_WORD_BYTE);
  reshard_status status = run_opcodes(&m);
  free_words(&m.stack);
  free_words(&m.marks);
  free_words(&m.memo);
  return status;
}

void rs_pickle_free(rs_pickle *pickle) {
  free_words(&pickle->words);
  *pickle = (rs_pickle){.root = -1};
}
