#include "layout/cut.h"

/* Length of piece j of n indices under the chunk rule. */
static int64_t chunk_length(int64_t n, int64_t w, int64_t j) {
  int64_t c = rs_ceil_div(n, w);
  return c == 0 || j > n / c ? 0 : rs_max(0, rs_min(c, n - j * c));
}

/* Start of piece j of n indices: n for the empty trailing ones. */
static int64_t chunk_start(int64_t n, int64_t w, int64_t j) {
  int64_t c = rs_ceil_div(n, w);
  return c == 0 || j > n / c ? n : rs_min(n, j * c);
}

/* A strided cut: chunks of `size` (the last one `rest`, 0 when all are full), `full` of them full. */
typedef struct strided {
  int64_t size, full, rest;
} strided;

static strided strided_of(const rs_cut *cut, int64_t n) {
  strided s = {.size = rs_ceil_div(n, cut->factor)};
  if (s.size > 0) {
    s.full = n / s.size;
    s.rest = n % s.size;
  }
  return s;
}

/* --- Parts ------------------------------------------------------------------------------------------------------- */

void rs_cut_set_parts(rs_cut *cut, int n, const reshard_part *given, rs_cut_part *parts, rs_part_run *runs) {
  int64_t begin = 0;
  int nparts = 0, nruns = 0;
  for (int k = 0; k < n; k++) {
    int64_t pieces = given[k].pieces > 0 ? given[k].pieces : cut->ranks;
    if (given[k].size == 0)
      continue;
    if (nruns == 0 || runs[nruns - 1].n != pieces) {
      int64_t first = nruns > 0 ? runs[nruns - 1].first + runs[nruns - 1].n : 0;
      runs[nruns++] = (rs_part_run){first, pieces, nparts, nparts};
    }
    runs[nruns - 1].to++;
    parts[nparts++] = (rs_cut_part){given[k].size, begin, rs_ceil_div(given[k].size, pieces)};
    begin += given[k].size;
  }
  cut->kind = RS_CUT_PARTS;
  cut->w = nruns > 0 ? runs[nruns - 1].first + runs[nruns - 1].n : cut->ranks;
  cut->nruns = nruns;
  cut->nparts = nparts;
  cut->parts = parts;
  cut->runs = runs;
}

int rs_cut_run_of(const rs_cut *cut, int64_t piece) {
  int run = 0;
  while (run < cut->nruns - 1 && piece >= cut->runs[run + 1].first)
    run++;
  return run;
}

int64_t rs_cut_first(const rs_cut *cut, int64_t piece) {
  if (cut->nruns == 1)
    return piece;
  const rs_part_run *run = &cut->runs[rs_cut_run_of(cut, piece)];
  return (piece - run->first) * (cut->ranks / run->n);
}

int64_t rs_cut_digits(const rs_cut *cut, int64_t piece, int64_t below) {
  if (cut->nruns == 1)
    return piece < below;
  int64_t each = cut->ranks / cut->runs[rs_cut_run_of(cut, piece)].n;
  return rs_max(0, rs_min(each, below - rs_cut_first(cut, piece)));
}

/* Start of piece j of a part in it, and positions of the piece. No division: these are asked for run by run. */
static int64_t part_start(const rs_cut_part *part, int64_t j) {
  uint64_t start = (uint64_t)j * (uint64_t)part->chunk; /* below size + pieces */
  return start < (uint64_t)part->size ? (int64_t)start : part->size;
}

static int64_t part_length(const rs_cut_part *part, int64_t j) {
  return rs_min(part->chunk, part->size - part_start(part, j));
}

/* Positions of piece j of a run in parts [from, to). */
static int64_t parts_length(const rs_cut *cut, int from, int to, int64_t j) {
  int64_t n = 0;
  for (int k = from; k < to; k++)
    n += part_length(&cut->parts[k], j);
  return n;
}

static void parts_piece(const rs_cut *cut, int64_t x, int64_t *piece, int64_t *local, int64_t *run_length) {
  const rs_part_run *run = cut->runs;
  int k = 0;
  while (k < cut->nparts - 1 && x >= cut->parts[k + 1].begin)
    k++;
  while (run->to <= k)
    run++;
  const rs_cut_part *part = &cut->parts[k];
  int64_t y = x - part->begin, j = y / part->chunk, in = y - j * part->chunk;
  *piece = run->first + j;
  *local = parts_length(cut, run->from, k, j) + in;
  *run_length = rs_min(part->chunk - in, part->size - y);
}

static int64_t parts_position(const rs_cut *cut, int64_t piece, int64_t x, int64_t *run_length) {
  const rs_part_run *run = &cut->runs[rs_cut_run_of(cut, piece)];
  int64_t length = 0;
  int k = run->from;
  for (; k < run->to && x >= (length = part_length(&cut->parts[k], piece - run->first)); k++)
    x -= length;
  if (k == run->to)
    k--;
  *run_length = length - x;
  return cut->parts[k].begin + part_start(&cut->parts[k], piece - run->first) + x;
}

