/* Every placement to every other: DTensors of one and two dims of extents up to 12 on meshes up to 4 x 3. They are
 * compared with the element lists of bench/verify/oracle.h, which know nothing of layouts. A hand is a shape, a mesh,
 * and all pairs of placements on it. Placements are R, S0, S0*k, S1, S1*k on either mesh dim, cutting in either order;
 * some of them are sources, all are destinations. RESHARD_TEST_SCALE scales the hands: 50 are a million pairs. */
#include "bench/cli/util.h"
#include "bench/verify/oracle.h"
#include "bench/verify/random.h"
#include "support/fixtures/case.h"
#include "support/fixtures/scale.h"
#include "support/fixtures/sharded_ranks.h"

#include <reshard/dtensor.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KINDS = 5, MOST = 2 * KINDS * KINDS, SOURCES = 6, HANDS = 8 };

typedef struct hand {
  int ndim;
  int64_t shape[2], mesh[2];
  int64_t *ranks;
  int n; /* ways of placing */
  oracle_layout ways[MOST];
  oracle_buffers held[MOST];
  int sources[SOURCES];
} hand;

static void add_way(hand *h, const reshard_placement *first, const reshard_placement *second, int swapped) {
  oracle_layout *l = &h->ways[h->n++];
  *l = (oracle_layout){.kind = RESHARD_LAYOUT_MESH, .ndim = h->ndim, .mesh_ndim = 2};
  for (int i = 0; i < 2; i++) {
    l->shape[i] = h->shape[i];
    l->mesh[i] = h->mesh[i];
    l->order[i] = swapped ? 1 - i : i;
  }
  l->placement[0] = *first;
  l->placement[1] = *second;
  l->world = l->nranks = h->mesh[0] * h->mesh[1];
  memcpy(l->ranks, h->ranks, (size_t)l->nranks * sizeof *l->ranks);
}

static void hand_deal(hand *h, rng *r, int64_t a, int64_t b, int64_t *ranks) {
  *h = (hand){.ndim = 1 + (rng_below(r, 4) > 0), .mesh = {a, b}, .ranks = ranks};
  for (int d = 0; d < h->ndim; d++)
    h->shape[d] = rng_below(r, 13);
  reshard_placement kinds[KINDS] = {{.kind = RESHARD_PLACEMENT_REPLICATE}};
  int n = 1;
  for (int d = 0; d < h->ndim; d++) {
    kinds[n++] = (reshard_placement){.kind = RESHARD_PLACEMENT_SHARD, .dim = d};
    kinds[n++] =
        (reshard_placement){.kind = RESHARD_PLACEMENT_STRIDED_SHARD, .dim = d, .split_factor = 1 + rng_below(r, 6)};
  }
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++)
      for (int swapped = 0; swapped < 2; swapped++)
        add_way(h, &kinds[i], &kinds[j], swapped);
  for (int i = 0; i < h->n; i++)
    oracle_evaluate(&h->ways[i], &h->held[i]);
  for (int i = 0; i < SOURCES; i++)
    h->sources[i] = (int)rng_below(r, h->n);
}

static void hand_drop(hand *h) {
  for (int i = 0; i < h->n; i++)
    oracle_buffers_free(&h->held[i], h->ways[i].world);
}

static uint32_t element(int64_t index) { return (uint32_t)index * 2654435761u + 1; }

/* The local array against the list of the way: its shape, and its elements after `fill` has written them. */
static int64_t check_pair(const hand *h, int way, reshard_dtensor t, int64_t r, bool fill) {
  const oracle_buffer *b = &h->held[way].buffer[h->held[way].first[r]];
  reshard_tensor_info info;
  if (t == NULL || reshard_tensor_get_info(reshard_dtensor_local(t), &info) != RESHARD_SUCCESS ||
      info.elements != b->n || memcmp(info.shape, b->shape, (size_t)h->ndim * sizeof *b->shape) != 0)
    return 1;
  uint32_t *at = info.data;
  int64_t wrong = 0;
  for (int64_t e = 0; e < b->n; e++)
    if (fill)
      at[e] = element(b->index[e]);
    else
      wrong += at[e] != element(b->index[e]);
  return wrong;
}

