/* A string is read into a spec by recursive descent, one function per kind, and the spec goes through the public
 * constructors (spec.c). So a string can say nothing that a program cannot. Its own checks are those of counts that a
 * constructor cannot see. Ranges of ranks stay ranges until the world is known to hold them. */
#include "layout/text/spec.h"

#include <string.h>

static reshard_status error_at(const rs_scan *scan, const char *where, const char *text) {
  return rs_scan_error(scan, where, RESHARD_ERROR_INVALID, "%s", text);
}

reshard_status rs_spec_rank(rs_scan *scan, rs_spec *spec, int64_t *rank) {
  rs_scan_skip(scan);
  const char *first = scan->at;
  RS_TRY(rs_scan_number(scan, "a rank", rank));
  if (*rank == INT64_MAX)
    return error_at(scan, first, "the rank does not fit in 63 bits");
  if (spec->given > 0 && *rank >= spec->given)
    return rs_scan_error(scan, first, RESHARD_ERROR_INVALID, "rank %lld is not in the world of %lld ranks",
                         (long long)*rank, (long long)spec->given);
  spec->named = rs_max(spec->named, *rank + 1);
  return RESHARD_SUCCESS;
}

/* 0-3,7 or 3-0 */
static reshard_status parse_ranks(rs_scan *scan, rs_spec *spec) {
  rs_scan_skip(scan);
  spec->ranks_at = scan->at;
  do {
    rs_spec_range range;
    RS_TRY(rs_spec_rank(scan, spec, &range.first));
    range.last = range.first;
    if (rs_scan_take(scan, '-'))
      RS_TRY(rs_spec_rank(scan, spec, &range.last));
    RS_TRY(rs_vec_push(&spec->ranks, range));
    int64_t count = (range.last > range.first ? range.last - range.first : range.first - range.last) + 1;
    if (!rs_add(spec->rank_count, count, &spec->rank_count))
      return error_at(scan, spec->ranks_at, "the number of ranks overflows 63 bits");
  } while (rs_scan_take(scan, ','));
  return RESHARD_SUCCESS;
}

/* A tensor dim; negative ones count from the end. */
static reshard_status parse_dim(rs_scan *scan, const rs_spec *spec, int64_t *dim) {
  rs_scan_skip(scan);
  const char *first = scan->at;
  RS_TRY(rs_scan_signed(scan, "a tensor dim", dim));
  bool known = spec->ndim >= 0 && !spec->scalar;
  int most = known ? spec->ndim : RESHARD_MAX_DIMS;
  if (*dim < -most || *dim >= most)
    return rs_scan_error(scan, first, RESHARD_ERROR_INVALID, "dim %lld of a tensor of %s%d dims", (long long)*dim,
                         known ? "" : "at most ", most);
  return RESHARD_SUCCESS;
}

/* dim [; ranks] */
static reshard_status parse_chunk(rs_scan *scan, rs_spec *spec) {
  RS_TRY(parse_dim(scan, spec, &spec->dim));
  return rs_scan_take(scan, ';') ? parse_ranks(scan, spec) : RESHARD_SUCCESS;
}

/* An extent of a mesh, grid or block, a split factor, or a number of pieces. */
static reshard_status parse_extent(rs_scan *scan, int64_t *extent) {
  rs_scan_skip(scan);
  const char *first = scan->at;
  RS_TRY(rs_scan_number(scan, "a number", extent));
  return *extent > 0 ? RESHARD_SUCCESS : error_at(scan, first, "expected at least 1");
}

/* 3, or 5/128: the rank that has piece 5 of 128 by the chunk rule over all ranks of the world */
static reshard_status parse_single(rs_scan *scan, rs_spec *spec) {
  rs_scan_skip(scan);
  const char *first = scan->at;
  RS_TRY(rs_scan_number(scan, "a rank", &spec->piece));
  if (rs_scan_take(scan, '/')) {
    RS_TRY(parse_extent(scan, &spec->pieces));
    return spec->piece < spec->pieces ? RESHARD_SUCCESS
                                      : rs_scan_error(scan, first, RESHARD_ERROR_INVALID, "piece %lld of %lld",
                                                      (long long)spec->piece, (long long)spec->pieces);
  }
  scan->at = first;
  RS_TRY(parse_ranks(scan, spec));
  return spec->rank_count == 1 ? RESHARD_SUCCESS : error_at(scan, spec->ranks_at, "expected one rank");
}

static reshard_status parse_flat(rs_scan *scan, rs_spec *spec) {
  return rs_scan_peek(scan) == ')' ? RESHARD_SUCCESS : parse_ranks(scan, spec);
}

