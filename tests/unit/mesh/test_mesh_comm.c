/* Splitting communicators, and the communicators of meshes: who is in which and where, what is kept; ranks that fail,
 * differ or never come; transfers in the rows and columns of a mesh at the same time. */
#include "mesh/mesh.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"

#include <reshard/reshard.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 8, PATIENCE = 60000 };

static reshard_comm comms[MOST];
static rank_result results[MOST];

static void check_ranks(int64_t n, int64_t patience, void (*body)(void *user, int64_t rank), void *user,
                        reshard_status status, const char *part) {
  rank_comms_open(n, 2, patience, comms);
  rank_threads_run(n, body, user);
  rank_results_assert(n, results, status, part, NULL);
  rank_comms_close(n, comms);
}

/* Work of each rank with a mesh. */
typedef struct mesh_use {
  int64_t world; /* 0: the communicator's */
  const char *text;
  reshard_status (*use)(int64_t rank, reshard_mesh mesh);
} mesh_use;

static void use_body(void *user, int64_t rank) {
  const mesh_use *u = user;
  reshard_mesh mesh = NULL;
  reshard_status status = reshard_mesh_parse(comms[rank], u->world, u->text, &mesh);
  RS_THEN(status, u->use(rank, mesh));
  reshard_mesh_release(mesh);
  rank_result_set(&results[rank], status);
}

/* --- Communicators of meshes ------------------------------------------------------------------------------------- */

static reshard_status rank_wrong(const char *what) { /* as a status, for threads */
  fprintf(stderr, "wrong: %s\n", what);
  return RESHARD_ERROR_INTERNAL;
}

static bool is(reshard_comm comm, int64_t size, int64_t rank, const int64_t *ranks) {
  bool same = reshard_comm_size(comm) == size && reshard_comm_rank(comm) == rank;
  for (int64_t i = 0; i < size && same && ranks != NULL; i++)
    same = reshard_comm_global_ranks(comm)[i] == ranks[i];
  return same;
}

/* dp=2,tp=3 on ranks 1..6 of 8: who is in which, and what is kept. */
static reshard_status use_mesh(int64_t rank, reshard_mesh mesh) {
  bool in = rank >= 1 && rank <= 6;
  int64_t d = (rank - 1) / 3, t = (rank - 1) % 3;
  reshard_comm tp, dp, again, all, turned;
  RS_TRY(reshard_mesh_comm(mesh, "tp", &tp));
  RS_TRY(reshard_mesh_comm(mesh, "dp", &dp));
  RS_TRY(reshard_mesh_comm(mesh, NULL, &all));
  RS_TRY(reshard_mesh_comm(mesh, "tp,dp", &turned));
  if (!in)
    return tp == NULL && dp == NULL && all == NULL && turned == NULL ? RESHARD_SUCCESS : rank_wrong("outside");
  const int64_t row[3] = {1 + 3 * d, 2 + 3 * d, 3 + 3 * d}, column[2] = {1 + t, 4 + t}, six[6] = {1, 2, 3, 4, 5, 6},
                by_column[6] = {1, 4, 2, 5, 3, 6};
  if (!is(tp, 3, t, row) || !is(dp, 2, d, column) || !is(all, 6, rank - 1, six) || !is(turned, 6, t * 2 + d, by_column))
    return rank_wrong("who is where");
  if (rank == 4) { /* kept: no other rank makes these calls */
    reshard_mesh sub, flat;
    RS_TRY(reshard_mesh_comm(mesh, "1", &again));
    RS_TRY(reshard_mesh_sub(mesh, "tp", RESHARD_MESH_MINE, &sub));
    RS_TRY(reshard_mesh_comm(sub, NULL, &dp));
    reshard_mesh_release(sub);
    RS_TRY(reshard_mesh_flatten(mesh, "tp,dp", "x", &flat));
    RS_TRY(reshard_mesh_comm(flat, "x", &all));
    reshard_mesh_release(flat);
    if (again != tp || dp != tp || all != turned)
      return rank_wrong("not kept");
  }
  return reshard_comm_barrier(tp);
}

