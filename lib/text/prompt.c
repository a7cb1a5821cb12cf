/* Reads prompt formats, and renders conversations by them. */
#include "lib/text/prompt.h"

#include <jansson.h>

#include "lib/io/digest.h"
#include "lib/text/chat.h"

static const char BOS[] = "|bos|", EOS[] = "|eos|", MESSAGE[] = "|message|", SYSTEM[] = "|system|";

enum { ROLE_PREAMBLE, ROLE_SYSTEM, ROLE_USER, ROLE_BOTH, ROLE_ASSISTANT, ROLE_GENERATION, N_ROLES };
static const char *const role_names[N_ROLES] = {"preamble",        "system",    "user",
                                                "system_and_user", "assistant", "generation"};

/* A format as it is written down; NULL: the format has no such turn. */
struct format {
    const char *name;
    const char *templates[N_ROLES];
};

/* The formats of NeMo's PromptFormatter classes (Llama 2 and 3, Qwen, Gemma, Mistral, Nemotron-H),
 * with the system turns that the models' own chat formats have. */
static const struct format formats[] = {
    {"plain",
     {[ROLE_SYSTEM] = "|message|", [ROLE_USER] = "|message|", [ROLE_ASSISTANT] = "|message||eos|"}},
    {"llama2",
     {[ROLE_USER] = "|bos|[INST] |message| [/INST]",
      [ROLE_BOTH] = "|bos|[INST] <<SYS>>\n|system|\n<</SYS>>\n\n|message| [/INST]",
      [ROLE_ASSISTANT] = "|message| |eos|"}},
    {"llama3",
     {[ROLE_PREAMBLE] = "<|begin_of_text|>",
      [ROLE_SYSTEM] = "<|start_header_id|>system<|end_header_id|>\n\n|message|<|eot_id|>",
      [ROLE_USER] = "<|start_header_id|>user<|end_header_id|>\n\n|message|<|eot_id|>",
      [ROLE_ASSISTANT] = "<|start_header_id|>assistant<|end_header_id|>\n\n|message|<|eot_id|>",
      [ROLE_GENERATION] = "<|start_header_id|>assistant<|end_header_id|>\n\n"}},
    {"qwen",
     {[ROLE_SYSTEM] = "<|im_start|>system\n|message|<|im_end|>\n",
      [ROLE_USER] = "<|im_start|>user\n|message|<|im_end|>\n",
      [ROLE_ASSISTANT] = "<|im_start|>assistant\n|message|<|im_end|>\n",
      [ROLE_GENERATION] = "<|im_start|>assistant\n"}},
    {"gemma",
     {[ROLE_PREAMBLE] = "|bos|",
      [ROLE_USER] = "<start_of_turn>user\n|message|<end_of_turn>\n<start_of_turn>model\n",
      [ROLE_ASSISTANT] = "|message|<end_of_turn>\n|eos|"}},
    {"mistral",
     {[ROLE_PREAMBLE] = "<s>",
      [ROLE_USER] = "[INST] |message| [/INST] ",
      [ROLE_ASSISTANT] = "|message|</s>"}},
    {"nemotron_h",
     {[ROLE_SYSTEM] = "<SPECIAL_10>System\n|message|",
      [ROLE_USER] = "\n<SPECIAL_11>User\n|message|",
      [ROLE_ASSISTANT] = "\n<SPECIAL_11>Assistant\n|message|",
      [ROLE_GENERATION] = "\n<SPECIAL_11>Assistant\n"}},
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

/* A template taken apart: |bos|, text with slots, |eos|. */
struct template
{
    char *text; /* NULL: no such turn */
    bool bos, eos;
};

struct s2s_prompt {
    char *name;
    struct template templates[N_ROLES];
    struct text_jinja *jinja; /* a chat template, in place of templates of roles */
    char *source;             /* its text */
    struct s2s_tokenizer *tok;
    char *audio_tag;
    size_t audio_tag_len;
    int32_t audio_id;
    char digest[33];
};

void s2s_prompt_free(struct s2s_prompt *prompt)
{
    if (!prompt)
        return;
    free(prompt->name);
    for (int role = 0; role < N_ROLES; role++)
        free(prompt->templates[role].text);
    text_jinja_free(prompt->jinja);
    free(prompt->source);
    free(prompt->audio_tag);
    free(prompt);
}

void s2s_rendered_release(struct s2s_rendered *rendered)
{
    s2s_ids_release(&rendered->ids);
    free(rendered->loss_mask);
    free(rendered->audio_pos);
    *rendered = (struct s2s_rendered)S2S_RENDERED_INIT;
}

/* ---- opening ---- */

static int count(const char *text, const char *what)
{
    int n = 0;
    for (; (text = strstr(text, what)); text += strlen(what))
        n++;
    return n;
}

/* A role's slots, each exactly once; |bos| only in front and |eos| only at the end. */
static int set_template(struct s2s_prompt *prompt, int role, const char *text,
                        struct s2s_error *err)
{
    struct template *template = &prompt->templates[role];
    bool fixed = role == ROLE_PREAMBLE || role == ROLE_GENERATION;
    const char *name = role_names[role];
    size_t len = strlen(text);
    if (count(text, MESSAGE) != !fixed)
        return s2s_error_set(err, S2S_E_FORMAT, "%s: %s must hold |message| %s", prompt->name, name,
                             fixed ? "nowhere" : "once");
    if (count(text, SYSTEM) != (role == ROLE_BOTH))
        return s2s_error_set(err, S2S_E_FORMAT, "%s: %s must hold |system| %s", prompt->name, name,
                             role == ROLE_BOTH ? "once" : "nowhere");
    template->bos = !strncmp(text, BOS, strlen(BOS));
    if (template->bos)
        text += strlen(BOS), len -= strlen(BOS);
    template->eos = len >= strlen(EOS) && !strcmp(text + len - strlen(EOS), EOS);
    if (template->eos)
        len -= strlen(EOS);
    template->text = s2s_xstrndup(text, len);
    if (strstr(template->text, BOS) || strstr(template->text, EOS))
        return s2s_error_set(err, S2S_E_FORMAT,
                             "%s: %s: |bos| may stand only at the start, |eos| only at the end",
                             prompt->name, name);
    if (template->bos && s2s_tokenizer_bos(prompt->tok) < 0)
        return s2s_error_set(err, S2S_E_NOTFOUND,
                             "%s: %s wants a bos token, the tokenizer has none", prompt->name,
                             name);
    if (template->eos && s2s_tokenizer_eos(prompt->tok) < 0)
        return s2s_error_set(err, S2S_E_NOTFOUND,
                             "%s: %s wants an eos token, the tokenizer has none", prompt->name,
                             name);
    return 0;
}

static int check_roles(const struct s2s_prompt *prompt, struct s2s_error *err)
{
    if (!prompt->templates[ROLE_USER].text || !prompt->templates[ROLE_ASSISTANT].text)
        return s2s_error_set(err, S2S_E_FORMAT, "%s: a format needs user and assistant",
                             prompt->name);
    return 0;
}

static int open_builtin(struct s2s_prompt *prompt, const char *name, struct s2s_error *err)
{
    const struct format *format = NULL;
    if (!strcmp(name, "chatml"))
        name = "qwen";
    if (!strcmp(name, "nemotron-h"))
        name = "nemotron_h";
    for (int i = 0; i < N_FORMATS; i++)
        if (!strcmp(name, formats[i].name))
            format = &formats[i];
    if (!format) {
        struct s2s_buf names = S2S_BUF_INIT;
        for (int i = 0; i < N_FORMATS; i++)
            s2s_buf_printf(&names, "%s, ", formats[i].name);
        s2s_buf_puts(&names, "chat (the tokenizer's own template)");
        for (const char *const *chat = text_chat_names(); *chat; chat++)
            s2s_buf_printf(&names, ", chat:%s", *chat);
        int rc = s2s_error_set(err, S2S_E_ARG, "unknown prompt format '%s'", name);
        s2s_error_hint(err, rc, "known are %s, or a file's name with a dot or a slash", names.data);
        s2s_buf_release(&names);
        return rc;
    }
    free(prompt->name);
    prompt->name = s2s_xstrdup(format->name);
    for (int role = 0; role < N_ROLES; role++) {
        int rc =
            format->templates[role] ? set_template(prompt, role, format->templates[role], err) : 0;
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int role_of_key(const char *key, bool inside_roles)
{
    for (int role = 0; role < N_ROLES; role++)
        if (!strcmp(key, role_names[role]) &&
            inside_roles == (role != ROLE_PREAMBLE && role != ROLE_GENERATION))
            return role;
    return -1;
}

static int read_templates(struct s2s_prompt *prompt, const json_t *object, bool inside_roles,
                          struct s2s_error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        int role = role_of_key(key, inside_roles);
        if (!inside_roles && (!strcmp(key, "name") || !strcmp(key, "roles")))
            continue;
        if (role < 0)
            return s2s_error_set(err, S2S_E_FORMAT, "%s: unknown key '%s'", prompt->name, key);
        if (!json_is_string(value))
            return s2s_error_set(err, S2S_E_FORMAT, "%s: %s is not a string", prompt->name, key);
        int rc = set_template(prompt, role, json_string_value(value), err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int open_file(struct s2s_prompt *prompt, const char *path, struct s2s_error *err)
{
    json_error_t at;
    FILE *file = fopen(path, "rbe");
    if (!file)
        return s2s_error_errno(err, S2S_E_OPEN, "%s", path);
    json_t *root = json_loadf(file, JSON_REJECT_DUPLICATES, &at);
    fclose(file);
    if (!root)
        return s2s_error_set(err, S2S_E_FORMAT, "%s:%d: %s", path, at.line, at.text);
    const char *name = json_string_value(json_object_get(root, "name"));
    prompt->name = s2s_xstrdup(name ? name : path);
    int rc = json_is_object(json_object_get(root, "roles"))
                 ? 0
                 : s2s_error_set(err, S2S_E_FORMAT, "no object 'roles'");
    if (rc == 0)
        rc = read_templates(prompt, root, false, err);
    if (rc == 0)
        rc = read_templates(prompt, json_object_get(root, "roles"), true, err);
    json_decref(root);
    return rc < 0 ? s2s_error_add(err, rc, "%s", path) : 0;
}

static int read_template_file(struct s2s_buf *text, const char *path, struct s2s_error *err)
{
    FILE *file = fopen(path, "rbe");
    if (!file)
        return s2s_error_errno(err, S2S_E_OPEN, "%s", path);
    int rc = s2s_buf_read(text, fileno(file), 64 << 20, err);
    fclose(file);
    return rc < 0 ? s2s_error_add(err, rc, "%s", path) : 0;
}

/* "chat", "chat:NAME" or a file */
static int open_chat(struct s2s_prompt *prompt, const char *name, struct s2s_error *err)
{
    struct s2s_buf text = S2S_BUF_INIT;
    const bool is_own = !strcmp(name, "chat"), is_builtin = !strncmp(name, "chat:", 5);
    const char *source = is_own       ? s2s_tokenizer_chat_template(prompt->tok)
                         : is_builtin ? text_chat_builtin(name + 5)
                                      : NULL;
    prompt->name = s2s_xstrdup(name);
    if (is_own && !source)
        return s2s_error_hint(
            err, s2s_error_set(err, S2S_E_NOTFOUND, "the tokenizer has no chat template"),
            "it stands in tokenizer_config.json (chat_template) or "
            "chat_template.jinja beside tokenizer.json; or name one: chat:chatml");
    if (is_builtin && !source)
        return open_builtin(prompt, name, err);
    if (!source) {
        int rc = read_template_file(&text, name, err);
        if (rc < 0)
            return rc;
        source = text.data ? text.data : "";
    }
    prompt->source = s2s_xstrdup(source);
    s2s_buf_release(&text);
    int rc = text_jinja_parse(&prompt->jinja, prompt->source, strlen(prompt->source), err);
    return rc < 0 ? s2s_error_add(err, rc, "%s", is_own ? "chat template" : name) : 0;
}

static bool is_chat(const char *name)
{
    const size_t len = strlen(name);
    return !strcmp(name, "chat") || !strncmp(name, "chat:", 5) ||
           (len > 6 && !strcmp(name + len - 6, ".jinja"));
}

static int set_audio_tag(struct s2s_prompt *prompt, const char *tag, struct s2s_error *err)
{
    static const char *const known[] = {"<|audio|>", "<|audioplaceholder|>", "<|AUDIO|>",
                                        "<|audio_pad|>", "<audio>"};
    for (size_t i = 0; !tag && i < sizeof known / sizeof *known; i++)
        if (s2s_tokenizer_id(prompt->tok, known[i]) >= 0)
            tag = known[i];
    prompt->audio_tag = s2s_xstrdup(tag ? tag : known[0]);
    prompt->audio_tag_len = strlen(prompt->audio_tag);
    prompt->audio_id = s2s_tokenizer_add_special(prompt->tok, prompt->audio_tag, err);
    return prompt->audio_id < 0 ? s2s_error_add(err, prompt->audio_id, "audio tag") : 0;
}

static void set_digest(struct s2s_prompt *prompt)
{
    struct s2s_buf text = S2S_BUF_INIT;
    for (int role = 0; role < N_ROLES; role++) {
        const struct template *template = &prompt->templates[role];
        if (template->text)
            s2s_buf_printf(&text, "%s=%s%s%s", role_names[role], template->bos ? BOS : "",
                           template->text, template->eos ? EOS : "");
        s2s_buf_putc(&text, 0);
    }
    if (prompt->source)
        s2s_buf_puts(&text, prompt->source);
    s2s_buf_puts(&text, prompt->audio_tag);
    s2s_xxh3_128_hex(prompt->digest, text.data, text.len);
    s2s_buf_release(&text);
}

int s2s_prompt_open(struct s2s_prompt **out, const char *name_or_file, struct s2s_tokenizer *tok,
                    const char *audio_tag, struct s2s_error *err)
{
    struct s2s_prompt *prompt = s2s_xcalloc(1, sizeof *prompt);
    prompt->tok = tok;
    int rc = is_chat(name_or_file)         ? open_chat(prompt, name_or_file, err)
             : strpbrk(name_or_file, "/.") ? open_file(prompt, name_or_file, err)
                                           : open_builtin(prompt, name_or_file, err);
    if (rc == 0 && !prompt->jinja)
        rc = check_roles(prompt, err);
    if (rc == 0)
        rc = text_sp_find_controls(tok, err);
    if (rc == 0)
        rc = set_audio_tag(prompt, audio_tag, err);
    if (rc < 0) {
        s2s_prompt_free(prompt);
        return rc;
    }
    set_digest(prompt);
    *out = prompt;
    return 0;
}

const char *s2s_prompt_name(const struct s2s_prompt *prompt)
{
    return prompt->name;
}

int32_t s2s_prompt_audio_id(const struct s2s_prompt *prompt)
{
    return prompt->audio_id;
}

const char *s2s_prompt_digest(const struct s2s_prompt *prompt)
{
    return prompt->digest;
}

/* ---- rendering ---- */

static void add_parts(const struct s2s_prompt *prompt, struct s2s_buf *text,
                      const struct s2s_turn *turn)
{
    for (size_t i = 0; i < turn->n_parts; i++) {
        const struct s2s_part *part = &turn->parts[i];
        if (i > 0)
            s2s_buf_putc(text, ' ');
        s2s_buf_add(text, part->text ? part->text : prompt->audio_tag,
                    part->text ? part->len : prompt->audio_tag_len);
    }
}

/* The template with |message| and |system| filled in. */
static void fill(const struct s2s_prompt *prompt, struct s2s_buf *text, int role,
                 const struct s2s_turn *system, const struct s2s_turn *message)
{
    const char *at = prompt->templates[role].text;
    while (*at) {
        if (message && !strncmp(at, MESSAGE, strlen(MESSAGE))) {
            add_parts(prompt, text, message);
            at += strlen(MESSAGE);
        } else if (system && !strncmp(at, SYSTEM, strlen(SYSTEM))) {
            add_parts(prompt, text, system);
            at += strlen(SYSTEM);
        } else {
            s2s_buf_putc(text, *at++);
        }
    }
}

/* Ids of one filled template, as one string. */
static int add_turn(const struct s2s_prompt *prompt, struct s2s_rendered *out, int role,
                    const struct s2s_turn *system, const struct s2s_turn *message,
                    struct s2s_error *err)
{
    const struct template *template = &prompt->templates[role];
    struct s2s_buf text = S2S_BUF_INIT;
    size_t first = out->ids.len;
    fill(prompt, &text, role, system, message);
    if (template->bos)
        s2s_ids_add(&out->ids, s2s_tokenizer_bos(prompt->tok));
    int rc = s2s_tokenizer_encode(prompt->tok, &out->ids, text.data ? text.data : "", text.len,
                                  false, err);
    if (rc == 0 && template->eos)
        s2s_ids_add(&out->ids, s2s_tokenizer_eos(prompt->tok));
    while (out->mask_cap < out->ids.len)
        s2s_grow(&out->loss_mask, out->mask_cap, &out->mask_cap, 1);
    if (out->ids.len > first)
        memset(out->loss_mask + first, role == ROLE_ASSISTANT, out->ids.len - first);
    s2s_buf_release(&text);
    return rc < 0 ? s2s_error_add(err, rc, "%s turn", role_names[role]) : 0;
}

static size_t count_clips(const struct s2s_turn *turns, size_t n_turns)
{
    size_t n = 0;
    for (size_t t = 0; t < n_turns; t++)
        for (size_t i = 0; i < turns[t].n_parts; i++)
            n += turns[t].parts[i].text == NULL;
    return n;
}

/* Finds the placeholders: one a clip, or the text itself held the tag. */
static int find_clips(const struct s2s_prompt *prompt, struct s2s_rendered *out, size_t n_clips,
                      struct s2s_error *err)
{
    out->n_audio = 0;
    for (size_t i = 0; i < out->ids.len; i++) {
        if (out->ids.data[i] != prompt->audio_id)
            continue;
        s2s_grow(&out->audio_pos, out->n_audio, &out->audio_cap, sizeof *out->audio_pos);
        out->audio_pos[out->n_audio++] = (int32_t)i;
    }
    if (out->n_audio != n_clips)
        return s2s_error_set(err, S2S_E_FORMAT,
                             "%zu audio placeholders for %zu clips: the text holds the tag %s",
                             out->n_audio, n_clips, prompt->audio_tag);
    return 0;
}

/* The turns as a chat template gets them. */
static int render_chat(const struct s2s_prompt *prompt, struct s2s_rendered *out,
                       const struct s2s_turn *turns, size_t n_turns, bool generate,
                       struct s2s_error *err)
{
    json_t *messages = json_array();
    struct s2s_buf text = S2S_BUF_INIT;
    int rc = 0;
    for (size_t t = 0; t < n_turns && rc == 0; t++) {
        json_t *message = json_object();
        s2s_buf_clear(&text);
        s2s_buf_puts(&text, "");
        add_parts(prompt, &text, &turns[t]);
        size_t bad = text_utf8_check(text.data, text.len);
        if (bad < text.len)
            rc = s2s_error_set(err, S2S_E_FORMAT, "%s turn: byte %zu of the text is not UTF-8",
                               turns[t].role, bad);
        json_object_set_new(message, "role", json_string(turns[t].role));
        json_object_set_new(message, "content", json_stringn_nocheck(text.data, text.len));
        for (size_t i = 0; i < turns[t].n_fields; i++)
            json_object_set_new(message, turns[t].fields[i].key,
                                json_string(turns[t].fields[i].value));
        json_array_append_new(messages, message);
    }
    if (rc == 0)
        rc = text_chat_render(prompt->jinja, prompt->tok, out, messages, generate, err);
    s2s_buf_release(&text);
    json_decref(messages);
    return rc < 0 ? s2s_error_add(err, rc, "%s", prompt->name) : 0;
}

static int render_roles(const struct s2s_prompt *prompt, struct s2s_rendered *out,
                        const struct s2s_turn *turns, size_t n_turns, bool generate,
                        struct s2s_error *err)
{
    int rc = 0;
    if (prompt->templates[ROLE_PREAMBLE].text)
        rc = add_turn(prompt, out, ROLE_PREAMBLE, NULL, NULL, err);
    for (size_t t = 0; t < n_turns && rc == 0; t++) {
        const struct s2s_turn *turn = &turns[t];
        int role = role_of_key(turn->role, true);
        bool both = t == 0 && role == ROLE_SYSTEM && n_turns > 1 &&
                    prompt->templates[ROLE_BOTH].text && !strcmp(turns[1].role, "user");
        if (both)
            rc = add_turn(prompt, out, ROLE_BOTH, turn, &turns[++t], err);
        else if (role < 0 || role == ROLE_BOTH || !prompt->templates[role].text)
            rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "prompt format %s has no %s turn",
                               prompt->name, turn->role);
        else
            rc = add_turn(prompt, out, role, NULL, turn, err);
    }
    if (rc == 0 && generate && prompt->templates[ROLE_GENERATION].text)
        rc = add_turn(prompt, out, ROLE_GENERATION, NULL, NULL, err);
    return rc;
}

/* A model that learned from one bos and is given two, or the other way round, is worse unnoticed.
 */
static int refuse_double_bos(const struct s2s_prompt *prompt, const struct s2s_rendered *out,
                             struct s2s_error *err)
{
    int32_t bos = s2s_tokenizer_bos(prompt->tok);
    if (bos < 0 || out->ids.len < 2 || out->ids.data[0] != bos || out->ids.data[1] != bos)
        return 0;
    return s2s_error_set(err, S2S_E_FORMAT,
                         "%s: two bos tokens (%s) in front: the format and the "
                         "text both have one",
                         prompt->name, s2s_tokenizer_token(prompt->tok, bos, NULL));
}

int s2s_prompt_render(const struct s2s_prompt *prompt, struct s2s_rendered *out,
                      const struct s2s_turn *turns, size_t n_turns, bool generate,
                      struct s2s_error *err)
{
    s2s_ids_clear(&out->ids);
    out->n_audio = 0;
    if (n_turns == 0)
        return s2s_error_set(err, S2S_E_ARG, "a conversation without turns");
    int rc = prompt->jinja ? render_chat(prompt, out, turns, n_turns, generate, err)
                           : render_roles(prompt, out, turns, n_turns, generate, err);
    if (rc == 0)
        rc = refuse_double_bos(prompt, out, err);
    return rc < 0 ? rc : find_clips(prompt, out, count_clips(turns, n_turns), err);
}

int s2s_prompt_render_asr(const struct s2s_prompt *prompt, struct s2s_rendered *out,
                          const char *system, const char *context, const char *answer,
                          struct s2s_error *err)
{
    struct s2s_part system_part = {system, system ? strlen(system) : 0};
    struct s2s_part user_parts[2] = {{context, context ? strlen(context) : 0}, {NULL, 0}};
    struct s2s_part answer_part = {answer, answer ? strlen(answer) : 0};
    struct s2s_turn turns[3];
    size_t n = 0;
    if (system)
        turns[n++] = (struct s2s_turn){.role = "system", .parts = &system_part, .n_parts = 1};
    turns[n++] = (struct s2s_turn){
        .role = "user", .parts = context ? user_parts : user_parts + 1, .n_parts = context ? 2 : 1};
    if (answer)
        turns[n++] = (struct s2s_turn){.role = "assistant", .parts = &answer_part, .n_parts = 1};
    return s2s_prompt_render(prompt, out, turns, n, answer == NULL, err);
}