/* Extents are read; then [@ranks]. Counts the ranks of the grid, which a mesh dim without a size leaves open. */
static reshard_status parse_grid_ranks(rs_scan *scan, rs_spec *spec, const char *what, const char *first) {
  int64_t size = 1;
  bool open = false;
  for (int64_t i = 0; i < spec->extents.n; i++) {
    open |= spec->extents.at[i] == 0;
    if (spec->extents.at[i] > 0 && (!rs_mul(size, spec->extents.at[i], &size) || size == INT64_MAX))
      return error_at(scan, first, "the number of ranks overflows 63 bits");
  }
  if (!rs_scan_take(scan, '@')) {
    spec->named = open ? 0 : size;
    return RESHARD_SUCCESS;
  }
  RS_TRY(parse_ranks(scan, spec));
  if (!open && spec->rank_count != size)
    return rs_scan_error(scan, spec->ranks_at, RESHARD_ERROR_INVALID, "the %s has %lld ranks, %lld are named", what,
                         (long long)size, (long long)spec->rank_count);
  return RESHARD_SUCCESS;
}

/* 4096, or 8/8: in at most 8 pieces; the size is left out before S0's own `/` */
static reshard_status parse_part(rs_scan *scan, rs_spec *spec, bool sized) {
  reshard_part part = {0, 0};
  if (sized)
    RS_TRY(rs_scan_number(scan, "the size of a part", &part.size));
  if (rs_scan_take(scan, '/'))
    RS_TRY(parse_extent(scan, &part.pieces));
  return rs_vec_push(&spec->parts, part);
}

/* {4096,1024,1024} in elements, {32:8/8:8/8} as a ratio, or /4: one part */
static reshard_status parse_parts(rs_scan *scan, rs_spec *spec, reshard_placement *placement) {
  int64_t first = spec->parts.n;
  char mark = '\0', next;
  if (!rs_scan_take(scan, '{')) {
    RS_TRY(parse_part(scan, spec, false));
  } else {
    for (;;) {
      rs_scan_skip(scan);
      const char *at = scan->at;
      RS_TRY(parse_part(scan, spec, true));
      next = rs_scan_peek(scan);
      if (mark == ':' && spec->parts.at[spec->parts.n - 1].size == 0)
        return error_at(scan, at, "a number of a ratio is at least 1");
      if (next != ',' && next != ':')
        break;
      if (mark != '\0' && next != mark)
        return error_at(scan, scan->at, "parts are elements, with commas, or a ratio, with colons");
      if (next == ':' && spec->parts.at[spec->parts.n - 1].size == 0)
        return error_at(scan, at, "a number of a ratio is at least 1");
      mark = next;
      scan->at++;
    }
    RS_TRY(rs_scan_expect(scan, '}'));
  }
  if (spec->parts.n - first > RESHARD_MAX_PARTS)
    return rs_scan_error(scan, scan->at, RESHARD_ERROR_UNSUPPORTED, "%lld parts, at most %d",
                         (long long)(spec->parts.n - first), RESHARD_MAX_PARTS);
  placement->nparts = (int)(spec->parts.n - first);
  placement->ratio = mark == ':';
  return RESHARD_SUCCESS;
}

/* S0, S-1, S0*2, S0{1:1}, S0/4, R */
static reshard_status parse_placement(rs_scan *scan, rs_spec *spec, reshard_placement *placement) {
  static const char *const partial[] = {"Psum", "Pavg", "Pmin", "Pmax", "Pprod"};
  *placement = (reshard_placement){.kind = RESHARD_PLACEMENT_REPLICATE};
  const char *word;
  rs_scan_skip(scan);
  RS_TRY(rs_refuse_torch_spelling(scan, false));
  size_t length = rs_scan_word(scan, &word);
  for (int i = 0; i < 5; i++)
    if (length == strlen(partial[i]) && memcmp(word, partial[i], length) == 0)
      return rs_scan_error(scan, word, RESHARD_ERROR_UNSUPPORTED, "%s (Partial) is reserved, this version lacks it",
                           partial[i]);
  if (length == 1 && *word == 'R')
    return RESHARD_SUCCESS;
  if (length == 0 || *word != 'S')
    return error_at(scan, word, "expected a placement: S0, S0*2 or R");
  scan->at = word + 1;
  int64_t dim;
  RS_TRY(parse_dim(scan, spec, &dim));
  placement->dim = (int)dim;
  placement->kind = RESHARD_PLACEMENT_SHARD;
  if (rs_scan_take(scan, '*')) {
    placement->kind = RESHARD_PLACEMENT_STRIDED_SHARD;
    return parse_extent(scan, &placement->split_factor);
  }
  char next = rs_scan_peek(scan);
  return next == '{' || next == '/' ? parse_parts(scan, spec, placement) : RESHARD_SUCCESS;
}

