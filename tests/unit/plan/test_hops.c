/* Plans that pass bytes on within domains and between them, played without a communicator. Each rank has the numbers of
 * its elements, and fills its messages from what it has by then, round after round. The far end reads them in its own
 * order. So bytes that have not come, come twice or stand elsewhere are found, and a domain that a byte enters twice.
 * Pieces, rounds and limits are computed here anew, from the rules. */
#include "bench/verify/case_make.h"
#include "plan/hops.h"
#include "plan/messages.h"
#include "support/fixtures/case.h"
#include "support/fixtures/layouts.h"
#include "support/fixtures/scale.h"

#include <stdlib.h>
#include <string.h>

#define SHAPE(...) \
  ((int)(sizeof(int64_t[]){__VA_ARGS__} / sizeof(int64_t))), (const int64_t[]) { __VA_ARGS__ }

enum { LACKS = -3, KEEPS = -2 }; /* elements that have not come, and those that the rank keeps */

/* The buffers of a rank for an entry: source elements by number, and the same of what has come. */
typedef struct played_side {
  int64_t buffers, arrays;
  reshard_array_info *info;
  int64_t **at;
} played_side;

typedef struct played_world {
  const case_plan *c;
  const reshard_plan *plans;
  const int64_t *domain;
  played_side *src, *dst;                                           /* [rank * nentries + entry] */
  int64_t world, streams, rounds, overlap, hops, limit, fine, step; /* overlap: rounds from one hop to the next */
  int64_t *entered; /* [domain][entry's elements], one entry after the other: how often one came in */
  int64_t *base;    /* [nentries + 1] */
} played_world;

/* Elements of a stream on one of its ends, in order: where they are, and how wide on the wire. */
typedef struct played_element {
  int64_t *at, entry;
} played_element;
typedef struct played_stream {
  played_element *element;
  int64_t n, *offset; /* bytes before each, and in all */
} played_stream;

/* One end of a message, on its way through the rounds. */
typedef struct played_end {
  int64_t peer;
  int hop;
  played_stream stream;
} played_end;
typedef struct played_rank {
  played_end *sends, *receives;
  int64_t nsends, nreceives;
} played_rank;

static played_side make_side(const case_side *side, int64_t rank, bool fill) {
  const oracle_buffer *b = &side->buffers.buffer[side->buffers.first[rank]];
  played_side s = {.buffers = side->buffers.first[rank + 1] - side->buffers.first[rank]};
  assert_int_equal(reshard_layout_array_count(side->layout, rank, &s.arrays), RESHARD_SUCCESS);
  s.info = cli_alloc(rs_max(1, s.arrays), sizeof *s.info);
  s.at = cli_alloc(rs_max(1, s.buffers), sizeof *s.at);
  for (int64_t a = 0; a < s.arrays; a++)
    assert_int_equal(reshard_layout_array(side->layout, rank, a, &s.info[a]), RESHARD_SUCCESS);
  for (int64_t k = 0; k < s.buffers; k++) {
    s.at[k] = cli_alloc(rs_max(1, b[k].n), sizeof **s.at);
    for (int64_t e = 0; e < b[k].n; e++)
      s.at[k][e] = fill ? b[k].index[e] : LACKS;
  }
  return s;
}

static void free_side(played_side *s) {
  for (int64_t k = 0; k < s->buffers; k++)
    free(s->at[k]);
  free(s->at);
  free(s->info);
}

/* Index that a run list has at a position. */
static int64_t at_position(const rs_span_list *list, int64_t p, bool asks) {
  const rs_run *run = list->runs;
  while (p >= run->n)
    p -= run++->n;
  return (asks ? run->ask : run->held) + p;
}

