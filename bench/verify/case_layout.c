/* Random layouts of every kind, described for the oracle and built by the library, half of them through strings.
 * Strings are written here in whatever form the grammar allows: ranges or not, negative dims, defaults left out or not.
 * The canonical form is what the library itself prints. */
#include "bench/verify/case_make.h"

#include "bench/cli/util.h"

#include <stdlib.h>
#include <string.h>

static const char *const mesh_names[ORACLE_MESH_DIMS] = {"dp", "tp", "_fsdp2", "Pipe", "e", "x_1"};

/* n distinct ranks of the world, in one of several orders. */
static void draw_ranks(rng *r, int64_t world, int64_t n, oracle_layout *out) {
  int64_t all[ORACLE_WORLD];
  for (int64_t i = 0; i < world; i++)
    all[i] = i;
  int64_t first = rng_in(r, 0, world - n);
  int form = (int)rng_below(r, 4);
  if (form == 0) /* any subset in any order */
    for (int64_t i = 0; i < n; i++) {
      int64_t j = rng_in(r, i, world - 1), t = all[i];
      all[i] = all[j];
      all[j] = t;
    }
  out->nranks = n;
  for (int64_t i = 0; i < n; i++)
    out->ranks[i] = form == 0 ? all[i] : form == 1 ? first + i : form == 2 ? first + n - 1 - i : i;
}

static int64_t draw_count(rng *r, int64_t world) { return rng_one_in(r, 3) ? world : rng_in(r, 1, world); }

/* Parts of a dim of extent n over w ranks; divided: some are in fewer pieces. */
static int draw_parts(rng *r, int64_t n, int64_t w, bool divided, reshard_part *part) {
  int count = (int)rng_in(r, 1 + !divided, ORACLE_PARTS);
  bool equal = rng_one_in(r, 3) && n % count == 0;
  for (int p = 0; p < count; p++) {
    part[p].size = p == count - 1 ? n : equal ? n / (count - p) : rng_one_in(r, 8) ? 0 : rng_in(r, 0, n);
    n -= part[p].size;
    part[p].pieces = rng_one_in(r, 6) ? w + rng_in(r, 0, 2) : 0;
    if (divided && rng_one_in(r, 2))
      do
        part[p].pieces = rng_in(r, 1, w);
      while (w % part[p].pieces != 0);
  }
  return count;
}

/* Mesh dims that are the first to cut their dim get parts; in one dim that no other cuts, ranks may share them. */
static void describe_parts(rng *r, oracle_layout *l) {
  bool divided = rng_one_in(r, 2);
  for (int o = 0; o < l->mesh_ndim; o++) {
    int m = l->order[o], cuts = 0, before = 0;
    reshard_placement *p = &l->placement[m];
    for (int i = 0; i < l->mesh_ndim; i++) {
      const reshard_placement *q = &l->placement[l->order[i]];
      bool cut = l->order[i] != m && q->kind != RESHARD_PLACEMENT_REPLICATE && q->dim == p->dim;
      cuts += cut;
      before += cut && i < o;
    }
    if (p->kind != RESHARD_PLACEMENT_SHARD || before > 0 || !rng_one_in(r, 2))
      continue;
    p->nparts = draw_parts(r, l->shape[p->dim], l->mesh[m], divided && cuts == 0, l->part[m]);
    divided = divided && cuts > 0;
  }
}

static void describe_mesh(rng *r, int64_t world, oracle_layout *out) {
  int64_t n = 1;
  int often = out->ndim > 0 ? (int)rng_below(r, out->ndim)
                            : 0; /* several cuts of one dim are where order and remainders matter */
  out->mesh_ndim = (int)rng_in(r, 1, rng_one_in(r, 4) ? ORACLE_MESH_DIMS : 3);
  for (int m = 0; m < out->mesh_ndim; m++) {
    out->mesh[m] = m == out->mesh_ndim - 1 && rng_one_in(r, 2) ? world / n : rng_log(r, world / n);
    n *= out->mesh[m];
    reshard_placement *p = &out->placement[m];
    int kind = (int)rng_below(r, 8);
    p->kind = out->ndim == 0 || kind < 2 ? RESHARD_PLACEMENT_REPLICATE
              : kind < 6                 ? RESHARD_PLACEMENT_SHARD
                                         : RESHARD_PLACEMENT_STRIDED_SHARD;
    p->dim = out->ndim == 0 || rng_one_in(r, 2) ? often : (int)rng_below(r, out->ndim);
    p->split_factor = rng_in(r, 1, 5);
    out->order[m] = m;
  }
  if (rng_one_in(r, 2))
    for (int m = 0; m < out->mesh_ndim; m++) {
      int j = (int)rng_in(r, m, out->mesh_ndim - 1), t = out->order[m];
      out->order[m] = out->order[j];
      out->order[j] = t;
    }
  rng own; /* so that seeds keep all else */
  rng_seed(&own, r->s[0] ^ r->s[3]);
  if (rng_one_in(&own, 2))
    describe_parts(&own, out);
  draw_ranks(r, world, n, out);
}

