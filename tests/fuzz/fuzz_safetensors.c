/* Any bytes as a safetensors file: what is taken lies inside the bytes and can be written again,
 * and who reads the header alone takes the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/io/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t sink;

/* what came of a header: names may come twice there */
struct names {
    char **list;
    size_t n, cap, bytes;
};

static int add_name(void *ctx, const struct s2s_st_tensor *tensor, size_t begin,
                    struct s2s_error *err)
{
    struct names *names = ctx;
    (void)begin;
    (void)err;
    s2s_grow(&names->list, names->n, &names->cap, sizeof *names->list);
    names->list[names->n++] = s2s_xstrdup(tensor->name);
    names->bytes += tensor->len_bytes;
    return 0;
}

static bool has_twice(const struct names *names)
{
    for (size_t i = 0; i < names->n; i++)
        for (size_t k = 0; k < i; k++)
            if (strcmp(names->list[i], names->list[k]) == 0)
                return true;
    return false;
}

/* Its texts in pieces, one behind the other. */
static int add_text(void *ctx, const char *key, const char *piece, struct s2s_error *err)
{
    (void)err;
    if (key)
        s2s_buf_printf(ctx, "%s=", key);
    s2s_buf_puts(ctx, piece);
    return 0;
}

static void read_texts(int fd, const struct s2s_safetensors *st)
{
    struct s2s_buf texts = S2S_BUF_INIT;
    size_t len = 0;
    if (s2s_safetensors_read_texts(fd, add_text, &texts, NULL) < 0)
        S2S_BUG("the texts of a sound header are none");
    for (size_t i = 0; i < st->n_meta; i++) {
        const char *key = st->meta[i].key, *value = st->meta[i].value;
        char *text = s2s_xasprintf("%s=%s", key, value);
        if (!strstr(texts.data, text))
            S2S_BUG("the text '%s' is another in pieces", key);
        len += strlen(text);
        free(text);
    }
    if (len != texts.len)
        S2S_BUG("%zu bytes of texts, in pieces %zu", len, texts.len);
    s2s_buf_release(&texts);
}

static void read_header(const uint8_t *data, size_t size, const struct s2s_safetensors *st)
{
    struct s2s_safetensors head;
    struct names names = {.list = NULL};
    int64_t data_pos;
    int fd = memfd_create("header", MFD_CLOEXEC);
    if (fd < 0 || (size && write(fd, data, size) != (ssize_t)size))
        abort();
    int rc = s2s_safetensors_read_header(&head, fd, &data_pos, add_name, &names, NULL);
    if (st ? rc < 0 || names.n != st->n_tensors || head.n_meta != st->n_meta ||
                 (size_t)data_pos + names.bytes != size
           : rc == 0 && !has_twice(&names))
        S2S_BUG("the header alone is another: %d", rc);
    if (rc == 0)
        s2s_safetensors_release(&head);
    if (st)
        read_texts(fd, st);
    for (size_t i = 0; i < names.n; i++)
        free(names.list[i]);
    free(names.list);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct s2s_safetensors st;
    if (s2s_safetensors_parse(&st, data, size, NULL) < 0) {
        read_header(data, size, NULL);
        return 0;
    }
    read_header(data, size, &st);
    for (size_t i = 0; i < st.n_tensors; i++) {
        const struct s2s_st_tensor *t = &st.tensors[i];
        const uint8_t *bytes = t->data;
        if (s2s_safetensors_find(&st, t->name) != t || t->len_bytes > size ||
            (uint64_t)s2s_st_numel(t) * s2s_dtype_size(t->dtype) != t->len_bytes)
            S2S_BUG("tensor '%s' is not what it says", t->name);
        for (size_t k = 0; k < t->len_bytes; k++)
            sink ^= bytes[k];
    }
    for (size_t i = 0; i < st.n_meta; i++)
        if (!s2s_safetensors_meta(&st, st.meta[i].key))
            S2S_BUG("metadata '%s' is lost", st.meta[i].key);
    char *header = NULL;
    size_t len = 0;
    if (s2s_safetensors_header(&header, &len, st.tensors, st.n_tensors, st.meta, st.n_meta, NULL) <
        0)
        S2S_BUG("what was read cannot be written");
    free(header);
    s2s_safetensors_release(&st);
    return 0;
}
