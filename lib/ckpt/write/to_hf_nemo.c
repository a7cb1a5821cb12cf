/* Makes the small files of transformers' Parakeet: configuration, feature extractor, tokenizer. */
#include "lib/base/base.h"
#include "lib/ckpt/nemo/from_nemo.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/write/to_hf_internal.h"

enum { TOKENIZERS = 3 };
static const char *const tokenizers[TOKENIZERS] = {"tokenizer.model", "tokenizer.vocab",
                                                   "vocab.txt"};

/* The name of a tokenizer's file in the model's folder, such as "9a..f_tokenizer.model", and its
 * index in the table above; NULL: not a tokenizer. */
static const char *tokenizer_name(const struct s2s_ckpt *ckpt, const struct ckpt_member *member,
                                  int *which)
{
    const char *root = ckpt->root ? ckpt->root : "", *name = member->name + strlen(root);
    if (!s2s_starts_with(member->name, root) || strchr(name, '/'))
        return NULL;
    for (*which = 0; *which < TOKENIZERS; ++*which)
        if (s2s_has_tail(name, '_', tokenizers[*which]))
            return name;
    return NULL;
}

int ckpt_hf_nemo_tokenizer(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                           const struct s2s_hf_options *options, struct s2s_error *err)
{
    size_t n[TOKENIZERS] = {0};
    int rc = 0, which;
    if (ckpt->part && !ckpt_part_has_words(ckpt->part))
        return 0;
    for (size_t i = 0; i < ckpt->n_members; i++)
        if (tokenizer_name(ckpt, &ckpt->members[i], &which))
            n[which]++;
    for (size_t i = 0; i < ckpt->n_members && rc == 0; i++) {
        const char *name = tokenizer_name(ckpt, &ckpt->members[i], &which);
        if (name)
            rc = ckpt_side_take_member(&out->files, ckpt, &ckpt->members[i],
                                       n[which] > 1 ? name : tokenizers[which], err);
    }
    return rc;
}

/* Makes the tokenizer and processor that transformers loads, from tokenizer.model; without them the
 * weights are still usable. */
static void processor_of_nemo(struct s2s_hf_output *out, struct ckpt_nemo_texts *texts,
                              const json_t *user)
{
    json_t *own = texts->config ? json_loads(texts->config, 0, NULL) : NULL;
    const struct ckpt_side_file *model = ckpt_side_find(&out->files, "tokenizer.model");
    struct s2s_error why = S2S_ERROR_INIT;
    if (model && ckpt_nemo_tokenizer(texts, own ? own : user, model->bytes, model->len, &why) < 0) {
        s2s_warn("ckpt", "tokenizer.json is not written: tokenizer.model: %s", why.text);
        s2s_error_clear(&why);
    }
    json_decref(own);
}

/* Adds the texts. Takes them. */
static void add_texts(struct s2s_hf_output *out, struct ckpt_nemo_texts *texts)
{
    const struct {
        const char *name;
        char *text;
    } all[] = {{"config.json", texts->config},
               {"preprocessor_config.json", texts->features},
               {"generation_config.json", texts->generation},
               {"tokenizer.json", texts->tokenizer},
               {"tokenizer_config.json", texts->tokenizer_config},
               {"processor_config.json", texts->processor}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].text)
            ckpt_side_add_text(&out->files, all[i].name, all[i].text);
        free(all[i].text);
    }
}

int ckpt_hf_nemo_files(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                       const struct s2s_hf_options *options, struct s2s_error *err)
{
    struct ckpt_nemo_texts texts = {.config = NULL};
    const json_t *user = options->config;
    /* a config.json of the user is complete; one with "perception" is NeMo's, which is converted */
    const bool any = user && !json_object_get(user, "perception");
    json_t *model;
    int rc = ckpt_hf_nemo_model(&model, ckpt, user, err);
    if (rc == 0)
        rc = ckpt_nemo_config(&texts, ckpt, model, out->map.family, any, err);
    json_decref(model);
    if (rc < 0)
        return rc;
    rc = ckpt_hf_nemo_tokenizer(out, ckpt, options, err);
    if (rc == 0)
        processor_of_nemo(out, &texts, any ? user : NULL);
    add_texts(out, &texts);
    return rc;
}
