#define _GNU_SOURCE
#include "bench/cli/machine.h"

#include "device/environment.h"

#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Reads the first line of a file that begins with the key. */
static bool read_line(const char *path, const char *key, char line[256]) {
  FILE *file = fopen(path, "r");
  bool found = false;
  while (file != NULL && !found && fgets(line, 256, file) != NULL)
    found = strncmp(line, key, strlen(key)) == 0;
  if (file != NULL)
    fclose(file);
  return found;
}

/* Reads the number behind a key in a file of lines "KEY NUMBER ..."; key "": the file's first number. -1: there is
 * none. */
static int64_t read_number(const char *path, const char *key) {
  char line[256];
  long long value;
  return read_line(path, key, line) && sscanf(line + strlen(key), "%lld", &value) == 1 ? value : -1;
}

static void read_processor(char *out, size_t size) {
  char line[256];
  snprintf(out, size, "unknown");
  if (!read_line("/proc/cpuinfo", "model name", line) && !read_line("/proc/cpuinfo", "CPU part", line))
    return;
  const char *at = line + strcspn(line, ":");
  at += strspn(at, ": \t");
  snprintf(out, size, "%.*s", (int)strcspn(at, "\n"), at);
}

static void read_caches(int64_t *cache) {
  for (int i = 0; i < 16; i++) {
    char path[96], type[256], text[256], unit = '\0';
    long long size = 0;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/level", i);
    int64_t level = read_number(path, "");
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/type", i);
    if (!read_line(path, "", type))
      break;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
    if (read_line(path, "", text))
      (void)sscanf(text, "%lld%c", &size, &unit);
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
