#include "base/json.h"
#include "plan/hops.h"
#include "plan/place.h"
#include "plan/scaled.h"
#include "plan/topology.h"

#include <stdlib.h>
#include <string.h>

static bool converts(const rs_class *c) { return c->scaling != NULL || c->from.dtype != c->to.dtype; }

/* Orders classes by what they convert, and how that travels. */
static int compare_conversions(const rs_class *a, const rs_class *b) {
  int by_scales = rs_scaling_compare(a->scaling, b->scaling);
  int from = (int)a->from.dtype - (int)b->from.dtype;
  return by_scales != 0 ? by_scales : from != 0 ? from : (int)a->to.dtype - (int)b->to.dtype;
}

static int by_conversion(const void *a, const void *b) {
  return compare_conversions(((const rs_conversion *)a)->class_, ((const rs_conversion *)b)->class_);
}

reshard_status rs_plan_conversions(const struct reshard_plan_s *plan, rs_conversion **list, int64_t *n) {
  int64_t most = plan->nentries, found = 0;
  rs_conversion *all = NULL;
  RS_TRY(rs_alloc(&all, most, sizeof *all));
  *n = 0;
  for (int64_t i = 0; i < most; i++) { /* those behind the given ones are parts of these */
    const rs_class *c = &plan->classes.at[plan->entries[i].class_];
    int64_t bytes = rs_space_elements(&c->space) * c->wire.width;
    if (converts(c))
      all[found++] = (rs_conversion){c, i < plan->ngiven, bytes};
  }
  if (found > 0)
    qsort(all, (size_t)found, sizeof *all, by_conversion);
  for (int64_t i = 0; i < found; i++)
    if (*n > 0 && compare_conversions(all[*n - 1].class_, all[i].class_) == 0) {
      all[*n - 1].entries += all[i].entries;
      all[*n - 1].bytes += all[i].bytes;
    } else
      all[(*n)++] = all[i];
  *list = all;
  return RESHARD_SUCCESS;
}

const char *rs_conversion_place(const rs_conversion *conversion) {
  const rs_class *c = conversion->class_;
  bool pack = rs_class_in_blocks(c) ? !c->scaling->source : rs_format_equal(c->wire, c->to);
  return pack ? "pack" : "unpack";
}

void rs_conversion_dtypes(const rs_conversion *conversion, char text[3][RS_CONVERSION_TEXT]) {
  const rs_class *c = conversion->class_;
  bool blocks = rs_class_in_blocks(c);
  rs_class_dtype_text(text[0], RS_CONVERSION_TEXT, c, true, c->from.dtype);
  rs_class_dtype_text(text[1], RS_CONVERSION_TEXT, c, false, c->to.dtype);
  rs_class_dtype_text(text[2], RS_CONVERSION_TEXT, c, blocks && c->scaling->source, c->wire.dtype);
}

void rs_conversions_json(const rs_conversion *list, int64_t n, rs_json *j) {
  if (n == 0)
    return;
  rs_json_open(j, "conversions", '[');
  for (int64_t i = 0; i < n; i++) {
    char dtypes[3][RS_CONVERSION_TEXT];
    rs_conversion_dtypes(&list[i], dtypes);
    rs_json_open(j, NULL, '{');
    rs_json_string(j, "from", dtypes[0]);
    rs_json_string(j, "to", dtypes[1]);
    rs_json_string(j, "wire", dtypes[2]);
    rs_json_string(j, "converted", rs_conversion_place(&list[i]));
    rs_json_int(j, "tensors", list[i].entries);
    rs_json_close(j, '}');
  }
  rs_json_close(j, ']');
}

