#include "bench/cli/topology.h"

#include "base/read.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GB 1e9

/* A file that is being read. */
typedef struct topology_file {
  const char *path;
  int64_t line, world, domains;
  int64_t *domain; /* of each rank; -1: not named yet */
  int64_t said[4]; /* the line of each word; 0: none yet */
  reshard_topology *out;
} topology_file;

/* Of "nvl:64" and its like: ranks a domain, and the speed within. */
static const struct {
  const char *prefix;
  double within; /* GB/s */
} machines[] = {{"nvl:", 900}, {"hgx:", 450}, {"", 900}};

static bool read_machine(const char *text, int64_t world, reshard_topology *out, int64_t *domain) {
  for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
    size_t length = strlen(machines[i].prefix);
    const char *number = text + length;
    if (strncmp(text, machines[i].prefix, length) != 0 || (length == 0 && strspn(text, "0123456789") < strlen(text)))
      continue;
    char *end;
    errno = 0;
    long long ranks = strtoll(number, &end, 10);
    if (*number < '0' || *number > '9' || *end != '\0' || errno != 0 || ranks < 1)
      cli_exit(EXIT_USAGE, "--topology %s: the ranks of a domain are needed, 1 or more, as in nvl:64", text);
    for (int64_t r = 0; r < world; r++)
      domain[r] = r / ranks;
    out->within = (int64_t)(machines[i].within * GB);
    return true;
  }
  return false;
}

/* A word of a file, and the number behind it: its unit, or "". */
typedef struct topology_word {
  const char *word, *unit;
  double scale;
  bool chains; /* 0, by the model, and "none" are numbers, too */
} topology_word;

/* A line "between 50": a number above 0, and its unit or none. */
static int64_t read_value(const topology_file *f, const topology_word *of, const char *rest) {
  const char *word = of->word, *unit = of->unit;
  double scale = of->scale;
  char *end;
  if (of->chains && strcmp(rest, "none") == 0)
    return RESHARD_NO_CHAINS;
  double value = strtod(rest, &end);
  const char *behind = end + strspn(end, " \t");
  if (end == rest || (*behind != '\0' && strcmp(behind, unit) != 0))
    cli_exit(EXIT_USAGE, "--topology %s:%lld: %s %s: a number is needed%s%s", f->path, (long long)f->line, word, rest,
             *unit != '\0' ? " of " : "", unit);
  if (!(value >= 0) || !(value * scale < 0x1p62) || llround(value * scale) < !of->chains)
    cli_exit(EXIT_USAGE, "--topology %s:%lld: %s %s: %s is needed, and at most %.3g", f->path, (long long)f->line, word,
             rest, of->chains ? "none, 0 or more" : "above 0", 0x1p62 / scale);
  if (scale == 1 && value != floor(value))
    cli_exit(EXIT_USAGE, "--topology %s:%lld: %s %s: a whole number is needed", f->path, (long long)f->line, word,
             rest);
  return llround(value * scale);
}

/* A line of ranks: "0-3, 8". The library reads the list, as of a layout, and refuses those that are not there. */
static void read_domain(topology_file *f, const char *text) {
  rs_text list = {.grows = true};
  const int64_t shape[1] = {f->world};
  reshard_layout layout;
  rs_text_add(&list, "chunk(0;");
  for (const char *p = text + strspn(text, " \t,"); *p != '\0'; p += strspn(p, " \t,")) {
    int length = (int)strcspn(p, " \t,");
    rs_text_add(&list, "%s%.*s", list.length > 8 ? "," : "", length, p);
    p += length;
  }
  rs_text_add(&list, ")");
  if (list.at == NULL || reshard_layout_parse(list.at, 1, shape, f->world, &layout) != RESHARD_SUCCESS)
    cli_exit(EXIT_USAGE, "--topology %s:%lld: ranks of a domain: %s", f->path, (long long)f->line,
             reshard_last_error());
  for (int64_t r = 0; r < f->world; r++) {
    int64_t arrays;
    CLI_TRY("", reshard_layout_array_count(layout, r, &arrays));
    if (arrays > 0 && f->domain[r] >= 0)
      cli_exit(EXIT_USAGE, "--topology %s:%lld: rank %lld is in an earlier domain, too", f->path, (long long)f->line,
               (long long)r);
    if (arrays > 0)
      f->domain[r] = f->domains;
  }
  f->domains++;
  reshard_layout_release(layout);
  free(list.at);
}

static void read_line(topology_file *f, char *line) {
  static const topology_word words[] = {{"between", "GB/s", GB, false},
                                        {"within", "GB/s", GB, false},
                                        {"round", "us", 1000, false},
                                        {"chains", "", 1, true}};
  int64_t *fields[] = {&f->out->between, &f->out->within, &f->out->round_ns, &f->out->chains};
  line[strcspn(line, "#\r")] = '\0';
  for (size_t n = strlen(line); n > 0 && strchr(" \t", line[n - 1]) != NULL;)
    line[--n] = '\0';
  line += strspn(line, " \t");
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    size_t length = strlen(words[i].word);
    if (strncmp(line, words[i].word, length) != 0 || strchr(" \t", line[length]) == NULL)
      continue;
    if (f->said[i] > 0)
      cli_exit(EXIT_USAGE, "--topology %s:%lld: %s is in line %lld, too", f->path, (long long)f->line, words[i].word,
               (long long)f->said[i]);
    f->said[i] = f->line;
    const char *rest = line + length + strspn(line + length, " \t");
    *fields[i] = read_value(f, &words[i], rest);
    return;
  }
  if (*line != '\0' && strchr("0123456789,", *line) == NULL)
    cli_exit(EXIT_USAGE, "--topology %s:%lld: '%.64s': ranks are needed, or between, within, round or chains", f->path,
             (long long)f->line, line);
  if (*line != '\0')
    read_domain(f, line);
}

static void read_file(topology_file *f) {
  char *text, where[512];
  int64_t size;
  snprintf(where, sizeof where, "--topology: neither N, nvl:N nor hgx:N, and file '%.400s'", f->path);
  reshard_status status = rs_read_all(where, f->path, RS_TEXT_LIMIT, RS_TEXT_WAIT_MS, &text, &size);
  if (status != RESHARD_SUCCESS)
    cli_exit(EXIT_USAGE, "%s", reshard_last_error());
  char *line = text;
  for (f->line = 1; line != NULL; f->line++) {
    char *end = strchr(line, '\n');
    if (end != NULL)
      *end = '\0';
    read_line(f, line);
    line = end != NULL ? end + 1 : NULL;
  }
  free(text);
  for (int64_t r = 0; r < f->world; r++)
    if (f->domain[r] < 0)
      cli_exit(EXIT_USAGE, "--topology %s: rank %lld of %lld is in no domain", f->path, (long long)r,
               (long long)f->world);
  if (f->out->chains > f->domains)
    cli_exit(EXIT_USAGE, "--topology %s: %lld chains, it has %lld domains", f->path, (long long)f->out->chains,
             (long long)f->domains);
}

void cli_read_topology(const char *text, int64_t world, reshard_topology *out) {
  *out = (reshard_topology)RESHARD_TOPOLOGY_DEFAULTS;
  int64_t *domain = cli_alloc(world, sizeof *domain);
  memset(domain, -1, (size_t)world * sizeof *domain);
  topology_file file = {.path = text, .world = world, .domain = domain, .out = out};
  if (!read_machine(text, world, out, domain))
    read_file(&file);
  out->ranks = world;
  out->domain = domain;
}