/* Adds the elements of a segment, row-major by the axes, as they lie in a side's arrays. */
static void add_segment(const rs_class *c, const rs_side *side, rs_route route, const rs_segment *s, bool of_source,
                        const played_side *mine, int64_t entry, played_stream *out) {
  rs_geometry g;
  int64_t array = of_source ? s->src_array : s->dst_array, at[RS_MAX_AXES] = {0}, count[RS_MAX_AXES];
  const reshard_array_info *info = &mine->info[array];
  rs_segment_geometry(c, side, route, s, &g);
  for (int a = 0; a < g.naxes; a++)
    count[a] = a == g.cut ? rs_segment_rows(s, &g) : g.axis[a].length;
  for (int64_t e = 0; e < s->elements; e++) {
    int64_t linear = info->offset;
    for (int a = 0; a < g.naxes; a++) {
      int d = of_source ? c->space.src_dim[a] : c->space.dst_dim[a];
      if (d >= 0)
        linear +=
            at_position(&g.axis[a], at[a] + (a == g.cut ? s->begin : 0), g.src_asks == of_source) * info->strides[d];
    }
    out->element[out->n] = (played_element){&mine->at[info->buffer][linear], entry};
    out->offset[out->n + 1] = out->offset[out->n] + c->wire.width;
    out->n++;
    for (int a = g.naxes - 1; a >= 0 && ++at[a] == count[a]; a--)
      at[a] = 0;
  }
}

/* The elements of a stream that a rank sends from its source, or from its destination; or receives. */
static played_stream list_stream(const played_world *w, int64_t rank, int64_t number, bool of_source) {
  const struct reshard_plan_s *plan = w->plans[rank];
  const rs_hops *h = plan->hops;
  const rs_stream *s = &h->streams.at[number];
  int64_t elements = 0;
  for (int64_t i = 0; i < plan->nentries; i++) {
    const rs_message *m = rs_side_message(rs_stream_side(s, &h->classes[plan->entries[i].class_]), number);
    elements += m != NULL ? m->elements : 0;
  }
  played_stream out = {cli_alloc(elements, sizeof(played_element)), 0, cli_alloc(elements + 1, sizeof(int64_t))};
  out.offset[0] = 0;
  for (int64_t i = 0; i < plan->nentries; i++) {
    int64_t entry = plan->order[i];
    const rs_class *c = &h->classes[plan->entries[entry].class_];
    const rs_side *side = rs_stream_side(s, c);
    const rs_message *m = rs_side_message(side, number);
    const played_side *mine = &(of_source ? w->src : w->dst)[rank * w->c->nentries + entry];
    rs_route route = {s->holder, s->from_here ? s->taker : rank};
    for (int64_t k = 0; m != NULL && k < m->count; k++)
      add_segment(c, side, route, &m->segments[k], of_source, mine, entry, &out);
  }
  assert_int_equal(out.offset[out.n], s->bytes);
  return out;
}

static played_end *list_ends(const played_world *w, int64_t rank, bool sending, int64_t *n) {
  const rs_hops *h = w->plans[rank]->hops;
  const rs_stream_end *ends = sending ? h->sends.at : h->receives.at;
  *n = sending ? h->sends.n : h->receives.n;
  played_end *out = cli_alloc(rs_max(1, *n), sizeof *out);
  for (int64_t i = 0; i < *n; i++) {
    assert_true(ends[i].peer != rank && (i == 0 || ends[i - 1].peer <= ends[i].peer));
    out[i] = (played_end){ends[i].peer, ends[i].hop, list_stream(w, rank, ends[i].stream, sending && ends[i].hop == 0)};
  }
  return out;
}

/* Round of piece i of n, in the first hop. */
static int64_t round_of(const played_world *w, int64_t i, int64_t n) { return (2 * i + 1) * w->rounds / (2 * n); }