static void describe_cyclic(rng *r, int64_t world, oracle_layout *out) {
  int64_t n = 1;
  for (int d = 0; d < out->ndim; d++) {
    out->grid[d] = rng_log(r, world / n);
    n *= out->grid[d];
    out->block[d] = rng_one_in(r, 8) ? out->shape[d] + 1 : rng_log(r, out->shape[d] + 2);
  }
  draw_ranks(r, world, n, out);
}

static bool boxes_meet(int ndim, const reshard_box *a, const reshard_box *b) {
  for (int d = 0; d < ndim; d++)
    if (a->extent[d] == 0 || b->extent[d] == 0 || a->offset[d] + a->extent[d] <= b->offset[d] ||
        b->offset[d] + b->extent[d] <= a->offset[d])
      return false;
  return true;
}

static void add_box(oracle_layout *l, int64_t rank, const reshard_box *box) {
  l->box_rank = cli_realloc(l->box_rank, l->nboxes + 1, sizeof *l->box_rank);
  l->box = cli_realloc(l->box, l->nboxes + 1, sizeof *l->box);
  l->box_rank[l->nboxes] = rank;
  l->box[l->nboxes++] = *box;
}

/* Adds the box unless it meets another one of the same rank. */
static void try_box(oracle_layout *l, int64_t rank, const reshard_box *box) {
  for (int64_t b = 0; b < l->nboxes; b++)
    if (l->box_rank[b] == rank && boxes_meet(l->ndim, &l->box[b], box))
      return;
  add_box(l, rank, box);
}

/* Cuts a box in up to n by recursive splits. */
static void split(rng *r, oracle_layout *l, const reshard_box *box, int64_t n, int64_t world) {
  int d = l->ndim > 0 ? (int)rng_below(r, l->ndim) : 0;
  for (int tried = 0; tried < l->ndim && box->extent[d] < 2; tried++)
    d = (d + 1) % l->ndim;
  if (n <= 1 || l->ndim == 0 || box->extent[d] < 2) {
    add_box(l, rng_below(r, world), box);
    return;
  }
  reshard_box a = *box, b = *box;
  a.extent[d] = rng_in(r, 1, box->extent[d] - 1);
  b.extent[d] -= a.extent[d];
  b.offset[d] += a.extent[d];
  int64_t left = rng_in(r, 1, n - 1);
  split(r, l, &a, left, world);
  split(r, l, &b, n - left, world);
}

static reshard_box draw_box(rng *r, const oracle_layout *l, bool empty) {
  reshard_box box = {{0}, {0}};
  for (int d = 0; d < l->ndim; d++) {
    box.offset[d] = rng_in(r, 0, l->shape[d]);
    box.extent[d] = rng_in(r, 0, l->shape[d] - box.offset[d]);
  }
  if (empty && l->ndim > 0)
    box.extent[rng_below(r, l->ndim)] = 0;
  return box;
}

/* The box grown by a halo, clipped to the tensor. */
static reshard_box grown(rng *r, const oracle_layout *l, const reshard_box *box) {
  reshard_box halo = *box;
  for (int d = 0; d < l->ndim; d++) {
    int64_t before = rng_below(r, 3), after = rng_below(r, 3);
    before = before < halo.offset[d] ? before : halo.offset[d];
    halo.offset[d] -= before;
    halo.extent[d] += before;
    int64_t room = l->shape[d] - halo.offset[d] - halo.extent[d];
    halo.extent[d] += after < room ? after : room;
  }
  return halo;
}

