/* A case from a seed: world, entries (shapes, regions, permutations, layouts on both sides), plan options. Sizes are
 * drawn so that the small and the degenerate come often: extents 0 and 1, ranks that hold nothing, one-byte and
 * sixteen-byte elements. */
#include "bench/verify/case_make.h"

#include "bench/cli/naive_cast.h"
#include "bench/cli/topology.h"

#include <stdlib.h>
#include <string.h>

static int64_t draw_world(rng *r) {
  int64_t p = rng_below(r, 100);
  return p < 4    ? 1
         : p < 45 ? rng_in(r, 2, 4)
         : p < 75 ? rng_in(r, 5, 8)
         : p < 96 ? rng_in(r, 9, 16)
                  : rng_in(r, 17, 64);
}

enum { LEAST_OF_PEER = 256 }; /* bytes of the least limit, for each rank of the world */

static const rng_shapes shapes = {16, {0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6, 7, 8}, 4, 3, 40};

/* Makes the region the whole tensor, with the same shape on both sides. */
static void draw_whole(rng *r, case_entry *e, int ndim, const int64_t *shape, int64_t *dst_shape) {
  memcpy(dst_shape, shape, (size_t)ndim * sizeof *shape);
  for (int d = 0; d < ndim; d++) {
    e->region.src_offset[d] = e->region.dst_offset[d] = 0;
    e->region.src_extent[d] = e->region.dst_extent[d] = shape[d];
    e->region.permutation[d] = d;
  }
  e->given = rng_one_in(r, 4) ? (unsigned)rng_below(r, 64) : GIVEN_NAME;
}

/* Draws the permutation: the source dims shuffled, some unit dims dropped and some added. Returns the destination's
 * ndim. */
static int draw_permutation(rng *r, case_entry *e, int ndim) {
  int n = 0, *p = e->region.permutation;
  for (int d = 0; d < ndim; d++)
    if (e->region.src_extent[d] != 1 || rng_one_in(r, 2))
      p[n++] = d;
  while (n < RESHARD_MAX_DIMS && rng_one_in(r, 3))
    p[n++] = -1;
  if (!rng_one_in(r, 4))
    for (int i = 0; i < n; i++) {
      int j = (int)rng_in(r, i, n - 1), t = p[i];
      p[i] = p[j];
      p[j] = t;
    }
  return n;
}

/* Draws a part of the source that becomes a part of the destination, perhaps with other dims. Returns the destination's
 * ndim. */
static int draw_region(rng *r, case_entry *e, int ndim, const int64_t *shape, int64_t *dst_shape) {
  oracle_region *g = &e->region;
  bool whole = rng_one_in(r, 3), permuted = !rng_one_in(r, 4);
  for (int d = 0; d < ndim; d++) {
    bool all = whole || rng_one_in(r, 2);
    g->src_offset[d] = all ? 0 : rng_in(r, 0, shape[d]);
    g->src_extent[d] = all ? shape[d] : rng_in(r, 0, shape[d] - g->src_offset[d]);
    if (!all && g->src_extent[d] == 0 && !rng_one_in(r, 10)) {
      g->src_offset[d] = 0;
      g->src_extent[d] = shape[d] < 1 ? shape[d] : 1;
    }
    g->permutation[d] = d;
  }
  int n = permuted ? draw_permutation(r, e, ndim) : ndim;
  int64_t slack = 4;
  bool exact = rng_one_in(r, 2);
  for (int d = 0; d < n; d++) {
    g->dst_extent[d] = g->permutation[d] < 0 ? 1 : g->src_extent[g->permutation[d]];
    g->dst_offset[d] = exact || slack <= 1 ? 0 : rng_below(r, 3);
    int64_t after = exact || slack <= 1 ? 0 : rng_below(r, 3), old = g->dst_extent[d] > 0 ? g->dst_extent[d] : 1;
    dst_shape[d] = g->dst_offset[d] + g->dst_extent[d] + after;
    slack = slack * old / (dst_shape[d] > old ? dst_shape[d] : old);
  }
  e->given = 63;
  bool src_rest = true, at_zero = true, dst_zero = true;
  for (int d = 0; d < ndim; d++) {
    src_rest = src_rest && g->src_offset[d] + g->src_extent[d] == shape[d];
    at_zero = at_zero && g->src_offset[d] == 0;
  }
  for (int d = 0; d < n; d++)
    dst_zero = dst_zero && g->dst_offset[d] == 0;
  if (src_rest && rng_one_in(r, 2))
    e->given &= ~(unsigned)GIVEN_SRC_EXTENT;
  if (at_zero && rng_one_in(r, 2))
    e->given &= ~(unsigned)GIVEN_SRC_OFFSET;
  if (dst_zero && rng_one_in(r, 2))
    e->given &= ~(unsigned)GIVEN_DST_OFFSET;
  if (rng_one_in(r, 2))
    e->given &= ~(unsigned)GIVEN_DST_EXTENT;
  if (!permuted && rng_one_in(r, 2))
    e->given &= ~(unsigned)GIVEN_PERMUTATION;
  if (!(e->given &
        (GIVEN_SRC_OFFSET | GIVEN_SRC_EXTENT | GIVEN_DST_OFFSET))) /* else whole tensors are meant, of equal extents */
    e->given |= GIVEN_DST_EXTENT | GIVEN_SRC_EXTENT;
  return n;
}

