/* Checks a checkpoint against the tensors that a program requires. */
#include "lib/ckpt/ckpt.h"

#include "lib/base/base.h"
#include "lib/base/distance.h"
#include "lib/ckpt/box.h"
#include "lib/ckpt/list.h"
#include "lib/ckpt/names.h"

/* How much longer "module.x.weight" is than "x.weight" (or the reverse); SIZE_MAX: neither ends
 * with the other after a dot. */
static size_t longer_by(const char *a, const char *b)
{
    size_t a_len = strlen(a), b_len = strlen(b);
    const char *longer = a_len > b_len ? a : b, *tail = a_len > b_len ? b : a;
    size_t more = a_len > b_len ? a_len - b_len : b_len - a_len;
    bool is_tail = more > 0 && longer[more - 1] == '.' && strcmp(longer + more, tail) == 0;
    return is_tail && strchr(tail, '.') ? more : SIZE_MAX;
}

/* The nearest existing name; NULL: none is near. Names that end alike are nearer than edits, the
 * longest common end nearest. */
static const char *nearest(const struct s2s_ckpt *ckpt, const char *name)
{
    size_t n, least = SIZE_MAX;
    const struct s2s_ckpt_tensor *tensors = s2s_ckpt_tensors(ckpt, &n);
    const char *found = NULL;
    int best = (int)strlen(name) / 3 + 1;
    for (size_t i = 0; i < n; i++) {
        size_t more = longer_by(name, tensors[i].name);
        int d = least == SIZE_MAX && more == SIZE_MAX && best > 0
                    ? s2s_name_distance(name, tensors[i].name, best - 1)
                    : best;
        if (more < least || d < best) {
            least = more < least ? more : least;
            best = d < best ? d : best;
            found = tensors[i].name;
        }
    }
    return found;
}

static bool is_as_wanted(const struct s2s_ckpt_want *want, const struct s2s_ckpt_tensor *t)
{
    return (!want->dtype || want->dtype == t->dtype) &&
           (want->n_dims < 0 || ckpt_same_shape(want->shape, want->n_dims, t->shape, t->n_dims));
}

static const char ABSENT[] = "wanted but absent", WRONG[] = "of another shape or dtype";

static void check_one(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_want *want,
                      struct ckpt_list *absent, struct ckpt_list *wrong)
{
    char a[200], b[200];
    const struct s2s_ckpt_tensor *t = s2s_ckpt_find(ckpt, want->name);
    if (!t) {
        /* a linear search: not for thousands of names */
        const char *near = absent->n < 100 ? nearest(ckpt, want->name) : NULL;
        ckpt_list_add(absent, ABSENT,
                      near ? s2s_xasprintf("%s (nearest: %s)", want->name, near)
                           : s2s_xstrdup(want->name));
    } else if (!is_as_wanted(want, t)) {
        ckpt_list_add(wrong, WRONG,
                      s2s_xasprintf("%s: %s %s, wanted %s %s", want->name, s2s_dtype_name(t->dtype),
                                    ckpt_shape_text(a, t->shape, t->n_dims),
                                    want->dtype ? s2s_dtype_name(want->dtype) : "any dtype",
                                    want->n_dims < 0
                                        ? "any shape"
                                        : ckpt_shape_text(b, want->shape, want->n_dims)));
    }
}

int s2s_ckpt_check(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_want *wants, size_t n,
                   struct s2s_error *err)
{
    struct ckpt_list absent = {.n = 0}, wrong = {.n = 0};
    for (size_t i = 0; i < n; i++)
        check_one(ckpt, &wants[i], &absent, &wrong);
    int rc = 0;
    if (absent.n) {
        rc = s2s_error_set(err, S2S_E_NOTFOUND, "%s: %s (%zu):", s2s_ckpt_path(ckpt), ABSENT,
                           absent.n);
        ckpt_list_end(&absent, rc, err);
        if (wrong.n)
            s2s_error_line(err, rc, "%s (%zu):", WRONG, wrong.n);
    } else if (wrong.n) {
        rc = s2s_error_set(err, S2S_E_SHAPE, "%s: %s (%zu):", s2s_ckpt_path(ckpt), WRONG, wrong.n);
    }
    return ckpt_list_end(&wrong, rc, err);
}
