/* Normalises the names of a source's tensors to those of the rules. */
#include "lib/base/base.h"
#include "lib/ckpt/map/map_internal.h"

/*
 * Renames experts of a live model (Megatron-FSDP saves these names, numbered across all ranks):
 * experts.local_experts.3.linear_fc1.weight of SequentialMLP and experts.linear_fc1.weight3 of
 * TEGroupedMLP become experts.experts.3.linear_fc1.weight; weight3_w likewise. All experts in one
 * tensor (moe_single_grouped_weight) become experts.experts.linear_fc1.weight. Takes name.
 */
static char *name_expert(char *name)
{
    static const char experts[] = "mlp.experts.", local[] = "local_experts.";
    char *at = strstr(name, experts), *out;
    if (!at || (at != name && at[-1] != '.'))
        return name;
    char *rest = at + strlen(experts);
    const int n = (int)(rest - name);
    if (s2s_starts_with(rest, local)) {
        out = s2s_xasprintf("%.*sexperts.%s", n, name, rest + strlen(local));
    } else {
        size_t layer = strcspn(rest, "."); /* linear_fc1 */
        size_t kind = rest[layer] ? layer + 1 + strcspn(rest + layer + 1, ".0123456789") : layer;
        size_t digits = strspn(rest + kind, "0123456789");
        const char *end = rest + kind + digits;
        if (!s2s_starts_with(rest, "linear_fc") || (*end && *end != '_'))
            return name;
        out = digits == 0 ? s2s_xasprintf("%.*sexperts.%s", n, name, rest)
                          : s2s_xasprintf("%.*sexperts.%.*s.%.*s%s", n, name, (int)digits,
                                          rest + kind, (int)kind, rest, end);
    }
    free(name);
    return out;
}

/* Since 0.17 Megatron-Core's convolution parameters belong to the mixer itself (conv1d_weight);
 * torch_dist still has them as a module's (conv1d.weight). */
static char *name_mixer(char *name)
{
    static const char conv[] = ".mixer.conv1d_";
    char *at = strstr(name, conv);
    if (at)
        at[strlen(conv) - 1] = '.';
    return name;
}

char *ckpt_map_unwrapped(const char *name, bool everywhere)
{
    static const char *const wrappers[] = {"_orig_mod.", "_forward_module.",
                                           "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."};
    struct s2s_buf out = S2S_BUF_INIT;
    s2s_buf_reserve(&out, strlen(name) + 1);
    for (size_t len; *name; name += len) {
        bool wrapper = *name == 'm' && (everywhere || !out.len) && s2s_starts_with(name, "module.");
        for (size_t i = 0; *name == '_' && i < sizeof wrappers / sizeof *wrappers; i++)
            wrapper |= s2s_starts_with(name, wrappers[i]);
        len = strcspn(name, ".");
        len += name[len] == '.';
        if (!wrapper)
            s2s_buf_add(&out, name, len);
    }
    s2s_buf_putc(&out, 0);
    return out.data;
}

char *ckpt_map_plain_name(const char *name)
{
    static const char *const dicts[] = {"state_dict.", "model_state_dict."};
    for (size_t i = 0; i < sizeof dicts / sizeof *dicts; i++)
        if (s2s_starts_with(name, dicts[i]))
            name += strlen(dicts[i]);
    /* PyTorch's AppState and AReaL's DCPState; a model may have modules of these names, too */
    if (s2s_starts_with(name, "app.model.") || s2s_starts_with(name, "dcp.model."))
        name += strlen("app.");
    /* Megatron's state dict has "model", or "model0" with virtual pipeline stages, before a
     * wrapper's "module." */
    size_t chunk = s2s_starts_with(name, "model") ? 5 + strspn(name + 5, "0123456789") : 0;
    if (chunk && s2s_starts_with(name + chunk, ".module."))
        name += chunk + 1;
    /* a branch of a heterogeneous model: mimo.llm.decoder.. */
    if (s2s_starts_with(name, "mimo."))
        name += strlen("mimo.");
    char *plain = ckpt_map_unwrapped(name, true);
    /* NeMo's attribute for Megatron's model is `model` */
    static const char *const parts[] = {"model.decoder.", "model.embedding.",
                                        "model.output_layer."};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (s2s_starts_with(plain, parts[i]))
            memmove(plain, plain + 6, strlen(plain + 6) + 1);
    return name_mixer(name_expert(plain));
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct ckpt_map_source *)a)->name,
                  ((const struct ckpt_map_source *)b)->name);
}

void ckpt_map_sort(struct ckpt_map_source *sources, size_t n)
{
    s2s_sort(sources, n, sizeof *sources, by_name);
}

/* Removes the "model." of torch.save({"model": ..}) if all names have it. */
static void drop_common_model(struct ckpt_map_source *sources, size_t n)
{
    static const char model[] = "model.";
    static const char *const parts[] = {"perception.", "model.", "backbone.",
                                        "language_model.decoder.", "llava_model."};
    const size_t len = strlen(model);
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        if (!s2s_starts_with(sources[i].name, model))
            return;
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
            any |= s2s_starts_with(sources[i].name + len, parts[k]);
    }
    for (size_t i = 0; i < n && any; i++) {
        char *name = sources[i].name;
        memmove(name, name + len, strlen(name + len) + 1);
    }
}