/* Elements [begin, end) of a stream that travel in a round; none where begin == end. *last: its last ones. */
static void piece_of(const played_world *w, const played_end *e, int64_t round, int64_t *begin, int64_t *end,
                     bool *last) {
  const played_stream *s = &e->stream;
  int64_t bytes = s->offset[s->n], n = w->rounds <= 1 ? 1 : rs_min(w->rounds, rs_max(1, bytes / w->fine)), piece = 0,
          high = n, steps = (bytes + w->step - 1) / w->step, cut[2];
  RS_LOWER_BOUND(piece, high, round_of(w, i, n) + e->hop * w->overlap < round);
  *begin = *end = 0;
  *last = piece + 1 == n;
  if (piece == n || round_of(w, piece, n) + e->hop * w->overlap != round)
    return;
  for (int64_t k = 0; k < 2; k++) {
    int64_t i = piece + k, low = 0, top = s->n;
    cut[k] = i == n ? bytes : (i * (steps / n) + rs_min(i, steps % n)) * w->step;
    RS_LOWER_BOUND(low, top, s->offset[i] < cut[k]);
    assert_int_equal(s->offset[low], cut[k]); /* no element is cut */
    *(k == 0 ? begin : end) = low;
  }
}

/* The elements of the message of a round, in its order: last pieces of streams come after all others. */
static int64_t list_message(const played_world *w, const played_end *ends, int64_t n, int64_t peer, int64_t round,
                            played_element *out, int64_t *bytes) {
  int64_t count = 0, first = 0, high = n;
  *bytes = 0;
  RS_LOWER_BOUND(first, high, ends[i].peer < peer);
  for (int late = 0; late < 2; late++)
    for (int64_t i = first; i < n && ends[i].peer == peer; i++) {
      int64_t begin, end;
      bool last;
      piece_of(w, &ends[i], round, &begin, &end, &last);
      if (begin == end || last != late)
        continue;
      memcpy(out + count, ends[i].stream.element + begin, (size_t)(end - begin) * sizeof *out);
      count += end - begin;
      *bytes += ends[i].stream.offset[end] - ends[i].stream.offset[begin];
    }
  return count;
}

/* Moves the messages of one round. All are filled before any is read. */
static void play_round(const played_world *w, const played_rank *ranks, int64_t round, int64_t *staged) {
  int64_t n = w->world, most = 0;
  for (int64_t r = 0; r < n; r++) {
    int64_t sum = 0;
    for (int64_t i = 0; i < ranks[r].nsends; i++)
      sum += ranks[r].sends[i].stream.n;
    for (int64_t i = 0; i < ranks[r].nreceives; i++)
      sum += ranks[r].receives[i].stream.n;
    most = rs_max(most, sum);
  }
  played_element *out = cli_alloc(most + 1, sizeof *out);
  int64_t **value = cli_alloc(n * n, sizeof *value), *count = cli_alloc(n * n, sizeof *count),
          *length = cli_alloc(n * n, sizeof *length);
  for (int64_t i = 0; i < n * n; i++) {
    int64_t from = i / n;
    count[i] = list_message(w, ranks[from].sends, ranks[from].nsends, i % n, round, out, &length[i]);
    value[i] = cli_alloc(count[i] + 1, sizeof **value);
    staged[from] += length[i];
    for (int64_t k = 0; k < count[i]; k++) {
      value[i][k] = *out[k].at;
      if (value[i][k] < 0)
        fail_msg("seed %llu: in round %lld rank %lld sends rank %lld an element of entry %lld that it does not have",
                 (unsigned long long)w->c->seed, (long long)round, (long long)from, (long long)(i % n),
                 (long long)out[k].entry);
    }
  }
  for (int64_t i = 0; i < n * n; i++) {
    int64_t from = i / n, to = i % n, bytes;
    int64_t got = list_message(w, ranks[to].receives, ranks[to].nreceives, from, round, out, &bytes);
    if (got != count[i] || bytes != length[i])
      fail_msg("seed %llu: in round %lld rank %lld sends %lld bytes to rank %lld, which expects %lld",
               (unsigned long long)w->c->seed, (long long)round, (long long)from, (long long)length[i], (long long)to,
               (long long)bytes);
    staged[to] += bytes;
    for (int64_t k = 0; k < got; k++) {
      if (*out[k].at != LACKS)
        fail_msg("seed %llu: an element of entry %lld comes to rank %lld twice, or is its own",
                 (unsigned long long)w->c->seed, (long long)out[k].entry, (long long)to);
      *out[k].at = value[i][k];
      if (w->domain[from] != w->domain[to])
        w->entered[w->domain[to] * w->base[w->c->nentries] + w->base[out[k].entry] + value[i][k]]++;
    }
    free(value[i]);
  }
  free(out);
  free(value);
  free(count);
  free(length);
}

