// The module reshard._core.
#include "core.h"

NB_MODULE(_core, m) {
#ifdef NDEBUG
  nb::set_leak_warnings(false); // a thread that waits at exit keeps its objects
#endif
  m.attr("version") = reshard_version();
  for (auto bind : {bind_layout, bind_plan, bind_comm, bind_transfer, bind_sharded, bind_checkpoint, bind_file})
    bind(m);
}