/* A mesh dim in order=: by its name or its number. */
static reshard_status parse_mesh_dim(rs_scan *scan, const rs_spec *spec, int *dim) {
  const char *word;
  size_t length = rs_scan_word(scan, &word);
  if (length == 0) {
    int64_t number;
    RS_TRY(rs_scan_number(scan, "a mesh dim", &number));
    if (number >= spec->extents.n)
      return rs_scan_error(scan, word, RESHARD_ERROR_INVALID, "mesh dim %lld of %lld", (long long)number,
                           (long long)spec->extents.n);
    *dim = (int)number;
    return RESHARD_SUCCESS;
  }
  for (int64_t i = 0; i < spec->names.n; i++)
    if (spec->names.at[i].length == length && memcmp(spec->names.at[i].at, word, length) == 0) {
      *dim = (int)i;
      return RESHARD_SUCCESS;
    }
  return rs_scan_error(scan, word, RESHARD_ERROR_INVALID, "the mesh has no dim named %.*s",
                       (int)rs_min((int64_t)length, 64), word);
}

static reshard_status parse_order(rs_scan *scan, rs_spec *spec) {
  const char *word;
  size_t length = rs_scan_word(scan, &word);
  if (length != 5 || memcmp(word, "order", 5) != 0)
    return error_at(scan, word, "expected order=");
  RS_TRY(rs_scan_expect(scan, '='));
  rs_scan_skip(scan);
  word = scan->at;
  do {
    rs_scan_skip(scan);
    const char *here = scan->at;
    int dim = 0;
    RS_TRY(parse_mesh_dim(scan, spec, &dim));
    for (int64_t i = 0; i < spec->order.n; i++)
      if (spec->order.at[i] == dim)
        return rs_scan_error(scan, here, RESHARD_ERROR_INVALID, "mesh dim %d stands twice in order=", dim);
    RS_TRY(rs_vec_push(&spec->order, dim));
  } while (rs_scan_take(scan, ','));
  if (spec->order.n != spec->extents.n)
    return rs_scan_error(scan, word, RESHARD_ERROR_INVALID, "order= has %lld mesh dims, the mesh has %lld",
                         (long long)spec->order.n, (long long)spec->extents.n);
  return RESHARD_SUCCESS;
}

/* 2x4 or dp=2,tp=4 or dp,tp=4: a named dim without a size has extent 0 until the world is known. */
static reshard_status parse_mesh_extents(rs_scan *scan, rs_spec *spec) {
  bool named = false;
  do {
    rs_spec_name name;
    name.length = rs_scan_word(scan, &name.at);
    if (spec->extents.n == 0)
      named = name.length > 0;
    if (!named && name.length > 0)
      return error_at(scan, name.at, "expected a number");
    if (named) {
      if (name.length == 0)
        return error_at(scan, name.at, "expected the name of a mesh dim");
      RS_TRY(rs_vec_push(&spec->names, name));
    }
    RS_TRY(rs_vec_reserve(&spec->extents, spec->extents.n + 1));
    spec->extents.at[spec->extents.n] = 0;
    if (!named || rs_scan_take(scan, '='))
      RS_TRY(parse_extent(scan, &spec->extents.at[spec->extents.n]));
    spec->extents.n++;
  } while (rs_scan_take(scan, named ? ',' : 'x'));
  return RESHARD_SUCCESS;
}

/* extents [@ranks] */
reshard_status rs_spec_mesh(rs_scan *scan, rs_spec *spec) {
  rs_scan_skip(scan);
  const char *first = scan->at;
  spec->kind = RESHARD_LAYOUT_MESH;
  RS_TRY(parse_mesh_extents(scan, spec));
  if (spec->extents.n > INT32_MAX)
    return error_at(scan, first, "too many mesh dims");
  return parse_grid_ranks(scan, spec, "mesh", first);
}

