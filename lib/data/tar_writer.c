/* Writes tars. */
#include "lib/data/tar_writer.h"

#include <stdlib.h>

#include <archive.h>
#include <archive_entry.h>

#include "lib/base/base.h"
#include "lib/io/outfile.h"

struct s2s_tar_writer {
    char *path;
    struct archive *archive;
    struct s2s_outfile *out;
    struct s2s_error err; /* of the file, for what libarchive only passes on */
};

static la_ssize_t put(struct archive *archive, void *ctx, const void *bytes, size_t len)
{
    struct s2s_tar_writer *tar = ctx;
    (void)archive;
    /* libarchive loses memory where a write fails, so it is not told: what follows goes nowhere */
    if (tar->err.code == 0)
        (void)s2s_outfile_write(tar->out, bytes, len, &tar->err);
    return (la_ssize_t)len;
}

static int failed(struct s2s_tar_writer *tar, struct s2s_error *err)
{
    if (tar->err.code == 0)
        (void)s2s_error_set(&tar->err, S2S_E_IO, "%s: %s", tar->path,
                            archive_error_string(tar->archive));
    *err = tar->err;
    return err->code;
}

int s2s_tar_writer_open(struct s2s_tar_writer **out, const char *path, struct s2s_error *err)
{
    struct s2s_tar_writer *tar = s2s_xcalloc(1, sizeof *tar);
    *out = NULL;
    int rc = s2s_outfile_open(&tar->out, path, err);
    if (rc < 0) {
        free(tar);
        return rc;
    }
    tar->path = s2s_xstrdup(path);
    tar->archive = archive_write_new();
    if (!tar->archive || archive_write_set_format_pax_restricted(tar->archive) != ARCHIVE_OK ||
        archive_write_set_bytes_in_last_block(tar->archive, 1) != ARCHIVE_OK ||
        archive_write_open(tar->archive, tar, NULL, put, NULL) != ARCHIVE_OK) {
        rc = s2s_error_set(err, S2S_E_NOMEM, "%s: no tar can be begun", path);
        s2s_tar_writer_abort(tar);
        return rc;
    }
    *out = tar;
    return 0;
}

int s2s_tar_writer_add(struct s2s_tar_writer *tar, const char *name, const void *bytes,
                       size_t len_bytes, struct s2s_error *err)
{
    struct archive_entry *entry = archive_entry_new();
    if (!entry)
        return s2s_error_set(err, S2S_E_NOMEM, "%s: no memory for a header of a tar", tar->path);
    archive_entry_set_pathname(entry, name);
    archive_entry_set_size(entry, (la_int64_t)len_bytes);
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    archive_entry_set_mtime(entry, 0, 0);
    const bool ok = archive_write_header(tar->archive, entry) >= ARCHIVE_WARN &&
                    archive_write_data(tar->archive, bytes, len_bytes) == (la_ssize_t)len_bytes;
    archive_entry_free(entry);
    return ok && tar->err.code == 0 ? 0 : failed(tar, err);
}

static void release(struct s2s_tar_writer *tar)
{
    archive_write_free(tar->archive);
    free(tar->path);
    free(tar);
}

int s2s_tar_writer_commit(struct s2s_tar_writer *tar, struct s2s_error *err)
{
    const bool ok = archive_write_close(tar->archive) == ARCHIVE_OK && tar->err.code == 0;
    int rc = ok ? 0 : failed(tar, err);
    if (rc == 0)
        rc = s2s_outfile_commit(tar->out, err);
    else
        s2s_outfile_abort(tar->out);
    release(tar);
    return rc;
}

void s2s_tar_writer_abort(struct s2s_tar_writer *tar)
{
    if (!tar)
        return;
    tar->err.code = S2S_E_IO; /* what follows is not written */
    s2s_outfile_abort(tar->out);
    release(tar);
}
