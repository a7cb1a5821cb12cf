/* `s2s-train probe`: command line, step and output file. */
#include "tools/train/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <omp.h>

#include "lib/base/base.h"
#include "lib/base/tool.h"
#include "lib/conf/conf.h"
#include "lib/io/outfile.h"
#include "lib/optim/optim.h"

/* Families in the order they are asked. */
static const struct probe_family *const families[] = {&probe_salm, &probe_encoder, &probe_image,
                                                      &probe_decoder};

/* ---- inputs and outputs ---- */

void *probe_alloc(struct probe *probe, size_t bytes)
{
    void *ptr = s2s_arena_alloc(&probe->host, bytes);
    memset(ptr, 0, bytes);
    return ptr;
}

bool probe_has_input(const struct probe *probe, const char *name)
{
    return s2s_safetensors_find(&probe->inputs, name) != NULL;
}

static int find_input(const struct s2s_st_tensor **t, const struct probe *p, const char *name,
                      int n_dims, struct s2s_error *err)
{
    *t = s2s_safetensors_find(&p->inputs, name);
    if (!*t)
        return s2s_error_set(err, S2S_E_NOTFOUND, "no tensor %s", name);
    if ((*t)->n_dims != n_dims)
        return s2s_error_set(err, S2S_E_SHAPE, "%s has %d dimensions; expected %d", name,
                             (*t)->n_dims, n_dims);
    return 0;
}

int probe_input_f32(struct probe *probe, const float **data, const int64_t **shape,
                    const char *name, int n_dims, struct s2s_error *err)
{
    const struct s2s_st_tensor *t;
    int rc = find_input(&t, probe, name, n_dims, err);
    if (rc < 0)
        return rc;
    if (t->dtype != S2S_F32)
        return s2s_error_set(err, S2S_E_DTYPE, "%s is %s; expected F32", name,
                             s2s_dtype_name(t->dtype));
    float *copy = probe_alloc(probe, t->len_bytes);
    memcpy(copy, t->data, t->len_bytes);
    *data = copy;
    if (shape)
        *shape = t->shape;
    return 0;
}

int probe_input_i32(struct probe *probe, const int32_t **data, const int64_t **shape,
                    const char *name, int n_dims, struct s2s_error *err)
{
    const struct s2s_st_tensor *t;
    int rc = find_input(&t, probe, name, n_dims, err);
    if (rc < 0)
        return rc;
    if (t->dtype != S2S_I32 && t->dtype != S2S_I64)
        return s2s_error_set(err, S2S_E_DTYPE, "%s is %s; expected I32 or I64", name,
                             s2s_dtype_name(t->dtype));
    int64_t n = s2s_st_numel(t);
    int32_t *copy = probe_alloc(probe, (size_t)n * sizeof *copy);
    for (int64_t i = 0; i < n; i++) {
        int64_t wide = 0;
        int32_t narrow = 0;
        if (t->dtype == S2S_I64)
            memcpy(&wide, (const char *)t->data + i * 8, 8);
        else
            memcpy(&narrow, (const char *)t->data + i * 4, 4);
        if (wide < INT32_MIN || wide > INT32_MAX)
            return s2s_error_set(err, S2S_E_RANGE, "%s[%lld] = %lld does not fit 32 bits", name,
                                 (long long)i, (long long)wide);
        copy[i] = t->dtype == S2S_I64 ? (int32_t)wide : narrow;
    }
    *data = copy;
    if (shape)
        *shape = t->shape;
    return 0;
}

void probe_add(struct probe *probe, const char *name, enum s2s_dtype dtype, int n_dims,
               const int64_t *shape, const void *data)
{
    s2s_grow(&probe->out, probe->n_out, &probe->cap_out, sizeof *probe->out);
    struct s2s_st_tensor *t = &probe->out[probe->n_out++];
    char *copy = probe_alloc(probe, strlen(name) + 1);
    memcpy(copy, name, strlen(name));
    *t = (struct s2s_st_tensor){.name = copy, .dtype = dtype, .n_dims = n_dims, .data = data};
    t->len_bytes = s2s_dtype_size(dtype);
    for (int i = 0; i < n_dims; i++) {
        t->shape[i] = shape[i];
        t->len_bytes *= (size_t)shape[i];
    }
}

