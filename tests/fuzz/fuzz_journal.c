/* What an interrupted conversion left (s2s-resume), and manifests beside weights. First byte: 0 the
 * journal as it is, 1 its lines with right sums, 2 s2s-manifest.json, 3 integrity.json. */
#include "lib/ckpt/model.h"
#include "lib/ckpt/write/journal.h"
#include "lib/ckpt/write/manifest.h"
#include "lib/io/digest.h"
#include "tests/fuzz/folder.h"

static const char KEY[] = "0123456789abcdef0123456789abcdef";

static void sum_lines(struct s2s_buf *out, const char *text, size_t len)
{
    char hex[17];
    s2s_buf_printf(out, "%s\n", KEY);
    for (size_t at = 0; at < len;) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end ? (size_t)(end - text) - at : len - at;
        s2s_u64_hex(hex, s2s_xxh3_64(text + at, n));
        s2s_buf_add(out, text + at, n);
        s2s_buf_printf(out, "\t%s\n", hex);
        at += n + 1;
    }
}

static void try_journal(void)
{
    struct ckpt_journal *journal;
    struct s2s_error err = S2S_ERROR_INIT;
    char digest[33], path[128];
    int64_t len;
    if (s2s_ckpt_journal_open(&journal, folder, KEY, true, &err) < 0)
        S2S_BUG("a journal stops the conversion: %s", err.text);
    snprintf(path, sizeof path, "%s/a.safetensors", folder);
    ckpt_journal_has(journal, path, &len, digest);
    if (ckpt_journal_add(journal, path, 4, KEY, &err) < 0 ||
        s2s_ckpt_journal_remove(journal, &err) < 0)
        S2S_BUG("%s", err.text);
    s2s_ckpt_journal_close(journal);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct s2s_buf text = S2S_BUF_INIT;
    struct s2s_error err = S2S_ERROR_INIT;
    size_t n;
    if (size == 0)
        return 0;
    folder_fill(NULL, 0, NULL, 0);
    folder_put("a.safetensors", "abcd", 4);
    folder_put("sub/b", "abcd", 4);
    if (data[0] % 4 == 1)
        sum_lines(&text, (const char *)data + 1, size - 1);
    else
        s2s_buf_add(&text, data + 1, size - 1);
    if (data[0] % 4 < 2) {
        folder_put("s2s-resume", text.data, text.len);
        try_journal();
    } else {
        folder_put(data[0] % 4 == 2 ? CKPT_MANIFEST : "integrity.json", text.data, text.len);
        const struct s2s_ckpt ckpt = {.path = folder}; /* manifests are all that it is asked for */
        s2s_ckpt_verify_manifest(&ckpt, NULL, &n, &err);
    }
    s2s_buf_release(&text);
    return 0;
}
