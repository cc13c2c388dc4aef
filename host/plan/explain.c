#include "base/json.h"
#include "plan/hops.h"
#include "plan/place.h"
#include "plan/scaled.h"

#include <string.h>

/* Entries that convert from one dtype to another. */
typedef struct plan_conversion {
  const rs_class *class_; /* of one of them */
  int64_t entries;
} plan_conversion;

static bool same_conversion(const rs_class *a, const rs_class *b) {
  return a->from.dtype == b->from.dtype && a->to.dtype == b->to.dtype &&
         (a->scaling == NULL || b->scaling == NULL ? a->scaling == b->scaling
                                                   : rs_scaling_alike(a->scaling, b->scaling));
}

/* The next pair of dtypes that entries convert between, from pair *at on; false behind the last one. With scales it
 * is in behind all pairs without, and counted from these on by the entry. */
static bool next_conversion(const struct reshard_plan_s *plan, int64_t *at, plan_conversion *out) {
  const int64_t pairs = RESHARD_DTYPE_COUNT * RESHARD_DTYPE_COUNT;
  for (*out = (plan_conversion){NULL, 0}; out->class_ == NULL && *at < pairs; ++*at)
    for (int64_t i = 0; i < plan->classes.n; i++) {
      const rs_class *c = &plan->classes.at[i];
      if (c->scaling != NULL || c->from.dtype == c->to.dtype ||
          (int64_t)c->from.dtype * RESHARD_DTYPE_COUNT + (int64_t)c->to.dtype != *at)
        continue;
      out->class_ = c;
      out->entries += c->entries;
    }
  for (; out->class_ == NULL && *at < pairs + plan->ngiven; ++*at) {
    const rs_class *c = &plan->classes.at[plan->entries[*at - pairs].class_];
    bool told = c->scaling == NULL;
    for (int64_t i = 0; i < *at - pairs && !told; i++)
      told = same_conversion(&plan->classes.at[plan->entries[i].class_], c);
    for (int64_t i = *at - pairs; i < plan->ngiven && !told; i++)
      out->entries += same_conversion(&plan->classes.at[plan->entries[i].class_], c);
    out->class_ = told ? NULL : c;
  }
  return out->class_ != NULL;
}

/* Where numbers of messages are converted. */
static const char *conversion_place(const rs_class *c) {
  bool pack = rs_class_in_blocks(c) ? !c->scaling->source : rs_format_equal(c->wire, c->to);
  return pack ? "pack" : "unpack";
}

enum { DTYPE_TEXT = 96 };

/* Dtypes of the source, of the destination and of messages. */
static void conversion_dtypes(const rs_class *c, char text[3][DTYPE_TEXT]) {
  bool blocks = rs_class_in_blocks(c);
  rs_class_dtype_text(text[0], DTYPE_TEXT, c, true, c->from.dtype);
  rs_class_dtype_text(text[1], DTYPE_TEXT, c, false, c->to.dtype);
  rs_class_dtype_text(text[2], DTYPE_TEXT, c, blocks && c->scaling->source, c->wire.dtype);
}

static void add_conversions_json(const struct reshard_plan_s *plan, rs_json *j) {
  plan_conversion found;
  int64_t at = 0;
  if (!next_conversion(plan, &at, &found))
    return;
  rs_json_open(j, "conversions", '[');
  do {
    char dtypes[3][DTYPE_TEXT];
    conversion_dtypes(found.class_, dtypes);
    rs_json_open(j, NULL, '{');
    rs_json_string(j, "from", dtypes[0]);
    rs_json_string(j, "to", dtypes[1]);
    rs_json_string(j, "wire", dtypes[2]);
    rs_json_string(j, "converted", conversion_place(found.class_));
    rs_json_int(j, "tensors", found.entries);
    rs_json_close(j, '}');
  } while (next_conversion(plan, &at, &found));
  rs_json_close(j, ']');
}