CASE(test_mesh_comm) {
  check_ranks(8, PATIENCE, use_body, &(mesh_use){0, "dp=2,tp=3@1-6", use_mesh}, RESHARD_SUCCESS, "");
}

/* Sub-meshes, slices and meshes of their own: 2x2x2 on 8 ranks. */
static reshard_status use_parts(int64_t rank, reshard_mesh mesh) {
  reshard_mesh sub, deeper, slice, given, own, inner, none;
  reshard_comm comm, same;
  RS_TRY(reshard_mesh_comm(mesh, NULL, &comm));
  if (comm != comms[rank]) /* all ranks in their order */
    return rank_wrong("the communicator itself");
  RS_TRY(reshard_mesh_sub(mesh, "dp,tp", RESHARD_MESH_MINE, &sub));
  RS_TRY(reshard_mesh_comm(sub, NULL, &comm));
  if (!is(comm, 4, rank % 4, NULL) || reshard_comm_global_ranks(comm)[0] != rank / 4 * 4)
    return rank_wrong("sub-mesh");
  RS_TRY(reshard_mesh_sub(sub, "tp", RESHARD_MESH_MINE, &deeper));
  RS_TRY(reshard_mesh_comm(deeper, "tp", &comm));
  RS_TRY(reshard_mesh_comm(mesh, "tp", &same));
  if (comm != same || !is(comm, 2, rank % 2, (int64_t[]){rank / 2 * 2, rank / 2 * 2 + 1}))
    return rank_wrong("part of a part");
  /* One coordinate of dp of each: half of the ranks are outside, and in the other slice. */
  for (int64_t d = 0; d < 2; d++) {
    bool in = rank / 2 % 2 == d;
    RS_TRY(reshard_mesh_slice(sub, "dp", d, d + 1, 1, &slice));
    RS_TRY(reshard_mesh_comm(slice, "tp", &comm));
    if (in ? !is(comm, 2, rank % 2, NULL) || reshard_comm_global_ranks(comm)[0] != rank / 2 * 2 : comm != NULL)
      return rank_wrong("slice");
    if (in != (reshard_mesh_contains(slice, RESHARD_MESH_MINE) == 1))
      return rank_wrong("in the slice");
    RS_TRY(reshard_mesh_own(slice, &none));
    if ((none == NULL) == in)
      return rank_wrong("own of a slice");
    reshard_mesh_release(none);
    reshard_mesh_release(slice);
  }
  /* The part of one rank that all name. */
  RS_TRY(reshard_mesh_sub(mesh, "pp", 3, &given));
  RS_TRY(reshard_mesh_comm(given, "pp", &comm));
  if (rank % 4 == 3 ? !is(comm, 2, rank / 4, (int64_t[]){3, 7}) : comm != NULL)
    return rank_wrong("part of a given rank");
  reshard_mesh_release(given);
  RS_TRY(reshard_mesh_sub(mesh, "pp", 2, &given));
  RS_TRY(reshard_mesh_comm(given, "pp", &comm));
  if (rank % 4 == 2 ? !is(comm, 2, rank / 4, (int64_t[]){2, 6}) : comm != NULL)
    return rank_wrong("part of another given rank");
  reshard_mesh_release(given);
  /* The same mesh among its own ranks, of which the parts are that of four ranks alone. */
  RS_TRY(reshard_mesh_own(sub, &own));
  if (reshard_mesh_world(own) != 4 || reshard_mesh_rank(own) != rank % 4 || reshard_mesh_root(own) != own ||
      strcmp(reshard_mesh_name(own, 1), "tp") != 0)
    return rank_wrong("own");
  reshard_mesh_release(sub); /* it holds that */
  RS_TRY(reshard_mesh_sub(own, "dp", RESHARD_MESH_MINE, &inner));
  if (rank < 4) /* the other four do not take part */
    RS_TRY(reshard_mesh_comm(own, "dp", &comm));
  if (rank < 4 && !is(comm, 2, rank / 2 % 2, (int64_t[]){rank % 2, rank % 2 + 2}))
    return rank_wrong("part of its own");
  reshard_mesh_release(own);
  reshard_mesh_release(inner);
  reshard_mesh_release(deeper);
  return reshard_comm_barrier(comms[rank]);
}

