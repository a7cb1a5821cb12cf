/*
 * NeMo's checkpoints: model_config.yaml and either one model_weights.ckpt (torch.save), or one in
 * the folder of each model-parallel rank, or a distributed checkpoint in model_weights/; in a tar
 * (.nemo) or unpacked. nemo_members.c lists the members, which are read in place.
 */
#include "lib/base/base.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/read/read_internal.h"

enum { MAX_CONFIG = 16 << 20, MAX_BACKEND = 1 << 20 };

struct nemo {
    struct s2s_ckpt *ckpt;
    const char *path;
    char *root; /* the model's folder among the members: "" or "NAME/" */
    size_t n_ranks;
    struct s2s_error *err;
};

/* ---- the model's folder ---- */

static size_t n_slashes(const char *name)
{
    size_t n = 0;
    for (; *name; name++)
        n += *name == '/';
    return n;
}

/* The folder of the member with this file name that is nested least deeply; NULL: none. Gives:
 * free. */
static char *folder_of(const struct s2s_ckpt *ckpt, const char *last)
{
    const struct ckpt_member *found = NULL;
    for (size_t i = 0; i < ckpt->n_members; i++) {
        const struct ckpt_member *member = &ckpt->members[i];
        if (s2s_has_tail(member->name, '/', last) &&
            (!found || n_slashes(member->name) < n_slashes(found->name)))
            found = member;
    }
    return found ? s2s_xstrndup(found->name, strlen(found->name) - strlen(last)) : NULL;
}

/* Gives: free. */
static char *find_root(const struct s2s_ckpt *ckpt)
{
    char *root = folder_of(ckpt, CKPT_NEMO_CONFIG), *rank;
    if (!root)
        root = folder_of(ckpt, CKPT_NEMO_WEIGHTS);
    /* the model's folder is the one above a rank's */
    if (root && ((rank = strstr(root, "mp_rank_")) || (rank = strstr(root, "tp_rank_"))) &&
        (rank == root || rank[-1] == '/'))
        *rank = 0;
    return root ? root : s2s_xstrdup("");
}

static const struct ckpt_member *find(const struct nemo *n, const char *name)
{
    char *full = s2s_xasprintf("%s%s", n->root, name);
    const struct ckpt_member *member = ckpt_find_member(n->ckpt, full);
    free(full);
    return member;
}

/* ---- the configuration ---- */

/* Has the model an encoder, beside a language model or alone? */
static bool has_encoder(const json_t *config)
{
    return json_is_object(json_object_get(config, "encoder")) ||
           json_is_object(json_object_get(config, "perception"));
}

/* Takes config, as "model_config" of the common state. */
static void keep_config(struct s2s_ckpt *ckpt, json_t *config)
{
    if (!has_encoder(config))
        ckpt_read_nemo_args(ckpt, config);
    if (!ckpt->common)
        ckpt->common = json_object();
    json_object_set_new(ckpt->common, "model_config", config);
}

static int read_config(struct nemo *n)
{
    const struct ckpt_member *member = find(n, CKPT_NEMO_CONFIG);
    json_t *value;
    char *text;
    if (!member || member->span.len_bytes == 0)
        return 0;
    int rc = ckpt_slurp_span(n->ckpt, &member->span, MAX_CONFIG, &text, n->err);
    if (rc < 0)
        return s2s_error_add(n->err, rc, "%s: %s", n->path, member->name);
    rc = ckpt_parse_yaml(&value, text, (size_t)member->span.len_bytes, CKPT_NEMO_CONFIG, n->err);
    free(text);
    if (rc < 0)
        return s2s_error_add(n->err, rc, "%s", n->path);
    if (value)
        keep_config(n->ckpt, value);
    return 0;
}

int s2s_ckpt_take_nemo_config(struct s2s_ckpt *ckpt, const char *text, const char *name,
                              struct s2s_error *err)
{
    json_t *value;
    int rc = ckpt_parse_yaml(&value, text, strlen(text), name, err);
    if (rc < 0)
        return rc;
    if (!has_encoder(value) && !json_is_integer(json_object_get(value, "num_attention_heads"))) {
        json_decref(value);
        return s2s_error_set(err, S2S_E_FORMAT,
                             "%s: not a model_config.yaml of NeMo: it has neither encoder nor "
                             "perception, nor the num_attention_heads of a language model",
                             name);
    }
    keep_config(ckpt, value);
    return 0;
}

/* ---- the weights ---- */

static int read_torch(struct nemo *n, const struct ckpt_member *member, const char *prefix)
{
    struct ckpt_torch_source source = {.file = n->ckpt->files[member->span.file].name,
                                       .prefix = prefix,
                                       .begin = member->span.begin,
                                       .len_bytes = member->span.len_bytes};
    int rc = ckpt_read_torch(n->ckpt, &source, n->err);
    return rc < 0 ? s2s_error_add(n->err, rc, "%s", member->name) : 0;
}

/* Translates "mp_rank_01/model_weights.ckpt" or "tp_rank_01_pp_rank_002/model_weights.ckpt" to
 * Megatron's name of the folder. */
