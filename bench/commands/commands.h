/* Commands. Each gets argv from its own name on and returns the exit status. */
#ifndef BENCH_COMMANDS_H
#define BENCH_COMMANDS_H

int command_convert(int argc, char **argv);
int command_check(int argc, char **argv);
int command_info(int argc, char **argv);
int command_trace(int argc, char **argv);

#endif
