#include "base/base.h"

#include <reshard_build.h> /* of the build folder: cmake/build_text.cmake */

const char *rs_build(void) { return RS_BUILD; }
