#include "bench/cli/options.h"
#include "bench/cli/nearest.h"

#include "device/environment.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef enum option_kind {
  TEXT,   /* const char * */
  WORD,   /* const char *, one of those that the argument lists */
  CHOICE, /* int, which of them */
  FLAG,   /* bool */
  COUNT,  /* int64_t, within limits */
  MAYBE,  /* int64_t, up to the largest; without a number the least */
  SIZE,   /* the same with a suffix K, M or G */
  LIMIT,  /* the same, or "none": RESHARD_NO_LIMIT */
  FACTOR, /* double, above 1 */
  SHARE,  /* double, above 0: 0.0625 or 1/16 */
  SEED,   /* uint64_t, decimal or hexadecimal */
  ZERO,   /* nothing: 0 is what is done, and another number is refused, as the help says */
  NONE,   /* nothing: the option is refused, and the help says why */
  HELP
} option_kind;

typedef struct option_row {
  const char *name;     /* long name; NULL: none */
  int letter;           /* 0: none */
  const char *argument; /* NULL: takes none */
  int commands;
  option_kind kind;
  size_t field;        /* its place in cli_options */
  int64_t least, most; /* COUNT, SIZE */
  const char *help;
} option_row;

/* Commands that take one reshard; and all commands. */
enum {
  RESHARDS = COMMAND_PLAN | COMMAND_TRACE | COMMAND_BENCH,
  ALL = RESHARDS | COMMAND_VERIFY | COMMAND_INFO | COMMAND_CONVERT | COMMAND_CHECK
};