CASE(each_group_has_the_ranks_of_its_row) {
  check_ranks(8, PATIENCE, use_body, &(mesh_use){8, "pp=2,dp=2,tp=2", use_parts}, RESHARD_SUCCESS, "");
}

/* All ranks in another order than theirs, regular or not; and a mesh on its own communicator that outlives the first.
 */
static reshard_status use_order(int64_t rank, const char *text, const int64_t *ranks) {
  reshard_mesh mesh, own;
  reshard_comm comm;
  int64_t at = 0;
  while (ranks[at] != rank)
    at++;
  RS_TRY(reshard_mesh_parse(comms[rank], 0, text, &mesh));
  RS_TRY(reshard_mesh_comm(mesh, NULL, &comm));
  if (!is(comm, 4, at, ranks))
    return rank_wrong("order");
  RS_TRY(reshard_mesh_own(mesh, &own));
  reshard_mesh_release(mesh);
  RS_TRY(reshard_mesh_comm(own, "1", &comm));
  if (!is(comm, 2, at % 2, (int64_t[]){ranks[at / 2 * 2], ranks[at / 2 * 2 + 1]}))
    return rank_wrong("order of its own");
  RS_TRY(reshard_comm_barrier(comm));
  RS_TRY(reshard_comm_barrier(reshard_mesh_base_comm(own)));
  reshard_mesh_release(own);
  return RESHARD_SUCCESS;
}

static void order_body(void *user, int64_t rank) {
  reshard_status status = use_order(rank, "2x2@3-0", (int64_t[]){3, 2, 1, 0});
  RS_THEN(status, use_order(rank, "2x2@0,2,3,1", (int64_t[]){0, 2, 3, 1}));
  RS_THEN(status, use_order(rank, "2x2@0,2,1,3", (int64_t[]){0, 2, 1, 3}));
  rank_result_set(&results[rank], status);
}

CASE(groups_are_ranked_in_the_order_of_the_dims) { check_ranks(4, PATIENCE, order_body, NULL, RESHARD_SUCCESS, ""); }

/* One rank wants something else, or fails: all get the same error, and nothing is kept. */
typedef struct mistake {
  const char *mesh, *dims; /* of rank 2; NULL: as the others */
  bool no_output, own;
  reshard_status status;
  const char *part;
} mistake;

static reshard_status make_mistake(const mistake *m, int64_t rank, reshard_mesh mesh) {
  reshard_comm comm = (reshard_comm)m;
  reshard_mesh own = (reshard_mesh)m;
  bool odd = rank == 2;
  if (m->own)
    return reshard_mesh_own(mesh, odd && m->no_output ? NULL : &own);
  reshard_status status =
      reshard_mesh_comm(mesh, odd && m->dims != NULL ? m->dims : "tp", odd && m->no_output ? NULL : &comm);
  return comm == (reshard_comm)m ? status : rank_wrong("written to");
}

static void mistake_body(void *user, int64_t rank) {
  const mistake *m = user;
  reshard_mesh mesh = NULL;
  reshard_comm comm = NULL;
  const char *text = rank == 2 && m->mesh != NULL ? m->mesh : "dp=2,tp=3@0,1,2,3,4,5";
  reshard_status status = reshard_mesh_parse(comms[rank], 0, text, &mesh);
  RS_THEN(status, make_mistake(m, rank, mesh));
  rank_result_set(&results[rank], status);
  if (m->mesh == NULL && (reshard_mesh_comm(mesh, "tp", &comm) != RESHARD_SUCCESS || (comm == NULL) != (rank >= 6)))
    rank_result_set(&results[rank], rank_wrong("right, after a mistake"));
  reshard_mesh_release(mesh);
}

