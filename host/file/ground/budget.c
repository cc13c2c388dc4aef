#include "file/ground/budget.h"

#define ALWAYS ((int64_t)64 << 20)
/* Resident as well, and not counted by readers: code that runs for the first time, ends of the allocator's pages. */
#define BESIDE ((int64_t)2 << 20)

int64_t rs_budget_limit(int64_t file_bytes) { return ALWAYS + 8 * rs_min(file_bytes, INT64_MAX / 16); }

reshard_status rs_budget_check(const char *where, int64_t file_bytes, int64_t taken) {
  if (taken <= rs_budget_limit(file_bytes) - BESIDE)
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_CORRUPT,
                  "%s: reading it takes %lld bytes of memory and more, at most %lld are taken for a file of %lld",
                  where, (long long)(taken + BESIDE), (long long)rs_budget_limit(file_bytes), (long long)file_bytes);
}
