/* Inside of a map: the tree that a text becomes (map_parse.c), names with stars (map_names.c), the
 * lines of a tree applied to a model (map_apply.c), and what one of them makes (map_routes.c). */
#ifndef RS_FILE_MAP_H
#define RS_FILE_MAP_H

#include "file/move/store.h"
#include "layout/sort.h"

typedef enum rs_map_kind { RS_MAP_NAME = 0, RS_MAP_CONCAT, RS_MAP_STACK, RS_MAP_TRANSPOSE } rs_map_kind;
/* As it is written; "name" for a name. */
const char *rs_map_kind_text(rs_map_kind kind);

/* A name or an operation. Numbers of nodes are places in reshard_map_s.nodes; -1: none. */
typedef struct rs_map_node {
  rs_map_kind kind;
  int64_t line, column; /* where it begins, from 1 */
  int64_t next;         /* the part behind it in the same operation */
  int64_t size;         /* that it was given as a part of concat; -1: none */

  int64_t text; /* a name: the stars + 1 pieces around its stars, each NUL-terminated, from here on in the map's text */
  int stars;
  bool spread; /* a name with one star more than its line: all names that match, one part each */

  int64_t parts, count; /* an operation: the first of its parts, and how many */
  int ndims;
  int dims[RESHARD_MAX_DIMS]; /* as given before ';' */
} rs_map_node;

/* One side is a name. */
typedef struct rs_map_line {
  int64_t target; /* node; -1: drop */
  int64_t source;
  int64_t line;
  int stars; /* of the names that are not spread */
} rs_map_line;

struct reshard_map_s {
  char *name; /* of the file, for errors */
  RS_VEC(char) text;
  RS_VEC(rs_map_node) nodes;
  RS_VEC(rs_map_line) lines;
};

/* RESHARD_ERROR_INVALID: "NAME:LINE:COLUMN: " before the text; column 0: "NAME:LINE: ". */
reshard_status rs_map_error(const struct reshard_map_s *map, int64_t line, int64_t column, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The lines of a text, appended to an empty map that has its name. */
reshard_status rs_map_read(reshard_map map, const char *text);

/* What a star stands for: part of a tensor's name. */
typedef struct rs_map_star {
  const char *at;
  size_t length;
} rs_map_star;

/* Names of a model in byte order, so that those with one beginning are neighbours. */
typedef struct rs_named {
  const char *name;
  int64_t tensor;
} rs_named;
/* The caller frees *names; equal names come in order of their tensors. */
reshard_status rs_map_sort(reshard_model model, rs_named **names);

/* A name of the map as it can stand in an error; returns buffer. */
const char *rs_map_quote(char *buffer, size_t size, const struct reshard_map_s *map, const rs_map_node *node);

/* The source while a map is applied to it: its tensors by name, and which of them are taken. */
typedef struct rs_map_source {
  const struct reshard_map_s *map;
  reshard_model model;
  rs_named *names;
  int64_t *taken; /* per tensor: the line that took it first, 0: none */

  const rs_map_line *line;  /* that is being applied, */
  const char *match;        /* and the tensor that says what its stars stand for; NULL where it has none */
  RS_VEC(rs_map_star) star; /* these, and that of a spread name behind them */
  RS_VEC(char) text;        /* scratch: the name that rs_map_name has made */
  RS_VEC(int64_t) spread;   /* result of rs_map_take_all */
} rs_map_source;

static inline const char *rs_map_tensor_name(const rs_map_source *s, int64_t tensor) {
  return s->model->names.at + s->model->tensors.at[tensor].name;
}

/* Appends a pair (tensor, node) for each tensor that no line has taken and that fits the name. */
typedef RS_VEC(rs_pair) rs_map_matches;
reshard_status rs_map_find_all(const rs_map_source *s, int64_t node, rs_map_matches *matches);
/* Makes a tensor that fits the name the match of the line. */
reshard_status rs_map_match(rs_map_source *s, int64_t tensor, int64_t node);
/* s->text = the name with the match's stars put in, of a spread name what stands before its own star; *rest is then
 * what stands behind that. */
reshard_status rs_map_name(rs_map_source *s, const rs_map_node *name, const char **rest);
/* Appends to s->text, which ends with NUL. */
reshard_status rs_map_text_add(rs_map_source *s, const char *from, size_t n);
/* The tensor that a name stands for in this match, which the line takes. */
reshard_status rs_map_take(rs_map_source *s, const rs_map_node *name, int64_t *tensor);
/* s->spread = the tensors that a spread name stands for, by index, which the line takes. */
reshard_status rs_map_take_all(rs_map_source *s, const rs_map_node *name);

/* A map that is being applied. */
typedef struct rs_map_work {
  rs_map_source source;
  char where[RS_WHERE];          /* file and line, before errors of the target's model */
  rs_map_matches matches, spare; /* of the line */
  reshard_model target;
  RS_VEC(int64_t) lines; /* per tensor of the target: the line that made it */
  rs_routes routes;
} rs_map_work;
/* The line for the match: appends what it makes. */
reshard_status rs_map_run(rs_map_work *work);
/* The route of a whole tensor as it is. */
void rs_map_whole(const rs_model_tensor *t, int64_t src, int64_t dst, rs_route *route);

#endif
