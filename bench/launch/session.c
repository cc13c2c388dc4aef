#include "bench/launch/session.h"

#include "bench/launch/gpu.h"
#include "bench/launch/processes.h"

#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>

static bool equals(const char *given, const char *word) { return given != NULL && strcmp(given, word) == 0; }

/* Computes the ranks of this process and of all, from -t, -g, --ranks and the number of processes. */
static void count_ranks(session *s, cli_options *o) {
  int64_t n = s->processes.n, t = o->ranks_per_gpu, g = o->gpus;
  if (t > 0 || g > 0 || n > 1) {
    int64_t locals = (t > 0 ? t : 1) * (g > 0 ? g : 1), world = n * locals;
    if (o->ranks > 0 && t == 0 && o->ranks % n == 0)
      world = o->ranks; /* over the processes and their GPUs in turn */
    if (o->ranks > 0 && o->ranks != world)
      cli_exit(EXIT_USAGE, "--ranks %lld: %lld process%s x -t %lld x -g %lld are %lld ranks", (long long)o->ranks,
               (long long)n, n == 1 ? "" : "es", (long long)(t > 0 ? t : 1), (long long)(g > 0 ? g : 1),
               (long long)world);
    o->ranks = world;
  }
}

static void check_devices(const cli_options *o) {
  bool cuda = equals(o->device, "cuda");
  if (equals(o->comm, "nccl") && !cuda)
    cli_exit(EXIT_USAGE, "--comm nccl connects GPUs: it needs --device cuda");
  if (o->processes > 0 && (equals(o->comm, "local") || equals(o->comm, "mpi")))
    cli_exit(EXIT_USAGE, "--processes %lld: --comm node or nccl connects them, not %s", (long long)o->processes,
             o->comm);
  if (o->shared && !cuda && !(o->processes > 0 || equals(o->comm, "node") || equals(o->comm, "mpi")))
    cli_exit(EXIT_USAGE, "--shared: ranks that are threads of one process have all of its memory on the CPU");
  if (o->gpus > 0 && !cuda)
    cli_exit(EXIT_USAGE, "-g %lld needs --device cuda", (long long)o->gpus);
  if (o->graph && !cuda)
    cli_exit(EXIT_USAGE, "-G needs --device cuda");
}

/* Opens this process's GPUs. Processes of one machine share its GPUs in turn where these are fewer than ranks; a single
 * process opens as many as it asks for. */
static void open_gpus(session *s, int64_t wanted) {
  gpu_machine m;
  gpu_machine_read(&m);
  int64_t turn = s->processes.n > 1 && m.gpus > 0 ? m.gpus : INT32_MAX, begin = s->processes.local_me * wanted;
  s->devices = cli_alloc(wanted, sizeof(reshard_device));
  for (; s->ndevices < wanted; s->ndevices++) {
    char name[32];
    snprintf(name, sizeof name, "cuda:%lld", (long long)((begin + s->ndevices) % turn));
    const reshard_device_options options = {RESHARD_DEVICE_OPTIONS_INIT, .max_blocks = s->o->max_blocks,
                                            .shared = s->o->shared};
    CLI_TRY("--device cuda: ", reshard_device_create(name, &options, &s->devices[s->ndevices]));
  }
}

void session_begin(session *s, cli_options *o) {
  *s = (session){.o = o, .cuda = equals(o->device, "cuda"), .comm = o->comm, .processes.n = 1};
  check_devices(o);
  if (o->processes > 0) {
    s->processes.n = o->processes;
    count_ranks(s, o); /* what is wrong is told once */
    processes_start(o->processes, &s->processes);
  }
  session_answer(s);
  const char *lacking = s->cuda ? gpu_why_none() : NULL;
  if (lacking != NULL)
    cli_exit(EXIT_LACKING, "--device cuda: %s", lacking);
  if (s->comm == NULL)
    s->comm = processes_comm_name(&s->processes, s->cuda);
  if (o->path == RESHARD_PATH_MIXED && strcmp(s->comm, "mpi") != 0 && strcmp(s->comm, "nccl") != 0)
    cli_exit(EXIT_LACKING, "--path mixed: --comm mpi and nccl connect nodes whose ranks read each other, not %s",
             s->comm);
  processes_open(s->comm, &s->processes);
  count_ranks(s, o);
  int cores = cli_cores() / (int)s->processes.local_n;
  s->threads = o->threads > 0 ? (int)o->threads : cores > 0 ? cores : 1;
  s->pool = rank_pool_create();
}

/* --- Communicators ----------------------------------------------------------------------------------------------- */

typedef struct nccl_start {
  session *s;
  reshard_comm *comms;
  unsigned char id[RESHARD_NCCL_ID_BYTES];
} nccl_start;

static void create_nccl(void *user, int64_t local) {
  nccl_start *j = user;
  session *s = j->s;
  CLI_TRY("--comm nccl: ", reshard_comm_create_nccl(j->id, s->world, s->first + local, s->devices[local % s->ndevices],
                                                    processes_timeout_ms(), &j->comms[local]));
}

static void connect_nccl(session *s, reshard_comm *comms) {
  nccl_start j = {.s = s, .comms = comms};
  cli_leave_threads(); /* NCCL's proxy frees memory of CUDA's when a rank is gone, also while exit() takes CUDA down */
  if (s->processes.me == 0)
    CLI_TRY("--comm nccl: ", reshard_nccl_unique_id(j.id));
  processes_share(&s->processes, j.id, sizeof j.id);
  rank_pool_run(s->pool, s->locals, create_nccl, &j);
}

