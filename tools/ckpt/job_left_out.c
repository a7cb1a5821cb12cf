/* Counts what the source has and the output lacks, by kinds of names. */
#include <limits.h>

#include "tools/ckpt/job_internal.h"

/* The kind of a name: "decoder.layers.3.mlp.linear_fc1._extra_state/shard_0_4" is "*_extra_state";
 * otherwise its first max_words words, with "*" for numbers. */
static void kind_of(char *kind, size_t cap, const char *name, int max_words)
{
    size_t len = 0;
    int n_words = 1;
    if (strstr(name, "_extra_state")) {
        snprintf(kind, cap, "*_extra_state");
        return;
    }
    for (; *name && strncmp(name, "/shard_", strlen("/shard_")) != 0 && len + 3 < cap; name++) {
        if (len + 6 >= cap && ((unsigned char)*name & 0xC0) != 0x80)
            break; /* do not split a UTF-8 character */
        if (*name == '.' && n_words++ == max_words) {
            len += (size_t)snprintf(kind + len, cap - len, ".*");
            break;
        }
        const size_t n_digits = strspn(name, "0123456789");
        kind[len++] = n_digits ? '*' : *name;
        name += n_digits ? n_digits - 1 : 0;
    }
    kind[len] = 0;
}

static void add_name(struct ckpt_left_out *left, const char *name, int max_words)
{
    char kind[sizeof left->kinds->name];
    size_t i = left->n_kinds;
    s2s_info("ckpt", "left out: %s", name);
    kind_of(kind, sizeof kind, name, max_words);
    while (i > 0 && strcmp(left->kinds[i - 1].name, kind) != 0)
        i--;
    if (i == 0 && left->n_kinds == CKPT_MAX_KINDS) {
        left->n_of_others++;
        return;
    }
    if (i == 0) {
        i = ++left->n_kinds;
        memcpy(left->kinds[i - 1].name, kind, sizeof kind);
    }
    left->kinds[i - 1].n++;
}

static void add_weights(struct ckpt_left_out *left, const struct ckpt_map_names *names)
{
    for (size_t i = 0; i < names->n; i++)
        add_name(left, names->of[i], INT_MAX);
}

static void add_values(struct ckpt_left_out *left, const json_t *values)
{
    const char *name;
    json_t *n;
    json_object_foreach((json_t *)values, name, n)
    {
        for (json_int_t i = 0; i < json_integer_value(n); i++)
            add_name(left, name, INT_MAX);
        left->n_values += (size_t)json_integer_value(n);
    }
}

static bool takes_object(const struct job *job, const char *name)
{
    return job->to == TO_TORCH_DIST && !(job->how.keep_object && !job->how.keep_object(name));
}

void ckpt_job_left_out(struct ckpt_left_out *left, const struct job *job)
{
    enum { N_WORDS = 3 }; /* words that distinguish kinds of state */
    size_t n;
    *left = (struct ckpt_left_out){.n_unused = job->unused.n,
                                   .n_dropped = job->dropped.n,
                                   .n_state = job->n_state,
                                   .n_unread = s2s_ckpt_left_values(job->ckpt),
                                   .n_ranks = s2s_ckpt_rank_states(job->ckpt),
                                   .rows_cut = job->rows_cut,
                                   .common = job->to == TO_SAFETENSORS &&
                                             json_object_size(s2s_ckpt_common(job->ckpt)) > 0};
    add_weights(left, &job->dropped);
    const struct s2s_ckpt_tensor *tensors = s2s_ckpt_tensors(job->ckpt, &n);
    for (size_t i = 0; i < n && job->n_state; i++)
        if (job->is_left(tensors[i].name))
            add_name(left, tensors[i].name, N_WORDS);
    const struct s2s_ckpt_object *objects = s2s_ckpt_objects(job->ckpt, &n);
    for (size_t i = 0; i < n; i++) {
        const bool taken = takes_object(job, objects[i].name);
        const bool unread = objects[i].lost && ckpt_job_is_weight(objects[i].name);
        if (!taken || unread)
            add_name(left, objects[i].name, N_WORDS);
        left->n_objects += !taken;
        left->n_unread += unread;
    }
    add_values(left, s2s_ckpt_rank_values(job->ckpt));
    left->n_kinds_told = left->n_kinds;
    left->n_more_told = left->n_of_others;
    add_weights(left, &job->unused);
}
