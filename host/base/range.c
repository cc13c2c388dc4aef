#include "base/range.h"

_Atomic(const rs_range_tool *) rs_ranges;
