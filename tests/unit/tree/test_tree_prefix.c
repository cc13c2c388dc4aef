/* Renaming keys of a dict by their prefix: in place, in order, all at once, or not at all. */
#include "bench/cli/util.h"
#include "bench/verify/random.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"

#include <reshard/tree.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A dict of these keys, whose values are their numbers. */
static reshard_tree dict_of(int64_t n, const char *const *keys) {
  reshard_tree dict, value;
  GOOD(reshard_tree_dict(&dict));
  for (int64_t i = 0; i < n; i++) {
    GOOD(reshard_tree_int(i, &value));
    GOOD(reshard_tree_set(dict, keys[i], value));
    reshard_tree_release(value);
  }
  return dict;
}

/* Keys in order, each with the value that was put first; every key is found, by key and by path. */
static void assert_keys(reshard_tree dict, int64_t n, const char *const *keys) {
  assert_int_equal(reshard_tree_count(dict), n);
  for (int64_t i = 0; i < n; i++) {
    const char *key;
    reshard_tree child, found;
    int64_t value;
    GOOD(reshard_tree_child(dict, i, &key, &child));
    assert_string_equal(key, keys[i]);
    GOOD(reshard_tree_get_int(child, &value));
    assert_int_equal(value, i);
    GOOD(reshard_tree_find(dict, keys[i], &found));
    assert_ptr_equal(found, child);
    if (*keys[i] != '\0') {
      GOOD(reshard_tree_at(dict, keys[i], &found));
      assert_ptr_equal(found, child);
    }
  }
}

CASE(prefixes_are_renamed_in_order) {
  const char *keys[] = {"module.a", "b", "module.", "modul", "module.module.c", "module"};
  const char *stripped[] = {"a", "b", "", "modul", "module.c", "module"};
  reshard_tree dict = dict_of(6, keys), found;
  GOOD(reshard_tree_replace_by_prefix(dict, "module.", ""));
  assert_keys(dict, 6, stripped);
  assert_int_equal(reshard_tree_find(dict, "module.a", &found), RESHARD_ERROR_INVALID);
  GOOD(reshard_tree_replace_by_prefix(dict, "x", "y")); /* none has it */
  assert_keys(dict, 6, stripped);
  GOOD(reshard_tree_replace_by_prefix(dict, "", "p.")); /* all have it */
  const char *all[] = {"p.a", "p.b", "p.", "p.modul", "p.module.c", "p.module"};
  assert_keys(dict, 6, all);
  reshard_tree_release(dict);

  /* At once: what becomes a key that is renamed itself is no conflict. */
  const char *chain[] = {"ax", "aax", "aaax"}, *longer[] = {"aax", "aaax", "aaaax"};
  dict = dict_of(3, chain);
  GOOD(reshard_tree_replace_by_prefix(dict, "a", "aa"));
  assert_keys(dict, 3, longer);
  GOOD(reshard_tree_replace_by_prefix(dict, "aa", "a"));
  assert_keys(dict, 3, chain);
  reshard_tree_release(dict);

  /* The dict alone, not what is in it; a key that became free can be set. */
  reshard_tree inner = dict_of(3, chain), outer;
  GOOD(reshard_tree_dict(&outer));
  GOOD(reshard_tree_set(outer, "ay", inner));
  GOOD(reshard_tree_replace_by_prefix(outer, "a", "b"));
  assert_keys(inner, 3, chain);
  GOOD(reshard_tree_at(outer, "by.aax", &found));
  GOOD(reshard_tree_set(outer, "ay", inner));
  assert_int_equal(reshard_tree_count(outer), 2);
  reshard_tree_release(inner);
  reshard_tree_release(outer);

  GOOD(reshard_tree_dict(&dict));
  GOOD(reshard_tree_replace_by_prefix(dict, "a", "b"));
  reshard_tree_release(dict);
}

