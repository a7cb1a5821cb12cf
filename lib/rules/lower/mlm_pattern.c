/* Hybrid layer patterns of Megatron-LM, a letter a layer. */
#include "lib/rules/rules_internal.h"

#include <string.h>

/* What a hybrid pattern says: stages by '|', depths of MTP behind '/'. */
struct pattern {
    const char *fault; /* "" if none */
    int64_t n_layers, n_segments, n_mtp, n_experts, n_mamba;
    bool piped, mtp_differ;
};

/* The letters of a release: those up to core 0.16 had neither stages nor depths in the pattern. */
static const char *letters_of(const struct rules_check *check)
{
    const char *upstream = check->opt->upstream;
    return upstream && !strcmp(upstream, "core-0.16") ? "M*-E" : "MG*D+-E|/";
}

static void read_letter(struct pattern *p, const char *text, const char *s, const char *end)
{
    if (*s == '|') {
        p->piped = true;
        p->n_segments++;
        if (s == text || s[-1] == '|' || s + 1 == end)
            p->fault = "an empty stage";
        return;
    }
    p->n_layers++;
    p->n_experts += *s == 'E';
    p->n_mamba += *s == 'M';
}

static struct pattern read_pattern(const char *text, const char *letters)
{
    struct pattern p = {.fault = "", .n_segments = 1};
    const char *end = text + strcspn(text, "/"), *previous = NULL;
    size_t previous_len = 0, len = (size_t)(end - text);
    for (const char *s = text; s < end; s++) {
        if (strchr(letters, *s))
            read_letter(&p, text, s, end);
        else
            p.fault = strchr("MG*D+-E|/", *s) ? "a letter that this release does not know yet"
                                              : "a letter that is none of M G * D + - E";
    }
    if (memchr(text, '*', len) && (memchr(text, 'D', len) || memchr(text, '+', len)))
        p.fault = "* together with D or +";
    if (*end == '/' && !strchr(letters, '/'))
        p.fault = "a letter that this release does not know yet";
    while (*end == '/') {
        const char *begin = end + 1;
        len = strcspn(begin, "/");
        p.n_mtp++;
        if (previous && (len != previous_len || memcmp(previous, begin, len) != 0))
            p.mtp_differ = true;
        previous = begin;
        previous_len = len;
        end = begin + len;
    }
    return p;
}

/* ---- what a stage costs ---- */

enum { MAX_STAGES = 64 };

struct stage {
    double flops; /* of one token, forward */
    int64_t n_layers, n_mamba, n_attention;
};

/* Widths of the layers; 0 where they are not known. */
struct widths {
    double hidden, ffn, seq;
};

static double number_of(const struct rules_check *check, const char *name)
{
    struct rules_value v = rules_fact_find(&check->facts, name)->value;
    return v.type == RULES_INT && v.i > 0 ? (double)v.i : 0;
}

/* Two operations a weight, and the scores of causal attention over half the sequence: mamba with
 * its usual expansion of 2 has 6*hidden^2 weights, full attention 4*hidden^2. */
static double layer_flops(char letter, const struct widths *w)
{
    double h2 = w->hidden * w->hidden;
    switch (letter) {
    case 'M':
    case 'G':
        return 12 * h2;
    case '-':
    case 'E':
        return 4 * w->hidden * w->ffn;
    default:
        return 8 * h2 + 2 * w->seq * w->hidden;
    }
}

static void add_layer(struct stage *stage, char letter, const struct widths *w)
{
    stage->n_layers++;
    stage->n_mamba += letter == 'M' || letter == 'G';
    stage->n_attention += letter == '*' || letter == 'D' || letter == '+';
    stage->flops += layer_flops(letter, w);
}

/* Deals the layers out: stages by their bars to the ranks in turn, or even cuts without bars. */
static bool fill_stages(struct stage *stages, int64_t pp, const char *text, const struct pattern *p,
                        const struct widths *w)
{
    const char *end = text + strcspn(text, "/");
    int64_t segment = 0, layer = 0;
    if (p->piped ? p->n_segments % pp : p->n_layers % pp)
        return false;
    for (const char *s = text; s < end; s++) {
        if (*s == '|')
            segment++;
        else
            add_layer(&stages[p->piped ? segment % pp : layer++ / (p->n_layers / pp)], *s, w);
    }
    return true;
}

/* The cost of the heaviest stage over that of the lightest, in percent, if one stage has nothing
 * but mamba layers and another most of the attention; null if they are alike. */
static struct rules_value skew_of(const struct rules_check *check, const char *text,
                                  const struct pattern *p)
{
    struct stage stages[MAX_STAGES] = {{0}};
    int64_t pp = (int64_t)number_of(check, "pp"), n_attention = 0, most = 0;
    bool all_mamba = false;
    struct widths w = {number_of(check, "hidden"), number_of(check, "ffn"),
                       number_of(check, "seq_given")};
    if (!pp || !w.hidden || !w.seq)
        return rules_unknown();
    if (!w.ffn)
        w.ffn = 4 * w.hidden;
    if (*p->fault || pp < 2 || pp > MAX_STAGES || !fill_stages(stages, pp, text, p, &w))
        return rules_null();
    double least = stages[0].flops, greatest = stages[0].flops;
    for (int64_t i = 0; i < pp; i++) {
        least = stages[i].flops < least ? stages[i].flops : least;
        greatest = stages[i].flops > greatest ? stages[i].flops : greatest;
        n_attention += stages[i].n_attention;
        most = stages[i].n_attention > most ? stages[i].n_attention : most;
        all_mamba |= stages[i].n_layers > 0 && stages[i].n_mamba == stages[i].n_layers;
    }
    if (!all_mamba || 2 * most <= n_attention || least <= 0)
        return rules_null();
    return rules_int((int64_t)(100 * greatest / least));
}

void rules_lower_pattern(struct rules_check *check)
{
    struct rules_value pattern = rules_fact_find(&check->facts, "pattern_new")->value;
    struct rules_facts *f = &check->facts;
    if (pattern.type == RULES_NULL)
        pattern = rules_fact_find(&check->facts, "pattern_old")->value;
    bool given = pattern.type == RULES_TEXT;
    struct pattern p = read_pattern(given ? pattern.s : "", letters_of(check));
    struct rules_value none = pattern.type == RULES_UNKNOWN ? rules_unknown() : rules_null();
    rules_fact_set(f, "hybrid",
                   pattern.type == RULES_UNKNOWN ? rules_unknown() : rules_bool(given));
    rules_fact_set(f, "pattern_fault", given ? rules_text(p.fault) : none);
    rules_fact_set(f, "pattern_layers", given ? rules_int(p.n_layers) : none);
    rules_fact_set(f, "pattern_piped", given ? rules_bool(p.piped) : none);
    rules_fact_set(f, "pattern_segments", given && p.piped ? rules_int(p.n_segments) : none);
    rules_fact_set(f, "pattern_mtp", given ? rules_int(p.n_mtp) : none);
    rules_fact_set(f, "pattern_mtp_differ", given ? rules_bool(p.mtp_differ) : none);
    rules_fact_set(f, "pattern_experts", given ? rules_bool(p.n_experts > 0) : none);
    rules_fact_set(f, "pattern_mamba", given ? rules_bool(p.n_mamba > 0) : none);
    rules_fact_set(f, "pattern_skew", given ? skew_of(check, pattern.s, &p) : none);
}
