/* The program reshard_gpu. */
#include "bench/gpu/context.h"
#include "bench/gpu/rows.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: reshard_gpu check [--cases N] [--seed S] [--kind KIND] [--large]\n"
    "       reshard_gpu bench [--bytes N] [--iters N] [--only NAME|...] [--after NAME] [--seconds S] [--json FILE]\n"
    "                         [--profile | --sweep]\n"
    "       reshard_gpu hold\n\n"
    "check compares copies, casts, selections and storage on a GPU with the CPU's, at random (default 700 cases);\n"
    "--kind takes those of one kind: copies, spans, casts, selections, storage; --large adds offsets beyond 4 GiB.\n"
    "bench measures them beside the GPU's own copy of as many bytes (default 1 GiB); --only takes the cases whose\n"
    "names begin so, --after those behind a case; one that takes more than S seconds ends the program;\n"
    "with --profile each runs once, untimed, for a profiler, and the times that are printed mean nothing;\n"
    "--sweep measures how copies are best cut on this GPU, and says what to set.\n"
    "hold keeps the GPU open until it is ended, so that other programs start sooner.\n"
    "exit status: 0 done; 1 something is wrong; 2 bad usage; 3 there is no GPU\n";

static int64_t parse_number(const char *name, const char *text) {
  char *end;
  long long value = strtoll(text, &end, 10);
  if (end == text || *end != '\0' || value < 0)
    cli_exit(EXIT_USAGE, "%s: '%s' is no number", name, text);
  return value;
}

int main(int argc, char **argv) {
  static const struct option longs[] = {
      {"cases", required_argument, NULL, 'c'}, {"seed", required_argument, NULL, 's'},
      {"large", no_argument, NULL, 'l'},       {"bytes", required_argument, NULL, 'b'},
      {"iters", required_argument, NULL, 'n'}, {"only", required_argument, NULL, 'o'},
      {"after", required_argument, NULL, 'a'}, {"seconds", required_argument, NULL, 't'},
      {"kind", required_argument, NULL, 'k'},  {"json", required_argument, NULL, 'j'},
      {"profile", no_argument, NULL, 'p'},     {"sweep", no_argument, NULL, 'w'},
      {"help", no_argument, NULL, 'h'},        {NULL, 0, NULL, 0}};
  gpu_bench_options options = {.bytes = (int64_t)1 << 30, .iterations = 11};
  gpu_check_options checked = {.cases = 700, .seed = 1};
  for (int letter; (letter = getopt_long(argc, argv, "", longs, NULL)) != -1;)
    switch (letter) {
    case 'c': checked.cases = parse_number("--cases", optarg); break;
    case 's': checked.seed = (uint64_t)parse_number("--seed", optarg); break;
    case 'l': checked.large = true; break;
    case 'b': options.bytes = parse_number("--bytes", optarg); break;
    case 'n': options.iterations = parse_number("--iters", optarg); break;
    case 'o': options.only = optarg; break;
    case 'a': options.after = optarg; break;
    case 't': options.seconds = parse_number("--seconds", optarg); break;
    case 'k': checked.kind = optarg; break;
    case 'j': options.json = optarg; break;
    case 'p': options.profile = true; break;
    case 'w': options.sweep = true; break;
    case 'h': fputs(usage, stdout); return EXIT_DONE;
    default: fputs(usage, stderr); return EXIT_USAGE;
    }
  const char *command = optind + 1 == argc ? argv[optind] : "";
  bool checks = strcmp(command, "check") == 0, holds = strcmp(command, "hold") == 0;
  if (!checks && !holds && strcmp(command, "bench") != 0) {
    fputs(usage, stderr);
    return EXIT_USAGE;
  }
  if (checks && checked.kind != NULL && !gpu_check_knows(checked.kind))
    cli_exit(EXIT_USAGE, "--kind: '%s' is none of copies, spans, casts, selections, storage", checked.kind);
  if (options.bytes < 1 << 16 || options.iterations < 1 || options.seconds > INT32_MAX)
    cli_exit(EXIT_USAGE, "--bytes %lld --iters %lld --seconds %lld: at least 65536 and 1, at most %d",
             (long long)options.bytes, (long long)options.iterations, (long long)options.seconds, INT32_MAX);
  gpu_context b;
  gpu_context_open(&b);
  if (holds) {
    printf("%s is open\n", b.info.name);
    fflush(stdout);
    for (;;)
      pause();
  }
  int status = checks ? gpu_check(&b, &checked) : gpu_bench(&b, &options);
  gpu_context_close(&b);
  return status;
}
