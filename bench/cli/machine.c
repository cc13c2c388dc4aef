#define _GNU_SOURCE
#include "bench/cli/machine.h"

#include "device/environment.h"

#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

static void read_processor(char *out, size_t size) {
  FILE *file = fopen("/proc/cpuinfo", "r");
  char line[512];
  snprintf(out, size, "unknown");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    char *colon = strchr(line, ':');
    if (colon == NULL || (strncmp(line, "model name", 10) != 0 && strncmp(line, "CPU part", 8) != 0))
      continue;
    colon += 1 + strspn(colon + 1, " \t");
    colon[strcspn(colon, "\n")] = '\0';
    snprintf(out, size, "%s", colon);
    break;
  }
  if (file != NULL)
    fclose(file);
}

static int64_t read_first_number(const char *path, char *unit) {
  FILE *file = fopen(path, "r");
  long long value = 0;
  *unit = '\0';
  if (file != NULL) {
    if (fscanf(file, "%lld%c", &value, unit) < 1)
      value = 0;
    fclose(file);
  }
  return value;
}

static void read_caches(int64_t *cache) {
  for (int i = 0; i < 16; i++) {
    char path[96], unit, type[32] = "";
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/level", i);
    int64_t level = read_first_number(path, &unit);
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/type", i);
    FILE *file = fopen(path, "r");
    if (file == NULL)
      break;
    if (fgets(type, sizeof type, file) == NULL)
      type[0] = '\0';
    fclose(file);
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
    int64_t size = read_first_number(path, &unit);
    if (level >= 1 && level <= 3 && strncmp(type, "Instruction", 11) != 0)
      cache[level] = unit == 'K' ? size << 10 : unit == 'M' ? size << 20 : size;
  }
}

void machine_read(machine *m) {
  *m = (machine){.cores = cli_cores()};
  struct utsname name;
  if (uname(&name) == 0)
    snprintf(m->system, sizeof m->system, "%.40s %.60s %.20s", name.sysname, name.release, name.machine);
  read_processor(m->processor, sizeof m->processor);
  read_caches(m->cache);
  m->memory = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  static const reshard_isa best_first[] = {RESHARD_ISA_AVX512, RESHARD_ISA_AVX2, RESHARD_ISA_NEON, RESHARD_ISA_SSE2,
                                           RESHARD_ISA_SCALAR};
  reshard_isa isa = RESHARD_ISA_AUTO;
  int threads = 1;
  CLI_TRY("", rs_environment_cpu(&threads, &isa));
  if (!reshard_isa_available(isa))
    isa = RESHARD_ISA_AUTO;
  for (int i = 0; isa == RESHARD_ISA_AUTO && i < 5; i++)
    isa = reshard_isa_available(best_first[i]) ? best_first[i] : isa;
  m->isa = reshard_isa_string(isa);
}

/* Reads the number behind a key in a file of lines "KEY NUMBER ..."; key "": the file's first number. -1: there is
 * none. */
static int64_t read_number(const char *path, const char *key) {
  FILE *file = fopen(path, "r");
  char line[256];
  long long value = -1;
  while (file != NULL && value < 0 && fgets(line, sizeof line, file) != NULL)
    if (strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), "%lld", &value) != 1)
      value = -1;
  if (file != NULL)
    fclose(file);
  return value;
}

int64_t machine_available(void) {
  int64_t kib = read_number("/proc/meminfo", "MemAvailable:");
  int64_t available = kib >= 0 ? kib << 10 : (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  int64_t limit = read_number("/sys/fs/cgroup/memory.max", ""), used = read_number("/sys/fs/cgroup/memory.current", "");
  int64_t cache = read_number("/sys/fs/cgroup/memory.stat", "inactive_file ");
  if (limit >= 0 && used >= 0) {
    int64_t left = limit - used + (cache > 0 ? cache : 0);
    available = left < available ? (left > 0 ? left : 0) : available;
  }
  return available;
}

void machine_json(rs_json *j, const char *key, const machine *m) {
  rs_json_open(j, key, '{');
  rs_json_string(j, "processor", m->processor);
  rs_json_string(j, "system", m->system);
  rs_json_ints(j, {"cores", m->cores}, {"memory_bytes", m->memory}, {"l1_bytes", m->cache[1]},
               {"l2_bytes", m->cache[2]}, {"l3_bytes", m->cache[3]});
  rs_json_string(j, "isa", m->isa);
  rs_json_close(j, '}');
}
