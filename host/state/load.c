/* Loading a state dict: one rank opens the checkpoint for all of the process; each rank then checks its own leaves
 * against it. When all of them fit on all ranks, data are read into memory: a move from the checkpoint's store to that
 * of all ranks together, or to each rank's own. Leaves that are no tensors are put in their places last, which cannot
 * fail. Ranks that are processes of their own each open it, and compare what they have opened. */
#include "comm/gather.h"
#include "state/checkpoint.h"

#include <stdlib.h>
#include <string.h>

static const char call[] = "reshard_state_load";

/* Of all ranks: the last to leave closes it. */
typedef struct loading {
  atomic_llong users;
  rs_opened opened;
} loading;

/* What is moved: the routes in steps, one after the other. */
typedef struct way {
  rs_store mine;
  rs_routes routes;
  RS_VEC(int64_t) ends; /* of the steps */
  int64_t plain;        /* steps before those of staged groups, one each */
} way;

/* What a rank brings. */
typedef struct turn {
  rs_state_turn base;
  reshard_state_load_options options;
  loading *shared;
  way way;
  reshard_state_load_report report;
  char *lacks;  /* names of the checkpoint that this rank's state has not (rs_opened_list_lacking) */
  bool lacking; /* a rank that is not partial lacks some */
  bool done;    /* it was read, for all ranks together */
} turn;

static void free_loading(loading *l) {
  reshard_checkpoint_close(l->opened.checkpoint);
  rs_leaves_free(&l->opened.leaves);
  free(l);
}

static void leave(loading *l) {
  if (l != NULL && atomic_fetch_sub(&l->users, 1) == 1)
    free_loading(l);
}

static reshard_status open_all(int64_t n, void **all) {
  turn *const *t = (turn *const *)all;
  const char *directory = t[0]->base.directory;
  loading *l = NULL;
  RS_TRY(rs_state_turns_check("loads", "from", n, (rs_state_turn *const *)all));
  RS_TRY(rs_alloc_zero(&l, 1, sizeof *l));
  reshard_status status = reshard_checkpoint_open(directory, &l->opened.checkpoint);
  if (status == RESHARD_SUCCESS)
    status = rs_state_json_read(directory, &l->opened.leaves);
  if (status == RESHARD_SUCCESS)
    status = rs_checkpoint_in_place(l->opened.checkpoint, directory);
  if (status != RESHARD_SUCCESS) {
    free_loading(l);
    return status;
  }
  atomic_init(&l->users, n);
  for (int64_t r = 0; r < n; r++)
    t[r]->shared = l;
  return RESHARD_SUCCESS;
}

/* What the state lacks, and does that matter here? */
static reshard_status list_lacking(turn *t) {
  bool some;
  RS_TRY(rs_opened_list_lacking(&t->shared->opened, &t->base.items, &t->lacks, &some));
  t->lacking = some && !t->options.partial;
  return RESHARD_SUCCESS;
}

/* What tells one version of a checkpoint from another, wherever its file system is mounted: names and sizes of its
 * tensors, and its files, with the times of their last change. */
static uint64_t version_of(const loading *l) {
  const rs_store *s = &l->opened.checkpoint->store;
  uint64_t h = rs_hash((uint64_t)s->model->tensors.n, s->model->names.at, (size_t)s->model->names.n);
  for (int64_t f = 0; f < s->files.n; f++) {
    int64_t words[2] = {s->files.at[f].size, s->files.at[f].changed_ns};
    h = rs_hash(h, words, sizeof words);
  }
  for (int64_t i = 0; i < l->opened.leaves.all.n; i++)
    h = rs_hash(h, l->opened.leaves.paths.at[i], strlen(l->opened.leaves.paths.at[i]));
  return h;
}

/* The directory that all name. */
static reshard_status compare_names(turn *t) {
  reshard_comm comm = t->base.comm;
  const char *mine = t->base.status == RESHARD_SUCCESS ? t->base.directory : "";
  rs_strings *all;
  char first[RS_QUOTE], second[RS_QUOTE];
  reshard_status status = RESHARD_SUCCESS;
  RS_TRY(rs_comm_gather_bytes(comm, t->base.status, mine, (int64_t)strlen(mine) + 1, &all));
  for (int64_t r = 1; r < all->n && status == RESHARD_SUCCESS; r++)
    if (strcmp(all->bytes, all->bytes + all->first[r]) != 0)
      status = rs_error(RESHARD_ERROR_MISMATCH, "rank 0 loads from '%s', rank %lld from '%s'",
                        rs_quote(first, sizeof first, all->bytes), (long long)r,
                        rs_quote(second, sizeof second, all->bytes + all->first[r]));
  rs_strings_release(all);
  return status;
}

