// Hands the C cases to Google Benchmark.
#include "bench/micro/micro.h"

#include <benchmark/benchmark.h>
#include <reshard/reshard.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <malloc.h>
#include <memory>
#include <streambuf>
#include <string>
#include <unistd.h>

namespace {

micro_table *tables; // of all files
bool failed;         // a case

void fail(benchmark::State &state, const char *why) {
  state.SkipWithError(why);
  failed = true;
}

// Ends the program where the case takes longer than RESHARD_MICRO_SECONDS: its signal reaches one that waits for a
// kernel, too.
void limit_case() {
  if (const char *seconds = std::getenv("RESHARD_MICRO_SECONDS"))
    alarm(static_cast<unsigned>(std::atoi(seconds)));
}

void run_case(benchmark::State &state, const micro_case *c, const micro_table *table) {
  int64_t items = 0;
  limit_case();
  void *made = c->make(c, &items);
  if (made == nullptr) {
    fail(state, "the case could not be made");
    return;
  }
  if (c->iterations > 0 && table->seconds == nullptr && c->run(made) != 0) { // untimed: it meets new memory
    fail(state, "the run failed");
    c->drop(made);
    return;
  }
  for (auto _ : state) {
    if (c->run(made) != 0) {
      fail(state, "the run failed");
      break;
    }
    if (table->seconds != nullptr)
      state.SetIterationTime(table->seconds(made));
  }
  if (items > 0)
    state.SetItemsProcessed(items * static_cast<int64_t>(state.iterations()));
  if (table->bytes != nullptr)
    state.SetBytesProcessed(table->bytes(made) * static_cast<int64_t>(state.iterations()));
  if (table->note != nullptr)
    state.SetLabel(table->note(made));
  c->drop(made);
}

// Lets the heap keep all memory. Else it gives back what a run frees beyond some size, and new pages, which the system
// clears, are a cost of large runs alone.
void keep_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
#endif
}

void register_cases() {
  for (const micro_table *table = tables; table != nullptr; table = table->next) {
    if (table->here != nullptr && table->here() == 0)
      continue;
    for (const micro_case *c = table->cases; c < table->cases + table->ncases; c++) {
      std::string name = c->name;
      if (c->parameter != 0)
        name += "/" + std::to_string(c->parameter);
      auto *made = benchmark::RegisterBenchmark(name.c_str(), run_case, c, table);
      if (table->seconds != nullptr)
        made->UseManualTime();
      else if (table->bytes != nullptr)
        made->UseRealTime();
      made->Unit(benchmark::kMicrosecond);
      if (c->iterations > 0)
        made->Iterations(c->iterations);
    }
  }
}

// Passes lines on to standard error. In the place of the note that the library is a debug build it says what that is:
// Debian's is compiled with optimisation, but with assertions.
class context_lines : public std::streambuf {
public:
  ~context_lines() override { std::cerr << line; }

protected:
  int overflow(int letter) override {
    if (letter == traits_type::eof())
      return 0;
    line += static_cast<char>(letter);
    if (letter != '\n')
      return letter;
    if (line.find("Library was built as DEBUG") != std::string::npos)
      line = "Google Benchmark " MICRO_LIBRARY " has assertions, but not in the timed loop.\n";
    std::cerr << line;
    line.clear();
    return letter;
  }

private:
  std::string line;
};

// The commit of the source tree; "-dirty" where it has changes.
std::string commit() {
  char text[64] = "";
  if (const char *given = std::getenv("RESHARD_COMMIT"))
    return given;
  FILE *git = popen("git -C '" MICRO_SOURCE "' describe --always --dirty --exclude '*' 2>/dev/null", "r");
  if (git == nullptr)
    return "unknown";
  std::string said = std::fgets(text, sizeof text, git) != nullptr ? text : "unknown";
  pclose(git);
  return said.substr(0, said.find('\n'));
}

} // namespace

void micro_add(micro_table *table) {
  micro_table **last = &tables;
  while (*last != nullptr)
    last = &(*last)->next;
  *last = table;
}

int micro_main(int argc, char **argv) {
  keep_memory();
  register_cases();
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("reshard", reshard_version());
  benchmark::AddCustomContext("commit", commit());
#ifdef __OPTIMIZE__
  benchmark::AddCustomContext("build", "optimized");
#else
  benchmark::AddCustomContext("build", "not optimized");
#endif
#ifdef __clang__
  benchmark::AddCustomContext("compiler", __VERSION__);
#else
  benchmark::AddCustomContext("compiler", "gcc " __VERSION__);
#endif
  benchmark::AddCustomContext("isa", micro_isa());
  benchmark::AddCustomContext("library", "Google Benchmark " MICRO_LIBRARY);
  if (benchmark::ReportUnrecognizedArguments(argc, argv))
    return 2;
  context_lines lines;
  std::ostream errors(&lines);
  std::unique_ptr<benchmark::BenchmarkReporter> reporter(benchmark::CreateDefaultDisplayReporter());
  reporter->SetOutputStream(&std::cout);
  reporter->SetErrorStream(&errors);
  benchmark::RunSpecifiedBenchmarks(reporter.get());
  reporter->SetErrorStream(&std::cerr);
  return failed ? 1 : 0;
}
