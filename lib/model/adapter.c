/* PEFT folders in and out, and adapters that become a part of their maps. */
#include "lib/model/adapter.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/base/affix.h"
#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/conf/conf.h"
#include "lib/io/outfile.h"
#include "lib/model/model_internal.h"
#include "lib/nn/lora.h"

static const char PEFT[] = "base_model.model.";

/* Whether it is one of this decoder's adapters. */
static bool is_own(const struct s2s_model *llm, const struct s2s_param *p)
{
    return s2s_starts_with(p->name, llm->prefix) && s2s_lora_is_adapter(p->name);
}

/* A name of the decoder as transformers has it in memory, or the other way: gives: free. */
static char *other_stem(const char *name, int len, const char *from, const char *to)
{
    const bool differs = from && s2s_starts_with(name, from);
    const int skip = differs ? (int)strlen(from) : 0;
    return s2s_xasprintf("%s%.*s", differs ? to : "", len - skip, name + skip);
}

static char *in_memory(const struct s2s_model *llm, const char *name, int len)
{
    return other_stem(name, len, llm->kind->stem, llm->kind->stem_in_memory);
}

/* The adapter's name in a PEFT file; gives: free. */
static char *peft_name(const struct s2s_model *llm, const struct s2s_param *p)
{
    const char *local = p->name + strlen(llm->prefix);
    char *name = in_memory(llm, local, (int)strlen(local));
    char *full = s2s_xasprintf("%s%s", PEFT, name);
    free(name);
    return full;
}

/* That a PEFT file names so, or NULL. */
static struct s2s_param *find_peft(const struct s2s_model *llm, const char *name)
{
    if (!s2s_starts_with(name, PEFT))
        return NULL;
    const char *local = name + strlen(PEFT);
    char *stored =
        other_stem(local, (int)strlen(local), llm->kind->stem_in_memory, llm->kind->stem);
    char *full = s2s_xasprintf("%s%s", llm->prefix, stored);
    struct s2s_param *p = s2s_params_find(llm->params, full);
    free(full);
    free(stored);
    return p;
}

/* ---- in ---- */

static int check_extra(const struct s2s_model *llm, const struct s2s_safetensors *st,
                       struct s2s_error *err)
{
    for (size_t i = 0; i < st->n_tensors; i++)
        if (!find_peft(llm, st->tensors[i].name))
            return s2s_error_set(err, S2S_E_UNSUPPORTED, "the model has no place for %s",
                                 st->tensors[i].name);
    return 0;
}

static int set_adapters(const struct s2s_model *llm, const struct s2s_safetensors *st,
                        struct s2s_error *err)
{
    const struct s2s_params *params = llm->params;
    int rc = check_extra(llm, st, err);
    for (size_t i = 0; rc == 0 && i < params->n; i++) {
        struct s2s_param *p = params->list[i];
        if (!s2s_param_is_here(p) || !is_own(llm, p))
            continue;
        char *name = peft_name(llm, p);
        const struct s2s_st_tensor *t = s2s_safetensors_find(st, name);
        rc = t ? model_set_param(p, t, err)
               : s2s_error_set(err, S2S_E_NOTFOUND, "%s is absent", name);
        free(name);
    }
    return rc;
}

int s2s_adapter_load(struct s2s_model *llm, struct s2s_error *err)
{
    const struct s2s_lora *lora = llm->options.lora;
    struct s2s_safetensors st;
    if (!lora || !lora->path)
        return 0;
    char *path = s2s_xasprintf("%s/adapter_model.safetensors", lora->path);
    int rc = s2s_safetensors_open(&st, path, err);
    if (rc == 0) {
        if ((rc = set_adapters(llm, &st, err)) < 0)
            s2s_error_add(err, rc, "%s", path);
        s2s_safetensors_release(&st);
    }
    free(path);
    return rc;
}

/* ---- out ---- */

/* The map's name, of an adapter's first matrix: of len characters from the result on. */
static const char *map_of(const struct s2s_model *llm, const struct s2s_param *a, int *len)
{
    const char *name = a->name + strlen(llm->prefix);
    *len = (int)(strlen(name) - strlen("." S2S_LORA_A));
    return name;
}

