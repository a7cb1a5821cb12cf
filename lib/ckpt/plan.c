/* Builds the plan of a conversion, and checks it before a byte is written. */
#include "lib/ckpt/plan.h"

#include "lib/base/base.h"
#include "lib/ckpt/box.h"
#include "lib/ckpt/number.h"

static const int64_t *keep_ints(struct s2s_ckpt_plan *plan, const int64_t *v, int n)
{
    int64_t *kept = s2s_blocks_alloc(&plan->arena, (size_t)n * sizeof *v);
    if (n)
        memcpy(kept, v, (size_t)n * sizeof *v);
    return kept;
}

struct s2s_ckpt_target *s2s_ckpt_plan_add(struct s2s_ckpt_plan *plan, const char *name,
                                          enum s2s_dtype dtype, int n_dims, const int64_t *shape)
{
    s2s_grow(&plan->targets, plan->n_targets, &plan->cap_targets, sizeof *plan->targets);
    struct s2s_ckpt_target *target = &plan->targets[plan->n_targets++];
    *target = (struct s2s_ckpt_target){.name = s2s_blocks_text(&plan->arena, name, strlen(name)),
                                       .shape = keep_ints(plan, shape, n_dims),
                                       .dtype = dtype,
                                       .n_dims = (unsigned)n_dims};
    return target;
}

/* Copies v unless it equals `equal`: most pieces start at zero, and many have the size of their
 * source. */
static const int64_t *keep_equal(struct s2s_ckpt_plan *plan, const int64_t *v, int n,
                                 const int64_t *equal)
{
    return !v || (n && memcmp(v, equal, (size_t)n * sizeof *v) == 0) ? equal
                                                                     : keep_ints(plan, v, n);
}

static void add_piece(struct s2s_ckpt_plan *plan, struct s2s_ckpt_target *target,
                      const struct s2s_ckpt_piece *piece)
{
    const uint32_t had = target->n_pieces++;
    if ((had & (had - 1)) == 0) { /* full: double it */
        const size_t room = had ? 2 * (size_t)had : 1;
        struct s2s_ckpt_piece *pieces = s2s_blocks_alloc(&plan->arena, room * sizeof *pieces);
        if (had)
            memcpy(pieces, target->pieces, had * sizeof *pieces);
        target->pieces = pieces;
    }
    target->pieces[had] = *piece;
}

void s2s_ckpt_plan_piece(struct s2s_ckpt_plan *plan, struct s2s_ckpt_target *target,
                         const struct s2s_ckpt_tensor *source, const int64_t *begin,
                         const int64_t *size)
{
    int64_t rest[S2S_MAX_DIMS];
    struct s2s_ckpt_piece piece = {.source = source, .begin = ckpt_origin};
    for (int d = 0; source && begin && !size && d < source->n_dims; d++)
        rest[d] = source->shape[d] - begin[d];
    if (source) {
        piece.begin = keep_equal(plan, begin, source->n_dims, ckpt_origin);
        piece.size = keep_equal(plan, begin && !size ? rest : size, source->n_dims, source->shape);
    } else {
        piece.size = keep_ints(plan, size, 1);
    }
    add_piece(plan, target, &piece);
}

struct s2s_ckpt_target *s2s_ckpt_plan_copy(struct s2s_ckpt_plan *plan, const char *name,
                                           const struct s2s_ckpt_tensor *source)
{
    struct s2s_ckpt_target *target =
        s2s_ckpt_plan_add(plan, name, source->dtype, source->n_dims, source->shape);
    s2s_ckpt_plan_piece(plan, target, source, NULL, NULL);
    return target;
}

const struct s2s_ckpt_target *s2s_ckpt_plan_find(const struct s2s_ckpt_plan *plan, const char *name)
{
    for (size_t i = 0; i < plan->n_targets; i++)
        if (strcmp(plan->targets[i].name, name) == 0)
            return &plan->targets[i];
    return NULL;
}

/* Must the target stay float32? A router's bias is updated in steps of 0.001, and 8-bit weights are
 * multiplied by their scales: Megatron-Core and transformers keep both in float32, whatever the
 * model's dtype. */
