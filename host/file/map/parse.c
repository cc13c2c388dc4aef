/* The text of a map becomes a tree: recursive descent, one character of look-ahead.
 *
 * An operation is a word, '(', a list, and perhaps ';' and a second list. The first of two lists is the dims. Only the
 * ';' behind it tells, so it is read as names too and then taken as numbers. The number of stars of a line is known
 * when both sides are. So a second walk checks the stars of names and the sizes of parts. */
#include "file/map/map.h"

#include "base/dtype.h"
#include "base/text.h"
#include "file/map/names.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLANKS " \t\r\v\f"
/* Characters that end the plain part of a name. */
#define BREAKS BLANKS "\n(),;=:#\"*"
/* Operations inside one another: both walks of a tree are recursive. */
#define DEEPEST 64

typedef struct parser {
  reshard_map map;
  const char *p, *line_begin;
  int64_t line;
  int depth; /* open parentheses; the end of a line is white space inside of them */
} parser;

static int64_t column_of(const parser *s) { return s->p - s->line_begin + 1; }

/* Error with what is wanted, and what stands there. */
static reshard_status expected_here(const parser *s, const char *what) {
  char found[] = {'\'', *s->p, '\'', '\0'}, clean[16];
  bool end = *s->p == '\0' || *s->p == '\n';
  return rs_map_error(s->map, s->line, column_of(s), "%s is expected, not %s", what,
                      end ? "the end" : rs_quote(clean, sizeof clean, found));
}

static bool is_blank(char c) { return c != '\0' && strchr(BLANKS, c) != NULL; }

/* White space and comments. */
static void skip_blanks(parser *s) {
  for (;; s->p++) {
    if (*s->p == '#')
      s->p += strcspn(s->p, "\n");
    if (*s->p == '\n' && s->depth > 0) {
      s->line++;
      s->line_begin = s->p + 1;
    } else if (!is_blank(*s->p)) {
      return;
    }
  }
}

static reshard_status put_text(reshard_map map, const char *from, size_t n) {
  return rs_vec_append(&map->text, from, n);
}

/* The part of a name in double quotes that begins here. */
static reshard_status read_quoted(parser *s) {
  int64_t begin = column_of(s);
  for (s->p++; *s->p != '"';) {
    size_t n = strcspn(s->p, "\"\\\n");
    RS_TRY(put_text(s->map, s->p, n));
    s->p += n;
    if (*s->p == '\\' && (s->p[1] == '"' || s->p[1] == '\\')) {
      RS_TRY(put_text(s->map, s->p + 1, 1));
      s->p += 2;
    } else if (*s->p == '\\') {
      return rs_map_error(s->map, s->line, column_of(s), "'\\' in a quoted name is followed by '\"' or '\\'");
    } else if (*s->p != '"') {
      return rs_map_error(s->map, s->line, begin, "'\"' without another on the line");
    }
  }
  s->p++;
  return RESHARD_SUCCESS;
}

static reshard_status read_name(parser *s, rs_map_node *node) {
  node->text = s->map->text.n;
  const char *begin = s->p;
  for (;;) {
    size_t n = strcspn(s->p, BREAKS);
    RS_TRY(put_text(s->map, s->p, n));
    s->p += n;
    if (*s->p == '"') {
      RS_TRY(read_quoted(s));
    } else if (*s->p == '*') {
      if (s->p[1] == '*')
        return rs_map_error(s->map, s->line, column_of(s), "'**' is not known; a '*' is any characters but '.'");
      RS_TRY(put_text(s->map, "", 1));
      node->stars++;
      s->p++;
    } else {
      break;
    }
  }
  if (s->p == begin)
    return expected_here(s, "a name or an operation");
  if (s->map->text.n == node->text)
    return rs_map_error(s->map, node->line, node->column, "an empty name");
  return put_text(s->map, "", 1);
}

/* A name or an operation, and the white space behind it. */
static reshard_status read_expression(parser *s, int64_t *out);

/* ":e8m0" behind the dtype of a cast, which is no size; it belongs to the name that was read. */
static reshard_status read_scales(parser *s) {
  const char *begin = s->p++;
  while (isalnum((unsigned char)*s->p))
    s->p++;
  s->map->text.n--;
  RS_TRY(put_text(s->map, begin, (size_t)(s->p - begin)));
  RS_TRY(put_text(s->map, "", 1));
  skip_blanks(s);
  return RESHARD_SUCCESS;
}

