/* Inside of a map: the tree that its text becomes. */
#ifndef RS_FILE_MAP_H
#define RS_FILE_MAP_H

#include "base/base.h"

#include <reshard/file.h>

/* zeros and drop are parts of concat that no tensor is: on the right side, and on the left. */
typedef enum rs_map_kind {
  RS_MAP_NAME = 0,
  RS_MAP_CONCAT,
  RS_MAP_INTERLEAVE,
  RS_MAP_STACK,
  RS_MAP_TRANSPOSE,
  RS_MAP_CAST,
  RS_MAP_ZEROS,
  RS_MAP_DROP
} rs_map_kind;
/* As it is written; "name" for a name. */
const char *rs_map_kind_text(rs_map_kind kind);

/* A name or an operation. Numbers of nodes are places in reshard_map_s.nodes; -1: none. */
typedef struct rs_map_node {
  rs_map_kind kind;
  int64_t line, column; /* where it begins, from 1 */
  int64_t next;         /* the part behind it in the same operation */
  int64_t size;         /* that it was given as a part of concat or interleave; -1: none */

  int64_t text; /* a name: the stars + 1 pieces around its stars, each NUL-terminated, from here on in the map's text */
  int stars;
  bool spread; /* a name with one star more than its line: all names that match, one part each */

  int64_t parts, count; /* an operation: the first of its parts, and how many */
  int ndims;
  int dims[RESHARD_MAX_DIMS]; /* as given before ';' */
  int64_t groups;             /* likewise, of an interleave */
  reshard_dtype dtype;        /* likewise, of a cast, */
  reshard_blocks blocks;      /* with scales for these; rows 0: none */
} rs_map_node;

/* One side is a name, or the source the cast of one. */
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

#endif
