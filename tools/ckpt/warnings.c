/* Every warning of this run, for the report of --json, which a program reads, and for rank 0, which
 * alone shows them. */
#include <pthread.h>

#include "lib/base/log.h"
#include "lib/base/utf8.h"
#include "lib/mesh/mesh.h"
#include "tools/ckpt/ckpt_tool.h"

enum { MOST = 10000 }; /* a damaged index may give one for each tensor */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* some come from threads */
static json_t *texts; /* in order: each a key, so that what is said twice is there once */
static size_t n_more;

static void hear(const char *text)
{
    char *mended = s2s_utf8_mend(text);
    pthread_mutex_lock(&lock);
    if (json_object_get(texts, mended) || json_object_size(texts) < MOST)
        json_object_set_new(texts, mended, json_true());
    else
        n_more++;
    pthread_mutex_unlock(&lock);
    free(mended);
}

void ckpt_warnings_begin(void)
{
    texts = json_object();
    s2s_log_set_listener(hear);
}

/* Gives a reference. */
static json_t *list_all(void)
{
    json_t *list = json_array(), *unused;
    const char *text;
    json_object_foreach(texts, text, unused) json_array_append_new(list, json_string(text));
    if (n_more)
        json_array_append_new(list, json_sprintf("and %zu more warnings", n_more));
    return list;
}

void ckpt_warnings_share(void)
{
    const int n = s2s_mesh_size(ckpt_mesh);
    if (n == 1)
        return;
    json_t *mine = list_all(), *text;
    char *dumped = json_dumps(mine, JSON_COMPACT);
    const struct s2s_buf sent = {.data = dumped, .len = strlen(dumped)};
    struct s2s_buf *all = s2s_comm_gather_bufs(s2s_mesh_world(ckpt_mesh), &sent);
    for (int rank = 0; rank < n; rank++) {
        json_t *theirs = json_loadb(all[rank].data, all[rank].len, 0, NULL);
        size_t i;
        json_array_foreach(theirs, i, text) if (ckpt_is_first() &&
                                                !json_object_get(texts, json_string_value(text)))
            s2s_warn("ckpt", "%s", json_string_value(text));
        json_decref(theirs);
        s2s_buf_release(&all[rank]);
    }
    free(all);
    free(dumped);
    json_decref(mine);
}

char *ckpt_warnings_json(void)
{
    json_t *list = list_all();
    char *dumped = json_dumps(list, 0);
    json_decref(list);
    return dumped;
}

void ckpt_print_warnings(void)
{
    char *dumped = ckpt_warnings_json();
    printf("\"warnings\": %s", dumped);
    free(dumped);
}