/* Parts with ',' between them, and their sizes. */
static reshard_status read_list(parser *s, rs_map_node *op) {
  op->parts = -1;
  op->count = 0;
  for (int64_t last = -1, part;; last = part) {
    skip_blanks(s);
    RS_TRY(read_expression(s, &part));
    if (last < 0)
      op->parts = part;
    else
      s->map->nodes.at[last].next = part;
    op->count++;
    bool name = s->map->nodes.at[part].kind == RS_MAP_NAME;
    if (op->kind == RS_MAP_CAST && op->dtype == RESHARD_DTYPE_NONE && name && s->p[0] == ':' &&
        isalpha((unsigned char)s->p[1]))
      RS_TRY(read_scales(s));
    if (*s->p == ':') {
      s->p++;
      skip_blanks(s);
      char *end;
      errno = 0;
      long long size = strtoll(s->p, &end, 10);
      if (*s->p < '0' || *s->p > '9' || errno != 0)
        return expected_here(s, "a size below 2^63");
      s->p = end;
      s->map->nodes.at[part].size = size;
      skip_blanks(s);
    }
    if (*s->p != ',')
      return RESHARD_SUCCESS;
    s->p++;
  }
}

/* The list before ';' as dims; the second number of an interleave is its groups. */
static reshard_status take_dims(parser *s, rs_map_node *op) {
  for (int64_t i = op->parts; i >= 0; i = s->map->nodes.at[i].next) {
    const rs_map_node *node = &s->map->nodes.at[i];
    const char *text = s->map->text.at + node->text;
    char buffer[RS_QUOTE], *end = NULL;
    errno = 0;
    long dim = node->kind == RS_MAP_NAME ? strtol(text, &end, 10) : 0;
    if (node->kind != RS_MAP_NAME || end == text || *end != '\0' || node->stars > 0 || node->size >= 0)
      return rs_map_error(s->map, node->line, node->column, "before ';' stand dims, and '%s' is none",
                          node->kind == RS_MAP_NAME ? rs_map_quote(buffer, sizeof buffer, s->map, node)
                                                    : rs_map_kind_text(node->kind));
    if (op->kind == RS_MAP_INTERLEAVE && op->ndims == 1 && op->groups == 0) {
      if (dim < 1 || errno != 0)
        return rs_map_error(s->map, node->line, node->column, "%s groups: 1 or more, below 2^63", text);
      op->groups = dim;
      continue;
    }
    if (dim < -RESHARD_MAX_DIMS || dim >= RESHARD_MAX_DIMS)
      return rs_map_error(s->map, node->line, node->column, "dim %ld: a tensor has %d at most", dim, RESHARD_MAX_DIMS);
    if (op->ndims == RESHARD_MAX_DIMS)
      return rs_map_error(s->map, node->line, node->column, "more than %d dims", RESHARD_MAX_DIMS);
    op->dims[op->ndims++] = (int)dim;
  }
  return RESHARD_SUCCESS;
}

/* The list before ';' as the dtype of a cast. */
static reshard_status take_dtype(parser *s, rs_map_node *op) {
  const rs_map_node *node = &s->map->nodes.at[op->parts];
  char text[RS_QUOTE];
  bool plain = op->count == 1 && node->kind == RS_MAP_NAME && node->stars == 0 && node->size < 0;
  reshard_status status =
      plain ? reshard_dtype_parse_blocks(s->map->text.at + node->text, &op->dtype, &op->blocks) : RESHARD_ERROR_INVALID;
  if (status == RESHARD_ERROR_UNSUPPORTED) {
    char why[256];
    snprintf(why, sizeof why, "%s", reshard_last_error());
    rs_map_error(s->map, node->line, node->column, "%s", why);
    return status;
  }
  if (status != RESHARD_SUCCESS || !rs_cast_knows(op->dtype))
    return rs_map_error(
        s->map, node->line, node->column,
        "before ';' of a cast stands f64, f32, f16, bf16, f8_e4m3, f8_e5m2 or f8_e4m3/128x128, not '%s'",
        node->kind == RS_MAP_NAME ? rs_map_quote(text, sizeof text, s->map, node) : rs_map_kind_text(node->kind));
  return RESHARD_SUCCESS;
}

