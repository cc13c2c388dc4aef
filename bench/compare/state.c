/* Saves and loads a state dict of f32 matrices as a training job would, and prints the times, for figures_files.sh and
 * dcp.py.
 *
 *     reshard_state_bench save DIR RANKS LAYOUT MIB [TENSORS [REPEATS]]
 *     reshard_state_bench load DIR RANKS LAYOUT [REPEATS]
 *
 * Matrices have 4096 columns. Every element's value is its number in its tensor, and a load checks every one. All
 * memory is written to before a time is taken. Each repeat prints a line of JSON and replaces an earlier checkpoint. */
#include "bench/cli/util.h"
#include "bench/launch/rank_threads.h"

#include <reshard/file.h>
#include <reshard/state_dict.h>

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COLUMNS = 4096, MOST_RANKS = 64 };

typedef struct state_bench {
  bool save;
  const char *directory, *layout;
  int64_t ranks, n, repeats;
  reshard_model_tensor *tensors;
  reshard_comm comms[MOST_RANKS];
  rank_pool *pool;
  reshard_state_save_report saved;
  reshard_state_load_report loaded[MOST_RANKS];
} state_bench;

/* Fills or checks a rank's elements: element e of a tensor is e, rounded to an f32. */
static void visit_elements(reshard_sharded_tensor tensor, int64_t rank, bool fill) {
  reshard_layout layout = reshard_sharded_tensor_layout(tensor);
  for (int64_t i = 0; i < reshard_sharded_tensor_local_count(tensor); i++) {
    reshard_tensor array;
    reshard_tensor_info info;
    CLI_TRY("", reshard_sharded_tensor_local(tensor, i, &array, NULL));
    CLI_TRY("", reshard_tensor_get_info(array, &info));
    if (info.elements == 0)
      continue;
    int64_t nrows, ncolumns;
    CLI_TRY("", reshard_layout_array_intervals(layout, rank, i, 0, 0, 0, NULL, &nrows));
    CLI_TRY("", reshard_layout_array_intervals(layout, rank, i, 1, 0, 0, NULL, &ncolumns));
    reshard_interval *rows = cli_alloc(nrows, sizeof *rows), *columns = cli_alloc(ncolumns, sizeof *columns);
    CLI_TRY("", reshard_layout_array_intervals(layout, rank, i, 0, 0, nrows, rows, &nrows));
    CLI_TRY("", reshard_layout_array_intervals(layout, rank, i, 1, 0, ncolumns, columns, &ncolumns));
    float *at = info.data;
    for (int64_t r = 0; r < nrows; r++)
      for (int64_t row = rows[r].begin; row < rows[r].end; row++)
        for (int64_t c = 0; c < ncolumns; c++)
          for (int64_t column = columns[c].begin; column < columns[c].end; column++, at++) {
            float value = (float)(row * COLUMNS + column);
            if (!fill && *at != value)
              cli_exit(EXIT_FAILED, "rank %lld: row %lld column %lld is %g, not %g", (long long)rank, (long long)row,
                       (long long)column, (double)*at, (double)value);
            *at = value;
          }
    free(rows);
    free(columns);
  }
}

static reshard_tree make_state(const state_bench *j, reshard_sharder sharder, int64_t rank,
                               reshard_sharded_tensor *tensors) {
  reshard_tree root, leaf;
  CLI_TRY("", reshard_tree_dict(&root));
  for (int64_t i = 0; i < j->n; i++) {
    const reshard_model_tensor *t = &j->tensors[i];
    reshard_layout layout;
    CLI_TRY("", reshard_layout_parse(j->layout, t->ndim, t->shape, j->ranks, &layout));
    CLI_TRY("",
            reshard_sharded_tensor_zeros(sharder, layout, &(reshard_properties){.dtype = t->dtype}, NULL, &tensors[i]));
    if (j->save)
      visit_elements(tensors[i], rank, true);
    CLI_TRY("", reshard_state_sharded(tensors[i], &leaf));
    CLI_TRY("", reshard_tree_set(root, t->name, leaf));
    reshard_tree_release(leaf);
    reshard_layout_release(layout);
  }
  if (j->save) {
    CLI_TRY("", reshard_tree_int(1234, &leaf));
    CLI_TRY("", reshard_tree_set(root, "step", leaf));
    reshard_tree_release(leaf);
  }
  return root;
}