static void describe_boxes(rng *r, int64_t world, bool source, oracle_layout *out) {
  reshard_box all = {{0}, {0}};
  oracle_layout tiles = *out;
  memcpy(all.extent, out->shape, sizeof all.extent);
  int64_t most = rng_one_in(r, 4) ? 40 : 1 + world;
  split(r, &tiles, &all, rng_log(r, most), rng_one_in(r, 3) ? rng_in(r, 1, world) : world);
  bool replicated = rng_one_in(r, 2), halo = !source && rng_one_in(r, 2), gaps = !source && rng_one_in(r, 3);
  out->replicated = replicated;
  for (int64_t b = 0; b < tiles.nboxes; b++) {
    if (gaps && rng_one_in(r, 3))
      continue;
    if (!halo && !source && rng_one_in(r, 20)) /* a destination may overlap without saying anything */
      replicated = true;
    reshard_box box = halo ? grown(r, out, &tiles.box[b]) : tiles.box[b];
    try_box(out, tiles.box_rank[b], &box);
    for (int64_t copies = replicated ? rng_below(r, 4) : 0; copies > 0; copies--)
      try_box(out, rng_below(r, world), &box);
  }
  case_describe_free(&tiles);
  for (int64_t extra = !source && rng_one_in(r, 4) ? rng_below(r, 6) : 0; extra > 0; extra--) {
    reshard_box box = draw_box(r, out, false);
    try_box(out, rng_below(r, world), &box);
  }
  for (int64_t empty = out->ndim > 0 && rng_one_in(r, 4) ? rng_below(r, 4) : 0; empty > 0; empty--) {
    reshard_box box = draw_box(r, out, true);
    add_box(out, rng_below(r, world), &box);
  }
  for (int64_t b = 0; b < out->nboxes && rng_one_in(r, 2); b++) { /* any order */
    int64_t j = rng_below(r, out->nboxes), rank = out->box_rank[b];
    reshard_box box = out->box[b];
    out->box[b] = out->box[j], out->box_rank[b] = out->box_rank[j];
    out->box[j] = box, out->box_rank[j] = rank;
  }
}

void case_describe(rng *r, int ndim, const int64_t *shape, int64_t world, bool source, oracle_layout *out) {
  *out = (oracle_layout){.ndim = ndim, .world = world};
  memcpy(out->shape, shape, (size_t)ndim * sizeof *shape);
  do
    out->kind = (reshard_layout_kind)rng_below(r, RESHARD_LAYOUT_KIND_COUNT);
  while (ndim == 0 && (out->kind == RESHARD_LAYOUT_CHUNK || out->kind == RESHARD_LAYOUT_CYCLIC));
  switch (out->kind) {
  case RESHARD_LAYOUT_CHUNK:
    out->dim = (int)rng_below(r, ndim);
    draw_ranks(r, world, draw_count(r, world), out);
    break;
  case RESHARD_LAYOUT_MESH: describe_mesh(r, world, out); break;
  case RESHARD_LAYOUT_CYCLIC: describe_cyclic(r, world, out); break;
  case RESHARD_LAYOUT_SINGLE:
    out->nranks = 1;
    out->ranks[0] = rng_below(r, world);
    break;
  case RESHARD_LAYOUT_FLAT: draw_ranks(r, world, draw_count(r, world), out); break;
  default: describe_boxes(r, world, source, out); break;
  }
}

void case_describe_replicas(rng *r, int ndim, const int64_t *shape, int64_t world, oracle_layout *out) {
  int64_t parts = rng_one_in(r, 2) ? 1 : rng_in(r, 1, rs_max(1, world / 4));
  *out = (oracle_layout){.kind = RESHARD_LAYOUT_MESH, .ndim = ndim, .world = world, .mesh_ndim = 2};
  memcpy(out->shape, shape, (size_t)ndim * sizeof *shape);
  out->mesh[0] = rng_in(r, rs_max(1, world / parts / 2), world / parts);
  out->mesh[1] = parts;
  out->order[1] = 1;
  if (ndim > 0)
    out->placement[1] = (reshard_placement){.kind = RESHARD_PLACEMENT_SHARD, .dim = (int)rng_below(r, ndim)};
  draw_ranks(r, world, out->mesh[0] * parts, out);
}

void case_describe_free(oracle_layout *what) {
  free(what->box);
  free(what->box_rank);
  what->box = NULL;
  what->box_rank = NULL;
}

