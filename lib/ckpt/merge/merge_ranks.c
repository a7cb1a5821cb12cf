/* Megatron's rank folders: the rank of each, and checks that all of one model are there. */
#include "lib/ckpt/merge/merge_internal.h"

#include "lib/base/base.h"

const json_t *ckpt_merge_args(const struct merge *m)
{
    const json_t *own = json_object_get(m->ckpt->common, m->ranks[0].folder);
    return json_object_get(own, "args");
}

int64_t ckpt_merge_arg(const struct merge *m, const char *name, int64_t absent)
{
    const json_t *value = json_object_get(ckpt_merge_args(m), name);
    return json_is_integer(value) ? json_integer_value(value) : absent;
}

static int add_rank(struct merge *m, const char *folder)
{
    struct merge_rank rank = {.at = {0}};
    int second = -1, third = -1, end = 0;
    int n = sscanf(folder, "mp_rank_%2d%n_%3d%n_%3d%n", &rank.at[TP], &end, &second, &end, &third,
                   &end);
    if (n < 1 || rank.at[TP] < 0 || second < -1 || third < -1 || folder[end] ||
        strlen(folder) >= sizeof rank.folder)
        return s2s_error_set(m->err, S2S_E_FORMAT, "%s: no folder of a Megatron rank", folder);
    snprintf(rank.folder, sizeof rank.folder, "%s", folder);
    rank.at[PP] = second < 0 ? 0 : second;
    rank.at[EP] = third < 0 ? 0 : third;
    s2s_grow(&m->ranks, m->n_ranks, &m->cap_ranks, sizeof *m->ranks);
    m->ranks[m->n_ranks++] = rank;
    /* without pipeline parallelism the second number is the expert rank */
    if (second >= 0 && third < 0 && ckpt_merge_arg(m, "pipeline_model_parallel_size", 2) == 1) {
        m->ranks[m->n_ranks - 1].at[PP] = 0;
        m->ranks[m->n_ranks - 1].at[EP] = second;
    }
    return 0;
}

static int by_folder(const void *a, const void *b)
{
    return strcmp(((const struct merge_rank *)a)->folder, ((const struct merge_rank *)b)->folder);
}

int ckpt_merge_list_ranks(struct merge *m)
{
    const char *key;
    json_t *value;
    int rc = 0;
    json_object_foreach(m->ckpt->common, key, value)
    {
        if (rc == 0 && strcmp(key, "model_config") != 0) /* NeMo's configuration, not a rank */
            rc = add_rank(m, key);
    }
    if (rc == 0 && m->n_ranks == 0)
        rc = s2s_error_set(m->err, S2S_E_FORMAT, "no rank folder");
    if (m->n_ranks)
        qsort(m->ranks, m->n_ranks, sizeof *m->ranks, by_folder);
    for (size_t i = 0; rc == 0 && i < m->n_ranks; i++)
        for (int d = 0; d < N_AXES; d++)
            m->size[d] = m->ranks[i].at[d] >= m->size[d] ? m->ranks[i].at[d] + 1 : m->size[d];
    return rc;
}

const struct merge_rank *ckpt_merge_find_rank(const struct merge *m, const char *folder, size_t len)
{
    struct merge_rank key;
    if (len >= sizeof key.folder)
        return NULL;
    snprintf(key.folder, sizeof key.folder, "%.*s", (int)len, folder);
    return bsearch(&key, m->ranks, m->n_ranks, sizeof key, by_folder);
}

/* ---- completeness ---- */

static bool has_rank(const struct merge *m, int tp, int pp, int ep)
{
    for (size_t i = 0; i < m->n_ranks; i++)
        if (m->ranks[i].at[TP] == tp && m->ranks[i].at[PP] == pp && m->ranks[i].at[EP] == ep)
            return true;
    return false;
}

/* Is every shard of the dense layers in some folder of each stage, and every shard of all experts?
 */