static bool check_print(case_side *side, rs_text *why) {
  size_t needed = 0;
  reshard_layout again = NULL;
  reshard_layout_print(side->layout, NULL, 0, &needed);
  char *text = cli_alloc((int64_t)needed + 1, 1);
  bool right = false;
  if (reshard_layout_print(side->layout, text, needed, NULL) != RESHARD_SUCCESS)
    cli_add(why, "%s cannot be printed: %s", side->text, reshard_last_error());
  else if (side->described.kind == RESHARD_LAYOUT_BOXES && side->described.nboxes == 0)
    right = true;
  else if (reshard_layout_parse(text, side->described.ndim, side->described.shape, side->described.world, &again) !=
           RESHARD_SUCCESS)
    cli_add(why, "%s is printed as %s, which is not read: %s", side->text, text, reshard_last_error());
  else if (!reshard_layout_equal(side->layout, again))
    cli_add(why, "%s is printed as %s, which is another layout", side->text, text);
  else
    right = true;
  reshard_layout_release(again);
  free(text);
  return right;
}

/* A side is a source or a destination; one of replicas is drawn by a generator of its own. */
typedef enum side_kind { A_SOURCE, A_DESTINATION, REPLICAS } side_kind;

static bool make_side(rng *r, case_side *side, int ndim, const int64_t *shape, int64_t world, side_kind kind,
                      bool multiplied, rs_text *why) {
  rng after;
  case_describe(r, ndim, shape, world, kind == A_SOURCE, &side->described);
  after = *r;
  if (kind == REPLICAS) {
    case_describe_free(&side->described);
    case_describe_replicas(&after, ndim, shape, world, &side->described);
  }
  if (multiplied)
    case_describe_multiplied(side->factor, &side->described);
  oracle_evaluate(&side->described, &side->buffers);
  if (case_build(r, &side->described, &side->layout, &side->text) != RESHARD_SUCCESS) {
    cli_add(why, "layout %s refused: %s", side->text, reshard_last_error());
    return false;
  }
  rng own; /* so that what is checked here does not change what is drawn after */
  rng_seed(&own, rng_next(r));
  if (rng_one_in(&own, 4))
    case_check_layout(&own, side, why);
  return why->length == 0 && (!rng_one_in(&own, 8) || check_print(side, why));
}

/* Lengthens a dim of a tensor of some elements, so that it has `least` or about so many. */
static void grow_shape(uint64_t seed, int64_t least, int ndim, int64_t *shape) {
  rng own;
  rng_seed(&own, seed ^ 0x67726f77u);
  int64_t elements = 1, d = rng_below(&own, rs_max(1, ndim));
  for (int i = 0; i < ndim; i++)
    elements *= shape[i];
  if (ndim > 0 && elements > 0 && elements < least)
    shape[d] = rs_ceil_div(least, elements / shape[d]);
}

static bool make_entry(uint64_t seed, int64_t world, int64_t most, int64_t least, bool replicas, case_entry *e,
                       rs_text *why) {
  rng r;
  rng_seed(&r, seed);
  int64_t shape[RESHARD_MAX_DIMS] = {0}, dst_shape[RESHARD_MAX_DIMS] = {0};
  int ndim = rng_shape(&r, &shapes, most, shape), dst_ndim = ndim;
  grow_shape(seed, least, ndim, shape);
  if (rng_one_in(&r, 2))
    draw_whole(&r, e, ndim, shape, dst_shape);
  else
    dst_ndim = draw_region(&r, e, ndim, shape, dst_shape);
  bool scaled = e->scales != RESHARD_DTYPE_NONE;
  if (scaled)
    case_draw_factors(seed, e, ndim, shape, dst_ndim, dst_shape);
  bool made = make_side(&r, &e->src, ndim, shape, world, A_SOURCE, scaled, why) &&
              make_side(&r, &e->dst, dst_ndim, dst_shape, world, replicas ? REPLICAS : A_DESTINATION, scaled, why);
  if (made && scaled) {
    case_draw_blocks(seed, e);
    case_list_scales(e, e->dtype == RESHARD_F8_E4M3 ? &e->src : &e->dst);
  }
  return made;
}

