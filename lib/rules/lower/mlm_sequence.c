/* Megatron-LM arguments that say how sequences, batches over time and stages are cut. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "lib/rules/rules_internal.h"

static const struct rules_map map[] = {
    {"key_heads", "linear_num_key_heads", "int", "16"},
    {"value_heads", "linear_num_value_heads", "int", "32"},
    {"p2p_warmup", "overlap_p2p_communication_warmup_flush", "bool", "false"},
    {"inference_threshold", "inference_batch_times_seqlen_threshold", "int", "-1"},
    {"pp_backend", "pipeline_model_parallel_comm_backend", "text", ""},
    {"mhc", "enable_mhc_connections", "bool", "false"},
    {"flash_version", "flash_attention_version", "int", ""},
    {"pp_before_dp", "use_tp_pp_dp_mapping", "bool", "false"},
    {"no_mamba_path", "disable_mamba_mem_eff_path", "bool", "false"},
    {"packing_rows", "packing_buffer_size", "int", ""},
    {"plain_vocab", "vocab_size", "int", ""},
    {"vocab_unit", "make_vocab_size_divisible_by", "int", "128"},
    {"wgrad_limit", "wgrad_deferral_limit", "int", "0"},
    {"aux_coeff", "moe_aux_loss_coeff", "any", ""},
    {0},
};

/* "2", "1.5K", "40M", "3T" as a number of samples or tokens; -1 if it is none */
static double numeral(const char *text, size_t len)
{
    static const char units[] = "KMBT";
    char *copy = s2s_xstrndup(text, len), *end = NULL;
    double value = strtod(copy, &end);
    const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    bool whole = end > copy && (!*end || (unit && !end[1]));
    for (const char *u = units; unit && u <= unit; u++)
        value *= 1000;
    free(copy);
    return whole ? value : -1;
}

/* What is wrong with one "START:SIZE" of a schedule; NULL if nothing is. *start is the last one's.
 */
static const char *entry_fault(const char *entry, size_t len, double *start, int64_t unit)
{
    const char *colon = memchr(entry, ':', len);
    double begin = colon ? numeral(entry, (size_t)(colon - entry)) : -1;
    double size = colon ? numeral(colon + 1, (size_t)(entry + len - colon) - 1) : -1;
    const char *fault = !colon                           ? "has no colon"
                        : begin < 0                      ? "has no number before the colon"
                        : size <= 0 || size > 1e15       ? "has no positive size"
                        : *start < 0 && begin > 0        ? "is the first and does not start at 0"
                        : *start >= 0 && begin <= *start ? "does not start after the one before it"
                        : unit > 0 && (int64_t)size % unit
                            ? "is no multiple of micro-batch-size * dp"
                            : NULL;
    *start = begin;
    return fault;
}

/* The first entry of step-batch-size-schedule that is wrong, and why; null if none is. */
static void lower_schedule(struct rules_check *check)
{
    const struct rules_fact *given = rules_fact_find(&check->facts, "step_schedule");
    const char *text = given->node ? given->node->text : NULL;
    struct rules_value unit = rules_eval(&check->facts, "mbs*dp_batch", NULL);
    struct rules_value fault = rules_null(), entry = rules_null();
    double start = -1;
    for (const char *s = text && !strstr(text, "${") ? text : ""; *s && fault.type == RULES_NULL;) {
        s += strspn(s, " ,\t\"'");
        size_t len = strcspn(s, " ,\t\"'");
        const char *why =
            len ? entry_fault(s, len, &start, unit.type == RULES_INT ? unit.i : 0) : NULL;
        if (why) {
            fault = rules_text(why);
            entry = rules_text(rules_keep(&check->facts, s2s_xstrndup(s, len)));
        }
        s += len;
    }
    rules_fact_set(&check->facts, "step_fault", fault);
    rules_fact_set(&check->facts, "step_entry", entry);
}

/* How many words a flag got; unknown if one of them is */
static void lower_count(struct rules_check *check, const char *of, const char *name)
{
    const struct rules_fact *f = rules_fact_find(&check->facts, of);
    const char *text = f->node ? f->node->text : NULL;
    struct rules_value n = f->node ? rules_unknown() : rules_int(f->value.type != RULES_NULL);
    if (text && !strstr(text, "${")) {
        int64_t words = 0;
        for (const char *s = text; *(s += strspn(s, " ,[]\"'"));) {
            s += strcspn(s, " ,[]\"'");
            words++;
        }
        n = rules_int(words);
    } else if (f->value.type == RULES_LIST) {
        n = rules_int((int64_t)f->value.list->n_items);
    }
    rules_fact_set(&check->facts, name, n);
}

void rules_lower_mlm_sequence(struct rules_check *check)
{
    rules_lower_map(check, map);
    lower_schedule(check);
    lower_count(check, "cp_comm", "n_cp_comm");
    lower_count(check, "router_balancing", "n_balancing");
    lower_count(check, "aux_coeff", "n_coefficients");
}