static bool is_covered(const struct merge *m, int etp)
{
    const int tp = m->size[TP], ep = m->size[EP];
    bool covered = true;
    for (int p = 0; p < m->size[PP] && covered; p++) {
        for (int t = 0; t < tp && covered; t++) {
            covered = false;
            for (int e = 0; e < ep && !covered; e++)
                covered = has_rank(m, t, p, e);
        }
        for (int i = 0; i < etp * ep && covered; i++) {
            covered = false;
            for (int t = i % etp; t < tp && !covered; t += etp)
                covered = has_rank(m, t, p, i / etp);
        }
    }
    return covered;
}

/*
 * Could all folders be those of this etp? Megatron-Core makes rank r of a stage tensor rank r % tp,
 * with shard r % etp of the experts of expert rank r / etp % ep; so not all pairs of tp and ep
 * exist.
 */
static bool may_have_etp(const struct merge *m, int etp)
{
    const int tp = m->size[TP], ep = m->size[EP];
    for (size_t i = 0; i < m->n_ranks; i++) {
        bool possible = false;
        for (int r = m->ranks[i].at[TP]; r < tp * etp * ep && !possible; r += tp)
            possible = r / etp % ep == m->ranks[i].at[EP];
        if (!possible)
            return false;
    }
    return true;
}

/* Derives etp from the folders if the arguments do not say it; 0: ambiguous. */
static int guess_etp(const struct merge *m)
{
    int found = 0;
    if (is_covered(m, m->size[TP]))
        return m->size[TP];
    for (int etp = 1; etp < m->size[TP]; etp++)
        if (m->size[TP] % etp == 0 && may_have_etp(m, etp) && is_covered(m, etp)) {
            if (found)
                return 0;
            found = etp;
        }
    return found;
}

/* Sets m->etp. A folder is named by its tensor and its expert rank; this determines its shard of
 * the experts only if etp divides tp. */
static int find_etp(struct merge *m)
{
    const int64_t said = ckpt_merge_arg(m, "expert_tensor_parallel_size", 0);
    const char *why = NULL;
    m->etp = m->size[TP];
    if (m->n_local == 0)
        return 0;
    if (said > m->size[TP])
        why = "its ranks share folders, each of which keeps the part of the last one that wrote it";
    else if (said > 0 && m->size[TP] % said)
        why = "the name of a folder does not tell which part of the experts is in it";
    else if (json_is_true(json_object_get(ckpt_merge_args(m), "moe_extended_tp")))
        return s2s_error_set(m->err, S2S_E_UNSUPPORTED,
                             "experts cut over tensor and expert ranks (moe_extended_tp)");
    if (why) {
        int rc = s2s_error_set(m->err, S2S_E_UNSUPPORTED,
                               "expert_tensor_parallel_size %lld does not divide "
                               "tensor_model_parallel_size %d: %s",
                               (long long)said, m->size[TP], why);
        return s2s_error_hint(m->err, rc, "such a model has to be saved as torch_dist");
    }
    m->etp = said > 0 ? (int)said : guess_etp(m);
    m->etp = m->etp ? m->etp : m->size[TP];
    return 0;
}

/* Refuses folders of two runs, or of two steps of one. */
static int check_same_run(const struct merge *m)
{
    static const char *const same[] = {"tensor_model_parallel_size", "pipeline_model_parallel_size",
                                       "expert_model_parallel_size", "num_layers", "hidden_size"};
    const json_t *first = json_object_get(m->ckpt->common, m->ranks[0].folder);
    for (size_t i = 1; i < m->n_ranks; i++) {
        const json_t *own = json_object_get(m->ckpt->common, m->ranks[i].folder);
        const char *what = "iteration";
        const json_t *a = json_object_get(first, what), *b = json_object_get(own, what);
        for (size_t k = 0; (!a || !b || json_equal(a, b)) && k < sizeof same / sizeof *same; k++) {
            what = same[k];
            a = json_object_get(ckpt_merge_args(m), what);
            b = json_object_get(json_object_get(own, "args"), what);
        }
        if (json_is_integer(a) && json_is_integer(b) && !json_equal(a, b))
            return s2s_error_set(m->err, S2S_E_FORMAT, "%s has %s %lld, %s has %lld",
                                 m->ranks[0].folder, what, (long long)json_integer_value(a),
                                 m->ranks[i].folder, (long long)json_integer_value(b));
    }
    return 0;
}