/* grad/NAME or paramN/NAME of every trained parameter */
static void add_params(struct probe *p, const char *prefix, bool gradient)
{
    for (size_t i = 0; i < p->model->params->n; i++) {
        const struct s2s_param *param = p->model->params->list[i];
        if (!param->trained)
            continue;
        float *values = probe_alloc(p, (size_t)param->numel * sizeof *values);
        if (gradient)
            s2s_param_get_grad(param, values);
        else
            s2s_param_get(param, values);
        char *name = s2s_xasprintf("%s/%s", prefix, param->name);
        probe_add(p, name, S2S_F32, param->n_dims, param->local, values);
        free(name);
    }
}

/* ---- optimizer ---- */

static int read_lr(struct probe_optimizer *o, const struct s2s_conf *conf, struct s2s_error *err)
{
    const struct s2s_conf *lr = s2s_conf_find(conf, "lr");
    bool many = lr && lr->kind == S2S_CONF_LIST && lr->n_items > 0;
    o->n_lr = many ? lr->n_items : 1;
    o->lr = s2s_xcalloc(o->n_lr, sizeof *o->lr);
    if (!many)
        return s2s_conf_get_f64(&o->lr[0], conf, "lr", err);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < o->n_lr; i++)
        rc = s2s_conf_as_f64(&o->lr[i], lr->items[i], err);
    return rc;
}

static int read_optimizer(struct probe_optimizer *o, const char *path, struct s2s_error *err)
{
    struct s2s_conf *root = NULL;
    struct s2s_adamw_options *opt = &o->options;
    int rc = s2s_conf_read(&root, path, S2S_CONF_JSON, err);
    if (rc < 0)
        return rc;
    const struct s2s_conf *conf = s2s_conf_find(root, "optimizer");
    conf = conf && conf->kind == S2S_CONF_MAP ? conf : root;
    const struct s2s_conf *betas = s2s_conf_find(conf, "betas");
    if (betas && (betas->kind != S2S_CONF_LIST || betas->n_items != 2))
        rc = s2s_conf_error(err, S2S_E_SHAPE, betas, "expected two numbers");
    if (rc == 0 && (rc = s2s_conf_get_f64_or(&opt->beta1, conf, "betas.0", 0.9, err)) == 0 &&
        (rc = s2s_conf_get_f64_or(&opt->beta2, conf, "betas.1", 0.95, err)) == 0 &&
        (rc = s2s_conf_get_f64_or(&opt->eps, conf, "eps", 1e-8, err)) == 0 &&
        (rc = s2s_conf_get_f64_or(&opt->weight_decay, conf, "weight_decay", 0, err)) == 0 &&
        (rc = s2s_conf_get_f64_or(&opt->clip_norm, conf, "max_norm", 0, err)) == 0)
        rc = read_lr(o, conf, err);
    s2s_conf_free(root);
    return rc;
}

static void update(struct s2s_optim *optim, const struct probe_optimizer *o, int step)
{
    double factor = s2s_optim_clip_factor(optim, s2s_optim_grad_norm(optim));
    s2s_optim_step(optim, probe_lr(o, step), o->options.weight_decay, factor);
}

/* ---- command line ---- */

struct probe_args {
    struct s2s_common common; /* first: it begins with the shared options */
    const char *model, *inputs, *out, *optimizer, *mesh;
    bool grads;
    int steps, layout, multiple, batch_norm, precision;
};

enum {
    KEY_MODEL = 0x200,
    KEY_INPUTS,
    KEY_OUT,
    KEY_GRADS,
    KEY_STEPS,
    KEY_OPTIMIZER,
    KEY_LAYOUT,
    KEY_MULTIPLE,
    KEY_BATCH_NORM,
    KEY_PRECISION,
    KEY_MESH
};