static void print_saved(const state_bench *j, double seconds) {
  const reshard_state_save_report *r = &j->saved;
  rs_json line = {.text.grows = true};
  rs_json_open(&line, NULL, '{');
  rs_json_int(&line, "bytes", r->bytes);
  rs_json_int(&line, "files", r->files);
  rs_json_real(&line, "seconds", seconds);
  rs_json_real(&line, "prepare_seconds", r->prepare_seconds);
  rs_json_real(&line, "reserve_seconds", r->reserve_seconds);
  rs_json_real(&line, "write_seconds", r->write_seconds);
  rs_json_real(&line, "sync_seconds", r->sync_seconds);
  rs_json_close(&line, '}');
  cli_write_json("-", &line);
}

static void print_loaded(const state_bench *j, double seconds) {
  int64_t bytes = 0, read = 0;
  double opened = 0, most = 0;
  rs_json line = {.text.grows = true};
  for (int64_t r = 0; r < j->ranks; r++) {
    bytes += j->loaded[r].bytes;
    read += j->loaded[r].read_bytes;
    opened = fmax(opened, j->loaded[r].open_seconds);
    most = fmax(most, j->loaded[r].read_seconds);
  }
  rs_json_open(&line, NULL, '{');
  rs_json_int(&line, "bytes", bytes);
  rs_json_int(&line, "read_bytes", read);
  rs_json_real(&line, "seconds", seconds);
  rs_json_real(&line, "open_seconds", opened);
  rs_json_real(&line, "read_seconds", most);
  rs_json_close(&line, '}');
  cli_write_json("-", &line);
}

/* Removes the files of the save before, so that their removal is not timed. */
static void remove_saved(const char *path) {
  DIR *directory = opendir(path);
  for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;)
    if (entry->d_name[0] != '.')
      (void)unlinkat(dirfd(directory), entry->d_name, 0);
  if (directory != NULL)
    closedir(directory);
  (void)rmdir(path);
}

static void run_rank(void *user, int64_t rank) {
  state_bench *j = user;
  reshard_sharder sharder;
  reshard_sharded_tensor *tensors = cli_alloc(j->n, sizeof *tensors);
  CLI_TRY("", reshard_sharder_create(j->comms[rank], NULL, &sharder));
  reshard_tree state = make_state(j, sharder, rank, tensors);
  reshard_state_save_options saving = {.size = RESHARD_STATE_SAVE_OPTIONS_INIT, .force = 1};
  reshard_state_load_options loading = {.size = RESHARD_STATE_LOAD_OPTIONS_INIT, .partial = 1};
  for (int64_t i = 0; i < j->repeats; i++) {
    if (j->save && rank == 0 && i > 0)
      remove_saved(j->directory);
    (void)rank_pool_barrier(j->pool, true);
    if (j->save)
      CLI_TRY("", reshard_state_save(sharder, state, j->directory, &saving, rank == 0 ? &j->saved : NULL));
    else
      CLI_TRY("", reshard_state_load(sharder, state, j->directory, &loading, &j->loaded[rank]));
    double end = rs_seconds() - rank_pool_opened(j->pool);
    (void)rank_pool_barrier(j->pool, true);
    if (rank == 0)
      (j->save ? print_saved : print_loaded)(j, end);
    for (int64_t k = 0; k < j->n && !j->save; k++) {
      visit_elements(tensors[k], rank, false);
      for (int64_t a = 0; a < reshard_sharded_tensor_local_count(tensors[k]); a++) { /* gone again */
        reshard_tensor array;
        reshard_tensor_info info;
        CLI_TRY("", reshard_sharded_tensor_local(tensors[k], a, &array, NULL));
        CLI_TRY("", reshard_tensor_get_info(array, &info));
        memset(info.data, 0xee, (size_t)info.elements * sizeof(float));
      }
    }
  }
  for (int64_t i = 0; i < j->n; i++)
    reshard_sharded_tensor_release(tensors[i]);
  free(tensors);
  reshard_tree_release(state);
  reshard_sharder_destroy(sharder);
}

