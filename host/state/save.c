/* Saving a state dict: a writer of shards that all ranks of the process write to at the same time.
 *
 * The ranks meet twice. First one of them compares what all have and makes the writer, with the headers in its files;
 * then every rank writes its own arrays, which is a move from its memory to the writer's store, to its own places in
 * it; then one syncs and publishes. A rank that fails on its way comes to the next meeting with its status, and what
 * was written is abandoned. The writer belongs to all ranks: the last to leave frees it, so that a rank whose meeting
 * was broken off (an abort, a deadline) never takes it from those that still write.
 *
 * Ranks that are processes of their own do the same with what they tell each other: each compares all, rank 0 makes the
 * files, the others open theirs and sync them, and rank 0 puts all in place. */
#include "comm/gather.h"
#include "state/files.h"

#include <stdlib.h>
#include <string.h>

static const char call[] = "reshard_state_save";

/* Of all ranks. */
typedef struct saving {
  atomic_llong users;
  reshard_writer writer; /* NULL once it is committed or abandoned */
  reshard_state_save_report report;
  double start; /* of the part in hand */
} saving;

/* What a rank brings. */
typedef struct turn {
  rs_state_turn base;
  reshard_state_save_options options;
  saving *shared;
} turn;

static void leave(saving *s) {
  if (s == NULL || atomic_fetch_sub(&s->users, 1) != 1)
    return;
  reshard_writer_abandon(s->writer);
  free(s);
}

static reshard_status check_turns(int64_t n, void **all) {
  return rs_state_turns_check("saves", "to", n, (rs_state_turn *const *)all);
}

/* --- Comparing --------------------------------------------------------------------------------------------------- */

/* Two ranks' tensors of one path: one dtype and shape. */
static reshard_status check_alike(const rs_item *a, int64_t first, const rs_item *b, int64_t second) {
  char quoted[RS_QUOTE], one[RS_SHAPE_TEXT], other[RS_SHAPE_TEXT];
  int n = rs_item_ndim(a), m = rs_item_ndim(b);
  const int64_t *x = rs_item_shape(a), *y = rs_item_shape(b);
  rs_quote(quoted, sizeof quoted, a->path);
  if (rs_item_dtype(a) != rs_item_dtype(b))
    return rs_error(RESHARD_ERROR_MISMATCH, "path '%s': rank %lld has %s, rank %lld has %s", quoted, (long long)first,
                    reshard_dtype_string(rs_item_dtype(a)), (long long)second, reshard_dtype_string(rs_item_dtype(b)));
  if (n != m || memcmp(x, y, (size_t)n * sizeof *x) != 0)
    return rs_error(RESHARD_ERROR_MISMATCH, "path '%s': rank %lld has a tensor of shape %s, rank %lld of %s", quoted,
                    (long long)first, rs_shape_text(one, n, x), (long long)second, rs_shape_text(other, m, y));
  return RESHARD_SUCCESS;
}

static const char *kind_of(const rs_item *item) {
  return rs_item_is_sharded(item) ? "a sharded tensor" : rs_kind_text(rs_item_kind(item));
}

static reshard_status kinds_differ(const rs_item *a, int64_t first, const rs_item *b, int64_t second) {
  char quoted[RS_QUOTE];
  return rs_error(RESHARD_ERROR_MISMATCH, "path '%s': rank %lld has %s, rank %lld has %s",
                  rs_quote(quoted, sizeof quoted, a->path), (long long)first, kind_of(a), (long long)second,
                  kind_of(b));
}

static uint64_t layout_hash(const rs_item *item) {
  return item->told != NULL ? item->told->layout : rs_layout_hash(item->sharded->held.layout);
}

static bool same_layout(const rs_item *a, const rs_item *b) {
  return a->told == NULL && b->told == NULL ? reshard_layout_equal(a->sharded->held.layout, b->sharded->held.layout)
                                            : layout_hash(a) == layout_hash(b);
}