/* The first missing folder, for the error; only of dense models, as experts may be sharded in
 * several ways. */
static void name_missing(const struct merge *m, char folder[64])
{
    *folder = 0;
    for (int p = 0; m->size[EP] == 1 && p < m->size[PP]; p++)
        for (int t = 0; t < m->size[TP] && !*folder; t++)
            if (!has_rank(m, t, p, 0) && m->size[PP] > 1)
                snprintf(folder, 64, ", mp_rank_%02d_%03d first", t, p);
            else if (!has_rank(m, t, p, 0))
                snprintf(folder, 64, ", mp_rank_%02d first", t);
}

int ckpt_merge_check_ranks(struct merge *m)
{
    static const char *const names[N_AXES] = {
        "tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size"};
    for (int d = 0; d < N_AXES; d++) {
        int64_t said = ckpt_merge_arg(m, names[d], m->size[d]);
        if (said != m->size[d])
            return s2s_error_set(m->err, S2S_E_NOTFOUND,
                                 "the saved arguments say %s %lld, the rank folders are of %d",
                                 names[d], (long long)said, m->size[d]);
    }
    int rc = check_same_run(m);
    if (rc == 0)
        rc = find_etp(m);
    if (rc < 0)
        return rc;
    if (!is_covered(m, m->etp)) {
        char cut[40] = "", first[64];
        name_missing(m, first);
        if (m->n_local &&
            (m->etp != m->size[TP] || ckpt_merge_arg(m, "expert_tensor_parallel_size", 0)))
            snprintf(cut, sizeof cut, " (experts cut into %d)", m->etp);
        return s2s_error_set(
            m->err, S2S_E_NOTFOUND,
            "%zu rank folder%s cannot make tp %d x pp %d x ep %d%s: some are missing%s", m->n_ranks,
            s2s_plural(m->n_ranks), m->size[TP], m->size[PP], m->size[EP], cut, first);
    }
    const int64_t experts = ckpt_merge_arg(m, "num_experts", 0);
    if (m->n_local && experts > 0 && experts != m->n_local * m->size[EP])
        return s2s_error_set(m->err, S2S_E_SHAPE,
                             "the saved arguments say num_experts %lld, the rank folders have %lld",
                             (long long)experts, (long long)(m->n_local * m->size[EP]));
    return 0;
}

/* ---- contents ---- */

/* Have they the same stage and experts? */
static bool is_peer(const struct merge_rank *a, const struct merge_rank *b)
{
    return a->at[PP] == b->at[PP] && a->at[EP] == b->at[EP];
}

/* Does that folder have t, with the same dtype and shape? */
static int check_in(const struct merge *m, const struct s2s_ckpt_tensor *t, const char *folder)
{
    char *name = s2s_xasprintf("%s%s", folder, strchr(t->name, '/'));
    const struct s2s_ckpt_tensor *other = s2s_ckpt_find(m->ckpt, name);
    int rc = 0;
    if (!other)
        rc = s2s_error_set(m->err, S2S_E_NOTFOUND, "%s is not there, but %s is", name, t->name);
    else if (other->dtype != t->dtype ||
             !ckpt_same_shape(other->shape, other->n_dims, t->shape, t->n_dims))
        rc = s2s_error_set(m->err, S2S_E_SHAPE, "%s and %s have other shapes or dtypes", name,
                           t->name);
    free(name);
    return rc;
}

int ckpt_merge_check_peers(struct merge *m)
{
    struct merge_local local;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < m->ckpt->n_tensors; i++) {
        const struct s2s_ckpt_tensor *t = &m->ckpt->tensors[i];
        if ((rc = ckpt_merge_find_local(&local, m, t)) < 0 || ckpt_merge_is_extra(local.name))
            continue;
        /* the first rank's tensors are compared with all others, the others' with the first rank's
         */
        for (const struct merge_rank *rank = m->ranks; rc == 0 && rank < m->ranks + m->n_ranks;
             rank++) {
            if (!is_peer(rank, local.rank))
                continue;
            if (rank != local.rank)
                rc = check_in(m, t, rank->folder);
            if (rank < local.rank)
                break;
        }
    }
    return rc;
}