static void connect_mpi(session *s, reshard_comm *comms) {
  if (s->locals != 1)
    cli_exit(EXIT_USAGE, "--comm mpi: %lld ranks in one process; each rank is a process of mpirun",
             (long long)s->locals);
  mpi_connect(s->devices[0], &comms[0]);
}

static void connect_node(session *s, reshard_comm *comms) {
  if (s->locals != 1)
    cli_exit(EXIT_USAGE, "--comm node: %lld ranks in one process; each rank is a process of its own",
             (long long)s->locals);
  reshard_node_options options = {RESHARD_NODE_OPTIONS_INIT, s->devices[0], processes_timeout_ms(), NULL};
  CLI_TRY("--comm node: ",
          reshard_comm_create_node(s->world, s->first, processes_allgather, &s->processes, &options, &comms[0]));
}

static void connect_local(session *s, reshard_comm *comms) {
  reshard_local_options local = {RESHARD_LOCAL_OPTIONS_INIT, s->threads, RESHARD_ISA_AUTO, 0, s->devices, s->ndevices};
  CLI_TRY("", reshard_comm_create_local(s->world, &local, comms));
}

void session_connect(session *s, int64_t world) {
  if (world % s->processes.n != 0)
    cli_exit(EXIT_USAGE, "%lld ranks are not the same number for each of %lld processes", (long long)world,
             (long long)s->processes.n);
  s->world = world;
  s->locals = world / s->processes.n;
  s->first = s->locals * s->processes.me;
  if (s->o->graph && strcmp(s->comm, "nccl") == 0 && s->locals > 1)
    cli_exit(EXIT_USAGE, "-G: with --comm nccl a graph holds one rank, and this process has %lld",
             (long long)s->locals);
  if (s->cuda) {
    int64_t shared = s->o->gpus > 0 ? s->o->gpus : 1;
    open_gpus(s, strcmp(s->comm, "nccl") == 0 ? s->locals : shared); /* NCCL's ranks have a GPU each */
  } else if (strcmp(s->comm, "mpi") == 0 || strcmp(s->comm, "node") == 0) {
    reshard_device_options options = {RESHARD_DEVICE_OPTIONS_INIT, .threads = s->threads};
    options.shared = s->o->shared || s->o->path != RESHARD_PATH_PACKED;
    s->devices = cli_alloc(1, sizeof(reshard_device));
    CLI_TRY("", reshard_device_create("cpu", &options, &s->devices[s->ndevices++]));
  }
  if (world == 0)
    return;
  reshard_comm *comms = cli_alloc(s->locals, sizeof *comms);
  if (strcmp(s->comm, "nccl") == 0)
    connect_nccl(s, comms);
  else if (strcmp(s->comm, "mpi") == 0)
    connect_mpi(s, comms);
  else if (strcmp(s->comm, "node") == 0)
    connect_node(s, comms);
  else
    connect_local(s, comms);
  pthread_mutex_lock(&s->asking);
  s->comms = comms;
  pthread_mutex_unlock(&s->asking);
}

reshard_status session_alloc(rs_device *device, int64_t bytes, void **memory) {
  if (!device->memory->shared)
    return device->memory->alloc(device, (size_t)bytes, memory);
  int64_t granule = device->granule > 0 ? (int64_t)device->granule : 1;
  return device->memory->alloc_async(device, (size_t)((bytes + granule - 1) / granule * granule), NULL, memory);
}

void session_free(rs_device *device, void *memory) {
  if (device->memory->shared)
    device->memory->free_async(device, memory, NULL);
  else
    device->memory->free(device, memory);
}

rs_device *session_device(const session *s, int64_t local) {
  return s->ndevices > 0 ? s->devices[local % s->ndevices]->device : NULL;
}

static void destroy_comm(void *user, int64_t local) { /* NCCL's ranks end together */
  reshard_comm_destroy(((session *)user)->comms[local]);
}

void session_end(session *s) {
  session_silence(s);
  if (s->comms != NULL)
    rank_pool_run(s->pool, s->locals, destroy_comm, s);
  for (int64_t i = 0; i < s->ndevices; i++)
    reshard_device_release(s->devices[i]);
  rank_pool_destroy(s->pool);
  free(s->comms);
  free(s->devices);
  processes_close(&s->processes);
}

/* --- Meeting ----------------------------------------------------------------------------------------------------- */

static const double *gather_doubles(session *s, int64_t local, double mine) {
  const void *all = NULL;
  reshard_status status = rs_comm_allgather(s->comms[local], &mine, sizeof mine, &all);
  return status == RESHARD_SUCCESS ? all : NULL;
}

const double *session_gather(session *s, int64_t local, double mine) {
  const double *all = gather_doubles(s, local, mine);
  if (all == NULL)
    cli_exit(EXIT_FAILED, "rank %lld: %s", (long long)(s->first + local), reshard_last_error());
  return all;
}

bool session_barrier(session *s, int64_t local, bool ok) {
  if (s->processes.n == 1)
    return rank_pool_barrier(s->pool, ok);
  const double *all = gather_doubles(s, local, ok ? 0 : 1);
  for (int64_t r = 0; all != NULL && r < s->world; r++)
    ok = ok && all[r] == 0;
  return all != NULL && ok;
}
