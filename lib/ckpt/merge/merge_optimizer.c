/*
 * Merges the optimizers of all ranks. rank_optimizer.c finds the parameter of each tensor, which is
 * sharded as its parameter is. Of the rest Megatron-Core keeps the parameter groups and one common
 * step in the common state (sharded_state_dict of its optimizers).
 */
#include "lib/ckpt/merge/merge_internal.h"

#include "lib/base/base.h"

enum { LOOK = 256 /* elements of a master weight compared with its parameter */ };

/* The object with the groups: with mixed precision it is one level down. */
static json_t *inner_of(json_t *part)
{
    json_t *inner = json_object_get(part, "optimizer");
    return inner ? inner : part;
}

static bool is_of_experts(json_t *part)
{
    json_t *group;
    size_t i;
    json_array_foreach(json_object_get(inner_of(part), "param_groups"), i, group)
    {
        if (json_is_true(json_object_get(group, "is_expert_parallel")))
            return true;
    }
    return false;
}

/* ---- checks ---- */

/* How a rank's optimizers differ from the first rank's; NULL: they do not. Gives: free. (Before
 * 0.14 a rank without experts has one optimizer less.) */
static char *unlike(const struct ckpt_rank_state *first, const struct ckpt_rank_state *other)
{
    for (size_t i = 0; i < json_array_size(first->parts) && i < json_array_size(other->parts); i++)
        if (is_of_experts(json_array_get(first->parts, i)) !=
            is_of_experts(json_array_get(other->parts, i)))
            return s2s_xasprintf("optimizer %zu is of experts either in %s or in %s", i,
                                 first->folder, other->folder);
    return NULL;
}

/* Why the optimizers cannot be merged; NULL: they can. Gives: free. */
static char *why_not(const struct merge *m)
{
    const struct s2s_ckpt *ckpt = m->ckpt;
    for (size_t i = 0; i < ckpt->n_rank_states; i++) {
        const struct ckpt_rank_state *state = &ckpt->rank_states[i];
        if (state->why)
            return s2s_xasprintf("%s: %s", state->folder, state->why);
        char *why = unlike(ckpt->rank_states, state);
        if (why)
            return why;
    }
    for (size_t i = 0; i < m->n_ranks; i++) {
        size_t k = 0;
        while (k < ckpt->n_rank_states &&
               strcmp(ckpt->rank_states[k].folder, m->ranks[i].folder) != 0)
            k++;
        if (k == ckpt->n_rank_states)
            return s2s_xasprintf("%s has none", m->ranks[i].folder);
    }
    return NULL;
}

static uint16_t rounded(enum s2s_dtype dtype, float x)
{
    return dtype == S2S_BF16 ? s2s_f32_to_bf16(x) : s2s_f32_to_f16(x);
}

/* Checks that a 16-bit parameter is its master weight, rounded. Sets *why (gives: free) if not. */
static int check_master(const struct merge *m, const struct ckpt_state *state, char **why)
{
    const struct s2s_ckpt_tensor *param = s2s_ckpt_find(m->ckpt, state->param);
    int64_t size[S2S_MAX_DIMS], n = 1;
    float master[LOOK];
    uint16_t own[LOOK];
    if (!param || (param->dtype != S2S_BF16 && param->dtype != S2S_F16) ||
        state->tensor.dtype != S2S_F32 || strcmp(state->key, "fp32_param") != 0)
        return 0;
    for (int d = param->n_dims - 1; d >= 0; d--) {
        size[d] = param->shape[d] < LOOK / n ? param->shape[d] : LOOK / n;
        n *= size[d];
        if (n == 0)
            return 0;
    }
    int rc = s2s_ckpt_read(m->ckpt, &state->tensor, NULL, size, master, m->err);
    if (rc == 0)
        rc = s2s_ckpt_read(m->ckpt, param, NULL, size, own, m->err);
    for (int64_t i = 0; i < n && rc == 0 && !*why; i++)
        if (master[i] == master[i] && rounded(param->dtype, master[i]) != own[i])
            *why = s2s_xasprintf("%s is not what %s was rounded from", state->tensor.name,
                                 state->param);
    return rc;
}

/* Checks that all parameters are at the same step, which becomes the part's common_step. */
static int check_step(const struct merge *m, const struct ckpt_state *state, json_t *parts,
                      char **why)
{
    const bool whole = state->tensor.dtype == S2S_I64;
    char key[32];
    union {
        float real;
        int64_t whole;
    } step;
    if (strcmp(state->key, "step") != 0)
        return 0;
    if (state->tensor.dtype != S2S_F32 && !whole) {
        *why = s2s_xasprintf("%s is %s", state->tensor.name, s2s_dtype_name(state->tensor.dtype));
        return 0;
    }
    int rc = s2s_ckpt_read(m->ckpt, &state->tensor, NULL, NULL, &step, m->err);
    if (rc < 0)
        return rc;
    snprintf(key, sizeof key, CKPT_SMALL_TENSOR "%s", s2s_dtype_name(state->tensor.dtype));
    json_t *made = json_object(), *inner = inner_of(json_array_get(parts, state->optimizer));
    const json_t *had = json_object_get(json_object_get(inner, "state"), "common_step");
    if (json_object_set_new(made, key, whole ? json_integer(step.whole) : json_real(step.real)) < 0)
        *why = s2s_xasprintf("%s is no number", state->tensor.name);
    else if (had && !json_equal(had, made))
        *why = s2s_xasprintf("%s is not the step of the other parameters", state->tensor.name);
    else if (!had)
        json_object_set_new(inner, "state", json_pack("{s:O}", "common_step", made));
    json_decref(made);
    return rc;
}

