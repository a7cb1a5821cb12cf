/* Plans the layers of a stack, which formats store stacked or numbered. */
#include "lib/ckpt/map/map.h"

#include "lib/base/base.h"
#include "lib/ckpt/read/read.h"

enum { MAX_NAMES = 1 << 18 }; /* new ones of a plan */

/* Parts of "decoder.layers.7.mlp.linear_fc2.weight": prefix "decoder.layers.", layer 7, rest
 * "mlp.."; layer -1: no number. */
struct place {
    const char *prefix, *rest;
    size_t prefix_len;
    int64_t layer;
    size_t target; /* index in the plan */
};

/* A stack of the model's tensors (not the optimizer's). */
struct stack {
    const char *prefix;
    size_t len;
    int64_t n_layers;           /* by numbered names */
    int64_t axis_size;          /* of the first tensor with layers on an axis: */
    size_t axis_target;         /* its index in the plan */
    bool numbered, on_axis;     /* some of its tensors are */
    bool attention, mlp, mixer; /* which modules its layers have */
    bool single;                /* every expert has its own name */
    bool differ;                /* layers are not all alike */
    bool to_axis, to_numbers;   /* conversion to do */
};

struct layers {
    struct s2s_ckpt_plan *plan;
    struct s2s_error *err;
    struct place *places; /* sorted by stack, rest, layer */
    size_t n_places;
    struct stack *stacks; /* by prefix */
    size_t n_stacks, cap_stacks;
    const char **norms; /* sorted names of targets that may be final norms of hybrid stacks */
    size_t n_norms, cap_norms;
    bool *gone; /* [number of targets before]: to be removed */
};

/* ---- names ---- */

static bool find_place(struct place *place, const char *name)
{
    *place = (struct place){.prefix = name};
    return ckpt_name_layer(name, &place->prefix_len, &place->layer, &place->rest) &&
           *place->rest != '\0';
}

static int compare_stacks(const char *a, size_t a_len, const char *b, size_t b_len)
{
    const int order = strncmp(a, b, a_len < b_len ? a_len : b_len);
    return order ? order : (a_len > b_len) - (a_len < b_len);
}

static int by_prefix(const void *a, const void *b)
{
    const struct stack *x = a, *y = b;
    return compare_stacks(x->prefix, x->len, y->prefix, y->len);
}

static struct stack *find_stack(const struct layers *l, const char *prefix, size_t len)
{
    const struct stack key = {.prefix = prefix, .len = len};
    return l->n_stacks ? bsearch(&key, l->stacks, l->n_stacks, sizeof key, by_prefix) : NULL;
}

/* The stack of a tensor; for optimizer state, the one whose name its own ends with:
 * "optimizer.state.exp_avg.decoder.layers." */
static struct stack *stack_of(const struct layers *l, const struct place *place)
{
    struct stack *s = find_stack(l, place->prefix, place->prefix_len);
    const bool state = !s && s2s_ckpt_is_state(place->prefix);
    for (size_t at = 1; state && !s && at < place->prefix_len; at++)
        if (place->prefix[at - 1] == '.')
            s = find_stack(l, place->prefix + at, place->prefix_len - at);
    return s;
}

static int by_stack(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    int order = compare_stacks(x->prefix, x->prefix_len, y->prefix, y->prefix_len);
    if (order == 0)
        order = strcmp(x->rest, y->rest);
    return order ? order : (x->layer > y->layer) - (x->layer < y->layer);
}

/* The end of the places with one rest in one stack: [begin, end). */
static size_t run_end(const struct layers *l, size_t begin)
{
    const struct place *first = &l->places[begin];
    size_t end = begin + 1;
    while (end < l->n_places && l->places[end].prefix_len == first->prefix_len &&
           memcmp(l->places[end].prefix, first->prefix, first->prefix_len) == 0 &&
           strcmp(l->places[end].rest, first->rest) == 0)
        end++;
    return end;
}

/* ---- stacks ---- */