static reshard_status open_apart(turn *t) {
  reshard_comm comm = t->base.comm;
  void *mine = t;
  rs_strings *all;
  uint64_t told[2] = {0, 0}, first[2], other[2]; /* the version, and: does this rank lack some of it? */
  char quoted[RS_QUOTE];
  RS_TRY(compare_names(t));
  reshard_status status = open_all(1, &mine);
  if (status == RESHARD_SUCCESS)
    status = list_lacking(t);
  if (status == RESHARD_SUCCESS) {
    told[0] = version_of(t->shared);
    told[1] = t->lacking;
  }
  RS_TRY(rs_comm_gather_bytes(comm, status, told, sizeof told, &all));
  memcpy(first, all->bytes, sizeof first);
  for (int64_t r = 0; r < all->n && status == RESHARD_SUCCESS; r++) {
    memcpy(other, all->bytes + all->first[r], sizeof other);
    t->lacking |= other[1] != 0;
    if (other[0] != first[0])
      status = rs_error(RESHARD_ERROR_SYSTEM, "ranks 0 and %lld have opened different checkpoints at '%s'",
                        (long long)r, rs_quote(quoted, sizeof quoted, t->base.directory));
  }
  rs_strings_release(all);
  return status;
}

/* --- Data -------------------------------------------------------------------------------------------------------- */

/* This rank's memory of a tensor, and the way there. */
static reshard_status add_tensor(const turn *t, const rs_item *item, rs_store *mine, rs_routes *routes) {
  reshard_layout layout = NULL;
  int64_t rank = 0;
  if (item->sharded != NULL) {
    rank = item->sharded->sharder->comm->rank;
    layout = reshard_layout_retain(item->sharded->local.layout);
  } else {
    RS_TRY(reshard_layout_create_single(rs_item_ndim(item), rs_item_shape(item), 1, rank, &layout));
  }
  reshard_status status = rs_item_add(item, layout, rank, mine);
  if (status == RESHARD_SUCCESS)
    status = rs_rank_routes(&t->shared->opened.checkpoint->store, rs_opened_tensor(&t->shared->opened, item->path),
                            mine, mine->tensors.n - 1, rank, routes);
  reshard_layout_release(layout);
  return status;
}

static void free_way(way *w) {
  rs_store_free(&w->mine);
  free(w->routes.at);
  free(w->ends.at);
}

/* A tensor into the last step, or a new one. */
static reshard_status add_way(turn *t, const rs_item *item, bool fresh) {
  way *w = &t->way;
  RS_TRY(rs_vec_reserve(&w->ends, w->ends.n + 1));
  RS_TRY(add_tensor(t, item, &w->mine, &w->routes));
  w->ends.n += fresh || w->ends.n == 0;
  w->ends.at[w->ends.n - 1] = w->routes.n;
  return RESHARD_SUCCESS;
}

/* Tensors that share no memory with others are one step. Those that do - one that stands at two paths - follow by
 * themselves, in the order of their paths: no two threads write to one place, and the last path is what stays. Then
 * come groups of what is staged, which has a place of its own until it is copied, in that order, too. */
static reshard_status list_steps(turn *t) {
  const rs_items *items = &t->base.items;
  bool *shared;
  RS_TRY(rs_alloc_zero(&shared, items->all.n, sizeof *shared));
  reshard_status status = rs_items_sharing(items, shared);
  for (int own = 0; own < 2; own++)
    for (int64_t i = 0; i < items->all.n && status == RESHARD_SUCCESS; i++)
      if (rs_item_is_tensor(&items->all.at[i]) && items->all.at[i].group < 0 && shared[i] == (own == 1))
        status = add_way(t, &items->all.at[i], own == 1);
  free(shared);
  t->way.plain = t->way.ends.n;
  for (int64_t i = 0; i < items->all.n && status == RESHARD_SUCCESS; i++)
    if (items->all.at[i].group >= 0)
      status = add_way(t, &items->all.at[i], t->way.plain + items->all.at[i].group == t->way.ends.n);
  return status;
}

static reshard_status make_mine(turn *t) {
  const rs_store *mine = &t->way.mine;
  const rs_routes *routes = &t->way.routes;
  RS_TRY(rs_opened_fits(&t->shared->opened, &t->base.items));
  RS_TRY(list_steps(t));
  t->report.tensors = mine->tensors.n;
  for (int64_t i = 0; i < routes->n; i++) {
    const rs_model_tensor *target = &mine->model->tensors.at[routes->at[i].dst];
    int64_t bytes = (int64_t)reshard_dtype_size(target->dtype);
    for (int d = 0; d < target->ndim; d++)
      bytes *= routes->at[i].dst_extent[d];
    t->report.bytes += bytes;
  }
  return RESHARD_SUCCESS;
}