/* placements [; order=] */
reshard_status rs_spec_placements(rs_scan *scan, rs_spec *spec) {
  rs_scan_skip(scan);
  const char *first = scan->at;
  do {
    RS_TRY(rs_vec_reserve(&spec->placements, spec->placements.n + 1));
    RS_TRY(parse_placement(scan, spec, &spec->placements.at[spec->placements.n]));
    spec->placements.n++;
  } while (rs_scan_take(scan, ','));
  for (int64_t m = 0, part = 0; m < spec->placements.n; m++) {
    reshard_placement *p = &spec->placements.at[m];
    p->parts = p->nparts > 0 ? spec->parts.at + part : NULL;
    part += p->nparts;
  }
  if (spec->placements.n != spec->extents.n)
    return rs_scan_error(scan, first, RESHARD_ERROR_INVALID, "%lld placements, the mesh has %lld dims",
                         (long long)spec->placements.n, (long long)spec->extents.n);
  return rs_scan_take(scan, ';') ? parse_order(scan, spec) : RESHARD_SUCCESS;
}

/* extents [@ranks] ; placements [; order=] */
static reshard_status parse_mesh(rs_scan *scan, rs_spec *spec) {
  RS_TRY(rs_spec_mesh(scan, spec));
  RS_TRY(rs_scan_expect(scan, ';'));
  return rs_spec_placements(scan, spec);
}

/* grid [@ranks] ; blocks. Both are empty for a scalar. */
static reshard_status parse_cyclic(rs_scan *scan, rs_spec *spec) {
  rs_scan_skip(scan);
  const char *first = scan->at;
  if (*first != ';' && *first != '@')
    do {
      RS_TRY(rs_vec_reserve(&spec->extents, spec->extents.n + 1));
      RS_TRY(parse_extent(scan, &spec->extents.at[spec->extents.n]));
      spec->extents.n++;
    } while (rs_scan_take(scan, 'x'));
  if (spec->ndim >= 0 && !spec->scalar && spec->extents.n != spec->ndim)
    return rs_scan_error(scan, first, RESHARD_ERROR_INVALID, "%lld grid dims, the tensor has %d dims",
                         (long long)spec->extents.n, spec->ndim);
  if (spec->extents.n > RESHARD_MAX_DIMS)
    return rs_scan_error(scan, first, RESHARD_ERROR_INVALID, "%lld grid dims, a tensor has at most %d dims",
                         (long long)spec->extents.n, RESHARD_MAX_DIMS);
  RS_TRY(parse_grid_ranks(scan, spec, "grid", first));
  RS_TRY(rs_scan_expect(scan, ';'));
  rs_scan_skip(scan);
  first = scan->at;
  if (rs_scan_peek(scan) != ')')
    do {
      RS_TRY(rs_vec_reserve(&spec->blocks, spec->blocks.n + 1));
      RS_TRY(parse_extent(scan, &spec->blocks.at[spec->blocks.n]));
      spec->blocks.n++;
    } while (rs_scan_take(scan, 'x'));
  if (spec->blocks.n != spec->extents.n)
    return rs_scan_error(scan, first, RESHARD_ERROR_INVALID, "%lld block extents, the grid has %lld dims",
                         (long long)spec->blocks.n, (long long)spec->extents.n);
  return RESHARD_SUCCESS;
}

static const struct {
  const char *name;
  reshard_layout_kind kind;
  reshard_status (*parse)(rs_scan *, rs_spec *);
} kinds[] = {{"chunk", RESHARD_LAYOUT_CHUNK, parse_chunk},    {"mesh", RESHARD_LAYOUT_MESH, parse_mesh},
             {"cyclic", RESHARD_LAYOUT_CYCLIC, parse_cyclic}, {"rank", RESHARD_LAYOUT_SINGLE, parse_single},
             {"flat", RESHARD_LAYOUT_FLAT, parse_flat},       {"boxes", RESHARD_LAYOUT_BOXES, rs_spec_boxes}};

reshard_status rs_spec_parse(rs_scan *scan, rs_spec *spec) {
  const char *word;
  rs_scan_skip(scan);
  RS_TRY(rs_refuse_torch_spelling(scan, true));
  size_t length = rs_scan_word(scan, &word), i = 0, n = sizeof kinds / sizeof *kinds;
  while (i < n && (strlen(kinds[i].name) != length || memcmp(kinds[i].name, word, length) != 0))
    i++;
  if (i == n)
    return error_at(scan, word,
                    length == 0 ? "expected a kind of layout: chunk, mesh, cyclic, rank, flat or boxes"
                                : "unknown kind of layout, known are chunk, mesh, cyclic, rank, flat and boxes");
  spec->kind = kinds[i].kind;
  RS_TRY(rs_scan_expect(scan, '('));
  RS_TRY(kinds[i].parse(scan, spec));
  RS_TRY(rs_scan_expect(scan, ')'));
  rs_scan_skip(scan);
  return scan->at == scan->end ? RESHARD_SUCCESS : error_at(scan, scan->at, "expected the end of the layout");
}