CASE(ranks_that_ask_for_different_groups_are_told) {
  static const mistake mistakes[] = {
      {NULL, "dp", false, false, RESHARD_ERROR_MISMATCH, "rank 0 splits by mesh dims tp of dp=2,tp=3@0-5 ("},
      {NULL, "dp", false, false, RESHARD_ERROR_MISMATCH, "), rank 2 by mesh dims dp of dp=2,tp=3@0-5 ("},
      {NULL, "tp,dp", false, false, RESHARD_ERROR_MISMATCH, "rank 2 by mesh dims tp,dp of dp=2,tp=3@0-5"},
      {NULL, "pp", false, false, RESHARD_ERROR_INVALID,
       "rank 2: mesh dims \"pp\": column 1: the mesh has no dim named pp"},
      {NULL, NULL, true, false, RESHARD_ERROR_INVALID, "rank 2: reshard_mesh_comm: comm is NULL"},
      {NULL, NULL, true, true, RESHARD_ERROR_INVALID, "rank 2: reshard_mesh_own: own is NULL"},
      {"dp=2,tp=3@1-6", NULL, false, false, RESHARD_ERROR_MISMATCH, "rank 2 by mesh dims tp of dp=2,tp=3@1-6"},
      {"dp=2,tp=3@0,1,2,5,4,3", NULL, false, false, RESHARD_ERROR_MISMATCH,
       "rank 2 by mesh dims tp of dp=2,tp=3@0-2,5-3"},
  };
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
    mistake m = mistakes[i];
    check_ranks(7, PATIENCE, mistake_body, &m, m.status, m.part);
  }
}

/* Rank 1 fails alone where the communicators are there already: nobody waits for it, and it for nobody. */
static reshard_status fail_alone(int64_t rank, reshard_mesh mesh) {
  reshard_comm comm;
  reshard_mesh own;
  RS_TRY(reshard_mesh_comm(mesh, "tp", &comm));
  RS_TRY(reshard_mesh_own(mesh, &own));
  reshard_mesh_release(own);
  if (rank == 1 && (reshard_mesh_comm(mesh, "tp", NULL) != RESHARD_ERROR_INVALID ||
                    strcmp(reshard_last_error(), "reshard_mesh_comm: comm is NULL") != 0 ||
                    reshard_mesh_own(mesh, NULL) != RESHARD_ERROR_INVALID ||
                    strcmp(reshard_last_error(), "reshard_mesh_own: own is NULL") != 0))
    return rank_wrong("a failure of one rank alone");
  return reshard_comm_barrier(comms[rank]);
}

CASE(test_fails_alone) {
  static const char *const texts[] = {"dp=2,tp=2@0-3", "dp=1,tp=5@0-4"}; /* of a part; the whole communicator */
  for (int i = 0; i < 2; i++) {
    check_ranks(5, 2000, use_body, &(mesh_use){0, texts[i], fail_alone}, RESHARD_SUCCESS, "");
  }
}

/* Rank 2 names another part of the root with as many dims, whose group is not there yet. */
static reshard_status use_unlike_parts(int64_t rank, reshard_mesh mesh) {
  reshard_mesh sub;
  reshard_comm comm;
  RS_TRY(reshard_mesh_comm(mesh, "pp", &comm));
  RS_TRY(reshard_mesh_sub(mesh, rank == 2 ? "dp" : "pp", RESHARD_MESH_MINE, &sub));
  reshard_status status = reshard_mesh_init_groups(sub, 0, NULL);
  reshard_mesh_release(sub);
  return status;
}

CASE(test_unlike_parts) {
  check_ranks(8, 2000, use_body, &(mesh_use){8, "pp=2,dp=2,tp=2", use_unlike_parts}, RESHARD_ERROR_MISMATCH,
              "ranks 0 and 2 make different groups: groups of pp=2,dp=2,tp=2@0-7: 0 (");
}