static void explain_json(const struct reshard_plan_s *plan, const rs_conversion *list, int64_t nlist, rs_json *j) {
  const reshard_plan_info *i = &plan->info;
  rs_json_open(j, NULL, '{');
  rs_json_ints(j, {"rank", i->rank}, {"sent_bytes", i->sent_bytes}, {"received_bytes", i->received_bytes},
               {"self_copy_bytes", i->self_copy_bytes}, {"messages", i->messages_sent}, {"rounds", i->rounds},
               {"least_rounds", i->least_rounds}, {"staged_bytes", i->staged_bytes},
               {"workspace_bytes", i->workspace_bytes}, {"workspace_limit", i->workspace_limit},
               {"packs_skipped", i->packs_skipped}, {"unpacks_skipped", i->unpacks_skipped});
  rs_json_time(j, "plan_us", (double)i->plan_ns / 1000);
  if (i->chains > 0)
    rs_json_ints(j, {"chains", i->chains}, {"hops", i->hops}, {"streams", i->streams},
                 {"later_rounds", i->later_rounds});
  rs_json_open(j, "peers", '[');
  const rs_peer *peers;
  for (int64_t p = 0, n = rs_plan_partners(plan, &peers); p < n; p++) {
    rs_json_open(j, NULL, '{');
    rs_json_ints(j, {"rank", peers[p].rank}, {"sent_bytes", peers[p].sent}, {"received_bytes", peers[p].received});
    rs_json_close(j, '}');
  }
  rs_json_close(j, ']');
  rs_conversions_json(list, nlist, j);
  rs_json_close(j, '}');
}

/* "1 peer", "2 peers". */
static void add_count(rs_text *t, int64_t n, const char *what) {
  rs_text_add(t, "%lld %s%s", (long long)n, what, n == 1 ? "" : "s");
}

static int64_t count_peers(const struct reshard_plan_s *plan, bool sending) {
  const rs_peer *peers;
  int64_t count = 0;
  for (int64_t p = 0, n = rs_plan_partners(plan, &peers); p < n; p++)
    count += (sending ? peers[p].sent : peers[p].received) > 0;
  return count;
}

/* Work on a message with contiguous arrays: "-" where there is none. */
static const char *work_of(const struct reshard_plan_s *plan, const rs_peer *peer, bool sending) {
  rs_place place;
  if ((sending ? peer->sent : peer->received) == 0)
    return "-";
  if (plan->hops == NULL && rs_message_in_place(plan, peer, sending, NULL, &place))
    return "in place";
  return sending ? "packed" : "unpacked";
}

enum { NAMES = 4 };

/* The first names that were given, on a line of their own; control characters as '?'. */
static void add_names(const struct reshard_plan_s *plan, rs_text *t) {
  int64_t named = 0;
  for (int64_t i = 0; i < plan->ngiven; i++) {
    const char *name = plan->entries[i].name;
    if (strcmp(name, "tensor") == 0 || ++named > NAMES)
      continue;
    rs_text_add(t, named == 1 ? "  named     '" : ", '");
    for (; *name != '\0'; name++)
      rs_text_add(t, "%c", (unsigned char)*name < ' ' || *name == 0x7f ? '?' : *name);
    rs_text_add(t, "'");
  }
  if (named > NAMES)
    rs_text_add(t, ", and %lld more", (long long)named - NAMES);
  if (named > 0)
    rs_text_add(t, "\n");
}

static void add_conversion(const rs_conversion *c, rs_text *t) {
  bool blocks = rs_class_in_blocks(c->class_);
  char dtypes[3][RS_CONVERSION_TEXT];
  rs_conversion_dtypes(c, dtypes);
  rs_text_add(t, "  converts  ");
  add_count(t, c->entries, "tensor");
  rs_text_add(t, " from %s to %s; %s%s, converted in the %s; direct copies read %s\n", dtypes[0], dtypes[1],
              blocks ? "values and scales travel" : dtypes[2], blocks ? "" : " travels", rs_conversion_place(c),
              dtypes[0]);
}

/* Lines on streams that are passed on, on tensors that are not, and why. */
static void add_hops(const struct reshard_plan_s *plan, rs_text *t) {
  const reshard_plan_info *i = &plan->info;
  int64_t passed = 0, overlapping = 0;
  if (plan->hops == NULL) {
    if (plan->topology != NULL && plan->topology->asked != RESHARD_NO_CHAINS)
      rs_text_add(t, "\n  not passed on: anything, as %s",
                  plan->block > 0 ? "blocks travel with their scales, which nothing cuts"
                                  : "it would take no less time");
    return;
  }
  for (int64_t s = 0; s < plan->hops->streams.n; s++)
    passed += plan->hops->streams.at[s].group > 0;
  for (int64_t c = 0; c < plan->classes.n; c++)
    overlapping += rs_class_passes(&plan->classes.at[c]) ? 0 : plan->classes.at[c].entries;
  rs_text_add(t, "\n  passed on ");
  add_count(t, passed, "stream");
  rs_text_add(t, " here, of %lld that are staged; %lld more rounds for later hops", (long long)i->streams,
              (long long)i->later_rounds);
  if (overlapping > 0) {
    rs_text_add(t, "\n  not passed on: ");
    add_count(t, overlapping, "tensor");
    rs_text_add(t, ", of which boxes of the destination overlap");
  }
  rs_text_add(t, "\n  not passed on: anything, where a transfer is direct or takes a collective; a mixed one reads "
                 "only what is not passed on");
}