#define IS(kind, field)              kind, offsetof(cli_options, field), 0, 0
#define IN(kind, field, least, most) kind, offsetof(cli_options, field), least, most
static const option_row option_rows[] = {
    {"shape", 0, "13x21", RESHARDS, IS(TEXT, shape), "one tensor of this shape; 'scalar' for one without dims"},
    {"dtype", 'd', "TYPE", RESHARDS, IS(TEXT, dtype),
     "its elements: bool u8 i8 u16 i16 u32 i32 u64 i64 f8_e4m3 f8_e5m2 f8_e8m0 f16 bf16 f32 f64 c64 c128, or by NCCL's "
     "names; f8_e4m3/128x128 has a scale for each block, with --dst-dtype (default f32)"},
    {"dtype", 'd', "TYPE", COMMAND_VERIFY, IS(TEXT, dtype), "elements of the source, beside --dst-dtype"},
    {"dst-dtype", 0, "TYPE", RESHARDS | COMMAND_VERIFY, IS(TEXT, dst_dtype),
     "elements of the destination, converted on the way: f64 f32 f16 bf16 f8_e4m3 f8_e5m2, f8_e4m3/128x128 with a "
     "scale "
     "for each block (default: as before)"},
    {"dtype", 0, "TYPE", COMMAND_CONVERT, IS(TEXT, dtype),
     "dtype of numbers in OUT: f64 f32 f16 bf16 f8_e4m3 f8_e5m2; a rule of --dst ('PATTERN LAYOUT TYPE') and a cast of "
     "a map go before it (default: as before)"},
    {"datatype", 0, "TYPE", COMMAND_BENCH, IS(TEXT, dtype), "the same as --dtype"},
    {"model", 0, "NAME|FILE", RESHARDS, IS(TEXT, model), "many tensors: a preset, a JSON list, a checkpoint"},
    {"src", 0, "L", RESHARDS | COMMAND_CONVERT, IS(TEXT, src),
     "layout before: a layout string, or @FILE of rules 'PATTERN LAYOUT'"},
    {"dst", 0, "L", RESHARDS | COMMAND_CONVERT, IS(TEXT, dst), "layout after"},
    {"mesh", 0, "DIM=N,...", RESHARDS | COMMAND_CONVERT, IS(TEXT, mesh),
     "sizes of mesh dims that the layouts name without one (default: what the world leaves)"},
    {"suite", 0, "training|inference|hpc", COMMAND_BENCH, IS(WORD, suite),
     "the reshards of a field, instead of --shape or --model, --src and --dst (default 8 ranks)"},
    {"scale", 0, "F", COMMAND_BENCH, IS(SHARE, scale),
     "a factor on dim 0 of each tensor, such as 1/16, for what is larger than memory"},
    {"permutation", 0, "1,0", COMMAND_BENCH | COMMAND_TRACE, IS(TEXT, permutation),
     "dim i of the destination walks this dim of the source (with --shape; 1,0 transposes)"},
    {"ranks", 0, "N", RESHARDS | COMMAND_VERIFY | COMMAND_CONVERT, IN(COUNT, ranks, 1, INT32_MAX),
     "ranks of the world (default: what the layouts name)"},
    {"device", 0, "cpu|cuda", RESHARDS | COMMAND_VERIFY, IS(WORD, device),
     "where the data is (default cpu, with -g cuda; plan: cuda)"},
    {"comm", 0, "local|node|nccl|mpi", RESHARDS | COMMAND_VERIFY, IS(WORD, comm),
     "what connects the ranks (default local; of several processes nccl with --device cuda, else mpi or node)"},
    {"processes", 0, "N", COMMAND_BENCH | COMMAND_TRACE | COMMAND_VERIFY, IN(COUNT, processes, 1, 4096),
     "start so many processes, a rank each (--comm node, or nccl with --device cuda)"},
    {"path", 0, "auto|direct|packed|mixed", RESHARDS | COMMAND_VERIFY, IS(CHOICE, path),
     "how bytes are moved (default auto: direct within a node, mixed over nodes of --comm mpi, else packed; mixed over "
     "nodes of --comm nccl only where it is said)"},
    {"collective", 0, "auto|force|forbid", COMMAND_BENCH | COMMAND_TRACE, IS(CHOICE, collective),
     "messages that are a collective together as one call of --comm nccl (default auto: where it is faster)"},
    {"workspace", 0, "BYTES|none", RESHARDS, IN(LIMIT, workspace, 0, INT64_MAX),
     "limit of staging memory on every rank; suffixes K, M, G (default: by device, bytes and ranks)"},
    {"topology", 0, "N|FILE", COMMAND_PLAN | COMMAND_BENCH | COMMAND_VERIFY, IS(TEXT, topology),
     "domains of N ranks (nvl:64, hgx:8, 64), or a file with the ranks of each and speeds; plan counts what goes "
     "between"},
    {"map", 0, "FILE", COMMAND_CONVERT, IS(TEXT, map),
     "lines 'TARGET = SOURCE' that rename, join, cut and transpose tensors; or a map of the program, llama-fuse"},
    {"source-dtype", 0, "TYPE", COMMAND_CONVERT, IS(TEXT, source_dtype),
     "what an .npy file of raw bytes (descr '<V2') holds: bf16, f8_e4m3, ..."},
    {"leave-out", 0, NULL, COMMAND_CONVERT, IS(FLAG, leave_out),
     "leave out, and tell the bytes of, tensors of unknown dtypes and those below classes that are not read"},
    {"index", 0, "BYTES", COMMAND_CONVERT, IN(SIZE, index_bytes, 1, INT64_MAX),
     "OUT is a directory of whole tensors in files of at most so many bytes, with an index; suffixes K, M, G"},
    {"dedup", 0, NULL, COMMAND_CONVERT, IS(FLAG, dedup),
     "store equal boxes of several ranks once, by the lowest of them"},
    {"force", 0, NULL, COMMAND_CONVERT, IS(FLAG, force), "replace OUT where it is there"},
    {"verify", 0, NULL, COMMAND_CONVERT, IS(FLAG, verify),
     "check IN by its digests, read back and compare every byte before OUT is put in place"},
    {"no-digests", 0, NULL, COMMAND_CONVERT, IS(FLAG, no_digests), "write no digests into the headers of OUT"},
    {"threads", 0, "T", RESHARDS | COMMAND_VERIFY | COMMAND_CONVERT | COMMAND_CHECK, IN(COUNT, threads, 1, 4096),
     "copy or planning threads shared by the local ranks (default: all cores)"},
    {"max-blocks", 0, "N", COMMAND_BENCH | COMMAND_TRACE | COMMAND_VERIFY, IN(COUNT, max_blocks, 1, INT32_MAX),
     "most blocks of a launch of copies and casts on a GPU (default: no limit)"},
    {"shared", 0, NULL, COMMAND_BENCH | COMMAND_TRACE | COMMAND_VERIFY, IS(FLAG, shared),
     "the arrays are storage that other processes can map (on the CPU they are, but for --path packed)"},
    {"rank", 0, "R", COMMAND_PLAN, IN(COUNT, rank, 0, INT32_MAX), "plan this rank only"},
    {"peers", 0, NULL, COMMAND_PLAN, IS(FLAG, peers), "list the peers of each rank"},
    {"svg", 0, "FILE", COMMAND_PLAN | COMMAND_TRACE, IS(TEXT, svg),
     "draw it: a plan as who holds what and who sends what to whom, a trace as steps on a time axis"},
    {"minbytes", 'b', "BYTES", COMMAND_BENCH, IN(SIZE, size_begin, 1, INT64_MAX),
     "smallest size; dim 0 of --shape is scaled to it (without --shape default 32M)"},
    {"maxbytes", 'e', "BYTES", COMMAND_BENCH, IN(SIZE, size_end, 1, INT64_MAX), "largest size"},
    {"stepbytes", 'i', "BYTES", COMMAND_BENCH, IN(SIZE, size_increment, 1, INT64_MAX), "increment between sizes"},
    {"stepfactor", 'f', "F", COMMAND_BENCH, IS(FACTOR, size_factor), "factor between sizes (default 2)"},
    {"iters", 'n', "N", COMMAND_BENCH, IN(COUNT, iterations, 1, 1000000), "iterations (default 20)"},
    {"warmup_iters", 'w', "N", COMMAND_BENCH | COMMAND_TRACE, IN(COUNT, warmup, 0, 1000000),
     "iterations before the first that is timed (default 1)"},
    {"agg_iters", 'm', "N", COMMAND_BENCH, IN(COUNT, aggregate, 1, 1000000),
     "executes of an iteration, one behind the other; times are of one (default 1)"},
    {"run_cycles", 'N', "N", COMMAND_BENCH, IN(COUNT, cycles, 0, INT32_MAX),
     "run and print all sizes so often; 0: until it is ended (default 1)"},
    {"average", 'a', "0..3", COMMAND_BENCH, IN(COUNT, average, 0, 3),
     "time of an iteration: 0 rank 0's, 1 mean, 2 shortest, 3 longest of the ranks; on GPUs of the processes (default "
     "3)"},
    {"check", 'c', "[N]", COMMAND_BENCH, IN(MAYBE, check, 1, 1000000),
     "check every byte that arrives, of N executes (default 0, without N 1)"},
    {"nthreads", 't', "N", COMMAND_BENCH | COMMAND_TRACE | COMMAND_VERIFY, IN(COUNT, ranks_per_gpu, 1, 65536),
     "rank threads per process and GPU"},
    {"ngpus", 'g', "N", COMMAND_BENCH | COMMAND_TRACE | COMMAND_VERIFY, IN(COUNT, gpus, 1, 1024),
     "GPUs per process, which its ranks are on in turn (default 1); with --comm nccl GPUs per thread, one a rank"},
    {"cudagraph", 'G', NULL, COMMAND_VERIFY, IS(FLAG, graph), "execute from a CUDA graph"},
    {"cudagraph", 'G', "[N]", COMMAND_BENCH, IN(MAYBE, launches, -1, 1000000),
     "execute from a CUDA graph: of all iterations, launched N times; without N of one, launched for each"},
    {"blocking", 'z', "0|1", COMMAND_BENCH, IN(COUNT, blocking, 0, 1),
     "1: the host waits for each iteration, and times are by its clock (on the CPU it always does)"},
    {"report_cputime", 'C', "0|1", COMMAND_BENCH, IN(COUNT, host_time, 0, 1),
     "1: times of the host, until it has launched the work on GPUs"},
    {"report_timestamps", 'S', "0|1", COMMAND_BENCH, IN(COUNT, stamps, 0, 1), "1: the time of day at the end of a row"},
    {"memory_report", 'M', "0|1", COMMAND_BENCH, IN(COUNT, memory, 0, 1), "1: the memory of each row, in a line more"},
    {"unalign", 'u', "N", COMMAND_BENCH, IN(COUNT, shift, 0, 4096),
     "buffers begin N elements behind an aligned address (default 0)"},
    {"timeout", 'T', "S", COMMAND_BENCH, IN(COUNT, timeout, 0, INT32_MAX),
     "end with what there is where a row takes more seconds (default 0: none)"},
    {"parallel_init", 'p', "1", COMMAND_BENCH, IN(COUNT, connect, 0, 1),
     "1: ranks connect in parallel, by their own threads; there is no other way"},
    {"local_register", 'R', "0", COMMAND_BENCH, IN(COUNT, registry, 0, 2),
     "0: buffers are not registered with NCCL; there is no other way"},
    {"op", 'o', "OP", COMMAND_BENCH, IS(NONE, shape), "refused: elements are moved, and nothing is computed with them"},
    {"root", 'r', "RANK", COMMAND_BENCH, IS(NONE, shape),
     "refused: the layouts say it: --dst 'rank(3)' gathers to rank 3"},
    {"stream_null", 'y', "0|1", COMMAND_BENCH, IN(ZERO, shape, 0, 1),
     "0: each rank has a stream of its own; 1 is refused: the null stream would put those of a GPU behind each other"},
    {"cta_policy", 'x', "N", COMMAND_BENCH, IS(NONE, shape), "refused: NCCL has a variable for it, NCCL_CTA_POLICY"},
    {"device_implementation", 'D', "N", COMMAND_BENCH, IN(ZERO, shape, 0, INT32_MAX),
     "0: by NCCL's calls of the host; others are refused: its device kernels take no part in a reshard"},
    {"device_cta_count", 'V', "N", COMMAND_BENCH, IS(NONE, shape), "refused, as -D is"},
    {"trace", 0, "FILE", COMMAND_BENCH, IS(TEXT, trace),
     "one execute more, of the last size, recorded in Chrome's trace format"},
    {"json", 0, "FILE", RESHARDS | COMMAND_INFO | COMMAND_CONVERT | COMMAND_CHECK, IS(TEXT, json),
     "write the result as JSON; '-' is standard output, with nothing else on it"},
    {"output_file", 'J', "FILE", COMMAND_BENCH, IS(TEXT, json), "the same as --json"},
    {"csv", 0, "FILE", COMMAND_BENCH, IS(TEXT, csv),
     "write the rows as CSV, with the fields of the JSON; '-' likewise"},
    {"cases", 0, "N", COMMAND_VERIFY, IN(SIZE, cases, 1, INT64_MAX / 2), "random cases (default 2000)"},
    {"seconds", 0, "S", COMMAND_VERIFY, IN(COUNT, seconds, 1, INT32_MAX),
     "begin no case after so long (default: all are run)"},
    {"seed", 0, "S", COMMAND_VERIFY, IS(SEED, seed), "seed of the first case (default 1); the i-th has S + i"},
    {"help", 'h', NULL, ALL, HELP, 0, 0, 0, "this text"},
};
#define ROWS ((int)(sizeof option_rows / sizeof *option_rows))