/* Meshes that differ where a text that is cut off does not show it. */
static void long_body(void *user, int64_t rank) {
  char text[256];
  reshard_mesh mesh;
  reshard_comm comm;
  memset(text, 'a', 200);
  strcpy(text + 200, rank == 2 ? "=4@0,2,3,1" : "=4@0,3,2,1");
  reshard_status status = reshard_mesh_parse(comms[rank], 0, text, &mesh);
  if (status == RESHARD_SUCCESS) {
    status = reshard_mesh_comm(mesh, NULL, &comm);
    reshard_mesh_release(mesh);
  }
  rank_result_set(&results[rank], status);
}

/* Ranks compare a text of 1,023 bytes at most, which each group makes longer by two: one more than fit, or two. */
CASE(groups_of_one_call_are_as_many_as_a_text_names) {
  static const char *const names[] = {"x", "xy"}, *dims[512];
  char text[RS_MESH_TEXT], both[16];
  rank_comms_open(1, 1, PATIENCE, comms);
  for (int i = 0; i < 2; i++) {
    reshard_mesh mesh;
    snprintf(both, sizeof both, "%s=1", names[i]);
    for (size_t k = 0; k < sizeof dims / sizeof *dims; k++)
      dims[k] = names[i];
    GOOD(reshard_mesh_parse(comms[0], 0, both, &mesh));
    int64_t begin = (int64_t)(strlen("groups of : (01234567)") + strlen(rs_mesh_text(text, mesh)));
    int64_t most = (1023 - begin) / 2;
    FAILS_WITH(reshard_mesh_init_groups(mesh, most + 1, dims), RESHARD_ERROR_INVALID,
               " groups in one call are too many");
    GOOD(reshard_mesh_init_groups(mesh, most, dims));
    reshard_mesh_release(mesh);
  }
  rank_comms_close(1, comms);
}

CASE(test_long_names) {
  check_ranks(4, PATIENCE, long_body, NULL, RESHARD_ERROR_MISMATCH,
              "rank 0 splits by mesh dims aaaaaaaaaaaaaaaa of aaaaaaaa");
}

/* --- Transfers in rows and columns of a mesh at the same time ---------------------------------------------------- */

enum { ROWS = 211, COLUMNS = 1031, ROUNDS = 6 /* enough for the copy threads */ };

/* Rank threads work in their row, their column and the whole at once: three threads for each. */
typedef struct stage {
  reshard_mesh mesh[6];
  reshard_comm comm[3][6];
  int64_t color[3][6]; /* which of the siblings; so the data differ */
  reshard_path path;
  rank_result results[3][6];
} stage;

static uint32_t element_value(int64_t color, int64_t round, int64_t row, int64_t column) {
  return (uint32_t)(((color * 31 + round) * ROWS + row) * COLUMNS + column);
}

static reshard_status box_of(reshard_layout layout, int64_t rank, reshard_interval *rows, reshard_interval *columns) {
  int64_t count;
  *rows = *columns = (reshard_interval){0, 0};
  RS_TRY(reshard_layout_array_intervals(layout, rank, 0, 0, 0, 1, rows, &count));
  return reshard_layout_array_intervals(layout, rank, 0, 1, 0, 1, columns, &count);
}

static reshard_status run_rounds(reshard_transfer transfer, int64_t color, const reshard_interval *box, uint32_t *src,
                                 const uint32_t *dst) {
  for (int64_t round = 0; round < ROUNDS; round++) {
    uint32_t *to = src;
    for (int64_t i = box[0].begin; i < box[0].end; i++)
      for (int64_t j = box[1].begin; j < box[1].end; j++)
        *to++ = element_value(color, round, i, j);
    RS_TRY(reshard_execute(transfer, NULL));
    const uint32_t *from = dst;
    for (int64_t i = box[2].begin; i < box[2].end; i++)
      for (int64_t j = box[3].begin; j < box[3].end; j++)
        if (*from++ != element_value(color, round, i, j))
          return rank_wrong("data");
  }
  return RESHARD_SUCCESS;
}

