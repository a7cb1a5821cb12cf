/*
 * A picture of a mesh. Ranks that compute on the same packs stand in one frame, a row for each part
 * of the tokens, a column for each stage of the pipeline, in which ranks of tp stand side by side.
 */
#include "tools/train/plan_svg.h"

#include <stdio.h>
#include <stdlib.h>

#include "lib/base/base.h"

enum { BOX_W = 92, BOX_H = 48, GAP = 6, STAGE_GAP = 18, FRAME_GAP = 34, MARGIN = 16, TOP = 40 };

struct picture {
    const struct plan_mesh *mesh;
    const struct s2s_plan *plan;
    int tp, cp, dp, pp, ep;
    int *at[S2S_AXES]; /* [world_size] place of each rank; of ep among the experts */
};

static int stage_w(const struct picture *p)
{
    return p->tp * (BOX_W + GAP) - GAP;
}

static int frame_h(const struct picture *p)
{
    return p->cp * (BOX_H + GAP) - GAP;
}

static int stage_x(const struct picture *p, int stage)
{
    return MARGIN + GAP + stage * (stage_w(p) + STAGE_GAP);
}

static int frame_y(const struct picture *p, int replica)
{
    return TOP + FRAME_GAP / 2 + replica * (frame_h(p) + FRAME_GAP);
}

/* "stage 1: layers 4-7", of each chunk of the rank. */
static void say_stage(const struct picture *p, int rank)
{
    const struct s2s_pipeline *pipeline = &p->plan->pipeline;
    const int n_stages = pipeline->n_ranks * pipeline->n_chunks;
    const char *between = "";
    for (int chunk = 0; chunk < pipeline->n_chunks; chunk++, between = ", ") {
        const int stage = s2s_pipeline_stage(pipeline, rank, chunk);
        int first = 0;
        for (int s = 0; s < stage; s++)
            first += p->plan->stage_layers[s];
        const int n = p->plan->stage_layers[stage];
        printf("%sstage %d: ", between, stage);
        if (stage == 0)
            printf("embedding%s", n > 0 ? ", " : "");
        if (n > 0)
            printf(n > 1 ? "layers %d-%d" : "layer %d", first, first + n - 1);
        if (stage == n_stages - 1)
            printf("%shead", n > 0 || stage == 0 ? ", " : "");
    }
}

static void draw_stages(const struct picture *p)
{
    for (int s = 0; s < p->pp; s++) {
        printf("<text x=\"%d\" y=\"%d\">", stage_x(p, s), TOP - 12);
        if (p->plan && p->pp > 1)
            say_stage(p, s);
        else
            printf("all layers");
        printf("</text>\n");
    }
}

static void draw_replicas(const struct picture *p)
{
    const int w = p->pp * (stage_w(p) + STAGE_GAP) - STAGE_GAP + 2 * GAP;
    for (int d = 0; d < p->dp; d++)
        printf("<rect class=\"packs\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"6\"/>\n"
               "<text x=\"%d\" y=\"%d\">dp %d: packs of its own</text>\n",
               MARGIN, frame_y(p, d) - GAP, w, frame_h(p) + 2 * GAP, MARGIN,
               frame_y(p, d) - GAP - 4, d);
}

/* "tp 1/2", where the axis is longer than 1. */
static void say_place(const struct picture *p, enum s2s_axis axis, int size, int rank)
{
    if (size > 1)
        printf(" %s %d/%d", s2s_mesh_axis_name(axis), p->at[axis][rank], size);
}

static void draw_rank(const struct picture *p, int rank)
{
    const int x = stage_x(p, p->at[S2S_AXIS_PP][rank]) + p->at[S2S_AXIS_TP][rank] * (BOX_W + GAP),
              y = frame_y(p, p->at[S2S_AXIS_DP][rank]) + p->at[S2S_AXIS_CP][rank] * (BOX_H + GAP);
    printf("<rect class=\"rank\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"3\"/>\n", x, y,
           BOX_W, BOX_H);
    printf("<text x=\"%d\" y=\"%d\"><tspan class=\"number\">rank %d</tspan>", x + 6, y + 16, rank);
    printf("<tspan x=\"%d\" dy=\"13\">", x + 6);
    say_place(p, S2S_AXIS_TP, p->tp, rank);
    say_place(p, S2S_AXIS_CP, p->cp, rank);
    printf("</tspan><tspan x=\"%d\" dy=\"12\">", x + 6);
    say_place(p, S2S_AXIS_EP, p->ep, rank);
    printf("</tspan></text>\n");
}

static void draw(const struct picture *p)
{
    const int w = 2 * (MARGIN + GAP) + p->pp * (stage_w(p) + STAGE_GAP) - STAGE_GAP,
              h = frame_y(p, p->dp) - FRAME_GAP / 2 + MARGIN;
    printf("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
           "font-family=\"sans-serif\" font-size=\"11\">\n"
           "<style>.rank{fill:#dbe9f6;stroke:#4a6d8c}.packs{fill:#f4f4ef;stroke:#999}"
           ".number{font-weight:bold}</style>\n"
           "<title>%d ranks: tp %d, cp %d, dp %d, pp %d, ep %d</title>\n",
           w, h, p->mesh->world_size, p->tp, p->cp, p->dp, p->pp, p->ep);
    printf("<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n", w, h);
    draw_stages(p);
    draw_replicas(p);
    for (int rank = 0; rank < p->mesh->world_size; rank++)
        draw_rank(p, rank);
    printf("</svg>\n");
}

int plan_svg_print(const struct plan_mesh *mesh, const struct s2s_plan *plan, struct s2s_error *err)
{
    const int *size = mesh->dense.size;
    struct picture p = {.mesh = mesh,
                        .plan = plan,
                        .tp = size[S2S_AXIS_TP],
                        .cp = size[S2S_AXIS_CP],
                        .dp = size[S2S_AXIS_DP],
                        .pp = size[S2S_AXIS_PP],
                        .ep = mesh->expert.size[S2S_AXIS_EP]};
    if (mesh->world_size > PLAN_SVG_RANKS)
        return s2s_error_set(err, S2S_E_ARG, "a picture has up to %d ranks, found %d",
                             PLAN_SVG_RANKS, mesh->world_size);
    int rc = 0;
    for (int axis = 0; axis < S2S_AXES && rc == 0; axis++) {
        p.at[axis] = s2s_xcalloc((size_t)mesh->world_size, sizeof *p.at[axis]);
        rc = plan_mesh_places(p.at[axis], axis == S2S_AXIS_EP ? &mesh->expert : &mesh->dense,
                              (enum s2s_axis)axis, err);
    }
    if (rc == 0)
        draw(&p);
    for (int axis = 0; axis < S2S_AXES; axis++)
        free(p.at[axis]);
    return rc;
}