/* A group is read while the one before it is copied to the GPU. */
static reshard_status read_mine(turn *t) {
  const way *w = &t->way;
  for (int64_t i = 0, first = 0; i < w->ends.n && !t->done; first = w->ends.at[i++]) {
    if (w->ends.at[i] > first)
      RS_TRY(rs_move_run(&(rs_move){.src = &t->shared->opened.checkpoint->store,
                                    .dst = &w->mine,
                                    .nroutes = w->ends.at[i] - first,
                                    .routes = w->routes.at + first,
                                    .threads = rs_rank_threads(t->base.comm, t->options.threads),
                                    .only_rank = -1,
                                    .read_bytes = &t->report.read_bytes}));
    if (i >= w->plain) {
      RS_TRY(rs_stage_wait(&t->base.stage));
      RS_TRY(rs_stage_copy(&t->base.stage, i - w->plain, false));
    }
  }
  return rs_checkpoint_unchanged(t->shared->opened.checkpoint);
}

/* Ranks with the same tensors in the same layouts, in memory of the host, read together: what is read of a file once,
 * in large pieces, goes to all of them. Where they differ, or have memory that overlaps, each reads its own. */
static bool reads_alike(int64_t n, turn *const *t) {
  const rs_items *first = &t[0]->base.items;
  for (int64_t r = 0; r < n; r++) {
    const rs_items *mine = &t[r]->base.items;
    if (t[r]->way.ends.n > 1 || t[r]->base.stage.groups > 0 || mine->all.n != first->all.n ||
        t[r]->options.threads != t[0]->options.threads)
      return false;
    for (int64_t i = 0; i < mine->all.n; i++) {
      const rs_item *a = &first->all.at[i], *b = &mine->all.at[i];
      if (strcmp(a->path, b->path) != 0 || rs_item_is_tensor(a) != rs_item_is_tensor(b) ||
          (a->sharded == NULL) != (b->sharded == NULL))
        return false;
      if (a->sharded == NULL)
        continue;
      reshard_layout layout = a->sharded->local.layout;
      if (b->sharded->sharder->comm->rank != r || !reshard_layout_equal(layout, b->sharded->local.layout))
        return false;
      if (r == 0 && (layout->world != n || reshard_layout_check_source(layout) != RESHARD_SUCCESS))
        return false;
    }
  }
  return n > 1;
}

/* All ranks' memory of the i-th tensor. */
static reshard_status add_ranks(int64_t n, turn *const *t, int64_t i, way *w) {
  const rs_item *item = &t[0]->base.items.all.at[i];
  for (int64_t r = 0; r < n && item->sharded == NULL; r++)
    RS_TRY(add_tensor(t[r], &t[r]->base.items.all.at[i], &w->mine, &w->routes));
  if (item->sharded == NULL)
    return RESHARD_SUCCESS;
  reshard_layout layout = item->sharded->local.layout;
  RS_TRY(rs_item_add(item, layout, 0, &w->mine));
  for (int64_t r = 1; r < n; r++)
    RS_TRY(rs_item_hold(&t[r]->base.items.all.at[i], layout, r, &w->mine));
  return rs_whole_route(rs_opened_tensor(&t[0]->shared->opened, item->path), &w->mine, w->mine.tensors.n - 1,
                        &w->routes);
}

static reshard_status read_together(int64_t n, void **all) {
  turn *const *t = (turn *const *)all;
  int64_t read_bytes = 0, bytes = 0;
  way w = {0};
  reshard_status status = RESHARD_SUCCESS;
  if (!reads_alike(n, t))
    return RESHARD_SUCCESS;
  for (int64_t i = 0; i < t[0]->base.items.all.n && status == RESHARD_SUCCESS; i++)
    if (rs_item_is_tensor(&t[0]->base.items.all.at[i]))
      status = add_ranks(n, t, i, &w);
  if (status == RESHARD_SUCCESS)
    status = rs_move_run(&(rs_move){.src = &t[0]->shared->opened.checkpoint->store,
                                    .dst = &w.mine,
                                    .nroutes = w.routes.n,
                                    .routes = w.routes.at,
                                    .threads = (int)rs_min(4096, n * t[0]->options.threads),
                                    .only_rank = -1,
                                    .read_bytes = &read_bytes});
  free_way(&w);
  for (int64_t r = 0; r < n; r++)
    bytes += t[r]->report.bytes;
  for (int64_t r = 0; r < n; r++) {
    t[r]->done = status == RESHARD_SUCCESS;
    t[r]->report.read_bytes =
        bytes > 0 ? (int64_t)((double)read_bytes / (double)bytes * (double)t[r]->report.bytes) : 0;
  }
  return status;
}

static void replace_leaves(const turn *t) {
  for (int64_t i = 0; i < t->base.items.all.n; i++) {
    const rs_item *item = &t->base.items.all.at[i];
    int64_t leaf = rs_item_is_tensor(item) ? -1 : rs_opened_leaf(&t->shared->opened, item->path);
    if (leaf >= 0)
      rs_node_replace(item->parent, item->index, t->shared->opened.leaves.all.at[leaf]);
  }
}