/* Two ranks' leaves of one path: both sharded alike, or neither. */
static reshard_status check_leaves(const rs_item *a, const rs_item *b, int64_t rank) {
  char quoted[RS_QUOTE];
  if (!rs_item_is_sharded(a) && !rs_item_is_sharded(b))
    return RESHARD_SUCCESS;
  if (!rs_item_is_sharded(a) || !rs_item_is_sharded(b))
    return kinds_differ(a, 0, b, rank);
  RS_TRY(check_alike(a, 0, b, rank));
  return same_layout(a, b)
             ? RESHARD_SUCCESS
             : rs_error(RESHARD_ERROR_MISMATCH, "path '%s': rank 0 and rank %lld have it in different layouts",
                        rs_quote(quoted, sizeof quoted, a->path), (long long)rank);
}

static reshard_status check_rank(const turn *zero, const turn *other, int64_t rank) {
  char quoted[RS_QUOTE];
  const rs_items *a = &zero->base.items, *b = &other->base.items;
  if (!zero->options.force != !other->options.force)
    return rs_error(RESHARD_ERROR_MISMATCH, "rank 0 saves with force %d, rank %lld with %d", zero->options.force,
                    (long long)rank, other->options.force);
  for (int64_t i = 0; i < a->all.n; i++) {
    const rs_item *found = rs_items_find(b, a->all.at[i].path);
    if (found == NULL)
      return rs_error(RESHARD_ERROR_MISMATCH, "path '%s' is on rank 0, and not on rank %lld",
                      rs_quote(quoted, sizeof quoted, a->all.at[i].path), (long long)rank);
    RS_TRY(check_leaves(&a->all.at[i], found, rank));
  }
  for (int64_t i = 0; i < b->all.n && a->all.n < b->all.n; i++)
    if (rs_items_find(a, b->all.at[i].path) == NULL)
      return rs_error(RESHARD_ERROR_MISMATCH, "path '%s' is on rank %lld, and not on rank 0",
                      rs_quote(quoted, sizeof quoted, b->all.at[i].path), (long long)rank);
  return RESHARD_SUCCESS;
}

/* --- The first meeting: all leaves of rank 0, as the lowest rank has them that has them -------------------------- */

typedef struct making {
  int64_t n; /* ranks */
  turn *const *turns;
  const turn *mine;                      /* one of them, of this process */
  RS_VEC(reshard_writer_tensor) tensors; /* with a reference of the layout */
  rs_print leaves;
} making;

static reshard_status add_tensor(making *m, const rs_item *item, int64_t rank) {
  reshard_writer_tensor tensor = {item->path, rs_item_dtype(item), NULL};
  RS_TRY(rs_vec_reserve(&m->tensors, m->tensors.n + 1));
  if (rs_item_is_sharded(item)) { /* on all ranks alike */
    tensor.layout = reshard_layout_retain(rs_items_find(&m->mine->base.items, item->path)->sharded->held.layout);
  } else {
    RS_TRY(reshard_layout_create_single(rs_item_ndim(item), rs_item_shape(item), m->n, rank, &tensor.layout));
  }
  m->tensors.at[m->tensors.n++] = tensor;
  return RESHARD_SUCCESS;
}

/* A path's leaf, of the lowest rank where it is no null. All that are none are tensors of one dtype and shape, or none
 * is a tensor. */
static reshard_status add_leaf(making *m, const char *path) {
  const rs_item *item = NULL;
  int64_t rank = 0;
  for (int64_t r = 0; r < m->n; r++) {
    const rs_item *other = rs_items_find(&m->turns[r]->base.items, path);
    if (item == NULL || rs_item_kind(item) == RESHARD_TREE_NULL) {
      item = other;
      rank = r;
    } else if (rs_item_kind(other) != RESHARD_TREE_NULL) {
      if (rs_item_is_tensor(item) != rs_item_is_tensor(other))
        return kinds_differ(item, rank, other, r);
      if (rs_item_is_tensor(item))
        RS_TRY(check_alike(item, rank, other, r));
    }
  }
  if (rs_item_is_tensor(item))
    return add_tensor(m, item, rank);
  if (m->leaves.n == 0)
    rs_state_json_begin(&m->leaves);
  if (m->leaves.status == RESHARD_SUCCESS)
    rs_state_json_add(&m->leaves, item);
  return m->leaves.status;
}