/* Adds a place to its stack; places are sorted by stack. */
static void note(struct layers *l, const struct place *place)
{
    struct stack *s = l->n_stacks ? &l->stacks[l->n_stacks - 1] : NULL;
    const char *rest = place->rest, *expert = strstr(rest, "experts.experts.");
    if (!s || compare_stacks(s->prefix, s->len, place->prefix, place->prefix_len) != 0) {
        s2s_grow(&l->stacks, l->n_stacks, &l->cap_stacks, sizeof *l->stacks);
        s = &l->stacks[l->n_stacks++];
        *s = (struct stack){.prefix = place->prefix, .len = place->prefix_len};
    }
    s->numbered |= place->layer >= 0;
    if (place->layer < 0 && (!s->on_axis || place->target < s->axis_target)) {
        const struct s2s_ckpt_target *t = &l->plan->targets[place->target];
        s->axis_target = place->target;
        s->axis_size = t->n_dims ? s2s_ckpt_target_shape(t)[0] : 0;
    }
    s->on_axis |= place->layer < 0;
    s->n_layers = place->layer >= s->n_layers ? place->layer + 1 : s->n_layers;
    s->attention |= s2s_starts_with(rest, "self_attention.");
    s->mlp |= s2s_starts_with(rest, "mlp.");
    s->mixer |= s2s_starts_with(rest, "mixer.");
    s->single |= expert && strchr("0123456789", expert[strlen("experts.experts.")]);
}

/* Are the places [begin, end) all layers of the stack, with one shape and dtype? */
static bool is_whole(const struct layers *l, const struct stack *s, size_t begin, size_t end)
{
    const struct s2s_ckpt_target *first = &l->plan->targets[l->places[begin].target];
    if ((int64_t)(end - begin) != s->n_layers)
        return false;
    for (size_t i = begin; i < end; i++) {
        const struct s2s_ckpt_target *t = &l->plan->targets[l->places[i].target];
        if (l->places[i].layer != (int64_t)(i - begin) || t->dtype != first->dtype ||
            t->n_dims >= S2S_MAX_DIMS ||
            !ckpt_same_shape(s2s_ckpt_target_shape(t), t->n_dims, s2s_ckpt_target_shape(first),
                             first->n_dims))
            return false;
    }
    return true;
}

static void survey(struct layers *l)
{
    l->places = s2s_xcalloc(l->plan->n_targets + 1, sizeof *l->places);
    for (size_t i = 0; i < l->plan->n_targets; i++) {
        struct place *place = &l->places[l->n_places];
        if (!find_place(place, s2s_ckpt_target_name(&l->plan->targets[i])))
            continue;
        place->target = i;
        l->n_places++;
    }
    if (l->n_places)
        qsort(l->places, l->n_places, sizeof *l->places, by_stack);
    for (size_t i = 0; i < l->n_places; i++)
        if (!s2s_ckpt_is_state(l->places[i].prefix))
            note(l, &l->places[i]);
    for (size_t i = 0, end; i < l->n_places; i = end) {
        end = run_end(l, i);
        struct stack *s =
            s2s_ckpt_is_state(l->places[i].prefix) ? NULL : stack_of(l, &l->places[i]);
        if (s && s->numbered && !is_whole(l, s, i, end))
            s->differ = true;
    }
}

static const char last_norm[] = "final_norm.weight";

static void list_norms(struct layers *l)
{
    for (size_t i = 0; i < l->plan->n_targets; i++) {
        if (!s2s_ends_with(s2s_ckpt_target_name(&l->plan->targets[i]), last_norm))
            continue;
        s2s_grow(&l->norms, l->n_norms, &l->cap_norms, sizeof *l->norms);
        l->norms[l->n_norms++] = s2s_ckpt_target_name(&l->plan->targets[i]);
    }
    if (l->n_norms)
        qsort(l->norms, l->n_norms, sizeof *l->norms, ckpt_by_text);
}

static bool has_last_norm(const struct layers *l, const struct stack *s)
{
    char *name = s2s_xasprintf("%.*s%s", (int)(s->len - strlen("layers.")), s->prefix, last_norm);
    const char *key = name;
    const bool found =
        l->n_norms && bsearch(&key, l->norms, l->n_norms, sizeof key, ckpt_by_text) != NULL;
    free(name);
    return found;
}

/* Is it Megatron-Core's TransformerBlock? Its layers have attention and MLP, those of a hybrid
 * stack only one of them. A MambaStack with layers of one kind has another name for its final norm.
 */