void case_describe_unshared(oracle_layout *what) {
  for (int m = 0; m < what->mesh_ndim; m++)
    for (int p = 0; p < what->placement[m].nparts; p++)
      what->part[m][p].pieces = 0;
}

static void add_ranks(rng *r, rs_text *t, int64_t n, const int64_t *ranks) {
  bool ranges = !rng_one_in(r, 4);
  for (int64_t i = 0; i < n;) {
    int64_t step = i + 1 < n ? ranks[i + 1] - ranks[i] : 0, j = i;
    if (ranges && (step == 1 || step == -1))
      while (j + 1 < n && ranks[j + 1] - ranks[j] == step)
        j++;
    cli_add(t, i > 0 ? ",%lld" : "%lld", (long long)ranks[i]);
    if (j > i)
      cli_add(t, "-%lld", (long long)ranks[j]);
    i = j + 1;
  }
}

static bool is_identity(const oracle_layout *l) {
  for (int64_t i = 0; i < l->nranks; i++)
    if (l->ranks[i] != i)
      return false;
  return true;
}

static int draw_signed_dim(rng *r, const oracle_layout *l, int dim) { return rng_one_in(r, 3) ? dim - l->ndim : dim; }

/* The parts of mesh dim m, as a ratio where they have a common one. */
static void add_parts(rng *r, const oracle_layout *l, int m, rs_text *t) {
  int n = l->placement[m].nparts;
  const reshard_part *part = l->part[m];
  int64_t common = l->shape[l->placement[m].dim], unit = 1;
  for (int p = 0; p < n && common > 0; p++)
    common = part[p].size == 0 ? 0 : common;
  for (int64_t u = 2; u <= common; u++) {
    int p = 0;
    while (p < n && part[p].size % u == 0)
      p++;
    unit = p == n ? u : unit;
  }
  bool ratio = common > 0 && n > 1 && rng_one_in(r, 2), bare = n == 1 && rng_one_in(r, 2);
  for (int p = 0; p < n; p++) {
    if (!bare)
      cli_add(t, "%s%lld", p == 0 ? "{" : ratio ? ":" : ",", (long long)(ratio ? part[p].size / unit : part[p].size));
    if (part[p].pieces > 0)
      cli_add(t, "/%lld", (long long)part[p].pieces);
  }
  cli_add(t, bare || n == 0 ? "" : "}");
}

static void add_mesh(rng *r, const oracle_layout *l, rs_text *t) {
  bool ordered = false, named = rng_one_in(r, 2);
  for (int m = 0; m < l->mesh_ndim; m++)
    ordered = ordered || l->order[m] != m;
  cli_add(t, "mesh(");
  for (int m = 0; m < l->mesh_ndim; m++) {
    if (named || ordered)
      cli_add(t, "%s%s=%lld", m > 0 ? "," : "", mesh_names[m], (long long)l->mesh[m]);
    else
      cli_add(t, "%s%lld", m > 0 ? "x" : "", (long long)l->mesh[m]);
  }
  if (!is_identity(l) || rng_one_in(r, 4)) {
    cli_add(t, "@");
    add_ranks(r, t, l->nranks, l->ranks);
  }
  for (int m = 0; m < l->mesh_ndim; m++) {
    const reshard_placement *p = &l->placement[m];
    cli_add(t, "%s", m > 0 ? "," : ";");
    if (p->kind == RESHARD_PLACEMENT_REPLICATE)
      cli_add(t, "R");
    else
      cli_add(t, "S%d", draw_signed_dim(r, l, p->dim));
    if (p->kind == RESHARD_PLACEMENT_STRIDED_SHARD)
      cli_add(t, "*%lld", (long long)p->split_factor);
    add_parts(r, l, m, t);
  }
  for (int o = 0; ordered && o < l->mesh_ndim; o++)
    cli_add(t, "%s%s", o > 0 ? "," : ";order=", mesh_names[l->order[o]]);
  cli_add(t, ")");
}

static void add_boxes(const oracle_layout *l, rs_text *t) {
  cli_add(t, l->replicated ? "boxes(replicated" : "boxes(");
  for (int64_t b = 0; b < l->nboxes; b++) {
    cli_add(t, "%s%lld:", b > 0 || l->replicated ? ";" : "", (long long)l->box_rank[b]);
    rs_text_list(t, l->ndim, l->box[b].offset);
    cli_add(t, "+");
    rs_text_list(t, l->ndim, l->box[b].extent);
  }
  cli_add(t, ")");
}

