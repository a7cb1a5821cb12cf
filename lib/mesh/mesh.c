/* A launch: its ranks, its time limit, and how one rank's failure ends all. */
#include "lib/mesh/mesh.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/mesh/mesh_internal.h"

/* Ranks that a launcher promises; 0 without a launcher. */
static int launched_ranks(void)
{
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const char *text = getenv(sizes[i]);
        if (text && strtol(text, NULL, 10) > 0)
            return (int)strtol(text, NULL, 10);
    }
    /* PMIx says the rank, not the size: MPI knows it */
    return getenv("PMIX_RANK") || getenv("PMI_RANK") ? 2 : 0;
}

static int check_srun(struct s2s_error *err)
{
    const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
    if (!tasks || strtol(tasks, NULL, 10) < 2)
        return 0;
    int rc = s2s_error_set(err, S2S_E_COMM,
                           "srun started %s tasks, but gave them no way to find each other", tasks);
    return s2s_error_hint(err, rc,
                          "start with srun --mpi=pmix (srun --mpi=list shows what it has)");
}

/* A program alone does without MPI, which takes longer to load than most of what it is asked. */
static int start_mpi(struct s2s_mesh *mesh, struct s2s_error *err)
{
    /* global: MPI loads parts of its own that look for its names */
    void *lib = dlopen("libs2s-mpi.so", RTLD_NOW | RTLD_GLOBAL);
    mesh_start *start = lib ? (mesh_start *)dlsym(lib, "mesh_mpi_start") : NULL;
    if (start)
        return start(mesh, err);
    int rc = s2s_error_set(err, S2S_E_COMM, "MPI cannot be loaded: %s", dlerror());
    return s2s_error_hint(err, rc, "libs2s-mpi.so lies beside the programs, or in ../lib/s2s");
}

static struct s2s_mesh *mesh_new(const struct mesh_backend *backend,
                                 const struct s2s_group_ops *group_ops)
{
    struct s2s_mesh *mesh = s2s_xcalloc(1, sizeof *mesh);
    mesh->backend = backend;
    mesh->group_ops = group_ops;
    mesh->size = 1;
    mesh->first_thread = pthread_self();
    mesh->step = -1;
    mesh->phase = "start";
    mesh->watch.timeout_s = S2S_MESH_TIMEOUT_S;
    pthread_mutex_init(&mesh->watch.lock, NULL);
    return mesh;
}

int s2s_mesh_open(struct s2s_mesh **out, const struct s2s_mesh_options *options,
                  struct s2s_error *err)
{
    int rc = 0, ranks = launched_ranks();
    *out = NULL;
    if (ranks == 0 && (rc = check_srun(err)) < 0)
        return rc;
    struct s2s_mesh *mesh = mesh_new(&mesh_backend_self, &mesh_group_ops);
    if (options && options->timeout_s > 0)
        mesh->watch.timeout_s = options->timeout_s;
    if (ranks > 1 && (rc = start_mpi(mesh, err)) < 0) {
        free(mesh);
        return rc;
    }
    mesh->alone = mesh->size == 1;
    if (!mesh->world)
        mesh->world = mesh_comm_new(mesh, "world", &mesh->rank, 1, 0);
    mesh->self = mesh_comm_new(mesh, "self", &mesh->rank, 1, 0);
    if (!mesh->alone) {
        s2s_log_set_rank(mesh->rank);
        mesh_watch_start(mesh);
    }
    *out = mesh;
    return 0;
}

int s2s_mesh_open_count(struct s2s_mesh **out, int n_ranks, int rank, struct s2s_error *err)
{
    *out = NULL;
    if (rank < 0 || rank >= n_ranks)
        return s2s_error_set(err, S2S_E_ARG, "rank %d is not one of %d", rank, n_ranks);
    struct s2s_mesh *mesh = mesh_new(&mesh_backend_count, &mesh_group_ops_count);
    mesh->alone = true;
    mesh->size = n_ranks;
    mesh->rank = rank;
    mesh->world = mesh_comm_world(mesh);
    mesh->self = mesh_comm_new(mesh, "self", &mesh->rank, 1, 0);
    *out = mesh;
    return 0;
}

void s2s_mesh_close(struct s2s_mesh *mesh)
{
    if (!mesh)
        return;
    if (!mesh->alone) {
        s2s_mesh_note(mesh, -1, "end");
        s2s_comm_barrier(mesh->world);
        mesh_watch_last(mesh);
    }
    for (size_t i = 0; i < mesh->n_comms; i++)
        mesh_comm_free(mesh->comms[i]);
    mesh_comm_free(mesh->self);
    mesh_comm_free(mesh->world);
    for (size_t i = 0; i < mesh->n_grids; i++) {
        free((char *)mesh->grids[i]->spec.name);
        free((char *)mesh->grids[i]->spec.order);
        free((char *)mesh->grids[i]->spec.experts_of);
        free(mesh->grids[i]);
    }
    if (mesh->backend->finalize)
        mesh->backend->finalize(mesh);
    if (!mesh->alone)
        mesh_watch_stop(mesh);
    free(mesh->links);
    free(mesh->watch.flights);
    free(mesh->comms);
    free(mesh->grids);
    free(mesh);
}

