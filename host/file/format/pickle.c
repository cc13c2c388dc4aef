/* A stack machine: each opcode takes values from the stack and puts one there. A mark on a second stack says where the
 * items of a container begin. Values that are used again are kept under numbers, the memo. A call (REDUCE, NEWOBJ) is
 * kept as an object: its name and its arguments. Every value takes at least a byte of the pickle, so that memory is
 * bounded by its size. */
#include "file/format/pickle.h"

#include <stdlib.h>
#include <string.h>

typedef struct pickle_machine {
  rs_pickle *p;
  unsigned in;
  int64_t at, op; /* the next byte; the opcode that is carried out */
  RS_VEC(int64_t) stack;
  RS_VEC(int64_t) marks;
  RS_VEC(int64_t) memo; /* -1: nothing under that number */
  bool done;
} pickle_machine;

static reshard_status malformed_pickle(const pickle_machine *m, const char *why) {
  return rs_error(RESHARD_ERROR_INVALID, "%s: byte %lld of the pickle: %s", m->p->where, (long long)m->op, why);
}

/* n bytes, little-endian. */
static reshard_status take_number(pickle_machine *m, int n, uint64_t *number) {
  if (m->p->size - m->at < n)
    return malformed_pickle(m, "it ends in the middle of a number");
  uint64_t made = 0;
  for (int i = n - 1; i >= 0; i--)
    made = made << 8 | (unsigned char)m->p->bytes[m->at + i];
  m->at += n;
  *number = made;
  return RESHARD_SUCCESS;
}

/* A length of n bytes, and as many bytes. */
static reshard_status take_bytes(pickle_machine *m, int n, int64_t *first, int64_t *size) {
  uint64_t length = 0;
  RS_TRY(take_number(m, n, &length));
  if (length > (uint64_t)(m->p->size - m->at))
    return rs_error(RESHARD_ERROR_INVALID, "%s: byte %lld of the pickle: %llu bytes follow, %lld are left", m->p->where,
                    (long long)m->op, (unsigned long long)length, (long long)(m->p->size - m->at));
  *first = m->at;
  *size = (int64_t)length;
  m->at += *size;
  return RESHARD_SUCCESS;
}

static reshard_status push_value(pickle_machine *m, const rs_pickle_value *value) {
  rs_pickle *p = m->p;
  RS_TRY(rs_vec_reserve(&p->values, p->values.n + 1));
  RS_TRY(rs_vec_reserve(&m->stack, m->stack.n + 1));
  p->values.at[p->values.n] = *value;
  p->values.at[p->values.n].at = m->op;
  m->stack.at[m->stack.n++] = p->values.n++;
  return RESHARD_SUCCESS;
}

static reshard_status push_kind(pickle_machine *m, rs_pickle_kind kind, int64_t number) {
  return push_value(m, &(rs_pickle_value){.kind = kind, .number = number, .first = -1, .last = -1});
}

