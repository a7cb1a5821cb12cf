/* Points stdout at a file for a while. */
#include "lib/io/printout.h"

#include <string.h>

#include "lib/base/base.h"
#include "lib/io/outfile.h"

static ssize_t put(void *cookie, const char *bytes, size_t len)
{
    struct s2s_printout *p = cookie;
    /* stdio takes 0 for an error, and sets the stream's error flag */
    return s2s_outfile_write(p->out, bytes, len, &p->err) < 0 ? 0 : (ssize_t)len;
}

int s2s_printout_begin(struct s2s_printout *p, const char *path, struct s2s_error *err)
{
    *p = (struct s2s_printout){.err = S2S_ERROR_INIT};
    if (!path || strcmp(path, "-") == 0)
        return 0;
    int rc = s2s_outfile_open(&p->out, path, err);
    if (rc < 0)
        return rc;
    p->stream = fopencookie(p, "w", (cookie_io_functions_t){.write = put});
    if (!p->stream) {
        s2s_outfile_abort(p->out);
        p->out = NULL;
        return s2s_error_errno(err, S2S_E_NOMEM, "%s", path);
    }
    p->stdout_before = stdout;
    stdout = p->stream;
    return 0;
}

int s2s_printout_end(struct s2s_printout *p, int rc, struct s2s_error *err)
{
    if (!p->out)
        return rc;
    stdout = p->stdout_before;
    int bad = ferror(p->stream);
    if (fclose(p->stream) != 0)
        bad = 1;
    if (rc >= 0 && bad) {
        *err = p->err;
        rc = err->code < 0 ? err->code : S2S_E_IO;
    }
    if (rc < 0) {
        s2s_outfile_abort(p->out);
        return rc;
    }
    int done = s2s_outfile_commit(p->out, err);
    return done < 0 ? done : rc;
}
