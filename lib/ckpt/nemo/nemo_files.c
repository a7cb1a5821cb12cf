/* The small files of a .nemo: the tokenizer, and files that the configuration refers to. */
#include <fcntl.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/nemo/from_nemo.h"
#include "lib/ckpt/nemo/spm.h"
#include "lib/ckpt/nemo/to_nemo.h"
#include "lib/ckpt/read/read.h"

/* ---- the pieces of a tokenizer, of a SentencePiece model or a tokenizer.json ---- */

/* Adds a line to vocab.txt as NeMo's scripts do: "##" before pieces that do not start a word. */
static void add_word(struct s2s_buf *words, const struct ckpt_spm_piece *piece)
{
    static const char space[] = "\xe2\x96\x81";
    const char *text = piece->text;
    size_t len = piece->len;
    if (piece->type == CKPT_SPM_UNKNOWN || piece->type == CKPT_SPM_CONTROL)
        return;
    if (len > 3 && memcmp(text, space, 3) == 0) {
        text += 3;
        len -= 3;
    } else if (len != 3 || memcmp(text, space, 3) != 0) {
        s2s_buf_puts(words, "##");
    }
    s2s_buf_add(words, text, len);
    s2s_buf_putc(words, '\n');
}

int ckpt_sentencepiece(json_t **labels, struct s2s_buf *vocab, struct s2s_buf *words,
                       const void *bytes, size_t len, struct s2s_error *err)
{
    struct ckpt_spm spm;
    *labels = json_array();
    int rc = ckpt_spm_read(&spm, bytes, len, err);
    for (size_t i = 0; i < spm.n_pieces && rc == 0; i++) {
        const struct ckpt_spm_piece *piece = &spm.pieces[i];
        json_array_append_new(*labels, json_stringn(piece->text, piece->len));
        s2s_buf_add(vocab, piece->text, piece->len);
        s2s_buf_printf(vocab, "\t%g\n", (double)piece->score);
        add_word(words, piece);
    }
    ckpt_spm_release(&spm);
    return rc;
}

static void set_label(json_t *labels, const json_t *id, const char *text)
{
    if (json_is_integer(id) && json_integer_value(id) >= 0 &&
        json_integer_value(id) < (json_int_t)json_array_size(labels))
        json_array_set_new(labels, (size_t)json_integer_value(id), json_string(text));
}

json_t *ckpt_tokenizer_labels(const json_t *tokenizer, int64_t n)
{
    json_t *labels = json_array(), *value;
    const json_t *vocab = json_object_get(json_object_get(tokenizer, "model"), "vocab");
    char text[32];
    const char *key;
    size_t i;
    for (int64_t k = 0; k < n; k++) {
        snprintf(text, sizeof text, "<%lld>", (long long)k);
        json_array_append_new(labels, json_string(text));
    }
    json_object_foreach((json_t *)vocab, key, value)
    {
        set_label(labels, value, key);
    }
    json_array_foreach(vocab, i, value)
    {
        if (i < (size_t)n && json_is_string(json_array_get(value, 0)))
            json_array_set(labels, i, json_array_get(value, 0));
    }
    json_array_foreach(json_object_get(tokenizer, "added_tokens"), i, value)
    {
        const char *content = json_string_value(json_object_get(value, "content"));
        if (content)
            set_label(labels, json_object_get(value, "id"), content);
    }
    return labels;
}

static bool in_folder(const struct s2s_ckpt *ckpt, const char *name)
{
    return ckpt->dir_fd >= 0 && s2s_is_there(ckpt->dir_fd, name);
}

/* ---- the tokenizer ---- */

static const char VOCAB[] = "tokenizer.vocab", WORDS[] = "vocab.txt";

int ckpt_nemo_add_tokenizer(struct s2s_nemo_output *out, const struct s2s_ckpt *ckpt,
                            const struct s2s_nemo_options *options, json_t **labels,
                            struct s2s_error *err)
{
    const char *path = options->tokenizer ? options->tokenizer : CKPT_NEMO_TOKENIZER;
    struct s2s_buf vocab = S2S_BUF_INIT, words = S2S_BUF_INIT;
    char *bytes;
    size_t len;
    *labels = NULL;
    if (options->without_tokenizer ||
        (!options->tokenizer && !in_folder(ckpt, CKPT_NEMO_TOKENIZER)))
        return 0;
    if (!options->tokenizer && ckpt_is_strange_link(ckpt->dir_fd, CKPT_NEMO_TOKENIZER)) {
        s2s_warn("ckpt", "%s: a link to a file elsewhere, left out", CKPT_NEMO_TOKENIZER);
        return 0;
    }
    int rc = ckpt_slurp(options->tokenizer ? AT_FDCWD : ckpt->dir_fd, path, CKPT_MAX_SIDE_FILE,
                        &bytes, &len, err);
    if (rc < 0)
        return rc;
    rc = ckpt_sentencepiece(labels, &vocab, &words, bytes, len, err);
    if (rc == 0) {
        ckpt_side_add(&out->files, CKPT_NEMO_TOKENIZER, bytes, len);
        ckpt_side_add(&out->files, VOCAB, vocab.data, vocab.len);
        ckpt_side_add(&out->files, WORDS, words.data ? words.data : "", words.len);
    } else {
        s2s_error_add(err, rc, "%s%s%s", options->tokenizer ? "" : ckpt->path,
                      options->tokenizer ? "" : "/", path);
        json_decref(*labels);
        *labels = NULL;
    }
    s2s_buf_release(&vocab);
    s2s_buf_release(&words);
    free(bytes);
    return rc;
}

