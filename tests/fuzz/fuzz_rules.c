/* Rules from any text: parsed, matched against names, and made into layouts. Finds reads and writes out of bounds,
 * leaks, and success where an output was not written. */
#define _GNU_SOURCE
#include "fuzz.h"

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
  reshard_layout made = NULL;
  if (reshard_rules_layout(rules, name, 2, shape, 8, &made) == RESHARD_SUCCESS) {
    fuzz_require(made != NULL && reshard_layout_world(made) == 8 && reshard_layout_elements(made) == 273);
    reshard_layout_release(made);
  } else {
    fuzz_require(strchr(reshard_last_error(), ':') != NULL);
  }
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
      reshard_rules_free(rules);
    } else {
      fuzz_require(strncmp(reshard_last_error(), "fuzz:", 5) == 0);
    }
  }
  free(text);
  return 0;
}