static reshard_dtype draw_dtype(rng *r) {
  static const reshard_dtype by_width[5][4] = {
      {RESHARD_U8, RESHARD_BOOL, RESHARD_F8_E4M3, RESHARD_I8},  {RESHARD_BF16, RESHARD_F16, RESHARD_U16, RESHARD_I16},
      {RESHARD_F32, RESHARD_I32, RESHARD_U32, RESHARD_F32},     {RESHARD_F64, RESHARD_I64, RESHARD_C64, RESHARD_U64},
      {RESHARD_C128, RESHARD_C128, RESHARD_C128, RESHARD_C128},
  };
  return by_width[rng_below(r, 5)][rng_below(r, 4)];
}

/* Draws a limit for a case that has none so far, by a generator of its own: seeds keep what they draw after it. Few are
 * the default or none. */
static void draw_limit(case_plan *c) {
  rng own;
  rng_seed(&own, c->seed ^ 0x6c696d6974u);
  int64_t which = rng_below(&own, 12), least = LEAST_OF_PEER * c->world;
  c->options.workspace_limit = RESHARD_DEFAULT_LIMIT;
  if (which == 0)
    c->options.workspace_limit = RESHARD_NO_LIMIT;
  if (which < 2)
    return;
  c->least_limit = least;
  c->options.workspace_limit = least + rng_log(&own, least / 2) - 1;
}

static void draw_options(rng *r, bool rounds, case_plan *c) {
  c->options = (reshard_plan_options)RESHARD_PLAN_OPTIONS_DEFAULTS;
  if (rng_one_in(r, 3) || rounds) {
    c->least_limit = LEAST_OF_PEER * c->world;
    c->options.workspace_limit = c->least_limit * (rounds || rng_one_in(r, 2) ? 1 : rng_log(r, 16));
    if (rng_one_in(r, 2))
      c->options.workspace_limit += rng_below(r, 2000) / 16;
  } else {
    draw_limit(c);
  }
  if (rng_one_in(r, 4)) {
    int64_t per_node = rng_in(r, 1, c->world);
    for (int64_t i = 0; i < c->world; i++)
      c->nodes[i] = rng_one_in(r, 20) ? rng_below(r, 3) : i / per_node;
    c->options.nodes = c->nodes;
  }
}

/* Plans of all ranks, and of their way back, under the limit of the case; *streams: the most of a rank; *limit: the
 * most staging of a rank, which blocks may raise above that of the case. */
static reshard_status plan_dry(const case_plan *c, const reshard_entry *entries, int64_t *streams, int64_t *limit) {
  reshard_plan *plans = cli_alloc(c->world, sizeof *plans), back;
  reshard_plan_info info;
  reshard_status status = reshard_plan_create_all(c->nentries, entries, c->world, NULL, &c->options, plans);
  for (int64_t r = 0; r < c->world && plans[r] != NULL; r++) {
    RS_THEN(status, reshard_plan_get_info(plans[r], &info));
    *streams = rs_max(*streams, info.streams);
    size_t bytes = 0;
    RS_THEN(status, reshard_plan_workspace(plans[r], &bytes));
    *limit = rs_max(*limit, (int64_t)bytes);
    if (c->reversible) {
      RS_THEN(status, reshard_plan_reverse(plans[r], &back));
      RS_THEN(status, reshard_plan_get_info(back, &info));
      *streams = rs_max(*streams, info.streams);
      if (status == RESHARD_SUCCESS)
        reshard_plan_destroy(back);
    }
    reshard_plan_destroy(plans[r]);
  }
  free(plans);
  return status;
}

/* Begins the generator of a case's domains, so that seeds keep what they draw else; false: the case has none. */
static bool seed_topology(const case_plan *c, const case_choices *fixed, rng *own) {
  rng_seed(own, c->seed ^ 0x646f6d61696eu);
  return fixed->topologies && c->nentries > 0 && (rng_below(own, 5) < 3 || fixed->topology != NULL);
}