static reshard_status push_text(pickle_machine *m, int width) {
  rs_pickle_value v = {.kind = RS_PICKLE_TEXT, .first = -1, .last = -1};
  RS_TRY(take_bytes(m, width, &v.number, &v.count));
  return push_value(m, &v);
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

/* The stack's values from `first` on become the last items of a container. */
static reshard_status append_items(pickle_machine *m, int64_t container, int64_t first) {
  rs_pickle *p = m->p;
  RS_TRY(rs_vec_reserve(&p->cells, p->cells.n + m->stack.n - first));
  rs_pickle_value *v = &p->values.at[container];
  for (int64_t i = first; i < m->stack.n; i++) {
    int64_t cell = p->cells.n++;
    p->cells.at[cell] = (rs_pickle_cell){m->stack.at[i], -1};
    if (v->last >= 0)
      p->cells.at[v->last].next = cell;
    else
      v->first = cell;
    v->last = cell;
    v->count++;
  }
  m->stack.n = first;
  return RESHARD_SUCCESS;
}

/* A new container of the stack's values from `first` on. */
static reshard_status collect_items(pickle_machine *m, rs_pickle_kind kind, int64_t first) {
  RS_TRY(push_kind(m, kind, 0));
  int64_t made = m->stack.at[--m->stack.n];
  RS_TRY(append_items(m, made, first));
  m->stack.at[m->stack.n++] = made; /* there was room for it */
  return RESHARD_SUCCESS;
}

static reshard_status collect_last(pickle_machine *m, int64_t n) {
  return above_mark(m) < n ? malformed_pickle(m, "too few values are there for it")
                           : collect_items(m, RS_PICKLE_TUPLE, m->stack.n - n);
}

/* Items from `first` on go into the container below them. */
static reshard_status extend_items(pickle_machine *m, int64_t first, rs_pickle_kind kind) {
  int64_t bottom = m->marks.n > 0 ? m->marks.at[m->marks.n - 1] : 0;
  if (first <= bottom || first > m->stack.n)
    return malformed_pickle(m, "no container is there for its items");
  int64_t container = m->stack.at[first - 1];
  if (m->p->values.at[container].kind != kind)
    return malformed_pickle(m, kind == RS_PICKLE_DICT ? "keys and values for what is no dict"
                                                      : "items for what is no list");
  if (kind == RS_PICKLE_DICT && (m->stack.n - first) % 2 != 0)
    return malformed_pickle(m, "a key without a value");
  return append_items(m, container, first);
}

/* --- Names and calls --------------------------------------------------------------------------------------------- */

static reshard_status push_name(pickle_machine *m, const char *module, size_t module_size, const char *name,
                                size_t name_size) {
  const rs_pickle_name *found = rs_pickle_find_name(m->in, module, module_size, name, name_size);
  if (found == NULL) {
    char text[RS_QUOTE], quoted[RS_QUOTE];
    size_t most = sizeof text / 2 - 1, n = module_size < most ? module_size : most;
    memcpy(text, module, n);
    text[n] = '.';
    size_t k = name_size < most ? name_size : most;
    memcpy(text + n + 1, name, k);
    text[n + 1 + k] = '\0';
    return rs_error(RESHARD_ERROR_INVALID,
                    "%s: byte %lld of the pickle: it names '%s', which is none of the classes that are read here",
                    m->p->where, (long long)m->op, rs_quote(quoted, sizeof quoted, text));
  }
  return push_value(m, &(rs_pickle_value){.kind = RS_PICKLE_GLOBAL, .name = found, .first = -1, .last = -1});
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
  return push_name(m, line[0], size[0], line[1], size[1]);
}

static reshard_status stack_global(pickle_machine *m) {
  int64_t value[2] = {-1, -1};
  for (int i = 1; i >= 0; i--) {
    RS_TRY(pop_value(m, &value[i]));
    if (!rs_pickle_is(m->p, value[i], RS_PICKLE_TEXT))
      return malformed_pickle(m, "a name that is no text");
  }
  const rs_pickle_value *module = &m->p->values.at[value[0]], *name = &m->p->values.at[value[1]];
  return push_name(m, m->p->bytes + module->number, (size_t)module->count, m->p->bytes + name->number,
                   (size_t)name->count);
}

/* REDUCE, NEWOBJ, NEWOBJ_EX. An OrderedDict is a dict from now on. */
static reshard_status call_global(pickle_machine *m, bool keywords) {
  int64_t name = -1, arguments = -1, more = -1;
  if (keywords) {
    RS_TRY(pop_value(m, &more));
    if (!rs_pickle_is(m->p, more, RS_PICKLE_DICT) || m->p->values.at[more].count != 0)
      return malformed_pickle(m, "a call with arguments by keyword");
  }
  RS_TRY(pop_value(m, &arguments));
  RS_TRY(pop_value(m, &name));
  if (!rs_pickle_is(m->p, name, RS_PICKLE_GLOBAL) || !rs_pickle_is(m->p, arguments, RS_PICKLE_TUPLE))
    return malformed_pickle(m, "a call of what is no class, or with what is no tuple");
  const rs_pickle_name *of = m->p->values.at[name].name;
  if (of->role != RS_ROLE_DICT)
    return push_value(m, &(rs_pickle_value){.kind = RS_PICKLE_OBJECT, .name = of, .first = arguments, .last = -1});
  if (m->p->values.at[arguments].count != 0)
    return malformed_pickle(m, "an OrderedDict with arguments");
  return push_kind(m, RS_PICKLE_DICT, 0);
}

/* The state of an object; of a dict it is attributes, which are not looked at. */
static reshard_status build_object(pickle_machine *m) {
  int64_t state = -1;
  RS_TRY(pop_value(m, &state));
  if (above_mark(m) < 1)
    return malformed_pickle(m, "no object is there for a state");
  rs_pickle_value *v = &m->p->values.at[m->stack.at[m->stack.n - 1]];
  if (v->kind == RS_PICKLE_DICT)
    return RESHARD_SUCCESS;
  if (v->kind != RS_PICKLE_OBJECT || v->last >= 0)
    return malformed_pickle(m, v->kind == RS_PICKLE_OBJECT ? "a second state of one object"
                                                           : "a state for what is no object");
  v->last = state;
  return RESHARD_SUCCESS;
}

static reshard_status load_persistent(pickle_machine *m) {
  int64_t id = -1;
  RS_TRY(pop_value(m, &id));
  return push_value(m, &(rs_pickle_value){.kind = RS_PICKLE_PERSISTENT, .first = id, .last = -1});
}

/* --- Memo -------------------------------------------------------------------------------------------------------- */

static reshard_status memoize_top(pickle_machine *m, uint64_t number) {
  if (above_mark(m) < 1)
    return malformed_pickle(m, "no value is there to be kept");
  if (number >= (uint64_t)m->p->size)
    return malformed_pickle(m, "a number of the memo that is larger than the pickle");
  RS_TRY(rs_vec_reserve(&m->memo, (int64_t)number + 1));
  while (m->memo.n <= (int64_t)number)
    m->memo.at[m->memo.n++] = -1;
  m->memo.at[number] = m->stack.at[m->stack.n - 1];
  return RESHARD_SUCCESS;
}

static reshard_status remember_value(pickle_machine *m, uint64_t number) {
  if (number >= (uint64_t)m->memo.n || m->memo.at[number] < 0)
    return malformed_pickle(m, "nothing is in the memo under its number");
  RS_TRY(rs_vec_reserve(&m->stack, m->stack.n + 1));
  m->stack.at[m->stack.n++] = m->memo.at[number];
  return RESHARD_SUCCESS;
}

/* --- Opcodes, by what they do ------------------------------------------------------------------------------------ */

#define NOT_MINE ((reshard_status)-1)

static reshard_status do_number(pickle_machine *m, unsigned char op) {
  uint64_t n = 0;
  int64_t first = 0, size = 0;
  switch (op) {
  case 'N': return push_kind(m, RS_PICKLE_NONE, 0);
  case 0x88: return push_kind(m, RS_PICKLE_BOOL, 1);
  case 0x89: return push_kind(m, RS_PICKLE_BOOL, 0);
  case 'J': RS_TRY(take_number(m, 4, &n)); return push_kind(m, RS_PICKLE_INT, (int32_t)(uint32_t)n);
  case 'K': RS_TRY(take_number(m, 1, &n)); return push_kind(m, RS_PICKLE_INT, (int64_t)n);
  case 'M': RS_TRY(take_number(m, 2, &n)); return push_kind(m, RS_PICKLE_INT, (int64_t)n);
  case 'G': RS_TRY(take_number(m, 8, &n)); return push_kind(m, RS_PICKLE_OTHER, 0);
  case 0x8a:
  case 0x8b:
    RS_TRY(take_bytes(m, op == 0x8a ? 1 : 4, &first, &size));
    if (size > 8)
      return push_kind(m, RS_PICKLE_OTHER, 0);
    for (int64_t i = size - 1; i >= 0; i--)
      n = n << 8 | (unsigned char)m->p->bytes[first + i];
    if (size > 0 && size < 8 && (m->p->bytes[first + size - 1] & 0x80) != 0)
      n |= UINT64_MAX << (8 * size);
    return push_kind(m, RS_PICKLE_INT, (int64_t)n);
  default: return NOT_MINE;
  }
}

static reshard_status do_text(pickle_machine *m, unsigned char op) {
  int64_t first = 0, size = 0;
  switch (op) {
  case 0x8c:
  case 'U': return push_text(m, 1);
  case 'X':
  case 'T': return push_text(m, 4);
  case 0x8d: return push_text(m, 8);
  case 'C':
  case 'B':
  case 0x8e:
  case 0x96:
    RS_TRY(take_bytes(m, op == 'C' ? 1 : op == 'B' ? 4 : 8, &first, &size));
    return push_kind(m, RS_PICKLE_OTHER, 0);
  default: return NOT_MINE;
  }
}

static reshard_status do_container(pickle_machine *m, unsigned char op) {
  int64_t first = 0;
  switch (op) {
  case '(':
    RS_TRY(rs_vec_reserve(&m->marks, m->marks.n + 1));
    m->marks.at[m->marks.n++] = m->stack.n;
    return RESHARD_SUCCESS;
  case ')': return push_kind(m, RS_PICKLE_TUPLE, 0);
  case ']':
  case 0x8f: return push_kind(m, RS_PICKLE_LIST, 0);
  case '}': return push_kind(m, RS_PICKLE_DICT, 0);
  case 0x85: return collect_last(m, 1);
  case 0x86: return collect_last(m, 2);
  case 0x87: return collect_last(m, 3);
  case 't':
  case 0x91: RS_TRY(pop_mark(m, &first)); return collect_items(m, RS_PICKLE_TUPLE, first);
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
  case 0x81: return call_global(m, false);
  case 0x92: return call_global(m, true);
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
  static reshard_status (*const groups[])(pickle_machine *, unsigned char) = {do_object, do_container, do_number,
                                                                              do_text, do_frame};
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

reshard_status rs_pickle_read(const char *where, const char *bytes, int64_t size, unsigned in, rs_pickle *pickle) {
  *pickle = (rs_pickle){.where = where, .bytes = bytes, .size = size, .root = -1};
  pickle_machine m = {.p = pickle, .in = in};
  reshard_status status = run_opcodes(&m);
  free(m.stack.at);
  free(m.marks.at);
  free(m.memo.at);
  return status;
}

void rs_pickle_free(rs_pickle *pickle) {
  free(pickle->values.at);
  free(pickle->cells.at);
  *pickle = (rs_pickle){.root = -1};
}
