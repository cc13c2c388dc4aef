#include "bench/cli/options.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

typedef struct option_row {
  const char *name;     /* long name */
  int letter;           /* the letter where it has one, else a number from 256 on */
  const char *argument; /* NULL: takes none */
  int commands;
  const char *help;
} option_row;

enum {
  O_SHAPE = 256,
  O_MODEL,
  O_SRC,
  O_DST,
  O_MESH,
  O_RANKS,
  O_DEVICE,
  O_COMM,
  O_PATH,
  O_COLLECTIVE,
  O_WORKSPACE,
  O_THREADS,
  O_RANK,
  O_PEERS,
  O_JSON,
  O_SVG,
  O_TRACE,
  O_PERMUTATION,
  O_CASES,
  O_SECONDS,
  O_SEED,
  O_FORCE,
  O_VERIFY,
  O_DEDUP,
  O_INDEX,
  O_MAP,
};

static const option_row option_rows[] = {
    {"shape", O_SHAPE, "13x21", COMMAND_PLAN | COMMAND_TRACE | COMMAND_BENCH,
     "one tensor of this shape; 'scalar' for one without dims"},
    {"dtype", 'd', "TYPE", COMMAND_PLAN | COMMAND_TRACE | COMMAND_BENCH,
     "its elements: bool u8 i8 u16 i16 u32 i32 u64 i64 f8_e4m3 f8_e5m2 f8_e8m0 f16 "
     "bf16 f32 f64 c64 c128 (default f32)"},
    {"model", O_MODEL, "NAME|FILE", COMMAND_PLAN | COMMAND_TRACE | COMMAND_BENCH,
     "many tensors: a preset, a JSON list, a .safetensors file"},
    {"src", O_SRC, "L", COMMAND_PLAN | COMMAND_TRACE | COMMAND_BENCH | COMMAND_CONVERT,
     "layout before: a layout string, or @FILE of rules 'PATTERN LAYOUT'"},
    {"dst", O_DST, "L", COMMAND_PLAN | COMMAND_TRACE | COMMAND_BENCH | COMMAND_CONVERT, "layout after"},
    {"mesh", O_MESH, "DIM=N,...", COMMAND_PLAN | COMMAND_TRACE | COMMAND_BENCH | COMMAND_CONVERT,
     "sizes of mesh dims that the layouts name without one (default: what the world leaves)"},
    {"permutation", O_PERMUTATION, "1,0", COMMAND_BENCH | COMMAND_TRACE,
     "dim i of the destination walks this dim of the source (with --shape; 1,0 transposes)"},
    {"ranks", O_RANKS, "N", COMMAND_PLAN | COMMAND_TRACE | COMMAND_BENCH | COMMAND_VERIFY | COMMAND_CONVERT,
     "ranks of the world (default: what the layouts name)"},
    {"device", O_DEVICE, "cpu|cuda", COMMAND_PLAN | COMMAND_TRACE | COMMAND_BENCH | COMMAND_VERIFY,
     "where the data is (default cpu)"},
    {"comm", O_COMM, "local|nccl|mpi", COMMAND_PLAN | COMMAND_TRACE | COMMAND_BENCH | COMMAND_VERIFY,
     "what connects the ranks (default local; of several processes nccl with --device cuda, else mpi)"},
    {"path", O_PATH, "auto|direct|packed", COMMAND_PLAN | COMMAND_TRACE | COMMAND_BENCH | COMMAND_VERIFY,
     "how bytes are moved (default auto)"},
    {"collective", O_COLLECTIVE, "auto|force|forbid", COMMAND_BENCH | COMMAND_TRACE,
     "messages that are a collective together as one call of --comm nccl (default auto: where it is faster)"},
    {"workspace", O_WORKSPACE, "BYTES", COMMAND_PLAN | COMMAND_TRACE | COMMAND_BENCH,
     "limit of staging memory on every rank; suffixes K, M, G "
     "(default: no limit, one round)"},
    {"map", O_MAP, "FILE", COMMAND_CONVERT, "lines 'TARGET = SOURCE' that rename, join, cut and transpose tensors"},
    {"index", O_INDEX, "BYTES", COMMAND_CONVERT,
     "OUT is a directory of whole tensors in files of at most so many bytes, with an index; suffixes K, M, G"},
    {"dedup", O_DEDUP, NULL, COMMAND_CONVERT, "store equal boxes of several ranks once, by the lowest of them"},
    {"force", O_FORCE, NULL, COMMAND_CONVERT, "replace OUT where it is there"},
    {"verify", O_VERIFY, NULL, COMMAND_CONVERT, "read back and compare every byte before OUT is put in place"},
    {"threads", O_THREADS, "T", COMMAND_PLAN | COMMAND_TRACE | COMMAND_BENCH | COMMAND_VERIFY | COMMAND_CONVERT,
     "copy or planning threads shared by the local ranks "
     "(default: all cores)"},
    {"rank", O_RANK, "R", COMMAND_PLAN, "plan this rank only"},
    {"peers", O_PEERS, NULL, COMMAND_PLAN, "list the peers of each rank"},
    {"svg", O_SVG, "FILE", COMMAND_PLAN | COMMAND_TRACE,
     "draw it: of a plan, who holds what and who sends what to whom"},
    {"minbytes", 'b', "BYTES", COMMAND_BENCH, "smallest size; dim 0 of --shape is scaled to it"},
    {"maxbytes", 'e', "BYTES", COMMAND_BENCH, "largest size"},
    {"stepbytes", 'i', "BYTES", COMMAND_BENCH, "increment between sizes"},
    {"stepfactor", 'f', "F", COMMAND_BENCH, "factor between sizes (default 2)"},
    {"iters", 'n', "N", COMMAND_BENCH, "iterations (default 20)"},
    {"warmup_iters", 'w', "N", COMMAND_BENCH | COMMAND_TRACE, "iterations before the first that is timed (default 1)"},
    {"check", 'c', NULL, COMMAND_BENCH, "check every byte that arrives"},
    {"nthreads", 't', "N", COMMAND_BENCH | COMMAND_TRACE | COMMAND_VERIFY, "rank threads per process and GPU"},
    {"ngpus", 'g', "N", COMMAND_BENCH | COMMAND_TRACE | COMMAND_VERIFY,
     "GPUs per process, which its ranks are on in turn (default 1; with --comm nccl one a rank)"},
    {"cudagraph", 'G', NULL, COMMAND_BENCH | COMMAND_VERIFY, "execute from a CUDA graph"},
    {"trace", O_TRACE, "FILE", COMMAND_BENCH, "one execute more, of the last size, recorded in Chrome's trace format"},
    {"json", O_JSON, "FILE", COMMAND_PLAN | COMMAND_TRACE | COMMAND_BENCH | COMMAND_INFO | COMMAND_CONVERT,
     "write the result as JSON; '-' is standard output, with nothing "
     "else on it"},
    {NULL, 'J', "FILE", COMMAND_BENCH, "the same as --json"},
    {"cases", O_CASES, "N", COMMAND_VERIFY, "random cases (default 2000)"},
    {"seconds", O_SECONDS, "S", COMMAND_VERIFY, "begin no case after so long (default: all are run)"},
    {"seed", O_SEED, "S", COMMAND_VERIFY, "seed of the first case (default 1); the i-th has S + i"},
    {"help", 'h', NULL, COMMAND_PLAN | COMMAND_TRACE | COMMAND_BENCH | COMMAND_VERIFY | COMMAND_INFO | COMMAND_CONVERT,
     "this text"},
};
#define ROWS ((int)(sizeof option_rows / sizeof *option_rows))