/* All ranks of the process have checked what is theirs: does it fit, and is every name somewhere? */
static reshard_status check_ranks(int64_t n, void **all) {
  turn *const *t = (turn *const *)all;
  const char **lacks;
  bool lacking = false;
  for (int64_t r = 0; r < n; r++) {
    if (t[r]->base.status != RESHARD_SUCCESS)
      return rs_error(t[r]->base.status, "rank %lld: %s", (long long)r, t[r]->base.text);
    lacking |= t[r]->lacking;
  }
  if (!lacking)
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc((void *)&lacks, n, sizeof *lacks));
  for (int64_t r = 0; r < n; r++)
    lacks[r] = t[r]->lacks;
  reshard_status status = rs_opened_check_lacking(&t[0]->shared->opened, n, lacks);
  free(lacks);
  return status;
}

static reshard_status check_together(turn *t) {
  t->base.status = list_lacking(t);
  if (t->base.status == RESHARD_SUCCESS)
    t->base.status = make_mine(t);
  t->base.text = reshard_last_error();
  return t->base.comm->ops->together(t->base.comm, check_ranks, t);
}

/* The same among processes, which know from opening whether a rank lacks some of the names: then all tell which. */
static reshard_status check_apart(turn *t) {
  reshard_status status = make_mine(t);
  const char **lacks = NULL;
  rs_strings *strings;
  if (!t->lacking)
    return rs_agree(t->base.comm, status);
  int64_t names = rs_opened_names(&t->shared->opened);
  if (status == RESHARD_SUCCESS)
    status = rs_alloc((void *)&lacks, t->base.comm->size, sizeof *lacks);
  status = rs_comm_gather_bytes(t->base.comm, status, t->lacks, names, &strings);
  if (status == RESHARD_SUCCESS) {
    for (int64_t r = 0; r < strings->n; r++)
      lacks[r] = strings->bytes + strings->first[r];
    status = rs_opened_check_lacking(&t->shared->opened, strings->n, lacks);
    rs_strings_release(strings);
  }
  free(lacks);
  return status;
}

static reshard_status load(turn *t) {
  reshard_comm comm = t->base.comm;
  double start = rs_seconds();
  reshard_status status = rs_one_process(comm) ? check_together(t) : check_apart(t);
  double opened = rs_seconds();
  t->report.open_seconds += opened - start;
  if (status == RESHARD_SUCCESS)
    status = comm->ops->together(comm, read_together, t);
  if (status == RESHARD_SUCCESS)
    status = rs_agree(comm, read_mine(t));
  t->report.read_seconds = rs_seconds() - opened;
  return status;
}

static reshard_status prepare(reshard_sharder sharder, reshard_tree state, const char *directory,
                              const reshard_state_load_options *options, turn *t) {
  const reshard_state_load_options none = {.size = RESHARD_STATE_LOAD_OPTIONS_INIT};
  if (state == NULL || directory == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %s is NULL", call, state == NULL ? "state" : "directory");
  t->options = options != NULL ? *options : none;
  if (t->options.size != sizeof t->options)
    return rs_error(RESHARD_ERROR_INVALID, "size field %zu, this library's reshard_state_load_options has %zu",
                    t->options.size, sizeof t->options);
  if (t->options.threads < 0 || t->options.threads > 4096)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %d threads, 4096 are the most", call, t->options.threads);
  RS_TRY(rs_items_list(NULL, state, &t->base.items));
  return rs_stage_open(sharder, t->options.stream, t->options.staging_bytes, &t->base.items, &t->base.stage);
}

reshard_status reshard_state_load(reshard_sharder sharder, reshard_tree state, const char *directory,
                                  const reshard_state_load_options *options, reshard_state_load_report *report) {
  if (sharder == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: sharder is NULL", call);
  reshard_comm comm = sharder->comm;
  turn t = {.base = {.comm = comm, .directory = directory}};
  double start = rs_seconds();
  t.base.status = prepare(sharder, state, directory, options, &t);
  t.base.text = reshard_last_error();
  reshard_status status = rs_one_process(comm) ? comm->ops->together(comm, open_all, &t) : open_apart(&t);
  t.report.open_seconds = rs_seconds() - start;
  if (status == RESHARD_SUCCESS)
    status = load(&t);
  if (status == RESHARD_SUCCESS) {
    replace_leaves(&t);
    if (report != NULL)
      *report = t.report;
  }
  leave(t.shared);
  free(t.lacks);
  free_way(&t.way);
  rs_stage_close(&t.base.stage);
  rs_items_free(&t.base.items);
  return status;
}