static int64_t parts_rank(const rs_cut *cut, int64_t piece, int64_t x) {
  const rs_part_run *run = &cut->runs[rs_cut_run_of(cut, piece)];
  int64_t n = 0;
  for (int k = run->from; k < run->to; k++) {
    const rs_cut_part *part = &cut->parts[k];
    int64_t begin = part->begin + part_start(part, piece - run->first);
    n += rs_max(0, rs_min(x - begin, part_length(part, piece - run->first)));
  }
  return n;
}

/* --- Pieces ------------------------------------------------------------------------------------------------------ */

static int64_t piece_length(const rs_cut *cut, int64_t n, int64_t j) {
  switch (cut->kind) {
  case RS_CUT_SHARD: return chunk_length(n, cut->w, j);
  case RS_CUT_STRIDED: {
    strided s = strided_of(cut, n);
    return s.full * chunk_length(s.size, cut->w, j) + chunk_length(s.rest, cut->w, j);
  }
  case RS_CUT_CYCLIC: {
    int64_t blocks = n / cut->factor, turn = blocks % cut->w;
    return blocks / cut->w * cut->factor + (j < turn ? cut->factor : j == turn ? n % cut->factor : 0);
  }
  case RS_CUT_PARTS: {
    const rs_part_run *run = &cut->runs[rs_cut_run_of(cut, j)];
    return parts_length(cut, run->from, run->to, j - run->first);
  }
  }
  return 0;
}

/* Position x of n goes to which piece, where in it, and how far the run goes. */
static void piece_of(const rs_cut *cut, int64_t n, int64_t x, int64_t *j, int64_t *local, int64_t *run) {
  switch (cut->kind) {
  case RS_CUT_SHARD: {
    int64_t c = rs_ceil_div(n, cut->w);
    *j = x / c;
    *local = x % c;
    *run = rs_min(c - *local, n - x);
    return;
  }
  case RS_CUT_STRIDED: {
    strided s = strided_of(cut, n);
    int64_t chunk = x / s.size, y = x % s.size, length = chunk < s.full ? s.size : s.rest;
    int64_t c = rs_ceil_div(length, cut->w);
    *j = y / c;
    *local = chunk * chunk_length(s.size, cut->w, *j) + y % c;
    *run = rs_min(c - y % c, length - y);
    return;
  }
  case RS_CUT_CYCLIC: {
    int64_t block = x / cut->factor, y = x % cut->factor;
    *j = block % cut->w;
    *local = block / cut->w * cut->factor + y;
    *run = rs_min(cut->factor - y, n - x);
    return;
  }
  case RS_CUT_PARTS: parts_piece(cut, x, j, local, run); return;
  }
}

/* Position of local index x of piece j, and the run from there on. */
static int64_t piece_position(const rs_cut *cut, int64_t n, int64_t j, int64_t x, int64_t *run) {
  switch (cut->kind) {
  case RS_CUT_SHARD: *run = chunk_length(n, cut->w, j) - x; return chunk_start(n, cut->w, j) + x;
  case RS_CUT_STRIDED: {
    strided s = strided_of(cut, n);
    /* a piece may be empty in the full chunks and not in the rest: 5 over 4 leaves piece 3 nothing, 4 over 4 does
     * not */
    int64_t c = chunk_length(s.size, cut->w, j), chunk = c == 0 ? s.full : rs_min(x / c, s.full), y = x - chunk * c;
    int64_t length = chunk < s.full ? s.size : s.rest;
    *run = chunk_length(length, cut->w, j) - y;
    return chunk * s.size + chunk_start(length, cut->w, j) + y;
  }
  case RS_CUT_CYCLIC: {
    int64_t y = x % cut->factor, position = (x / cut->factor * cut->w + j) * cut->factor + y;
    *run = rs_min(cut->factor - y, n - position);
    return position;
  }
  case RS_CUT_PARTS: return parts_position(cut, j, x, run);
  }
  return 0;
}

/* Positions of piece j below position x (0 <= x <= n). */
static int64_t piece_rank(const rs_cut *cut, int64_t n, int64_t j, int64_t x) {
  switch (cut->kind) {
  case RS_CUT_SHARD: return rs_max(0, rs_min(x - chunk_start(n, cut->w, j), chunk_length(n, cut->w, j)));
  case RS_CUT_STRIDED: {
    strided s = strided_of(cut, n);
    if (s.size == 0)
      return 0;
    int64_t chunk = x / s.size, y = x % s.size, length = chunk < s.full ? s.size : s.rest;
    return rs_min(chunk, s.full) * chunk_length(s.size, cut->w, j) +
           rs_max(0, rs_min(y - chunk_start(length, cut->w, j), chunk_length(length, cut->w, j)));
  }
  case RS_CUT_CYCLIC: {
    int64_t block = x / cut->factor, turn = block % cut->w;
    return block / cut->w * cut->factor + (j < turn ? cut->factor : j == turn ? x % cut->factor : 0);
  }
  case RS_CUT_PARTS: return parts_rank(cut, j, x);
  }
  return 0;
}

