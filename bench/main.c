/* The program `reshard`: a table of commands. */
#include "bench/bench/bench.h"
#include "bench/cli/nearest.h"
#include "bench/cli/options.h"
#include "bench/commands/commands.h"
#include "bench/plan/plan.h"
#include "bench/verify/verify.h"

#include <stdlib.h>
#include <string.h>

static const struct command {
  const char *name;
  int bit; /* of the options table */
  int (*run)(int argc, char **argv);
  const char *does;
} commands[] = {
    {"plan", COMMAND_PLAN, command_plan,
     "what moving tensors from one layout to another takes, for any number of ranks, without moving them"},
    {"convert", COMMAND_CONVERT, command_convert,
     "files of tensors: cuts, reshards, joins and fuses checkpoints (safetensors, numpy, PyTorch's)"},
    {"check", COMMAND_CHECK, command_check, "whether files of tensors are as they were written, by their digests"},
    {"bench", COMMAND_BENCH, command_bench, "measures it, in the manner of nccl-tests"},
    {"trace", COMMAND_TRACE, command_trace,
     "draws an execute: what runs when on which stream, and what waits for what"},
    {"verify", COMMAND_VERIFY, command_verify, "random cases against a naive reshard, every byte"},
    {"info", COMMAND_INFO, command_info, "what this build has and this machine offers"},
};
#define COMMANDS (sizeof commands / sizeof *commands)

static void print_help(void) {
  printf("usage: reshard COMMAND [OPTION]...\n\n");
  for (size_t i = 0; i < COMMANDS; i++)
    printf("  %-8s %s\n", commands[i].name, commands[i].does);
  printf("\n  reshard help COMMAND     the options of a command, as reshard COMMAND --help\n"
         "  reshard --version        the version\n\n"
         "examples:\n"
         "  reshard plan --shape 8192x8192 --dtype f32 --src 'chunk(0)' --dst 'chunk(1)' --ranks 4\n"
         "  reshard plan --model llama-3.1-70b --src @fsdp --dst @tp --mesh fsdp=64,tp=8\n"
         "  reshard convert model.safetensors shards --dst @fsdp --ranks 8    # a checkpoint cut for 8 ranks\n"
         "  reshard convert shards joined.safetensors --verify              # and joined again\n"
         "  reshard bench --shape 8192x8192 --src 'mesh(fsdp=4;S0)' --dst 'mesh(tp=4;S1)' -c\n\n"
         "exit status: 0 done; 1 it failed; 2 bad usage or input; 3 this machine or build lacks what was asked for\n");
}

/* A bash script that completes commands, options and their words; all else is a file to it. */
static void print_completion(void) {
  rs_text names = {0}, options = {0}, values = {0};
  for (size_t i = 0; i < COMMANDS; i++) {
    cli_add(&names, "%s ", commands[i].name);
    cli_add(&options, "    %s) words='", commands[i].name);
    cli_add_option_names(commands[i].bit, &options);
    cli_add(&options, "' ;;\n");
  }
  cli_add_option_values(&values);
  printf("# Completes reshard's commands and options in bash; made by `reshard completion`.\n"
         "_reshard() {\n"
         "  local word=${COMP_WORDS[COMP_CWORD]} words=''\n"
         "  case ${COMP_WORDS[COMP_CWORD - 1]} in\n"
         "  help) words='%s' ;;\n"
         "%s"
         "  *)\n"
         "    case $COMP_CWORD,$word,${COMP_WORDS[1]} in\n"
         "    1,*) words='%shelp --help --version' ;;\n"
         "    *,-*,*) ;;\n"
         "    *) return ;;\n"
         "    esac\n"
         "    [ -n \"$words\" ] || case ${COMP_WORDS[1]} in\n"
         "%s"
         "    esac\n"
         "    ;;\n"
         "  esac\n"
         "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
         "}\n"
         "complete -o default -F _reshard reshard\n",
         names.at, values.at, names.at, options.at);
  free(names.at);
  free(options.at);
  free(values.at);
}

static const struct command *find_command(const char *name) {
  for (size_t i = 0; i < COMMANDS; i++)
    if (strcmp(commands[i].name, name) == 0)
      return &commands[i];
  return NULL;
}

static const char *next_name(int i, const void *user) {
  (void)user;
  return i < (int)COMMANDS ? commands[i].name : i == (int)COMMANDS ? "help" : NULL;
}

static _Noreturn void refuse_command(const char *name) {
  const char *nearest = name[0] != '-' ? cli_nearest(name, next_name, NULL) : NULL;
  cli_exit(EXIT_USAGE, "unknown %s '%s'%s%s%s", name[0] == '-' ? "option" : "command", name,
           nearest != NULL ? ": did you mean " : "; see reshard --help", nearest != NULL ? nearest : "",
           nearest != NULL ? "?" : "");
}

/* reshard help [COMMAND] */
static int show_help(int argc, char **argv) {
  static char option[] = "--help";
  if (argc > 3)
    cli_exit(EXIT_USAGE, "unexpected argument '%s'; reshard help [COMMAND]", argv[3]);
  if (argc < 3) {
    print_help();
    return EXIT_DONE;
  }
  const struct command *of = find_command(argv[2]);
  if (of == NULL)
    refuse_command(argv[2]);
  return of->run(2, (char *[]){argv[2], option, NULL});
}

int main(int argc, char **argv) {
  if (argc < 2)
    cli_exit(EXIT_USAGE,
             "a command is missing: plan, convert, check, bench, trace, verify or info; see reshard --help");
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
    print_help();
    return EXIT_DONE;
  }
  if (strcmp(argv[1], "--version") == 0) {
    printf("reshard %s\n", reshard_version());
    return EXIT_DONE;
  }
  if (strcmp(argv[1], "completion") == 0) { /* for the build alone: --help does not tell */
    print_completion();
    return EXIT_DONE;
  }
  if (strcmp(argv[1], "help") == 0)
    return show_help(argc, argv);
  const struct command *called = find_command(argv[1]);
  if (called == NULL)
    refuse_command(argv[1]);
  int status = called->run(argc - 1, argv + 1);
  if (fflush(stdout) != 0 || ferror(stdout))
    cli_exit(EXIT_FAILED, "standard output cannot be written to");
  return status;
}
