/* Ranks that ask for unequal plans of many named tensors. The text has the tensor's name, the field, and both ranks'
 * values, wherever in the list the tensor is. */
#include "base/base.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"

#include <reshard/reshard.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { RANKS = 3, MOST = 70, BYTES = 8 * 8 * 4 };

typedef enum field {
  SHAPE,
  SOURCE,
  DESTINATION,
  DTYPE,
  DST_DTYPE,
  REGION,
  FROM,
  TO,
  DIMS,
  NAME,
  MORE,
  BLOCK,
  SCALES,
  FIELDS
} field;

typedef struct fixture {
  reshard_comm comms[RANKS];
  rank_result results[RANKS];
  int n, odd; /* tensors; which one differs, on rank 2 */
  bool named, packed;
  field field;
} fixture;

static char memory[RANKS][2][2 * (MOST + 1)][BYTES]; /* a destination may have scales, too */

static reshard_status make_plan(const fixture *s, int64_t rank, reshard_plan *plan) {
  static _Thread_local char names[MOST + 1][64];
  static const int64_t some[2] = {7, 6}, square[2] = {5, 5}, later[2] = {1, 1};
  static const int64_t ones[2] = {1, 1}, pairs[2] = {1, 2};
  static const int turned[2] = {1, 0};
  reshard_entry entries[MOST + 1] = {{0}};
  int n = s->n + (rank == 2 && s->field == MORE);
  reshard_status status = RESHARD_SUCCESS;
  for (int i = 0; i < n; i++) {
    bool odd = rank == 2 && i == s->odd;
    const int64_t shape[2] = {8, odd && s->field == SHAPE ? 7 : 6};
    reshard_layout src = NULL, dst = NULL;
    status = reshard_layout_parse(odd && s->field == SOURCE ? "chunk(0;2,1,0)" : "chunk(0)", 2, shape, RANKS, &src);
    RS_THEN(status,
            reshard_layout_parse(odd && s->field == DESTINATION ? "chunk(1;0)" : "chunk(1)", 2, shape, RANKS, &dst));
    snprintf(names[i], sizeof names[i], "layers.%d.%s", i, odd && s->field == NAME ? "wk" : "wq");
    entries[i] = (reshard_entry){RESHARD_ENTRY_INIT, .src = src, .dst = dst};
    entries[i].dtype = odd && (s->field == DTYPE || s->field == NAME) ? RESHARD_BF16 : RESHARD_F32;
    entries[i].dst_dtype = odd && s->field == DST_DTYPE ? RESHARD_BF16 : RESHARD_DTYPE_NONE;
    entries[i].src_extent = entries[i].dst_extent = odd && s->field == REGION ? some : NULL;
    if (s->field == FROM || s->field == TO || s->field == DIMS) { /* a region on all ranks, of each tensor */
      entries[i].src_extent = entries[i].dst_extent = square;
      entries[i].src_offset = odd && s->field == FROM ? later : NULL;
      entries[i].dst_offset = odd && s->field == TO ? later : NULL;
      entries[i].permutation = odd && s->field == DIMS ? turned : NULL;
    }
    if (s->field == BLOCK || s->field == SCALES) {
      entries[i].dst_dtype = RESHARD_F8_E4M3;
      entries[i].block = odd && s->field == BLOCK ? ones : pairs;
      entries[i].scale_dtype = odd && s->field == SCALES ? RESHARD_F8_E8M0 : RESHARD_F32;
    }
    entries[i].name = s->named ? names[i] : NULL;
  }
  RS_THEN(status, reshard_plan_create(n, entries, rank, NULL, plan));
  for (int i = 0; i < n; i++) {
    reshard_layout_release(entries[i].src);
    reshard_layout_release(entries[i].dst);
  }
  return status;
}

static void differ_body(void *user, int64_t r) {
  fixture *s = user;
  void *src[MOST + 1], *dst[2 * (MOST + 1)];
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  const reshard_transfer_options options = {.size = RESHARD_TRANSFER_OPTIONS_INIT,
                                            .path = s->packed ? RESHARD_PATH_PACKED : RESHARD_PATH_AUTO};
  for (int i = 0; i <= MOST; i++)
    src[i] = memory[r][0][i];
  for (int i = 0; i < 2 * (MOST + 1); i++)
    dst[i] = memory[r][1][i];
  const reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT, .src = src, .dst = dst};
  reshard_status status = make_plan(s, r, &plan);
  RS_THEN(status, reshard_transfer_create(plan, s->comms[r], &arrays, &options, &transfer));
  rank_result_set(&s->results[r], status);
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
}

