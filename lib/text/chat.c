/* Renders conversations by chat templates. */
#include "lib/text/chat.h"

/* The files of lib/text/chat as strings of the program. */
#define TEMPLATE(name) \
    __asm__(".section .rodata\n" \
            "text_chat_" #name ":\n" \
            ".incbin \"lib/text/chat/" #name ".jinja\"\n" \
            ".byte 0\n" \
            ".previous\n"); \
    extern const char text_chat_##name[];

TEMPLATE(llama2)
TEMPLATE(llama3)
TEMPLATE(chatml)
TEMPLATE(gemma)
TEMPLATE(mistral)
TEMPLATE(nemotron)
TEMPLATE(canary)

static const char *const names[] = {"llama2",  "llama3",   "chatml", "gemma",
                                    "mistral", "nemotron", "canary", NULL};

const char *const *text_chat_names(void)
{
    return names;
}

const char *text_chat_builtin(const char *name)
{
    const char *const texts[] = {text_chat_llama2, text_chat_llama3,  text_chat_chatml,
                                 text_chat_gemma,  text_chat_mistral, text_chat_nemotron,
                                 text_chat_canary};
    for (size_t i = 0; names[i]; i++)
        if (!strcmp(name, names[i]))
            return texts[i];
    return NULL;
}

static int render(const struct text_jinja *jinja, const struct s2s_tokenizer *tok,
                  struct s2s_buf *text, struct text_spans *learned, json_t *messages, bool generate,
                  struct s2s_error *err)
{
    json_t *variables = json_copy(tok->names);
    const struct {
        const char *name;
        int32_t id;
    } roles[] = {{"bos_token", tok->bos}, {"eos_token", tok->eos}, {"pad_token", tok->pad}};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) /* where no file names them */
        if (roles[i].id >= 0 && !json_object_get(variables, roles[i].name))
            json_object_set_new(variables, roles[i].name,
                                json_string(tok->tokens[roles[i].id].content));
    json_object_set(variables, "messages", messages);
    json_object_set_new(variables, "add_generation_prompt", json_boolean(generate));
    json_object_set_new(variables, "tools", json_null());
    json_object_set_new(variables, "documents", json_null());
    int rc = text_jinja_render(jinja, text, learned, variables, err);
    json_decref(variables);
    return rc;
}

/* Length of the text of the first n messages, which must be how the whole text begins. */
static int prefix_len(const struct text_jinja *jinja, const struct s2s_tokenizer *tok, size_t *len,
                      const struct s2s_buf *whole, json_t *messages, size_t n, bool generate,
                      struct s2s_error *err)
{
    struct s2s_buf text = S2S_BUF_INIT;
    json_t *some = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append(some, json_array_get(messages, i));
    int rc = render(jinja, tok, &text, NULL, some, generate, err);
    *len = text.len;
    if (rc == 0 &&
        (text.len > whole->len || (text.len && memcmp(text.data, whole->data, text.len))))
        rc = s2s_error_hint(
            err,
            s2s_error_set(err, S2S_E_UNSUPPORTED,
                          "the text of the first %zu turns changes with those that follow", n),
            "put {%% generation %%} around what is to be learned");
    json_decref(some);
    s2s_buf_release(&text);
    return rc;
}

/* What each turn of the assistant adds behind the opening of its turn. */
static int find_answers(const struct text_jinja *jinja, const struct s2s_tokenizer *tok,
                        struct text_spans *learned, const struct s2s_buf *whole, json_t *messages,
                        struct s2s_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < json_array_size(messages) && rc == 0; i++) {
        const char *role = json_string_value(json_object_get(json_array_get(messages, i), "role"));
        size_t begin = 0, end = 0;
        if (!role || strcmp(role, "assistant"))
            continue;
        if (i > 0)
            rc = prefix_len(jinja, tok, &begin, whole, messages, i, true, err);
        if (rc == 0)
            rc = prefix_len(jinja, tok, &end, whole, messages, i + 1, false, err);
        if (rc == 0 && begin < end)
            text_spans_add(learned, begin, end);
    }
    return rc;
}

static bool has_generation(const struct text_jinja *jinja)
{
    for (size_t i = 0; i < jinja->n_all; i++)
        if (jinja->all[i]->kind == JINJA_GENERATION)
            return true;
    return false;
}

int text_chat_render(const struct text_jinja *jinja, const struct s2s_tokenizer *tok,
                     struct s2s_rendered *out, json_t *messages, bool generate,
                     struct s2s_error *err)
{
    struct s2s_buf text = S2S_BUF_INIT, mask = S2S_BUF_INIT;
    struct text_spans learned = {NULL, 0, 0};
    s2s_buf_puts(&text, "");
    int rc = render(jinja, tok, &text, &learned, messages, generate, err);
    if (rc == 0 && !has_generation(jinja))
        rc = find_answers(jinja, tok, &learned, &text, messages, err);
    if (rc == 0)
        rc = text_tokenizer_encode_learned(tok, &out->ids, &mask, text.data, text.len, &learned,
                                           err);
    while (out->mask_cap < out->ids.len)
        s2s_grow(&out->loss_mask, out->mask_cap, &out->mask_cap, 1);
    if (rc == 0 && mask.len > 0)
        memcpy(out->loss_mask, mask.data, mask.len);
    free(learned.data);
    s2s_buf_release(&text);
    s2s_buf_release(&mask);
    return rc;
}
