/*
 * Gradient buckets between ranks: GB/s (bytes of the buffer over the time) of all-reduces that are
 * started one after the other and then waited for, in the caller's thread and beside it.
 *
 *   mpirun -n 2 reduce_bench [MIB] [BUCKET_MIB]     200 MiB in buckets of 4 are the defaults
 */
#include <stdio.h>
#include <stdlib.h>

#include "lib/base/base.h"
#include "lib/mesh/mesh.h"

enum { ROUNDS = 5 };

static double reduce(const struct s2s_group *g, float *buf, int64_t n, int64_t bucket)
{
    const int64_t n_buckets = (n + bucket - 1) / bucket;
    int64_t *tickets = s2s_xcalloc((size_t)n_buckets, sizeof *tickets);
    const double start_s = s2s_now_s();
    for (int64_t b = 0; b < n_buckets; b++) {
        const int64_t left = n - b * bucket;
        tickets[b] = g->ops->start_all_reduce(
            g, NULL, buf + b * bucket, left < bucket ? left : bucket, S2S_F32, S2S_GROUP_SUM);
    }
    for (int64_t b = 0; b < n_buckets; b++)
        g->ops->wait(g, NULL, tickets[b]);
    free(tickets);
    return s2s_now_s() - start_s;
}

int main(int argc, char **argv)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_mesh *mesh;
    int64_t mib = 200, bucket_mib = 4;
    if ((argc > 1 && s2s_parse_i64(&mib, argv[1], 1, 1 << 20, &err) < 0) ||
        (argc > 2 && s2s_parse_i64(&bucket_mib, argv[2], 1, 1 << 20, &err) < 0) ||
        s2s_mesh_open(&mesh, NULL, &err) < 0) {
        fprintf(stderr, "reduce_bench: %s\n", err.text);
        return 1;
    }
    struct s2s_comm *world = s2s_mesh_world(mesh);
    const struct s2s_group *g = s2s_comm_group(world, "dp", NULL);
    const int64_t n = mib << 18, bucket = bucket_mib << 18;
    float *buf = s2s_xalloc_aligned((size_t)n * sizeof *buf);
    for (int64_t i = 0; i < n; i++)
        buf[i] = (float)(i % 1000) * 1e-20f;
    for (int beside = 0; beside < 2; beside++) {
        double best = 1e30, sum = 0;
        if (beside)
            s2s_comm_run_beside(world);
        reduce(g, buf, n, bucket); /* first touch */
        for (int i = 0; i < ROUNDS; i++) {
            s2s_comm_barrier(world);
            const double s = reduce(g, buf, n, bucket);
            best = s < best ? s : best;
            sum += s;
        }
        if (s2s_mesh_rank(mesh) == 0)
            printf("all_reduce %s: %lld MiB in buckets of %lld: best %.2f, mean %.2f GB/s\n",
                   beside ? "beside" : "in the caller", (long long)mib, (long long)bucket_mib,
                   (double)n * 4e-9 / best, (double)n * 4e-9 * ROUNDS / sum);
    }
    free(buf);
    s2s_mesh_close(mesh);
    return 0;
}
