/* Suites: the reshards that a field has, for a world of any even number of ranks. */
#include "bench/bench/suite.h"

#include <string.h>

/* In layouts and meshes {N} is the number of ranks, {H} half of it, {P} x {Q} the squarest grid of it. */
typedef struct suite_row {
  const char *suite, *name, *shape, *dtype, *model, *src, *mesh, *dst, *mesh_dst;
} suite_row;

#define DENSE  NULL, NULL, "llama-3.1-8b"
#define SPARSE NULL, NULL, "qwen3-30b-a3b"
static const suite_row suite_rows[] = {
    {"training", "fsdp-to-tp", DENSE, "@fsdp", "fsdp={N}", "@tp", "tp={N}"},
    {"training", "fsdp-to-fsdp-tp", DENSE, "@fsdp", "fsdp={N}", "@fsdp-tp", "fsdp={H},tp=2"},
    {"training", "hsdp-to-fsdp", DENSE, "@hsdp", "replica=2,fsdp={H}", "@fsdp", "fsdp={N}"},
    {"training", "flat-to-fsdp", DENSE, "@flat", NULL, "@fsdp", "fsdp={N}"},
    {"training", "fsdp-to-experts", SPARSE, "@fsdp", "fsdp={N}", "@ep-128", "tp={N}"},
    {"training", "all-gather", "8192x8192", "bf16", NULL, "chunk(0)", NULL, "mesh({N};R)", NULL},
    {"training", "gather", "8192x8192", "bf16", NULL, "chunk(0)", NULL, "rank(0)", NULL},
    {"training", "broadcast", "8192x8192", "bf16", NULL, "rank(0)", NULL, "mesh({N};R)", NULL},
    {"training", "uneven", "8191x8179", "bf16", NULL, "chunk(0)", NULL, "chunk(1)", NULL},
    {"inference", "fsdp-to-tp", DENSE, "@fsdp", "fsdp={N}", "@tp", "tp={N}"},
    {"inference", "tp-to-half", DENSE, "@tp", "tp={N}", "@tp", "tp={H}"},
    {"inference", "tp-to-double", DENSE, "@tp", "tp={H}", "@tp", "tp={N}"},
    {"inference", "experts-to-tp", SPARSE, "@ep-128", "tp={N}", "@tp", "tp={N}"},
    {"inference", "rows-to-columns", "8192x8192", "bf16", NULL, "mesh({N};S0)", NULL, "mesh({N};S1)", NULL},
    {"inference", "all-gather", "8192x8192", "bf16", NULL, "mesh({N};S1)", NULL, "mesh({N};R)", NULL},
    {"inference", "gather", "8192x8192", "bf16", NULL, "mesh({N};S1)", NULL, "rank(0)", NULL},
    {"inference", "broadcast", "8192x8192", "bf16", NULL, "rank(0)", NULL, "mesh({N};R)", NULL},
    {"inference", "uneven", "50257x1601", "f16", NULL, "chunk(0)", NULL, "chunk(1)", NULL},
    {"hpc", "pencil-x-to-y", "512x512x512", "c64", NULL, "mesh({P}x{Q};S1,S2)", NULL, "mesh({P}x{Q};S0,S2)", NULL},
    {"hpc", "pencil-y-to-z", "512x512x512", "c64", NULL, "mesh({P}x{Q};S0,S2)", NULL, "mesh({P}x{Q};S0,S1)", NULL},
    {"hpc", "slab-to-slab", "512x512x512", "c64", NULL, "chunk(0)", NULL, "chunk(1)", NULL},
    {"hpc", "slab-to-pencil", "512x512x512", "c64", NULL, "chunk(0)", NULL, "mesh({P}x{Q};S1,S2)", NULL},
    {"hpc", "cyclic-to-cyclic", "8192x8192", "f64", NULL, "cyclic({P}x{Q};32x32)", NULL, "cyclic({Q}x{P};64x64)", NULL},
    {"hpc", "cyclic-to-rows", "8192x8192", "f64", NULL, "cyclic({P}x{Q};64x64)", NULL, "chunk(0)", NULL},
    {"hpc", "all-gather", "4096x4096", "f64", NULL, "chunk(0)", NULL, "mesh({N};R)", NULL},
    {"hpc", "gather", "8192x8192", "f64", NULL, "cyclic({P}x{Q};32x32)", NULL, "rank(0)", NULL},
    {"hpc", "broadcast", "4096x4096", "f64", NULL, "rank(0)", NULL, "mesh({N};R)", NULL},
    {"hpc", "uneven", "8191x8179", "f64", NULL, "cyclic({P}x{Q};37x53)", NULL, "mesh({Q}x{P};S1,S0)", NULL},
};

/* Writes a template with the numbers of a world in it. */
static void fill_template(const char *from, int64_t ranks, char *out, size_t size) {
  int64_t p = 1;
  for (int64_t i = 1; i * i <= ranks; i++)
    p = ranks % i == 0 ? i : p;
  rs_text text = {.at = out, .size = size};
  out[0] = '\0';
  for (const char *at = from; at != NULL && *at != '\0'; at++)
    if (*at == '{' && at[2] == '}') {
      int64_t number = at[1] == 'N' ? ranks : at[1] == 'H' ? ranks / 2 : at[1] == 'P' ? p : ranks / p;
      rs_text_add(&text, "%lld", (long long)number);
      at += 2;
    } else
      rs_text_add(&text, "%c", *at);
}

bool bench_suite_case(const char *suite, int64_t i, int64_t ranks, bench_case *out) {
  if (ranks % 2 != 0)
    cli_exit(EXIT_USAGE, "--suite %s: %lld ranks: an even number is needed", suite, (long long)ranks);
  for (size_t k = 0; k < sizeof suite_rows / sizeof *suite_rows; k++) {
    const suite_row *r = &suite_rows[k];
    if (strcmp(r->suite, suite) != 0 || i-- > 0)
      continue;
    *out = (bench_case){.name = r->name, .shape = r->shape, .dtype = r->dtype, .model = r->model};
    fill_template(r->src, ranks, out->src, sizeof out->src);
    fill_template(r->dst, ranks, out->dst, sizeof out->dst);
    fill_template(r->mesh, ranks, out->mesh, sizeof out->mesh);
    fill_template(r->mesh_dst, ranks, out->mesh_dst, sizeof out->mesh_dst);
    return true;
  }
  return false;
}
