/* Plans of all ranks of a world, made together.
 *
 * Each source array asks the destination once, a replicated cell once for all its holders. The segments, sorted, are
 * the messages that a rank sends. A receiver's messages are the same ones, and consist of the sender's segments. So an
 * intersection is found once, and kept once, in storage that the plans share. */
#include "plan/intersect.h"
#include "plan/place.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* --- Memory of many small lists with one life --------------------------------------------------------------------- */

/* Blocks are doubled up to a few MiB. Large ones are in huge pages (rs_alloc): the lists of a world's plans are
 * hundreds of MiB, and touching small pages for the first time would take longer than to fill them. Still larger ones
 * malloc would map, and the system clear, anew for each world. */
typedef struct arena_block {
  char *at;
  size_t size, used;
} arena_block;

typedef struct arena {
  RS_VEC(arena_block) blocks; /* the last one is filled */
} arena;

enum { LEAST = 16 << 10, MOST = 4 << 20, STEP = 2 << 20, ALIGNMENT = 16 };

static reshard_status arena_grow(arena *arena, size_t need) {
  RS_TRY(rs_vec_reserve(&arena->blocks, arena->blocks.n + 1));
  size_t size = arena->blocks.n == 0 ? LEAST : 2 * arena->blocks.at[arena->blocks.n - 1].size;
  size = size < MOST ? size : MOST;
  size = need > size ? (need + STEP - 1) / STEP * STEP : size;
  char *at;
  RS_TRY(rs_alloc(&at, (int64_t)size, 1));
  arena->blocks.at[arena->blocks.n++] = (arena_block){at, size, 0};
  return RESHARD_SUCCESS;
}

