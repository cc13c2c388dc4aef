/* Prints the results of a benchmark: a table in the manner of nccl-tests, JSON and CSV. */
#include "bench/bench/report.h"
#include "bench/bench/time.h"

#include <math.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

/* "; from a graph of 20 executes", and the like. */
static void print_ways(const bench_state *b) {
  static const char *const averages[] = {"rank 0's", "mean of ranks", "shortest of ranks"};
  const cli_options *o = b->o;
  if (o->average != BENCH_LONGEST)
    printf("; %s", averages[o->average]);
  if (o->graph || b->each > 1)
    printf("; %s of %lld execute%s", o->graph ? "from a graph" : "a time", (long long)b->each, cli_plural(b->each));
  if (o->blocking)
    printf("; the host waits for each");
  if (o->host_time)
    printf("; times of the host alone");
  if (o->shift > 0)
    printf("; buffers %lld element%s behind an aligned address", (long long)o->shift, cli_plural(o->shift));
}

void bench_print_head(const bench_state *b, const machine *m) {
  const cli_options *o = b->o;
  char limit[CLI_BYTES_TEXT];
  bool by_host = !b->s.cuda || o->blocking || o->host_time, converts = false;
  for (int64_t i = 0; i < b->w.n; i++)
    converts = converts || b->w.tensor[i].dst_dtype != b->w.tensor[i].dtype;
  if (o->suite != NULL)
    printf("# reshard %s  suite %s", reshard_version(), o->suite);
  else
    printf("# reshard %s  %s -> %s%s%s", reshard_version(), o->src, o->dst, o->mesh != NULL ? ", " : "",
           o->mesh != NULL ? o->mesh : "");
  if (b->squares)
    printf(", 2^ceil(k/2) x 2^floor(k/2) elements, k = floor(log2(size / width))");
  if (o->scale > 0)
    printf(", dim 0 times %g", o->scale);
  if (b->s.cuda)
    printf("\n# %s, %lld GPU%s a process", b->gpu, (long long)b->s.ndevices, b->s.ndevices == 1 ? "" : "s");
  if (b->s.cuda && o->shared)
    printf(", shared storage");
  if (o->max_blocks > 0)
    printf(", %lld blocks a launch at most", (long long)o->max_blocks);
  if (!b->s.cuda)
    printf("\n# %s, %d cores, %s, %d copy threads", m->processor, m->cores, m->isa, b->s.threads);
  printf("; %lld rank%s of %lld process%s by %s; path %s, workspace limit %s", (long long)b->s.world,
         b->s.world == 1 ? "" : "s", (long long)b->s.processes.n, b->s.processes.n == 1 ? "" : "es", b->s.comm,
         reshard_path_string(o->path), cli_limit_text(limit, o->workspace));
  print_ways(b);
  printf("\n# %lld iteration%s after %lld to warm up; time: median; memcpy: straight copy of %s,\n"
         "# alternating with ours, median where it has 3/4 of its best speed; ratio: its time / ours, median of these "
         "pairs%s\n"
         "# dst bytes: what all destinations have; memcpy is a rate of %s, algbw of size\n"
         "# in-place: N/A, since source and destination must not overlap\n#\n",
         (long long)o->iterations, cli_plural(o->iterations), (long long)o->warmup,
         converts ? "half of what a conversion reads and writes" : "as many bytes as the destinations have",
         by_host ? ""
                 : "; times of the device, by events; nothing is found in\n# its caches, small buffers are used "
                   "in turn",
         converts ? "what it copies" : "these");
  printf("# %13s %13s %8s %12s %8s %8s %8s %7s %8s %13s %9s\n", "size", "count", "type", "time", "algbw", "busbw",
         "memcpy", "ratio", "#wrong", "dst bytes", "in-place");
  printf("# %13s %13s %8s %12s %8s %8s %8s %7s %8s %13s %9s\n", "(B)", "(elements)", "", "(us)", "(GB/s)", "(GB/s)",
         "(GB/s)", "", "", "(B)", "");
}

