/* Names of a map, with stars, against the names of a source. */
#ifndef RS_FILE_MAP_NAMES_H
#define RS_FILE_MAP_NAMES_H

#include "file/map/map.h"
#include "file/model/model.h"
#include "layout/sort.h"

/* Text of a star: part of a tensor's name. */
typedef struct rs_map_star {
  const char *at;
  size_t length;
} rs_map_star;

/* Names of a model in byte order, so that those with one beginning are neighbours. */
typedef struct rs_sorted_name {
  const char *name;
  int64_t tensor;
} rs_sorted_name;
/* The caller frees *names; equal names come in order of their tensors. */
reshard_status rs_map_sort(reshard_model model, rs_sorted_name **names);

/* A name of the map as it can stand in an error; returns buffer. */
const char *rs_map_quote(char *buffer, size_t size, const struct reshard_map_s *map, const rs_map_node *node);

/* The source while a map is applied to it: its tensors by name, and which of them are taken. */
typedef struct rs_map_source {
  const struct reshard_map_s *map;
  reshard_model model;
  rs_sorted_name *names;
  int64_t *taken; /* per tensor: the line that took it first, 0: none */

  const rs_map_line *line;  /* that is being applied, */
  const char *match;        /* and the tensor that says what its stars stand for; NULL where it has none */
  RS_VEC(rs_map_star) star; /* these, and that of a spread name behind them */
  RS_VEC(char) text;        /* scratch: the name that rs_map_name has made */
  RS_VEC(int64_t) spread;   /* result of rs_map_take_all */
} rs_map_source;

/* Appends a pair (tensor, node) for each tensor that no line has taken and that fits the name. */
typedef RS_VEC(rs_pair) rs_map_matches;
reshard_status rs_map_find_all(const rs_map_source *s, int64_t node, rs_map_matches *matches);
/* Makes a tensor that fits the name the match of the line. */
reshard_status rs_map_match(rs_map_source *s, int64_t tensor, int64_t node);
/* s->text = the name with the match's stars put in, of a spread name what stands before its own star. *rest is then
 * what stands behind that. */
reshard_status rs_map_name(rs_map_source *s, const rs_map_node *name, const char **rest);
/* Appends to s->text, which ends with NUL. */
reshard_status rs_map_text_add(rs_map_source *s, const char *from, size_t n);
/* The tensor that a name stands for in this match, which the line takes. */
reshard_status rs_map_take(rs_map_source *s, const rs_map_node *name, int64_t *tensor);
#define RS_SCALES "_scale_inv" /* behind the name of the values */
/* True where numbers of FP8 are multiplied by scales, if there are any, when they are cast. */
bool rs_map_multiplies(reshard_dtype from, reshard_dtype to);
/* False where a tensor has no scales; else the line takes them, if none has. */
bool rs_map_take_scales(rs_map_source *s, int64_t tensor);
/* s->spread = the tensors that a spread name stands for, by index, which the line takes. */
reshard_status rs_map_take_all(rs_map_source *s, const rs_map_node *name);

#endif