static void add_layout(rng *r, const oracle_layout *l, rs_text *t) {
  bool all = is_identity(l) && l->nranks == l->world && !rng_one_in(r, 3);
  switch (l->kind) {
  case RESHARD_LAYOUT_CHUNK:
    cli_add(t, all ? "chunk(%d" : "chunk(%d;", draw_signed_dim(r, l, l->dim));
    if (!all)
      add_ranks(r, t, l->nranks, l->ranks);
    cli_add(t, ")");
    break;
  case RESHARD_LAYOUT_MESH: add_mesh(r, l, t); break;
  case RESHARD_LAYOUT_CYCLIC:
    cli_add(t, "cyclic(");
    rs_text_numbers(t, l->ndim, l->grid, "x");
    if (!is_identity(l) || rng_one_in(r, 4)) {
      cli_add(t, "@");
      add_ranks(r, t, l->nranks, l->ranks);
    }
    cli_add(t, ";");
    rs_text_numbers(t, l->ndim, l->block, "x");
    cli_add(t, ")");
    break;
  case RESHARD_LAYOUT_SINGLE: cli_add(t, "rank(%lld)", (long long)l->ranks[0]); break;
  case RESHARD_LAYOUT_FLAT:
    cli_add(t, "flat(");
    if (!all)
      add_ranks(r, t, l->nranks, l->ranks);
    cli_add(t, ")");
    break;
  default: add_boxes(l, t); break;
  }
}

static reshard_status construct_layout(rng *r, const oracle_layout *l, reshard_layout *layout) {
  bool all = is_identity(l) && l->nranks == l->world && rng_one_in(r, 2), ordered = false;
  reshard_placement placement[ORACLE_MESH_DIMS];
  switch (l->kind) {
  case RESHARD_LAYOUT_CHUNK:
    return reshard_layout_create_chunk(l->ndim, l->shape, l->world, draw_signed_dim(r, l, l->dim), all ? 0 : l->nranks,
                                       all ? NULL : l->ranks, layout);
  case RESHARD_LAYOUT_MESH:
    for (int m = 0; m < l->mesh_ndim; m++) {
      placement[m] = l->placement[m];
      placement[m].dim = draw_signed_dim(r, l, l->placement[m].dim);
      placement[m].parts = l->part[m];
      ordered = ordered || l->order[m] != m;
    }
    return reshard_layout_create_mesh(
        l->ndim, l->shape, l->world, l->mesh_ndim, l->mesh, ordered || rng_one_in(r, 2) ? mesh_names : NULL, placement,
        ordered || rng_one_in(r, 4) ? l->order : NULL, is_identity(l) && rng_one_in(r, 2) ? NULL : l->ranks, layout);
  case RESHARD_LAYOUT_CYCLIC:
    return reshard_layout_create_cyclic(l->ndim, l->shape, l->world, l->grid, l->block,
                                        is_identity(l) && rng_one_in(r, 2) ? NULL : l->ranks, layout);
  case RESHARD_LAYOUT_SINGLE: return reshard_layout_create_single(l->ndim, l->shape, l->world, l->ranks[0], layout);
  case RESHARD_LAYOUT_FLAT:
    return reshard_layout_create_flat(l->ndim, l->shape, l->world, all ? 0 : l->nranks, all ? NULL : l->ranks, layout);
  default:
    return reshard_layout_create_boxes(l->ndim, l->shape, l->world, l->nboxes, l->box_rank, l->box, l->replicated,
                                       layout);
  }
}

reshard_status case_build(rng *r, const oracle_layout *what, reshard_layout *layout, char **text) {
  bool by_string = rng_one_in(r, 2) && !(what->kind == RESHARD_LAYOUT_BOXES && what->nboxes == 0);
  rs_text t = {0};
  add_layout(r, what, &t);
  reshard_status status;
  if (by_string)
    status = reshard_layout_parse(t.at, what->ndim, what->shape, what->world, layout);
  else {
    status = construct_layout(r, what, layout);
    cli_add(&t, " by constructor");
  }
  *text = t.at;
  return status;
}