static reshard_status create_writer(making *m, saving *s) {
  const turn *t = m->mine;
  const reshard_writer_options options = {RESHARD_WRITER_OPTIONS_INIT, .force = t->options.force, .dedup = 1};
  rs_writer_report written;
  RS_TRY(reshard_writer_create(t->base.directory, m->tensors.n, m->tensors.at, &options, &s->writer));
  if (m->leaves.n > 0) {
    rs_state_json_end(&m->leaves);
    RS_TRY(rs_writer_attach(s->writer, RS_STATE_JSON, &m->leaves));
  }
  rs_writer_get_report(s->writer, &written);
  s->report.tensors = m->tensors.n;
  s->report.files = written.files;
  s->report.bytes = written.bytes;
  s->report.reserve_seconds = written.reserve_seconds;
  return RESHARD_SUCCESS;
}

static bool is_directory(const char *path) { return !rs_ends(path, ".safetensors") && !rs_ends(path, ".npy"); }

/* What all ranks have, compared, and listed. */
static reshard_status list_all(making *m) {
  turn *const *t = m->turns;
  char where[RS_WHERE];
  RS_TRY(check_turns(m->n, (void **)m->turns));
  for (int64_t r = 1; r < m->n; r++)
    RS_TRY(check_rank(t[0], t[r], r));
  if (!is_directory(t[0]->base.directory))
    return rs_error(RESHARD_ERROR_INVALID, "%s: a state dict is saved to a directory, this is the name of a file",
                    rs_where(where, "output", t[0]->base.directory));
  for (int64_t i = 0; i < t[0]->base.items.all.n; i++)
    RS_TRY(add_leaf(m, t[0]->base.items.all.at[i].path));
  return RESHARD_SUCCESS;
}

static void making_free(making *m) {
  for (int64_t i = 0; i < m->tensors.n; i++)
    reshard_layout_release(m->tensors.at[i].layout);
  free(m->tensors.at);
  free(m->leaves.at);
}

static void start_writing(saving *s, double start) {
  s->start = rs_seconds();
  s->report.prepare_seconds = s->start - start - s->report.reserve_seconds;
}

static reshard_status begin(int64_t n, void **all) {
  turn *const *t = (turn *const *)all;
  double start = rs_seconds();
  making m = {.n = n, .turns = t, .mine = t[0]};
  saving *s = NULL;
  reshard_status status = list_all(&m);
  if (status == RESHARD_SUCCESS)
    status = rs_alloc_zero(&s, 1, sizeof *s);
  if (status == RESHARD_SUCCESS)
    status = create_writer(&m, s);
  making_free(&m);
  if (status != RESHARD_SUCCESS) {
    reshard_writer_abandon(s != NULL ? s->writer : NULL);
    free(s);
    return status;
  }
  start_writing(s, start);
  atomic_init(&s->users, n);
  for (int64_t r = 0; r < n; r++)
    t[r]->shared = s;
  return RESHARD_SUCCESS;
}

/* --- The same among processes ------------------------------------------------------------------------------------ */

/* All turns, mine and what I have heard of the others'. */
static reshard_status hear(turn *mine, const rs_strings *strings, turn *heard, turn **turns) {
  for (int64_t r = 0; r < strings->n; r++) {
    int64_t force = 0;
    turns[r] = r == mine->base.comm->rank ? mine : &heard[r];
    if (turns[r] == mine)
      continue;
    RS_TRY(rs_told_unpack(strings->bytes + strings->first[r], strings->first[r + 1] - strings->first[r], &heard[r].base,
                          &force));
    heard[r].options.force = (int)force;
  }
  return RESHARD_SUCCESS;
}

