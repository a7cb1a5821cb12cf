/*
 * The watch: a thread that looks at the clock while the rank has operations in flight, shows the
 * others on the node that this rank lives, and notices ranks that died without a word. When the
 * oldest operation is over its time limit it says who is missing and takes the job down.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "lib/mesh/mesh_internal.h"

/* A rank that shows no life for STOPPED_S is stopped; GRACE_S is for who speaks first. */
#define STOPPED_S 3.0
#define GRACE_S 0.5
/* When a rank ends that heard why, and was not ended. */
#define LAST_S 5.0

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

/* Since the rank last showed that it lives. */
static double silent_s(const struct mesh_slot *slot)
{
    return (double)(now_ms() - atomic_load(&slot->beat_ms)) * 1e-3;
}

/* The ranks that are seen here are on this one. */
static void name_host(char host[256])
{
    if (gethostname(host, 255) < 0)
        snprintf(host, 256, "?");
    host[255] = '\0';
}

static void describe(struct s2s_buf *buf, const struct mesh_slot *slot)
{
    long long step = (long long)atomic_load(&slot->step);
    if (step >= 0)
        s2s_buf_printf(buf, "step %lld, ", step);
    s2s_buf_printf(buf, "%.39s", slot->phase);
    if (atomic_load(&slot->n_flights) > 0)
        s2s_buf_printf(buf, ", %.95s", slot->op);
}

/* Collectives that a rank has entered on the communicator of this name; -1: it has no row left. */
static int64_t entered_by(const struct mesh_slot *slot, const char *name)
{
    for (int i = 0; i < MESH_ROWS && slot->rows[i].name[0]; i++)
        if (strncmp(slot->rows[i].name, name, sizeof slot->rows[i].name - 1) == 0)
            return atomic_load(&slot->rows[i].n_entered);
    return slot->rows[MESH_ROWS - 1].name[0] ? -1 : 0;
}

static void name_op(char text[96], const struct mesh_flight *flight)
{
    snprintf(text, 96, "%s over %s", flight->op, flight->comm->name);
}

/* A rank may have left a collective that others still wait in. Of an exchange, and without a row,
 * there is only what the rank waits for now. */
static bool has_come(const struct mesh_slot *slot, const struct mesh_flight *flight)
{
    char text[96];
    int64_t n = flight->number > 0 ? entered_by(slot, flight->comm->name) : -1;
    if (n >= 0)
        return n >= flight->number;
    name_op(text, flight);
    return atomic_load(&slot->n_flights) > 0 && strncmp(slot->op, text, sizeof slot->op) == 0;
}

static bool is_awaited(const struct mesh_slot *slot, const struct mesh_flight *flight)
{
    const int *ranks = flight->peers ? flight->peers : flight->comm->world_ranks;
    const int n = flight->peers ? flight->n_peers : flight->comm->size;
    for (int r = 0; r < n; r++)
        if (ranks[r] == atomic_load(&slot->world_rank))
            return true;
    return false;
}

/* Who of those awaited has not come, as far as this node can see. */
static void blame(struct s2s_buf *buf, const struct mesh_watch *w, const struct mesh_flight *flight)
{
    int n_named = 0, n_seen = 0;
    char host[256];
    name_host(host);
    for (int i = 0; i < w->n_slots; i++) {
        const struct mesh_slot *slot = w->slots + i;
        if (!is_awaited(slot, flight))
            continue;
        n_seen++;
        const double silent = silent_s(slot);
        const bool stopped = silent > STOPPED_S;
        if (slot == w->mine || (!stopped && has_come(slot, flight)))
            continue;
        s2s_buf_printf(buf, "%srank %d (pid %d on %s, ",
                       n_named++ ? "; " : "; missing: ", atomic_load(&slot->world_rank),
                       atomic_load(&slot->pid), host);
        if (stopped)
            s2s_buf_printf(buf, "no sign of life for %.0f s, ", silent);
        describe(buf, slot);
        s2s_buf_puts(buf, ")");
    }
    if (n_named == 0 && n_seen < (flight->peers ? flight->n_peers : flight->comm->size))
        s2s_buf_puts(buf, "; missing: a rank on another node");
}

