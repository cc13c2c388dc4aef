/* A misspelt pattern, and names that a model has in another form, fall to the line that takes any ("* mesh(tp;R)").
 * Nothing is wrong with the result but its size. So each line tells what it took. */
#include "bench/cli/rule_uses.h"

#include "base/dtype.h"

#include <stdlib.h>
#include <string.h>

typedef struct uses_of_side {
  rule_uses *all;
  const char *side;
  bool shipped;
} uses_of_side;

static const char *dtype_text(char text[RS_BLOCKS_TEXT], const rule_use *use) {
  return use->blocks.rows > 0 ? rs_blocks_text(text, &use->blocks) : reshard_dtype_string(use->dtype);
}

static int add_use(void *user, const reshard_rule_use *use) {
  uses_of_side *of = user;
  of->all->at = cli_realloc(of->all->at, of->all->n + 1, sizeof *of->all->at);
  of->all->at[of->all->n++] = (rule_use){.side = of->side,
                                         .shipped = of->shipped,
                                         .file = cli_strdup(use->file),
                                         .pattern = cli_strdup(use->pattern),
                                         .layout = cli_strdup(use->layout),
                                         .dtype = use->dtype,
                                         .blocks = use->blocks,
                                         .largest = use->largest != NULL ? cli_strdup(use->largest) : NULL,
                                         .line = use->line,
                                         .tensors = use->tensors,
                                         .bytes = use->bytes,
                                         .largest_bytes = use->largest_bytes};
  return 0;
}

void rule_uses_add(rule_uses *uses, const char *side, const workload_layouts *layouts, reshard_model model) {
  uses_of_side of = {uses, side, layouts->shipped};
  if (layouts->rules != NULL)
    CLI_TRY("", reshard_rules_use(layouts->rules, model, add_use, &of));
}

rule_uses rule_uses_of(const workload *w) {
  rule_uses uses = {0};
  reshard_model model = workload_model(w);
  rule_uses_add(&uses, "src", workload_side_layouts(w, 0), model);
  rule_uses_add(&uses, "dst", workload_side_layouts(w, 1), model);
  reshard_model_free(model);
  return uses;
}

static bool takes_any(const rule_use *use) { return use->pattern[strspn(use->pattern, "*")] == '\0'; }

/* End of the lines of the side that begins at `first`. */
static int64_t end_of_side(const rule_uses *uses, int64_t first) {
  int64_t end = first;
  while (end < uses->n && uses->at[end].side == uses->at[first].side)
    end++;
  return end;
}

static void print_side(const rule_uses *uses, int64_t first, int64_t end) {
  char bytes[CLI_BYTES_TEXT], quoted[RS_QUOTE], dtype[RS_BLOCKS_TEXT];
  int64_t unused = 0;
  printf("rules of %s  %s\n", uses->at[first].side, uses->at[first].file);
  for (int64_t i = first; i < end; i++) {
    const rule_use *use = &uses->at[i];
    unused += use->tensors == 0;
    if (use->tensors == 0)
      continue;
    bool said = use->dtype != RESHARD_DTYPE_NONE;
    printf("  line %-6lld %s %s%s%s: %lld tensor%s, %s", (long long)use->line, use->pattern, use->layout,
           said ? " " : "", said ? dtype_text(dtype, use) : "", (long long)use->tensors, cli_plural(use->tensors),
           cli_bytes_text(bytes, (double)use->bytes));
    if (takes_any(use))
      printf("; the largest is '%s', %s", rs_quote(quoted, sizeof quoted, use->largest),
             cli_bytes_text(bytes, (double)use->largest_bytes));
    printf("\n");
  }
  if (unused == 0)
    return;
  printf("  no tensor   line%s", cli_plural(unused));
  for (int64_t i = first, told = 0; i < end; i++)
    if (uses->at[i].tensors == 0)
      printf("%s %lld", told++ > 0 ? "," : "", (long long)uses->at[i].line);
  printf("\n");
}

void rule_uses_print(const rule_uses *uses) {
  for (int64_t first = 0, end; first < uses->n; first = end) {
    end = end_of_side(uses, first);
    print_side(uses, first, end);
  }
}

void rule_uses_json(const rule_uses *uses, rs_json *j) {
  if (uses->n == 0)
    return;
  char dtype[RS_BLOCKS_TEXT];
  rs_json_open(j, "rules", '[');
  for (int64_t i = 0; i < uses->n; i++) {
    const rule_use *use = &uses->at[i];
    rs_json_open(j, NULL, '{');
    rs_json_string(j, "side", use->side);
    rs_json_string(j, "file", use->file);
    rs_json_int(j, "line", use->line);
    rs_json_string(j, "pattern", use->pattern);
    rs_json_string(j, "layout", use->layout);
    if (use->dtype != RESHARD_DTYPE_NONE)
      rs_json_string(j, "dtype", dtype_text(dtype, use));
    rs_json_ints(j, {"tensors", use->tensors}, {"bytes", use->bytes});
    if (use->largest != NULL) {
      rs_json_string(j, "largest", use->largest);
      rs_json_int(j, "largest_bytes", use->largest_bytes);
    }
    rs_json_close(j, '}');
  }
  rs_json_close(j, ']');
}

/* A '[' that is no "\[" begins a set of characters. */
static bool has_set(const char *pattern) {
  for (const char *p = pattern; *p != '\0'; p += p[0] == '\\' && p[1] != '\0' ? 2 : 1)
    if (*p == '[')
      return true;
  return false;
}

/* Where both sides have the same file, a line is told once, and only if it took nothing on either. */
static bool is_told(const rule_uses *uses, int64_t i) {
  const rule_use *use = &uses->at[i], *other = &uses->at[(i + uses->n / 2) % uses->n];
  bool both = uses->n % 2 == 0 && other->line == use->line && strcmp(other->file, use->file) == 0;
  return use->tensors == 0 && !use->shipped && !(both && (other->tensors > 0 || i >= uses->n / 2));
}

static void warn_of_line(const rule_use *use) {
  char file[RS_QUOTE], pattern[RS_QUOTE], layout[RS_QUOTE];
  rs_text text = {.grows = true};
  cli_add(&text, "%s:%lld: '%s %s' takes no tensor%s", rs_quote(file, sizeof file, use->file), (long long)use->line,
          rs_quote(pattern, sizeof pattern, use->pattern), rs_quote(layout, sizeof layout, use->layout),
          has_set(use->pattern) ? ": '[' begins a set of characters, write \\[ for itself" : "");
  cli_note(text.at);
  free(text.at);
}

void rule_uses_warn(const rule_uses *uses) {
  enum { MOST = 20 };
  int64_t told = 0;
  char text[96];
  for (int64_t i = 0; i < uses->n; i++)
    if (is_told(uses, i) && told++ < MOST)
      warn_of_line(&uses->at[i]);
  if (told <= MOST)
    return;
  snprintf(text, sizeof text, "%lld more lines of rules take no tensor", (long long)(told - MOST));
  cli_note(text);
}

void rule_uses_warn_of(const workload *w) {
  rule_uses uses = rule_uses_of(w);
  rule_uses_warn(&uses);
  rule_uses_free(&uses);
}

void rule_uses_free(rule_uses *uses) {
  for (int64_t i = 0; i < uses->n; i++) {
    free(uses->at[i].file);
    free(uses->at[i].pattern);
    free(uses->at[i].layout);
    free(uses->at[i].largest);
  }
  free(uses->at);
  *uses = (rule_uses){0};
}
