/* Prints the results of a benchmark: a table in the manner of nccl-tests, or JSON. */
#include "bench/bench/state.h"

#include <string.h>

static const char *path_text(const cli_options *o) {
  return o->path == RESHARD_PATH_AUTO ? "auto" : o->path == RESHARD_PATH_DIRECT ? "direct" : "packed";
}

void bench_print_head(const bench_state *b, const machine *m) {
  const cli_options *o = b->o;
  char limit[CLI_BYTES_TEXT];
  printf("# reshard %s  %s -> %s%s%s\n", reshard_version(), o->src, o->dst, o->mesh != NULL ? ", " : "",
         o->mesh != NULL ? o->mesh : "");
  if (b->s.cuda)
    printf("# %s, %lld GPU%s a process", b->gpu, (long long)b->s.ndevices, b->s.ndevices == 1 ? "" : "s");
  else
    printf("# %s, %d cores, %s, %d copy threads", m->processor, m->cores, m->isa, b->s.threads);
  printf("; %lld rank%s of %lld process%s by %s; path %s, workspace limit %s%s\n", (long long)b->w.world,
         b->w.world == 1 ? "" : "s", (long long)b->s.processes.n, b->s.processes.n == 1 ? "" : "es", b->s.comm,
         path_text(o), cli_limit_text(limit, o->workspace), o->graph ? ", from a graph" : "");
  printf("# %lld iterations after %lld to warm up; time: median; memcpy: straight copy of as many bytes as the "
         "destinations have,\n"
         "# alternating with ours; ratio: its time / ours, median of pairs%s\n#\n",
         (long long)o->iterations, (long long)o->warmup,
         b->s.cuda ? "; times of the device, by events; nothing is found in\n# its "
                     "caches, small buffers are used in turn"
                   : "");
  printf("# %13s %13s %8s %12s %8s %8s %8s %7s %8s\n", "size", "count", "type", "time", "algbw", "busbw", "memcpy",
         "ratio", "#wrong");
  printf("# %13s %13s %8s %12s %8s %8s %8s %7s %8s\n", "(B)", "(elements)", "", "(us)", "(GB/s)", "(GB/s)", "(GB/s)",
         "", "");
}

/* True where the communicator has collectives. */
static bool has_collectives(const bench_state *b) { return strcmp(b->s.comm, "nccl") == 0; }

void bench_print_row(const bench_state *b) {
  const bench_row *r = &b->row;
  char wrong[24] = "N/A";
  if (b->o->check)
    snprintf(wrong, sizeof wrong, "%lld", (long long)r->wrong);
  printf("  %13lld %13lld %8s %12.2f %8.2f %8.2f %8.2f %7.3f %8s\n", (long long)r->bytes, (long long)r->elements,
         r->dtype, r->time_us, r->algbw, r->busbw, r->memcpy_gbps, r->ratio, wrong);
  if (has_collectives(b))
    printf("#   %s%s\n", strcmp(r->collective, "none") == 0 ? "no collective: " : "", r->why);
  fflush(stdout);
}

void bench_json_row(rs_json *j, const bench_state *b) {
  const bench_row *r = &b->row;
  rs_json_line(j, 2);
  rs_json_open(j, NULL, '{');
  rs_json_int(j, "bytes", r->bytes);
  rs_json_string(j, "shape", r->shape);
  rs_json_string(j, "dtype", r->dtype);
  rs_json_real(j, "time_us", r->time_us);
  rs_json_real(j, "algbw", r->algbw);
  rs_json_real(j, "busbw", r->busbw);
  rs_json_real(j, "memcpy_gbps", r->memcpy_gbps);
  rs_json_real(j, "ratio", r->ratio);
  if (b->s.cuda) {
    rs_json_real(j, "loop_us", r->loop_us);
    rs_json_real(j, "host_us", r->host_us);
    if (r->group_us > 0)
      rs_json_real(j, "group_us", r->group_us);
    if (r->blocking_group_us > 0)
      rs_json_real(j, "blocking_group_us", r->blocking_group_us);
    rs_json_bool(j, "host_bound", r->host_bound);
    rs_json_int(j, "sets", r->sets);
  }
  if (b->o->check)
    rs_json_int(j, "wrong", r->wrong);
  else
    rs_json_null(j, "wrong");
  rs_json_string(j, "path", r->path);
  rs_json_ints(j, {"workspace_limit", r->limit}, {"workspace_bytes", r->workspace}, {"rounds", r->rounds},
               {"least_rounds", r->least_rounds});
  if (has_collectives(b))
    rs_json_string(j, "collective", r->collective);
  rs_json_close(j, '}');
}

void bench_json_head(rs_json *j, const bench_state *b, const machine *m) {
  const cli_options *o = b->o;
  rs_json_open(j, NULL, '{');
  rs_json_int(j, "version", 1);
  rs_json_string(j, "reshard", reshard_version());
  machine_json(j, "machine", m);
  rs_json_open(j, "options", '{');
  if (o->model != NULL)
    rs_json_string(j, "model", o->model);
  else
    rs_json_string(j, "shape", o->shape);
  if (o->permutation != NULL)
    rs_json_string(j, "permutation", o->permutation);
  rs_json_string(j, "src", o->src);
  rs_json_string(j, "dst", o->dst);
  if (o->mesh != NULL)
    rs_json_string(j, "mesh", o->mesh);
  rs_json_int(j, "ranks", b->w.world);
  rs_json_string(j, "device", b->s.cuda ? "cuda" : "cpu");
  if (b->s.cuda) {
    rs_json_string(j, "gpu", b->gpu);
    rs_json_int(j, "gpus", b->s.ndevices);
    rs_json_bool(j, "graph", o->graph);
  }
  rs_json_string(j, "comm", b->s.comm);
  rs_json_int(j, "processes", b->s.processes.n);
  rs_json_string(j, "path", path_text(o));
  rs_json_ints(j, {"workspace_bytes", o->workspace}, {"threads", b->s.threads}, {"iterations", o->iterations},
               {"warmup", o->warmup});
  rs_json_bool(j, "check", o->check);
  rs_json_close(j, '}');
  rs_json_open(j, "rows", '[');
}
