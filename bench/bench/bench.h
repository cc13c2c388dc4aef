#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

int command_bench(int argc, char **argv); /* as those of commands/commands.h */

#endif
