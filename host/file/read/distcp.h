/* A .distcp directory. */
#ifndef RS_FILE_OPEN_DISTCP_H
#define RS_FILE_OPEN_DISTCP_H

#include "file/read/open.h"

/* Fills store and info from the .metadata of a directory and the .distcp files that it names. */
reshard_status rs_open_distcp(rs_opening *opening, const char *path);

#endif
