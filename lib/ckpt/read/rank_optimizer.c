/*
 * The optimizer in a Megatron rank's file. torch.optim numbers its parameters and does not store
 * their names, so they are matched here: numbers run through the parameter groups, and within a
 * group parameters are in the order of the model's modules. The rank's model in the same file has
 * that order too, because state_dict and named_parameters walk the same modules. The group of a
 * parameter follows from its name and shape, by Megatron-Core's rules (_get_param_groups of its
 * optimizer):
 *
 *   - no weight decay (wd_mult 0): biases and all one-dimensional parameters, except the q and k
 *     norms if the run asked for it (apply_wd_to_qk_layernorm)
 *   - experts, where expert parallelism is used (is_expert_parallel)
 *   - a separate learning rate (decoupled_lr): the embedding and the output layer
 *
 * All counts and shapes must then agree; otherwise no tensor is assigned to any parameter.
 */
#include "lib/ckpt/read/torch_walk.h"

#include "lib/ckpt/number.h"
#include "lib/ckpt/pickle/pairs.h"

enum { MAX_PARTS = 64, MAX_GROUPS = 1024, MAX_KEY = 64, MAX_SMALL = 16, MAX_DEPTH = 4 };

/* A parameter group of one optimizer; its parameters are slots[begin .. begin + n). */
struct group {
    bool expert, decoupled, no_decay;
    size_t part, begin, n, used;
    bool has_masters; /* states[master .. master + n_masters) are float32 master weights of some of
                       * them */
    size_t master, n_masters, master_used;
};

/* A parameter of the optimizer: its tensors are states[first .. first + n). */
struct slot {
    size_t first, n;
};

/* A parameter of the model: an index in the checkpoint's tensors. */
struct param {
    size_t tensor;
    bool expert, decoupled, no_decay, qk_norm;
};

struct reading {
    struct ckpt_torch_walk *w;
    const char *folder;
    struct ckpt_rank_state *out;
    struct group *groups;
    size_t n_groups, cap_groups;
    struct slot *slots;
    size_t n_slots, cap_slots;
    struct param *params;
    size_t n_params, n_parts;
    bool has_step; /* the step is a number beside each parameter's tensors, not a tensor */
    int64_t step;
};

/* Records why this optimizer cannot be matched; the first reason stays. Returns 0. */
__attribute__((format(printf, 2, 3))) static int unknown(struct reading *r, const char *format, ...)
{
    va_list args;
    if (r->out->why)
        return 0;
    char *text = NULL;
    va_start(args, format);
    if (vasprintf(&text, format, args) < 0)
        text = s2s_xstrdup("out of memory");
    va_end(args);
    r->out->why = ckpt_arena_text(r->w->ckpt, text, strlen(text));
    free(text);
    return 0;
}

/* Counts a value that is looked at, each time that it is referred to. false: absurdly many. */
static bool spend(struct reading *r)
{
    if (r->w->left.nodes == 0)
        return false;
    r->w->left.nodes--;
    return true;
}

/* ---- the model's parameters ---- */

/* Tied weights, two names of one parameter, have the same data offset. */
struct place {
    int64_t data;
    size_t param;
};

static int by_data(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    int order = (x->data > y->data) - (x->data < y->data);
    return order ? order : (x->param > y->param) - (x->param < y->param);
}

static void drop_tied(struct reading *r)
{
    struct place *places = s2s_xcalloc(r->n_params + 1, sizeof *places);
    bool *tied = s2s_xcalloc(r->n_params + 1, sizeof *tied);
    const struct s2s_ckpt_tensor *tensors = r->w->ckpt->tensors;
    size_t n = 0;
    for (size_t i = 0; i < r->n_params; i++)
        places[i] = (struct place){ckpt_chunk_at(&tensors[r->params[i].tensor], 0).data, i};
    if (r->n_params)
        qsort(places, r->n_params, sizeof *places, by_data);
    for (size_t i = 1; i < r->n_params; i++)
        tied[places[i].param] = places[i].data == places[i - 1].data &&
                                s2s_ckpt_numel(&tensors[r->params[places[i].param].tensor]) > 0 &&
                                s2s_ckpt_numel(&tensors[r->params[places[i - 1].param].tensor]) > 0;
    for (size_t i = 0; i < r->n_params; i++)
        if (!tied[i])
            r->params[n++] = r->params[i];
    r->n_params = n;
    free(places);
    free(tied);
}