/* Domains as they were given, or drawn; returns how many. */
static int64_t draw_domains(rng *own, const char *given, case_plan *c) {
  int64_t most = rng_one_in(own, 4) ? c->world : rs_max(2, c->world / 2), size = rng_in(own, 1 + (c->world > 2), most),
          count = (c->world + size - 1) / size, seen[ORACLE_WORLD] = {0}, domains = 0;
  bool mixed = rng_one_in(own, 3);
  c->topology = (reshard_topology)RESHARD_TOPOLOGY_DEFAULTS;
  c->topology.round_ns = rng_log(own, 30000);
  if (given != NULL)
    cli_read_topology(given, c->world, &c->topology);
  for (int64_t i = 0; i < c->world; i++) {
    c->nodes[i] = given != NULL ? c->topology.domain[i] : mixed ? rng_below(own, count) : i / size;
    domains += seen[c->nodes[i]]++ == 0;
  }
  if (given != NULL)
    free((int64_t *)c->topology.domain);
  c->topology.ranks = c->world;
  c->topology.domain = c->nodes;
  return domains;
}

/* Domains, with chains as many as they are, fewer, or as the model has it, where a topology does not say. The limit is
 * raised to the least, which follows from the streams. */
static void draw_topology(rng *own, const case_choices *fixed, case_plan *c) {
  int64_t domains = draw_domains(own, fixed->topology, c), which = rng_below(own, 16);
  if (c->topology.chains == 0 && which > 0)
    c->topology.chains = which < 8 ? domains : rng_in(own, 1, domains);
  c->options.nodes = NULL;
  c->options.topology = &c->topology;
  c->options.on_cpu = !fixed->gpus;
  reshard_entry *entries = case_entries(c);
  int64_t streams = 0, limit = 0;
  while (plan_dry(c, entries, &streams, &limit) == RESHARD_ERROR_INVALID ||
         (c->options.workspace_limit > 0 && c->options.workspace_limit / 128 < streams))
    c->options.workspace_limit += c->options.workspace_limit / 4 + 1;
  free(entries);
}

/* Raises the limit to what the rank takes that needs most for its blocks. */
static void raise_limit(case_plan *c) {
  reshard_entry *entries = case_entries(c);
  int64_t streams = 0, needed = c->options.workspace_limit;
  do
    c->options.workspace_limit = needed;
  while (plan_dry(c, entries, &streams, &needed) == RESHARD_SUCCESS && needed > c->options.workspace_limit);
  free(entries);
}

/* True where every element of the destination is in exactly one place, so that the way back is a reshard too. */
static bool is_reversible(const case_entry *e) {
  const oracle_layout *l = &e->dst.described;
  int64_t n = 1, held = 0;
  for (int d = 0; d < l->ndim; d++)
    n *= l->shape[d];
  unsigned char *seen = cli_alloc(n, 1);
  bool once = true;
  for (int64_t b = 0; b < e->dst.buffers.first[l->world]; b++)
    for (int64_t i = 0; i < e->dst.buffers.buffer[b].n; i++, held++)
      once = once && seen[e->dst.buffers.buffer[b].index[i]]++ == 0;
  free(seen);
  return once && held == n;
}

const reshard_dtype case_numbers[CASE_NUMBERS] = {RESHARD_F64,  RESHARD_F32,     RESHARD_F16,
                                                  RESHARD_BF16, RESHARD_F8_E4M3, RESHARD_F8_E5M2};

/* Dtypes of both sides where a case converts, by a generator of its own. */
static void draw_cast(case_plan *c, int64_t i, const case_choices *choices, case_entry *e) {
  reshard_dtype fixed = choices->dst_dtype;
  rng own;
  rng_seed(&own, c->seed ^ 0x63617374u);
  if (!rng_one_in(&own, 3) && fixed == RESHARD_DTYPE_NONE)
    return;
  rng_seed(&own, rng_next(&own) + (uint64_t)i);
  if (i > 0 && rng_one_in(&own, 4) && fixed == RESHARD_DTYPE_NONE)
    return;
  e->dtype = case_numbers[rng_below(&own, CASE_NUMBERS)];
  e->dtype = choices->dtype != RESHARD_DTYPE_NONE ? choices->dtype : e->dtype;
  e->dst_dtype = fixed != RESHARD_DTYPE_NONE ? fixed : case_numbers[rng_below(&own, CASE_NUMBERS)];
  c->casts = c->casts || e->dtype != e->dst_dtype;
}

