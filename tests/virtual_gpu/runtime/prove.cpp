/* Results of tests for ./run prove: lines in the file that VG_PROVE names. */
#include "machine.hpp"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

static const char *file() {
  const char *name = getenv("VG_PROVE");
  return name && *name ? name : nullptr;
}

bool vg_proving(void) { return file() != nullptr; }

int64_t vg_scaled(int64_t n, int64_t full) {
  const char *scale = getenv("RESHARD_TEST_SCALE");
  double scaled = (double)(file() ? full : n) * (scale && *scale ? atof(scale) : 1);
  return std::max((int64_t)scaled, (int64_t)1);
}

bool vg_is_mine(int64_t number) {
  const char *shard = getenv("VG_SHARD");
  long long mine, n;
  return !shard || sscanf(shard, "%lld/%lld", &mine, &n) != 2 || number % n == mine % n;
}

uint64_t vg_first_seed(void) {
  const char *seed = getenv("VG_SEED");
  return seed ? strtoull(seed, nullptr, 10) : 0;
}

/* Opened for each line: tests may end in the middle of anything. */
void vg_prove(const char *format, ...) {
  FILE *to = file() ? fopen(file(), "a") : nullptr;
  if (!to)
    return;
  va_list arguments;
  va_start(arguments, format);
  vfprintf(to, format, arguments);
  va_end(arguments);
  fputc('\n', to);
  if (fclose(to) != 0)
    perror(file());
}