/* An option for error texts: "--ranks" or "-b". */
static const char *option_text(const option_row *row) {
  static char text[40];
  if (row->letter != 0)
    snprintf(text, sizeof text, "-%c", row->letter);
  else
    snprintf(text, sizeof text, "--%s", row->name);
  return text;
}

static void print_help(int command, const char *usage) {
  printf("%s\noptions:\n", usage);
  for (int i = 0; i < ROWS; i++) {
    const option_row *row = &option_rows[i];
    if (!(row->commands & command))
      continue;
    char left[80];
    const char *separator = row->argument != NULL ? " " : "", *argument = row->argument != NULL ? row->argument : "";
    if (row->letter != 0 && row->name != NULL)
      snprintf(left, sizeof left, "-%c, --%s%s%s", row->letter, row->name, separator, argument);
    else if (row->letter != 0)
      snprintf(left, sizeof left, "-%c%s%s", row->letter, separator, argument);
    else
      snprintf(left, sizeof left, "--%s%s%s", row->name, separator, argument);
    printf("  %-28s  %s\n", left, row->help);
  }
  printf("exit status: 0 done; 1 it failed; 2 bad usage or input; 3 this machine or build lacks what was asked for\n");
  exit(EXIT_DONE);
}

/* Reads a number within the row's limits; a SIZE may have a suffix K, M or G (1024 each). */
static int64_t parse_number(const option_row *row, const char *text) {
  char *end;
  errno = 0;
  long long value = strtoll(text, &end, 10);
  bool right = isdigit((unsigned char)text[0]) && errno == 0;
  if (right && row->kind != COUNT && *end != '\0') {
    int letter = toupper((unsigned char)*end++), shift = letter == 'K'   ? 10
                                                         : letter == 'M' ? 20
                                                         : letter == 'G' ? 30
                                                                         : -1;
    right = shift > 0 && !__builtin_mul_overflow(value, (long long)1 << shift, &value);
  }
  if (!right || *end != '\0')
    cli_exit(EXIT_USAGE, "%s: '%s' is no %s", option_text(row), text,
             row->kind == SIZE || row->kind == LIMIT ? "size in bytes (such as 512, 64K, 256M or 1G)" : "number");
  int64_t least = row->kind == MAYBE ? 0 : row->least;
  if (value < least || value > row->most)
    cli_exit(EXIT_USAGE, "%s: %lld is not between %lld and %lld", option_text(row), value, (long long)least,
             (long long)row->most);
  return value;
}

