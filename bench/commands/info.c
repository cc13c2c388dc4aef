/* reshard info: the features of this build and of this machine. */
#include "bench/cli/machine.h"
#include "bench/cli/options.h"
#include "bench/commands/commands.h"
#include "bench/launch/gpu.h"
#include "bench/launch/processes.h"

#include <reshard/file.h>

#include <stdlib.h>
#include <string.h>

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown"
#endif

static bool has_files(void) {
#ifdef RS_HAVE_JANSSON
  return true;
#else
  return false;
#endif
}

/* "13.0" of 13000, "2.28.9" of 22809. */
static const char *version_text(char buffer[32], int version, bool nccl) {
  if (version == 0)
    snprintf(buffer, 32, "none");
  else if (nccl)
    snprintf(buffer, 32, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
  else
    snprintf(buffer, 32, "%d.%d", version / 1000, version % 1000 / 10);
  return buffer;
}

static void add_gpus(rs_json *j, const gpu_machine *g) {
  char text[32];
  rs_json_bool(j, "cuda", g->cuda);
  rs_json_string(j, "cuda_driver", version_text(text, g->driver, false));
  rs_json_string(j, "cuda_runtime", version_text(text, g->runtime, false));
  rs_json_bool(j, "nccl", g->nccl);
  rs_json_string(j, "nccl_version", version_text(text, g->nccl_version, true));
  rs_json_bool(j, "mpi", mpi_built());
  rs_json_open(j, "gpus", '[');
  for (int i = 0; i < g->gpus; i++) {
    gpu_info info;
    CLI_TRY("", gpu_info_read(i, &info));
    rs_json_open(j, NULL, '{');
    rs_json_string(j, "name", info.name);
    rs_json_string(j, "bus", info.bus);
    snprintf(text, sizeof text, "%d.%d", info.major, info.minor);
    rs_json_string(j, "compute_capability", text);
    rs_json_ints(j, {"multiprocessors", info.multiprocessors}, {"memory_bytes", info.memory}, {"l2_bytes", info.l2});
    rs_json_open(j, "reaches", '['); /* the GPUs to whose memory it has access */
    for (int peer = 0; peer < g->gpus; peer++)
      if (peer != i && gpu_peer_access(i, peer))
        rs_json_int(j, NULL, peer);
    rs_json_close(j, ']');
    rs_json_close(j, '}');
  }
  rs_json_close(j, ']');
}

static void print_gpus(const gpu_machine *g) {
  char a[CLI_BYTES_TEXT], b[CLI_BYTES_TEXT], driver[32], runtime[32];
  const char *lacking = gpu_why_none();
  printf("CUDA          ");
  if (g->cuda)
    printf("runtime %s, driver %s", version_text(runtime, g->runtime, false), version_text(driver, g->driver, false));
  printf("%s%s\n", g->cuda && lacking != NULL ? "; " : "", lacking != NULL ? lacking : "");
  for (int i = 0; i < g->gpus; i++) {
    gpu_info info;
    CLI_TRY("", gpu_info_read(i, &info));
    printf("cuda:%-8d %s, compute capability %d.%d, %d multiprocessors, %s, L2 %s, bus %s; reaches", i, info.name,
           info.major, info.minor, info.multiprocessors, cli_bytes_text(a, (double)info.memory),
           cli_bytes_text(b, (double)info.l2), info.bus);
    int peers = 0;
    for (int peer = 0; peer < g->gpus; peer++)
      if (peer != i && gpu_peer_access(i, peer))
        printf("%s cuda:%d", peers++ > 0 ? "," : "", peer);
    printf("%s\n", peers == 0 ? " no other" : "");
  }
}

static void print_json(const machine *m, const gpu_machine *g, const char *path) {
  rs_json j = {.text.grows = true};
  rs_json_open(&j, NULL, '{');
  rs_json_int(&j, "version", 1);
  rs_json_string(&j, "reshard", reshard_version());
  rs_json_string(&j, "compiler", COMPILER);
  rs_json_open(&j, "devices", '[');
  rs_json_string(&j, NULL, "cpu");
  if (g->cuda)
    rs_json_string(&j, NULL, "cuda");
  rs_json_close(&j, ']');
  rs_json_open(&j, "comms", '[');
  rs_json_string(&j, NULL, "local");
  rs_json_string(&j, NULL, "node");
  if (g->nccl)
    rs_json_string(&j, NULL, "nccl");
  if (mpi_built())
    rs_json_string(&j, NULL, "mpi");
  rs_json_close(&j, ']');
  add_gpus(&j, g);
  rs_json_bool(&j, "json_files", has_files());
  rs_json_bool(&j, "digests", cli_has_digests());
  rs_json_open(&j, "isas", '[');
  for (int i = 1; i < RESHARD_ISA_COUNT; i++)
    if (reshard_isa_available((reshard_isa)i))
      rs_json_string(&j, NULL, reshard_isa_string((reshard_isa)i));
  rs_json_close(&j, ']');
  machine_json(&j, "machine", m);
  rs_json_open(&j, "models", '[');
  for (int64_t i = 0; reshard_model_preset_name(i) != NULL; i++)
    rs_json_string(&j, NULL, reshard_model_preset_name(i));
  rs_json_close(&j, ']');
  rs_json_close(&j, '}');
  cli_write_json(path, &j);
}

static void print_text(const machine *m, const gpu_machine *g) {
  char a[CLI_BYTES_TEXT], b[CLI_BYTES_TEXT], c[CLI_BYTES_TEXT], nccl[32];
  printf("reshard       %s, built with %s\n", reshard_version(), COMPILER);
  printf("devices       cpu%s\n", g->cuda ? ", cuda" : "");
  printf("communicators local (ranks are threads of one process), node (processes of one node)");
  if (g->nccl)
    printf(", nccl %s", version_text(nccl, g->nccl_version, true));
  printf("%s\n", mpi_built() ? ", mpi" : "");
  print_gpus(g);
  printf("files         %s\n", has_files()
                                   ? "safetensors, npy, PyTorch's .distcp and .pt (read alone), JSON models, by jansson"
                                   : "none: built without jansson");
  printf("digests       %s\n",
         cli_has_digests() ? "XXH3 of each MiB in safetensors files" : "none: built without xxhash");
  printf("instructions ");
  for (int i = 1; i < RESHARD_ISA_COUNT; i++)
    if (reshard_isa_available((reshard_isa)i))
      printf(" %s%s", reshard_isa_string((reshard_isa)i),
             strcmp(reshard_isa_string((reshard_isa)i), m->isa) == 0 ? " (taken)" : "");
  printf("\nprocessor     %s, %d cores for this process\n", m->processor, m->cores);
  printf("caches        L1 %s, L2 %s, L3 %s\n", cli_bytes_text(a, (double)m->cache[1]),
         cli_bytes_text(b, (double)m->cache[2]), cli_bytes_text(c, (double)m->cache[3]));
  printf("memory        %s\n", cli_bytes_text(a, (double)m->memory));
  printf("system        %s\n", m->system);
  printf("models       ");
  for (int64_t i = 0; reshard_model_preset_name(i) != NULL; i++)
    printf(" %s", reshard_model_preset_name(i));
  printf("\n");
}

int command_info(int argc, char **argv) {
  cli_options o;
  machine m;
  gpu_machine g;
  cli_read_options(argc, argv, COMMAND_INFO,
                   "usage: reshard info [--json FILE]\n\nTells what this build has and this machine offers.\n", &o);
  machine_read(&m);
  gpu_machine_read(&g);
  if (o.json != NULL)
    print_json(&m, &g, o.json);
  if (o.json == NULL || strcmp(o.json, "-") != 0)
    print_text(&m, &g);
  return EXIT_DONE;
}