static const struct argp_option argp_options[] = {
    {"model", KEY_MODEL, "DIR", 0, "Directory with config.json and weights", 0},
    {"inputs", KEY_INPUTS, "FILE", 0, "Safetensors file with the batch", 0},
    {"out", KEY_OUT, "FILE", 0, "Safetensors file to write (also -o)", 0},
    {"grads", KEY_GRADS, NULL, 0, "Run backward and write grad/NAME", 0},
    {"steps", KEY_STEPS, "N", 0, "Run N optimizer steps on the batch and write paramN/NAME", 0},
    {"optimizer", KEY_OPTIMIZER, "FILE", 0,
     "JSON with lr (one or a list), betas, eps, "
     "weight_decay, max_norm; under \"optimizer\" or at the top",
     0},
    {"layout", KEY_LAYOUT, "packed|bshd", 0, "How the batch is run (default packed)", 0},
    {"multiple", KEY_MULTIPLE, "N", 0, "Round each utterance up to a multiple of N (default 1)", 0},
    {"batch-norm", KEY_BATCH_NORM, "frozen|batch", 0,
     "Batch norm of encoders by running statistics, or by those of the batch, padding counted "
     "(default frozen)",
     0},
    {"precision", KEY_PRECISION, "fp32|bf16-mixed", 0,
     "What activations and weights are computed in (default fp32)", 0},
    {"mesh", KEY_MESH, "LIST", 0,
     "Run as s2s-train does on the ranks of a mesh, such as tp=2,cp=2,sequence_parallel=true (keys "
     "of a recipe's mesh), and gather gradients and parameters",
     0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    static const char *const layouts[] = {"packed", "bshd", NULL};
    static const char *const norms[] = {"frozen", "batch", NULL};
    static const char *const precisions[] = {"fp32", "bf16-mixed", NULL};
    struct probe_args *opt = state->input;
    switch (key) {
    case KEY_MODEL:
        opt->model = arg;
        return 0;
    case KEY_INPUTS:
        opt->inputs = arg;
        return 0;
    case KEY_OUT:
        opt->out = arg;
        return 0;
    case KEY_GRADS:
        opt->grads = true;
        return 0;
    case KEY_STEPS:
        opt->steps = (int)s2s_arg_i64(state, "steps", arg, 0, 1000000);
        return 0;
    case KEY_OPTIMIZER:
        opt->optimizer = arg;
        return 0;
    case KEY_LAYOUT:
        opt->layout = s2s_arg_choice(state, "layout", arg, layouts);
        return 0;
    case KEY_MULTIPLE:
        opt->multiple = (int)s2s_arg_i64(state, "multiple", arg, 1, 65536);
        return 0;
    case KEY_BATCH_NORM:
        opt->batch_norm = s2s_arg_choice(state, "batch-norm", arg, norms);
        return 0;
    case KEY_PRECISION:
        opt->precision = s2s_arg_choice(state, "precision", arg, precisions);
        return 0;
    case KEY_MESH:
        opt->mesh = arg;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "no input expected, found '%s'", arg);
        return 0;
    case ARGP_KEY_END:
        if (!opt->out)
            opt->out = opt->common.out;
        if (!opt->model || !opt->inputs || !opt->out)
            argp_error(state, "--model, --inputs and --out are needed");
        if (opt->steps && !opt->optimizer)
            argp_error(state, "--steps needs --optimizer");
        if (opt->mesh && (opt->layout || opt->multiple > 1 || opt->batch_norm))
            argp_error(state, "--mesh takes utterances as packs: leave out --layout, --multiple "
                              "and --batch-norm");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp probe_argp = {
    argp_options,
    parse,
    "--model DIR --inputs FILE --out FILE",
    "Write a model's numbers, to compare with another framework: activations, loss, gradients, "
    "parameters after some steps.\v"
    "s2s-train-probe(1) lists the names in both files.\n\n"
    "Example:\n"
    "  s2s-train probe --model D --inputs batch.safetensors --out o.safetensors\n\n"
    "Exit status: 0 done, 1 the weights or the batch are bad, 2 the command line is bad or an "
    "input cannot be opened.\n"
    "See also: s2s-train(1)",
    NULL,
    NULL,
    NULL};

/* ---- the run ---- */

int probe_choose_family(struct probe *p, struct s2s_error *err)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (families[i]->matches(p->model)) {
            p->family = families[i];
            return 0;
        }
    return s2s_error_set(err, S2S_E_UNSUPPORTED, "%s: a model that probe cannot run",
                         p->model->config_path);
}

/* Forward and backward; the first pass also gives the activations. */
static int run_step(struct probe *p, struct s2s_tape *tape, bool first, struct s2s_error *err)
{
    struct s2s_forward fwd = p->wanted;
    if (!first) {
        fwd.want_logits = false;
        fwd.trace = NULL;
    }
    s2s_tape_reset(tape);
    s2s_params_zero_grads(p->model->params);
    s2s_model_forward(p->model, tape, &p->batch, &fwd);
    int rc = 0;
    if (first && (rc = p->family->collect(p, &fwd, err)) < 0)
        return rc;
    if (first && fwd.loss) {
        float *loss = probe_alloc(p, sizeof *loss);
        *loss = (float)(s2s_tensor_scalar(fwd.loss) * p->loss_scale);
        probe_add(p, "loss", S2S_F32, 1, (int64_t[]){1}, loss);
    }
    if (tape->recording)
        s2s_tape_backward(tape);
    if (first && tape->recording && p->family->collect_after)
        p->family->collect_after(p, &fwd);
    return s2s_device_sync(p->device, err);
}

static int run_steps(struct probe *p, const struct probe_args *opt,
                     const struct probe_optimizer *optimizer, struct s2s_error *err)
{
    struct s2s_tape *tape = s2s_tape_new(p->device, opt->grads || opt->steps || opt->batch_norm);
    struct s2s_optim *optim = NULL;
    int rc = s2s_model_check(p->model, &p->batch, err);
    if (opt->steps)
        rc = s2s_optim_new(&optim, p->model->params, &optimizer->options, 0,
                           p->model->params->n_trained, err);
    for (int step = 0; rc == 0 && step < (opt->steps ? opt->steps : 1); step++) {
        if ((rc = run_step(p, tape, step == 0, err)) < 0)
            break;
        if (step == 0 && opt->grads)
            add_params(p, "grad", true);
        if (optim)
            update(optim, optimizer, step);
    }
    if (rc == 0 && opt->steps) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "param%d", opt->steps);
        add_params(p, prefix, false);
    }
    s2s_optim_free(optim);
    s2s_tape_free(tape);
    return rc;
}