static void explain_json(const struct reshard_plan_s *plan, rs_json *j) {
  const reshard_plan_info *i = &plan->info;
  rs_json_open(j, NULL, '{');
  rs_json_ints(j, {"rank", i->rank}, {"sent_bytes", i->sent_bytes}, {"received_bytes", i->received_bytes},
               {"kept_bytes", i->kept_bytes}, {"messages", i->messages_sent}, {"rounds", i->rounds},
               {"least_rounds", i->least_rounds}, {"staged_bytes", i->staged_bytes},
               {"workspace_bytes", i->workspace_bytes}, {"workspace_limit", i->workspace_limit},
               {"packs_skipped", i->packs_skipped}, {"unpacks_skipped", i->unpacks_skipped});
  rs_json_time(j, "plan_us", (double)i->plan_ns / 1000);
  if (i->chains > 0)
    rs_json_ints(j, {"chains", i->chains}, {"hops", i->hops}, {"streams", i->streams},
                 {"later_rounds", i->later_rounds});
  rs_json_open(j, "peers", '[');
  const rs_peer *peers;
  for (int64_t p = 0, n = rs_plan_told(plan, &peers); p < n; p++) {
    rs_json_open(j, NULL, '{');
    rs_json_ints(j, {"rank", peers[p].rank}, {"sent_bytes", peers[p].sent}, {"received_bytes", peers[p].received});
    rs_json_close(j, '}');
  }
  rs_json_close(j, ']');
  add_conversions_json(plan, j);
  rs_json_close(j, '}');
}

/* "1 peer", "2 peers". */
static void add_count(rs_text *t, int64_t n, const char *what) {
  rs_text_add(t, "%lld %s%s", (long long)n, what, n == 1 ? "" : "s");
}

static int64_t count_peers(const struct reshard_plan_s *plan, bool sending) {
  const rs_peer *peers;
  int64_t count = 0;
  for (int64_t p = 0, n = rs_plan_told(plan, &peers); p < n; p++)
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

static void add_conversions(const struct reshard_plan_s *plan, rs_text *t) {
  plan_conversion found;
  for (int64_t at = 0; next_conversion(plan, &at, &found);) {
    char dtypes[3][DTYPE_TEXT];
    conversion_dtypes(found.class_, dtypes);
    rs_text_add(t, "  converts  ");
    add_count(t, found.entries, "tensor");
    rs_text_add(t, " from %s to %s; %s%s, converted in the %s; direct copies read %s\n", dtypes[0], dtypes[1],
                rs_class_in_blocks(found.class_) ? "values and scales travel" : dtypes[2],
                rs_class_in_blocks(found.class_) ? "" : " travels", conversion_place(found.class_), dtypes[0]);
  }
}

/* Lines on streams that are passed on, on tensors that are not, and why. */
static void add_hops(const struct reshard_plan_s *plan, rs_text *t) {
  const reshard_plan_info *i = &plan->info;
  int64_t passed = 0, overlapping = 0;
  if (plan->hops == NULL)
    return;
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
  rs_text_add(t, "\n  not passed on: anything, where a transfer is direct or mixed, or takes a collective");
}

static void explain_text(const struct reshard_plan_s *plan, rs_text *t) {
  const reshard_plan_info *i = &plan->info;
  rs_text_add(t, "plan of rank %lld of %lld: ", (long long)i->rank, (long long)i->world);
  add_count(t, i->entries, "tensor");
  rs_text_add(t, ", %lld bytes, %lld of distinct geometry\n", (long long)i->bytes, (long long)i->classes);
  add_names(plan, t);
  add_conversions(plan, t);
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
  rs_text_add(t, "  keeps     %lld bytes, copied once\n  packed    ", (long long)i->kept_bytes);
  add_count(t, i->rounds, "round");
  rs_text_add(t, " (%lld at least) for %lld bytes, through %lld bytes of workspace", (long long)i->least_rounds,
              (long long)i->staged_bytes, (long long)i->workspace_bytes);
  if (i->workspace_limit > 0)
    rs_text_add(t, " of a limit of %lld%s, on %s", (long long)i->workspace_limit,
                plan->limit > 0 ? "" : " (the default)", plan->on_cpu ? "the CPU" : "GPUs");
  reshard_pattern pattern = rs_plan_pattern(plan);
  rs_text_add(t, "\n  pattern   %s: %s", reshard_collective_string(pattern.kind), pattern.why);
  add_hops(plan, t);
  rs_text_add(t, "\n  direct    one pass, no workspace\n  plan      %lld segments, %lld bytes, built in %.1f us\n",
              (long long)i->segments, (long long)i->memory_bytes, (double)i->plan_ns / 1000);
  const rs_peer *peers;
  int64_t n = rs_plan_told(plan, &peers);
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
  if (format == RESHARD_JSON)
    explain_json(plan, &j);
  else
    explain_text(plan, &j.text);
  return rs_text_finish(&j.text, needed);
}
