/* Saving a state dict: a writer of shards that all ranks of the process write to at the same time.
 *
 * The ranks meet twice. First one of them compares what all have and makes the writer, with the headers in its files;
 * where some tensors are told by boxes, the ranks then tell them, and come to it once more. Every rank writes its own
 * arrays, which is a move from its memory to the writer's store, to its own places in it. Then one syncs and publishes.
 * A rank that fails on its way comes to the next meeting with its status, and what was written is abandoned. The writer
 * belongs to all ranks: the last to leave frees it, so that a rank whose meeting was broken off (an abort, a deadline)
 * never takes it from those that still write.
 *
 * Ranks that are processes of their own do the same with what they tell each other: each compares all, rank 0 makes the
 * files, the others open theirs and sync them, and rank 0 puts all in place. */
#include "comm/gather.h"
#include "state/checkpoint.h"

#include <stdlib.h>
#include <string.h>

static const char call[] = "reshard_state_save";

/* Of all ranks. */
typedef struct saving {
  atomic_llong users;
  reshard_writer writer; /* NULL once it is committed or abandoned */
  reshard_state_save_report report;
  double start;   /* of the part in hand */
  rs_boxed boxed; /* what the ranks have to tell by boxes */
} saving;

/* What a rank brings. */
typedef struct turn {
  rs_state_turn base;
  reshard_state_save_options options;
  saving *shared;
  reshard_sharder sharder;
  rs_boxed boxed; /* what was told by boxes */
} turn;

static void leave(saving *s) {
  if (s == NULL || atomic_fetch_sub(&s->users, 1) != 1)
    return;
  reshard_writer_abandon(s->writer);
  rs_boxed_free(&s->boxed);
  free(s);
}

static reshard_status check_turns(int64_t n, void **all) {
  return rs_state_turns_check("saves", "to", n, (rs_state_turn *const *)all);
}

/* --- The first meeting: all leaves, as the lowest rank has them that has them ------------------------------------- */

typedef struct making {
  int64_t n; /* ranks */
  turn *const *turns;
  const turn *mine; /* one of them, of this process */
  rs_paths paths;
  rs_boxed boxed;                        /* those of them that the ranks still have to tell by boxes */
  RS_VEC(reshard_writer_tensor) tensors; /* with a reference of the layout */
  rs_print leaves;
} making;

/* met: tensors before it that were told by boxes. */
static reshard_status add_tensor(making *m, const rs_path *p, int64_t *met) {
  reshard_writer_tensor tensor = {p->item->path, rs_item_dtype(p->item), NULL};
  RS_TRY(rs_vec_reserve(&m->tensors, m->tensors.n + 1));
  if (p->boxes)
    tensor.layout = reshard_layout_retain(m->mine->boxed.tensors[(*met)++].made->local.layout);
  else if (rs_item_is_sharded(p->item)) /* on all ranks alike */
    tensor.layout = reshard_layout_retain(rs_items_find(&m->mine->base.items, tensor.name)->sharded->local.layout);
  else
    RS_TRY(reshard_layout_create_single(rs_item_ndim(p->item), rs_item_shape(p->item), m->n, p->rank, &tensor.layout));
  m->tensors.at[m->tensors.n++] = tensor;
  return RESHARD_SUCCESS;
}