/* "1/16", "0.0625". */
static double parse_share(const option_row *row, const char *text) {
  char *end;
  double value = strtod(text, &end);
  if (end != text && *end == '/') {
    char *divisor = end + 1;
    value /= strtod(divisor, &end);
    end = end == divisor ? divisor - 1 : end;
  }
  if (end == text || *end != '\0' || !(value > 0 && value <= 1e6))
    cli_exit(EXIT_USAGE, "%s: '%s' is no factor above 0, such as 1/16", option_text(row), text);
  return value;
}

static double parse_factor(const option_row *row, const char *text) {
  char *end;
  double value = strtod(text, &end);
  if (end == text || *end != '\0' || !(value > 1 && value <= 1e6))
    cli_exit(EXIT_USAGE, "%s: '%s' is no factor above 1", option_text(row), text);
  return value;
}

static uint64_t parse_seed(const option_row *row, const char *text) {
  char *end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 0);
  if (!isdigit((unsigned char)text[0]) || *end != '\0' || errno != 0)
    cli_exit(EXIT_USAGE, "%s: '%s' is no number of 64 bits", option_text(row), text);
  return value;
}

/* The place of text among the words of the argument. */
static int parse_word(const option_row *row, const char *text) {
  size_t n = strlen(text);
  int i = 0;
  for (const char *at = row->argument; at != NULL; at = strchr(at, '|') == NULL ? NULL : strchr(at, '|') + 1, i++)
    if (strcspn(at, "|") == n && strncmp(at, text, n) == 0)
      return i;
  cli_exit(EXIT_USAGE, "%s: '%s' is not one of %s", option_text(row), text, row->argument);
}