static void error_expect(fixture *s, const char *text) {
  rank_threads_run(RANKS, differ_body, s);
  for (int64_t r = 0; r < RANKS; r++) {
    if (!rank_result_is(&s->results[r], RESHARD_ERROR_MISMATCH, text))
      fail_msg("'%s' is not '%s'", s->results[r].text, text);
  }
}

static void text_of(const fixture *s, char text[256]) {
  static const char *const ends[FIELDS] = {[SHAPE] = ": shape [8,6] on rank 0, [8,7] on rank 2",
                                           [SOURCE] = ": source layout chunk(0;0-2) on rank 0, chunk(0;2-0) on rank 2",
                                           [DESTINATION] =
                                               ": destination layout chunk(1;0-2) on rank 0, chunk(1;0) on rank 2",
                                           [DTYPE] = ": dtype f32 on rank 0, bf16 on rank 2",
                                           [DST_DTYPE] = ": dst_dtype f32 on rank 0, bf16 on rank 2",
                                           [BLOCK] = ": dst_dtype f8_e4m3/1x2 on rank 0, f8_e4m3/1x1 on rank 2",
                                           [SCALES] = ": dst_dtype f8_e4m3/1x2 on rank 0, f8_e4m3/1x2:e8m0 on rank 2",
                                           [REGION] = ": source region [0,8)x[0,6) on rank 0, [0,7)x[0,6) on rank 2",
                                           [FROM] = ": source region [0,5)x[0,5) on rank 0, [1,6)x[1,6) on rank 2",
                                           [TO] = ": destination region [0,5)x[0,5) of dims 0,1 on rank 0, "
                                                  "[1,6)x[1,6) of dims 0,1 on rank 2",
                                           [DIMS] = ": destination region [0,5)x[0,5) of dims 0,1 on rank 0, "
                                                    "[0,5)x[0,5) of dims 1,0 on rank 2"};
  char label[64];
  if (s->named || s->n == 1)
    snprintf(label, sizeof label, s->named ? "'layers.%d.wq'" : "'tensor'", s->odd);
  else
    snprintf(label, sizeof label, "tensor %d", s->odd);
  if (s->field == MORE)
    snprintf(text, 256,
             s->named ? "'layers.%d.wq' is on rank 2, and not on rank 0 (%d tensors on rank 0, %d on rank 2)"
                      : "tensor %d is on rank 2, and not on rank 0 (%d tensors on rank 0, %d on rank 2)",
             s->n, s->n, s->n + 1);
  else if (s->field == NAME && s->named)
    snprintf(text, 256, "%s: dtype f32 on rank 0, 'layers.%d.wk' with bf16 on rank 2", label, s->odd);
  else
    snprintf(text, 256, "%s%s", label, ends[s->field == NAME ? DTYPE : s->field]);
}

CASE(first_field_that_differs_is_named_with_its_tensor) {
  static const int counts[] = {1, 2, 3, 8, MOST};
  for (int f = 0; f < FIELDS; f++)
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
      for (int i = 0; i < counts[k]; i += 1 + counts[k] / 5) {
        fixture s = {.n = counts[k], .odd = i, .named = (i + f) % 3 != 0, .packed = i % 2, .field = (field)f};
        const reshard_local_options options = {.size = RESHARD_LOCAL_OPTIONS_INIT, .threads = 1, .timeout_ms = 60000};
        char text[256];
        GOOD(reshard_comm_create_local(RANKS, &options, s.comms));
        text_of(&s, text);
        error_expect(&s, text);
        rank_comms_close(RANKS, s.comms);
      }
}

/* Options of which rank 2 alone has the second. */
typedef struct option_pair {
  reshard_topology topology[2]; /* size 0: none */
  const int64_t *nodes[2];
  const char *says;
} option_pair;

typedef struct option_fixture {
  fixture all;
  const option_pair *pair;
  const int64_t *const *maps; /* node maps of each rank; NULL: the pair's */
} option_fixture;