static reshard_status list_apart(turn *t, const rs_strings *strings, making *m) {
  turn *heard = NULL, **turns = NULL;
  reshard_status status = rs_alloc_zero(&heard, strings->n, sizeof *heard);
  if (status == RESHARD_SUCCESS)
    status = rs_alloc_zero((void *)&turns, strings->n, sizeof *turns);
  if (status == RESHARD_SUCCESS)
    status = hear(t, strings, heard, turns);
  m->n = strings->n;
  m->turns = turns;
  m->mine = t;
  if (status == RESHARD_SUCCESS)
    status = list_all(m);
  for (int64_t r = 0; heard != NULL && r < strings->n; r++)
    rs_items_free(&heard[r].base.items);
  free(turns);
  free(heard);
  m->turns = NULL;
  return status;
}

/* Rank 0 makes the files, and says where; the others open theirs. */
static reshard_status create_apart(turn *t, making *m) {
  reshard_status status = RESHARD_SUCCESS;
  reshard_comm comm = t->base.comm;
  saving *s = t->shared;
  rs_strings *strings;
  bool maker = comm->rank == 0;
  if (maker)
    status = create_writer(m, s);
  const char *path = status == RESHARD_SUCCESS && maker ? rs_writer_path(s->writer) : "";
  RS_TRY(rs_comm_gather_bytes(comm, status, path, (int64_t)strlen(path) + 1, &strings));
  if (!maker)
    status = rs_writer_join(strings->bytes, comm->rank, m->tensors.n, m->tensors.at, &s->writer);
  rs_strings_release(strings);
  return rs_agree(comm, status);
}

static reshard_status begin_apart(turn *t) {
  rs_print told = {0};
  rs_strings *strings = NULL;
  making m = {0};
  double start = rs_seconds();
  reshard_status status = t->base.status;
  if (status == RESHARD_SUCCESS)
    status = rs_told_pack(&t->base, t->options.force, &told);
  if (status == RESHARD_SUCCESS)
    status = rs_alloc_zero(&t->shared, 1, sizeof *t->shared);
  if (t->shared != NULL)
    atomic_init(&t->shared->users, 1);
  status = rs_comm_gather_bytes(t->base.comm, status, told.at, told.n, &strings);
  free(told.at);
  RS_TRY(status);
  status = list_apart(t, strings, &m);
  /* What is wrong with the leaves is the same on all ranks; what is wrong with one alone the others are told. */
  bool alone = status == RESHARD_ERROR_OUT_OF_MEMORY || status == RESHARD_ERROR_CORRUPT;
  reshard_status agreed = rs_agree(t->base.comm, alone ? status : RESHARD_SUCCESS);
  status = agreed != RESHARD_SUCCESS ? agreed : status;
  if (status == RESHARD_SUCCESS)
    status = create_apart(t, &m);
  making_free(&m);
  rs_strings_release(strings);
  if (status == RESHARD_SUCCESS)
    start_writing(t->shared, start);
  return status;
}

/* --- Each rank, and the second meeting --------------------------------------------------------------------------- */

/* Those of the leaves that are in a group. */
static reshard_status write_group(const turn *t, int64_t group) {
  const rs_store *files = rs_writer_store(t->shared->writer);
  int64_t rank = t->base.comm->rank;
  rs_store mine = {0};
  rs_routes routes = {0};
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0; i < files->tensors.n && status == RESHARD_SUCCESS; i++) {
    reshard_layout layout = files->tensors.at[i].layout;
    const rs_item *item = rs_items_find(&t->base.items, files->model->names.at + files->model->tensors.at[i].name);
    if (item->group != group || rs_layout_arrays(layout, rank) == 0)
      continue;
    status = rs_item_add(item, layout, rank, &mine);
    if (status == RESHARD_SUCCESS)
      status = rs_rank_routes(&mine, mine.tensors.n - 1, files, i, rank, &routes);
  }
  if (status == RESHARD_SUCCESS && routes.n > 0)
    status = rs_move_run(&(rs_move){.src = &mine,
                                    .dst = files,
                                    .nroutes = routes.n,
                                    .routes = routes.at,
                                    .threads = rs_rank_threads(t->base.comm, t->options.threads),
                                    .only_rank = rank});
  rs_store_free(&mine);
  free(routes.at);
  return status;
}

