/* Loading a state dict. One rank opens the checkpoint for all of the process; each rank then checks its own leaves
 * against it. When all leaves fit on all ranks, data are read into memory: a move from the checkpoint's store to that
 * of all ranks together, or to each rank's own. Leaves that are no tensors are put in their places last, which cannot
 * fail.
 *
 * Ranks that are processes each open the checkpoint, and compare what they have opened. */
#include "base/text.h"
#include "comm/gather.h"
#include "file/move/move.h"
#include "file/read/checkpoint.h"
#include "state/checkpoint.h"

#include <stdlib.h>
#include <string.h>

static const char call[] = "reshard_state_load";

/* A checkpoint of all ranks; the last to release it closes it. */
typedef struct shared_checkpoint {
  atomic_llong users;
  rs_state_checkpoint stored;
} shared_checkpoint;

/* Moves that one rank, or all together, run: regions in steps, one step after the other. */
typedef struct reads {
  rs_store mine;
  rs_copy_regions regions;
  RS_VEC(int64_t) ends; /* of the steps */
  int64_t plain;        /* steps before those of batches of a GPU, one step a batch */
} reads;

/* One rank's call. */
typedef struct load_call {
  rs_state_call base;
  reshard_state_load_options options;
  shared_checkpoint *shared;
  reads reads;
  reshard_state_load_report report;
  char *unexpected;    /* names of the checkpoint that this rank's state lacks */
  bool any_unexpected; /* some names are, on a rank that is not partial */
  bool done;           /* data were read, for all ranks together */
} load_call;

static void free_checkpoint(shared_checkpoint *l) {
  reshard_checkpoint_close(l->stored.checkpoint);
  rs_stored_leaves_free(&l->stored.leaves);
  free(l);
}

static void release_checkpoint(shared_checkpoint *l) {
  if (l != NULL && atomic_fetch_sub(&l->users, 1) == 1)
    free_checkpoint(l);
}

static reshard_status open_threads(int64_t n, void **all) {
  load_call *const *c = (load_call *const *)all;
  const char *directory = c[0]->base.directory;
  shared_checkpoint *l = NULL;
  bool check = false;
  for (int64_t r = 0; r < n; r++)
    check |= c[r]->options.check != 0;
  RS_TRY(rs_state_calls_check("loads", "from", n, (rs_state_call *const *)all));
  RS_TRY(rs_alloc_zero(&l, 1, sizeof *l));
  reshard_status status =
      rs_checkpoint_open(directory, &(rs_checkpoint_options){.check = check}, &l->stored.checkpoint);
  RS_THEN(status, rs_state_json_read(directory, check, &l->stored.leaves));
  RS_THEN(status, rs_stored_leaves_add(&l->stored.leaves, l->stored.checkpoint));
  RS_THEN(status, rs_checkpoint_in_place(l->stored.checkpoint, directory));
  RS_TRY_OR(status, free_checkpoint(l));
  atomic_init(&l->users, n);
  for (int64_t r = 0; r < n; r++)
    c[r]->shared = l;
  return RESHARD_SUCCESS;
}

/* Lists the names that the state lacks; they matter where the load is not partial. */
static reshard_status list_unexpected(load_call *c) {
  bool some;
  RS_TRY(rs_state_checkpoint_list_unexpected(&c->shared->stored, &c->base.leaves, &c->unexpected, &some));
  c->any_unexpected = some && !c->options.partial;
  return RESHARD_SUCCESS;
}

/* Compares the directories that the ranks name. */
static reshard_status compare_names(load_call *c) {
  reshard_comm comm = c->base.comm;
  const char *mine = c->base.status == RESHARD_SUCCESS ? c->base.directory : "";
  rs_strings *all;
  char first[RS_QUOTE], second[RS_QUOTE];
  reshard_status status = RESHARD_SUCCESS;
  RS_TRY(rs_comm_gather_bytes(comm, c->base.status, mine, (int64_t)strlen(mine) + 1, &all));
  for (int64_t r = 1; r < all->n && status == RESHARD_SUCCESS; r++)
    if (strcmp(all->bytes, all->bytes + all->first[r]) != 0)
      status = rs_error(RESHARD_ERROR_MISMATCH, "rank 0 loads from '%s', rank %lld from '%s'",
                        rs_quote(first, sizeof first, all->bytes), (long long)r,
                        rs_quote(second, sizeof second, all->bytes + all->first[r]));
  rs_strings_release(all);
  return status;
}