static bool is_buffer(const struct s2s_ckpt_tensor *t)
{
    static const char *const ends[] = {".expert_bias", ".running_mean", ".running_var", ".inv_freq",
                                       "._extra_state"};
    const bool real = s2s_dtype_is_float(t->dtype) || s2s_dtype_size(t->dtype) == 1;
    bool found = !real || t->dtype == S2S_BOOL || t->dtype == S2S_I8;
    for (size_t i = 0; i < sizeof ends / sizeof *ends && !found; i++)
        found = s2s_ends_with(t->name, ends[i]);
    return found;
}

static void list_params(struct reading *r, size_t n_before)
{
    const struct s2s_ckpt *ckpt = r->w->ckpt;
    r->params = s2s_xcalloc(ckpt->n_tensors - n_before + 1, sizeof *r->params);
    for (size_t i = n_before; i < ckpt->n_tensors; i++) {
        const struct s2s_ckpt_tensor *t = &ckpt->tensors[i];
        if (is_buffer(t))
            continue;
        r->params[r->n_params++] = (struct param){
            .tensor = i,
            .expert = strstr(t->name, ".experts.") != NULL,
            .decoupled = s2s_ends_with(t->name, "embedding.word_embeddings.weight") ||
                         s2s_ends_with(t->name, "output_layer.weight"),
            .no_decay = t->n_dims == 1 || s2s_ends_with(t->name, ".bias"),
            .qk_norm = strstr(t->name, "q_layernorm.") || strstr(t->name, "k_layernorm.")};
    }
    drop_tied(r);
}

/* ---- reading the file ---- */

/* An element of a tensor of a small dtype (ckpt_is_small_dtype); NULL: JSON cannot represent it. */
static json_t *element_json(const char *bytes, enum s2s_dtype dtype, int64_t i)
{
    int32_t narrow;
    int64_t wide;
    if (dtype == S2S_F32)
        return json_real(s2s_ckpt_number(bytes, dtype, (size_t)i));
    if (dtype == S2S_I32) {
        memcpy(&narrow, bytes + i * (int64_t)sizeof narrow, sizeof narrow);
        return json_integer(narrow);
    }
    memcpy(&wide, bytes + i * (int64_t)sizeof wide, sizeof wide);
    return json_integer(wide);
}

/* A small tensor as JSON (CKPT_SMALL_TENSOR); NULL: it is too large, or JSON cannot represent its
 * values. */
static json_t *small_tensor(struct reading *r, const struct ckpt_view *view)
{
    struct s2s_ckpt_tensor tensor;
    char bytes[MAX_SMALL * 16], key[32];
    if (!ckpt_is_small_dtype(view->dtype))
        return NULL;
    int rc = ckpt_torch_tensor(r->w, &tensor, "", view);
    if (rc < 0 || tensor.n_dims > 1 || s2s_ckpt_numel(&tensor) > MAX_SMALL ||
        s2s_ckpt_read(r->w->ckpt, &tensor, NULL, NULL, bytes, r->w->err) < 0) {
        s2s_error_clear(r->w->err);
        return NULL;
    }
    json_t *values = json_array();
    for (int64_t i = 0; i < s2s_ckpt_numel(&tensor); i++)
        if (json_array_append_new(values, element_json(bytes, view->dtype, i)) < 0) {
            json_decref(values);
            return NULL;
        }
    if (tensor.n_dims == 0) {
        json_t *one = json_incref(json_array_get(values, 0));
        json_decref(values);
        values = one;
    }
    snprintf(key, sizeof key, CKPT_SMALL_TENSOR "%s", s2s_dtype_name(view->dtype));
    json_t *out = json_object();
    json_object_set_new(out, key, values);
    return out;
}