static bool is_block(const struct layers *l, const struct stack *s)
{
    static const char mtp[] = "mtp.layers.";
    const size_t len = strlen(mtp);
    return (s->on_axis ? s->attention || s->mlp : s->attention && s->mlp) && !s->mixer &&
           !s->single && !has_last_norm(l, s) &&
           (s->len < len || memcmp(s->prefix + s->len - len, mtp, len) != 0);
}

static bool is_said(const json_t *value)
{
    return value && !json_is_null(value) && !json_is_false(value);
}

/* Do the arguments describe a language model whose layers Megatron-Core numbers even if they are
 * alike? */
static bool args_number(const json_t *args)
{
    static const char *const every[] = {"moe_layer_freq", "linear_attention_freq"};
    static const char *const any[] = {
        "hybrid_override_pattern",
        "hybrid_layer_pattern",
        "is_hybrid_model",
        "heterogeneous_layers_config_path",
        "hetereogenous_dist_checkpoint",
        "heterogeneous_layers_config_encoded_json",
    };
    for (size_t i = 0; i < sizeof every / sizeof *every; i++) {
        const json_t *value = json_object_get(args, every[i]);
        if (json_is_array(value) || (json_is_integer(value) && json_integer_value(value) > 1))
            return true;
    }
    for (size_t i = 0; i < sizeof any / sizeof *any; i++)
        if (is_said(json_object_get(args, any[i])))
            return true;
    return false;
}

/* Do they apply to this stack? They describe the language model: the only stack, or the one with
 * its name. */
static bool is_numbered_by_args(const struct layers *l, const struct stack *s)
{
    char *prefix = s2s_xstrndup(s->prefix, s->len);
    bool words = !strstr(prefix, "vision") && !strstr(prefix, "radio") &&
                 !strstr(prefix, "sound") && !strstr(prefix, "image") && !strstr(prefix, "audio");
    free(prefix);
    return words && args_number(ckpt_args(l->plan->source));
}

static void decide(struct layers *l, enum ckpt_layers how)
{
    for (size_t i = 0; i < l->n_stacks; i++) {
        struct stack *s = &l->stacks[i];
        if (!is_block(l, s))
            continue;
        if (how == CKPT_LAYERS_AUTO)
            s->to_axis = s->numbered && !s->on_axis && !s->differ && !is_numbered_by_args(l, s);
        else
            s->to_axis = how == CKPT_LAYERS_STACKED && s->numbered;
        s->to_numbers = how == CKPT_LAYERS_NUMBERED && s->on_axis;
    }
}

/* ---- tensors ---- */

static bool is_flattened(const struct s2s_ckpt_target *t)
{
    const struct s2s_ckpt_tensor *source = s2s_ckpt_target_source(t);
    return source && s2s_ckpt_orig_shape(source);
}

static int refuse_flattened(const struct layers *l, const struct s2s_ckpt_target *t)
{
    int rc = s2s_error_set(l->err, S2S_E_UNSUPPORTED,
                           "%s: is stored flattened, its layers cannot be named anew",
                           s2s_ckpt_target_name(t));
    return s2s_error_hint(l->err, rc, "s2s-ckpt prune leaves the optimizer out");
}

/* Reports why the layers of a run cannot be stacked on one axis. */
static int refuse_run(const struct layers *l, const struct stack *s, size_t begin, size_t end)
{
    const struct place *first = &l->places[begin];
    int rc;
    size_t i = begin;
    while (i < end && l->places[i].layer == (int64_t)(i - begin))
        i++;
    if (first->layer < 0)
        rc = s2s_error_set(l->err, S2S_E_FORMAT, "%s: stands beside numbered layers",
                           s2s_ckpt_target_name(&l->plan->targets[first->target]));
    else if (i < end || (int64_t)(end - begin) < s->n_layers)
        rc = s2s_error_set(l->err, S2S_E_SHAPE,
                           "%s: layer %zu of %lld has none: layers that differ cannot lie on an "
                           "axis",
                           s2s_ckpt_target_name(&l->plan->targets[first->target]), i - begin,
                           (long long)s->n_layers);
    else
        rc = s2s_error_set(l->err, S2S_E_SHAPE,
                           "%s: has another shape or dtype in another layer: layers that differ "
                           "cannot lie on an axis",
                           s2s_ckpt_target_name(&l->plan->targets[first->target]));
    return s2s_error_hint(l->err, rc, "--layers numbered keeps them apart");
}