/* How an option was written, for errors: "--ranks" or "-b". */
static const char *option_text(const option_row *row) {
  static char text[40];
  if (row->letter < 256)
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
    if (row->letter < 256 && row->name != NULL)
      snprintf(left, sizeof left, "-%c, --%s%s%s", row->letter, row->name, separator, argument);
    else if (row->letter < 256)
      snprintf(left, sizeof left, "-%c%s%s", row->letter, separator, argument);
    else
      snprintf(left, sizeof left, "--%s%s%s", row->name, separator, argument);
    printf("  %-28s  %s\n", left, row->help);
  }
  printf("exit status: 0 done; 1 it failed; 2 bad usage or input; 3 this machine or build lacks what was asked for\n");
  exit(EXIT_DONE);
}

/* A number from lo to hi, with a suffix K, M or G (1024 each) where one is allowed. */
static int64_t parse_number(const option_row *row, const char *text, int64_t lo, int64_t hi, bool suffix) {
  char *end;
  errno = 0;
  long long value = strtoll(text, &end, 10);
  bool right = isdigit((unsigned char)text[0]) && errno == 0;
  if (right && suffix && *end != '\0') {
    int letter = toupper((unsigned char)*end++), shift = letter == 'K'   ? 10
                                                         : letter == 'M' ? 20
                                                         : letter == 'G' ? 30
                                                                         : -1;
    right = shift > 0 && !__builtin_mul_overflow(value, (long long)1 << shift, &value);
  }
  if (!right || *end != '\0')
    cli_exit(EXIT_USAGE, "%s: '%s' is no %s", option_text(row), text,
             suffix ? "size in bytes (such as 512, 64K, 256M or 1G)" : "number");
  if (value < lo || value > hi)
    cli_exit(EXIT_USAGE, "%s: %lld is not between %lld and %lld", option_text(row), value, (long long)lo,
             (long long)hi);
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

/* One of the words. */
static const char *parse_word(const option_row *row, const char *text, const char *const *words) {
  for (int i = 0; words[i] != NULL; i++)
    if (strcmp(words[i], text) == 0)
      return words[i];
  cli_exit(EXIT_USAGE, "%s: '%s' is not one of %s", option_text(row), text, row->argument);
}

static reshard_path parse_path(const option_row *row, const char *text) {
  static const char *const words[] = {"auto", "direct", "packed", NULL};
  const char *found = parse_word(row, text, words);
  return found == words[0] ? RESHARD_PATH_AUTO : found == words[1] ? RESHARD_PATH_DIRECT : RESHARD_PATH_PACKED;
}

static reshard_collective_use parse_collective(const option_row *row, const char *text) {
  static const char *const words[] = {"auto", "force", "forbid", NULL};
  const char *found = parse_word(row, text, words);
  return found == words[0]   ? RESHARD_COLLECTIVE_AUTO
         : found == words[1] ? RESHARD_COLLECTIVE_FORCE
                             : RESHARD_COLLECTIVE_FORBID;
}

static void set_option(const option_row *row, const char *text, cli_options *o) {
  static const char *const devices[] = {"cpu", "cuda", NULL}, *const comms[] = {"local", "nccl", "mpi", NULL};
  switch (row->letter) {
  case O_SHAPE: o->shape = text; break;
  case 'd': o->dtype = text; break;
  case O_MODEL: o->model = text; break;
  case O_PERMUTATION: o->permutation = text; break;
  case O_SRC: o->src = text; break;
  case O_DST: o->dst = text; break;
  case O_MESH: o->mesh = text; break;
  case O_RANKS: o->ranks = parse_number(row, text, 1, INT32_MAX, false); break;
  case O_DEVICE: o->device = parse_word(row, text, devices); break;
  case O_COMM: o->comm = parse_word(row, text, comms); break;
  case O_PATH: o->path = parse_path(row, text); break;
  case O_COLLECTIVE: o->collective = parse_collective(row, text); break;
  case O_WORKSPACE: o->workspace = parse_number(row, text, 0, INT64_MAX, true); break;
  case O_THREADS: o->threads = (int)parse_number(row, text, 1, 4096, false); break;
  case O_RANK: o->rank = parse_number(row, text, 0, INT32_MAX, false); break;
  case O_PEERS: o->peers = true; break;
  case O_SVG: o->svg = text; break;
  case O_TRACE: o->trace = text; break;
  case 'b': o->size_begin = parse_number(row, text, 1, INT64_MAX, true); break;
  case 'e': o->size_end = parse_number(row, text, 1, INT64_MAX, true); break;
  case 'i': o->size_increment = parse_number(row, text, 1, INT64_MAX, true); break;
  case 'f': o->size_factor = parse_factor(row, text); break;
  case 'n': o->iterations = parse_number(row, text, 1, 1000000, false); break;
  case 'w': o->warmup = parse_number(row, text, 0, 1000000, false); break;
  case 'c': o->check = true; break;
  case 't': o->ranks_per_gpu = parse_number(row, text, 1, 65536, false); break;
  case 'g': o->gpus = parse_number(row, text, 1, 1024, false); break;
  case 'G': o->graph = true; break;
  case 'J':
  case O_JSON: o->json = text; break;
  case O_CASES: o->cases = parse_number(row, text, 1, INT64_MAX / 2, true); break;
  case O_SECONDS: o->seconds = parse_number(row, text, 1, INT32_MAX, false); break;
  case O_SEED: o->seed = parse_seed(row, text); break;
  case O_MAP: o->map = text; break;
  case O_INDEX: o->index_bytes = parse_number(row, text, 1, INT64_MAX, true); break;
  case O_DEDUP: o->dedup = true; break;
  case O_FORCE: o->force = true; break;
  case O_VERIFY: o->verify = true; break;
  default: break;
  }
}

static const option_row *find_option(int letter) {
  for (int i = 0; i < ROWS; i++)
    if (option_rows[i].letter == letter)
      return &option_rows[i];
  return NULL;
}

/* What getopt tells the command's options by. */
static void make_getopt_tables(int command, struct option *longs, char *letters) {
  int n = 0;
  *letters++ = ':'; /* a missing argument is told apart from an unknown option */
  for (int i = 0; i < ROWS; i++) {
    if (!(option_rows[i].commands & command))
      continue;
    if (option_rows[i].name != NULL)
      longs[n++] =
          (struct option){option_rows[i].name, option_rows[i].argument != NULL ? required_argument : no_argument, NULL,
                          option_rows[i].letter};
    if (option_rows[i].letter < 256) {
      *letters++ = (char)option_rows[i].letter;
      if (option_rows[i].argument != NULL)
        *letters++ = ':';
    }
  }
  *letters = '\0';
}

void cli_read_options(int argc, char **argv, int command, const char *usage, cli_options *o) {
  struct option longs[ROWS + 1] = {{0}};
  char letters[2 * ROWS + 2];
  make_getopt_tables(command, longs, letters);
  *o = (cli_options){.rank = -1, .iterations = 20, .warmup = 1, .cases = 2000, .seed = 1};
  opterr = 0;
  for (int letter; (letter = getopt_long(argc, argv, letters, longs, NULL)) != -1;) {
    if (letter == '?' && optopt != 0 && find_option(optopt) != NULL)
      cli_exit(EXIT_USAGE, "option '%s' takes no argument", argv[optind - 1]);
    if (letter == '?' && optopt != 0)
      cli_exit(EXIT_USAGE, "unknown option '-%c'; see reshard %s --help", optopt, argv[0]);
    if (letter == '?')
      cli_exit(EXIT_USAGE, "unknown option '%s'; see reshard %s --help", argv[optind - 1], argv[0]);
    if (letter == ':')
      cli_exit(EXIT_USAGE, "option '%s' needs an argument", argv[optind - 1]);
    if (letter == 'h')
      print_help(command, usage);
    set_option(find_option(letter), optarg, o);
    if (letter == 'c' && optind < argc && (strcmp(argv[optind], "0") == 0 || strcmp(argv[optind], "1") == 0))
      o->check = argv[optind++][0] == '1'; /* as nccl-tests writes it */
  }
  if (command == COMMAND_CONVERT) {
    if (optind + 2 > argc)
      cli_exit(EXIT_USAGE, "%s is missing; see reshard %s --help", optind == argc ? "IN" : "OUT", argv[0]);
    o->in = argv[optind++];
    o->out = argv[optind++];
  }
  if (optind < argc)
    cli_exit(EXIT_USAGE, "unexpected argument '%s'; see reshard %s --help", argv[optind], argv[0]);
}