static reshard_status open_processes(load_call *c) {
  reshard_comm comm = c->base.comm;
  void *mine = c;
  rs_strings *all;
  uint64_t version[2] = {0, 0}, first[2], other[2]; /* the version; 1 where this rank lacks some names */
  char quoted[RS_QUOTE];
  RS_TRY(compare_names(c));
  reshard_status status = open_threads(1, &mine);
  RS_THEN(status, list_unexpected(c));
  if (status == RESHARD_SUCCESS) {
    version[0] = rs_state_checkpoint_version(&c->shared->stored);
    version[1] = c->any_unexpected;
  }
  RS_TRY(rs_comm_gather_bytes(comm, status, version, sizeof version, &all));
  memcpy(first, all->bytes, sizeof first);
  for (int64_t r = 0; r < all->n && status == RESHARD_SUCCESS; r++) {
    memcpy(other, all->bytes + all->first[r], sizeof other);
    c->any_unexpected |= other[1] != 0;
    if (other[0] != first[0])
      status = rs_error(RESHARD_ERROR_SYSTEM, "ranks 0 and %lld have opened different checkpoints at '%s'",
                        (long long)r, rs_quote(quoted, sizeof quoted, c->base.directory));
  }
  rs_strings_release(all);
  return status;
}

/* --- Data -------------------------------------------------------------------------------------------------------- */

/* Adds this rank's memory of a tensor, and the regions that are read into it. */
static reshard_status add_tensor(const load_call *c, const rs_state_leaf *leaf, rs_store *mine,
                                 rs_copy_regions *regions) {
  reshard_layout layout = NULL;
  int64_t rank = 0;
  if (leaf->sharded != NULL) {
    rank = leaf->sharded->sharder->comm->rank;
    layout = reshard_layout_retain(leaf->sharded->local.layout);
  } else {
    RS_TRY(reshard_layout_create_single(rs_state_leaf_ndim(leaf), rs_state_leaf_shape(leaf), 1, rank, &layout));
  }
  reshard_status status = rs_state_leaf_add(leaf, layout, rank, mine);
  RS_THEN(status, rs_rank_regions(&c->shared->stored.checkpoint->store,
                                  rs_state_checkpoint_tensor(&c->shared->stored, leaf->path), mine, mine->tensors.n - 1,
                                  rank, regions));
  reshard_layout_release(layout);
  return status;
}

static void free_reads(reads *w) {
  rs_store_free(&w->mine);
  free(w->regions.at);
  free(w->ends.at);
}

/* Adds a tensor to the last step, or to a new one. */
static reshard_status add_read(load_call *c, const rs_state_leaf *leaf, bool fresh) {
  reads *w = &c->reads;
  RS_TRY(rs_vec_reserve(&w->ends, w->ends.n + 1));
  RS_TRY(add_tensor(c, leaf, &w->mine, &w->regions));
  w->ends.n += fresh || w->ends.n == 0;
  w->ends.at[w->ends.n - 1] = w->regions.n;
  return RESHARD_SUCCESS;
}

/* Lists the steps. Tensors that share no memory with others are the first. Those that do - one that stands at two paths
 * - follow one by one, in the order of their paths: no two threads write to one place, and the last path is what stays.
 * Batches for a GPU come last, in that order, too: they are read into pinned memory of their own, and then copied. */