static reshard_status arena_alloc(arena *arena, void *out, int64_t n, size_t element) {
  int64_t bytes;
  void *none = NULL;
  memcpy(out, &none, sizeof none);
  if (!rs_mul(n, (int64_t)element, &bytes) || bytes > INT64_MAX - STEP)
    return rs_error_memory(SIZE_MAX);
  size_t need = ((size_t)bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (need == 0)
    return RESHARD_SUCCESS;
  arena_block *last = arena->blocks.n > 0 ? &arena->blocks.at[arena->blocks.n - 1] : NULL;
  if (last == NULL || last->size - last->used < need) {
    RS_TRY(arena_grow(arena, need));
    last = &arena->blocks.at[arena->blocks.n - 1];
  }
  char *at = last->at + last->used;
  memcpy(out, &at, sizeof at);
  last->used += need;
  return RESHARD_SUCCESS;
}

static void arena_free(arena *all) {
  for (int64_t i = 0; i < all->blocks.n; i++)
    free(all->blocks.at[i].at);
  free(all->blocks.at);
}

/* --- Storage that plans share ------------------------------------------------------------------------------------ */

struct rs_shared {
  atomic_int references;
  arena arena; /* segments, messages and peers */
  int64_t nclasses;
  rs_side *side; /* of each class, for its lists */
};

void rs_shared_release(rs_shared *shared) {
  if (!RS_DROP(shared))
    return;
  for (int64_t i = 0; i < shared->nclasses; i++)
    rs_side_free(&shared->side[i]);
  arena_free(&shared->arena);
  free(shared->side);
  free(shared);
}

static reshard_status create_shared(int64_t nclasses, rs_shared **out) {
  rs_shared *shared;
  RS_TRY(rs_alloc_zero(&shared, 1, sizeof *shared));
  RS_TRY_OR(rs_alloc_zero(&shared->side, nclasses, sizeof *shared->side), free(shared));
  atomic_init(&shared->references, 1);
  shared->nclasses = nclasses;
  *out = shared;
  return RESHARD_SUCCESS;
}

reshard_status rs_plan_alloc(const struct reshard_plan_s *plan, void *out, int64_t n, size_t element) {
  return plan->shared != NULL ? arena_alloc(&plan->shared->arena, out, n, element) : rs_alloc(out, n, element);
}

/* Messages that a rank receives: counted while their senders' are made, then listed. */
typedef struct world_receiver {
  int64_t messages, segments;
  rs_message *next;
} world_receiver;

/* One class of all plans, being intersected. */
typedef struct world_class {
  arena *arena;
  rs_side *side; /* lists of all; messages while they are made */
  rs_class **of_rank;
  world_receiver *receiver; /* [world] */
  int64_t world, segments;
  rs_sorting sorting;
} world_class;

static reshard_status keep_messages(world_class *w, const rs_messages *messages, rs_messages *kept) {
  RS_TRY(arena_alloc(w->arena, &kept->at, messages->n, sizeof *kept->at));
  if (messages->n > 0)
    memcpy(kept->at, messages->at, (size_t)messages->n * sizeof *kept->at);
  kept->n = kept->cap = messages->n;
  return RESHARD_SUCCESS;
}

/* Makes n segments, or boxes that meet where there are no segments, the messages that a rank sends. Both ends' places
 * are looked for while the segments are in the cache. */
static reshard_status make_messages(world_class *w, int64_t rank, rs_loose_segment *segments, rs_meetings *met,
                                    int64_t n) {
  rs_class *c = w->of_rank[rank];
  rs_messages *found = &w->side->messages;
  rs_segment *kept;
  rs_last_array last[2] = {{.layout = NULL}, {.layout = NULL}};
  RS_TRY(arena_alloc(w->arena, &kept, n, sizeof *kept));
  RS_TRY(met != NULL ? rs_make_box_messages(met, c->dst->boxes, kept, found)
                     : rs_make_messages(segments, n, true, &w->sorting, kept, found));
  for (int64_t i = 0; i < found->n; i++) {
    rs_message *m = &found->at[i];
    w->receiver[m->peer].messages += m->peer != rank;
    w->receiver[m->peer].segments += m->peer != rank ? m->count : 0;
    rs_message_find_places(c, w->side, (rs_route){rank, m->peer}, m, true, true, last);
  }
  RS_TRY(keep_messages(w, found, &c->send.messages));
  c->send.nsegments = c->send.segments.cap = n;
  w->segments += n;
  return RESHARD_SUCCESS;
}

/* Turns counts, of which the last is 0, into the first places of each. */
static void counts_to_firsts(int64_t *count, int64_t n) {
  for (int64_t i = 0, sum = 0; i <= n; i++) {
    int64_t here = count[i];
    count[i] = sum;
    sum += here;
  }
}

/* The same for all senders at once: a holder of a replicated cell found what the others send too. */
static reshard_status make_all_messages(world_class *w, const rs_loose_segment *found, int64_t n) {
  rs_loose_segment *sorted = NULL;
  int64_t *begin = NULL;
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc_zero(&begin, w->world + 1, sizeof *begin), done);
  RS_TRY_GOTO(status, rs_alloc(&sorted, n, sizeof *sorted), done);
  for (int64_t i = 0; i < n; i++)
    begin[found[i].route.src]++;
  counts_to_firsts(begin, w->world);
  for (int64_t i = 0; i < n; i++)
    sorted[begin[found[i].route.src]++] = found[i];
  for (int64_t r = 0, from = 0; r < w->world; from = begin[r++]) /* each has become the next one's */
    RS_TRY_GOTO(status, make_messages(w, r, n > 0 ? sorted + from : NULL, NULL, begin[r] - from), done);
done:
  free(begin);
  free(sorted);
  return status;
}

/* Lists what was sent by receiver. */
static reshard_status list_received(world_class *w) {
  for (int64_t r = 0; r < w->world; r++) {
    rs_side *receive = &w->of_rank[r]->receive;
    receive->messages.n = receive->messages.cap = w->receiver[r].messages;
    receive->nsegments = w->receiver[r].segments;
    RS_TRY(arena_alloc(w->arena, &receive->messages.at, receive->messages.n, sizeof(rs_message)));
    w->receiver[r].next = receive->messages.at;
  }
  for (int64_t r = 0; r < w->world; r++)
    for (int64_t i = 0; i < w->of_rank[r]->send.messages.n; i++) {
      const rs_message *m = &w->of_rank[r]->send.messages.at[i];
      if (m->peer == r)
        continue;
      rs_message *there = w->receiver[m->peer].next++;
      __builtin_prefetch(there + 2, 1); /* the line that the next senders write */
      *there = *m;
      there->peer = r;
    }
  return RESHARD_SUCCESS;
}

