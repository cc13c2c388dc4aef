/* Dry plans of random worlds: the oracle's counts, and rounds from the bytes per peer. Every message is walked element
 * by element on both of its ends. */
#include "bench/verify/case_make.h"
#include "bench/verify/case_run.h"
#include "plan/held.h"
#include "plan/messages.h"
#include "support/fixtures/case.h"
#include "support/fixtures/scale.h"

#include <stdlib.h>
#include <string.h>

/* Index in the rank's arrays that a segment has at position p of an axis. */
static int64_t at_position(const rs_span_list *list, int64_t p, bool asks) {
  const rs_run *run = list->runs;
  while (p >= run->n)
    p -= run++->n;
  return (asks ? run->ask : run->held) + p;
}

/* Walks the elements of a segment in the order in which they travel. Elements are (source array, index there) and
 * (destination array, index there): both ends must see the same. Counts what arrives in the destination's buffers. */
static void walk(const rs_class *c, bool sending, rs_route route, const rs_segment *s, uint64_t *hash,
                 unsigned char *const *arrived) {
  rs_geometry g;
  reshard_array_info src, dst;
  int64_t at[RS_MAX_AXES] = {0}, first[RS_MAX_AXES] = {0}, count[RS_MAX_AXES], elements = 1;
  rs_segment_geometry(c, sending ? &c->send : &c->receive, route, s, &g);
  assert_int_equal(reshard_layout_array(c->src, route.src, s->src_array, &src), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_array(c->dst, route.dst, s->dst_array, &dst), RESHARD_SUCCESS);
  for (int a = 0; a < g.naxes; a++) {
    first[a] = a == g.cut ? s->begin : 0;
    count[a] = a == g.cut ? rs_segment_rows(s, &g) : g.axis[a].length;
    elements *= count[a];
  }
  assert_int_equal(elements, s->elements);
  assert_true(elements > 0);
  for (int64_t e = 0; e < elements; e++) {
    int64_t words[4] = {s->src_array, 0, s->dst_array, 0};
    for (int a = 0; a < g.naxes; a++) {
      int64_t p = first[a] + at[a];
      if (c->space.src_dim[a] >= 0)
        words[1] += at_position(&g.axis[a], p, g.src_asks) * src.strides[c->space.src_dim[a]];
      if (c->space.dst_dim[a] >= 0)
        words[3] += at_position(&g.axis[a], p, !g.src_asks) * dst.strides[c->space.dst_dim[a]];
    }
    *hash = rs_hash(*hash, words, sizeof words);
    if (arrived != NULL)
      arrived[dst.buffer][dst.offset + words[3]]++;
    for (int a = g.naxes - 1; a >= 0 && ++at[a] == count[a]; a--)
      at[a] = 0;
  }
}

/* The sequence of one message, hashed. */
static uint64_t walk_message(reshard_plan plan, const rs_class *c, bool sending, const rs_message *m,
                             unsigned char *const *arrived) {
  uint64_t hash = 1;
  for (int64_t i = 0; i < m->count; i++)
    walk(c, sending, rs_route_of(plan->rank, sending, m->peer), &m->segments[i], &hash, arrived);
  return hash;
}

/* One entry in all plans: every message is the same list of elements on both sides, and every element that a rank needs
 * arrives once. */