static reshard_status add_leaves(making *m) {
  int64_t met = 0;
  for (int64_t i = 0; i < m->paths.all.n; i++) {
    const rs_path *p = &m->paths.all.at[i];
    if (rs_item_is_tensor(p->item)) {
      RS_TRY(add_tensor(m, p, &met));
      continue;
    }
    if (m->leaves.n == 0)
      rs_state_json_begin(&m->leaves);
    if (m->leaves.status == RESHARD_SUCCESS)
      rs_state_json_add(&m->leaves, p->item);
    RS_TRY(m->leaves.status);
  }
  return RESHARD_SUCCESS;
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

/* What all ranks have, compared, and listed; or what they still have to tell. */
static reshard_status list_all(making *m) {
  turn *const *t = m->turns;
  char where[RS_WHERE];
  RS_TRY(check_turns(m->n, (void **)m->turns));
  for (int64_t r = 1; r < m->n; r++)
    if (!t[0]->options.force != !t[r]->options.force)
      return rs_error(RESHARD_ERROR_MISMATCH, "rank 0 saves with force %d, rank %lld with %d", t[0]->options.force,
                      (long long)r, t[r]->options.force);
  RS_TRY(rs_paths_compare(m->n, (rs_state_turn *const *)m->turns, &m->paths));
  if (!is_directory(t[0]->base.directory))
    return rs_error(RESHARD_ERROR_INVALID, "%s: a state dict is saved to a directory, this is the name of a file",
                    rs_where(where, "output", t[0]->base.directory));
  if (m->paths.boxes == m->mine->boxed.n)
    return add_leaves(m);
  return m->mine->boxed.n == 0 ? rs_boxed_list(&m->paths, &m->boxed)
                               : rs_error(RESHARD_ERROR_INTERNAL, "%lld tensors were told by boxes, and not %lld",
                                          (long long)m->mine->boxed.n, (long long)m->paths.boxes);
}

static void making_free(making *m) {
  for (int64_t i = 0; i < m->tensors.n; i++)
    reshard_layout_release(m->tensors.at[i].layout);
  free(m->tensors.at);
  free(m->leaves.at);
  rs_paths_free(&m->paths);
  rs_boxed_free(&m->boxed);
}

/* Tells what the list has by boxes. What fails on this rank alone then is for the next meeting. */
static reshard_status tell_boxes(turn *t, const rs_boxed *list) {
  RS_TRY(rs_boxed_meet(t->sharder, &t->base.items, list, &t->boxed));
  rs_stage_close(&t->base.stage);
  t->base.status =
      rs_stage_open(t->sharder, t->options.stream, t->options.staging_bytes, &t->base.items, &t->base.stage);
  t->base.text = reshard_last_error();
  return RESHARD_SUCCESS;
}

static void start_writing(saving *s) {
  double begun = s->start;
  s->start = rs_seconds();
  s->report.prepare_seconds = s->start - begun - s->report.reserve_seconds;
}

static reshard_status new_saving(int64_t n, double start, saving **s) {
  RS_TRY(rs_alloc_zero(s, 1, sizeof **s));
  atomic_init(&(*s)->users, n);
  (*s)->start = start;
  return RESHARD_SUCCESS;
}

/* Makes the writer; or, where boxes are to be told, the list of what they are of: then the ranks come once more. */
static reshard_status begin(int64_t n, void **all) {
  turn *const *t = (turn *const *)all;
  double start = rs_seconds();
  making m = {.n = n, .turns = t, .mine = t[0]};
  saving *s = t[0]->shared;
  reshard_status status = list_all(&m);
  if (status == RESHARD_SUCCESS && s == NULL) {
    status = new_saving(n, start, &s);
    for (int64_t r = 0; r < n; r++)
      t[r]->shared = s;
  }
  if (status == RESHARD_SUCCESS && m.boxed.n > 0) {
    s->boxed = m.boxed;
    m.boxed = (rs_boxed){0};
  } else if (status == RESHARD_SUCCESS) {
    status = create_writer(&m, s);
    if (status == RESHARD_SUCCESS)
      start_writing(s);
  }
  making_free(&m);
  if (status == RESHARD_SUCCESS || s == NULL)
    return status;
  reshard_writer_abandon(s->writer);
  s->writer = NULL;
  return status;
}

static reshard_status begin_together(turn *t) {
  reshard_comm comm = t->base.comm;
  RS_TRY(comm->ops->together(comm, begin, t));
  if (t->shared->boxed.n == 0)
    return RESHARD_SUCCESS;
  RS_TRY(tell_boxes(t, &t->shared->boxed));
  return comm->ops->together(comm, begin, t);
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

/* The ranks' turns, as this one has heard of them. */
typedef struct hearing {
  int64_t n;
  turn *heard, **turns;
} hearing;

static reshard_status listen(turn *t, const rs_strings *strings, hearing *h) {
  h->n = strings->n;
  RS_TRY(rs_alloc_zero(&h->heard, h->n, sizeof *h->heard));
  RS_TRY(rs_alloc_zero((void *)&h->turns, h->n, sizeof *h->turns));
  return hear(t, strings, h->heard, h->turns);
}

static void hearing_free(hearing *h) {
  for (int64_t r = 0; h->heard != NULL && r < h->n; r++)
    rs_items_free(&h->heard[r].base.items);
  free(h->turns);
  free(h->heard);
}

/* What is wrong with the leaves is the same on all ranks; what is wrong with one alone the others are told. */
static reshard_status agree_alone(reshard_comm comm, reshard_status status) {
  bool alone = status == RESHARD_ERROR_OUT_OF_MEMORY || status == RESHARD_ERROR_CORRUPT;
  reshard_status agreed = rs_agree(comm, alone ? status : RESHARD_SUCCESS);
  return agreed != RESHARD_SUCCESS ? agreed : status;
}

static reshard_status list_apart(turn *t, const hearing *h, making *m) {
  *m = (making){.n = h->n, .turns = h->turns, .mine = t};
  RS_TRY(agree_alone(t->base.comm, list_all(m)));
  if (m->boxed.n == 0)
    return RESHARD_SUCCESS;
  RS_TRY(tell_boxes(t, &m->boxed));
  making_free(m);
  *m = (making){.n = h->n, .turns = h->turns, .mine = t};
  return rs_agree(t->base.comm, t->base.status == RESHARD_SUCCESS ? list_all(m) : t->base.status);
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
  hearing h = {0};
  making m = {0};
  reshard_status status = t->base.status;
  if (status == RESHARD_SUCCESS)
    status = rs_told_pack(&t->base, t->options.force, &told);
  if (status == RESHARD_SUCCESS)
    status = new_saving(1, rs_seconds(), &t->shared);
  status = rs_comm_gather_bytes(t->base.comm, status, told.at, told.n, &strings);
  free(told.at);
  RS_TRY(status);
  status = listen(t, strings, &h);
  if (status == RESHARD_SUCCESS)
    status = list_apart(t, &h, &m);
  else
    status = agree_alone(t->base.comm, status);
  if (status == RESHARD_SUCCESS)
    status = create_apart(t, &m);
  making_free(&m);
  hearing_free(&h);
  rs_strings_release(strings);
  if (status == RESHARD_SUCCESS)
    start_writing(t->shared);
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
    if (item == NULL || item->group != group || rs_layout_arrays(layout, rank) == 0)
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

static reshard_status prepare(reshard_tree state, const char *directory, const reshard_state_save_options *options,
                              turn *t) {
  const reshard_state_save_options none = {.size = RESHARD_STATE_SAVE_OPTIONS_INIT};
  if (state == NULL || directory == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %s is NULL", call, state == NULL ? "state" : "directory");
  t->options = options != NULL ? *options : none;
  if (t->options.size != sizeof t->options)
    return rs_error(RESHARD_ERROR_INVALID, "size field %zu, this library's reshard_state_save_options has %zu",
                    t->options.size, sizeof t->options);
  if (t->options.threads < 0 || t->options.threads > 4096)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %d threads, 4096 are the most", call, t->options.threads);
  RS_TRY(rs_items_list(t->base.comm, state, &t->base.items));
  return rs_stage_open(t->sharder, t->options.stream, t->options.staging_bytes, &t->base.items, &t->base.stage);
}

reshard_status reshard_state_save(reshard_sharder sharder, reshard_tree state, const char *directory,
                                  const reshard_state_save_options *options, reshard_state_save_report *report) {
  if (sharder == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: sharder is NULL", call);
  reshard_comm comm = sharder->comm;
  turn t = {.base = {.comm = comm, .directory = directory}, .sharder = sharder};
  t.base.status = prepare(state, directory, options, &t);
  t.base.text = reshard_last_error();
  bool apart = !rs_one_process(comm);
  reshard_status status = apart ? begin_apart(&t) : begin_together(&t);
  if (status == RESHARD_SUCCESS) {
    t.base.status = write_mine(&t);
    status = apart ? end_apart(&t) : comm->ops->together(comm, end, &t);
  }
  if (status == RESHARD_SUCCESS && report != NULL)
    *report = t.shared->report;
  leave(t.shared);
  rs_stage_close(&t.base.stage);
  rs_items_free(&t.base.items);
  rs_boxed_free(&t.boxed);
  return status;
}