static int run_here(struct probe *p, const struct probe_args *opt,
                    const struct probe_optimizer *optimizer, struct s2s_error *err)
{
    const struct s2s_model_options options = {.batch_norm_batch = p->batch_norm_batch};
    int rc = s2s_device_open(&p->device, NULL, err);
    if (rc < 0 ||
        (rc = s2s_device_work_in(p->device, opt->precision ? S2S_BF16 : S2S_F32, err)) < 0 ||
        (rc = s2s_model_open(&p->model, p->device, NULL, opt->model, &options, err)) < 0 ||
        (rc = probe_choose_family(p, err)) < 0 ||
        (rc = s2s_params_finish(p->model->params, err)) < 0)
        return rc;
    if ((rc = s2s_model_load(p->model, err)) < 0 ||
        (rc = s2s_safetensors_open(&p->inputs, opt->inputs, err)) < 0)
        return rc;
    if ((rc = p->family->prepare(p, err)) < 0 || (rc = run_steps(p, opt, optimizer, err)) < 0)
        return s2s_error_add(err, rc, "%s", opt->inputs);
    return s2s_safetensors_save(opt->out, p->out, p->n_out, NULL, 0, err);
}

static int run(struct probe *p, const struct probe_args *opt, struct s2s_error *err)
{
    struct probe_optimizer optimizer = {.lr = NULL};
    const struct probe_options options = {.common = &opt->common,
                                          .model = opt->model,
                                          .inputs = opt->inputs,
                                          .out = opt->out,
                                          .mesh = opt->mesh,
                                          .grads = opt->grads,
                                          .steps = opt->steps,
                                          .dtype = opt->precision ? S2S_BF16 : S2S_F32};
    int rc = s2s_outfile_spares_each(opt->out, (const char *const[]){opt->inputs, opt->optimizer},
                                     2, err);
    if (rc == 0 && opt->steps)
        rc = read_optimizer(&optimizer, opt->optimizer, err);
    if (rc == 0)
        rc = opt->mesh ? probe_mesh(p, &options, &optimizer, err)
                       : run_here(p, opt, &optimizer, err);
    free(optimizer.lr);
    return rc;
}

int train_probe(int argc, char **argv, struct s2s_error *err)
{
    struct probe_args opt = {.common = S2S_COMMON_DEFAULT, .multiple = 1};
    s2s_tool_parse(&probe_argp, argc, argv, &opt);
    omp_set_num_threads(opt.common.jobs);
    struct probe p = {.layout = (enum probe_layout)opt.layout,
                      .batch_norm_batch = opt.batch_norm,
                      .multiple = opt.multiple};
    s2s_arena_init(&p.host, NULL, 1 << 20);
    int rc = run(&p, &opt, err);
    free(p.out);
    s2s_safetensors_release(&p.inputs);
    if (!opt.mesh)
        s2s_model_free(p.model);
    s2s_device_close(p.device);
    s2s_arena_release(&p.host);
    return rc;
}