/* Stacks the places [begin, end) into one target of n_layers rows. */
static int stack_run(struct layers *l, const struct stack *s, size_t begin, size_t end)
{
    const struct place *first = &l->places[begin];
    const struct s2s_ckpt_target *one = &l->plan->targets[first->target];
    int64_t shape[S2S_MAX_DIMS] = {s->n_layers};
    if (!is_whole(l, s, begin, end))
        return refuse_run(l, s, begin, end);
    for (int d = 0; d < one->n_dims; d++)
        shape[d + 1] = s2s_ckpt_target_shape(one)[d];
    char *name = s2s_xasprintf("%.*s%s", (int)first->prefix_len, first->prefix, first->rest);
    struct s2s_ckpt_target *all =
        s2s_ckpt_plan_add(l->plan, name, one->dtype, one->n_dims + 1, shape);
    free(name);
    for (size_t i = begin; i < end; i++) {
        const struct s2s_ckpt_target *t = &l->plan->targets[l->places[i].target];
        if (is_flattened(t))
            return refuse_flattened(l, t);
        for (size_t k = 0; k < t->n_pieces; k++) {
            const struct s2s_ckpt_piece piece = s2s_ckpt_target_piece(t, k);
            s2s_ckpt_plan_piece(l->plan, all, piece.source, piece.begin, piece.size);
        }
        l->gone[l->places[i].target] = true;
    }
    return 0;
}

/* Makes a target for each row of a whole source tensor. */
static int number_rows(struct layers *l, const struct stack *s, const struct place *place)
{
    const struct s2s_ckpt_tensor *source = s2s_ckpt_target_source(&l->plan->targets[place->target]);
    const enum s2s_dtype dtype = l->plan->targets[place->target].dtype;
    const int64_t n = source->n_dims ? source->shape[0] : 0;
    int64_t begin[S2S_MAX_DIMS] = {0}, size[S2S_MAX_DIMS];
    if (s2s_ckpt_orig_shape(source))
        return refuse_flattened(l, &l->plan->targets[place->target]);
    if (n < 1 || n > CKPT_MAX_LAYERS || n != s->axis_size)
        return s2s_error_set(l->err, S2S_E_SHAPE,
                             "%s: its first axis is not that of the %lld layers of its stack",
                             source->name, (long long)s->axis_size);
    if ((int64_t)l->plan->n_targets + n > MAX_NAMES)
        return s2s_error_set(l->err, S2S_E_UNSUPPORTED, "more than %d names of tensors", MAX_NAMES);
    if (s->numbered)
        return refuse_run(l, s, (size_t)(place - l->places), (size_t)(place - l->places) + 1);
    for (int d = 0; d < source->n_dims; d++)
        size[d] = source->shape[d];
    size[0] = 1;
    for (begin[0] = 0; begin[0] < n; begin[0]++) {
        char *name = s2s_xasprintf("%.*s%lld.%s", (int)place->prefix_len, source->name,
                                   (long long)begin[0], place->rest);
        struct s2s_ckpt_target *t =
            s2s_ckpt_plan_add(l->plan, name, dtype, source->n_dims - 1, source->shape + 1);
        free(name);
        s2s_ckpt_plan_piece(l->plan, t, source, begin, size);
    }
    l->gone[place->target] = true;
    return 0;
}

static int change(struct layers *l)
{
    int rc = 0;
    for (size_t i = 0, end; rc == 0 && i < l->n_places; i = end) {
        const struct stack *s = stack_of(l, &l->places[i]);
        end = run_end(l, i);
        if (s && s->to_axis)
            rc = stack_run(l, s, i, end);
        else if (s && s->to_numbers)
            rc = number_rows(l, s, &l->places[i]);
    }
    return rc;
}