void case_stamp(const case_entry *e, uint64_t key, int64_t index, unsigned char *bytes) {
  oracle_stamp(key, index, reshard_dtype_size(e->dtype), bytes);
  bool scaled = e->scales != RESHARD_DTYPE_NONE;
  if (e->dtype == e->dst_dtype || (key + (uint64_t)index) % (scaled ? 61 : 3) == 0)
    return;
  double wide = (double)((int64_t)(rng_mix(key ^ (uint64_t)index) % 4096) - 2048) / 64;
  float narrow = (float)wide;
  if (e->dtype == RESHARD_F64)
    memcpy(bytes, &wide, sizeof wide);
  if (e->dtype == RESHARD_F32)
    memcpy(bytes, &narrow, sizeof narrow);
  if (scaled && e->dtype != RESHARD_F32 && e->dtype != RESHARD_F8_E4M3) { /* beside what is infinite the rest is 0 */
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    uint64_t half = naive_cast(RESHARD_F32, e->dtype, bits);
    memcpy(bytes, &half, reshard_dtype_size(e->dtype));
  }
}

static int64_t finish_entry(case_plan *c, case_entry *e) {
  /* The narrower travels. */
  int64_t from = (int64_t)reshard_dtype_size(e->dtype), width = rs_min(from, (int64_t)reshard_dtype_size(e->dst_dtype));
  int64_t bytes = width;
  for (int d = 0; d < e->src.described.ndim; d++)
    bytes *= e->region.src_extent[d];
  bool scaled = e->scales != RESHARD_DTYPE_NONE;
  c->scaled = c->scaled || scaled;
  c->reversible = c->reversible && !scaled && is_reversible(e);
  oracle_counts plain = {{0}, {0}, {0}}, *counts = scaled ? &plain : &c->counts;
  oracle_counts before = *counts;
  oracle_reshard(&e->src.described, &e->src.buffers, &e->dst.described, &e->dst.buffers, &e->region, width, counts);
  if (scaled)
    return case_count_scaled(c, e);
  for (int64_t r = 0; r < c->world; r++) {
    int64_t sent = counts->lacked[r] - before.lacked[r], read = sent / width * from;
    c->least.lacked[r] += read;
    c->most.lacked[r] += read;
    c->mixed_least.lacked[r] += sent; /* the narrower */
    c->mixed_most.lacked[r] += read;
  }
  return bytes;
}

/* Elements that an entry has at least: so many that a limit near the least, 256 bytes for each pair of ranks, makes
 * several rounds. Most cases of small worlds, few of others; as draw_limit, by a generator of its own. To replicas a
 * fourth does: every one of them receives it. */
static int64_t draw_least_size(const case_plan *c, int64_t fixed, bool replicas, reshard_dtype dtype) {
  rng own;
  rng_seed(&own, c->seed ^ 0x6c61726765u);
  bool large = c->world <= 8 ? !rng_one_in(&own, 16) : c->world <= 16 && rng_one_in(&own, 16);
  int64_t drawn = large ? (c->world <= 4 ? 2 : 1) * LEAST_OF_PEER * c->world * c->world / (replicas ? 4 : 1) : 1;
  return (fixed > 0 ? fixed : drawn) / c->nentries / (int64_t)reshard_dtype_size(dtype);
}