static void check_segments(const case_plan *c, const reshard_plan *plans, int64_t entry) {
  const oracle_buffers *want = &c->entry[entry].dst.buffers;
  for (int64_t r = 0; r < c->world; r++) {
    reshard_plan plan = plans[r];
    const rs_class *mine = &plan->classes.at[plan->entries[entry].class_];
    const oracle_buffer *buffer = &want->buffer[want->first[r]];
    int64_t buffers = want->first[r + 1] - want->first[r];
    unsigned char **arrived = cli_alloc(buffers, sizeof *arrived);
    for (int64_t b = 0; b < buffers; b++)
      arrived[b] = cli_alloc(buffer[b].n, 1);
    for (int64_t i = 0; i < mine->receive.messages.n; i++) {
      const rs_message *m = &mine->receive.messages.at[i];
      assert_true(m->peer != r);
      reshard_plan theirs = plans[m->peer];
      const rs_class *other = &theirs->classes.at[theirs->entries[entry].class_];
      const rs_message *sent = rs_side_message(&other->send, r);
      assert_non_null(sent);
      assert_int_equal(sent->elements, m->elements);
      assert_true(walk_message(plan, mine, false, m, arrived) == walk_message(theirs, other, true, sent, NULL));
    }
    const rs_message *kept = rs_side_message(&mine->send, r);
    if (kept != NULL)
      walk_message(plan, mine, true, kept, arrived);
    for (int64_t b = 0; b < buffers; b++) {
      for (int64_t e = 0; e < buffer[b].n; e++)
        if (arrived[b][e] != (buffer[b].index[e] >= 0))
          fail_msg("seed %llu, entry %lld: element %lld of buffer %lld of rank %lld arrives %d times",
                   (unsigned long long)c->seed, (long long)entry, (long long)e, (long long)b, (long long)r,
                   arrived[b][e]);
      free(arrived[b]);
    }
    free(arrived);
  }
}

/* Rounds and messages follow from the limit and the bytes per peer alone. */
static void check_rounds(const case_plan *c, reshard_plan plan) {
  reshard_plan_info info = {0}, more = {0};
  assert_int_equal(reshard_plan_get_info(plan, &info), RESHARD_SUCCESS);
  int64_t limit = info.workspace_limit == RESHARD_NO_LIMIT ? INT64_MAX : info.workspace_limit;
  int64_t share = limit / 16 / c->world, step = share >= 256 ? 256 : 16;
  int64_t fine = share / step * step > 262144 ? 262144 : share / step * step, rounds[2] = {info.rounds, 0};
  rounds[1] = info.rounds + (int64_t)(c->seed % 9);
  assert_true(limit < INT64_MAX ? info.rounds >= (info.peers > 0) : info.rounds == (info.peers > 0));
  assert_true(c->options.workspace_limit <= 0 || limit == c->options.workspace_limit);
  for (int k = 0; k < 2; k++) {
    int64_t sent = 0, received = 0, staged = 0;
    for (int64_t i = 0, peer, out, in; i < info.peers; i++) {
      assert_int_equal(reshard_plan_peer(plan, i, &peer, &out, &in), RESHARD_SUCCESS);
      bool cut = rounds[k] > 1;
      int64_t outs = cut ? out / fine : 1, ins = cut ? in / fine : 1;
      sent += out > 0 ? rs_max(1, rs_min(outs, rounds[k])) : 0;
      received += in > 0 ? rs_max(1, rs_min(ins, rounds[k])) : 0;
      staged += out + in;
    }
    assert_int_equal(reshard_plan_get_info_at(plan, rounds[k], 0, &more), RESHARD_SUCCESS);
    assert_int_equal(more.messages_sent, sent);
    assert_int_equal(more.messages_received, received);
    assert_int_equal(more.rounds, rounds[k]);
    assert_true(more.workspace_bytes <= limit && info.least_rounds <= info.rounds);
    assert_true(info.rounds <= 1 || staged > limit / 2);
  }
}