static void remove_gone(struct layers *l, size_t n_before)
{
    struct s2s_ckpt_plan *plan = l->plan;
    size_t kept = 0;
    for (size_t i = 0; i < plan->n_targets; i++)
        if (i >= n_before || !l->gone[i])
            plan->targets[kept++] = plan->targets[i];
    plan->n_targets = kept;
}

/* ---- objects ---- */

/*
 * KEY/shard_OFFSET_SHAPE, both with "." between axes: adds the axis of layers in front, or removes
 * it. An object without axes is 0_1; an expert's has an axis of experts. Gives: free.
 */
static char *object_name(const struct place *place, const char *shard, const struct stack *s)
{
    char offset[64] = "", shape[64] = "";
    const int key = (int)(shard - place->rest);
    const bool expert = strstr(place->rest, "experts.experts.") != NULL;
    const char *sizes = strchr(shard + strlen("/shard_"), '_');
    if (!sizes || sscanf(shard, "/shard_%63[0-9.]_%63[0-9.]", offset, shape) != 2)
        return NULL;
    if (s->to_axis)
        return expert ? s2s_xasprintf("%.*s%.*s/shard_%lld.%s_%lld.%s", (int)place->prefix_len,
                                      place->prefix, key, place->rest, (long long)place->layer,
                                      offset, (long long)s->n_layers, shape)
                      : s2s_xasprintf("%.*s%.*s/shard_%lld_%lld", (int)place->prefix_len,
                                      place->prefix, key, place->rest, (long long)place->layer,
                                      (long long)s->n_layers);
    const char *offsets = strchr(offset, '.'), *shapes = strchr(shape, '.');
    return s2s_xasprintf("%.*s%lld.%.*s/shard_%s_%s", (int)place->prefix_len, place->prefix,
                         strtoll(offset, NULL, 10), key, place->rest, offsets ? offsets + 1 : "0",
                         shapes ? shapes + 1 : "1");
}

static void name_objects(struct layers *l)
{
    struct s2s_ckpt *ckpt = l->plan->source;
    for (size_t i = 0; i < ckpt->n_objects; i++) {
        struct place place;
        const char *shard = strstr(ckpt->objects[i].name, "/shard_");
        if (!shard || !find_place(&place, ckpt->objects[i].name))
            continue;
        const struct stack *s = stack_of(l, &place);
        if (!s || !(place.layer < 0 ? s->to_numbers : s->to_axis))
            continue;
        char *name = object_name(&place, shard, s);
        if (name) {
            ckpt->objects[i].name = ckpt_arena_text(ckpt, name, strlen(name));
            ckpt->objects[i].path = NULL;
        }
        free(name);
    }
}

int s2s_ckpt_plan_layers(struct s2s_ckpt_plan *plan, enum ckpt_layers how, size_t *n_changed,
                         struct s2s_error *err)
{
    const size_t n_before = plan->n_targets;
    struct layers l = {.plan = plan, .err = err};
    *n_changed = 0;
    survey(&l);
    list_norms(&l);
    decide(&l, how);
    free(l.norms);
    l.gone = s2s_xcalloc(n_before + 1, sizeof *l.gone);
    int rc = change(&l);
    if (rc == 0) {
        name_objects(&l);
        for (size_t i = 0; i < l.n_stacks; i++)
            *n_changed += l.stacks[i].to_axis || l.stacks[i].to_numbers;
        remove_gone(&l, n_before);
    }
    free(l.gone);
    free(l.stacks);
    free(l.places);
    return rc < 0 ? s2s_error_add(err, rc, "%s", plan->source->path) : 0;
}

json_t *s2s_ckpt_layers_metadata(const json_t *common, enum ckpt_layers how)
{
    static const char flag[] = "non_homogeneous_layers";
    json_t *old = json_object_get(common, "content_metadata");
    if (how != CKPT_LAYERS_NUMBERED && !is_said(json_object_get(old, flag)))
        return NULL;
    json_t *metadata = json_is_object(old) ? json_copy(old) : json_object();
    if (!json_object_get(metadata, "singleton_local_shards"))
        json_object_set_new(metadata, "singleton_local_shards", json_false());
    if (how == CKPT_LAYERS_NUMBERED)
        json_object_set_new(metadata, flag, json_true());
    else
        json_object_del(metadata, flag);
    return metadata;
}
