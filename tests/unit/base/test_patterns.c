/* Shell patterns: sets and what in them is refused, at which byte. */
#include "base/text.h"

#include <string.h>

#include "support/fixtures/case.h"

CASE(sets_match_the_characters_in_them) {
  static const struct {
    const char *pattern, *fits, *fits_not; /* characters */
  } cases[] = {
      {"[abc]", "abc", "d-]"},  {"[a-c]", "abc", "d-"},  {"[]a]", "]a", "["},     {"[!]a]", "b[", "]a"},
      {"[^a]", "b^", "a"},      {"[a^]", "a^", "b"},     {"[a-]", "a-", "b"},     {"[-a]", "a-", "b"},
      {"[[a]", "[a", "]"},      {"[[a-c]", "[abc", "d"}, {"[a[]", "a[", "]"},     {"[[]", "[", "a"},
      {"[a-a]", "a", "b"},      {"[\\]]", "]", "\\a"},   {"[\\[:]", "[:", "\\a"}, {"[0-9.=]", "05.=", ":"},
      {"[x:.=]", "x:.=", "[]"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int64_t at;
    assert_null(rs_pattern_problem(cases[i].pattern, &at));
    for (const char *c = cases[i].fits; *c != '\0'; c++)
      if (!rs_pattern_matches(cases[i].pattern, (const char[]){*c, '\0'}))
        fail_msg("%s does not fit %c", cases[i].pattern, *c);
    for (const char *c = cases[i].fits_not; *c != '\0'; c++)
      if (rs_pattern_matches(cases[i].pattern, (const char[]){*c, '\0'}))
        fail_msg("%s fits %c", cases[i].pattern, *c);
  }
}

CASE(patterns_that_are_wrong_are_refused_with_the_byte) {
  static const struct {
    const char *pattern, *problem;
    int64_t at;
  } cases[] = {
      {"a[[:x:]]", "classes", 1},     {"a[[.x.]]", "classes", 1}, {"a[[=x=]]", "classes", 1},
      {"ab[x[:y]", "classes", 2},     {"[", "without", 0},        {"ab[", "without", 2},
      {"[]", "without", 0},           {"[!]", "without", 0},      {"[a", "without", 0},
      {"[a-", "without", 0},          {"[b-a]", "backwards", 0},  {"x\\", "before nothing", 1},
      {"[a]\\", "before nothing", 3},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int64_t at = -1;
    const char *problem = rs_pattern_problem(cases[i].pattern, &at);
    if (problem == NULL || strstr(problem, cases[i].problem) == NULL || at != cases[i].at)
      fail_msg("%s: %s at %lld", cases[i].pattern, problem != NULL ? problem : "no problem", (long long)at);
  }
}

RUN_CASES