/* A dict as JSON, without the keys listed in `without`. Gives a reference. */
static json_t *dict_json(struct reading *r, const struct ckpt_node *dict,
                         const char *const *without, int depth)
{
    json_t *out = json_object();
    struct ckpt_pairs pairs = {.dict = dict};
    while (dict->kind == CKPT_DICT && ckpt_pairs_next(&pairs) && spend(r)) {
        const struct ckpt_node *key = pairs.key, *value = pairs.value;
        struct ckpt_view view;
        bool skip = key->kind != CKPT_STR || key->len > MAX_KEY;
        for (size_t k = 0; without[k] && !skip; k++)
            skip = ckpt_str_is(key, without[k]);
        if (skip)
            continue;
        json_t *made = NULL;
        char *name = s2s_xstrndup(key->text, key->len);
        const int is_tensor = ckpt_view_of(value, &view, r->w->err);
        s2s_error_clear(r->w->err);
        if (is_tensor > 0)
            made = small_tensor(r, &view);
        else if (value->kind == CKPT_DICT && depth < MAX_DEPTH)
            made = dict_json(r, value, (const char *const[]){NULL}, depth + 1);
        json_object_set_new(out, name, made ? made : ckpt_node_json(value, &r->w->left));
        free(name);
    }
    return out;
}

/* Is the value of a group a nonzero number? `absent` if there is no such value. */
static bool is_set(const struct ckpt_node *group, const char *name, bool absent)
{
    const struct ckpt_node *value = ckpt_get(group, name);
    char before[MAX_KEY];
    snprintf(before, sizeof before, "pre_%s", name); /* NeMo's name */
    value = value ? value : ckpt_get(group, before);
    return !value ? absent : value->kind == CKPT_FLOAT ? value->f != 0 : value->i != 0;
}

static int add_state(struct reading *r, const char *key, const struct ckpt_view *view, char *name)
{
    struct s2s_ckpt *ckpt = r->w->ckpt;
    struct ckpt_state state = {.folder = r->out->folder, .optimizer = r->n_parts};
    state.key = ckpt_arena_text(ckpt, key, strlen(key));
    int rc =
        ckpt_torch_tensor(r->w, &state.tensor, ckpt_arena_text(ckpt, name, strlen(name)), view);
    free(name);
    if (rc < 0)
        return rc;
    s2s_grow(&ckpt->states, ckpt->n_states, &ckpt->cap_states, sizeof *ckpt->states);
    ckpt->states[ckpt->n_states++] = state;
    return 0;
}

/* Is this the step of older optimizers, a number that must be the same for all parameters? */
static bool is_step(struct reading *r, const struct ckpt_node *key, const struct ckpt_node *value)
{
    int64_t step;
    if (!ckpt_str_is(key, "step") || !ckpt_get_int(value, &step))
        return false;
    if (r->has_step && r->step != step)
        unknown(r, "its parameters are not all of one step");
    r->has_step = true;
    r->step = step;
    return true;
}

/* Reads the optimizer's tensors of one parameter. */
static int read_slot(struct reading *r, int64_t id, const struct ckpt_node *values)
{
    struct ckpt_view view;
    struct ckpt_pairs pairs = {.dict = values};
    struct slot *slot = &r->slots[r->n_slots - 1];
    int rc = 0;
    slot->first = r->w->ckpt->n_states;
    while (values && rc == 0 && ckpt_pairs_next(&pairs)) {
        const struct ckpt_node *key = pairs.key, *value = pairs.value;
        if (!spend(r) || key->kind != CKPT_STR || key->len > MAX_KEY)
            return unknown(r, "the state of parameter %lld is odd", (long long)id);
        if (value->kind == CKPT_NONE || is_step(r, key, value))
            continue;
        int is_tensor = ckpt_view_of(value, &view, r->w->err);
        if (is_tensor < 0)
            return is_tensor;
        if (!is_tensor)
            return unknown(r, "%.*s of parameter %lld is no tensor", (int)key->len, key->text,
                           (long long)id);
        char *text = s2s_xstrndup(key->text, key->len);
        rc = add_state(r, text, &view,
                       s2s_xasprintf("%s/optimizer.%zu.state.%lld.%s", r->folder, r->n_parts,
                                     (long long)id, text));
        free(text);
    }
    slot->n = r->w->ckpt->n_states - slot->first;
    return rc;
}

struct entry {
    int64_t id;
    const struct ckpt_node *values;
};

