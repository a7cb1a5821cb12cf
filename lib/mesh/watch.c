/*
 * The watch: a thread that looks at the clock while the rank waits in a collective, shows the
 * others on the node that this rank lives, and notices ranks that died without a word. When a
 * collective is over its time limit it says who is missing and takes the job down.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "lib/mesh/mesh_internal.h"

static int64_t now_ms(void)
{
    return (int64_t)(s2s_now_s() * 1e3);
}

/* Process ids mean something only within one pid namespace. */
static uint64_t pid_space(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

static bool is_dead(const struct mesh_slot *slot, uint64_t space)
{
    int pid = atomic_load(&slot->pid);
    return pid > 0 && space != 0 && atomic_load(&slot->pid_space) == space &&
           !atomic_load(&slot->done) && kill(pid, 0) < 0 && errno == ESRCH;
}

static void describe(struct s2s_buf *buf, const struct mesh_slot *slot)
{
    long long step = (long long)atomic_load(&slot->step);
    if (step >= 0)
        s2s_buf_printf(buf, "step %lld, ", step);
    s2s_buf_printf(buf, "%.39s", slot->phase);
    if (atomic_load(&slot->entered) != atomic_load(&slot->left))
        s2s_buf_printf(buf, ", %.95s", slot->op);
}

/* Who of the communicator has not come, as far as this node can see. */
static void blame(struct s2s_buf *buf, const struct s2s_mesh *mesh, const struct s2s_comm *comm)
{
    const struct mesh_watch *w = &mesh->watch;
    int n_named = 0, n_seen = 0;
    for (int i = 0; i < w->n_slots; i++) {
        const struct mesh_slot *slot = w->slots + i;
        bool member = false;
        for (int r = 0; r < comm->size; r++)
            member |= comm->world_ranks[r] == atomic_load(&slot->world_rank);
        if (!member)
            continue;
        n_seen++;
        double silent_s = (double)(now_ms() - atomic_load(&slot->beat_ms)) * 1e-3;
        bool stopped = silent_s > 3;
        bool elsewhere = atomic_load(&slot->entered) == atomic_load(&slot->left) ||
                         strncmp(slot->op, w->mine->op, sizeof slot->op) != 0;
        if (slot == w->mine || (!stopped && !elsewhere))
            continue;
        s2s_buf_printf(buf, "%srank %d (pid %d, ",
                       n_named++ ? "; " : "; missing: ", atomic_load(&slot->world_rank),
                       atomic_load(&slot->pid));
        if (stopped)
            s2s_buf_printf(buf, "no sign of life for %.0f s, ", silent_s);
        describe(buf, slot);
        s2s_buf_puts(buf, ")");
    }
    if (n_named == 0 && n_seen < comm->size)
        s2s_buf_puts(buf, "; missing: a rank on another node");
}

static void report_timeout(struct s2s_mesh *mesh, double waited_s)
{
    struct mesh_watch *w = &mesh->watch;
    struct s2s_buf text = S2S_BUF_INIT;
    s2s_buf_printf(&text, "%s over %s (%lld bytes) is not complete after %.0f s", w->op,
                   w->comm->name, (long long)w->len_bytes, waited_s);
    blame(&text, mesh, w->comm);
    mesh_fail_text(mesh, text.data, "", 1);
}

/* One rank of the node speaks: the lowest that lives. */
static void report_death(struct s2s_mesh *mesh, const struct mesh_slot *dead, uint64_t space)
{
    struct mesh_watch *w = &mesh->watch;
    for (struct mesh_slot *slot = w->slots; slot < w->mine; slot++)
        if (slot != dead && !is_dead(slot, space))
            return;
    struct s2s_buf text = S2S_BUF_INIT;
    char host[256] = "?";
    if (gethostname(host, sizeof host - 1) < 0)
        host[0] = '?';
    s2s_buf_printf(&text, "rank %d (pid %d on %s) died in ", atomic_load(&dead->world_rank),
                   atomic_load(&dead->pid), host);
    describe(&text, dead);
    mesh_fail_text(mesh, text.data, "", 1);
}

static void tick(struct s2s_mesh *mesh, uint64_t space)
{
    struct mesh_watch *w = &mesh->watch;
    atomic_store(&w->mine->beat_ms, now_ms());
    double waited_s = w->comm ? s2s_now_s() - w->since_s : 0;
    if (waited_s > w->timeout_s)
        report_timeout(mesh, waited_s);
    for (int i = 0; i < w->n_slots; i++)
        if (w->slots + i != w->mine && is_dead(w->slots + i, space))
            report_death(mesh, w->slots + i, space);
}

static void *watch_run(void *arg)
{
    struct s2s_mesh *mesh = arg;
    struct mesh_watch *w = &mesh->watch;
    const uint64_t space = pid_space();
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        tick(mesh, space);
        double period_s = w->timeout_s / 20 < 0.25 ? w->timeout_s / 20 : 0.25;
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (long)(period_s * 1e9);
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&w->wake, &w->lock, &until);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

void mesh_watch_start(struct s2s_mesh *mesh)
{
    struct mesh_watch *w = &mesh->watch;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->wake, &attr);
    pthread_condattr_destroy(&attr);
    atomic_store(&w->mine->world_rank, mesh->rank);
    atomic_store(&w->mine->pid_space, pid_space());
    atomic_store(&w->mine->beat_ms, now_ms());
    atomic_store(&w->mine->pid, (int)getpid());
    mesh_watch_note(mesh);
    /* nobody is judged by a slot that was not filled yet */
    mesh->world->backend->barrier(mesh->world);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    w->running = pthread_create(&w->thread, NULL, watch_run, mesh) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!w->running)
        s2s_warn("mesh", "no thread for the watch: waits have no time limit");
}

void mesh_watch_stop(struct s2s_mesh *mesh)
{
    struct mesh_watch *w = &mesh->watch;
    atomic_store(&w->mine->done, 1);
    /* everybody's slot says done before anybody's process can end */
    mesh->world->backend->barrier(mesh->world);
    if (!w->running)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
}

void mesh_watch_note(struct s2s_mesh *mesh)
{
    struct mesh_slot *mine = mesh->watch.mine;
    atomic_store(&mine->step, mesh->step);
    snprintf(mine->phase, sizeof mine->phase, "%s", mesh->phase);
}

void mesh_enter(struct s2s_comm *comm, const char *op, int64_t len_bytes)
{
    struct mesh_watch *w = &comm->mesh->watch;
    if (comm->mesh->size == 1)
        return;
    pthread_mutex_lock(&w->lock);
    w->comm = comm;
    w->op = op;
    w->len_bytes = len_bytes;
    w->since_s = s2s_now_s();
    snprintf(w->mine->op, sizeof w->mine->op, "%s over %s", op, comm->name);
    atomic_fetch_add(&w->mine->entered, 1);
    pthread_mutex_unlock(&w->lock);
}

void mesh_leave(struct s2s_comm *comm)
{
    struct mesh_watch *w = &comm->mesh->watch;
    if (comm->mesh->size == 1)
        return;
    pthread_mutex_lock(&w->lock);
    w->comm = NULL;
    atomic_fetch_add(&w->mine->left, 1);
    pthread_mutex_unlock(&w->lock);
}