/* Elements of an array within the region of its class, interval by interval. */
static int64_t count_in_region(const rs_class *c, bool src, int64_t rank, int64_t array) {
  reshard_layout layout = src ? c->src : c->dst;
  int64_t elements = 1;
  for (int a = 0; a < c->space.naxes; a++) {
    int d = src ? c->space.src_dim[a] : c->space.dst_dim[a];
    int64_t lo = src ? c->space.src_offset[a] : c->space.dst_offset[a], hi = lo + c->space.extent[a], n = 0, inside = 0;
    if (d < 0)
      continue;
    assert_int_equal(reshard_layout_array_intervals(layout, rank, array, d, 0, 0, NULL, &n), RESHARD_SUCCESS);
    for (int64_t i = 0; i < n; i++) {
      reshard_interval run;
      assert_int_equal(reshard_layout_array_intervals(layout, rank, array, d, i, 1, &run, &n), RESHARD_SUCCESS);
      inside += rs_max(0, rs_min(hi, run.end) - rs_max(lo, run.begin));
    }
    elements *= inside;
  }
  for (int a = 0; a < c->space.naxes; a++)
    elements *= c->space.extent[a] > 0;
  return elements;
}

static reshard_status add_held(void *user, int64_t elements, const rs_holder *holders, int64_t n) {
  int64_t *held = user;
  for (int64_t i = 0; i < n; i++)
    held[holders[i].rank] += elements;
  return RESHARD_SUCCESS;
}

/* Checks that ranks hold, as the default limit counts it, what their arrays have, and never more than is expected
 * without counting. */
static void check_held(const case_plan *c, reshard_plan plan) {
  int64_t *held = cli_alloc(c->world, sizeof *held), average = 0;
  assert_int_equal(rs_plan_held(plan, &average), RESHARD_SUCCESS);
  assert_true(average <= rs_plan_held_at_most(plan));
  for (int64_t i = 0; i < plan->classes.n; i++)
    for (int src = 0; src < 2; src++) {
      const rs_class *k = &plan->classes.at[i];
      memset(held, 0, (size_t)c->world * sizeof *held);
      assert_int_equal(rs_class_visit_held(k, src, add_held, held), RESHARD_SUCCESS);
      for (int64_t r = 0; r < c->world; r++) {
        int64_t want = 0, arrays = rs_layout_arrays(src ? k->src : k->dst, r);
        for (int64_t a = 0; a < arrays; a++)
          want += count_in_region(k, src, r, a);
        if (held[r] != want)
          fail_msg("seed %llu: rank %lld holds %lld elements of class %lld, %lld are counted",
                   (unsigned long long)c->seed, (long long)r, (long long)want, (long long)i, (long long)held[r]);
      }
    }
  free(held);
}

static void check_case(uint64_t seed, int64_t ranks) {
  case_choices fixed = {.ranks = ranks, .casts = true};
  case_plan c;
  rs_text why = {0};
  if (!case_make(seed, &fixed, &c, &why))
    fail_msg("seed %llu: %s", (unsigned long long)seed, why.at);
  reshard_entry *entries = case_entries(&c);
  reshard_plan *plans = cli_alloc(c.world, sizeof *plans);
  for (int64_t r = 0; r < c.world; r++) {
    if (reshard_plan_create(c.nentries, entries, r, &c.options, &plans[r]) != RESHARD_SUCCESS)
      fail_msg("seed %llu, rank %lld: %s", (unsigned long long)seed, (long long)r, reshard_last_error());
    reshard_plan_info info = {0};
    assert_int_equal(reshard_plan_get_info(plans[r], &info), RESHARD_SUCCESS);
    case_check_plan(&c, r, plans[r], &info, &why);
    check_rounds(&c, plans[r]);
  }
  case_check_world(&c, plans, &why);
  check_held(&c, plans[0]);
  if (why.length > 0)
    fail_msg("seed %llu: %s", (unsigned long long)seed, why.at);
  for (int64_t i = 0; i < c.nentries; i++)
    check_segments(&c, plans, i);
  for (int64_t r = 0; r < c.world; r++)
    reshard_plan_destroy(plans[r]);
  free(entries);
  free(plans);
  case_free(&c);
}

CASE(random_plans_have_the_counts_of_the_oracle) {
  for (int64_t i = 0, n = (int64_t)(6000 * test_scale()); i <= n; i++)
    check_case(900000 + (uint64_t)i, i % 50 == 49 ? 64 : 0);
}

RUN_CASES
