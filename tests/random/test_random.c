/* Random reshards against the oracle, over both paths, and the kept regressions. RESHARD_TEST_SCALE multiplies the
 * number of cases (20,000; half of them where each access is looked at), RESHARD_TEST_SEED replaces the first seed (1).
 * One case in five at least takes several rounds, and one in four passes bytes on. */
#include "bench/verify/case_run.h"
#include "support/fixtures/scale.h"

#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { CASES = 10000 };
#else
enum { CASES = 20000 };
#endif

int main(void) {
  const char *seed = getenv("RESHARD_TEST_SEED");
  double cases = CASES * test_scale();
  case_options many = {
      .cases = cases < 1 ? 1 : (int64_t)cases,
      .seed = seed != NULL ? strtoull(seed, NULL, 0) : 1,
      .workers = cli_cores() < 8 ? cli_cores() : 8,
      .most_failures = 5,
      .fixed = {.casts = true, .blocks = true, .topologies = true},
  };
  case_totals totals = {0};
  int64_t kept = 0;
  double begin = rs_seconds();
  int64_t failures = case_run_regressions(&many, &totals, &kept);
  failures += case_run_all(&many, &totals);
  int64_t none = case_print_totals(&totals, stdout);
  printf("%lld failed, %lld kept regressions, %.1f s\n", (long long)failures, (long long)kept, rs_seconds() - begin);
  if (none > 0 && totals.cases >= 10000) {
    printf("%lld pairs of kinds or dtypes without a case\n", (long long)none);
    return 1;
  }
  if (totals.rounds < totals.cases / 5 && totals.cases >= 1000) {
    printf("%lld of %lld cases took several rounds, too few\n", (long long)totals.rounds, (long long)totals.cases);
    return 1;
  }
  int64_t passed = totals.passed[0] + totals.passed[1];
  if (passed < totals.cases / 4 && totals.cases >= 1000) {
    printf("%lld of %lld cases passed bytes on, too few\n", (long long)passed, (long long)totals.cases);
    return 1;
  }
  return failures > 0;
}
