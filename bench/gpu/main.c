/* The program reshard_gpu. */
#include "bench/gpu/context.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: reshard_gpu check [--cases N] [--seed S] [--kind KIND] [--large]\n"
    "       reshard_gpu hold\n\n"
    "check compares copies, casts, selections and storage on a GPU with the CPU's, at random (default 800 cases);\n"
    "--kind takes those of one kind: copies, conversions, spans, casts, selections, storage;\n"
    "--large adds offsets beyond 4 GiB.\n"
    "hold keeps the GPU open until it is ended, so that other programs start sooner.\n"
    "exit status: 0 done; 1 something is wrong; 2 bad usage; 3 there is no GPU\n"
    "reshard_micro measures what is checked here.\n";

static int64_t parse_number(const char *name, const char *text) {
  char *end;
  long long value = strtoll(text, &end, 10);
  if (end == text || *end != '\0' || value < 0)
    cli_exit(EXIT_USAGE, "%s: '%s' is no number", name, text);
  return value;
}

int main(int argc, char **argv) {
  static const struct option longs[] = {{"cases", required_argument, NULL, 'c'}, {"seed", required_argument, NULL, 's'},
                                        {"large", no_argument, NULL, 'l'},       {"kind", required_argument, NULL, 'k'},
                                        {"help", no_argument, NULL, 'h'},        {NULL, 0, NULL, 0}};
  gpu_check_options checked = {.cases = 800, .seed = 1};
  for (int letter; (letter = getopt_long(argc, argv, "", longs, NULL)) != -1;)
    switch (letter) {
    case 'c': checked.cases = parse_number("--cases", optarg); break;
    case 's': checked.seed = (uint64_t)parse_number("--seed", optarg); break;
    case 'l': checked.large = true; break;
    case 'k': checked.kind = optarg; break;
    case 'h': fputs(usage, stdout); return EXIT_DONE;
    default: fputs(usage, stderr); return EXIT_USAGE;
    }
  const char *command = optind + 1 == argc ? argv[optind] : "";
  const bool holds = strcmp(command, "hold") == 0;
  if (!holds && strcmp(command, "check") != 0) {
    fputs(usage, stderr);
    return EXIT_USAGE;
  }
  if (checked.kind != NULL && !gpu_check_knows(checked.kind))
    cli_exit(EXIT_USAGE, "--kind: '%s' is none of copies, conversions, spans, casts, selections, storage",
             checked.kind);
  gpu_context b;
  gpu_context_open(&b);
  if (holds) {
    printf("%s is open\n", b.info.name);
    fflush(stdout);
    for (;;)
      pause();
  }
  int status = gpu_check(&b, &checked);
  gpu_context_close(&b);
  return status;
}