/* True where the communicator has collectives. */
static bool has_collectives(const bench_state *b) { return strcmp(b->s.comm, "nccl") == 0; }

static void print_memory(const bench_state *b) {
  char source[CLI_BYTES_TEXT], target[CLI_BYTES_TEXT], staging[CLI_BYTES_TEXT];
  double sets = (double)b->row.sets;
  printf("#   memory: source %s, destination %s of all ranks; workspace %s of the largest rank\n",
         cli_bytes_text(source, sets * (double)b->row.source_bytes),
         cli_bytes_text(target, sets * (double)b->row.destination_bytes),
         cli_bytes_text(staging, sets * (double)b->row.workspace));
}

void bench_print_row(const bench_state *b) {
  const bench_row *r = &b->row;
  char wrong[24] = "N/A", stamp[32] = "";
  time_t now = time(NULL);
  struct tm day;
  if (r->name != NULL)
    printf("# %s: %s, %s -> %s\n", r->name, r->shape, r->src, r->dst);
  if (b->skipped) {
    printf("#   skipped: %s\n", b->why_skipped);
    return;
  }
  if (b->o->check)
    snprintf(wrong, sizeof wrong, "%lld", (long long)r->wrong);
  if (b->o->stamps && localtime_r(&now, &day) != NULL)
    (void)strftime(stamp, sizeof stamp, "  %Y-%m-%d %H:%M:%S", &day);
  printf("  %13lld %13lld %8s %12.2f %8.2f %8.2f %8.2f %7.3f %8s %13lld %9s%s\n", (long long)r->bytes,
         (long long)r->elements, r->dtype, r->time_us, r->algbw, r->busbw, r->memcpy_gbps, r->ratio, wrong,
         (long long)r->destination_bytes, "N/A", stamp);
  if (has_collectives(b))
    printf("#   %s%s\n", strcmp(r->collective, "none") == 0 ? "no collective: " : "", r->why);
  if (b->o->memory)
    print_memory(b);
  fflush(stdout);
}

/* --- Fields of JSON and CSV --------------------------------------------------------------------------------------- */

typedef enum field_kind { INTEGER, REAL, WORDS, TRUTH } field_kind;

/* A skipped row has the first kind alone. */
typedef enum field_of_row { KNOWN, MEASURED, GPU } field_of_row;

typedef struct row_field {
  const char *name;
  field_kind kind;
  size_t at;
  field_of_row when;
} row_field;