/* One rank of the node speaks for all: the lowest that lives and is not stopped, or of those in
 * an operation. */
static bool speaks(const struct mesh_watch *w, uint64_t space, bool waiting)
{
    for (const struct mesh_slot *slot = w->slots; slot < w->mine; slot++)
        if (!is_dead(slot, space) && silent_s(slot) < STOPPED_S &&
            (!waiting || atomic_load(&slot->n_flights) > 0))
            return false;
    return true;
}

static void describe_wait(struct s2s_buf *text, const struct mesh_watch *w, double waited_s)
{
    const struct mesh_flight *oldest = w->flights;
    s2s_buf_printf(text, "%s over %s (%lld bytes) is not complete after %.0f s", oldest->op,
                   oldest->comm->name, (long long)oldest->len_bytes, waited_s);
    if (w->n_flights > 1)
        s2s_buf_printf(text, ", nor %s %zu later", w->n_flights > 2 ? "are" : "is",
                       w->n_flights - 1);
    blame(text, w, oldest);
}

/* Who waits long without being at fault is told, once an operation, and goes on waiting. */
static void report_slow(struct s2s_mesh *mesh, double waited_s, uint64_t space)
{
    struct mesh_watch *w = &mesh->watch;
    if (w->flights[0].told || waited_s < w->timeout_s / 4 || !speaks(w, space, true))
        return;
    if (mesh_watch_was_told(mesh)) /* the launcher wakes whom it ends */
        return;
    w->flights[0].told = true;
    struct s2s_buf text = S2S_BUF_INIT;
    describe_wait(&text, w, waited_s);
    s2s_log(S2S_LOG_WARN, "mesh", "step %lld: %s: %s; the job ends after %.0f s",
            (long long)mesh->step, mesh->phase, text.data, w->timeout_s);
    s2s_buf_release(&text);
}

/* The others give the one that speaks its time: it may be the missing one itself. */
static void report_timeout(struct s2s_mesh *mesh, double waited_s, uint64_t space)
{
    struct mesh_watch *w = &mesh->watch;
    if (!speaks(w, space, true) && waited_s < w->timeout_s + GRACE_S)
        return;
    if (mesh_watch_was_told(mesh)) { /* the launcher may take seconds */
        if (waited_s > w->timeout_s + LAST_S)
            _exit(1);
        return;
    }
    struct s2s_buf text = S2S_BUF_INIT;
    describe_wait(&text, w, waited_s);
    mesh_fail_text(mesh, text.data, "", 1);
}

static void report_death(struct s2s_mesh *mesh, const struct mesh_slot *dead, uint64_t space)
{
    struct mesh_watch *w = &mesh->watch;
    if (!speaks(w, space, false)) {
        /* the launcher, which sees the death too, may take seconds to end those that wait */
        if (w->death_s == 0)
            w->death_s = s2s_now_s();
        else if (s2s_now_s() - w->death_s > GRACE_S)
            _exit(1);
        return;
    }
    struct s2s_buf text = S2S_BUF_INIT;
    char host[256];
    name_host(host);
    s2s_buf_printf(&text, "rank %d (pid %d on %s) died in ", atomic_load(&dead->world_rank),
                   atomic_load(&dead->pid), host);
    describe(&text, dead);
    mesh_fail_text(mesh, text.data, "", 1);
}

/* Shows the oldest operation to the others. */
static void show(struct mesh_watch *w)
{
    if (w->n_flights > 0)
        name_op(w->mine->op, w->flights);
    atomic_store(&w->mine->n_flights, (int)w->n_flights);
}