/* ---- groups of parameters ---- */

/* Are these the same parameter group, by the keys that Megatron-Core uses
 * (param_group_identifier_keys)? NeMo renames some. */
static bool is_same_group(const json_t *a, const json_t *b)
{
    static const char *const keys[] = {"wd_mult",         "lr_mult",    "is_expert_parallel",
                                       "is_decoupled_lr", "max_lr",     "min_lr",
                                       "pre_wd_mult",     "pre_lr_mult"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *x = json_object_get(a, keys[i]), *y = json_object_get(b, keys[i]);
        if ((x != NULL) != (y != NULL) || (x && !json_equal(x, y)))
            return false;
    }
    return true;
}

/* Adds the groups of another rank: in older releases a rank without parameters of a group lacks the
 * group. false: a group is at another step there (FusedAdam counts it in the group). */
static bool add_groups(json_t *part, json_t *other)
{
    json_t *groups = json_object_get(inner_of(part), "param_groups"), *group, *known;
    bool same = true;
    size_t i, k;
    json_array_foreach(json_object_get(inner_of(other), "param_groups"), i, group)
    {
        const json_t *found = NULL, *a, *b;
        json_array_foreach(groups, k, known)
        {
            if (!found && is_same_group(known, group))
                found = known;
        }
        if (!found) {
            json_array_append(groups, group);
            continue;
        }
        a = json_object_get(found, "step");
        b = json_object_get(group, "step");
        same = same && (!a || !b || json_equal(a, b));
    }
    return same;
}

/* All optimizers as Megatron-Core stores them: one alone, or an object "0", "1", ... Gives a
 * reference. */
static json_t *common_of(json_t *parts)
{
    json_t *out = json_object(), *part;
    size_t i;
    if (json_array_size(parts) == 1) {
        json_decref(out);
        return json_incref(json_array_get(parts, 0));
    }
    json_array_foreach(parts, i, part)
    {
        char number[24];
        snprintf(number, sizeof number, "%zu", i);
        json_object_set(out, number, part);
    }
    return out;
}

/* ---- tensors ---- */

static int cut(struct merge *m, const struct ckpt_state *state, size_t n_parts)
{
    struct s2s_ckpt_tensor tensor = state->tensor;
    struct merge_local local;
    tensor.name = state->param;
    int rc = ckpt_merge_find_local(&local, m, &tensor);
    if (rc < 0)
        return rc;
    local.from = state->tensor.name;
    char *global = ckpt_merge_global_name(m, &local), chained[40] = "";
    if (n_parts > 1)
        snprintf(chained, sizeof chained, "chained_%zu.", state->optimizer);
    char *name = s2s_xasprintf("%soptimizer.state.%s.%s", chained, state->key, global);
    rc = ckpt_merge_cut(m, &local, name);
    free(global);
    free(name);
    return rc;
}

/* Merges another rank's k-th optimizer into parts. false: it is at another step. */
static bool join_part(json_t *parts, size_t k, json_t *part)
{
    if (k < json_array_size(parts))
        return add_groups(json_array_get(parts, k), part);
    json_array_append_new(parts, part = json_deep_copy(part));
    /* the first rank, without this optimizer, loads its state from the common state */
    if (!json_object_get(inner_of(part), "state"))
        json_object_set_new(inner_of(part), "state", json_object());
    return true;
}

/* Merges what is not in tensors: an array of optimizers. *why (gives: free): ranks disagree. Gives
 * a reference. */
static json_t *join_parts(const struct s2s_ckpt *ckpt, char **why)
{
    json_t *parts = json_deep_copy(ckpt->rank_states->parts), *part;
    size_t k;
    for (size_t i = 1; i < ckpt->n_rank_states; i++)
        json_array_foreach(ckpt->rank_states[i].parts, k, part)
        {
            if (!*why && !join_part(parts, k, part))
                *why = s2s_xasprintf("%s is of another step than %s", ckpt->rank_states[i].folder,
                                     ckpt->rank_states->folder);
        }
    return parts;
}

int ckpt_merge_optimizer(struct merge *m)
{
    struct s2s_ckpt *ckpt = m->ckpt;
    json_t *parts = NULL;
    int rc = 0;
    if (ckpt->n_rank_states == 0)
        return 0;
    char *why = why_not(m);
    if (!why)
        parts = join_parts(ckpt, &why);
    for (size_t i = 0; i < ckpt->n_states && rc == 0 && !why; i++) {
        rc = check_master(m, &ckpt->states[i], &why);
        if (rc == 0 && !why)
            rc = check_step(m, &ckpt->states[i], parts, &why);
    }
    for (size_t i = 0; i < ckpt->n_states && rc == 0 && !why; i++)
        if (strcmp(ckpt->states[i].key, "step") != 0)
            rc = cut(m, &ckpt->states[i], json_array_size(parts));
    if (rc == 0 && !why) {
        m->optimizer = common_of(parts);
        ckpt->n_left_states = 0;
    } else if (rc == 0) {
        s2s_warn("ckpt", "%s: the optimizer of the rank folders is left out: %s", ckpt->path, why);
    }
    free(why);
    json_decref(parts);
    return rc;
}