static bool is_kept_wide(const struct s2s_ckpt_target *target, enum s2s_dtype dtype)
{
    return s2s_dtype_size(dtype) < s2s_dtype_size(target->dtype) &&
           (s2s_ends_with(target->name, ".e_score_correction_bias") ||
            s2s_ends_with(target->name, ".router.expert_bias") ||
            s2s_ends_with(target->name, ".weight_scale_inv") ||
            s2s_ends_with(target->name, ".weight_scale"));
}

void s2s_ckpt_plan_cast(struct s2s_ckpt_plan *plan, enum s2s_dtype dtype)
{
    const char *kept = NULL;
    size_t n_kept = 0;
    for (size_t i = 0; i < plan->n_targets; i++) {
        struct s2s_ckpt_target *target = &plan->targets[i];
        if (s2s_ckpt_is_state(target->name))
            continue;
        if (s2s_dtype_is_float(target->dtype) && !is_kept_wide(target, dtype))
            target->dtype = dtype;
        if (!s2s_ckpt_can_average(target->dtype) && n_kept++ == 0)
            kept = target->name;
    }
    if (n_kept)
        s2s_warn("ckpt", "%s%s: floating point of 8 bits or less, or complex, and not cast", kept,
                 n_kept > 1 ? " and others" : "");
}

int64_t s2s_ckpt_target_bytes(const struct s2s_ckpt_target *target)
{
    return ckpt_box_numel(target->shape, target->n_dims) * (int64_t)s2s_dtype_size(target->dtype);
}

/* The number of digits that the text begins with. */
static size_t count_digits(const char *text)
{
    size_t n = 0;
    while (text[n] >= '0' && text[n] <= '9')
        n++;
    return n;
}

/* Compares texts, with runs of digits compared as numbers. */
static int compare_natural(const char *a, const char *b)
{
    while (*a && *b) {
        size_t n = count_digits(a), m = n ? count_digits(b) : 0;
        if (n && m) {
            while (n > 1 && *a == '0')
                a++, n--;
            while (m > 1 && *b == '0')
                b++, m--;
            int order = n != m ? (n > m) - (n < m) : memcmp(a, b, n);
            if (order)
                return order;
            a += n;
            b += m;
        } else if (*a != *b) {
            return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
        } else {
            a++;
            b++;
        }
    }
    return (*a != 0) - (*b != 0);
}

static int by_name(const void *a, const void *b)
{
    const struct s2s_ckpt_target *x = a, *y = b;
    int order = compare_natural(x->name, y->name);
    return order ? order : strcmp(x->name, y->name);
}

static int check_target(const struct s2s_ckpt_target *target, struct s2s_error *err)
{
    char text[200];
    int64_t numel = ckpt_box_numel(target->shape, target->n_dims), filled = 0;
    for (size_t i = 0; i < target->n_pieces; i++) {
        const struct s2s_ckpt_piece piece = s2s_ckpt_target_piece(target, i);
        filled += ckpt_box_numel(piece.size, piece.source ? piece.source->n_dims : 1);
        if (piece.source && piece.source->dtype != target->dtype &&
            !(s2s_dtype_is_float(piece.source->dtype) && s2s_dtype_is_float(target->dtype)))
            return s2s_error_set(err, S2S_E_DTYPE, "%s: %s cannot be made of %s", target->name,
                                 s2s_dtype_name(target->dtype),
                                 s2s_dtype_name(piece.source->dtype));
    }
    if (filled != numel)
        return s2s_error_set(err, S2S_E_SHAPE, "%s: %lld values for shape %s", target->name,
                             (long long)filled,
                             ckpt_shape_text(text, target->shape, target->n_dims));
    return 0;
}

/* The tensor that a target begins with. */
static const char *source_of(const struct s2s_ckpt_target *target)
{
    for (size_t i = 0; i < target->n_pieces; i++) {
        const struct s2s_ckpt_piece piece = s2s_ckpt_target_piece(target, i);
        if (piece.source)
            return piece.source->name;
    }
    return "zeros";
}

