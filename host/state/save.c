/* Saving a state dict: a writer of shards that all ranks of the process write to at the same time.
 *
 * The ranks meet twice. First one of them compares all calls and makes the writer, with the headers in its files. Where
 * shards are exchanged, the ranks then do so, and come to it once more. Every rank writes its own arrays: a move from
 * its memory to its own places in the writer's store. Then one syncs and publishes.
 *
 * A rank that fails on its way comes to the second meeting with its status, and what was written is abandoned. The
 * writer belongs to all ranks, and the last to release it frees it. So a rank whose meeting was broken off (an abort, a
 * deadline) never takes it from those that still write.
 *
 * Ranks that are processes exchange their calls, and each compares all. Rank 0 makes the files, the others open theirs
 * and sync them, and rank 0 publishes all. */
#include "comm/gather.h"
#include "file/map/dtypes.h"
#include "file/move/move.h"
#include "state/save_contents.h"

#include <stdlib.h>
#include <string.h>

static const char call[] = "reshard_state_save";

static void release_writer(rs_shared_writer *s) {
  if (s == NULL || atomic_fetch_sub(&s->users, 1) != 1)
    return;
  reshard_writer_abandon(s->writer);
  rs_exchanged_leaves_free(&s->exchanged);
  free(s);
}

/* --- The first meeting ------------------------------------------------------------------------------------------- */

/* Exchanges the shards of a list. A status of this rank alone is left for the next meeting. */
static reshard_status exchange_tensors(rs_save_call *c, const rs_exchanged_leaves *list) {
  RS_TRY(rs_exchange_leaves(c->sharder, &c->base.leaves, list, &c->exchanged));
  rs_pinned_buffers_close(&c->base.buffers);
  c->base.status = rs_pinned_buffers_open(c->sharder, c->options.stream, c->options.staging_bytes, &c->base.leaves,
                                          &c->base.buffers);
  c->base.text = reshard_last_error();
  return RESHARD_SUCCESS;
}

static void start_writing(rs_shared_writer *s) {
  double begun = s->start;
  s->start = rs_seconds();
  s->report.prepare_seconds = s->start - begun - s->report.reserve_seconds;
}

static reshard_status new_writer(int64_t n, double start, rs_shared_writer **s) {
  RS_TRY(rs_alloc_zero(s, 1, sizeof **s));
  atomic_init(&(*s)->users, n);
  (*s)->start = start;
  return RESHARD_SUCCESS;
}

/* Makes the writer; or the list of tensors whose shards are exchanged, after which the ranks come once more. */
static reshard_status begin_writer(int64_t n, void **all) {
  rs_save_call *const *c = (rs_save_call *const *)all;
  double start = rs_seconds();
  rs_save_contents m = {.n = n, .calls = c, .mine = c[0]};
  rs_shared_writer *s = c[0]->shared;
  reshard_status status = rs_save_compare_calls(&m);
  if (status == RESHARD_SUCCESS && s == NULL) {
    status = new_writer(n, start, &s);
    for (int64_t r = 0; r < n; r++)
      c[r]->shared = s;
  }
  if (status == RESHARD_SUCCESS && m.exchanged.n > 0) {
    s->exchanged = m.exchanged;
    m.exchanged = (rs_exchanged_leaves){0};
  } else if (status == RESHARD_SUCCESS) {
    status = rs_save_create_writer(&m, s);
    if (status == RESHARD_SUCCESS)
      start_writing(s);
  }
  rs_save_contents_free(&m);
  if (status == RESHARD_SUCCESS || s == NULL)
    return status;
  reshard_writer_abandon(s->writer);
  s->writer = NULL;
  return status;
}

static reshard_status begin_threads(rs_save_call *c) {
  reshard_comm comm = c->base.comm;
  RS_TRY(rs_comm_combine(comm, begin_writer, c));
  if (c->shared->exchanged.n == 0)
    return RESHARD_SUCCESS;
  RS_TRY(exchange_tensors(c, &c->shared->exchanged));
  return rs_comm_combine(comm, begin_writer, c);
}

/* --- The same among processes ------------------------------------------------------------------------------------ */

/* The ranks' calls, as this one has received them. */
typedef struct remote_calls {
  int64_t n;
  rs_save_call *remote, **calls;
} remote_calls;

