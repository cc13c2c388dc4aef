#ifndef BENCH_VERIFY_H
#define BENCH_VERIFY_H

int command_verify(int argc, char **argv); /* as those of commands/commands.h */

#endif
