/* The program reshard_micro. */
#include "bench/micro/micro.h"

int main(int argc, char **argv) { return micro_main(argc, argv); }