/* Marks the elements that the rank keeps: they are there from the start. */
static void keep_own(played_world *w, int64_t rank) {
  const struct reshard_plan_s *plan = w->plans[rank];
  for (int64_t i = 0; i < plan->nentries; i++) {
    const rs_class *c = &plan->classes.at[plan->entries[i].class_];
    const rs_message *m = rs_side_message(&c->send, rank);
    const played_side *mine = &w->dst[rank * w->c->nentries + i];
    for (int64_t k = 0; m != NULL && k < m->count; k++) {
      int64_t n = m->segments[k].elements;
      played_stream kept = {cli_alloc(n, sizeof(played_element)), 0, cli_alloc(n + 1, sizeof(int64_t))};
      kept.offset[0] = 0;
      add_segment(c, &c->send, (rs_route){rank, rank}, &m->segments[k], false, mine, i, &kept);
      for (int64_t e = 0; e < kept.n; e++)
        *kept.element[e].at = KEEPS;
      free(kept.element);
      free(kept.offset);
    }
  }
}

/* All has come, from where the oracle has it. */
static void check_arrived(const played_world *w, int64_t rank) {
  for (int64_t i = 0; i < w->c->nentries; i++) {
    const case_side *side = &w->c->entry[i].dst;
    const played_side *mine = &w->dst[rank * w->c->nentries + i];
    for (int64_t k = 0; k < mine->buffers; k++) {
      const oracle_buffer *b = &side->buffers.buffer[side->buffers.first[rank] + k];
      for (int64_t e = 0; e < b->n; e++) {
        int64_t should = b->index[e], is = mine->at[k][e];
        if (should < 0 ? is != LACKS : is != should && is != KEEPS)
          fail_msg("seed %llu: entry %lld, buffer %lld of rank %lld: element %lld is %lld, should be %lld",
                   (unsigned long long)w->c->seed, (long long)i, (long long)k, (long long)rank, (long long)e,
                   (long long)is, (long long)should);
      }
    }
  }
}

/* A byte enters a domain that lacks it once, and no other. Boxes that overlap are not passed on. */
static void check_entered(const played_world *w, int64_t domains) {
  for (int64_t i = 0; i < w->c->nentries; i++) {
    const rs_class *c = &w->plans[0]->classes.at[w->plans[0]->entries[i].class_];
    int64_t n = w->base[i + 1] - w->base[i];
    uint64_t *src = cli_alloc(n + 1, sizeof *src), *dst = cli_alloc(n + 1, sizeof *dst);
    mark_ranks(&w->c->entry[i].src.buffers, w->world, src);
    mark_ranks(&w->c->entry[i].dst.buffers, w->world, dst);
    for (int64_t e = 0; e < n && rs_class_passes(c); e++) {
      uint64_t has = 0, lacks = 0;
      for (int64_t r = 0; r < w->world; r++) {
        has |= src[e] >> r & 1 ? (uint64_t)1 << w->domain[r] : 0;
        lacks |= dst[e] >> r & 1 ? (uint64_t)1 << w->domain[r] : 0;
      }
      for (int64_t d = 0; d < domains; d++) {
        int64_t is = w->entered[d * w->base[w->c->nentries] + w->base[i] + e], should = (lacks & ~has) >> d & 1;
        if (is != should)
          fail_msg("seed %llu: element %lld of entry %lld enters domain %lld %lld times, should %lld",
                   (unsigned long long)w->c->seed, (long long)e, (long long)i, (long long)d, (long long)is,
                   (long long)should);
      }
    }
    free(src);
    free(dst);
  }
}