/* The part of `cap` that n of all segments have. */
static int64_t part_of(int64_t cap, int64_t n, int64_t all) { return (int64_t)((double)cap * (double)n / (double)all); }

/* Lends the lists to both sides of all ranks. Capacities are the rank's part of them. */
static void lend_lists(world_class *w) {
  const rs_side *all = w->side;
  for (int64_t r = 0; r < w->world; r++)
    for (int sending = 0; sending < 2; sending++) {
      rs_side *side = sending ? &w->of_rank[r]->send : &w->of_rank[r]->receive;
      int64_t mine = sending ? side->nsegments : 0;
      side->src_asks = true;
      side->lists = all->lists;
      side->ids.at = all->ids.at;
      side->lists.run.cap = part_of(all->lists.run.cap, mine, rs_max(1, w->segments));
      side->lists.list.cap = part_of(all->lists.list.cap, mine, rs_max(1, w->segments));
      side->ids.cap = part_of(all->ids.cap, mine, rs_max(1, w->segments));
    }
}

static bool is_replicated(const struct reshard_layout_s *l) {
  return l->kind == RESHARD_LAYOUT_BOXES ? l->boxes->replicated : rs_layout_replicates(l);
}

static reshard_status intersect_world(arena *arena, rs_side *side, rs_class **of_rank, int64_t world,
                                      const int64_t *nodes) {
  const rs_class *c = of_rank[0];
  rs_work w = {.of_rank = of_rank, .world = world, .nodes = nodes, .side = side};
  world_class wc = {.arena = arena, .side = side, .of_rank = of_rank, .world = world};
  bool at_once = is_replicated(c->src);
  reshard_status status = RESHARD_SUCCESS;
  w.listed = rs_layout_regular(c->src) || rs_layout_regular(c->dst);
  side->src_asks = true;
  for (int64_t r = 0; r < world; r++)
    of_rank[r]->send.shared = of_rank[r]->receive.shared = true;
  RS_TRY_GOTO(status, rs_alloc_zero(&wc.receiver, world, sizeof *wc.receiver), done);
  for (w.rank = 0; w.rank < world; w.rank++) {
    w.class_ = of_rank[w.rank];
    RS_TRY_GOTO(status, rs_intersect_sends(&w), done);
    RS_TRY_GOTO(status, rs_count_wanted(&w), done);
    if (at_once)
      continue;
    int64_t n = w.boxed ? w.met.pair.n : w.found.n;
    RS_TRY_GOTO(status, make_messages(&wc, w.rank, w.found.at, w.boxed ? &w.met : NULL, n), done);
    w.found.n = w.met.pair.n = 0;
  }
  if (at_once)
    RS_TRY_GOTO(status, make_all_messages(&wc, w.found.at, w.found.n), done);
  RS_TRY_GOTO(status, list_received(&wc), done);
  rs_lists_drop_scratch(&side->lists);
  lend_lists(&wc);
done:
  free(wc.receiver);
  free(side->messages.at);
  memset(&side->messages, 0, sizeof side->messages);
  free(wc.sorting.at);
  rs_work_free(&w);
  return status;
}

/* Intersects the classes of the plans of ranks 0 ... world - 1, which have none of their own. */
static reshard_status intersect_classes(struct reshard_plan_s **plan, int64_t world) {
  rs_class **of_rank = NULL;
  rs_shared *shared = NULL;
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc(&of_rank, world, sizeof(rs_class *)), done);
  RS_TRY_GOTO(status, create_shared(plan[0]->classes.n, &shared), done);
  for (int64_t r = 0; r < world; r++)
    plan[r]->shared = RS_RETAIN(shared);
  for (int64_t i = 0; i < shared->nclasses; i++) {
    for (int64_t r = 0; r < world; r++)
      of_rank[r] = &plan[r]->classes.at[i];
    RS_TRY_GOTO(status, intersect_world(&shared->arena, &shared->side[i], of_rank, world, plan[0]->nodes), done);
  }
