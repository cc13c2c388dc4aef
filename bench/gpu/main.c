/* The program reshard_gpu. */
#include "bench/gpu/context.h"
#include "bench/gpu/rows.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: reshard_gpu check [--cases N] [--seed S] [--large]\n"
    "       reshard_gpu bench [--bytes N] [--iters N] [--only NAME] [--json FILE] [--profile | --sweep]\n\n"
    "check compares copies, casts, selections and storage on a GPU with the CPU's, at random (default 700 cases);\n"
    "--large adds offsets beyond 4 GiB. bench measures them beside the GPU's own copy of as many bytes (default 1 "
    "GiB);\n"
    "with --profile each runs once, untimed, for a profiler, and the times that are printed mean nothing;\n"
    "--sweep measures how copies are best cut on this GPU, and says what to set.\n"
    "exit status: 0 done; 1 something is wrong; 2 bad usage; 3 there is no GPU\n";

static int64_t parse_number(const char *name, const char *text) {
  char *end;
  long long value = strtoll(text, &end, 10);
  if (end == text || *end != '\0' || value < 0)
    cli_exit(EXIT_USAGE, "%s: '%s' is no number", name, text);
  return value;
}

int main(int argc, char **argv) {
  static const struct option longs[] = {{"cases", required_argument, NULL, 'c'},
                                        {"seed", required_argument, NULL, 's'},
                                        {"large", no_argument, NULL, 'l'},
                                        {"bytes", required_argument, NULL, 'b'},
                                        {"iters", required_argument, NULL, 'n'},
                                        {"only", required_argument, NULL, 'o'},
                                        {"json", required_argument, NULL, 'j'},
                                        {"profile", no_argument, NULL, 'p'},
                                        {"sweep", no_argument, NULL, 'w'},
                                        {"help", no_argument, NULL, 'h'},
                                        {NULL, 0, NULL, 0}};
  gpu_bench_options options = {.bytes = (int64_t)1 << 30, .iterations = 11};
  int64_t cases = 700;
  uint64_t seed = 1;
  bool large = false;
  for (int letter; (letter = getopt_long(argc, argv, "", longs, NULL)) != -1;)
    switch (letter) {
    case 'c': cases = parse_number("--cases", optarg); break;
    case 's': seed = (uint64_t)parse_number("--seed", optarg); break;
    case 'l': large = true; break;
    case 'b': options.bytes = parse_number("--bytes", optarg); break;
    case 'n': options.iterations = parse_number("--iters", optarg); break;
    case 'o': options.only = optarg; break;
    case 'j': options.json = optarg; break;
    case 'p': options.profile = true; break;
    case 'w': options.sweep = true; break;
    case 'h': fputs(usage, stdout); return EXIT_DONE;
    default: fputs(usage, stderr); return EXIT_USAGE;
    }
  bool checks = optind + 1 == argc && strcmp(argv[optind], "check") == 0;
  if (!checks && !(optind + 1 == argc && strcmp(argv[optind], "bench") == 0)) {
    fputs(usage, stderr);
    return EXIT_USAGE;
  }
  if (options.bytes < 1 << 16 || options.iterations < 1)
    cli_exit(EXIT_USAGE, "--bytes %lld --iters %lld: at least 65536 and 1", (long long)options.bytes,
             (long long)options.iterations);
  gpu_context b;
  gpu_context_open(&b);
  int status = checks ? gpu_check(&b, cases, seed, large) : gpu_bench(&b, &options);
  gpu_context_close(&b);
  return status;
}
