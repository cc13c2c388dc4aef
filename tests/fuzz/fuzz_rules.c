/* Rules from any text: parsed, matched against names, and made into layouts. Finds reads and writes out of bounds,
 * leaks, and success where an output was not written. */
#define _GNU_SOURCE
#include "fuzz.h"

#include "file/model/model.h"

#include <reshard/file.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Box files are another target's business, and a random path can be a device that blocks. */
static int names_file(const char *text) {
  for (const char *at = text; (at = strchr(at, '@')) != NULL; at++) {
    const char *before = at;
    while (before > text && (before[-1] == ' ' || before[-1] == '\t'))
      before--;
    if (before > text && (before[-1] == '(' || before[-1] == ';'))
      return 1;
  }
  return 0;
}

static void match(reshard_rules rules, const char *name) {
  static const int64_t shape[2] = {13, 21};
  const char *layout = NULL;
  int64_t line = 0;
  if (reshard_rules_match(rules, name, &layout, &line) != RESHARD_SUCCESS)
    return;
  fuzz_require(layout != NULL && *layout != '\0' && line >= 1);
  reshard_dtype dtype = (reshard_dtype)-1;
  fuzz_require(reshard_rules_dtype(rules, name, &dtype, NULL) == RESHARD_SUCCESS && (int)dtype >= 0);
  reshard_layout made = NULL;
  if (reshard_rules_layout(rules, name, 2, shape, 8, &made) == RESHARD_SUCCESS) {
    fuzz_require(made != NULL && reshard_layout_world(made) == 8 && reshard_layout_elements(made) == 273);
    reshard_layout_release(made);
  } else {
    fuzz_require(strchr(reshard_last_error(), ':') != NULL);
  }
}

static int count_rule(void *user, const reshard_rule_use *use) {
  fuzz_require(use->file != NULL && use->line >= 1 && use->pattern != NULL && use->layout != NULL);
  *(int64_t *)user += use->tensors;
  return 0;
}

/* A model of these names, and of the same with each word of the text behind: blocks find their scales. */
static void check(reshard_rules rules, int n, const char *const *names, char *text) {
  static const int64_t shapes[3][2] = {{13, 21}, {7, 7}, {1, 1}};
  reshard_model model = NULL;
  char name[256];
  if (rs_model_new(&model) != RESHARD_SUCCESS)
    return;
  for (int i = 0; i < n; i++)
    fuzz_require(rs_model_add(model, "fuzz", names[i], strlen(names[i]), RESHARD_F32, 2, shapes[0]) == RESHARD_SUCCESS);
  const char *word = strtok(text, " \t\r\n");
  for (int k = 0; k < 8 && word != NULL; k++, word = strtok(NULL, " \t\r\n"))
    for (int i = 0; i < n; i++) {
      int length = snprintf(name, sizeof name, "%s%.100s", names[i], word);
      fuzz_require(rs_model_add(model, "fuzz", name, (size_t)length, RESHARD_F32, k == 2 ? 0 : 2, shapes[k % 3]) ==
                   RESHARD_SUCCESS);
    }
  if (reshard_rules_check(rules, model, 8) != RESHARD_SUCCESS)
    fuzz_require(strncmp(reshard_last_error(), "fuzz", 4) == 0);
  int64_t tensors = 0;
  if (reshard_rules_use(rules, model, count_rule, &tensors) == RESHARD_SUCCESS)
    fuzz_require(tensors == reshard_model_count(model));
  reshard_model_free(model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const names[] = {"",
                                      "a",
                                      "model.embed_tokens.weight",
                                      "model.layers.17.mlp.experts.103.up_proj.weight",
                                      "model.layers.0.self_attn.q_proj.weight",
                                      "*[a-b]\\?]"};
  char *text = fuzz_text(data, size);
  if (text == NULL)
    return 0;
  reshard_rules rules = NULL;
  if (!names_file(text)) {
    if (reshard_rules_parse(text, "fuzz", &rules) == RESHARD_SUCCESS) {
      int64_t world = -1;
      fuzz_require(rules != NULL && reshard_rules_world(rules, &world) == RESHARD_SUCCESS && world >= 0);
      for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        match(rules, names[i]);
      match(rules, text);
      check(rules, (int)(sizeof names / sizeof *names), names, text);
      reshard_rules_free(rules);
    } else {
      fuzz_require(strncmp(reshard_last_error(), "fuzz:", 5) == 0);
    }
  }
  free(text);
  return 0;
}
