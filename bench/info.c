/* reshard info: what this build has and this machine offers. */
#include "commands.h"
#include "json.h"
#include "machine.h"
#include "options.h"

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

static void as_json(const machine *m, const char *path) {
  json j = {0};
  cli_json_open(&j, NULL, '{');
  cli_json_int(&j, "version", 1);
  cli_json_string(&j, "reshard", reshard_version());
  cli_json_string(&j, "compiler", COMPILER);
  cli_json_open(&j, "devices", '[');
  cli_json_string(&j, NULL, "cpu");
  cli_json_close(&j, ']');
  cli_json_open(&j, "comms", '[');
  cli_json_string(&j, NULL, "local");
  cli_json_close(&j, ']');
  cli_json_bool(&j, "cuda", false);
  cli_json_bool(&j, "nccl", false);
  cli_json_bool(&j, "mpi", false);
  cli_json_bool(&j, "json_files", has_files());
  cli_json_open(&j, "gpus", '[');
  cli_json_close(&j, ']');
  cli_json_open(&j, "isas", '[');
  for (int i = 1; i < RESHARD_ISA_COUNT; i++)
    if (reshard_isa_available((reshard_isa)i))
      cli_json_string(&j, NULL, reshard_isa_string((reshard_isa)i));
  cli_json_close(&j, ']');
  machine_json(&j, "machine", m);
  cli_json_open(&j, "models", '[');
  for (int64_t i = 0; reshard_model_preset_name(i) != NULL; i++)
    cli_json_string(&j, NULL, reshard_model_preset_name(i));
  cli_json_close(&j, ']');
  cli_json_close(&j, '}');
  cli_json_write(&j, path);
}

static void as_text(const machine *m) {
  char a[CLI_BYTES_TEXT], b[CLI_BYTES_TEXT], c[CLI_BYTES_TEXT];
  printf("reshard       %s, built with %s\n", reshard_version(), COMPILER);
  printf("devices       cpu; the program does not use CUDA yet\n");
  printf("communicators local (ranks are threads of one process); the program does not use NCCL and MPI yet\n");
  printf("files         %s\n",
         has_files() ? "safetensors, npy, JSON models, by jansson" : "none: built without jansson");
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
  cli_read_options(argc, argv, COMMAND_INFO,
                   "usage: reshard info [--json FILE]\n\nTells what this build has and this machine offers.\n", &o);
  machine_read(&m);
  if (o.json != NULL)
    as_json(&m, o.json);
  if (o.json == NULL || strcmp(o.json, "-") != 0)
    as_text(&m);
  return EXIT_DONE;
}
