/* Collects findings, and ends the list after the first of many. */
#include "lib/ckpt/list.h"

#include "lib/base/base.h"

void ckpt_list_add(struct ckpt_list *list, const char *what, char *line)
{
    if (list->n++ < CKPT_SHORT_LIST) {
        list->lines[list->n - 1] = line;
        return;
    }
    if (list->n <= CKPT_LONG_LIST)
        s2s_log(S2S_LOG_ERROR, "ckpt", "%s: %s", what, line);
    free(line);
}

int ckpt_list_end(struct ckpt_list *list, int rc, struct s2s_error *err)
{
    if (list->n > CKPT_LONG_LIST)
        s2s_log(S2S_LOG_ERROR, "ckpt", "and %zu more", list->n - CKPT_LONG_LIST);
    for (size_t i = 0; i < list->n && i < CKPT_SHORT_LIST; i++) {
        s2s_error_line(err, rc, "  %s", list->lines[i]);
        free(list->lines[i]);
    }
    return rc;
}