static void land(struct mesh_watch *w, size_t i)
{
    free(w->flights[i].peers);
    memmove(w->flights + i, w->flights + i + 1, (--w->n_flights - i) * sizeof *w->flights);
    show(w);
}

static void land_complete(struct mesh_watch *w)
{
    for (size_t i = w->n_flights; i-- > 0;)
        if (w->flights[i].done && w->flights[i].done(w->flights[i].arg))
            land(w, i);
}

/* Started operations are asked at each look of the watch, and here before they are too many. */
static void look_now_and_then(struct mesh_watch *w)
{
    if (w->n_flights < w->look_at)
        return;
    land_complete(w);
    w->look_at = 2 * w->n_flights + MESH_LOOK;
}

/* A rank that was stopped itself has not waited for the others in that time. */
static void forget_own_sleep(struct mesh_watch *w)
{
    const double slept_s = silent_s(w->mine);
    if (slept_s < STOPPED_S)
        return;
    for (size_t i = 0; i < w->n_flights; i++)
        w->flights[i].since_s += slept_s;
}

static void tick(struct s2s_mesh *mesh, uint64_t space)
{
    struct mesh_watch *w = &mesh->watch;
    forget_own_sleep(w);
    atomic_store(&w->mine->beat_ms, now_ms());
    land_complete(w);
    double waited_s = w->n_flights > 0 ? s2s_now_s() - w->flights[0].since_s : 0;
    if (waited_s > w->timeout_s)
        report_timeout(mesh, waited_s, space);
    else if (w->n_flights > 0)
        report_slow(mesh, waited_s, space);
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

static void end_thread(struct mesh_watch *w)
{
    if (!w->running)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    w->running = false;
}

/* Ranks wait for each other once more, in the end of the backend, and one may die in it. */
void mesh_watch_last(struct s2s_mesh *mesh)
{
    struct mesh_watch *w = &mesh->watch;
    pthread_mutex_lock(&w->lock);
    while (w->n_flights > 0)
        land(w, 0);
    pthread_mutex_unlock(&w->lock);
    if (w->outlives)
        return;
    atomic_store(&w->mine->done, 1);
    /* everybody's slot says done before anybody's process can end */
    mesh->world->backend->barrier(mesh->world);
    end_thread(w);
}

void mesh_watch_stop(struct s2s_mesh *mesh)
{
    struct mesh_watch *w = &mesh->watch;
    if (w->outlives)
        atomic_store(&w->mine->done, 1);
    end_thread(w);
}

void mesh_watch_note(struct s2s_mesh *mesh)
{
    struct mesh_slot *mine = mesh->watch.mine;
    atomic_store(&mine->step, mesh->step);
    snprintf(mine->phase, sizeof mine->phase, "%s", mesh->phase);
}

bool mesh_watch_was_told(const struct s2s_mesh *mesh)
{
    const struct mesh_watch *w = &mesh->watch;
    for (int i = 0; i < w->n_slots; i++)
        if (w->slots + i != w->mine && atomic_load(&w->slots[i].spoke))
            return true;
    return false;
}

/* ---- operations in flight ---- */

void mesh_watch_row(struct s2s_comm *comm)
{
    struct mesh_watch *w = &comm->mesh->watch;
    if (comm->mesh->alone || w->n_rows == MESH_ROWS)
        return;
    comm->row = w->n_rows++;
    struct mesh_row *row = &w->mine->rows[comm->row];
    snprintf(row->name, sizeof row->name, "%s", comm->name);
}

/* Two threads in one communicator would get each other's parts; and not every MPI stands two. */
static void check_thread(const struct s2s_comm *comm, const char *op)
{
    struct s2s_mesh *mesh = comm->mesh;
    const struct mesh_watch *w = &mesh->watch;
    const pthread_t me = pthread_self();
    const char *may = NULL;
    if (mesh->threads == MESH_FIRST_THREAD && !pthread_equal(me, mesh->first_thread))
        may = "only the thread that started it may use it";
    for (size_t i = 0; i < w->n_flights; i++) {
        if (!w->flights[i].inside || pthread_equal(me, w->flights[i].thread))
            continue;
        if (w->flights[i].comm == comm)
            S2S_BUG("%s over %s, where another thread is in %s", op, comm->name, w->flights[i].op);
        if (mesh->threads == MESH_ONE_AT_A_TIME)
            may = "only one thread at a time may use it";
    }
    if (may)
        mesh_fail_op(comm, op, "this MPI was built without MPI_THREAD_MULTIPLE: %s", may);
}

/* Under the lock. */
static struct mesh_flight *take_off(struct s2s_comm *comm, const char *op, int64_t len_bytes)
{
    struct mesh_watch *w = &comm->mesh->watch;
    check_thread(comm, op);
    look_now_and_then(w);
    s2s_grow(&w->flights, w->n_flights, &w->cap_flights, sizeof *w->flights);
    w->flights[w->n_flights] = (struct mesh_flight){.ticket = ++w->n_tickets,
                                                    .comm = comm,
                                                    .op = op,
                                                    .len_bytes = len_bytes,
                                                    .since_s = s2s_now_s(),
                                                    .thread = pthread_self(),
                                                    .inside = true};
    return &w->flights[w->n_flights++];
}

int64_t mesh_enter(struct s2s_comm *comm, const char *op, int64_t len_bytes)
{
    struct mesh_watch *w = &comm->mesh->watch;
    if (comm->mesh->alone)
        return 0;
    pthread_mutex_lock(&w->lock);
    struct mesh_flight *flight = take_off(comm, op, len_bytes);
    const int64_t ticket = flight->ticket;
    flight->number = ++comm->n_entered;
    if (comm->row >= 0)
        atomic_store(&w->mine->rows[comm->row].n_entered, flight->number);
    show(w);
    pthread_mutex_unlock(&w->lock);
    return ticket;
}

int64_t mesh_enter_exchange(struct s2s_comm *comm, const struct s2s_transfer *list, int n,
                            int64_t len_bytes)
{
    struct mesh_watch *w = &comm->mesh->watch;
    if (comm->mesh->alone)
        return 0;
    int *peers = s2s_xcalloc((size_t)n + 1, sizeof *peers), n_peers = 0;
    for (int i = 0; i < n; i++) {
        int k = 0;
        while (k < n_peers && peers[k] != comm->world_ranks[list[i].peer])
            k++;
        peers[k] = comm->world_ranks[list[i].peer];
        n_peers += k == n_peers;
    }
    pthread_mutex_lock(&w->lock);
    struct mesh_flight *flight = take_off(comm, "exchange", len_bytes);
    const int64_t ticket = flight->ticket;
    flight->peers = peers;
    flight->n_peers = n_peers;
    show(w);
    pthread_mutex_unlock(&w->lock);
    return ticket;
}

void mesh_leave(struct s2s_mesh *mesh, int64_t ticket)
{
    struct mesh_watch *w = &mesh->watch;
    if (ticket == 0)
        return;
    pthread_mutex_lock(&w->lock);
    for (size_t i = 0; i < w->n_flights; i++)
        if (w->flights[i].ticket == ticket) {
            land(w, i);
            break;
        }
    pthread_mutex_unlock(&w->lock);
}

void mesh_leave_until(struct s2s_mesh *mesh, int64_t ticket, mesh_done *done, void *arg)
{
    struct mesh_watch *w = &mesh->watch;
    pthread_mutex_lock(&w->lock);
    for (size_t i = 0; i < w->n_flights; i++)
        if (w->flights[i].ticket == ticket) {
            w->flights[i].inside = false;
            w->flights[i].done = done;
            w->flights[i].arg = arg;
        }
    pthread_mutex_unlock(&w->lock);
}
