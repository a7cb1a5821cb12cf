/*
 * Extra states of all ranks. Megatron-Core expects one for each module that can have one, as
 * KEY/shard_0_1, or KEY/shard_E_N for an expert; they are None unless a module computes in FP8. FP8
 * state (scales, amax histories) depends on the ranks and their sharding: it is left out, and
 * Megatron-Core starts anew. Other values of a model are counted, as are those beside it.
 */
#include "lib/ckpt/merge/merge_internal.h"

#include "lib/base/base.h"

enum { MAX_NAMES = 1 << 20 };

bool ckpt_merge_is_extra(const char *name)
{
    return s2s_ends_with(name, "._extra_state");
}

struct names {
    char **v;
    size_t n, cap;
    bool full;
};

static void add_name(struct names *names, char *name)
{
    if (names->n == MAX_NAMES) { /* reported by the caller */
        names->full = true;
        free(name);
        return;
    }
    s2s_grow(&names->v, names->n, &names->cap, sizeof *names->v);
    names->v[names->n++] = name;
}

static bool is_hybrid(const struct s2s_ckpt *ckpt)
{
    for (size_t i = 0; i < ckpt->n_tensors; i++)
        if (strstr(ckpt->tensors[i].name, "decoder.final_norm.weight"))
            return true;
    return false;
}

/* Adds the stored name of a local extra state, or the names for all experts of a rank. */
static void add_extra(struct merge *m, struct names *names, const char *rank_name, bool hybrid)
{
    const struct s2s_ckpt_tensor stand_in = {.name = rank_name};
    struct merge_local local;
    const char *begin, *end;
    if (ckpt_merge_find_local(&local, m, &stand_in) < 0)
        return;
    /* Megatron-Core's GPTModel stores none for its output layer */
    if (strstr(local.name, "output_layer.") && !hybrid)
        return;
    char *name = ckpt_merge_global_name(m, &local);
    const char *experts = strstr(name, "mlp.experts.");
    const int64_t first = local.rank->at[EP] * m->n_local, all = m->n_local * m->size[EP];
    int64_t index = experts ? ckpt_merge_expert_of(name, &begin, &end) : -1;
    if (index >= m->n_local) { /* an expert without weights */
        free(name);
        return;
    }
    if (!experts) {
        add_name(names, s2s_xasprintf("%s/shard_0_1", name));
    } else if (index >= 0) { /* "experts.local_experts.3.linear_fc1._extra_state" */
        add_name(names, s2s_xasprintf("%.*sexperts%s/shard_%lld_%lld", (int)(begin - name), name,
                                      end, (long long)(first + index), (long long)all));
    } else { /* "experts.linear_fc1._extra_state" */
        experts += strlen("mlp.experts.");
        for (int64_t i = 0; i < m->n_local; i++)
            add_name(names, s2s_xasprintf("%.*sexperts.%s/shard_%lld_%lld", (int)(experts - name),
                                          name, experts, (long long)(first + i), (long long)all));
    }
    free(name);
}

/* An old GroupedMLP has all experts in one tensor and no extra states, but loads those that other
 * kinds of experts store. */
static void add_packed(struct merge *m, struct names *names, const char *weight)
{
    const size_t len = strlen(weight);
    if (!s2s_ends_with(weight, "mlp.experts.weight1") &&
        !s2s_ends_with(weight, "mlp.experts.weight2"))
        return;
    char *name = s2s_xasprintf("%.*slinear_fc%c._extra_state", (int)(len - strlen("weight1")),
                               weight, weight[len - 1]);
    add_extra(m, names, name, false);
    free(name);
}

/* Counts a value among a rank's weights, which has no place in what is merged. */
static void count_value(struct merge *m, const struct s2s_ckpt_object *object)
{
    const struct s2s_ckpt_tensor stand_in = {.name = object->name};
    struct merge_local local;
    if (ckpt_merge_find_local(&local, m, &stand_in) < 0)
        return;
    m->ckpt->n_left_values += object->lost != NULL;
    if (object->lost || object->pickle || !json_is_null(object->value)) {
        char *name = s2s_xasprintf("model.%s", local.name);
        ckpt_merge_count_left(m, name);
        free(name);
    }
}

int ckpt_merge_objects(struct merge *m)
{
    struct s2s_ckpt *ckpt = m->ckpt;
    const bool hybrid = is_hybrid(ckpt);
    struct names names = {.n = 0};
    size_t n_left_out = 0;
    int rc = 0;
    for (size_t i = 0; i < ckpt->n_objects; i++) {
        if (ckpt_merge_is_extra(ckpt->objects[i].name)) {
            add_extra(m, &names, ckpt->objects[i].name, hybrid);
            n_left_out += ckpt->objects[i].value && !json_is_null(ckpt->objects[i].value);
        } else {
            count_value(m, &ckpt->objects[i]);
        }
        json_decref(ckpt->objects[i].value);
    }
    ckpt->n_objects = 0;
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        add_packed(m, &names, ckpt->tensors[i].name);
        if (ckpt_merge_is_extra(ckpt->tensors[i].name)) {
            add_extra(m, &names, ckpt->tensors[i].name, hybrid);
            n_left_out += s2s_ckpt_numel(&ckpt->tensors[i]) > 0;
        }
    }
    if (names.full)
        rc = s2s_error_set(m->err, S2S_E_FORMAT, "more than %d extra states", MAX_NAMES);
    if (n_left_out)
        s2s_info("ckpt", "%s: %zu extra states (of FP8) are left out", ckpt->path, n_left_out);
    if (names.n)
        qsort(names.v, names.n, sizeof *names.v, ckpt_by_text);
    for (size_t i = 0; i < names.n && rc == 0; i++) {
        struct s2s_ckpt_object *object;
        if (i && strcmp(names.v[i], names.v[i - 1]) == 0)
            continue;
        rc = ckpt_add_object(ckpt, &object, names.v[i], strlen(names.v[i]), m->err);
        if (rc == 0)
            object->value = json_null();
    }
    for (size_t i = 0; i < names.n; i++)
        free(names.v[i]);
    free(names.v);
    return rc;
}
