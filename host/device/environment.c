#include "device/environment.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

reshard_status rs_environment_number(const char *name, int64_t *value) {
  const char *text = getenv(name);
  if (text == NULL || *text == '\0')
    return RESHARD_SUCCESS;
  char *end;
  errno = 0;
  long long number = strtoll(text, &end, 10);
  if (errno != 0 || *end != '\0' || number < 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s=%.32s is not a number of 0 or more", name, text);
  *value = number;
  return RESHARD_SUCCESS;
}

static reshard_status read_isa(reshard_isa *isa) {
  const char *text = getenv("RESHARD_ISA");
  if (text == NULL || *text == '\0')
    return RESHARD_SUCCESS;
  for (int i = 0; i < RESHARD_ISA_COUNT; i++)
    if (strcmp(text, reshard_isa_string((reshard_isa)i)) == 0) {
      *isa = (reshard_isa)i;
      return RESHARD_SUCCESS;
    }
  return rs_error(RESHARD_ERROR_INVALID, "RESHARD_ISA=%.32s is none of auto, scalar, sse2, avx2, avx512, neon", text);
}

reshard_status rs_environment_cpu(int *threads, reshard_isa *isa) {
  int64_t wanted = *threads;
  if (wanted == 0)
    RS_TRY(rs_environment_number("RESHARD_THREADS", &wanted));
  if (wanted < 0 || wanted > 4096)
    return rs_error(RESHARD_ERROR_INVALID, "%lld copy threads: 0 to 4096 are possible", (long long)wanted);
  reshard_isa set = *isa;
  if (set == RESHARD_ISA_AUTO)
    RS_TRY(read_isa(&set));
  *threads = (int)wanted;
  *isa = set;
  return RESHARD_SUCCESS;
}
