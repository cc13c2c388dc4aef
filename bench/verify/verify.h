#ifndef BENCH_VERIFY_H
#define BENCH_VERIFY_H

int command_verify(int argc, char **argv); /* as those of cli/commands.h */

#endif
