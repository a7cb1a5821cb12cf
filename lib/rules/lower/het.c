/*
 * Heterogeneous MIMO training: the arguments of Megatron-LM with a grid of ranks for the encoder
 * and another for the language model. There are two trainers: `pretrain_mimo` of Megatron-LM's
 * examples, which also checks the common arguments, and the earlier `train_hetero.py`, whose parser
 * has its own.
 */
#include "lib/rules/rules_internal.h"

#include <string.h>

static const struct rules_map map[] = {
    {"enc_tp", "encoder_tp", "size", ""},
    {"enc_cp", "encoder_cp", "size", "1"},
    {"enc_pp", "encoder_pp", "size", ""},
    {"enc_dp", "encoder_dp", "size", ""},
    {"enc_offset", "encoder_offset", "int", "0"},
    {"llm_offset", "llm_offset", "int", ""},
    {"tp", "llm_tp", "size", ""},
    {"cp", "llm_cp", "size", "1"},
    {"pp", "llm_pp", "size", ""},
    {"llm_dp", "llm_dp", "size", ""},
    {"ep", "llm_ep", "size", ""},
    {"etp", "llm_expt_tp", "size", "1"},
    {"expt_dp", "llm_expt_dp", "int", ""},
    {"weight_shards", "tensor_parallel_num_weight_shards", "int", ""},
    {"dist_opt_instances", "num_distributed_optimizer_instances", "int", "1"},
    {"llm_only", "llm_only", "bool", "false"},
    {"enc_overlap", "encoder_ddp_overlap", "bool", "false"},
    {"nmb_given", "num_microbatches", "int", ""},
    {"packing_buffer", "packing_buffer_size", "int", "0"},
    /* the public provider sets it; one's own may not: --set variable_seq=false */
    {"variable_seq", "variable_seq_lengths", "bool", "true"},
    {"data_kind", "dataset_provider", "text", "mock"},
    {"data_path", "data_path", "any", ""},
    {"tokenizer_model", "tokenizer_model", "any", ""},
    {"num_workers", "num_workers", "int", ""},
    {"stage", "training_stage", "text", ""},
    {"freeze_lm", "freeze_lm", "bool", "false"},
    {"freeze_vit", "freeze_vit", "bool", "false"},
    {"freeze_projection", "freeze_projection", "bool", "false"},
    {"correct_partial", "correct_encoder_grad_for_partial_participation", "bool", "false"},
    {"image_seq", "image_seq_length", "int", ""},
    {"image_tiles", "num_image_tiles", "int", "1"},
    {"image_height", "img_h", "int", "224"},
    {"image_width", "img_w", "int", "224"},
    {"patch_dim", "patch_dim", "int", "16"},
    {"pixel_shuffle", "pixel_shuffle", "bool", "false"},
    {"dynamic_images", "dynamic_resolution", "bool", "false"},
    {"no_class_token", "disable_vision_class_token", "bool", "false"},
    {"prefetch", "mimo_encoder_prefetch", "bool", "false"},
    {"prefetch_depth", "mimo_encoder_prefetch_depth", "int", "2"},
    {"experts_given", "num_experts num_moe_experts", "any", ""},
    {0},
};

enum flavor { UNKNOWN, LANDED, EARLY };

/* By --upstream, by the program, or by flags that only the earlier one has. */
static enum flavor flavor_of(const struct rules_check *check)
{
    static const char *const own[] = {"encoder_offset",   "encoder_pp",     "encoder_cp",
                                      "num_microbatches", "llm_expt_dp",    "packing_buffer_size",
                                      "num_moe_experts",  "training_stage", NULL};
    const struct s2s_conf *program =
        check->report->raw ? s2s_conf_key(check->report->raw, "PROGRAM") : NULL;
    const char *name = program && program->text ? program->text : "";
    if (check->opt->upstream && !strcmp(check->opt->upstream, "mimo"))
        return LANDED;
    if (check->opt->upstream && !strcmp(check->opt->upstream, "mimo-hetero"))
        return EARLY;
    if (strstr(name, "train_hetero"))
        return EARLY;
    if (strstr(name, "pretrain_mimo"))
        return LANDED;
    for (int i = 0; own[i]; i++)
        if (s2s_conf_key(check->conf, own[i]))
            return EARLY;
    return UNKNOWN;
}