static void set_option(const option_row *row, const char *text, cli_options *o) {
  void *field = (char *)o + row->field;
  switch (row->kind) {
  case WORD:
    (void)parse_word(row, text);
    *(const char **)field = text;
    break;
  case TEXT: *(const char **)field = text; break;
  case CHOICE: *(int *)field = parse_word(row, text); break;
  case FLAG: *(bool *)field = true; break;
  case COUNT:
  case SIZE: *(int64_t *)field = parse_number(row, text); break;
  case LIMIT: *(int64_t *)field = strcmp(text, "none") == 0 ? RESHARD_NO_LIMIT : parse_number(row, text); break;
  case MAYBE: *(int64_t *)field = text == NULL ? row->least : parse_number(row, text); break;
  case SHARE: *(double *)field = parse_share(row, text); break;
  case ZERO:
    if (parse_number(row, text) == 0)
      break;
    __attribute__((fallthrough));
  case NONE: cli_exit(EXIT_USAGE, "%s %s: %s", option_text(row), text, strstr(row->help, "refused"));
  case FACTOR: *(double *)field = parse_factor(row, text); break;
  case SEED: *(uint64_t *)field = parse_seed(row, text); break;
  case HELP: break;
  }
}

/* getopt's value of an option: its letter, or a number that is none. */
static int getopt_value(int row) { return option_rows[row].letter != 0 ? option_rows[row].letter : 256 + row; }