/* Unpacks the others' calls; mine is taken as it is. */
static reshard_status read_calls(rs_save_call *mine, const rs_strings *strings, remote_calls *h) {
  h->n = strings->n;
  RS_TRY(rs_alloc_zero(&h->remote, h->n, sizeof *h->remote));
  RS_TRY(rs_alloc_zero((void *)&h->calls, h->n, sizeof *h->calls));
  for (int64_t r = 0; r < h->n; r++) {
    int64_t option = 0;
    h->calls[r] = r == mine->base.comm->rank ? mine : &h->remote[r];
    if (h->calls[r] == mine)
      continue;
    RS_TRY(rs_state_call_unpack(strings->bytes + strings->first[r], strings->first[r + 1] - strings->first[r],
                                &h->calls[r]->base, &option));
    h->calls[r]->options.force = (option & 1) != 0;
    h->calls[r]->options.no_digests = (option & 2) != 0;
    h->calls[r]->options.dtype = (reshard_dtype)(option >> 2);
  }
  return RESHARD_SUCCESS;
}

static void remote_calls_free(remote_calls *h) {
  for (int64_t r = 0; h->remote != NULL && r < h->n; r++)
    rs_state_leaves_free(&h->remote[r].base.leaves);
  free(h->calls);
  free(h->remote);
}

static reshard_status compare_processes(rs_save_call *c, const remote_calls *h, rs_save_contents *m) {
  *m = (rs_save_contents){.n = h->n, .calls = h->calls, .mine = c};
  RS_TRY(rs_agree_alike(c->base.comm, rs_save_compare_calls(m)));
  if (m->exchanged.n == 0)
    return RESHARD_SUCCESS;
  RS_TRY(exchange_tensors(c, &m->exchanged));
  rs_save_contents_free(m);
  *m = (rs_save_contents){.n = h->n, .calls = h->calls, .mine = c};
  return rs_agree(c->base.comm, c->base.status == RESHARD_SUCCESS ? rs_save_compare_calls(m) : c->base.status);
}

/* Rank 0 makes the files, and sends their path; the others open theirs. */
static reshard_status create_files(rs_save_call *c, rs_save_contents *m) {
  reshard_status status = RESHARD_SUCCESS;
  reshard_comm comm = c->base.comm;
  rs_shared_writer *s = c->shared;
  rs_strings *strings;
  bool maker = comm->rank == 0;
  if (maker)
    status = rs_save_create_writer(m, s);
  const char *path = status == RESHARD_SUCCESS && maker ? rs_writer_path(s->writer) : "";
  RS_TRY(rs_comm_gather_bytes(comm, status, path, (int64_t)strlen(path) + 1, &strings));
  if (!maker)
    status =
        rs_writer_join(strings->bytes, comm->rank, !c->options.no_digests, m->tensors.n, m->tensors.at, &s->writer);
  rs_strings_release(strings);
  return rs_agree(comm, status);
}

static reshard_status begin_processes(rs_save_call *c) {
  rs_text remote = {.grows = true};
  rs_strings *strings = NULL;
  remote_calls h = {0};
  rs_save_contents m = {0};
  reshard_status status = c->base.status;
  int64_t chosen = (c->options.force != 0) | (c->options.no_digests != 0) << 1 | (int64_t)c->options.dtype << 2;
  RS_THEN(status, rs_state_call_pack(&c->base, chosen, &remote));
  RS_THEN(status, new_writer(1, rs_seconds(), &c->shared));
  status = rs_comm_gather_bytes(c->base.comm, status, remote.at, (int64_t)remote.length, &strings);
  free(remote.at);
  RS_TRY(status);
  status = read_calls(c, strings, &h);
  if (status == RESHARD_SUCCESS)
    status = compare_processes(c, &h, &m);
  else
    status = rs_agree_alike(c->base.comm, status);
  RS_THEN(status, create_files(c, &m));
  rs_save_contents_free(&m);
  remote_calls_free(&h);
  rs_strings_release(strings);
  if (status == RESHARD_SUCCESS)
    start_writing(c->shared);
  return status;
}

/* --- Each rank, and the second meeting -------------------------------------------------------------------------- */

/* Writes the leaves of a batch. */
static reshard_status write_batch(const rs_save_call *c, int64_t batch) {
  const rs_store *files = rs_writer_store(c->shared->writer);
  int64_t rank = c->base.comm->rank;
  rs_store mine = {0};
  rs_copy_regions regions = {0};
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0; i < files->tensors.n && status == RESHARD_SUCCESS; i++) {
    reshard_layout layout = files->tensors.at[i].layout;
    const rs_state_leaf *leaf = rs_state_leaves_find(&c->base.leaves, rs_model_name(files->model, i));
    if (leaf == NULL || leaf->batch != batch || rs_layout_arrays(layout, rank) == 0)
      continue;
    status = rs_state_leaf_add(leaf, layout, rank, &mine);
    RS_THEN(status, rs_rank_regions(&mine, mine.tensors.n - 1, files, i, rank, &regions));
  }
  if (status == RESHARD_SUCCESS && regions.n > 0)
    status = rs_store_move_run(&(rs_store_move){.src = &mine,
                                                .dst = files,
                                                .nregions = regions.n,
                                                .regions = regions.at,
                                                .threads = rs_rank_threads(c->base.comm, c->options.threads),
                                                .only_rank = rank});
  rs_store_free(&mine);
  free(regions.at);
  return status;
}