/* The terms that all ranks agree on. */
static void agree(played_world *w) {
  reshard_plan_info info;
  for (int64_t r = 0; r < w->world; r++) {
    assert_int_equal(reshard_plan_get_info(w->plans[r], &info), RESHARD_SUCCESS);
    w->streams = rs_max(w->streams, info.streams);
    w->hops = rs_max(w->hops, info.hops);
    assert_int_equal(info.later_rounds, w->overlap * (info.hops - 1));
    w->limit = info.workspace_limit == RESHARD_NO_LIMIT ? INT64_MAX : info.workspace_limit;
  }
  for (int64_t r = 0; r < w->world; r++) {
    assert_int_equal(reshard_plan_get_info_at(w->plans[r], 0, w->streams, &info), RESHARD_SUCCESS);
    w->rounds = rs_max(w->rounds, info.rounds);
  }
  int64_t share = w->limit / 8 / rs_max(w->streams, 2 * w->world);
  w->step = share >= 256 ? 256 : 16;
  w->fine = rs_min(256 << 10, share / w->step * w->step);
}

static void play_world(played_world *w, int64_t domains, bool on_cpu) {
  int64_t n = w->c->nentries, world = w->world;
  w->base = cli_alloc(n + 1, sizeof *w->base);
  for (int64_t i = 0; i < n; i++) {
    int64_t elements = 1;
    for (int d = 0; d < w->c->entry[i].src.described.ndim; d++)
      elements *= w->c->entry[i].src.described.shape[d];
    w->base[i + 1] = w->base[i] + elements;
  }
  w->entered = cli_alloc(domains * w->base[n] + 1, sizeof *w->entered);
  w->src = cli_alloc(world * n, sizeof *w->src);
  w->dst = cli_alloc(world * n, sizeof *w->dst);
  played_rank *ranks = cli_alloc(world, sizeof *ranks);
  agree(w);
  for (int64_t r = 0; r < world; r++) {
    for (int64_t i = 0; i < n; i++) {
      w->src[r * n + i] = make_side(&w->c->entry[i].src, r, true);
      w->dst[r * n + i] = make_side(&w->c->entry[i].dst, r, false);
    }
    keep_own(w, r);
    ranks[r].sends = list_ends(w, r, true, &ranks[r].nsends);
    ranks[r].receives = list_ends(w, r, false, &ranks[r].nreceives);
  }
  int64_t *staged = cli_alloc(2 * world, sizeof *staged), *before = staged + world;
  for (int64_t round = 0; round < w->rounds + w->overlap * (w->hops - 1); round++) {
    memcpy(before, staged, (size_t)world * sizeof *staged);
    memset(staged, 0, (size_t)world * sizeof *staged);
    play_round(w, ranks, round, staged);
    for (int64_t r = 0; r < world && on_cpu; r++) /* on GPUs receivers share what is sent alike */
      if (staged[r] > w->limit)
        fail_msg("seed %llu: rank %lld stages %lld bytes in round %lld, the limit is %lld",
                 (unsigned long long)w->c->seed, (long long)r, (long long)staged[r], (long long)round,
                 (long long)w->limit);
  }
  for (int64_t r = 0; r < world; r++)
    check_arrived(w, r);
  check_entered(w, domains);
  for (int64_t r = 0; r < world; r++) {
    for (int64_t i = 0; i < ranks[r].nsends + ranks[r].nreceives; i++) {
      played_end *e = i < ranks[r].nsends ? &ranks[r].sends[i] : &ranks[r].receives[i - ranks[r].nsends];
      free(e->stream.element);
      free(e->stream.offset);
    }
    free(ranks[r].sends);
    free(ranks[r].receives);
    for (int64_t i = 0; i < n; i++) {
      free_side(&w->src[r * n + i]);
      free_side(&w->dst[r * n + i]);
    }
  }
  free(staged);
  free(ranks);
  free(w->src);
  free(w->dst);
  free(w->entered);
  free(w->base);
}