/* ---- files that a configuration refers to ---- */

/* Removes the digest that NeMo prepends: "0123..ef_tokenizer.model". */
static const char *without_digest(const char *name)
{
    return strspn(name, "0123456789abcdef") == 32 && name[32] == '_' ? name + 33 : name;
}

static bool is_weights(const struct s2s_ckpt *ckpt, const char *name)
{
    return s2s_has_tail(name, '/', CKPT_NEMO_WEIGHTS) ||
           (ckpt->inside && s2s_starts_with(name, ckpt->inside));
}

void ckpt_nemo_warn_left(const struct ckpt_side_files *files, const struct s2s_ckpt *ckpt)
{
    enum { SHOWN = 1000 }; /* bytes of names */
    const char *root = ckpt->root ? ckpt->root : "";
    struct s2s_buf list = S2S_BUF_INIT;
    size_t n_more = 0;
    for (size_t i = 0; i < ckpt->n_members; i++) {
        const char *full = ckpt->members[i].name;
        const char *name = s2s_starts_with(full, root) ? full + strlen(root) : full;
        if (is_weights(ckpt, full) || s2s_has_tail(full, '/', CKPT_NEMO_CONFIG) ||
            ckpt_side_find(files, name) || ckpt_side_find(files, without_digest(name)))
            continue;
        if (list.len < SHOWN)
            s2s_buf_printf(&list, "%s%s", list.len ? ", " : "", name);
        else
            n_more++;
    }
    if (n_more)
        s2s_buf_printf(&list, " and %zu more", n_more);
    if (list.len)
        s2s_warn("ckpt", "%s: files beside the weights are left out: %s", ckpt->path, list.data);
    s2s_buf_release(&list);
}

static int add_named(struct s2s_nemo_output *out, const struct s2s_ckpt *ckpt, const char *name,
                     struct s2s_error *err)
{
    const char *plain = without_digest(name);
    const struct ckpt_side_file *same = ckpt_side_find(&out->files, plain);
    int rc = 0;
    if (!ckpt_name_is_plain(name, strlen(name)) || strlen(name) > CKPT_NEMO_MAX_NAME)
        return s2s_error_set(err, S2S_E_FORMAT,
                             "%s names nemo:%s, no plain name of %d bytes at most",
                             CKPT_NEMO_CONFIG, name, CKPT_NEMO_MAX_NAME);
    if (ckpt_side_find(&out->files, name))
        return 0;
    if (same && same->len + out->files.len_bytes <= CKPT_MAX_SIDE_BYTES &&
        out->files.n < CKPT_MAX_SIDE_FILES) {
        ckpt_side_add(&out->files, name, same->bytes, same->len);
        return 0;
    }
    const char *there = in_folder(ckpt, name) ? name : plain;
    if (in_folder(ckpt, there))
        rc = ckpt_side_take(&out->files, ckpt->dir_fd, there, name, err);
    if (rc)
        return rc < 0 ? rc : 0;
    rc = s2s_error_set(err, S2S_E_NOTFOUND, "%s names nemo:%s, which would not be in the archive",
                       CKPT_NEMO_CONFIG, name);
    return s2s_error_hint(err, rc, "put it beside the weights, or give --tokenizer FILE");
}

int ckpt_nemo_add_named(struct s2s_nemo_output *out, const struct s2s_ckpt *ckpt,
                        const json_t *value, struct s2s_error *err)
{
    const char *key, *text = json_string_value(value);
    json_t *item;
    size_t i;
    int rc = 0;
    if (text && s2s_starts_with(text, "nemo:"))
        return add_named(out, ckpt, text + 5, err);
    json_object_foreach((json_t *)value, key, item)
    {
        if (rc == 0)
            rc = ckpt_nemo_add_named(out, ckpt, item, err);
    }
    json_array_foreach(value, i, item)
    {
        if (rc == 0)
            rc = ckpt_nemo_add_named(out, ckpt, item, err);
    }
    return rc;
}

int ckpt_nemo_parse_yaml(json_t **tree, const char *text, struct s2s_error *err)
{
    int rc = ckpt_parse_yaml(tree, text, strlen(text), CKPT_NEMO_CONFIG, err);
    if (rc == 0 && !json_is_object(json_object_get(*tree, "encoder")))
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s: has no section `encoder`", CKPT_NEMO_CONFIG);
    if (rc < 0) {
        json_decref(*tree);
        *tree = NULL;
    }
    return rc;
}