static const option_row *find_option(int command, int value) {
  for (int i = 0; i < ROWS; i++)
    if (getopt_value(i) == value && option_rows[i].commands & command)
      return &option_rows[i];
  return NULL;
}

/* Tells whether an option takes an argument, as getopt has it. */
static int takes_argument(const option_row *row) {
  return row->argument == NULL ? no_argument : row->kind == MAYBE ? optional_argument : required_argument;
}

/* Fills getopt's tables with the command's options. */
static void make_getopt_tables(int command, struct option *longs, char *letters) {
  int n = 0;
  *letters++ = ':'; /* a missing argument is told apart from an unknown option */
  for (int i = 0; i < ROWS; i++) {
    if (!(option_rows[i].commands & command))
      continue;
    if (option_rows[i].name != NULL)
      longs[n++] = (struct option){option_rows[i].name, takes_argument(&option_rows[i]), NULL, getopt_value(i)};
    if (option_rows[i].letter != 0) {
      *letters++ = (char)option_rows[i].letter;
      for (int k = 0; k < takes_argument(&option_rows[i]); k++)
        *letters++ = ':'; /* two where it may be left out */
    }
  }
  *letters = '\0';
}

/* Ends the program where a variable is wrong that a command reads later, or not at all. */
static void check_environment(void) {
  int threads = 0;
  reshard_isa isa = RESHARD_ISA_AUTO;
  CLI_TRY("", rs_environment_cpu(&threads, &isa));
}

/* --- Options that are not there ----------------------------------------------------------------------------------- */

/* The i-th long name of a command; "" for one of another. */
static const char *next_long_name(int i, const void *command) {
  return i == ROWS                                                                           ? NULL
         : option_rows[i].name == NULL || !(option_rows[i].commands & *(const int *)command) ? ""
                                                                                             : option_rows[i].name;
}

/* Refuses a long option that is cut short where its letters begin another one, of this or of another command. */
static void refuse_short(int command, const char *given, const option_row *row) {
  char word[64], others[160] = "";
  rs_text text = {.at = others, .size = sizeof others};
  snprintf(word, sizeof word, "%.*s", (int)strcspn(given + 2, "="), given + 2);
  for (int pass = 0; pass < 2; pass++) /* of this command first */
    for (int i = 0; i < ROWS; i++)
      if (option_rows[i].name != NULL && strncmp(option_rows[i].name, word, strlen(word)) == 0 &&
          (row == NULL || strcmp(option_rows[i].name, row->name) != 0) &&
          ((option_rows[i].commands & command) == 0) == (pass == 1) && (row != NULL || pass == 0))
        rs_text_add(&text, "%s--%s%s", text.length > 0 ? ", " : "", option_rows[i].name,
                    pass == 1 ? " of another command" : "");
  if (text.length == 0 || (row != NULL && strcmp(word, row->name) == 0))
    return;
  cli_exit(EXIT_USAGE, "option '--%s' is short for %s%s%s%s: write it out", word, row != NULL ? "--" : "",
           row != NULL ? row->name : "", row != NULL ? " here, and for " : "", others);
}

static _Noreturn void refuse_unknown(int command, const char *name, const char *given) {
  static const char *const commands[] = {"plan", "bench", "verify", "info", "convert", "trace", "check"};
  char word[64];
  bool is_long = strncmp(given, "--", 2) == 0;
  if (is_long)
    refuse_short(command, given, NULL);
  snprintf(word, sizeof word, "%.*s", is_long ? (int)strcspn(given + 2, "=") : 0, given + 2);
  for (int i = 0; i < ROWS; i++)
    for (int k = 0; k < 7; k++)
      if (option_rows[i].name != NULL && strcmp(option_rows[i].name, word) == 0 && option_rows[i].commands >> k & 1)
        cli_exit(EXIT_USAGE, "unknown option '--%s': reshard %s has it; see reshard %s --help", word, commands[k],
                 name);
  const char *nearest = is_long ? cli_nearest(word, next_long_name, &command) : NULL;
  if (nearest != NULL)
    cli_exit(EXIT_USAGE, "unknown option '%s': did you mean --%s?", given, nearest);
  cli_exit(EXIT_USAGE, "unknown option '%s'; see reshard %s --help", given, name);
}

