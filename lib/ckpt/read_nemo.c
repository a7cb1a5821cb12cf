/*
 * .nemo archives: a tar of model_config.yaml, model_weights.ckpt (torch.save) and tokenizer files.
 * Nothing is unpacked: libarchive finds the members, the weights are read where they lie.
 */
#include <archive.h>
#include <archive_entry.h>

#include "lib/base/base.h"
#include "lib/ckpt/model.h"
#include "lib/conf/conf.h"

enum { MAX_MEMBERS = 4096, MAX_CONFIG = 16 << 20, BLOCK = 512, MAX_HEADERS = 64 };

struct nemo {
    struct s2s_ckpt *ckpt;
    const char *path;
    int fd;
    struct archive *tar;
    int64_t begin, len_bytes; /* of the weights; begin 0: not found yet */
    struct s2s_error *err;
};

static int bad_tar(const struct nemo *n)
{
    const char *why = archive_error_string(n->tar);
    return s2s_error_set(n->err, S2S_E_FORMAT, "%s: not a whole tar archive: %s", n->path,
                         why ? why : "it ends too early");
}

/* The member that stands at the reader: its bytes follow one or more header blocks, and the first
 * of them are what libarchive gives. */
static int find_weights(struct nemo *n, int64_t len_bytes)
{
    const void *first = NULL;
    size_t len = 0;
    la_int64_t at = 0;
    if (archive_read_data_block(n->tar, &first, &len, &at) != ARCHIVE_OK || len == 0 || at != 0)
        return bad_tar(n);
    len = len < 4096 ? len : 4096;
    char *bytes = s2s_xmalloc(len);
    const int64_t header = archive_read_header_position(n->tar);
    int rc = 0;
    for (int k = 1; rc == 0 && k < MAX_HEADERS && n->begin == 0; k++) {
        int64_t begin = header + k * BLOCK;
        if (len_bytes > n->ckpt->files[0].len_bytes - begin)
            break;
        rc = ckpt_pread(n->fd, bytes, len, begin, n->path, n->err);
        if (rc == 0 && memcmp(bytes, first, len) == 0)
            n->begin = begin;
    }
    free(bytes);
    n->len_bytes = len_bytes;
    if (rc == 0 && n->begin == 0)
        rc = s2s_error_set(n->err, S2S_E_TRUNCATED, "%s: model_weights.ckpt leaves the archive",
                           n->path);
    return rc;
}

/* model_config.yaml as "model_config" of the common state. */
static int read_config(struct nemo *n, int64_t len_bytes)
{
    struct s2s_conf *conf = NULL;
    if (len_bytes > MAX_CONFIG)
        return s2s_error_set(n->err, S2S_E_FORMAT, "%s: a configuration of %lld bytes", n->path,
                             (long long)len_bytes);
    char *text = s2s_xmalloc((size_t)len_bytes + 1);
    int rc = archive_read_data(n->tar, text, (size_t)len_bytes) == len_bytes ? 0 : bad_tar(n);
    if (rc == 0)
        rc = s2s_conf_parse(&conf, text, (size_t)len_bytes, "model_config.yaml", S2S_CONF_YAML,
                            n->err);
    if (rc == 0) {
        struct s2s_buf json = S2S_BUF_INIT;
        s2s_conf_dump_json(&json, conf);
        json_t *value = json_loadb(json.data, json.len, JSON_DECODE_ANY, NULL);
        if (!n->ckpt->common)
            n->ckpt->common = json_object();
        if (value)
            json_object_set_new(n->ckpt->common, "model_config", value);
        s2s_buf_release(&json);
    }
    s2s_conf_free(conf);
    free(text);
    return rc < 0 ? s2s_error_add(n->err, rc, "%s", n->path) : 0;
}

static int read_member(struct nemo *n, struct archive_entry *entry)
{
    const char *name = archive_entry_pathname(entry);
    const int64_t len_bytes = archive_entry_size(entry);
    if (!name || archive_entry_filetype(entry) != AE_IFREG || len_bytes <= 0)
        return 0;
    while (strncmp(name, "./", 2) == 0)
        name += 2;
    if (strcmp(name, "model_weights/.metadata") == 0) {
        int rc = s2s_error_set(n->err, S2S_E_UNSUPPORTED,
                               "%s: its weights are a folder (a distributed checkpoint)", n->path);
        return s2s_error_hint(n->err, rc, "unpack it with tar and give its model_weights folder");
    }
    if (strcmp(name, "model_weights.ckpt") == 0 && n->begin == 0)
        return find_weights(n, len_bytes);
    return strcmp(name, "model_config.yaml") == 0 ? read_config(n, len_bytes) : 0;
}

static int list_members(struct nemo *n)
{
    struct archive_entry *entry;
    int rc = 0, status = ARCHIVE_OK;
    n->tar = archive_read_new();
    if (!n->tar)
        return s2s_error_set(n->err, S2S_E_NOMEM, "%s: no memory for the archive", n->path);
    archive_read_support_format_tar(n->tar);
    if (archive_read_open_filename(n->tar, n->path, 1 << 16) != ARCHIVE_OK)
        rc = bad_tar(n);
    for (int i = 0; rc == 0; i++) {
        status = archive_read_next_header(n->tar, &entry);
        if (status == ARCHIVE_EOF)
            break;
        if (status != ARCHIVE_OK && status != ARCHIVE_WARN)
            rc = bad_tar(n);
        else if (i >= MAX_MEMBERS)
            rc = s2s_error_set(n->err, S2S_E_FORMAT, "%s: more than %d members", n->path,
                               MAX_MEMBERS);
        else
            rc = read_member(n, entry);
    }
    archive_read_free(n->tar);
    return rc;
}

int ckpt_read_nemo(struct s2s_ckpt *ckpt, const char *path, struct s2s_error *err)
{
    struct nemo n = {.ckpt = ckpt, .path = path, .err = err};
    n.fd = ckpt_file_fd(ckpt, 0, err);
    int rc = n.fd < 0 ? n.fd : list_members(&n);
    if (rc == 0 && n.begin == 0)
        rc =
            s2s_error_hint(err,
                           s2s_error_set(err, S2S_E_FORMAT,
                                         "%s: a tar without model_weights.ckpt, so no .nemo", path),
                           "tars that PyTorch saved before its version 0.1.10 are not read either");
    struct ckpt_torch_source source = {
        .file = path, .prefix = "", .begin = n.begin, .len_bytes = n.len_bytes};
    return rc < 0 ? rc : ckpt_read_torch(ckpt, &source, err);
}
