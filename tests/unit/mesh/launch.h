/* What the tests of meshes share: this program again as some ranks under mpirun, and their grid. */
#ifndef MESH_LAUNCH_H
#define MESH_LAUNCH_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/base/base.h"
#include "lib/mesh/mesh.h"

static int bad; /* of a rank: something was not as expected */

static inline void expect(int truth, const char *what)
{
    if (!truth) {
        fprintf(stderr, "rank test failed: %s\n", what);
        bad = 1;
    }
}

/* `--child what` on n ranks, at most a minute; what they say is added to `said`. */
static inline int launch(int n, const char *what, struct s2s_buf *said)
{
    char self[4096] = "";
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    /* what the MPI library keeps to its end is not ours to free */
    setenv("ASAN_OPTIONS", "detect_leaks=0", 0);
    /* more ranks than cores, anybody's, on one machine: asking for networks takes longer than all
     * else. These are not options, as MPICH's mpirun has others */
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);
    setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 0);
    setenv("OMPI_MCA_pml", "ob1", 0);
    setenv("OMPI_MCA_btl", "self,vader", 0);
    char *command =
        s2s_xasprintf("timeout -k 5 60 mpirun -n %d '%s' --child '%s' 2>&1", n, self, what);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    char line[2048];
    while (fgets(line, sizeof line, pipe))
        s2s_buf_puts(said, line);
    s2s_buf_putc(said, ' ');
    free(command);
    return pclose(pipe);
}

/* All ranks must find everything as expected. */
static inline void launch_well(int n, const char *what)
{
    struct s2s_buf said = S2S_BUF_INIT;
    int status = launch(n, what, &said);
    if (status != 0)
        fprintf(stderr, "%s", said.data);
    assert_int_equal(status, 0);
    s2s_buf_release(&said);
}

/* The job must end itself soon, and say all of this (a NULL ends the list). */
static inline void launch_badly(int n, const char *what, const char *const *says)
{
    struct s2s_buf said = S2S_BUF_INIT;
    double start_s = s2s_now_s();
    assert_int_not_equal(launch(n, what, &said), 0);
    assert_true(s2s_now_s() - start_s < 20);
    for (; *says; says++) {
        if (!strstr(said.data, *says))
            fprintf(stderr, "%s", said.data);
        assert_non_null(strstr(said.data, *says));
    }
    s2s_buf_release(&said);
}

#define SAYS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* S2S_BUG ends a process: fn must, in one of its own. */
static inline void is_our_bug(void (*fn)(void *), void *arg)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        freopen("/dev/null", "w", stderr);
        fn(arg);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

/* tp 2 x dp 2 over the first four ranks. */
static inline struct s2s_grid *two_by_two(struct s2s_mesh *mesh)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_grid_spec spec = S2S_GRID_SPEC_INIT;
    spec.size[S2S_AXIS_TP] = 2;
    spec.size[S2S_AXIS_DP] = 2;
    struct s2s_grid *grid = NULL;
    expect(s2s_mesh_add_grid(&grid, mesh, &spec, &err) == 0, "grid");
    return grid;
}

#endif