done:
  free(of_rank);
  rs_shared_release(shared);
  return status;
}

static void destroy_plans(struct reshard_plan_s **plan, int64_t n) {
  for (int64_t i = 0; plan != NULL && i < n; i++)
    reshard_plan_destroy(plan[i]);
  free(plan);
}

/* Plans of all ranks, by rank. */
static reshard_status create_world(int64_t nentries, const reshard_entry *entries, int64_t world,
                                   const reshard_plan_options *options, struct reshard_plan_s ***plans) {
  int64_t start = rs_now_ns();
  struct reshard_plan_s **plan;
  RS_TRY(rs_alloc_zero(&plan, world, sizeof *plan));
  reshard_status status;
  RS_TRY_GOTO(status, rs_plan_begin(nentries, entries, 0, world, false, options, &plan[0]), fail);
  for (int64_t r = 1; r < world; r++)
    RS_TRY_GOTO(status, rs_plan_begin_like(plan[0], r, &plan[r]), fail);
  RS_TRY_GOTO(status, intersect_classes(plan, world), fail);
  for (int64_t r = 0; r < world; r++)
    RS_TRY_GOTO(status, rs_plan_finish(plan[r]), fail);
  for (int64_t r = 0, each = (rs_now_ns() - start) / world; r < world; r++)
    plan[r]->info.plan_ns = each;
  *plans = plan;
  return RESHARD_SUCCESS;
fail:
  destroy_plans(plan, world);
  return status;
}

static reshard_status create_each(int64_t nentries, const reshard_entry *entries, int64_t nranks, const int64_t *ranks,
                                  const reshard_plan_options *options, struct reshard_plan_s ***plans) {
  struct reshard_plan_s **plan;
  RS_TRY(rs_alloc_zero(&plan, nranks, sizeof *plan));
  for (int64_t i = 0; i < nranks; i++) {
    RS_TRY_OR(reshard_plan_create(nentries, entries, ranks != NULL ? ranks[i] : i, options, &plan[i]),
              destroy_plans(plan, nranks));
  }
  *plans = plan;
  return RESHARD_SUCCESS;
}

/* True when the list has each of `world` ranks once. */
static reshard_status has_all(int64_t nranks, const int64_t *ranks, int64_t world, bool *all) {
  bool *seen;
  *all = nranks == world;
  if (ranks == NULL || nranks != world)
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc_zero(&seen, world, sizeof *seen));
  for (int64_t i = 0; i < nranks && *all; i++) {
    *all = ranks[i] >= 0 && ranks[i] < world && !seen[ranks[i]];
    if (*all)
      seen[ranks[i]] = true;
  }
  free(seen);
  return RESHARD_SUCCESS;
}

reshard_status reshard_plan_create_all(int64_t nentries, const reshard_entry *entries, int64_t nranks,
                                       const int64_t *ranks, const reshard_plan_options *options, reshard_plan *plans) {
  if (nentries < 0 || (nentries > 0 && entries == NULL) || nranks < 0 || (nranks > 0 && plans == NULL))
    return rs_error(RESHARD_ERROR_INVALID, "reshard_plan_create_all: %lld entries, %lld ranks, NULL argument",
                    (long long)nentries, (long long)nranks);
  int64_t world = nranks; /* without entries any will do */
  bool all = false;
  struct reshard_plan_s **made;
  if (nentries > 0)
    RS_TRY(rs_plan_world(&entries[0], &world));
  if (ranks == NULL && nranks != world)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_plan_create_all: %lld ranks without a list, the world has %lld",
                    (long long)nranks, (long long)world);
  RS_TRY(has_all(nranks, ranks, world, &all));
  if (nranks == 0)
    return RESHARD_SUCCESS;
  if (all && nentries > 0)
    RS_TRY(create_world(nentries, entries, world, options, &made));
  else
    RS_TRY(create_each(nentries, entries, nranks, ranks, options, &made));
  for (int64_t i = 0; i < nranks; i++)
    plans[i] = made[all && nentries > 0 && ranks != NULL ? ranks[i] : i];
  free(made);
  return RESHARD_SUCCESS;
}