void cli_read_options(int argc, char **argv, int command, const char *usage, cli_options *o) {
  struct option longs[ROWS + 1] = {{0}};
  char letters[3 * ROWS + 2];
  make_getopt_tables(command, longs, letters);
  *o = (cli_options){.rank = -1,
                     .iterations = 20,
                     .warmup = 1,
                     .aggregate = 1,
                     .cycles = 1,
                     .average = 3,
                     .connect = 1,
                     .cases = 2000,
                     .seed = 1};
  opterr = 0;
  for (int letter, which = -1; (letter = getopt_long(argc, argv, letters, longs, &which)) != -1; which = -1) {
    if (letter == '?' && optopt != 0 && find_option(command, optopt) != NULL)
      cli_exit(EXIT_USAGE, "option '%s' takes no argument", argv[optind - 1]);
    if (letter == '?' && optopt != 0)
      cli_exit(EXIT_USAGE, "unknown option '-%c'; see reshard %s --help", optopt, argv[0]);
    if (letter == '?')
      refuse_unknown(command, argv[0], argv[optind - 1]);
    if (letter == ':')
      cli_exit(EXIT_USAGE, "option '%s' needs an argument", argv[optind - 1]);
    if (letter == 'h')
      print_help(command, usage);
    const option_row *row = find_option(command, letter);
    if (which >= 0) /* its argument is in the same word, or the next one */
      refuse_short(command, argv[optind - (optarg != NULL && optarg == argv[optind - 1] ? 2 : 1)], row);
    if (row->kind == MAYBE && optarg == NULL && optind < argc && isdigit((unsigned char)argv[optind][0]))
      optarg = argv[optind++]; /* as nccl-tests writes it */
    set_option(row, optarg, o);
  }
  o->graph = o->graph || o->launches != 0;
  o->device = o->device == NULL && o->gpus > 0 ? "cuda" : o->device;
  if (command == COMMAND_CONVERT) {
    if (optind + 2 > argc)
      cli_exit(EXIT_USAGE, "%s is missing; see reshard %s --help", optind == argc ? "IN" : "OUT", argv[0]);
    o->in = argv[optind++];
    o->out = argv[optind++];
  }
  if (command == COMMAND_CHECK) {
    if (optind == argc)
      cli_exit(EXIT_USAGE, "DIR or FILE is missing; see reshard %s --help", argv[0]);
    o->paths = argv + optind;
    o->npaths = argc - optind;
    optind = argc;
  }
  if (optind < argc)
    cli_exit(EXIT_USAGE, "unexpected argument '%s'; see reshard %s --help", argv[optind], argv[0]);
  check_environment();
}

/* Adds an option as users write it, both ways where it has two: "-d --dtype". */
static void add_spellings(const option_row *row, const char *separator, rs_text *out) {
  if (row->letter != 0)
    cli_add(out, "-%c%s", row->letter, row->name != NULL ? separator : "");
  if (row->name != NULL)
    cli_add(out, "--%s", row->name);
}

void cli_add_option_names(int command, rs_text *out) {
  for (int i = 0; i < ROWS; i++)
    if (option_rows[i].commands & command) {
      cli_add(out, " ");
      add_spellings(&option_rows[i], " ", out);
    }
}

void cli_add_option_values(rs_text *out) {
  for (int i = 0; i < ROWS; i++) {
    const option_row *row = &option_rows[i];
    if (row->argument == NULL)
      continue;
    cli_add(out, "  ");
    add_spellings(row, " | ", out);
    cli_add(out, ") words='");
    for (const char *at = row->argument; (row->kind == WORD || row->kind == CHOICE) && *at != '\0'; at++)
      cli_add(out, "%c", *at == '|' ? ' ' : *at);
    cli_add(out, "' ;;\n");
  }
}