static reshard_status check_counts(const parser *s, const rs_map_node *op) {
  if (op->kind == RS_MAP_CONCAT && op->ndims != 1)
    return rs_map_error(s->map, op->line, op->column, "concat has one dim first: concat(0; ...)");
  if (op->kind == RS_MAP_INTERLEAVE && (op->ndims != 1 || op->groups == 0))
    return rs_map_error(s->map, op->line, op->column,
                        "interleave has one dim and a number of groups first: interleave(0,8; ...)");
  if (op->kind == RS_MAP_STACK && op->ndims > 1)
    return rs_map_error(s->map, op->line, op->column, "stack has one dim, not %d", op->ndims);
  if (op->kind == RS_MAP_TRANSPOSE && op->count != 1)
    return rs_map_error(s->map, op->line, op->column,
                        "transpose has one part, not %lld; dims stand before ';': transpose(1,0; X)",
                        (long long)op->count);
  if (op->kind == RS_MAP_CAST && (op->dtype == RESHARD_DTYPE_NONE || op->count != 1))
    return rs_map_error(s->map, op->line, op->column, "cast has a dtype first, and one part: cast(bf16; X)");
  return RESHARD_SUCCESS;
}

/* s->p is at the '('; `word` of `length` bytes stands before it. */
static reshard_status read_operation(parser *s, const char *word, size_t length, rs_map_node *op) {
  for (op->kind = RS_MAP_CONCAT; op->kind <= RS_MAP_DROP; op->kind++)
    if (strlen(rs_map_kind_text(op->kind)) == length && strncmp(rs_map_kind_text(op->kind), word, length) == 0)
      break;
  if (op->kind > RS_MAP_DROP) {
    char name[RS_QUOTE];
    snprintf(name, sizeof name, "%.*s", (int)rs_min((int64_t)length, RS_QUOTE), word);
    return rs_map_error(
        s->map, op->line, op->column,
        "no operation '%s': there are concat, interleave, stack, transpose, cast, drop alone on its line, and "
        "zeros():N, drop():N as parts of concat",
        rs_quote((char[RS_QUOTE]){0}, RS_QUOTE, name));
  }
  if (s->depth == DEEPEST)
    return rs_map_error(s->map, op->line, op->column, "more than %d operations inside one another", DEEPEST);
  s->depth++;
  s->p++;
  if (op->kind >= RS_MAP_ZEROS)
    skip_blanks(s);
  else
    RS_TRY(read_list(s, op));
  if (*s->p == ';' && op->kind < RS_MAP_ZEROS) {
    RS_TRY(op->kind == RS_MAP_CAST ? take_dtype(s, op) : take_dims(s, op));
    s->p++;
    RS_TRY(read_list(s, op));
  }
  if (*s->p != ')')
    return expected_here(s, op->kind < RS_MAP_ZEROS ? "',' or ')'" : "')'");
  s->p++;
  s->depth--;
  return check_counts(s, op);
}

static reshard_status read_expression(parser *s, int64_t *out) {
  rs_map_node node = {.line = s->line, .column = column_of(s), .next = -1, .size = -1, .parts = -1};
  const char *begin = s->p;
  RS_TRY(read_name(s, &node));
  size_t length = (size_t)(s->p - begin);
  skip_blanks(s);
  if (*s->p == '(') {
    RS_TRY(read_operation(s, begin, length, &node));
    skip_blanks(s);
  }
  *out = s->map->nodes.n;
  return rs_vec_push(&s->map->nodes, node);
}

/* A side of a line whose names have `stars`: stars of its names, and sizes. parent: the operation around, NULL: none.
 */