/* Whether every weight of this last name ("q_proj") has an adapter: then PEFT finds them by it. */
static bool all_have_one(const struct s2s_model *llm, const char *last, int len)
{
    char *tail = s2s_xasprintf("%.*s.weight", len, last);
    bool all = true;
    for (size_t i = 0; i < llm->params->n; i++) {
        const struct s2s_param *p = llm->params->list[i];
        if (!s2s_starts_with(p->name, llm->prefix) || !s2s_has_tail(p->name, '.', tail))
            continue;
        char *a =
            s2s_xasprintf("%.*s%s", (int)(strlen(p->name) - strlen("weight")), p->name, S2S_LORA_A);
        all &= s2s_params_find(llm->params, a) != NULL;
        free(a);
    }
    free(tail);
    return all;
}

/* Last names, or where others of that name have no adapter, whole ones; each once. */
static json_t *modules_of(const struct s2s_model *llm)
{
    json_t *seen = json_object(), *modules = json_array();
    for (size_t i = 0; i < llm->params->n; i++) {
        const struct s2s_param *p = llm->params->list[i];
        int len;
        if (!is_own(llm, p) || !s2s_ends_with(p->name, S2S_LORA_A))
            continue;
        const char *name = map_of(llm, p, &len), *last = name;
        for (const char *at = name; at < name + len; at++)
            last = *at == '.' ? at + 1 : last;
        if (all_have_one(llm, last, len - (int)(last - name))) {
            len -= (int)(last - name);
            name = last;
        }
        char *item = in_memory(llm, name, len);
        if (!json_object_get(seen, item)) {
            json_object_set_new(seen, item, json_true());
            json_array_append_new(modules, json_string(item));
        }
        free(item);
    }
    json_decref(seen);
    return modules;
}

static int write_text(const char *path, const char *text, struct s2s_error *err)
{
    struct s2s_outfile *out;
    int rc = s2s_outfile_open(&out, path, err);
    if (rc < 0)
        return rc;
    if ((rc = s2s_outfile_write(out, text, strlen(text), err)) < 0) {
        s2s_outfile_abort(out);
        return rc;
    }
    return s2s_outfile_commit(out, err);
}

static int save_config(const struct s2s_model *llm, const char *base, const char *dir,
                       struct s2s_error *err)
{
    const struct s2s_lora *lora = llm->options.lora;
    json_t *config = json_pack(
        "{s:s, s:s, s:s, s:b, s:b, s:b, s:f, s:f, s:I, s:o, s:s, s:b, s:b}",
        "base_model_name_or_path", base ? base : "", "peft_type", "LORA", "bias", "none",
        "fan_in_fan_out", 0, "inference_mode", 1, "init_lora_weights", 1, "lora_alpha", lora->alpha,
        "lora_dropout", lora->dropout, "r", (json_int_t)lora->rank, "target_modules",
        modules_of(llm), "task_type", "CAUSAL_LM", "use_dora", 0, "use_rslora", 0);
    if (!config)
        S2S_BUG("%s: the adapter's config is no JSON", dir);
    char *text = json_dumps(config, JSON_INDENT(2) | JSON_SORT_KEYS);
    char *path = s2s_xasprintf("%s/adapter_config.json", dir);
    int rc = write_text(path, text, err);
    free(path);
    free(text);
    json_decref(config);
    return rc;
}

static int save_weights(const struct s2s_model *llm, const char *dir, struct s2s_error *err)
{
    const struct s2s_params *params = llm->params;
    struct s2s_st_tensor *tensors = s2s_xcalloc(params->n + 1, sizeof *tensors);
    struct s2s_st_meta meta = {"format", "pt"};
    size_t n = 0;
    for (size_t i = 0; i < params->n; i++) {
        const struct s2s_param *p = params->list[i];
        if (!is_own(llm, p))
            continue;
        float *host = s2s_xcalloc((size_t)p->numel + 1, sizeof *host);
        s2s_param_get(p, host);
        tensors[n++] = (struct s2s_st_tensor){.name = peft_name(llm, p),
                                              .dtype = S2S_F32,
                                              .n_dims = 2,
                                              .shape = {p->shape[0], p->shape[1]},
                                              .data = host,
                                              .len_bytes = (size_t)p->numel * sizeof *host};
    }
    char *path = s2s_xasprintf("%s/adapter_model.safetensors", dir);
    int rc = s2s_safetensors_save(path, tensors, n, &meta, 1, err);
    for (size_t i = 0; i < n; i++) {
        free((char *)tensors[i].name);
        free((void *)tensors[i].data);
    }
    free(tensors);
    free(path);
    return rc;
}