#define AT(field) offsetof(bench_row, field)
static const row_field row_fields[] = {
    {"case", WORDS, AT(name), KNOWN},
    {"src", WORDS, AT(src), KNOWN},
    {"dst", WORDS, AT(dst), KNOWN},
    {"cycle", INTEGER, AT(cycle), KNOWN},
    {"bytes", INTEGER, AT(bytes), KNOWN},
    {"shape", WORDS, AT(shape), KNOWN},
    {"dtype", WORDS, AT(dtype), KNOWN},
    {"dst_dtype", WORDS, AT(dst_dtype), KNOWN},
    {"time_us", REAL, AT(time_us), MEASURED},
    {"algbw", REAL, AT(algbw), MEASURED},
    {"busbw", REAL, AT(busbw), MEASURED},
    {"memcpy_gbps", REAL, AT(memcpy_gbps), MEASURED},
    {"ratio", REAL, AT(ratio), MEASURED},
    {"loop_us", REAL, AT(loop_us), GPU},
    {"host_us", REAL, AT(host_us), GPU},
    {"group_us", REAL, AT(group_us), GPU},
    {"blocking_group_us", REAL, AT(blocking_group_us), GPU},
    {"blocking_host_us", REAL, AT(blocking_host_us), GPU},
    {"group_graph_us", REAL, AT(group_graph_us), GPU},
    {"blocking_group_graph_us", REAL, AT(blocking_graph_us), GPU},
    {"host_bound", TRUTH, AT(host_bound), GPU},
    {"sets", INTEGER, AT(sets), GPU},
    {"wrong", INTEGER, AT(wrong), MEASURED},
    {"path", WORDS, AT(path), MEASURED},
    {"collective", WORDS, AT(collective), MEASURED},
    {"min_us", REAL, AT(min_us), MEASURED},
    {"p50_us", REAL, AT(p50_us), MEASURED},
    {"p95_us", REAL, AT(p95_us), MEASURED},
    {"p99_us", REAL, AT(p99_us), MEASURED},
    {"max_us", REAL, AT(max_us), MEASURED},
    {"first_us", REAL, AT(first_us), MEASURED},
    {"plan_us", REAL, AT(plan_us), MEASURED},
    {"create_us", REAL, AT(create_us), MEASURED},
    {"bind_us", REAL, AT(bind_us), MEASURED},
    {"pack_us", REAL, AT(phase_us[BENCH_PACK]), MEASURED},
    {"exchange_us", REAL, AT(phase_us[BENCH_EXCHANGE]), MEASURED},
    {"unpack_us", REAL, AT(phase_us[BENCH_UNPACK]), MEASURED},
    {"copy_us", REAL, AT(phase_us[BENCH_COPY]), MEASURED},
    {"self_copy_us", REAL, AT(phase_us[BENCH_SELF_COPY]), MEASURED},
    {"wire_bytes", INTEGER, AT(wire_bytes), MEASURED},
    {"between_bytes", INTEGER, AT(between_bytes), MEASURED},
    {"within_bytes", INTEGER, AT(within_bytes), MEASURED},
    {"leaving_bytes", INTEGER, AT(leaving_bytes), MEASURED},
    {"lower_bound_bytes", INTEGER, AT(bound_bytes), MEASURED},
    {"busiest_bytes", INTEGER, AT(busiest_bytes), MEASURED},
    {"busiest_bound_bytes", INTEGER, AT(busiest_bound), MEASURED},
    {"source_bytes", INTEGER, AT(source_bytes), KNOWN},
    {"destination_bytes", INTEGER, AT(destination_bytes), KNOWN},
    {"workspace_bytes", INTEGER, AT(workspace), MEASURED},
    {"workspace_limit", INTEGER, AT(limit), MEASURED},
    {"rounds", INTEGER, AT(rounds), MEASURED},
    {"least_rounds", INTEGER, AT(least_rounds), MEASURED},
    {"messages", INTEGER, AT(messages), MEASURED},
    {"model", WORDS, AT(model), KNOWN},
    {"mesh", WORDS, AT(mesh), KNOWN},
    {"mesh_dst", WORDS, AT(mesh_dst), KNOWN},
};
#define FIELDS (sizeof row_fields / sizeof *row_fields)

static const void *field_of(const bench_state *b, const row_field *f) { return (const char *)&b->row + f->at; }

static const char *words_of(const bench_state *b, const row_field *f) {
  return f->at == AT(shape) ? b->row.shape : *(const char *const *)field_of(b, f);
}

static bool has_field(const bench_state *b, const row_field *f) {
  if ((b->skipped && f->when != KNOWN) || (f->when == GPU && !b->s.cuda))
    return false;
  if (f->at == AT(collective))
    return has_collectives(b);
  if (f->at == AT(between_bytes) || f->at == AT(within_bytes) || f->at == AT(leaving_bytes))
    return b->o->topology != NULL;
  if (f->at == AT(cycle))
    return b->o->cycles != 1;
  if (f->kind == WORDS)
    return words_of(b, f) != NULL;
  return f->kind != REAL || !isnan(*(const double *)field_of(b, f));
}

void bench_json_row(rs_json *j, const bench_state *b) {
  rs_json_line(j, 2);
  rs_json_open(j, NULL, '{');
  for (size_t i = 0; i < FIELDS; i++) {
    const row_field *f = &row_fields[i];
    if (!has_field(b, f))
      continue;
    switch (f->kind) {
    case INTEGER:
      if (f->at == AT(wrong) && !b->o->check)
        rs_json_null(j, f->name);
      else
        rs_json_int(j, f->name, *(const int64_t *)field_of(b, f));
      break;
    case REAL: rs_json_real(j, f->name, *(const double *)field_of(b, f)); break;
    case WORDS: rs_json_string(j, f->name, words_of(b, f)); break;
    case TRUTH: rs_json_bool(j, f->name, *(const bool *)field_of(b, f)); break;
    }
  }
  if (b->skipped)
    rs_json_string(j, "skipped", b->why_skipped);
  rs_json_close(j, '}');
}

