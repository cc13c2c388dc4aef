/* A directory of safetensors files. */
#ifndef RS_FILE_DIRECTORY_H
#define RS_FILE_DIRECTORY_H

#include "file/read/open.h"

/* Opens and reads the files of a directory; *distcp: it has none of safetensors but .metadata. */
reshard_status rs_open_directory(rs_opening *opening, const char *path, bool *distcp);
/* Reads the headers of the files that are open. */
reshard_status rs_open_headers(rs_opening *opening);

#endif