static void explain_text(const struct reshard_plan_s *plan, const rs_conversion *list, int64_t nlist, rs_text *t) {
  const reshard_plan_info *i = &plan->info;
  rs_text_add(t, "plan of rank %lld of %lld: ", (long long)i->rank, (long long)i->world);
  add_count(t, i->entries, "tensor");
  rs_text_add(t, ", %lld bytes, %lld of distinct geometry\n", (long long)i->bytes, (long long)i->classes);
  add_names(plan, t);
  for (int64_t k = 0; k < nlist; k++)
    add_conversion(&list[k], t);
  rs_text_add(t, "  sends     %lld bytes to others in ", (long long)i->sent_bytes);
  add_count(t, i->messages_sent, "message");
  rs_text_add(t, "; %lld of %lld peers from the source in place, without packing\n", (long long)i->packs_skipped,
              (long long)count_peers(plan, true));
  rs_text_add(t, "  receives  %lld bytes in ", (long long)i->received_bytes);
  add_count(t, i->messages_received, "message");
  rs_text_add(t, "; from %lld of %lld peers in place, without unpacking\n", (long long)i->unpacks_skipped,
              (long long)count_peers(plan, false));
  rs_text_add(t, "  lacks     %lld bytes (the lower bound), so it receives %.3f times what it must\n",
              (long long)i->lower_bound_bytes,
              i->lower_bound_bytes > 0 ? (double)i->received_bytes / (double)i->lower_bound_bytes : 1.0);
  rs_text_add(t, "  self copy %lld bytes\n  packed    ", (long long)i->self_copy_bytes);
  add_count(t, i->rounds, "round");
  rs_text_add(t, " (%lld at least) for %lld bytes, through %lld bytes of workspace", (long long)i->least_rounds,
              (long long)i->staged_bytes, (long long)i->workspace_bytes);
  if (i->workspace_limit > 0)
    rs_text_add(t, " of a limit of %lld%s, on %s", (long long)i->workspace_limit,
                plan->limit > 0 ? "" : " (the default)", plan->on_cpu ? "the CPU" : "GPUs");
  reshard_pattern pattern = rs_plan_pattern(plan);
  rs_text_add(t, "\n  pattern   %s: %s", reshard_collective_string(pattern.kind), pattern.why);
  add_hops(plan, t);
  rs_text_add(t, "\n  direct    one pass, no workspace\n  plan      ");
  add_count(t, i->segments, "segment");
  rs_text_add(t, ", %lld bytes, built in %.1f us\n", (long long)i->memory_bytes, (double)i->plan_ns / 1000);
  const rs_peer *peers;
  int64_t n = rs_plan_partners(plan, &peers);
  if (n > 0)
    rs_text_add(t, "  %8s  %16s  %-8s  %16s  %-8s\n", "peer", "sent", "", "received", "");
  for (int64_t p = 0; p < n; p++) {
    const rs_peer *peer = &peers[p];
    rs_text_add(t, "  %8lld  %16lld  %-8s  %16lld  %-8s\n", (long long)peer->rank, (long long)peer->sent,
                work_of(plan, peer, true), (long long)peer->received, work_of(plan, peer, false));
  }
}

reshard_status reshard_plan_explain(reshard_plan plan, reshard_format format, char *text, size_t size, size_t *needed) {
  if (plan == NULL || (text == NULL && size > 0) || (format != RESHARD_TEXT && format != RESHARD_JSON))
    return rs_error(RESHARD_ERROR_INVALID, "reshard_plan_explain: NULL argument or unknown format %d", (int)format);
  rs_json j = {.text = {.at = text, .size = size}};
  rs_conversion *list;
  int64_t n;
  RS_TRY(rs_plan_conversions(plan, &list, &n));
  if (format == RESHARD_JSON)
    explain_json(plan, list, n, &j);
  else
    explain_text(plan, list, n, &j.text);
  free(list);
  return rs_text_finish(&j.text, needed);
}
