/* Contents of a layout string before there is a shape: between parse.c, parse_boxes.c, spec.c and the constructors. */
#ifndef RS_LAYOUT_TEXT_SPEC_H
#define RS_LAYOUT_TEXT_SPEC_H

#include "layout/text/scan.h"

#include <reshard/layout.h>

typedef struct rs_spec_range {
  int64_t first, last; /* up or down, both ends included */
} rs_spec_range;

typedef struct rs_spec_name {
  const char *at; /* in the layout string */
  size_t length;
} rs_spec_name;

typedef struct rs_spec {
  int ndim;      /* of the tensor, or -1: not known */
  int64_t given; /* world that was given, or 0 */
  int64_t named; /* smallest world that the string names, or 0 */
  bool scalar;   /* a tensor without dims, under a string that others have, too: dims are not compared with it */

  reshard_layout_kind kind;
  int64_t dim;                          /* CHUNK */
  int64_t piece, pieces;                /* SINGLE: the rank that has this piece; pieces 0: it is named */
  RS_VEC(rs_spec_range) ranks;          /* n 0: the default */
  int64_t rank_count;                   /* ranks in them */
  const char *ranks_at;                 /* where they stand */
  RS_VEC(int64_t) extents;              /* MESH, CYCLIC; 0: a mesh dim that is written without its size */
  RS_VEC(rs_spec_name) names;           /* MESH: none or one per extent */
  RS_VEC(reshard_placement) placements; /* MESH */
  RS_VEC(reshard_part) parts;           /* of the placements, one after the other */
  RS_VEC(int) order;
  RS_VEC(int64_t) blocks; /* CYCLIC */
  bool replicated;        /* BOXES */
  int box_ndim;           /* of the boxes so far, or -1 */
  RS_VEC(int64_t) box_ranks;
  RS_VEC(reshard_box) boxes;
} rs_spec;

/* A rank, checked against the world that was given; counts in spec->named. */
reshard_status rs_spec_rank(rs_scan *scan, rs_spec *spec, int64_t *rank);
/* A whole layout string. */
reshard_status rs_spec_parse(rs_scan *scan, rs_spec *spec);
/* The mesh of `mesh(`, up to and without its `;`: 2x4, dp=2,tp=4@4-7, dp,tp=4. */
reshard_status rs_spec_mesh(rs_scan *scan, rs_spec *spec);
/* Sets the extent of the mesh dim that is written without its size. The mesh then has all ranks that the string names,
 * else all of the world. Errors: RESHARD_ERROR_INVALID where several dims have none, or it does not divide. */
reshard_status rs_spec_sizes(const rs_scan *scan, rs_spec *spec, int64_t world);
/* Placements, after the `;`: S0,R;order=tp,dp. The mesh's extents and names are in the spec. */
reshard_status rs_spec_placements(rs_scan *scan, rs_spec *spec);
/* Ranks of a mesh or grid as an array (free()d by the caller), or NULL and 0 where they are 0, 1, 2, ... world: of the
 * spec, or the smallest one that the string names. */
reshard_status rs_spec_expand(const rs_scan *scan, const rs_spec *spec, int64_t world, int64_t **ranks, int64_t *n);
/* Names as strings, or NULL where it has none: one allocation, free()d by the caller. */
reshard_status rs_spec_names(const rs_spec *spec, char ***names);
void rs_spec_free(rs_spec *spec);
/* As reshard_layout_parse, of a string that is given for many tensors. Where it would cut a tensor without dims (chunk,
 * cyclic, a mesh with a Shard), all its ranks have that: mesh(n@RANKS;R). */
reshard_status rs_layout_parse_many(const char *text, int ndim, const int64_t *shape, int64_t world,
                                    reshard_layout *layout);
/* The layout string with `size` for the mesh dim `name` where it is written without one: rs_alloc'ed. *out is NULL
 * where nothing changes. */
reshard_status rs_layout_text_size(const char *text, const char *name, int64_t size, char **out);
/* The layout string with the boxes of a pipe, or of another file that may be read once: rs_alloc'ed. *out is NULL where
 * nothing changes. Errors: of the file and of what it says. */
reshard_status rs_layout_text_piped(const char *text, char **out);
/* Boxes, after `boxes(`, up to and without the `)`. Reads the file where one is named. */
reshard_status rs_spec_boxes(rs_scan *scan, rs_spec *spec);

#endif