bool ckpt_map_is_state(const char *name)
{
    return s2s_ckpt_is_state(name) || strstr(name, "_extra_state");
}

size_t ckpt_map_list(struct ckpt_map_source **sources, const struct s2s_ckpt *ckpt, bool exact,
                     size_t *n_state)
{
    size_t n, kept = 0;
    const struct s2s_ckpt_tensor *tensors = s2s_ckpt_tensors(ckpt, &n);
    *sources = s2s_xcalloc(n + 1, sizeof **sources);
    *n_state = 0;
    for (size_t i = 0; i < n; i++) {
        if (ckpt_map_is_state(tensors[i].name)) {
            ++*n_state;
            continue;
        }
        (*sources)[kept++] = (struct ckpt_map_source){
            .tensor = &tensors[i],
            .name = exact ? s2s_xstrdup(tensors[i].name) : ckpt_map_plain_name(tensors[i].name)};
    }
    if (!exact)
        drop_common_model(*sources, kept);
    ckpt_map_sort(*sources, kept);
    ckpt_map_respell(*sources, kept, NULL, "saved_nemotron_h");
    return kept;
}

void ckpt_map_free_list(struct ckpt_map_source *sources, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(sources[i].name);
    free(sources);
}

/* ---- alternative names: the lines "where" and "rename" of a map ---- */

/* Does the name match the pattern of a "where" line? Fills in the words that are unknown yet. */
static bool fits(const char *where, const char *name, struct ckpt_words *words)
{
    struct ckpt_match match;
    for (const char *hole; (hole = ckpt_map_word_hole(where)); where = hole + 3) {
        const size_t before = (size_t)(hole - where);
        char *word = words->of[hole[1] - '1'];
        if (strncmp(where, name, before) != 0)
            return false;
        name += before;
        const size_t len = strcspn(name, ".{}");
        if (len == 0 || len >= sizeof *words->of)
            return false;
        if (*word && (strncmp(word, name, len) != 0 || word[len]))
            return false;
        memcpy(word, name, len);
        word[len] = 0;
        name += len;
    }
    return ckpt_map_match(where, name, &match);
}

/* Does a source match the pattern? If several match with different words it is ambiguous: no. */
static bool find_where(const char *where, const struct ckpt_map_source *sources, size_t n,
                       struct ckpt_words *words)
{
    const struct ckpt_words known = *words;
    bool found = false;
    for (size_t i = 0; i < n; i++) {
        struct ckpt_words tried = known;
        if (!fits(where, sources[i].name, &tried))
            continue;
        if (found && memcmp(words, &tried, sizeof tried) != 0)
            return false;
        *words = tried;
        found = true;
    }
    return found;
}

/* Renames by the first line that matches. */
static void rename_source(struct ckpt_map_source *source, char *const (*lines)[2], size_t n_lines)
{
    struct ckpt_match match;
    for (size_t i = 0; i < n_lines; i++)
        if (ckpt_map_match(lines[i][0], source->name, &match)) {
            char *name = ckpt_map_fill(lines[i][1], &match);
            free(source->name);
            source->name = name;
            return;
        }
}

static void rename_all(const struct ckpt_spelling *lines, size_t n_lines,
                       const struct ckpt_words *words, struct ckpt_map_source *sources, size_t n)
{
    char *(*full)[2] = s2s_xcalloc(n_lines, sizeof *full);
    for (size_t i = 0; i < n_lines; i++) {
        full[i][0] = ckpt_map_put_words(lines[i].name, words);
        full[i][1] = ckpt_map_put_words(lines[i].as, words);
    }
    for (size_t i = 0; i < n; i++)
        rename_source(&sources[i], full, n_lines);
    for (size_t i = 0; i < n_lines; i++) {
        free(full[i][0]);
        free(full[i][1]);
    }
    free(full);
}

void ckpt_map_respell(struct ckpt_map_source *sources, size_t n, const char *text,
                      const char *family)
{
    struct ckpt_map map;
    if (ckpt_map_parse(&map, text, "", family, NULL, NULL, NULL) < 0)
        return; /* reported when the map is used */
    for (size_t at = 0, end; at < map.n_spellings; at = end) {
        struct ckpt_words words = {.of = {""}};
        bool holds = true;
        for (; at < map.n_spellings && !map.spellings[at].as; at++)
            holds = holds && find_where(map.spellings[at].name, sources, n, &words);
        for (end = at; end < map.n_spellings && map.spellings[end].as;)
            end++;
        if (holds && end > at)
            rename_all(&map.spellings[at], end - at, &words, sources, n);
    }
    if (map.n_spellings)
        ckpt_map_sort(sources, n);
    ckpt_map_release(&map);
}

/* ---- a source by its name ---- */

struct ckpt_map_source *ckpt_map_find(const struct ckpt_map_engine *e, const char *name)
{
    struct ckpt_map_source key = {.name = (char *)name}, *found;
    found = bsearch(&key, e->sources, e->n_sources, sizeof key, by_name);
    return found != e->copy ? found : NULL;
}

struct ckpt_map_source *ckpt_map_find_at(const struct ckpt_map_engine *e, const char *pattern,
                                         const struct ckpt_match *at)
{
    char *name = ckpt_map_fill(pattern, at);
    struct ckpt_map_source *found = ckpt_map_find(e, name);
    free(name);
    return found;
}