/* Copies a batch of a GPU to the host while the one before it is written. */
static reshard_status write_local(const rs_save_call *c) {
  const rs_pinned_buffers *buffers = &c->base.buffers;
  for (int64_t batch = -1; batch < buffers->batches; batch++) {
    if (batch >= 0)
      RS_TRY(rs_pinned_buffers_wait(buffers));
    RS_TRY(rs_pinned_buffers_copy(buffers, batch + 1, true));
    RS_TRY(write_batch(c, batch));
  }
  return RESHARD_SUCCESS;
}

static reshard_status publish_files(rs_shared_writer *s, double written) {
  reshard_writer writer = s->writer;
  RS_TRY(rs_writer_sync(writer, NULL, NULL)); /* else the last rank abandons it */
  s->writer = NULL;
  RS_TRY(rs_writer_publish(writer));
  s->report.sync_seconds = rs_seconds() - written;
  return RESHARD_SUCCESS;
}

static reshard_status end_threads(int64_t n, void **all) {
  rs_shared_writer *s = ((rs_save_call *const *)all)[0]->shared;
  double written = rs_seconds();
  s->report.write_seconds = written - s->start;
  RS_TRY(rs_save_check_calls(n, all));
  return publish_files(s, written);
}

/* All have written and synced their files; rank 0's report is everybody's. */
static reshard_status end_processes(rs_save_call *c) {
  reshard_comm comm = c->base.comm;
  rs_shared_writer *s = c->shared;
  rs_strings *strings;
  reshard_status status = c->base.status;
  if (status == RESHARD_SUCCESS && comm->rank != 0)
    status = rs_writer_sync(s->writer, NULL, NULL);
  RS_TRY(rs_agree(comm, status));
  double written = rs_seconds();
  s->report.write_seconds = written - s->start;
  if (comm->rank == 0)
    status = publish_files(s, written);
  RS_TRY(rs_comm_gather_bytes(comm, status, &s->report, sizeof s->report, &strings));
  memcpy(&s->report, strings->bytes, sizeof s->report);
  rs_strings_release(strings);
  return RESHARD_SUCCESS;
}

static reshard_status prepare_save(reshard_tree state, const char *directory, const reshard_state_save_options *options,
                                   rs_save_call *c) {
  const reshard_state_save_options none = {.size = RESHARD_STATE_SAVE_OPTIONS_INIT};
  RS_TRY(RS_GIVEN(call, state, directory));
  c->options = options != NULL ? *options : none;
  RS_TRY(RS_SIZED(reshard_state_save_options, &c->options));
  if (c->options.threads < 0 || c->options.threads > 4096)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %d threads, 4096 are the most", call, c->options.threads);
  RS_TRY(rs_dtypes_check(c->options.dtype, &(reshard_blocks){0}));
  RS_TRY(rs_state_leaves_list(c->base.comm, state, &c->base.leaves));
  return rs_pinned_buffers_open(c->sharder, c->options.stream, c->options.staging_bytes, &c->base.leaves,
                                &c->base.buffers);
}

static reshard_status run_save(rs_save_call *c, reshard_state_save_report *report) {
  bool apart = !rs_one_process(c->base.comm);
  RS_TRY(apart ? begin_processes(c) : begin_threads(c));
  c->base.status = write_local(c);
  RS_TRY(apart ? end_processes(c) : rs_comm_combine(c->base.comm, end_threads, c));
  if (report != NULL)
    *report = c->shared->report;
  return RESHARD_SUCCESS;
}

reshard_status reshard_state_save(reshard_sharder sharder, reshard_tree state, const char *directory,
                                  const reshard_state_save_options *options, reshard_state_save_report *report) {
  RS_TRY(RS_GIVEN(call, sharder));
  reshard_comm comm = sharder->comm;
  RS_CALL(comm, 0);
  rs_save_call c = {.base = {.comm = comm, .directory = directory}, .sharder = sharder};
  c.base.status = prepare_save(state, directory, options, &c);
  c.base.text = reshard_last_error();
  reshard_status status = run_save(&c, report);
  release_writer(c.shared); /* the last one abandons what is not published */
  rs_pinned_buffers_close(&c.base.buffers);
  rs_state_leaves_free(&c.base.leaves);
  rs_exchanged_leaves_free(&c.exchanged);
  return status;
}