/* What the parser of each puts for sizes that are not given. */
static void fill_defaults(struct rules_check *check, enum flavor flavor, bool handed_over)
{
    static const struct {
        const char *name;
        int landed, early, handed_over; /* 0: not known */
    } sizes[] = {
        {"enc_tp", 2, 2, 0}, {"enc_pp", 1, 2, 1},    {"enc_dp", 2, 1, 0}, {"llm_offset", 4, 4, 0},
        {"tp", 2, 1, 0},     {"pp", 1, 2, 1},        {"llm_dp", 2, 2, 0}, {"ep", 1, 2, 0},
        {"mbs", 0, 2, 0},    {"nmb_given", 0, 2, 0},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int value = handed_over       ? sizes[i].handed_over
                    : flavor == EARLY ? sizes[i].early
                                      : sizes[i].landed;
        struct rules_fact *fact = rules_fact_find(&check->facts, sizes[i].name);
        bool unset =
            fact->value.type == RULES_NULL || (fact->value.type == RULES_UNKNOWN && !fact->node);
        if (unset && (value || strcmp(sizes[i].name, "nmb_given") != 0))
            fact->value = value ? rules_int(value) : rules_unknown();
    }
    struct rules_value early = flavor ? rules_bool(flavor == EARLY) : rules_unknown();
    rules_fact_set(&check->facts, "early", early);
    rules_fact_set(&check->facts, "handed_over", rules_bool(handed_over));
}

int rules_lower_het(struct rules_check *check)
{
    static const struct rules_derived sizes[] = {
        {"gtp", "if(weight_shards == null, 1, weight_shards / tp)"},
        {"egtp", "if(expert_shards == null, 1, expert_shards / etp)"},
        {"strategy", "null"},
        {"dp_cfg", "null"},
        {"dp", "llm_dp*gtp"},
        {"dp_batch", "dp"},
        {"enc_size", "if(llm_only, 0, enc_tp*enc_cp*enc_pp*enc_dp)"},
        {"llm_size", "tp*gtp*cp*pp*llm_dp"},
        {"enc_end", "enc_offset + enc_size"},
        {"llm_end", "llm_offset + llm_size"},
        {"colocated", "enc_offset == llm_offset and enc_size == llm_size and not llm_only"},
        {"overlap", "not llm_only and enc_offset < llm_end and llm_offset < enc_end"},
        {"grids_end", "max(enc_end, llm_end)"},
        {"patch_rows", "image_height / patch_dim"},
        {"patch_columns", "image_width / patch_dim"},
        {"emitted_tokens", "image_tiles*patch_rows*patch_columns // if(pixel_shuffle, 4, 1)"},
        {"gbs", "if(gbs_given != null, gbs_given, if(early, mbs*nmb_given*llm_dp, mbs*dp))"},
        {"nmb", "if(nmb_given != null, nmb_given, gbs / (mbs*dp))"},
        {0},
    };
    const struct s2s_conf *raw = check->report->raw;
    bool handed_over = raw && s2s_conf_key(raw, "HANDED_OVER");
    bool part = raw && s2s_conf_key(raw, "PART");
    enum flavor flavor = flavor_of(check);
    check->incomplete = flavor != LANDED || handed_over || part;
    rules_lower_mlm_arguments(check);
    check->incomplete = false;
    rules_lower_map(check, map);
    fill_defaults(check, flavor, handed_over);
    struct rules_fact *experts = rules_fact_find(&check->facts, "experts");
    const struct rules_fact *given = rules_fact_find(&check->facts, "experts_given");
    if (given->value.type == RULES_INT && given->value.i > 0) {
        experts->value = given->value;
        experts->node = given->node;
        experts->key = given->key;
    }
    /* switched on by the trainer itself wherever it means something */
    struct rules_fact *sp = rules_fact_find(&check->facts, "sp"),
                      *tp = rules_fact_find(&check->facts, "tp");
    if (!sp->node && tp->value.type == RULES_INT)
        sp->value = rules_bool(tp->value.i > 1);
    rules_fact_set(&check->facts, "etp_given", rules_fact_find(&check->facts, "etp")->value);
    rules_lower_derived(check, sizes);
    rules_fact_find(&check->facts, "dp")->key = rules_fact_find(&check->facts, "llm_dp")->key;
    struct rules_value gbs = rules_fact_find(&check->facts, "gbs")->value,
                       nmb = rules_fact_find(&check->facts, "nmb")->value;
    rules_lower_mlm_derived(check);
    struct rules_value packed = rules_eval(&check->facts, "sft or packing_buffer > 0", NULL);
    rules_fact_set(&check->facts, "packed", packed);
    rules_fact_set(&check->facts, "gbs", gbs);
    rules_fact_set(&check->facts, "nmb", nmb);
    return 0;
}