/* What a GPU has is copied to the host while the group before it is written. */
static reshard_status write_mine(const turn *t) {
  const rs_stage *stage = &t->base.stage;
  for (int64_t group = -1; group < stage->groups; group++) {
    if (group >= 0)
      RS_TRY(rs_stage_wait(stage));
    RS_TRY(rs_stage_copy(stage, group + 1, true));
    RS_TRY(write_group(t, group));
  }
  return RESHARD_SUCCESS;
}

static reshard_status finish(saving *s, double written) {
  reshard_writer writer = s->writer;
  RS_TRY(rs_writer_sync(writer, NULL, NULL)); /* else the last rank abandons it */
  s->writer = NULL;
  RS_TRY(rs_writer_publish(writer));
  s->report.sync_seconds = rs_seconds() - written;
  return RESHARD_SUCCESS;
}

static reshard_status end(int64_t n, void **all) {
  saving *s = ((turn *const *)all)[0]->shared;
  double written = rs_seconds();
  s->report.write_seconds = written - s->start;
  RS_TRY(check_turns(n, all));
  return finish(s, written);
}

/* All have written and synced what is theirs; rank 0's report is everybody's. */
static reshard_status end_apart(turn *t) {
  reshard_comm comm = t->base.comm;
  saving *s = t->shared;
  rs_strings *strings;
  reshard_status status = t->base.status;
  if (status == RESHARD_SUCCESS && comm->rank != 0)
    status = rs_writer_sync(s->writer, NULL, NULL);
  RS_TRY(rs_agree(comm, status));
  double written = rs_seconds();
  s->report.write_seconds = written - s->start;
  if (comm->rank == 0)
    status = finish(s, written);
  RS_TRY(rs_comm_gather_bytes(comm, status, &s->report, sizeof s->report, &strings));
  memcpy(&s->report, strings->bytes, sizeof s->report);
  rs_strings_release(strings);
  return RESHARD_SUCCESS;
}

static reshard_status prepare(reshard_sharder sharder, reshard_tree state, const char *directory,
                              const reshard_state_save_options *options, turn *t) {
  const reshard_state_save_options none = {.size = RESHARD_STATE_SAVE_OPTIONS_INIT};
  if (directory == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: directory is NULL", call);
  t->options = options != NULL ? *options : none;
  if (t->options.size != sizeof t->options)
    return rs_error(RESHARD_ERROR_INVALID, "size field %zu, this library's reshard_state_save_options has %zu",
                    t->options.size, sizeof t->options);
  if (t->options.threads < 0 || t->options.threads > 4096)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %d threads, 4096 are the most", call, t->options.threads);
  RS_TRY(rs_items_list(t->base.comm, state, &t->base.items));
  return rs_stage_open(sharder, t->options.stream, t->options.staging_bytes, &t->base.items, &t->base.stage);
}

reshard_status reshard_state_save(reshard_sharder sharder, reshard_tree state, const char *directory,
                                  const reshard_state_save_options *options, reshard_state_save_report *report) {
  if (sharder == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: sharder is NULL", call);
  reshard_comm comm = sharder->comm;
  turn t = {.base = {.comm = comm, .directory = directory}};
  reshard_tree flat = NULL;
  RS_TRY(reshard_state_flatten_sharded_tensors_global(sharder, state, &flat));
  t.base.status = prepare(sharder, flat, directory, options, &t);
  t.base.text = reshard_last_error();
  bool apart = !rs_one_process(comm);
  reshard_status status = apart ? begin_apart(&t) : comm->ops->together(comm, begin, &t);
  if (status == RESHARD_SUCCESS) {
    t.base.status = write_mine(&t);
    status = apart ? end_apart(&t) : comm->ops->together(comm, end, &t);
  }
  if (status == RESHARD_SUCCESS && report != NULL)
    *report = t.shared->report;
  leave(t.shared);
  rs_stage_close(&t.base.stage);
  rs_items_free(&t.base.items);
  reshard_tree_release(flat);
  return status;
}
