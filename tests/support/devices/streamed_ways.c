#include "streamed.h"

#define ROWS \
  { \
    0, { 0, 0 } \
  }
#define COLUMNS \
  { \
    1, { 0, 0 } \
  }
#define BLOCKS \
  { \
    -1, { \
      3, 5 \
    } \
  }
#define OTHERS \
  { \
    -1, { \
      7, 2 \
    } \
  }

/* Rows to columns are received in place, columns to rows are sent in place; blocks are staged. */
const streamed_way streamed_ways[] = {
    {"one rank", RESHARD_PATH_DIRECT, STREAMED_THREADS, 1, 1, ROWS, COLUMNS, 0, 0, 0},
    {"direct", RESHARD_PATH_DIRECT, STREAMED_ALL, 1, 4, ROWS, COLUMNS, 0, 0, 0},
    {"direct, threads", RESHARD_PATH_DIRECT, STREAMED_THREADS, 1, 4, ROWS, COLUMNS, 0, 0, 16},
    {"direct, 2 devices", RESHARD_PATH_DIRECT, STREAMED_ALL, 2, 4, ROWS, COLUMNS, 0, 0, 4},
    {"direct, threads, 2 devices", RESHARD_PATH_DIRECT, STREAMED_THREADS, 2, 4, ROWS, COLUMNS, 0, 0, 20},
    {"once", RESHARD_PATH_DIRECT, STREAMED_ONCE, 1, 4, ROWS, COLUMNS, 0, 0, -1},
    {"once, one rank", RESHARD_PATH_DIRECT, STREAMED_ONCE, 1, 1, ROWS, COLUMNS, 0, 0, -1},
    {"packed, one rank", RESHARD_PATH_PACKED, STREAMED_THREADS, 1, 1, ROWS, COLUMNS, 0, 0, 0},
    {"packed", RESHARD_PATH_PACKED, STREAMED_ALL, 1, 4, OTHERS, BLOCKS, 0, 0, 4},
    {"packed, threads", RESHARD_PATH_PACKED, STREAMED_THREADS, 1, 3, ROWS, COLUMNS, 0, 0, 16},
    {"packed, 2 devices", RESHARD_PATH_PACKED, STREAMED_ALL, 2, 4, OTHERS, BLOCKS, 0, 0, -1},
    {"rounds", RESHARD_PATH_PACKED, STREAMED_ALL, 1, 3, OTHERS, BLOCKS, 1024, 1, -1},
    {"rounds, threads", RESHARD_PATH_PACKED, STREAMED_THREADS, 1, 3, OTHERS, BLOCKS, 1024, 1, -1},
    {"rounds, sent in place", RESHARD_PATH_PACKED, STREAMED_ALL, 1, 3, COLUMNS, ROWS, 1024, 1, -1},
    {"rounds, received in place", RESHARD_PATH_PACKED, STREAMED_ALL, 1, 3, ROWS, COLUMNS, 1024, 1, -1},
    {"rounds, 2 devices", RESHARD_PATH_PACKED, STREAMED_ALL, 2, 4, OTHERS, BLOCKS, 1024, 1, -1},
    {"rounds, 3 devices", RESHARD_PATH_PACKED, STREAMED_ALL, 3, 3, OTHERS, BLOCKS, 2048, 2, -1},
    {"rounds, threads, 2 devices", RESHARD_PATH_PACKED, STREAMED_THREADS, 2, 4, OTHERS, BLOCKS, 1024, 1, -1},
};
const int streamed_nways = sizeof streamed_ways / sizeof *streamed_ways;

bool streamed_run_way(streamed *s, const streamed_way *way, cli_text *why, reshard_status *status) {
  case_plan c;
  streamed_make(way->ranks, way->src, way->dst, way->limit, way->window, &c);
  s->ndevices = way->devices;
  s->path = way->path;
  s->drive = way->drive;
  bool right = streamed_case(s, &c, why, status);
  case_free(&c);
  return right;
}