static reshard_status reshard_in(reshard_comm comm, int64_t color, reshard_path path) {
  const int64_t shape[2] = {ROWS, COLUMNS}, n = reshard_comm_size(comm), rank = reshard_comm_rank(comm);
  reshard_layout src, dst;
  reshard_plan plan;
  reshard_transfer transfer;
  reshard_interval box[4];
  RS_TRY(reshard_layout_create_chunk(2, shape, n, 0, 0, NULL, &src));
  RS_TRY(reshard_layout_create_chunk(2, shape, n, 1, 0, NULL, &dst));
  RS_TRY(box_of(src, rank, &box[0], &box[1]));
  RS_TRY(box_of(dst, rank, &box[2], &box[3]));
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_U32};
  RS_TRY(reshard_plan_create(1, &entry, rank, NULL, &plan));
  uint32_t *memory[2] = {calloc(ROWS * COLUMNS, 4), calloc(ROWS * COLUMNS, 4)};
  void *from = memory[0], *to = memory[1];
  reshard_arrays arrays = {RESHARD_ARRAYS_INIT, .src = &from, .dst = &to};
  reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = path};
  RS_TRY(reshard_transfer_create(plan, comm, &arrays, &options, &transfer));
  reshard_status status = run_rounds(transfer, color, box, memory[0], memory[1]);
  reshard_comm_stats stats;
  RS_THEN(status, reshard_comm_get_stats(comm, &stats));
  int64_t width = box[3].end - box[3].begin, kept = width * (box[0].end - box[0].begin);
  if (status == RESHARD_SUCCESS && stats.received_bytes != 4 * ROUNDS * (width * ROWS - kept))
    status = rank_wrong("bytes counted");
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  reshard_layout_release(src);
  reshard_layout_release(dst);
  free(memory[0]);
  free(memory[1]);
  return status;
}

static void stage_body(void *user, int64_t thread) {
  stage *s = user;
  int64_t kind = thread / 6, rank = thread % 6;
  rank_result_set(&s->results[kind][rank], reshard_in(s->comm[kind][rank], s->color[kind][rank], s->path));
}

static void make_body(void *user, int64_t rank) {
  stage *s = user;
  reshard_mesh mesh = s->mesh[rank];
  reshard_status status = reshard_mesh_comm(mesh, "tp", &s->comm[0][rank]);
  RS_THEN(status, reshard_mesh_comm(mesh, "dp", &s->comm[1][rank]));
  rank_result_set(&results[rank], status);
}

CASE(transfers_run_in_all_rows_at_once) {
  for (int path = 0; path < 2; path++) {
    stage s = {.path = path == 0 ? RESHARD_PATH_DIRECT : RESHARD_PATH_PACKED};
    rank_comms_open(6, 2, PATIENCE, comms);
    for (int r = 0; r < 6; r++) {
      GOOD(reshard_mesh_parse(comms[r], 0, "dp=2,tp=3", &s.mesh[r]));
      s.comm[2][r] = comms[r];
      s.color[0][r] = r / 3;
      s.color[1][r] = 10 + r % 3;
      s.color[2][r] = 20;
    }
    rank_threads_run(6, make_body, &s);
    rank_results_assert(6, results, RESHARD_SUCCESS, "", NULL);
    rank_threads_run(18, stage_body, &s);
    for (int i = 0; i < 18; i++)
      if (s.results[i / 6][i % 6].status != RESHARD_SUCCESS)
        fail_msg("kind %d, rank %d: %s", i / 6, i % 6, s.results[i / 6][i % 6].text);
    for (int r = 0; r < 6; r++)
      reshard_mesh_release(s.mesh[r]);
    rank_comms_close(6, comms);
  }
}

RUN_CASES