static reshard_status check_side(const parser *s, const rs_map_line *line, int64_t at, const rs_map_node *parent,
                                 bool is_target) {
  rs_map_node *node = &s->map->nodes.at[at];
  char text[RS_QUOTE];
  bool part = parent != NULL && parent->kind == RS_MAP_CONCAT;
  bool sized = part || (parent != NULL && parent->kind == RS_MAP_INTERLEAVE);
  if (node->kind >= RS_MAP_ZEROS) {
    if (part && node->size >= 0 && is_target == (node->kind == RS_MAP_DROP))
      return RESHARD_SUCCESS;
    return rs_map_error(s->map, node->line, node->column, "%s():N is a part of concat on the %s side, with its size",
                        rs_map_kind_text(node->kind), node->kind == RS_MAP_DROP ? "left" : "right");
  }
  if (node->size >= 0 && !(is_target && sized))
    return rs_map_error(s->map, node->line, node->column, "a size (':%lld') is for parts of concat on the left side",
                        (long long)node->size);
  if (node->kind == RS_MAP_CAST && is_target)
    return rs_map_error(s->map, node->line, node->column, "cast stands on the right side");
  if (node->kind != RS_MAP_NAME) {
    int64_t tensors = 0;
    for (int64_t i = node->parts; i >= 0; i = s->map->nodes.at[i].next) {
      RS_TRY(check_side(s, line, i, node, is_target));
      tensors += s->map->nodes.at[i].kind < RS_MAP_ZEROS;
    }
    return tensors > 0 ? RESHARD_SUCCESS
                       : rs_map_error(s->map, node->line, node->column, "concat: no part of it is a tensor");
  }
  if (node->stars == line->stars)
    return RESHARD_SUCCESS;
  bool sole = sized || (parent != NULL && parent->kind == RS_MAP_STACK);
  sole = sole && parent->count == 1;
  if (!sole || node->stars != line->stars + 1)
    return rs_map_error(s->map, node->line, node->column, "'%s' has %d '*', the other side %d%s",
                        rs_map_quote(text, sizeof text, s->map, node), node->stars, line->stars,
                        node->stars == line->stars + 1 ? "; one more is for a name alone in stack or concat" : "");
  if (is_target && sized && node->size <= 0)
    return rs_map_error(s->map, node->line, node->column,
                        "'%s' as parts of %s on the left side needs their size: '%s:SIZE'",
                        rs_map_quote(text, sizeof text, s->map, node), rs_map_kind_text(parent->kind), text);
  node->spread = true;
  return RESHARD_SUCCESS;
}

/* "drop(NAME)"; s->p is behind the word. */
static reshard_status read_drop(parser *s, rs_map_line *line) {
  s->depth++;
  skip_blanks(s);
  s->p++;
  skip_blanks(s);
  RS_TRY(read_expression(s, &line->source));
  const rs_map_node *node = &s->map->nodes.at[line->source];
  if (node->kind != RS_MAP_NAME)
    return rs_map_error(s->map, node->line, node->column, "drop has a name, not %s", rs_map_kind_text(node->kind));
  if (*s->p != ')')
    return expected_here(s, "')'");
  s->p++;
  s->depth--;
  line->stars = node->stars;
  return RESHARD_SUCCESS;
}

static reshard_status read_assignment(parser *s, rs_map_line *line) {
  RS_TRY(read_expression(s, &line->target));
  if (*s->p != '=')
    return expected_here(s, "'='");
  s->p++;
  skip_blanks(s);
  RS_TRY(read_expression(s, &line->source));
  const rs_map_node *target = &s->map->nodes.at[line->target], *source = &s->map->nodes.at[line->source];
  if (source->kind == RS_MAP_CAST && target->kind != RS_MAP_NAME) /* of the tensor that is taken apart */
    source = &s->map->nodes.at[source->parts];
  if (target->kind != RS_MAP_NAME && source->kind != RS_MAP_NAME)
    return rs_map_error(s->map, source->line, source->column,
                        "%s on the left side and %s on the right: one side is a name", rs_map_kind_text(target->kind),
                        rs_map_kind_text(source->kind));
  line->stars = target->kind == RS_MAP_NAME ? target->stars : source->stars;
  RS_TRY(check_side(s, line, line->target, NULL, true));
  return check_side(s, line, line->source, NULL, false);
}

static bool at_drop(const parser *s) {
  return strncmp(s->p, "drop", 4) == 0 && s->p[4 + strspn(s->p + 4, BLANKS)] == '(';
}

reshard_status rs_map_read(reshard_map map, const char *text) {
  if (strncmp(text, "\xef\xbb\xbf", 3) == 0) /* the mark that some editors put before UTF-8 */
    text += 3;
  parser s = {.map = map, .p = text, .line_begin = text, .line = 1};
  for (;; s.p++, s.line++, s.line_begin = s.p) {
    skip_blanks(&s);
    if (*s.p != '\n' && *s.p != '\0') {
      rs_map_line line = {.target = -1, .line = s.line};
      if (at_drop(&s)) {
        s.p += 4;
        RS_TRY(read_drop(&s, &line));
      } else {
        RS_TRY(read_assignment(&s, &line));
      }
      skip_blanks(&s);
      if (*s.p != '\n' && *s.p != '\0')
        return expected_here(&s, "the end of the line");
      RS_TRY(rs_vec_push(&map->lines, line));
    }
    if (*s.p == '\0')
      return RESHARD_SUCCESS;
  }
}