CASE(renames_that_meet_change_nothing) {
  const char *keys[] = {"a.x", "c", "b.x", "a.y"};
  reshard_tree dict = dict_of(4, keys), list;
  GOOD(reshard_tree_list(&list));
  BAD(reshard_tree_replace_by_prefix(dict, "a.", "b."),
      "reshard_tree_replace_by_prefix: 'a.x' would become 'b.x', which the dict has already");
  assert_keys(dict, 4, keys);
  BAD(reshard_tree_replace_by_prefix(dict, "b.", "a."), /* what it would become comes first */
      "reshard_tree_replace_by_prefix: 'b.x' would become 'a.x', which the dict has already");
  assert_keys(dict, 4, keys);
  BAD(reshard_tree_replace_by_prefix(dict, "a.", "a."), "reshard_tree_replace_by_prefix: both prefixes are 'a.'");
  BAD(reshard_tree_replace_by_prefix(dict, "", ""), "reshard_tree_replace_by_prefix: both prefixes are ''");
  BAD(reshard_tree_replace_by_prefix(NULL, "a", "b"), "reshard_tree_replace_by_prefix: dict is NULL");
  BAD(reshard_tree_replace_by_prefix(dict, NULL, "b"), "reshard_tree_replace_by_prefix: old_prefix is NULL");
  BAD(reshard_tree_replace_by_prefix(dict, "a", NULL), "reshard_tree_replace_by_prefix: new_prefix is NULL");
  BAD(reshard_tree_replace_by_prefix(list, "a", "b"), "reshard_tree_replace_by_prefix: the tree is a list, not a dict");
  assert_keys(dict, 4, keys);
  reshard_tree_release(list);
  reshard_tree_release(dict);
}

/* Short keys of two letters, so that prefixes meet often; against the plain way. */
CASE(random_renames_match_the_plain_way) {
  int64_t refused = 0, renamed = 0;
  for (int64_t seed = 0; seed < test_scaled(5000, 1); seed++) {
    rng random;
    rng_seed(&random, (uint64_t)seed);
    char text[12][16];
    const char *before[12], *after[12];
    int64_t n = 0;
    for (int64_t i = 0; i < 12; i++) {
      int64_t length = rng_below(&random, 5);
      bool there = false;
      for (int64_t j = 0; j < length; j++)
        text[n][j] = "ab"[rng_below(&random, 2)];
      text[n][length] = '\0';
      for (int64_t j = 0; j < n; j++)
        there |= strcmp(text[n], text[j]) == 0;
      before[n] = text[n];
      n += !there;
    }
    char prefix[2][4], made[12][16];
    for (int p = 0; p < 2; p++) {
      int64_t length = rng_below(&random, 3);
      for (int64_t j = 0; j < length; j++)
        prefix[p][j] = "ab"[rng_below(&random, 2)];
      prefix[p][length] = '\0';
    }
    bool equal = strcmp(prefix[0], prefix[1]) == 0, conflict = equal;
    for (int64_t i = 0; i < n; i++) {
      bool has = strncmp(before[i], prefix[0], strlen(prefix[0])) == 0;
      snprintf(made[i], sizeof made[i], "%s%s", has ? prefix[1] : "", before[i] + (has ? strlen(prefix[0]) : 0));
      after[i] = made[i];
      renamed += has;
      for (int64_t j = 0; j < i; j++)
        conflict |= strcmp(made[i], made[j]) == 0;
    }
    reshard_tree dict = dict_of(n, before);
    reshard_status status = reshard_tree_replace_by_prefix(dict, prefix[0], prefix[1]);
    if (status != (conflict ? RESHARD_ERROR_INVALID : RESHARD_SUCCESS))
      fail_msg("seed %lld: %s", (long long)seed, reshard_status_string(status));
    assert_keys(dict, n, conflict ? before : after);
    refused += conflict && !equal;
    reshard_tree_release(dict);
  }
  assert_true(refused > 100 * test_scale() && renamed > 100 * test_scale());
}

RUN_CASES