bool s2s_mesh_counts(const struct s2s_mesh *mesh)
{
    return mesh->backend == &mesh_backend_count;
}

int s2s_mesh_size(const struct s2s_mesh *mesh)
{
    return mesh->size;
}

int s2s_mesh_rank(const struct s2s_mesh *mesh)
{
    return mesh->rank;
}

int s2s_mesh_local_rank(const struct s2s_mesh *mesh)
{
    return mesh->watch.mine ? (int)(mesh->watch.mine - mesh->watch.slots) : 0;
}

struct s2s_comm *s2s_mesh_world(struct s2s_mesh *mesh)
{
    return mesh->world;
}

bool s2s_mesh_sent_bytes(struct s2s_mesh_sent *sent, const struct s2s_mesh *mesh, size_t i)
{
    if (i > mesh->n_comms || mesh->size == 1)
        return false;
    const struct s2s_comm *comm = i == 0 ? mesh->world : mesh->comms[i - 1];
    *sent = (struct s2s_mesh_sent){comm->name, comm->size, s2s_comm_sent_bytes(comm)};
    return true;
}

void s2s_mesh_set_timeout(struct s2s_mesh *mesh, double timeout_s)
{
    pthread_mutex_lock(&mesh->watch.lock);
    mesh->watch.timeout_s = timeout_s > 0 ? timeout_s : S2S_MESH_TIMEOUT_S;
    pthread_mutex_unlock(&mesh->watch.lock);
}

void s2s_mesh_note(struct s2s_mesh *mesh, int64_t step, const char *phase)
{
    mesh->step = step;
    mesh->phase = phase;
    if (!mesh->alone)
        mesh_watch_note(mesh);
}

int s2s_mesh_all_ok(struct s2s_mesh *mesh, int rc, struct s2s_error *err)
{
    if (mesh->alone) {
        /* a mesh that counts: the answers that would have been shared */
        mesh->world->sent_bytes += mesh_sent_all_gather(mesh->world, sizeof(int32_t));
        return rc < 0 ? rc : 0;
    }
    int32_t *all = s2s_xcalloc((size_t)mesh->size, sizeof *all);
    int32_t mine = rc < 0 ? rc : 0;
    s2s_comm_all_gather(mesh->world, all, &mine, 1, S2S_I32);
    int worst = 0, first = 0;
    for (int r = mesh->size - 1; r >= 0; r--)
        if (all[r] < 0) {
            worst = all[r];
            first = r;
        }
    free(all);
    if (worst == 0)
        return 0;
    struct s2s_error say = S2S_ERROR_INIT;
    if (first == mesh->rank && err)
        say = *err;
    s2s_comm_broadcast(mesh->world, &say, sizeof say, S2S_U8, first);
    if (err)
        *err = say;
    /* agreed on before: the rank is said already */
    return strncmp(say.text, "[rank ", 6) == 0 ? worst
                                               : s2s_error_add(err, worst, "[rank %d]", first);
}

void s2s_mesh_fail(struct s2s_mesh *mesh, const struct s2s_error *err)
{
    mesh_fail_text(mesh, err->text, err->hint, s2s_errc_exit_status(err->code));
}

void mesh_fail_text(struct s2s_mesh *mesh, const char *text, const char *hint, int status)
{
    char where[80] = "";
    /* two threads may see one failure */
    if (atomic_exchange(&mesh->fails, true))
        for (;;)
            pause();
    if (mesh_watch_was_told(mesh)) { /* one reason is enough; the launcher may take seconds */
        sleep(5);
        _exit(status);
    }
    const long long step = (long long)mesh->step;
    if (step >= 0)
        snprintf(where, sizeof where, "step %lld: ", step);
    s2s_log(S2S_LOG_ERROR, "mesh", "%s%s: %s%s%s", where, mesh->phase, text, *hint ? "; " : "",
            hint);
    if (mesh->watch.mine) {
        atomic_store(&mesh->watch.mine->spoke, 1);
        atomic_store(&mesh->watch.mine->done, 1);
    }
    mesh_links_abort(mesh);
    mesh->backend->abort(status);
}

void mesh_fail_op(const struct s2s_comm *comm, const char *op, const char *fmt, ...)
{
    char what[600], text[800];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    snprintf(text, sizeof text, "%s over %s: %s", op, comm->name, what);
    mesh_fail_text(comm->mesh, text, "", 1);
}
