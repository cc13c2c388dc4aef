/* Saves a small state dict, or writes tensors one by one, over whatever is there, for the test of crashes.
 *
 *     saves threads|processes|writer PATH
 *
 * Ranks are 3 threads, or the processes that mpirun has started; a writer is that of <reshard/file.h>. */
#include "support/fixtures/sharded_ranks.h"

#include "bench/cli/util.h"

#include <reshard/file.h>
#include <reshard/state_dict.h>

#include <string.h>
#ifdef SAVES_MPI
#include <mpi.h>
#include <reshard/mpi.h>
#endif

enum { SEED = 5 };

static void dict_put(reshard_tree dict, const char *key, reshard_tree leaf) {
  CLI_TRY(key, reshard_tree_set(dict, key, leaf));
  reshard_tree_release(leaf);
}

static void put_sharded(reshard_sharder sharder, reshard_comm comm, reshard_tree dict, const char *text) {
  const int64_t shape[] = {60, 97};
  const reshard_properties properties = {.dtype = RESHARD_F32};
  reshard_layout layout = layout_from_text(text, 2, shape, reshard_comm_size(comm));
  reshard_sharded_tensor tensor;
  reshard_tree leaf;
  CLI_TRY("", reshard_sharded_tensor_empty(sharder, layout, &properties, NULL, &tensor));
  sharded_fill(tensor, reshard_comm_rank(comm), SEED);
  CLI_TRY("", reshard_state_sharded(tensor, &leaf));
  dict_put(dict, text, leaf);
  reshard_sharded_tensor_release(tensor);
  reshard_layout_release(layout);
}

/* A plain tensor is of the ranks but the first; the others' leaves are numbers. */
static void save_rank(reshard_comm comm, const char *path) {
  const reshard_state_save_options over = {.size = RESHARD_STATE_SAVE_OPTIONS_INIT, .force = 1, .threads = 1};
  const int64_t shape[] = {1500};
  reshard_sharder sharder;
  reshard_tree root, inner, leaf;
  reshard_tensor plain;
  CLI_TRY("", reshard_sharder_create(comm, NULL, &sharder));
  CLI_TRY("", reshard_tree_dict(&root));
  put_sharded(sharder, comm, root, "chunk(0)");
  put_sharded(sharder, comm, root, "chunk(1)");
  put_sharded(sharder, comm, root, "flat()");
  CLI_TRY("", reshard_tensor_create(RESHARD_F64, 1, shape, &plain));
  reshard_layout whole = layout_from_text("rank(0)", 1, shape, 1);
  array_fill(whole, 0, 0, plain, SEED);
  CLI_TRY("", reshard_comm_rank(comm) > 0 ? reshard_tree_tensor(plain, &leaf) : reshard_tree_null(&leaf));
  dict_put(root, "plain", leaf);
  CLI_TRY("", reshard_tree_dict(&inner));
  CLI_TRY("", reshard_tree_int(1234, &leaf));
  dict_put(inner, "step", leaf);
  dict_put(root, "optimizer", inner);
  CLI_TRY("", reshard_state_save(sharder, root, path, &over, NULL));
  reshard_layout_release(whole);
  reshard_tensor_release(plain);
  reshard_tree_release(root);
  reshard_sharder_destroy(sharder);
}

static void save_thread(void *ranks, int64_t rank) {
  sharded_ranks *p = ranks;
  save_rank(p->comms[rank], p->user);
}

static void save_threads(char *path) {
  sharded_ranks ranks;
  sharded_ranks_open(&ranks, 3, NULL);
  sharded_ranks_run(&ranks, save_thread, path);
  sharded_ranks_close(&ranks);
}

static void save_processes(const char *path) {
#ifdef SAVES_MPI
  reshard_comm comm;
  MPI_Comm world = MPI_COMM_WORLD;
  MPI_Init(NULL, NULL);
  CLI_TRY("", reshard_comm_from_mpi(&world, NULL, 60000, &comm));
  save_rank(comm, path);
  reshard_comm_destroy(comm);
  MPI_Finalize();
#else
  cli_exit(EXIT_LACKING, "%s: this build has no MPI", path);
#endif
}

static void write_tensors(const char *path) {
  static char bytes[3][30000];
  const reshard_writer_options over = {.size = RESHARD_WRITER_OPTIONS_INIT, .force = 1};
  const int64_t shape[] = {30000};
  reshard_writer_tensor tensor = {"x", RESHARD_U8, NULL};
  reshard_writer writer;
  bool one = strchr(path, '.') != NULL;
  tensor.layout = layout_from_text(one ? "rank(0)" : "chunk(0)", 1, shape, 3);
  CLI_TRY("", reshard_writer_create(path, 1, &tensor, &over, &writer));
  for (int64_t rank = 0; rank < 3; rank++) {
    memset(bytes[rank], 'a' + (int)rank, sizeof bytes[rank]);
    CLI_TRY("", reshard_writer_put(writer, 0, rank, (const void *const[]){bytes[rank]}));
  }
  CLI_TRY("", reshard_writer_commit(writer));
  reshard_layout_release(tensor.layout);
}

int main(int argc, char **argv) {
  if (argc == 3 && strcmp(argv[1], "threads") == 0)
    save_threads(argv[2]);
  else if (argc == 3 && strcmp(argv[1], "processes") == 0)
    save_processes(argv[2]);
  else if (argc == 3 && strcmp(argv[1], "writer") == 0)
    write_tensors(argv[2]);
  else
    cli_exit(EXIT_USAGE, "usage: saves threads|processes|writer PATH");
  return 0;
}