static void options_body(void *user, int64_t r) {
  option_fixture *s = user;
  const option_pair *p = s->pair;
  void *src[1] = {memory[r][0][0]};
  void *dst[1] = {memory[r][1][0]};
  const int64_t shape[2] = {8, 6};
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  reshard_entry e = RESHARD_ENTRY_DEFAULTS;
  reshard_plan_options options = RESHARD_PLAN_OPTIONS_DEFAULTS;
  options.topology = p->topology[r == 2].size > 0 ? &p->topology[r == 2] : NULL;
  options.nodes = s->maps != NULL ? s->maps[r] : p->nodes[r == 2];
  reshard_status status = reshard_layout_parse("chunk(0)", 2, shape, RANKS, &e.src);
  RS_THEN(status, reshard_layout_parse("chunk(1)", 2, shape, RANKS, &e.dst));
  e.dtype = RESHARD_F32;
  RS_THEN(status, reshard_plan_create(1, &e, r, &options, &plan));
  const reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT, .src = src, .dst = dst};
  RS_THEN(status, reshard_transfer_create(plan, s->all.comms[r], &arrays, NULL, &transfer));
  rank_result_set(&s->all.results[r], status);
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  reshard_layout_release(e.src);
  reshard_layout_release(e.dst);
}

static void options_expect(const option_pair *pairs, size_t n, const int64_t *const *maps) {
  for (size_t i = 0; i < n; i++) {
    option_fixture s = {.pair = &pairs[i], .maps = maps};
    const reshard_local_options options = {.size = RESHARD_LOCAL_OPTIONS_INIT, .threads = 1, .timeout_ms = 60000};
    GOOD(reshard_comm_create_local(RANKS, &options, s.all.comms));
    rank_threads_run(RANKS, options_body, &s);
    for (int64_t r = 0; r < RANKS; r++) {
      const rank_result *got = &s.all.results[r];
      if (pairs[i].says == NULL ? got->status != RESHARD_SUCCESS
                                : got->status != RESHARD_ERROR_MISMATCH || strstr(got->text, pairs[i].says) == NULL ||
                                      strcmp(got->text, s.all.results[0].text) != 0)
        fail_msg("case %zu, rank %d: '%s'", i, (int)r, got->text);
      reshard_comm_destroy(s.all.comms[r]);
    }
  }
}

/* The same error on all ranks, with the number that differs, or the first rank that is in another domain. */
CASE(unequal_topologies_are_one_error_on_all_ranks) {
  static const int64_t a[RANKS] = {0, 0, 1}, b[RANKS] = {0, 1, 1}, same[RANKS] = {9, 9, -4};
#define OF(domain, ...) \
  { RESHARD_TOPOLOGY_INIT, RANKS, domain, __VA_ARGS__ }
  static const option_pair pairs[] = {
      {{OF(a, 50, 900, 30, 0), OF(a, 51, 900, 30, 0)},
       {NULL, NULL},
       "topology of 50 bytes/s between, 900 within, 30 ns a round, chains 0 on rank 0, of 51 bytes/s between, 900 "
       "within, 30 ns a round, chains 0 on rank 2"},
      {{OF(a, 50, 900, 30, 0), OF(a, 50, 901, 30, 0)}, {NULL, NULL}, "topology of 50 bytes/s"},
      {{OF(a, 50, 900, 30, 0), OF(a, 50, 900, 31, 0)}, {NULL, NULL}, "topology of 50 bytes/s"},
      {{OF(a, 50, 900, 30, 0), {0}}, {NULL, NULL}, "chains 0 on rank 0, none on rank 2"},
      {{OF(a, 50, 900, 30, 0), {0}}, {NULL, a}, "chains 0 on rank 0, none on rank 2"},
      {{OF(a, 50, 900, 30, 0), OF(b, 50, 900, 30, 0)},
       {NULL, NULL},
       "topology: domain of rank 1: 0 on rank 0, 1 on rank 2"},
      {{{0}, {0}}, {a, b}, "node of rank 1: 0 on rank 0, 1 on rank 2"},
      {{OF(a, 50, 900, 30, 0), OF(same, 50, 900, 30, 0)}, {NULL, a}, NULL},
  };
#undef OF
  options_expect(pairs, sizeof pairs / sizeof *pairs, NULL);
}

/* Rank 2, which has no map, takes part in the search. */
CASE(node_maps_that_differ_are_told_to_a_rank_without_one) {
  static const int64_t a[RANKS] = {0, 0, 1}, b[RANKS] = {0, 1, 1};
  static const int64_t *const maps[RANKS] = {a, b, NULL};
  const option_pair pair = {.says = "node of rank 1: 0 on rank 0, 1 on rank 1"};
  options_expect(&pair, 1, maps);
}

RUN_CASES