void rs_dim_locate(const rs_dim *dim, int64_t i, int64_t *part, int64_t *local, int64_t *run) {
  int64_t n = dim->n, p = 0, least = n - i;
  for (int c = 0; c < dim->ncuts; c++) {
    int64_t j = 0, x = 0, r = 0;
    piece_of(&dim->cuts[c], n, i, &j, &x, &r);
    n = piece_length(&dim->cuts[c], n, j);
    p = p * dim->cuts[c].w + j;
    i = x;
    least = rs_min(least, r);
  }
  *part = p;
  *local = i;
  *run = least;
}

static int64_t expand_cuts(const rs_cut *cut, int ncuts, int64_t n, int64_t parts, int64_t part, int64_t local,
                           int64_t *run) {
  if (ncuts == 0) {
    *run = n - local;
    return local;
  }
  int64_t below = parts / cut->w, j = part / below, r = 0;
  int64_t x = expand_cuts(cut + 1, ncuts - 1, piece_length(cut, n, j), below, part % below, local, run);
  x = piece_position(cut, n, j, x, &r);
  *run = rs_min(*run, r);
  return x;
}

void rs_dim_expand(const rs_dim *dim, int64_t part, int64_t local, int64_t *global, int64_t *run) {
  *global = expand_cuts(dim->cuts, dim->ncuts, dim->n, dim->parts, part, local, run);
}

int64_t rs_dim_length(const rs_dim *dim, int64_t part) {
  int64_t n = dim->n, parts = dim->parts;
  for (int c = 0; c < dim->ncuts; c++) {
    parts /= dim->cuts[c].w;
    n = piece_length(&dim->cuts[c], n, part / parts);
    part %= parts;
  }
  return n;
}

int64_t rs_dim_rank(const rs_dim *dim, int64_t part, int64_t i) {
  int64_t n = dim->n, parts = dim->parts;
  for (int c = 0; c < dim->ncuts; c++) {
    parts /= dim->cuts[c].w;
    int64_t j = part / parts;
    i = piece_rank(&dim->cuts[c], n, j, i);
    n = piece_length(&dim->cuts[c], n, j);
    part %= parts;
  }
  return i;
}

/* Breaks of piece j of n indices: at each multiple of *step from 1 to *most; most 0: there are none. */
static void piece_breaks(const rs_cut *cut, int64_t n, int64_t j, int64_t *step, int64_t *most) {
  *step = cut->factor;
  *most = INT64_MAX / cut->factor;
  if (cut->kind == RS_CUT_CYCLIC)
    return;
  strided s = strided_of(cut, n); /* SHARD is one chunk */
  *step = chunk_length(s.size, cut->w, j);
  *most = cut->kind == RS_CUT_SHARD || *step == 0 || *step == s.size ? 0 : s.full; /* all of a chunk: they join */
}

bool rs_dim_breaks(const rs_dim *dim, int64_t part, rs_breaks *breaks) {
  int64_t n = dim->n, parts = dim->parts, begin = 0, step = 1, most = 0;
  for (int c = 0; c < dim->ncuts; c++) {
    const rs_cut *cut = &dim->cuts[c];
    parts /= cut->w;
    int64_t j = part / parts, own_step, own_most;
    if (cut->kind == RS_CUT_PARTS)
      return false;
    piece_breaks(cut, n, j, &own_step, &own_most);
    if (most > 0 && cut->kind != RS_CUT_SHARD)
      return false;
    if (own_most > 0) {
      step = own_step;
      most = own_most;
      begin = 0;
    }
    begin += cut->kind == RS_CUT_SHARD ? chunk_start(n, cut->w, j) : 0; /* of the part, in the piece that breaks */
    n = piece_length(cut, n, j);
    part %= parts;
  }
  /* multiples of step above begin, below begin + n */
  int64_t first = begin / step + 1, last = n > 0 ? rs_min(most, (begin + n - 1) / step) : 0;
  *breaks = (rs_breaks){first * step - begin, step, rs_max(0, last - first + 1)};
  return true;
}

int64_t rs_dim_least_runs(const rs_dim *dim, int64_t n) {
  const rs_cut *cut = dim->cuts;
  if (dim->ncuts == 0 || cut->kind == RS_CUT_PARTS)
    return 1;
  int64_t chunk = cut->kind == RS_CUT_STRIDED ? rs_ceil_div(dim->n, cut->factor) : dim->n;
  return rs_ceil_div(n, cut->kind == RS_CUT_CYCLIC ? cut->factor : rs_ceil_div(chunk, cut->w));
}

reshard_status rs_dim_error_runs(const rs_dim *dim, int64_t runs) {
  return rs_error(RESHARD_ERROR_OUT_OF_MEMORY, "out of memory: a list of %lld runs of a dim of extent %lld",
                  (long long)runs, (long long)dim->n);
}