static reshard_status list_steps(load_call *c) {
  const rs_state_leaves *leaves = &c->base.leaves;
  bool *shared;
  RS_TRY(rs_alloc_zero(&shared, leaves->all.n, sizeof *shared));
  reshard_status status = rs_state_leaves_find_shared(leaves, shared);
  for (int own = 0; own < 2; own++)
    for (int64_t i = 0; i < leaves->all.n && status == RESHARD_SUCCESS; i++)
      if (rs_state_leaf_is_tensor(&leaves->all.at[i]) && leaves->all.at[i].batch < 0 && shared[i] == (own == 1))
        status = add_read(c, &leaves->all.at[i], own == 1);
  free(shared);
  c->reads.plain = c->reads.ends.n;
  for (int64_t i = 0; i < leaves->all.n && status == RESHARD_SUCCESS; i++)
    if (leaves->all.at[i].batch >= 0)
      status = add_read(c, &leaves->all.at[i], c->reads.plain + leaves->all.at[i].batch == c->reads.ends.n);
  return status;
}

static reshard_status prepare_reads(load_call *c) {
  const rs_store *mine = &c->reads.mine;
  const rs_copy_regions *regions = &c->reads.regions;
  RS_TRY(rs_state_checkpoint_match(&c->shared->stored, &c->base.leaves));
  RS_TRY(list_steps(c));
  c->report.tensors = mine->tensors.n;
  for (int64_t i = 0; i < regions->n; i++) {
    const rs_model_tensor *target = &mine->model->tensors.at[regions->at[i].dst];
    int64_t bytes = (int64_t)reshard_dtype_size(target->dtype);
    for (int d = 0; d < target->ndim; d++)
      bytes *= regions->at[i].dst_extent[d];
    c->report.bytes += bytes;
  }
  const rs_state_checkpoint *stored = &c->shared->stored;
  const rs_model_tensor *tensors = stored->checkpoint->store.model->tensors.at;
  for (int64_t i = 0; i < c->base.leaves.all.n; i++) {
    const rs_state_leaf *leaf = &c->base.leaves.all.at[i];
    if (rs_state_leaf_is_tensor(leaf))
      c->report.converted += rs_state_leaf_dtype(leaf) != tensors[rs_state_checkpoint_tensor(stored, leaf->path)].dtype;
  }
  return RESHARD_SUCCESS;
}

/* Reads a batch while the one before it is copied to the GPU. */
static reshard_status read_local(load_call *c) {
  const reads *w = &c->reads;
  for (int64_t i = 0, first = 0; i < w->ends.n && !c->done; first = w->ends.at[i++]) {
    if (w->ends.at[i] > first)
      RS_TRY(rs_store_move_run(&(rs_store_move){.src = &c->shared->stored.checkpoint->store,
                                                .dst = &w->mine,
                                                .nregions = w->ends.at[i] - first,
                                                .regions = w->regions.at + first,
                                                .threads = rs_rank_threads(c->base.comm, c->options.threads),
                                                .only_rank = -1,
                                                .read_bytes = &c->report.read_bytes}));
    if (i >= w->plain) {
      RS_TRY(rs_pinned_buffers_wait(&c->base.buffers));
      RS_TRY(rs_pinned_buffers_copy(&c->base.buffers, i - w->plain, false));
    }
  }
  return rs_checkpoint_unchanged(c->shared->stored.checkpoint);
}

/* Ranks with the same tensors in the same layouts, in memory of the host, read together: each large piece is read once
 * and goes to all of them. Where they differ, or have memory that overlaps, each reads its own. */