/* Domains of ranks that are neighbours, or not; returns how many. */
static int64_t draw_domains(rng *r, int64_t world, int64_t *of) {
  int64_t size = rng_in(r, 1, world), count = (world + size - 1) / size, n = 0, number[ORACLE_WORLD];
  bool mixed = rng_one_in(r, 3);
  for (int64_t d = 0; d < count; d++)
    number[d] = -1;
  for (int64_t i = 0; i < world; i++) {
    int64_t *d = &number[mixed ? rng_below(r, count) : i / size];
    *d = *d < 0 ? n++ : *d;
    of[i] = *d;
  }
  return n;
}

/* Cases in which bytes were passed on, took several rounds, came in several slices, or from domain to domain. */
typedef struct played_counts {
  int64_t passed, rounds, slices, chained, refused;
} played_counts;

/* A mesh of `replicas` x `parts` ranks from one on, which cuts a dim. */
static void describe_mesh(const int64_t *shape, int64_t world, int64_t from, int64_t replicas, int64_t parts, int dim,
                          oracle_layout *out) {
  *out = (oracle_layout){.kind = RESHARD_LAYOUT_MESH, .ndim = 2, .world = world, .nranks = replicas * parts};
  memcpy(out->shape, shape, 2 * sizeof *shape);
  for (int64_t i = 0; i < out->nranks; i++)
    out->ranks[i] = from + i;
  out->mesh_ndim = 2;
  out->mesh[0] = replicas;
  out->mesh[1] = parts;
  out->placement[1] = (reshard_placement){.kind = RESHARD_PLACEMENT_SHARD, .dim = dim};
  out->order[1] = 1;
}

static void make_engine_side(case_side *side, rng *r) {
  assert_int_equal(case_build(r, &side->described, &side->layout, &side->text), RESHARD_SUCCESS);
  oracle_evaluate(&side->described, &side->buffers);
}

/* Trainers to engines that are replicas, of a megabyte or so: a unit is worth several slices. */
static void make_engines(uint64_t seed, case_plan *c) {
  static const reshard_dtype dtypes[] = {RESHARD_C128, RESHARD_F64, RESHARD_F32};
  rng r;
  rng_seed(&r, seed);
  int64_t trainers = rng_in(&r, 1, 4), copies = rng_in(&r, 1, 2), replicas = rng_in(&r, 2, 5), parts = rng_in(&r, 1, 2);
  *c = (case_plan){.seed = seed, .nentries = rng_in(&r, 1, 3), .options = RESHARD_PLAN_OPTIONS_DEFAULTS};
  c->world = trainers * copies + replicas * parts;
  c->options.workspace_limit = rng_one_in(&r, 2) ? 256 * c->world + rng_log(&r, 1 << 20) : RESHARD_NO_LIMIT;
  c->entry = cli_alloc(c->nentries, sizeof *c->entry);
  for (int64_t i = 0; i < c->nentries; i++) {
    case_entry *e = &c->entry[i];
    e->dtype = e->dst_dtype = dtypes[rng_below(&r, 3)];
    int64_t shape[2] = {rng_in(&r, 1, 300), 1}, width = (int64_t)reshard_dtype_size(e->dtype);
    shape[1] = (rng_in(&r, 1, 3) << 19) / width / shape[0];
    describe_mesh(shape, c->world, 0, copies, trainers, (int)rng_below(&r, 2), &e->src.described);
    describe_mesh(shape, c->world, trainers * copies, replicas, parts, (int)rng_below(&r, 2), &e->dst.described);
    make_engine_side(&e->src, &r);
    make_engine_side(&e->dst, &r);
    for (int d = 0; d < 2; d++) {
      e->region.src_extent[d] = e->region.dst_extent[d] = shape[d];
      e->region.permutation[d] = d;
    }
    oracle_reshard(&e->src.described, &e->src.buffers, &e->dst.described, &e->dst.buffers, &e->region, width,
                   &c->counts);
    c->bytes += shape[0] * shape[1] * width;
  }
}

