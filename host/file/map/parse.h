/* The text of a map, read. */
#ifndef RS_FILE_MAP_PARSE_H
#define RS_FILE_MAP_PARSE_H

#include "file/map/map.h"

/* The lines of a text, appended to an empty map that has its name. */
reshard_status rs_map_read(reshard_map map, const char *text);

#endif