static bool rank_folder(const struct nemo *n, const char *name, char folder[32])
{
    int tp, pp, end = -1;
    const size_t root_len = strlen(n->root);
    if (strncmp(name, n->root, root_len) != 0)
        return false;
    name += root_len;
    if (sscanf(name, "mp_rank_%2d/%n", &tp, &end) == 1 && end > 0 &&
        strcmp(name + end, CKPT_NEMO_WEIGHTS) == 0) {
        snprintf(folder, 32, "mp_rank_%02d", tp);
        return tp >= 0;
    }
    end = -1;
    if (sscanf(name, "tp_rank_%2d_pp_rank_%3d/%n", &tp, &pp, &end) == 2 && end > 0 &&
        strcmp(name + end, CKPT_NEMO_WEIGHTS) == 0) {
        snprintf(folder, 32, "mp_rank_%02d_%03d", tp, pp);
        return tp >= 0 && pp >= 0;
    }
    return false;
}

static int read_ranks(struct nemo *n)
{
    char folder[32], prefix[40];
    int rc = 0;
    for (size_t i = 0; i < n->ckpt->n_members && rc == 0; i++) {
        if (!rank_folder(n, n->ckpt->members[i].name, folder))
            continue;
        if (!n->ckpt->common)
            n->ckpt->common = json_object();
        json_object_set_new(n->ckpt->common, folder, json_object());
        snprintf(prefix, sizeof prefix, "%s/", folder);
        rc = read_torch(n, &n->ckpt->members[i], prefix);
        n->n_ranks++;
    }
    if (rc == 0 && n->n_ranks)
        n->ckpt->format = "mp_rank";
    return rc;
}

static int refuse_zarr(const struct nemo *n)
{
    int rc =
        s2s_error_set(n->err, S2S_E_UNSUPPORTED,
                      "%s: its weights are a zarr checkpoint (Megatron-Core before 0.15)", n->path);
    return s2s_error_hint(n->err, rc, "load and save it with Megatron-Core 0.14 as torch_dist");
}

static int check_backend(struct nemo *n)
{
    char *text, backend[64];
    const size_t len = strlen(n->ckpt->inside);
    for (size_t i = 0; i < n->ckpt->n_members; i++) {
        const char *name = n->ckpt->members[i].name, *last = strrchr(name, '/');
        if (strncmp(name, n->ckpt->inside, len) == 0 && last && strcmp(last, "/.zarray") == 0)
            return refuse_zarr(n);
    }
    char *name = s2s_xasprintf("%smetadata.json", n->ckpt->inside);
    const struct ckpt_member *member = ckpt_find_member(n->ckpt, name);
    free(name);
    if (!member)
        return 0;
    int rc = ckpt_slurp_span(n->ckpt, &member->span, MAX_BACKEND, &text, n->err);
    if (rc < 0)
        return s2s_error_add(n->err, rc, "%s: %s", n->path, member->name);
    rc = ckpt_parse_backend(text, (size_t)member->span.len_bytes, backend, n->err);
    free(text);
    if (rc < 0)
        return s2s_error_add(n->err, rc, "%s: %s", n->path, n->ckpt->inside);
    if (strcmp(backend, "zarr") == 0)
        return refuse_zarr(n);
    return *backend && strcmp(backend, "torch_dist") != 0
               ? s2s_error_set(n->err, S2S_E_UNSUPPORTED,
                               "%s: %s: sharded_backend \"%s\" is not known here; torch_dist is",
                               n->path, member->name, backend)
               : 0;
}

/* The folder of a distributed checkpoint; NULL: none. Gives: free. */
static char *dist_folder(const struct nemo *n)
{
    static const char *const marks[] = {"model_weights/.metadata", "model_weights/metadata.json",
                                        "weights/.metadata", "weights/metadata.json"};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (find(n, marks[i]))
            return s2s_xasprintf("%s%.*s", n->root, (int)(strchr(marks[i], '/') - marks[i] + 1),
                                 marks[i]);
    return NULL;
}

static int read_dist(struct nemo *n, const char *folder)
{
    n->ckpt->inside = ckpt_arena_text(n->ckpt, folder, strlen(folder));
    int rc = check_backend(n);
    if (rc < 0)
        return rc;
    rc = ckpt_read_dcp(n->ckpt, n->err);
    if (rc == 0)
        rc = ckpt_seal(n->ckpt, n->err);
    if (rc == 0)
        rc = ckpt_read_common(n->ckpt, n->err);
    return rc < 0 ? s2s_error_add(n->err, rc, "%s: %s", n->path, folder) : 0;
}

static int read_weights(struct nemo *n)
{
    const struct ckpt_member *weights = find(n, CKPT_NEMO_WEIGHTS);
    char *folder = dist_folder(n);
    int rc;
    if (weights)
        rc = read_torch(n, weights, "");
    else if (folder)
        rc = read_dist(n, folder);
    else
        rc = read_ranks(n);
    if (rc == 0 && !weights && !folder && !n->n_ranks) {
        rc = s2s_error_set(n->err, S2S_E_FORMAT,
                           "%s: a tar without " CKPT_NEMO_WEIGHTS ", so not a .nemo", n->path);
        s2s_error_hint(n->err, rc,
                       "tars that PyTorch saved before its version 0.1.10 are not read either");
    }
    free(folder);
    return rc;
}

int ckpt_read_nemo(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    const bool is_file = ckpt->dir_fd < 0;
    struct nemo n = {.ckpt = ckpt, .path = is_file ? ckpt->path : "NeMo model", .err = err};
    int rc = is_file ? ckpt_nemo_members(ckpt, err) : ckpt_nemo_folder(ckpt, err);
    if (rc < 0)
        return rc;
    n.root = find_root(ckpt);
    ckpt->root = ckpt_arena_text(ckpt, n.root, strlen(n.root));
    rc = read_weights(&n);
    if (rc == 0)
        rc = read_config(&n);
    free(n.root);
    return rc;
}