/* The boxes of all ranks, where they are boxes. */
static int64_t check_boxes(const hand *h, int way, reshard_dtensor t) {
  int64_t wrong = 0;
  for (int64_t i = 0; i < h->ways[way].nranks; i++) {
    const oracle_buffer *b = &h->held[way].buffer[h->held[way].first[h->ranks[i]]];
    reshard_box box;
    if (reshard_dtensor_box_for(t, i, &box) != RESHARD_SUCCESS)
      continue;
    for (int d = 0; d < h->ndim; d++) {
      int64_t stride = d + 1 < h->ndim ? h->shape[1] : 1;
      wrong += box.extent[d] != b->shape[d] || box.offset[d] > h->shape[d];
      if (b->n > 0)
        wrong += box.offset[d] != b->index[0] / stride % h->shape[d];
    }
  }
  return wrong;
}

static reshard_status hand_play(sharded_ranks *p, int64_t r, const hand *h, int source,
                                const reshard_placing *placings) {
  const reshard_properties properties = {.dtype = RESHARD_U32};
  reshard_dtensor from = NULL, sources[MOST], results[MOST] = {NULL};
  reshard_status status =
      reshard_dtensor_empty(p->sharders[r], &placings[source], h->ndim, h->shape, &properties, NULL, &from);
  if (status != RESHARD_SUCCESS)
    return status;
  p->wrong[r] += check_pair(h, source, from, r, true) + check_boxes(h, source, from);
  for (int i = 0; i < h->n; i++)
    sources[i] = from;
  status = reshard_dtensor_redistribute(h->n, sources, placings, NULL, results);
  for (int i = 0; i < h->n; i++) {
    p->wrong[r] += check_pair(h, i, results[i], r, false);
    reshard_dtensor_release(results[i]);
  }
  reshard_dtensor_release(from);
  return status;
}

static void pairs_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const hand *h = p->user;
  reshard_placing placings[MOST];
  reshard_mesh mesh;
  CLI_TRY("mesh: ", reshard_mesh_create(p->comms[r], 0, 2, h->mesh, NULL, p->n, h->ranks, &mesh));
  for (int i = 0; i < h->n; i++)
    placings[i] = (reshard_placing){mesh, h->ways[i].placement, h->ways[i].order};
  reshard_status status = RESHARD_SUCCESS;
  for (int i = 0; i < SOURCES && status == RESHARD_SUCCESS; i++)
    status = hand_play(p, r, h, h->sources[i], placings);
  rank_result_set(&p->results[r], status);
  reshard_mesh_release(mesh);
}

static void shuffle(rng *r, int64_t n, int64_t *ranks) {
  for (int64_t i = 0; i < n; i++) {
    int64_t j = rng_below(r, i + 1);
    ranks[i] = ranks[j];
    ranks[j] = i;
  }
}

/* A hand of a seed; returns its pairs. */
static int64_t play_hand(sharded_ranks *p, int64_t a, int64_t b, uint64_t seed) {
  hand h;
  rng r;
  int64_t ranks[12], wrong = 0;
  rng_seed(&r, seed);
  shuffle(&r, a * b, ranks);
  hand_deal(&h, &r, a, b, ranks);
  sharded_ranks_run(p, pairs_body, &h);
  for (int64_t k = 0; k < p->n; k++)
    wrong += p->wrong[k] + (p->results[k].status != RESHARD_SUCCESS);
  if (wrong != 0)
    printf("mesh %dx%d, shape %dx%d, seed %llu\n", (int)a, (int)b, (int)h.shape[0], (int)h.shape[1],
           (unsigned long long)seed);
  sharded_ranks_assert(p, RESHARD_SUCCESS, NULL);
  hand_drop(&h);
  return SOURCES * h.n;
}

CASE(every_placement_goes_to_every_other) {
  int64_t pairs = 0, hands = test_scaled(HANDS, 1);
  for (int64_t a = 1; a <= 4; a++)
    for (int64_t b = 1; b <= 3; b++) {
      sharded_ranks p;
      const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT,
                                               .cached_plans = a == b ? 0 : -1,
                                               .path = b == 2 ? RESHARD_PATH_PACKED : RESHARD_PATH_AUTO};
      sharded_ranks_open(&p, a * b, &options);
      for (int64_t i = 0; i < hands; i++)
        pairs += play_hand(&p, a, b, (uint64_t)(1 + i * 100 + a * 10 + b));
      sharded_ranks_close(&p);
    }
  printf("%lld pairs of placings\n", (long long)pairs);
}

RUN_CASES