static bool reads_alike(int64_t n, load_call *const *c) {
  const rs_state_leaves *first = &c[0]->base.leaves;
  for (int64_t r = 0; r < n; r++) {
    const rs_state_leaves *mine = &c[r]->base.leaves;
    if (c[r]->reads.ends.n > 1 || c[r]->base.buffers.batches > 0 || mine->all.n != first->all.n ||
        c[r]->options.threads != c[0]->options.threads)
      return false;
    for (int64_t i = 0; i < mine->all.n; i++) {
      const rs_state_leaf *a = &first->all.at[i], *b = &mine->all.at[i];
      if (strcmp(a->path, b->path) != 0 || rs_state_leaf_is_tensor(a) != rs_state_leaf_is_tensor(b) ||
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

/* Adds all ranks' memory of the i-th tensor. */
static reshard_status add_ranks(int64_t n, load_call *const *c, int64_t i, reads *w) {
  const rs_state_leaf *leaf = &c[0]->base.leaves.all.at[i];
  for (int64_t r = 0; r < n && leaf->sharded == NULL; r++)
    RS_TRY(add_tensor(c[r], &c[r]->base.leaves.all.at[i], &w->mine, &w->regions));
  if (leaf->sharded == NULL)
    return RESHARD_SUCCESS;
  reshard_layout layout = leaf->sharded->local.layout;
  RS_TRY(rs_state_leaf_add(leaf, layout, 0, &w->mine));
  for (int64_t r = 1; r < n; r++)
    RS_TRY(rs_state_leaf_add_rank(&c[r]->base.leaves.all.at[i], layout, r, &w->mine));
  return rs_whole_region(rs_state_checkpoint_tensor(&c[0]->shared->stored, leaf->path), &w->mine, w->mine.tensors.n - 1,
                         &w->regions);
}

static reshard_status read_together(int64_t n, void **all) {
  load_call *const *c = (load_call *const *)all;
  int64_t read_bytes = 0, bytes = 0;
  reads w = {0};
  reshard_status status = RESHARD_SUCCESS;
  if (!reads_alike(n, c))
    return RESHARD_SUCCESS;
  for (int64_t i = 0; i < c[0]->base.leaves.all.n && status == RESHARD_SUCCESS; i++)
    if (rs_state_leaf_is_tensor(&c[0]->base.leaves.all.at[i]))
      status = add_ranks(n, c, i, &w);
  RS_THEN(status, rs_store_move_run(&(rs_store_move){.src = &c[0]->shared->stored.checkpoint->store,
                                                     .dst = &w.mine,
                                                     .nregions = w.regions.n,
                                                     .regions = w.regions.at,
                                                     .threads = (int)rs_min(4096, n * c[0]->options.threads),
                                                     .only_rank = -1,
                                                     .read_bytes = &read_bytes}));
  free_reads(&w);
  for (int64_t r = 0; r < n; r++)
    bytes += c[r]->report.bytes;
  for (int64_t r = 0; r < n; r++) {
    c[r]->done = status == RESHARD_SUCCESS;
    c[r]->report.read_bytes =
        bytes > 0 ? (int64_t)((double)read_bytes / (double)bytes * (double)c[r]->report.bytes) : 0;
  }
  return status;
}

static void replace_leaves(const load_call *c) {
  for (int64_t i = 0; i < c->base.leaves.all.n; i++) {
    const rs_state_leaf *leaf = &c->base.leaves.all.at[i];
    int64_t found = rs_state_leaf_is_tensor(leaf) ? -1 : rs_state_checkpoint_leaf(&c->shared->stored, leaf->path);
    if (found >= 0)
      rs_node_replace(leaf->parent, leaf->index, c->shared->stored.leaves.all.at[found]);
  }
}

/* All ranks of the process have checked their leaves; checks that every name is in some rank's state. */
static reshard_status check_calls(int64_t n, void **all) {
  load_call *const *c = (load_call *const *)all;
  const char **unexpected;
  bool any_unexpected = false;
  for (int64_t r = 0; r < n; r++) {
    if (c[r]->base.status != RESHARD_SUCCESS)
      return rs_error(c[r]->base.status, "rank %lld: %s", (long long)r, c[r]->base.text);
    any_unexpected |= c[r]->any_unexpected;
  }
  if (!any_unexpected)
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc((void *)&unexpected, n, sizeof *unexpected));
  for (int64_t r = 0; r < n; r++)
    unexpected[r] = c[r]->unexpected;
  reshard_status status = rs_state_checkpoint_check_unexpected(&c[0]->shared->stored, n, unexpected);
  free(unexpected);
  return status;
}

static reshard_status check_threads(load_call *c) {
  c->base.status = list_unexpected(c);
  if (c->base.status == RESHARD_SUCCESS)
    c->base.status = prepare_reads(c);
  c->base.text = reshard_last_error();
  return rs_comm_combine(c->base.comm, check_calls, c);
}

/* The same among processes. They know from opening that a rank lacks some names; then all send their lists. */
static reshard_status check_processes(load_call *c) {
  reshard_status status = prepare_reads(c);
  const char **unexpected = NULL;
  rs_strings *strings;
  if (!c->any_unexpected)
    return rs_agree(c->base.comm, status);
  int64_t names = rs_state_checkpoint_names(&c->shared->stored);
  RS_THEN(status, rs_alloc((void *)&unexpected, c->base.comm->size, sizeof *unexpected));
  status = rs_comm_gather_bytes(c->base.comm, status, c->unexpected, names, &strings);
  if (status == RESHARD_SUCCESS) {
    for (int64_t r = 0; r < strings->n; r++)
      unexpected[r] = strings->bytes + strings->first[r];
    status = rs_state_checkpoint_check_unexpected(&c->shared->stored, strings->n, unexpected);
    rs_strings_release(strings);
  }
  free(unexpected);
  return status;
}

static reshard_status load_tensors(load_call *c) {
  reshard_comm comm = c->base.comm;
  double start = rs_seconds();
  reshard_status status = rs_one_process(comm) ? check_threads(c) : check_processes(c);
  double opened = rs_seconds();
  c->report.open_seconds += opened - start;
  RS_THEN(status, rs_comm_combine(comm, read_together, c));
  RS_THEN(status, rs_agree(comm, read_local(c)));
  c->report.read_seconds = rs_seconds() - opened;
  return status;
}

static reshard_status prepare_load(reshard_sharder sharder, reshard_tree state, const char *directory,
                                   const reshard_state_load_options *options, load_call *c) {
  const reshard_state_load_options none = {.size = RESHARD_STATE_LOAD_OPTIONS_INIT};
  RS_TRY(RS_GIVEN(call, state, directory));
  c->options = options != NULL ? *options : none;
  RS_TRY(RS_SIZED(reshard_state_load_options, &c->options));
  if (c->options.threads < 0 || c->options.threads > 4096)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %d threads, 4096 are the most", call, c->options.threads);
  RS_TRY(rs_state_leaves_list(NULL, state, &c->base.leaves));
  return rs_pinned_buffers_open(sharder, c->options.stream, c->options.staging_bytes, &c->base.leaves,
                                &c->base.buffers);
}

reshard_status reshard_state_load(reshard_sharder sharder, reshard_tree state, const char *directory,
                                  const reshard_state_load_options *options, reshard_state_load_report *report) {
  RS_TRY(RS_GIVEN(call, sharder));
  reshard_comm comm = sharder->comm;
  RS_CALL(comm, 0);
  load_call c = {.base = {.comm = comm, .directory = directory}};
  double start = rs_seconds();
  c.base.status = prepare_load(sharder, state, directory, options, &c);
  c.base.text = reshard_last_error();
  reshard_status status = rs_one_process(comm) ? rs_comm_combine(comm, open_threads, &c) : open_processes(&c);
  c.report.open_seconds = rs_seconds() - start;
  RS_THEN(status, load_tensors(&c));
  if (status == RESHARD_SUCCESS) {
    replace_leaves(&c);
    if (c.options.check)
      c.report.checked_bytes = rs_checkpoint_checked(c.shared->stored.checkpoint, &c.report.unchecked_files);
    if (report != NULL)
      *report = c.report;
  }
  release_checkpoint(c.shared);
  free(c.unexpected);
  free_reads(&c.reads);
  rs_pinned_buffers_close(&c.base.buffers);
  rs_state_leaves_free(&c.base.leaves);
  return status;
}