int s2s_adapter_save(const struct s2s_model *llm, const char *base, const char *dir,
                     struct s2s_error *err)
{
    if (mkdir(dir, 0777) < 0 && errno != EEXIST)
        return s2s_error_errno(err, S2S_E_OPEN, "%s", dir);
    int rc = save_weights(llm, dir, err);
    return rc < 0 ? rc : save_config(llm, base, dir, err);
}

/* ---- merged ---- */

/* w += scale b a, of host matrices [out, in], [out, rank], [rank, in] */
static void add_product(struct s2s_device *device, float *w, const float *b, const float *a,
                        int64_t out, int64_t in, int64_t rank, float scale, void *memory)
{
    const struct s2s_kernels *k = device->kernels;
    const size_t bytes[3] = {(size_t)(out * in) * sizeof *w, (size_t)(out * rank) * sizeof *b,
                             (size_t)(rank * in) * sizeof *a};
    char *to[3] = {memory, (char *)memory + bytes[0], (char *)memory + bytes[0] + bytes[1]};
    k->copy_in(&device->queue, to[0], w, bytes[0]);
    k->copy_in(&device->queue, to[1], b, bytes[1]);
    k->copy_in(&device->queue, to[2], a, bytes[2]);
    k->gemm(&device->queue, &(struct s2s_k_gemm){.a = {to[1], rank, S2S_F32},
                                                 .b = {to[2], in, S2S_F32},
                                                 .c = {to[0], in, S2S_F32},
                                                 .m = out,
                                                 .n = in,
                                                 .k = rank,
                                                 .alpha = scale,
                                                 .accumulate = true});
    k->copy_out(&device->queue, w, to[0], bytes[0]);
}

static int merge_one(struct s2s_model *llm, const struct s2s_param *a, struct s2s_error *err)
{
    struct s2s_device *device = llm->params->device;
    int len;
    const char *map = map_of(llm, a, &len);
    char *names[2] = {s2s_xasprintf("%s%.*s.weight", llm->prefix, len, map),
                      s2s_xasprintf("%s%.*s.%s", llm->prefix, len, map, S2S_LORA_B)};
    struct s2s_param *w = s2s_params_find(llm->params, names[0]);
    const struct s2s_param *b = s2s_params_find(llm->params, names[1]);
    float *host = s2s_xcalloc((size_t)(w->numel + b->numel + a->numel) + 1, sizeof *host);
    float *low = host + w->numel;
    void *memory = device->kernels->alloc(&device->queue,
                                          (size_t)(w->numel + b->numel + a->numel) * sizeof *host);
    int rc = memory ? 0 : s2s_error_set(err, S2S_E_NOMEM, "no room to merge %s", names[0]);
    if (rc == 0) {
        s2s_param_get(w, host);
        s2s_param_get(b, low);
        s2s_param_get(a, low + b->numel);
        add_product(device, host, low, low + b->numel, w->shape[0], w->shape[1], a->shape[0],
                    (float)(llm->options.lora->alpha / (double)a->shape[0]), memory);
        s2s_param_set_local(w, host);
    }
    device->kernels->free(&device->queue, memory);
    free(host);
    free(names[0]);
    free(names[1]);
    return rc;
}

int s2s_adapter_merge(struct s2s_model *llm, struct s2s_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < llm->params->n; i++) {
        const struct s2s_param *p = llm->params->list[i];
        if (is_own(llm, p) && s2s_ends_with(p->name, S2S_LORA_A))
            rc = merge_one(llm, p, err);
    }
    return rc;
}