static void check_case(uint64_t seed, bool engines, played_counts *counts) {
  case_choices fixed = {.casts = true};
  case_plan c;
  rs_text why = {0};
  rng r;
  int64_t domain[ORACLE_WORLD];
  if (engines)
    make_engines(seed, &c);
  else if (!case_make(seed, &fixed, &c, &why))
    fail_msg("seed %llu: %s", (unsigned long long)seed, why.at);
  rng_seed(&r, seed ^ 0x686f7073u);
  reshard_topology topology = RESHARD_TOPOLOGY_DEFAULTS;
  topology.ranks = c.world;
  topology.domain = domain;
  int64_t domains = draw_domains(&r, c.world, domain);
  topology.chains = rng_one_in(&r, 2) ? domains : rng_in(&r, 1, domains);
  topology.round_ns = rng_log(&r, 30000);
  reshard_plan_options options = c.options;
  options.nodes = NULL;
  options.topology = &topology;
  options.on_cpu = (int)rng_below(&r, 2);
  reshard_entry *entries = case_entries(&c);
  reshard_plan *plans = cli_alloc(c.world, sizeof *plans), *all = cli_alloc(c.world, sizeof *all);
  reshard_status status = RESHARD_SUCCESS;
  if (c.nentries == 0)
    goto done;
  while ((status = reshard_plan_create_all(c.nentries, entries, c.world, NULL, &options, all)) != RESHARD_SUCCESS) {
    assert_int_equal(status, RESHARD_ERROR_INVALID); /* a limit that is too small for so many streams */
    assert_non_null(strstr(reshard_last_error(), "streams that are passed on"));
    options.workspace_limit += options.workspace_limit / 4 + 1;
    counts->refused++;
  }
  for (int64_t k = 0; k < c.world; k++) {
    reshard_plan_info mine, his;
    assert_int_equal(reshard_plan_create(c.nentries, entries, k, &options, &plans[k]), RESHARD_SUCCESS);
    assert_int_equal(reshard_plan_get_info(plans[k], &mine), RESHARD_SUCCESS);
    assert_int_equal(reshard_plan_get_info(all[k], &his), RESHARD_SUCCESS);
    assert_true(mine.streams == his.streams && mine.rounds == his.rounds && mine.peers == his.peers &&
                mine.sent_bytes == his.sent_bytes && mine.messages_sent == his.messages_sent &&
                mine.workspace_bytes == his.workspace_bytes && mine.hops == his.hops);
    c.options.workspace_limit = options.workspace_limit;
    case_check_plan(&c, k, plans[k], &mine, &why);
    reshard_plan_destroy(all[k]);
  }
  if (why.length > 0)
    fail_msg("seed %llu: %s", (unsigned long long)seed, why.at);
  played_world w = {.c = &c, .plans = plans, .domain = domain, .world = c.world, .overlap = options.on_cpu ? 1 : 2};
  bool passed = false, slices = false;
  for (int64_t k = 0; k < c.world; k++) {
    const rs_hops *h = plans[k]->hops;
    passed = passed || h->longest > 0;
    for (int64_t i = 1; i < h->streams.n; i++) /* of one holder, to two of a group */
      slices = slices || (!h->streams.at[i].from_here && h->streams.at[i].group > 0 &&
                          h->streams.at[i].group == h->streams.at[i - 1].group &&
                          h->streams.at[i].holder == h->streams.at[i - 1].holder);
  }
  if (passed || seed % 16 == 0) /* the others are as without a topology */
    play_world(&w, domains, options.on_cpu);
  counts->passed += passed;
  counts->slices += slices;
  counts->rounds += passed && w.rounds > 1;
  counts->chained += w.hops > 2;
  for (int64_t k = 0; k < c.world; k++)
    reshard_plan_destroy(plans[k]);
done:
  free(entries);
  free(plans);
  free(all);
  case_free(&c);
}

