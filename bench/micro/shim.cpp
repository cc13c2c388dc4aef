// Hands the C cases to Google Benchmark.
#include "bench/micro/micro.h"

#include <benchmark/benchmark.h>
#include <reshard/reshard.h>

#include <string>

static void run_case(benchmark::State &state, const micro_case *c, int64_t bytes) {
  int64_t items = 0;
  void *made = c->make(c->parameter, &items);
  if (made == nullptr) {
    state.SkipWithError("the case could not be made");
    return;
  }
  for (auto _ : state) {
    if (c->run(made) != 0) {
      state.SkipWithError("the run failed");
      break;
    }
  }
  state.SetItemsProcessed(items * static_cast<int64_t>(state.iterations()));
  if (bytes > 0)
    state.SetBytesProcessed(bytes * static_cast<int64_t>(state.iterations()));
  c->drop(made);
}

int main(int argc, char **argv) {
  for (const micro_case *table : {micro_plans, micro_metadata, micro_sharded, micro_dtensor, micro_module,
                                  micro_storage, micro_trees, micro_cast, micro_copies, micro_layouts}) {
    for (const micro_case *c = table; c->name != nullptr; c++) {
      std::string name = c->name;
      if (c->parameter != 0)
        name += "/" + std::to_string(c->parameter);
      auto *made =
          benchmark::RegisterBenchmark(name.c_str(), run_case, c, table == micro_copies ? micro_copied_bytes : 0);
      if (table == micro_copies) // by several threads
        made->UseRealTime();
      made->Unit(benchmark::kMicrosecond);
      if (c->iterations > 0)
        made->Iterations(c->iterations);
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("reshard", reshard_version());
#ifdef __OPTIMIZE__
  benchmark::AddCustomContext("reshard_build", "optimized; a note on a DEBUG library means Google's own");
#endif
  benchmark::AddCustomContext("compiler", __VERSION__);
  if (benchmark::ReportUnrecognizedArguments(argc, argv))
    return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
