/* The gated norm of groups and its gradients, against the formula in double. */
#include "tests/unit/kernels/kernel_test.h"

struct shape {
    int64_t rows, groups, each;
};

static const struct shape shapes[] = {{1, 1, 1},    {0, 2, 4},    {3, 2, 7},
                                      {130, 3, 33}, {65, 1, 256}, {5, 2, 1030}};

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

struct data {
    int64_t n, c, each, groups, stride;
    float *x, *z, *y, *gain, *rstd, *dy, *dx, *dz, *dgain;
    double *want_y, *want_dx, *want_dz, *want_dgain;
};

static const double eps = 1e-3f;

static void fill(struct data *d, struct shape s)
{
    const int64_t n = s.rows, c = s.groups * s.each, stride = c + 3;
    *d = (struct data){.n = n, .c = c, .each = s.each, .groups = s.groups, .stride = stride};
    d->x = values(n, c, stride, 1);
    d->z = values(n, c, stride + 2, 2);
    d->y = values(n, c, stride, 3);
    d->gain = values(1, c, c, 4);
    d->rstd = values(1, n * s.groups, n * s.groups, 5);
    d->dy = values(n, c, stride, 6);
    d->dx = values(n, c, stride, 7);
    d->dz = values(n, c, c, 8);
    d->dgain = values(1, c, c, 9);
    double **wants[] = {&d->want_y, &d->want_dx, &d->want_dz, &d->want_dgain};
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++)
        *wants[i] = s2s_xcalloc((size_t)(n * c + c + 1), sizeof(double));
    for (int64_t i = 0; i < c; i++)
        d->want_dgain[i] = d->dgain[i];
}

static void release(struct data *d)
{
    float *all[] = {d->x, d->z, d->y, d->gain, d->rstd, d->dy, d->dx, d->dz, d->dgain};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    double *wants[] = {d->want_y, d->want_dx, d->want_dz, d->want_dgain};
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++)
        free(wants[i]);
}

static void reference_group(struct data *d, int64_t r, int64_t g, bool accumulate)
{
    double square = 0, dot = 0;
    for (int64_t i = g * d->each; i < (g + 1) * d->each; i++) {
        const double z = d->z[r * (d->stride + 2) + i],
                     v = d->x[r * d->stride + i] * z * sigmoid(z);
        square += v * v;
        dot += d->gain[i] * d->dy[r * d->stride + i] * v;
    }
    const double rs = 1 / sqrt(square / (double)d->each + eps);
    for (int64_t i = g * d->each; i < (g + 1) * d->each; i++) {
        const int64_t at = r * d->c + i;
        const double z = d->z[r * (d->stride + 2) + i], x = d->x[r * d->stride + i];
        const double sg = sigmoid(z), v = x * z * sg, dy = d->dy[r * d->stride + i];
        const double dv = rs * (d->gain[i] * dy - v * rs * rs * dot / (double)d->each);
        d->want_y[at] = d->gain[i] * v * rs;
        d->want_dx[at] = dv * z * sg + (accumulate ? d->dx[r * d->stride + i] : 0);
        d->want_dz[at] = dv * x * sg * (1 + z * (1 - sg)) + (accumulate ? d->dz[at] : 0);
        d->want_dgain[i] += dy * v * rs;
    }
}

static struct s2s_k_gatednorm_backward backward_arguments(struct data *d)
{
    struct s2s_k_gatednorm_backward args = {.x = mat(d->x, d->stride),
                                            .z = mat(d->z, d->stride + 2),
                                            .dy = mat(d->dy, d->stride),
                                            .dx = mat(d->dx, d->stride),
                                            .dz = mat(d->dz, d->c),
                                            .gain = vec(d->gain),
                                            .rstd = vec(d->rstd),
                                            .dgain = vec(d->dgain),
                                            .rows = d->n,
                                            .cols = d->c,
                                            .n_groups = d->groups};
    args.workspace = work(k->gatednorm_backward_workspace(&queue, &args));
    return args;
}

/* in_place: y over x, then dx over dy */
static void one(struct shape s, bool accumulate, bool in_place)
{
    struct data d;
    fill(&d, s);
    for (int64_t r = 0; r < d.n; r++)
        for (int64_t g = 0; g < d.groups; g++)
            reference_group(&d, r, g, accumulate);
    struct s2s_k_gatednorm args = {.x = mat(d.x, d.stride),
                                   .z = mat(d.z, d.stride + 2),
                                   .y = mat(d.y, d.stride),
                                   .gain = vec(d.gain),
                                   .rstd = vec(d.rstd),
                                   .rows = d.n,
                                   .cols = d.c,
                                   .n_groups = d.groups,
                                   .eps = (float)eps};
    k->gatednorm(&queue, &args);
    done();
    close_to("y", d.y, d.want_y, d.n, d.c, d.stride, 2e-6);
    struct s2s_k_gatednorm_backward back = backward_arguments(&d);
    back.accumulate_dx = back.accumulate_dz = accumulate;
    if (in_place)
        back.dx = back.dy;
    k->gatednorm_backward(&queue, &back);
    done();
    close_to("dx", in_place ? d.dy : d.dx, d.want_dx, d.n, d.c, d.stride, 1e-5);
    close_to("dz", d.dz, d.want_dz, d.n, d.c, d.c, 1e-5);
    close_to("dgain", d.dgain, d.want_dgain, 1, d.c, d.c, 1e-5);
    if (in_place && !accumulate) {
        args = (struct s2s_k_gatednorm){.x = mat(d.x, d.stride),
                                        .z = mat(d.z, d.stride + 2),
                                        .y = mat(d.x, d.stride),
                                        .gain = vec(d.gain),
                                        .rows = d.n,
                                        .cols = d.c,
                                        .n_groups = d.groups,
                                        .eps = (float)eps};
        k->gatednorm(&queue, &args);
        done();
        close_to("y over x", d.x, d.want_y, d.n, d.c, d.stride, 2e-6);
    }
    release(&d);
}

static void norm_and_backward_agree_with_the_formula(void **state)
{
    needs("gatednorm");
    needs("gatednorm_backward");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int how = 0; how < 3; how++)
            one(shapes[i], how == 1, how == 2);
}

static void any_number_of_threads_gives_the_same_bytes(void **state)
{
    needs("gatednorm");
    needs("gatednorm_backward");
    struct data d[2];
    const int lanes = queue.lanes;
    for (int i = 0; i < 2; i++) {
        fill(&d[i], shapes[3]);
        queue.lanes = i + 1;
        struct s2s_k_gatednorm_backward args = backward_arguments(&d[i]);
        k->gatednorm_backward(&queue, &args);
        done();
    }
    queue.lanes = lanes;
    assert_memory_equal(d[0].dgain, d[1].dgain, (size_t)d[0].c * sizeof(float));
    assert_memory_equal(d[0].dz, d[1].dz, (size_t)(d[0].n * d[0].c) * sizeof(float));
    release(&d[0]);
    release(&d[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_and_backward_agree_with_the_formula),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bytes)};
    return run_on_tables_and_types(tests);
}