CASE(bytes_enter_a_domain_once_and_are_sent_only_after_they_came) {
  played_counts counts = {0};
  int64_t n = (int64_t)(300 * test_scale());
  for (int64_t i = 0; i <= n; i++)
    check_case(800000 + (uint64_t)i, false, &counts);
  print_message("%lld of %lld cases pass bytes on, %lld in several rounds, %lld from domain to domain; %lld limits "
                "were too small\n",
                (long long)counts.passed, (long long)n, (long long)counts.rounds, (long long)counts.chained,
                (long long)counts.refused);
  assert_true(n < 300 || (counts.passed > n / 30 && counts.rounds > n / 100));
}

CASE(large_arrays_enter_a_domain_in_slices_of_several_takers) {
  played_counts counts = {0};
  int64_t n = (int64_t)(8 * test_scale());
  for (int64_t i = 0; i <= n; i++)
    check_case(900000 + (uint64_t)i, true, &counts);
  print_message("%lld of %lld cases pass bytes on, %lld in slices\n", (long long)counts.passed, (long long)n,
                (long long)counts.slices);
  assert_true(n < 8 || counts.slices > n / 4);
}

/* Several hundred domains, of which both ends count the places of slices: what one sends the other expects. Of those
 * with one receiver the first may have the highest, and one with two the lowest: their places are not to be counted. */
CASE(both_ends_of_large_worlds_agree_on_bytes) {
  enum { WORLD = 512 };
  static const char *const sides[][2] = {{"mesh(4x8@0-31;R,S0)", "mesh(240x2@32-511;R,S1)"},
                                         {"mesh(2x16@0-31;R,S0)", "mesh(480@32-511;R)"},
                                         {"mesh(8x64;R,S0)", "mesh(512;R)"}};
  const int64_t shape[2] = {512, 8192};
  int64_t domain[WORLD], *sent = cli_alloc(WORLD * WORLD, sizeof *sent);
  for (size_t i = 0; i < 3 * sizeof sides / sizeof *sides; i++) {
    for (int64_t r = 0; r < WORLD; r++)
      domain[r] = i % 3 < 2 ? r / 3 : r == WORLD - 1 ? 2 : r == 32 || r == 33 ? 3 : r;
    reshard_topology topology = RESHARD_TOPOLOGY_DEFAULTS;
    topology.ranks = WORLD;
    topology.domain = domain;
    topology.chains = i % 3 == 0 ? RESHARD_NO_CHAINS : 150;
    reshard_plan_options options = {RESHARD_PLAN_OPTIONS_INIT, .topology = &topology};
    reshard_layout src = layout_from_text(sides[i / 3][0], 2, shape, WORLD),
                   dst = layout_from_text(sides[i / 3][1], 2, shape, WORLD);
    reshard_entry entry = {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_F32};
    memset(sent, 0, WORLD * WORLD * sizeof *sent);
    for (int64_t r = 0; r < WORLD; r++) {
      reshard_plan plan;
      reshard_plan_info info;
      assert_int_equal(reshard_plan_create(1, &entry, r, &options, &plan), RESHARD_SUCCESS);
      assert_int_equal(reshard_plan_get_info(plan, &info), RESHARD_SUCCESS);
      for (int64_t k = 0, peer, out, in; k < info.peers; k++) {
        assert_int_equal(reshard_plan_peer(plan, k, &peer, &out, &in), RESHARD_SUCCESS);
        sent[r * WORLD + peer] += out;
        sent[peer * WORLD + r] -= in;
      }
      reshard_plan_destroy(plan);
    }
    for (int64_t k = 0; k < (int64_t)WORLD * WORLD; k++)
      if (sent[k] != 0)
        fail_msg("%s to %s: rank %lld sends rank %lld %lld bytes more than it expects", sides[i / 3][0],
                 sides[i / 3][1], (long long)k / WORLD, (long long)k % WORLD, (long long)sent[k]);
    reshard_layout_release(src);
    reshard_layout_release(dst);
  }
  free(sent);
}

RUN_CASES