static int by_id(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

/* The states of all parameters, sorted by number. Gives: free. */
static struct entry *sort_state(struct reading *r, const struct ckpt_node *state, size_t *n)
{
    struct entry *entries = s2s_xcalloc(state->n / 2 + 1, sizeof *entries);
    *n = 0;
    for (uint32_t i = 0; i < state->n; i += 2) {
        struct entry *entry = &entries[*n];
        if (!ckpt_get_int(state->items[i], &entry->id) || state->items[i + 1]->kind != CKPT_DICT) {
            unknown(r, "its state is not one of numbered parameters");
            continue;
        }
        entry->values = state->items[i + 1];
        ++*n;
    }
    if (*n)
        qsort(entries, *n, sizeof *entries, by_id);
    for (size_t i = 1; i < *n; i++)
        if (entries[i].id == entries[i - 1].id)
            unknown(r, "parameter %lld has two states", (long long)entries[i].id);
    return entries;
}

static int read_group(struct reading *r, const struct ckpt_node *node, struct entry *entries,
                      size_t n_entries)
{
    const struct ckpt_node *ids = ckpt_get(node, "params");
    int rc = 0;
    if (r->n_groups == MAX_GROUPS || !ids || ids->kind != CKPT_LIST)
        return unknown(r, "a group does not say which parameters it has");
    if (ids->n > r->n_params || r->n_slots + ids->n > r->n_params)
        return unknown(r, "its groups have more parameters than the model, which has %zu",
                       r->n_params);
    s2s_grow(&r->groups, r->n_groups, &r->cap_groups, sizeof *r->groups);
    r->groups[r->n_groups++] =
        (struct group){.expert = is_set(node, "is_expert_parallel", false),
                       .decoupled = is_set(node, "is_decoupled_lr", false) ||
                                    !is_set(node, "default_config", true),
                       .no_decay = !is_set(node, "wd_mult", is_set(node, "weight_decay", true)),
                       .part = r->n_parts,
                       .begin = r->n_slots,
                       .n = ids->n};
    for (uint32_t i = 0; i < ids->n && rc == 0 && !r->out->why; i++) {
        struct entry want = {.id = -1};
        if (!ckpt_get_int(ids->items[i], &want.id))
            return unknown(r, "a group's parameters are not numbered");
        const struct entry *found =
            n_entries ? bsearch(&want, entries, n_entries, sizeof want, by_id) : NULL;
        s2s_grow(&r->slots, r->n_slots, &r->cap_slots, sizeof *r->slots);
        r->slots[r->n_slots++] = (struct slot){.n = 0};
        if (!found && n_entries)
            return unknown(r, "parameter %lld has no state", (long long)want.id);
        rc = read_slot(r, want.id, found ? found->values : NULL);
    }
    return rc;
}

/* Reads the float32 master weights of a group's 16-bit parameters. */
static int read_masters(struct reading *r, size_t number, const struct ckpt_node *list)
{
    struct group *g = &r->groups[number];
    struct ckpt_view view;
    int rc = 0;
    if (list->kind != CKPT_LIST || list->n > g->n)
        return unknown(r, "its master weights are not those of its groups");
    g->has_masters = true;
    g->master = r->w->ckpt->n_states;
    for (uint32_t i = 0; i < list->n && rc == 0; i++) {
        rc = ckpt_view_of(list->items[i], &view, r->w->err);
        if (rc < 0)
            return rc;
        if (rc == 0 || !spend(r))
            return unknown(r, "a master weight is not a tensor");
        rc = add_state(r, "fp32_param", &view,
                       s2s_xasprintf("%s/optimizer.%zu.fp32_from_fp16_params.%zu.%u", r->folder,
                                     r->n_parts, number, i));
    }
    g->n_masters = r->w->ckpt->n_states - g->master;
    return rc;
}

/* Are the lists of master weights empty? Megatron-Core removes tensors from the common state and
 * leaves empty lists. */
static bool is_hollow(const struct ckpt_node *masters)
{
    for (uint32_t i = 0; i < masters->n; i++)
        if (masters->items[i]->kind != CKPT_LIST || masters->items[i]->n > 0)
            return false;
    return true;
}

/* An optimizer's part of Megatron-Core's common.pt, without the step, which is among the tensors.
 */
static json_t *part_json(struct reading *r, const struct ckpt_node *part,
                         const struct ckpt_node *inner, const struct ckpt_node *masters)
{
    static const char *const state[] = {"state", "param_groups", NULL};
    static const char *const whole[] = {"optimizer", "fp32_from_fp16_params", "fp32_from_fp16",
                                        NULL};
    static const char *const group[] = {"params", NULL};
    const struct ckpt_node *groups = ckpt_get(inner, "param_groups");
    json_t *own = dict_json(r, inner, state, 0), *list = json_array();
    for (uint32_t i = 0; i < groups->n; i++)
        json_array_append_new(list, dict_json(r, groups->items[i], group, 0));
    json_object_set_new(own, "param_groups", list);
    if (ckpt_get(inner, "state")->n == 0)
        json_object_set_new(own, "state", json_object());
    else if (r->has_step)
        json_object_set_new(own, "state", json_pack("{s:I}", "common_step", (json_int_t)r->step));
    if (inner == part)
        return own;
    json_t *out = dict_json(r, part, whole, 0);
    json_object_set_new(out, "optimizer", own);
    if (masters && is_hollow(masters)) {
        json_object_set_new(out, "fp32_from_fp16_params", list = json_array());
        for (uint32_t i = 0; i < masters->n; i++)
            json_array_append_new(list, json_array());
    }
    return out;
}

/* Reads one optimizer. */
static int read_part(struct reading *r, const struct ckpt_node *part)
{
    const struct ckpt_node *inner = ckpt_get(part, "optimizer"), *masters, *groups, *state;
    const size_t first = r->n_groups;
    size_t n_entries;
    int rc = 0;
    r->has_step = false;
    inner = inner && inner->kind == CKPT_DICT ? inner : part;
    groups = ckpt_get(inner, "param_groups");
    state = ckpt_get(inner, "state");
    masters = ckpt_get(part, "fp32_from_fp16_params");
    masters = masters ? masters : ckpt_get(part, "fp32_from_fp16");
    if (!groups || groups->kind != CKPT_LIST || groups->n > MAX_GROUPS)
        return unknown(r, "it has no groups of parameters");
    if (!state || state->kind != CKPT_DICT)
        return unknown(r, "it is a distributed one, whose state is in distrib_optim.pt");
    struct entry *entries = sort_state(r, state, &n_entries);
    for (uint32_t i = 0; i < groups->n && rc == 0 && !r->out->why; i++)
        rc = read_group(r, groups->items[i], entries, n_entries);
    free(entries);
    if (masters && !r->out->why && (masters->kind != CKPT_LIST || masters->n != groups->n))
        unknown(r, "its master weights are not those of its groups");
    for (uint32_t i = 0; masters && i < groups->n && rc == 0 && !r->out->why; i++)
        rc = read_masters(r, first + i, masters->items[i]);
    if (rc == 0 && !r->out->why)
        json_array_append_new(r->out->parts, part_json(r, part, inner, masters));
    return rc;
}

/* ---- matching optimizer and model ---- */

/* The group of a parameter; NULL: none, or (*twice) more than one. */
static struct group *group_of(struct reading *r, const struct param *p, bool qk_decays, bool *twice)
{
    const bool no_decay = p->no_decay && !(qk_decays && p->qk_norm);
    bool experts = false, decoupled = false;
    struct group *found = NULL;
    size_t n_filled = 0;
    *twice = false;
    for (size_t i = 0; i < r->n_groups; i++) {
        experts |= r->groups[i].n && r->groups[i].expert;
        decoupled |= r->groups[i].n && r->groups[i].decoupled;
        n_filled += r->groups[i].n > 0;
    }
    for (size_t i = 0; i < r->n_groups; i++) {
        struct group *g = &r->groups[i];
        if (g->n == 0 || (n_filled > 1 &&
                          (g->expert != (experts && p->expert) ||
                           g->decoupled != (decoupled && p->decoupled) || g->no_decay != no_decay)))
            continue;
        *twice = found != NULL;
        if (found)
            return NULL;
        found = g;
    }
    return found;
}

/* Assigns a state to its parameter, or sets *why (gives: free) if its shape does not fit. */
static void fit(struct reading *r, struct ckpt_state *state, const struct s2s_ckpt_tensor *t,
                char **why)
{
    char a[200], b[200];
    const bool is_step = strcmp(state->key, "step") == 0;
    if (is_step ? s2s_ckpt_numel(&state->tensor) == 1
                : ckpt_same_shape(state->tensor.shape, state->tensor.n_dims, t->shape, t->n_dims))
        state->param = t->name;
    else
        *why =
            s2s_xasprintf("%s has shape %s, %s, which would be its parameter, %s",
                          state->tensor.name + strlen(r->folder) + 1,
                          ckpt_shape_text(a, state->tensor.shape, state->tensor.n_dims),
                          t->name + strlen(r->folder) + 1, ckpt_shape_text(b, t->shape, t->n_dims));
}

/* Assigns the next place of its group to a parameter of the model. Gives: free; NULL: success. */
static char *match_one(struct reading *r, const struct param *p, bool qk_decays)
{
    struct ckpt_state *states = r->w->ckpt->states;
    const struct s2s_ckpt_tensor *t = &r->w->ckpt->tensors[p->tensor];
    const char *name = t->name + strlen(r->folder) + 1;
    const bool half = t->dtype == S2S_BF16 || t->dtype == S2S_F16;
    bool twice;
    char *why = NULL;
    struct group *g = group_of(r, p, qk_decays, &twice);
    if (!g)
        return s2s_xasprintf(
            twice ? "two of its groups may have %s" : "none of its groups is for %s", name);
    if (g->used == g->n)
        return s2s_xasprintf("group %td has %zu parameters, and %s would be one more",
                             g - r->groups, g->n, name);
    const struct slot *slot = &r->slots[g->begin + g->used++];
    for (size_t i = slot->first; i < slot->first + slot->n && !why; i++)
        fit(r, &states[i], t, &why);
    if (why || !g->has_masters || !half)
        return why;
    if (g->master_used == g->n_masters)
        return s2s_xasprintf("group %td has %zu master weights, and %s would want one more",
                             g - r->groups, g->n_masters, name);
    fit(r, &states[g->master + g->master_used++], t, &why);
    return why;
}

static char *match(struct reading *r, bool qk_decays)
{
    char *why = NULL;
    for (size_t i = 0; i < r->n_groups; i++)
        r->groups[i].used = r->groups[i].master_used = 0;
    for (size_t i = 0; i < r->n_params && !why; i++)
        why = match_one(r, &r->params[i], qk_decays);
    for (size_t i = 0; i < r->n_groups && !why; i++)
        if (r->groups[i].used != r->groups[i].n ||
            r->groups[i].master_used != r->groups[i].n_masters)
            why = s2s_xasprintf(
                "group %zu has %zu parameters and %zu master weights, the model %zu and %zu for it",
                i, r->groups[i].n, r->groups[i].n_masters, r->groups[i].used,
                r->groups[i].master_used);
    return why;
}

static void match_all(struct reading *r)
{
    if (r->n_slots != r->n_params) {
        unknown(r, "its groups have %zu parameters, the model %zu", r->n_slots, r->n_params);
        return;
    }
    char *why = match(r, false), *other = why ? match(r, true) : NULL;
    if (why && other)
        unknown(r, "%s", why);
    free(why);
    free(other);
}

int ckpt_read_rank_optimizer(struct ckpt_torch_walk *w, const struct ckpt_node *optimizer,
                             const char *folder, size_t n_before)
{
    struct s2s_ckpt *ckpt = w->ckpt;
    const bool listed = optimizer->kind == CKPT_LIST || optimizer->kind == CKPT_TUPLE;
    const size_t n_states = ckpt->n_states, n = listed ? optimizer->n : 1;
    int rc = 0;
    s2s_grow(&ckpt->rank_states, ckpt->n_rank_states, &ckpt->cap_rank_states,
             sizeof *ckpt->rank_states);
    struct reading r = {.w = w, .folder = folder, .out = &ckpt->rank_states[ckpt->n_rank_states++]};
    *r.out = (struct ckpt_rank_state){.folder = ckpt_arena_text(ckpt, folder, strlen(folder)),
                                      .parts = json_array()};
    ckpt->n_left_states++;
    list_params(&r, n_before);
    if (n > MAX_PARTS)
        unknown(&r, "it is %zu optimizers", n);
    for (r.n_parts = 0; rc == 0 && r.n_parts < n && !r.out->why; r.n_parts++)
        rc = read_part(&r, listed ? optimizer->items[r.n_parts] : optimizer);
    if (rc == 0 && !r.out->why)
        match_all(&r);
    for (size_t i = n_states; i < ckpt->n_states && r.out->why; i++)
        ckpt->states[i].param = NULL;
    free(r.groups);
    free(r.slots);
    free(r.params);
    return rc < 0 ? s2s_error_add(w->err, rc, "optimizer") : 0;
}