void bench_csv_head(rs_text *out) {
  for (size_t i = 0; i < FIELDS; i++)
    cli_add(out, "%s,", row_fields[i].name);
  cli_add(out, "skipped\n");
}

/* In quotes, which a text itself has twice: layouts have commas. */
static void add_quoted(rs_text *out, const char *text) {
  cli_add(out, "\"");
  for (; *text != '\0'; text++)
    cli_add(out, *text == '"' ? "\"\"" : "%c", *text);
  cli_add(out, "\"");
}

void bench_csv_row(rs_text *out, const bench_state *b) {
  for (size_t i = 0; i < FIELDS; i++) {
    const row_field *f = &row_fields[i];
    if (has_field(b, f) && (f->at != AT(wrong) || b->o->check))
      switch (f->kind) {
      case INTEGER: cli_add(out, "%lld", (long long)*(const int64_t *)field_of(b, f)); break;
      case REAL: cli_add(out, "%.6g", *(const double *)field_of(b, f)); break;
      case WORDS: add_quoted(out, words_of(b, f)); break;
      case TRUTH: cli_add(out, *(const bool *)field_of(b, f) ? "true" : "false"); break;
      }
    cli_add(out, ",");
  }
  if (b->skipped)
    add_quoted(out, b->why_skipped);
  cli_add(out, "\n");
}

void bench_json_head(rs_json *j, const bench_state *b, const machine *m) {
  const cli_options *o = b->o;
  rs_json_open(j, NULL, '{');
  rs_json_int(j, "version", 1);
  rs_json_string(j, "reshard", reshard_version());
  machine_json(j, "machine", m);
  rs_json_open(j, "options", '{');
  if (o->suite != NULL)
    rs_json_string(j, "suite", o->suite);
  else if (o->model != NULL)
    rs_json_string(j, "model", o->model);
  else if (b->squares)
    rs_json_null(j, "shape"); /* each row has its own */
  else
    rs_json_string(j, "shape", o->shape);
  if (o->permutation != NULL)
    rs_json_string(j, "permutation", o->permutation);
  if (o->suite == NULL) {
    rs_json_string(j, "src", o->src);
    rs_json_string(j, "dst", o->dst);
  }
  if (o->mesh != NULL && o->suite == NULL)
    rs_json_string(j, "mesh", o->mesh);
  if (o->scale > 0)
    rs_json_real(j, "scale", o->scale);
  rs_json_int(j, "ranks", b->s.world);
  rs_json_string(j, "device", b->s.cuda ? "cuda" : "cpu");
  if (b->s.cuda) {
    rs_json_string(j, "gpu", b->gpu);
    rs_json_int(j, "gpus", b->s.ndevices);
    rs_json_int(j, "max_blocks", o->max_blocks);
    rs_json_bool(j, "shared", o->shared);
    rs_json_bool(j, "graph", o->graph);
    rs_json_bool(j, "blocking", o->blocking != 0);
    rs_json_bool(j, "host_time", o->host_time != 0);
  }
  rs_json_string(j, "comm", b->s.comm);
  rs_json_int(j, "processes", b->s.processes.n);
  rs_json_string(j, "path", reshard_path_string(o->path));
  if (o->topology != NULL)
    rs_json_string(j, "topology", o->topology);
  rs_json_ints(j, {"workspace_bytes", o->workspace}, {"threads", b->s.threads}, {"iterations", o->iterations},
               {"warmup", o->warmup}, {"samples", b->samples}, {"executes_per_sample", b->each},
               {"average", o->average}, {"unalign", o->shift});
  rs_json_bool(j, "check", o->check != 0);
  rs_json_close(j, '}');
  rs_json_open(j, "rows", '[');
}