static int64_t parse_number(int argc, char **argv, int i, int64_t otherwise) {
  char *end = "";
  int64_t n = i < argc ? strtoll(argv[i], &end, 10) : otherwise;
  if (n < 1 || *end != '\0')
    cli_exit(EXIT_USAGE, "'%s' is no number of 1 or more", argv[i]);
  return n;
}

static void list_stored(state_bench *j) {
  reshard_checkpoint checkpoint;
  reshard_model_tensor t;
  CLI_TRY("", reshard_checkpoint_open(j->directory, &checkpoint));
  reshard_model model = reshard_checkpoint_model(checkpoint);
  j->n = reshard_model_count(model);
  j->tensors = cli_alloc(j->n, sizeof *j->tensors);
  for (int64_t i = 0; i < j->n; i++) {
    CLI_TRY("", reshard_model_get(model, i, &t));
    j->tensors[i] = t;
    j->tensors[i].name = cli_strdup(t.name);
    if (t.ndim != 2 || t.dtype != RESHARD_F32 || t.shape[1] != COLUMNS)
      cli_exit(EXIT_USAGE, "tensor '%s' is no f32 matrix of %d columns", t.name, COLUMNS);
  }
  reshard_checkpoint_close(checkpoint);
}

static void list_new(state_bench *j, int64_t mib) {
  j->tensors = cli_alloc(j->n, sizeof *j->tensors);
  for (int64_t i = 0; i < j->n; i++) {
    char name[48];
    snprintf(name, sizeof name, "layers.%lld.weight", (long long)i);
    j->tensors[i] = (reshard_model_tensor){
        .name = cli_strdup(name), .dtype = RESHARD_F32, .ndim = 2, .shape = {mib * 64 / j->n, COLUMNS}};
  }
}

int main(int argc, char **argv) {
  state_bench j = {.save = argc > 1 && strcmp(argv[1], "save") == 0};
  if (argc < (j.save ? 6 : 5) || argc > (j.save ? 8 : 6) || (!j.save && strcmp(argv[1], "load") != 0))
    cli_exit(EXIT_USAGE, "usage: reshard_state_bench save DIR RANKS LAYOUT MIB [TENSORS [REPEATS]] | load DIR RANKS "
                         "LAYOUT [REPEATS]");
  j.directory = argv[2];
  j.ranks = parse_number(argc, argv, 3, 1);
  j.layout = argv[4];
  j.n = j.save ? parse_number(argc, argv, 6, 16) : 0;
  j.repeats = parse_number(argc, argv, j.save ? 7 : 5, 1);
  if (j.ranks > MOST_RANKS)
    cli_exit(EXIT_USAGE, "%lld ranks, %d are the most", (long long)j.ranks, MOST_RANKS);
  if (j.save)
    list_new(&j, parse_number(argc, argv, 5, 1));
  else
    list_stored(&j);
  CLI_TRY("", reshard_comm_create_local(j.ranks, NULL, j.comms));
  j.pool = rank_pool_create();
  rank_pool_run(j.pool, j.ranks, run_rank, &j);
  rank_pool_destroy(j.pool);
  for (int64_t r = 0; r < j.ranks; r++)
    reshard_comm_destroy(j.comms[r]);
  for (int64_t i = 0; i < j.n; i++)
    free((char *)j.tensors[i].name);
  free(j.tensors);
  return EXIT_DONE;
}