static int check_names(const struct s2s_ckpt_target *a, const struct s2s_ckpt_target *b,
                       struct s2s_error *err)
{
    if (strcmp(a->name, b->name) != 0)
        return 0;
    const char *first = source_of(a), *second = source_of(b);
    const bool turn = strcmp(first, second) > 0; /* equal names have no order of their own */
    return s2s_error_set(err, S2S_E_FORMAT, "%s would be written twice, from %s and from %s",
                         a->name, turn ? second : first, turn ? first : second);
}

int s2s_ckpt_plan_seal(struct s2s_ckpt_plan *plan, struct s2s_error *err)
{
    if (plan->n_targets)
        s2s_sort(plan->targets, plan->n_targets, sizeof *plan->targets, by_name);
    for (size_t i = 0; i < plan->n_targets; i++) {
        int rc = i ? check_names(&plan->targets[i - 1], &plan->targets[i], err) : 0;
        if (rc == 0)
            rc = check_target(&plan->targets[i], err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

void s2s_ckpt_plan_release(struct s2s_ckpt_plan *plan)
{
    free(plan->targets);
    free(plan->sums);
    s2s_blocks_release(&plan->arena);
    *plan = (struct s2s_ckpt_plan){.source = NULL};
}

/* ---- streaming ---- */

/* elements cast at once, so that the result stays in the cache */
enum { CAST_ELEMENTS = 16 << 10 };

struct stream {
    const struct s2s_ckpt_write *how;
    enum s2s_dtype from, to;
    s2s_ckpt_sink *sink;
    void *ctx;
    char *cast; /* CAST_ELEMENTS of the widest dtype; NULL until needed */
    size_t n_overflows;
};

/* Counts streams in which numbers become infinite: float16 ends at 65504, bfloat16 does not. Only
 * then looks for numbers that were infinite before. */
static void count_overflows(struct stream *s, const void *to, const void *from,
                            enum s2s_dtype from_dtype, size_t n)
{
    const size_t infinite = s->to == S2S_F16 ? ckpt_numbers_infinite(to, S2S_F16, n) : 0;
    if (!infinite)
        return;
    const size_t overflows = infinite - ckpt_numbers_infinite(from, from_dtype, n);
    s->n_overflows += overflows;
    if (s->how->n_infinite) /* at once: a file may be complete before the stream is */
        *s->how->n_infinite += (int64_t)overflows;
}

static void warn_of_overflows(struct s2s_ckpt_plan *plan, const char *name, size_t n)
{
    enum { MAX_WARNINGS = 5 };
    if (n && plan->n_overflows < MAX_WARNINGS)
        s2s_warn("ckpt", "%s: %zu value%s past float16's largest, 65504, made infinite%s", name, n,
                 s2s_plural(n),
                 plan->n_overflows + 1 == MAX_WARNINGS ? "; others are counted at the end" : "");
    plan->n_overflows += n > 0;
}

/* To be called before bytes are written: progress and interruption. */
static int pass(const struct s2s_ckpt_write *how, int64_t bytes, struct s2s_error *err)
{
    if (how->stop && *how->stop)
        return s2s_error_set(err, S2S_E_INTERRUPTED, "interrupted");
    if (how->progress)
        how->progress(how->ctx, bytes);
    return 0;
}

static int stream_sink(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    struct stream *s = ctx;
    size_t from = s2s_dtype_size(s->from), to = s2s_dtype_size(s->to), n = len / from;
    int rc = pass(s->how, (int64_t)(n * to), err);
    if (rc < 0 || s->from == s->to)
        return rc < 0 ? rc : s->sink(s->ctx, bytes, len, err);
    if (!s->cast)
        s->cast = s2s_xmalloc(CAST_ELEMENTS * sizeof(double));
    for (size_t done = 0; done < n && rc == 0; done += CAST_ELEMENTS) {
        size_t now = n - done < CAST_ELEMENTS ? n - done : CAST_ELEMENTS;
        ckpt_numbers_cast(s->cast, s->to, (const char *)bytes + done * from, s->from, now);
        count_overflows(s, s->cast, (const char *)bytes + done * from, s->from, now);
        rc = s->sink(s->ctx, s->cast, now * to, err);
    }
    return rc;
}

static int stream_zeros(struct stream *s, int64_t len, struct s2s_error *err)
{
    static const char zeros[64 << 10];
    int rc = 0;
    for (int64_t done = 0; done < len && rc == 0; done += (int64_t)sizeof zeros) {
        int64_t left = len - done,
                now = left < (int64_t)sizeof zeros ? left : (int64_t)sizeof zeros;
        rc = pass(s->how, now, err);
        if (rc == 0)
            rc = s->sink(s->ctx, zeros, (size_t)now, err);
    }
    return rc;
}

/* Sums in float64; the mean is then cast like any float64. */
struct mean {
    const struct s2s_ckpt_tensor **others; /* [n_others], of the piece's source */
    double *sum;
    char *bytes;
};

static int mean_piece(struct s2s_ckpt_plan *plan, const struct s2s_ckpt_piece *piece,
                      const int64_t *begin, const int64_t *box, struct stream *s,
                      const struct mean *mean, struct s2s_error *err)
{
    const size_t n = (size_t)ckpt_box_numel(box, piece->source->n_dims), of = plan->n_others + 1;
    int rc = 0;
    for (size_t k = 0; k < of && rc == 0; k++) {
        struct s2s_ckpt *ckpt = k ? plan->others[k - 1] : plan->source;
        rc = s2s_ckpt_read(ckpt, k ? mean->others[k - 1] : piece->source, begin, box, mean->bytes,
                           err);
        if (rc == 0 && k == 0)
            s2s_ckpt_numbers(mean->sum, mean->bytes, s->from, n);
        else if (rc == 0)
            ckpt_numbers_add(mean->sum, mean->bytes, s->from, n);
    }
    if (rc < 0)
        return rc;
    const double share = 1.0 / (double)of;
    const bool is_exact = (of & (of - 1)) == 0; /* a power of 2: a product, which is faster */
    for (size_t i = 0; i < n; i++)
        mean->sum[i] = is_exact ? mean->sum[i] * share : mean->sum[i] / (double)of;
    ckpt_numbers_store(mean->bytes, s->to, mean->sum, n);
    count_overflows(s, mean->bytes, mean->sum, S2S_F64, n);
    rc = pass(s->how, (int64_t)(n * s2s_dtype_size(s->to)), err);
    return rc < 0 ? rc : s->sink(s->ctx, mean->bytes, n * s2s_dtype_size(s->to), err);
}

static int stream_mean(struct s2s_ckpt_plan *plan, const struct s2s_ckpt_piece *piece,
                       struct stream *s, struct s2s_error *err)
{
    struct s2s_ckpt_walk walk;
    int64_t begin[S2S_MAX_DIMS];
    int rc = 0;
    /* walk in boxes of S2S_CKPT_PIECE bytes of float64 */
    if (!plan->sums)
        plan->sums = s2s_xalloc_aligned(2 * S2S_CKPT_PIECE);
    const struct mean mean = {.others = s2s_xmalloc(plan->n_others * sizeof *mean.others),
                              .sum = plan->sums,
                              .bytes = (char *)plan->sums + S2S_CKPT_PIECE};
    for (size_t k = 0; k < plan->n_others && rc == 0; k++) {
        mean.others[k] = s2s_ckpt_counterpart(plan->others[k], piece->source);
        if (!mean.others[k])
            rc = s2s_error_set(err, S2S_E_NOTFOUND, "%s: wanted but absent", piece->source->name);
    }
    s2s_ckpt_walk_begin(&walk, piece->size, piece->source->n_dims, sizeof(double));
    while (rc == 0 && s2s_ckpt_walk_next(&walk)) {
        for (int d = 0; d < piece->source->n_dims; d++)
            begin[d] = piece->begin[d] + walk.begin[d];
        rc = mean_piece(plan, piece, begin, walk.box, s, &mean, err);
    }
    free(mean.others);
    return rc;
}

/* Narrows a piece, which starts at byte *pos of its target, to the rows of its first axis that have
 * bytes in [begin, end); false: none. Advances *pos past the whole piece; *skip: bytes of the first
 * such row before begin. ints: memory for the new begin and size. */
static bool piece_part(struct s2s_ckpt_piece *piece, int64_t (*ints)[S2S_MAX_DIMS], size_t itemsize,
                       int64_t begin, int64_t end, int64_t *pos, int64_t *skip)
{
    const int n_dims = piece->source ? piece->source->n_dims : 1;
    const int64_t bytes = ckpt_box_numel(piece->size, n_dims) * (int64_t)itemsize;
    const int64_t at = *pos, rows = n_dims ? piece->size[0] : 1;
    *pos += bytes;
    if (*pos <= begin || at >= end || bytes == 0)
        return false;
    const int64_t row_bytes = bytes / rows, first = at < begin ? (begin - at) / row_bytes : 0;
    if (at <= begin)
        *skip = begin - at - first * row_bytes;
    if (n_dims == 0)
        return true;
    const int64_t last = *pos > end ? (end - at + row_bytes - 1) / row_bytes : rows;
    memcpy(ints[0], piece->begin, (size_t)n_dims * sizeof **ints);
    memcpy(ints[1], piece->size, (size_t)n_dims * sizeof **ints);
    ints[0][0] += first;
    ints[1][0] = last - first;
    piece->begin = ints[0];
    piece->size = ints[1];
    return true;
}

int64_t s2s_ckpt_target_part(struct s2s_ckpt_target *out, const struct s2s_ckpt_target *target,
                             int64_t begin_bytes, int64_t end_bytes)
{
    int64_t pos = 0, skip = 0;
    struct {
        int64_t ints[2][S2S_MAX_DIMS];
    } * rooms;
    *out = *target;
    /* pieces, then memory for the numbers of each */
    out->pieces = s2s_xcalloc(target->n_pieces + 1, sizeof *out->pieces + sizeof *rooms);
    rooms = (void *)(out->pieces + target->n_pieces + 1);
    out->n_pieces = 0;
    for (size_t i = 0; i < target->n_pieces; i++) {
        struct s2s_ckpt_piece *piece = &out->pieces[out->n_pieces];
        *piece = target->pieces[i];
        out->n_pieces += piece_part(piece, rooms[out->n_pieces].ints, s2s_dtype_size(target->dtype),
                                    begin_bytes, end_bytes, &pos, &skip);
    }
    return skip;
}

int s2s_ckpt_target_stream(struct s2s_ckpt_plan *plan, const struct s2s_ckpt_target *target,
                           const struct s2s_ckpt_write *how, s2s_ckpt_sink *sink, void *ctx,
                           struct s2s_error *err)
{
    struct stream s = {.how = how, .to = target->dtype, .sink = sink, .ctx = ctx};
    int rc = 0;
    for (size_t i = 0; i < target->n_pieces && rc == 0; i++) {
        const struct s2s_ckpt_piece piece = s2s_ckpt_target_piece(target, i);
        if (!piece.source) {
            rc = stream_zeros(&s, piece.size[0] * (int64_t)s2s_dtype_size(target->dtype), err);
            continue;
        }
        s.from = piece.source->dtype;
        if (plan->n_others && s2s_dtype_is_float(s.from)) {
            rc = stream_mean(plan, &piece, &s, err);
            continue;
        }
        rc = s2s_ckpt_stream(plan->source, piece.source, piece.begin, piece.size, stream_sink, &s,
                             err);
    }
    free(s.cast);
    warn_of_overflows(plan, target->name, s.n_overflows);
    return rc;
}

int ckpt_plan_verify_source(const struct s2s_ckpt_plan *plan, const struct s2s_ckpt_tensor *source,
                            struct s2s_error *err)
{
    int rc = s2s_ckpt_verify_tensor(plan->source, source, err);
    for (size_t i = 0; i < plan->n_others && rc == 0; i++) {
        const struct s2s_ckpt_tensor *other = s2s_ckpt_counterpart(plan->others[i], source);
        rc = other ? s2s_ckpt_verify_tensor(plan->others[i], other, err) : 0;
    }
    return rc;
}

int s2s_ckpt_plan_verify(const struct s2s_ckpt_plan *plan, struct s2s_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < plan->n_targets && rc == 0; i++)
        for (size_t k = 0; k < plan->targets[i].n_pieces && rc == 0; k++) {
            const struct s2s_ckpt_piece piece = s2s_ckpt_target_piece(&plan->targets[i], k);
            if (piece.source)
                rc = ckpt_plan_verify_source(plan, piece.source, err);
        }
    return rc;
}