bool case_make(uint64_t seed, const case_choices *fixed, case_plan *c, rs_text *why) {
  rng r, of_topology;
  rng_seed(&r, seed ^ 0x7265736861726421u);
  *c = (case_plan){.seed = seed, .reversible = true};
  c->world = draw_world(&r);
  if (fixed->ranks > 0)
    c->world = fixed->ranks;
  int64_t few = rng_below(&r, 10);
  c->nentries = few < 6 ? 1 : few < 9 ? rng_in(&r, 2, 4) : rng_one_in(&r, 20) ? 0 : rng_in(&r, 5, 12);
  c->entry = cli_alloc(c->nentries, sizeof *c->entry);
  bool domains = seed_topology(c, fixed, &of_topology), replicas = domains && !rng_one_in(&of_topology, 16);
  int64_t most = rng_one_in(&r, 60) && c->world <= 16 ? 50000 : 2000;
  int64_t of_block = rs_max(1, fixed->scaled.rows * fixed->scaled.columns); /* by which shapes are multiplied */
  uint64_t *seeds = cli_alloc(c->nentries, sizeof *seeds);
  int64_t *sizes = cli_alloc(c->nentries, sizeof *sizes), *least = cli_alloc(c->nentries, sizeof *least);
  bool right = true;
  for (int64_t i = 0; i < c->nentries && right; i++) {
    case_entry *e = &c->entry[i];
    snprintf(e->name, sizeof e->name, "t%lld", (long long)i);
    int64_t twin = i > 0 && rng_one_in(&r, 3) ? rng_below(&r, i) : -1; /* an entry equal to an earlier one */
    seeds[i] = twin >= 0 ? seeds[twin] : rng_next(&r);
    sizes[i] =
        twin >= 0 ? sizes[twin] : (rng_one_in(&r, 2) ? rng_log(&r, most) : rng_in(&r, 1, most)) / c->nentries + 1;
    e->dtype = twin >= 0 && rng_one_in(&r, 2) ? c->entry[twin].dtype : draw_dtype(&r);
    e->dst_dtype = e->dtype;
    if (fixed->scaled.rows > 0)
      case_fix_scaled(c, i, fixed, e);
    else if (fixed->casts)
      draw_cast(c, i, fixed, e);
    if (fixed->blocks && fixed->dst_dtype == RESHARD_DTYPE_NONE)
      case_draw_scaled(c, i, domains ? 24 : 3, e); /* blocks are not passed on */
    least[i] = twin >= 0 ? least[twin] : draw_least_size(c, fixed->bytes, replicas, e->dtype);
    right = make_entry(seeds[i], c->world, rs_max(1, sizes[i] / of_block), least[i] / of_block, replicas, e, why);
    if (right && twin >= 0 && rng_one_in(&r, 2) && reshard_layout_equal(e->src.layout, c->entry[twin].src.layout)) {
      reshard_layout_release(e->src.layout);
      e->src.layout = reshard_layout_retain(c->entry[twin].src.layout);
    }
    if (right)
      c->bytes += finish_entry(c, e);
  }
  free(seeds);
  free(sizes);
  free(least);
  draw_options(&r, fixed->rounds, c);
  if (right && domains)
    draw_topology(&of_topology, fixed, c);
  if (right && c->scaled && c->options.workspace_limit > 0)
    raise_limit(c);
  if (!right)
    case_free(c);
  return right;
}

static void free_side(case_side *side, int64_t world) {
  case_describe_free(&side->described);
  oracle_buffers_free(&side->buffers, world);
  oracle_buffers_free(&side->scales, world);
  oracle_buffers_free(&side->places, world);
  reshard_layout_release(side->layout);
  free(side->text);
}

void case_free(case_plan *c) {
  for (int64_t i = 0; i < c->nentries; i++) {
    free_side(&c->entry[i].src, c->world);
    free_side(&c->entry[i].dst, c->world);
  }
  free(c->entry);
  c->entry = NULL;
  c->nentries = 0;
}

reshard_entry *case_entries(const case_plan *c) {
  reshard_entry *entries = cli_alloc(c->nentries, sizeof *entries);
  for (int64_t i = 0; i < c->nentries; i++) {
    const case_entry *e = &c->entry[i];
    const oracle_region *g = &e->region;
    entries[i] = (reshard_entry){
        .size = RESHARD_ENTRY_INIT,
        .src = e->src.layout,
        .dst = e->dst.layout,
        .dtype = e->dtype,
        .dst_dtype = c->seed % 2 == 0 && e->dst_dtype == e->dtype ? RESHARD_DTYPE_NONE : e->dst_dtype,
        .src_offset = e->given & GIVEN_SRC_OFFSET ? g->src_offset : NULL,
        .src_extent = e->given & GIVEN_SRC_EXTENT ? g->src_extent : NULL,
        .dst_offset = e->given & GIVEN_DST_OFFSET ? g->dst_offset : NULL,
        .dst_extent = e->given & GIVEN_DST_EXTENT ? g->dst_extent : NULL,
        .permutation = e->given & GIVEN_PERMUTATION ? g->permutation : NULL,
        .name = e->given & GIVEN_NAME ? e->name : NULL,
        .block = e->scales != RESHARD_DTYPE_NONE ? e->block : NULL,
        .scale_dtype = e->scales == RESHARD_F32 && c->seed % 2 == 0 ? RESHARD_DTYPE_NONE : e->scales,
    };
  }
  return entries;
}
