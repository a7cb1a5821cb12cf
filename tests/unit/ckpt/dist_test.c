/* Checkpoints as several ranks write them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/base/base.h"
#include "lib/ckpt/box.h"
#include "lib/ckpt/ckpt.h"
#include "lib/ckpt/ckpt_files.h"
#include "lib/ckpt/model.h"
#include "lib/ckpt/pickle/pickle.h"
#include "lib/ckpt/read/torch_zip.h"
#include "lib/ckpt/write/common.h"
#include "lib/ckpt/write/dist.h"
#include "lib/ckpt/write/write_hf.h"
#include "lib/io/outfile.h"
#include "lib/io/zip.h"

struct fixture {
    char root[64];
};

static int make_root(void **state)
{
    struct fixture *f = s2s_xcalloc(1, sizeof *f);
    snprintf(f->root, sizeof f->root, "/tmp/s2s-ckpt-test-XXXXXX");
    *state = f;
    return mkdtemp(f->root) ? 0 : -1;
}

static int remove_root(void **state)
{
    struct fixture *f = *state;
    int rc = getenv("S2S_KEEP") ? 0 : s2s_ckpt_remove_tree(f->root, NULL);
    if (getenv("S2S_KEEP"))
        fprintf(stderr, "kept %s\n", f->root);
    free(f);
    return rc;
}

/* a tensor whose numbers are made on the way */
static int write_count(struct s2s_dist_writer *w, const struct s2s_dist_chunk *chunk, int64_t first,
                       struct s2s_error *err)
{
    int rc = s2s_dist_begin_tensor(w, chunk, err);
    for (int64_t i = 0; i < chunk->shape[0] && rc == 0; i++)
        rc = s2s_dist_data(w, &(int64_t){first + i}, sizeof(int64_t), err);
    return rc < 0 ? rc : s2s_dist_end(w, err);
}

/* rank r of 2 writes rows [3r, 3r+3) of w; rank 0 also a scalar and an object */
static void write_rank(const char *root, int64_t iteration, int rank, int64_t rows,
                       struct s2s_buf *items)
{
    struct s2s_dist_writer *w = NULL;
    struct s2s_error err = S2S_ERROR_INIT;
    float data[12];
    for (int i = 0; i < 12; i++)
        data[i] = (float)(rank * 12 + i);
    assert_int_equal(s2s_dist_open(&w, root, iteration, rank, &err), 0);
    struct s2s_dist_chunk chunk = {.name = "w",
                                   .dtype = S2S_F32,
                                   .n_dims = 2,
                                   .shape = (int64_t[]){6, 4},
                                   .offset = (int64_t[]){3 * rank, 0},
                                   .size = (int64_t[]){rows, 4}};
    assert_int_equal(s2s_dist_write_tensor(w, &chunk, data, &err), 0);
    if (rank == 0) {
        struct s2s_dist_chunk big = {
            .name = "big", .dtype = S2S_I64, .n_dims = 1, .shape = (int64_t[]){70000}};
        struct s2s_dist_chunk scalar = {.name = "step", .dtype = S2S_BF16, .n_dims = 0};
        json_t *rng = json_pack("{s:[i,f], s:s, s:n, s:b}", "a", 1, 2.5, "b", "x", "c", "d", 1);
        assert_int_equal(write_count(w, &big, 100, &err), 0);
        assert_int_equal(s2s_dist_write_tensor(w, &scalar, "\x80\x3f", &err), 0);
        assert_int_equal(s2s_dist_write_object(w, "rng_state/shard_0_1", rng, &err), 0);
        json_decref(rng);
    }
    assert_int_equal(s2s_dist_close(w, items, &err), 0);
}

static int save(const char *root, int64_t iteration, int64_t rows, struct s2s_error *err)
{
    struct s2s_buf items[2] = {S2S_BUF_INIT, S2S_BUF_INIT};
    json_t *common =
        json_pack("{s:i, s:f, s:{s:i, s:I}}", "iteration", (int)iteration, "checkpoint_version",
                  3.0, "args", "hidden_size", 16, "seed", (json_int_t)1 << 40);
    assert_int_equal(s2s_dist_begin(root, iteration, err), 0);
    write_rank(root, iteration, 0, 3, &items[0]);
    write_rank(root, iteration, 1, rows, &items[1]);
    int rc = s2s_dist_commit(root, iteration, items, 2, common, err);
    if (rc < 0)
        s2s_dist_abort(root, iteration);
    json_decref(common);
    s2s_buf_release(&items[0]);
    s2s_buf_release(&items[1]);
    return rc;
}

static bool exists(const char *root, const char *name)
{
    char path[256];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", root, name);
    return stat(path, &st) == 0;
}

static void commit_makes_the_folder_and_the_tracker(void **state)
{
    struct fixture *f = *state;
    struct s2s_error err = S2S_ERROR_INIT;
    if (save(f->root, 7, 3, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(exists(f->root, "iter_0000007/.metadata"));
    assert_true(exists(f->root, "iter_0000007/common.pt"));
    assert_true(exists(f->root, "iter_0000007/metadata.json"));
    assert_true(exists(f->root, "latest_checkpointed_iteration.txt"));
    assert_false(exists(f->root, "iter_0000007.tmp"));
    /* the same iteration again replaces it */
    assert_int_equal(save(f->root, 7, 3, &err), 0);
    assert_false(exists(f->root, "iter_0000007.tmp"));
    assert_false(exists(f->root, "iter_0000007.old"));
}

static void a_check_sees_names_shapes_and_dtypes(void **state)
{
    struct fixture *f = *state;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_ckpt *ckpt = NULL;
    assert_int_equal(save(f->root, 1, 3, &err), 0);
    assert_int_equal(s2s_ckpt_open(&ckpt, f->root, &err), 0);
    struct s2s_ckpt_want wants[] = {
        {.name = "w", .dtype = S2S_F32, .n_dims = 2, .shape = (int64_t[]){6, 4}},
        {.name = "big", .n_dims = -1},
        {.name = "step", .dtype = S2S_BF16, .n_dims = 0}};
    assert_int_equal(s2s_ckpt_check(ckpt, wants, 3, &err), 0);
    wants[0].dtype = S2S_I32; /* of the same size */
    assert_int_equal(s2s_ckpt_check(ckpt, wants, 3, &err), S2S_E_SHAPE);
    assert_non_null(strstr(err.text, "w: F32 [6, 4], wanted I32 [6, 4]"));
    wants[0].dtype = S2S_DTYPE_NONE;
    wants[0].shape = (int64_t[]){4, 6};
    assert_int_equal(s2s_ckpt_check(ckpt, wants, 3, &err), S2S_E_SHAPE);
    assert_non_null(strstr(err.text, "w: F32 [6, 4], wanted any dtype [4, 6]"));
    wants[0].n_dims = 1;
    assert_int_equal(s2s_ckpt_check(ckpt, wants, 3, &err), S2S_E_SHAPE);
    wants[0].n_dims = -1;
    wants[2].name = "stop";
    assert_int_equal(s2s_ckpt_check(ckpt, wants, 3, &err), S2S_E_NOTFOUND);
    assert_non_null(strstr(err.text, "stop (nearest: step)"));
    s2s_ckpt_close(ckpt);
}

static void commit_refuses_a_hole_and_leaves_nothing(void **state)
{
    struct fixture *f = *state;
    struct s2s_error err = S2S_ERROR_INIT;
    assert_int_equal(save(f->root, 8, 2, &err), S2S_E_SHAPE);
    assert_non_null(strstr(err.text, "w: chunks cover 20 of 24"));
    assert_false(exists(f->root, "iter_0000008.tmp"));
    assert_false(exists(f->root, "iter_0000008"));
    assert_false(exists(f->root, "latest_checkpointed_iteration.txt"));
}

static void begin_removes_what_killed_saves_left(void **state)
{
    struct fixture *f = *state;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_buf items = S2S_BUF_INIT;
    assert_int_equal(s2s_dist_begin(f->root, 1, &err), 0);
    write_rank(f->root, 1, 0, 3, &items);
    assert_int_equal(s2s_dist_begin(f->root, 2, &err), 0);
    assert_false(exists(f->root, "iter_0000001.tmp"));
    assert_true(exists(f->root, "iter_0000002.tmp"));
    s2s_dist_abort(f->root, 2);
    s2s_buf_release(&items);
}

static void prune_keeps_the_newest(void **state)
{
    struct fixture *f = *state;
    struct s2s_error err = S2S_ERROR_INIT;
    for (int64_t i = 1; i <= 3; i++)
        assert_int_equal(save(f->root, i, 3, &err), 0);
    assert_int_equal(s2s_dist_prune(f->root, 2, &err), 0);
    assert_false(exists(f->root, "iter_0000001"));
    assert_true(exists(f->root, "iter_0000002"));
    assert_true(exists(f->root, "iter_0000003"));
}

/* a run that went back: what its tracker names is not the newest, and is still what it goes on from
 */
static void prune_keeps_what_the_tracker_names(void **state)
{
    struct fixture *f = *state;
    struct s2s_error err = S2S_ERROR_INIT;
    static const int64_t order[] = {2, 3, 4, 1};
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(save(f->root, order[i], 3, &err), 0);
    assert_int_equal(s2s_dist_previous(f->root), -1);
    assert_int_equal(s2s_dist_prune(f->root, 1, &err), 0);
    assert_true(exists(f->root, "iter_0000001"));
    assert_false(exists(f->root, "iter_0000002"));
    assert_false(exists(f->root, "iter_0000003"));
    assert_true(exists(f->root, "iter_0000004"));
    assert_int_equal(save(f->root, 5, 3, &err), 0);
    assert_int_equal(s2s_dist_previous(f->root), 4);
}

/* what ranks say of one name must be one tensor, and what they say may come damaged */
static void finish_refuses_lists_that_contradict(void **state)
{
    static const struct {
        enum s2s_dtype dtype;
        int64_t rows;
        int code;
    } second[] = {{S2S_F32, 4, S2S_E_SHAPE}, {S2S_BF16, 4, S2S_E_DTYPE}, {S2S_F32, 5, S2S_E_SHAPE}};
    static const char data[20];
    struct fixture *f = *state;
    for (size_t i = 0; i < sizeof second / sizeof *second; i++) {
        struct s2s_error err = S2S_ERROR_INIT;
        struct s2s_buf items[2] = {S2S_BUF_INIT, S2S_BUF_INIT};
        for (int rank = 0; rank < 2; rank++) {
            struct s2s_dist_writer *w = NULL;
            /* rows [0, 2) and [2, ..): overlapping, and of another dtype or shape, the second time
             */
            const int64_t from = rank && i ? 2 : 0;
            const int64_t shape[] = {rank ? second[i].rows : 4}, size[] = {shape[0] - from};
            struct s2s_dist_chunk chunk = {.name = "w",
                                           .dtype = rank ? second[i].dtype : S2S_F32,
                                           .n_dims = 1,
                                           .shape = shape,
                                           .offset = (int64_t[]){from},
                                           .size = rank ? size : (int64_t[]){2}};
            assert_int_equal(s2s_dist_open_dir(&w, f->root, rank, &err), 0);
            assert_int_equal(s2s_dist_write_tensor(w, &chunk, data, &err), 0);
            assert_int_equal(s2s_dist_close(w, &items[rank], &err), 0);
        }
        json_t *common = json_object();
        assert_int_equal(s2s_dist_finish(f->root, items, 2, common, &err), second[i].code);
        assert_non_null(strstr(err.text, "w"));
        items[1].len -= 4;
        assert_int_equal(s2s_dist_finish(f->root, items, 2, common, &err), S2S_E_FORMAT);
        items[1].len = 8; /* says one item and holds none */
        assert_int_equal(s2s_dist_finish(f->root, items, 2, common, &err), S2S_E_FORMAT);
        items[1].len = 5;
        assert_int_equal(s2s_dist_finish(f->root, items, 2, common, &err), S2S_E_FORMAT);
        assert_false(exists(f->root, "metadata.json"));
        json_decref(common);
        s2s_buf_release(&items[0]);
        s2s_buf_release(&items[1]);
    }
}

static void an_object_is_written_once(void **state)
{
    struct fixture *f = *state;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_dist_writer *w = NULL;
    struct s2s_buf items = S2S_BUF_INIT;
    json_t *value = json_object();
    assert_int_equal(s2s_dist_open_dir(&w, f->root, 0, &err), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(s2s_dist_write_object(w, "rng_state/shard_0_1", value, &err), 0);
    assert_int_equal(s2s_dist_close(w, &items, &err), 0);
    assert_int_equal(s2s_dist_finish(f->root, &items, 1, value, &err), S2S_E_FORMAT);
    assert_non_null(strstr(err.text, "rng_state/shard_0_1: object written 2 times"));
    json_decref(value);
    s2s_buf_release(&items);
}

static void writer_refuses_more_or_less_than_its_box(void **state)
{
    static const char data[32];
    struct fixture *f = *state;
    for (size_t len = 12; len <= 20; len += 4) {
        struct s2s_error err = S2S_ERROR_INIT;
        struct s2s_dist_writer *w = NULL;
        struct s2s_dist_chunk chunk = {
            .name = "w", .dtype = S2S_F32, .n_dims = 1, .shape = (int64_t[]){4}};
        assert_int_equal(s2s_dist_open_dir(&w, f->root, 0, &err), 0);
        assert_int_equal(s2s_dist_begin_tensor(w, &chunk, &err), 0);
        assert_int_equal(s2s_dist_data(w, data, len, &err), 0);
        assert_int_equal(s2s_dist_end(w, &err), len == 16 ? 0 : S2S_E_SHAPE);
        if (len != 16)
            assert_non_null(strstr(err.text, len < 16 ? "w: 4 bytes less" : "w: 4 bytes more"));
        s2s_dist_discard(w);
    }
}

static void writer_refuses_a_box_outside_its_tensor(void **state)
{
    struct fixture *f = *state;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_dist_writer *w = NULL;
    struct s2s_dist_chunk chunk = {.name = "w",
                                   .dtype = S2S_F32,
                                   .n_dims = 1,
                                   .shape = (int64_t[]){4},
                                   .offset = (int64_t[]){2},
                                   .size = (int64_t[]){3}};
    assert_int_equal(s2s_dist_open_dir(&w, f->root, 0, &err), 0);
    assert_int_equal(s2s_dist_write_tensor(w, &chunk, "", &err), S2S_E_SHAPE);
    s2s_dist_discard(w);
}

/* pieces follow each other in row-major order, none is too large, and nothing is left out */
static void a_walk_meets_each_element_once(void **state)
{
    static const struct {
        int n_dims;
        int64_t size[4];
        size_t itemsize;
    } boxes[] = {{0, {0}, 8},           {1, {5}, 4},           {1, {100000}, 8},
                 {2, {4, 0}, 4},        {2, {100000, 3}, 2},   {2, {3, 100000}, 8},
                 {3, {3, 300, 300}, 4}, {3, {2, 2, 70000}, 8}, {4, {2, 3, 5, 40000}, 4}};
    for (size_t i = 0; i < sizeof boxes / sizeof *boxes; i++) {
        const int n = boxes[i].n_dims;
        struct s2s_ckpt_walk walk;
        int64_t next = 0;
        s2s_ckpt_walk_begin(&walk, boxes[i].size, n, boxes[i].itemsize);
        while (s2s_ckpt_walk_next(&walk)) {
            int64_t at = 0, numel = ckpt_box_numel(walk.box, n);
            for (int d = 0; d < n; d++)
                at = at * boxes[i].size[d] + walk.begin[d];
            assert_int_equal(at, next);
            assert_true(numel > 0 && numel * (int64_t)boxes[i].itemsize <= S2S_CKPT_PIECE);
            next += numel;
        }
        assert_int_equal(next, ckpt_box_numel(boxes[i].size, n));
    }
}

/* sizes around those of the writer's buffer, small ones before and after each: order is kept */
static void tensors_of_every_size_come_back(void **state)
{
    static const int64_t sizes[] = {3,     1000,   20736, 32000,  33000, 41472,  5,
                                    41472, 124416, 65536, 131072, 1,     300000, 7};
    enum { N = sizeof sizes / sizeof *sizes };
    struct fixture *f = *state;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_buf items = S2S_BUF_INIT;
    struct s2s_dist_writer *w = NULL;
    float *data = s2s_xmalloc(300000 * sizeof *data), *back = s2s_xmalloc(300000 * sizeof *back);
    json_t *common = json_pack("{s:i}", "iteration", 1);
    assert_int_equal(s2s_dist_begin(f->root, 1, &err), 0);
    assert_int_equal(s2s_dist_open(&w, f->root, 1, 0, &err), 0);
    for (int t = 0; t < N; t++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", t);
        for (int64_t i = 0; i < sizes[t]; i++)
            data[i] = (float)(t * 1000000 + i);
        struct s2s_dist_chunk chunk = {
            .name = name, .dtype = S2S_F32, .n_dims = 1, .shape = &sizes[t]};
        assert_int_equal(s2s_dist_write_tensor(w, &chunk, data, &err), 0);
    }
    assert_int_equal(s2s_dist_close(w, &items, &err), 0);
    assert_int_equal(s2s_dist_commit(f->root, 1, &items, 1, common, &err), 0);
    struct s2s_ckpt *ckpt = NULL;
    assert_int_equal(s2s_ckpt_open(&ckpt, f->root, &err), 0);
    for (int t = 0; t < N; t++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", t);
        const struct s2s_ckpt_tensor *tensor = s2s_ckpt_find(ckpt, name);
        assert_non_null(tensor);
        if (s2s_ckpt_read(ckpt, tensor, (int64_t[]){0}, &sizes[t], back, &err) < 0)
            fail_msg("%s: %s", name, err.text);
        for (int64_t i = 0; i < sizes[t]; i++)
            if (back[i] != (float)(t * 1000000 + i))
                fail_msg("%s[%lld] is %g", name, (long long)i, back[i]);
    }
    s2s_ckpt_close(ckpt);
    json_decref(common);
    s2s_buf_release(&items);
    free(data);
    free(back);
}

static int to_buf(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    s2s_buf_add(ctx, bytes, len);
    return 0;
}

/* what ckpt_common_change makes of an archive with this pickle: its pickle as JSON, or the code */
static char *changed(const char *pickle, size_t len, const struct ckpt_common_change *how)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_buf had = S2S_BUF_INIT, out = S2S_BUF_INIT;
    struct s2s_zip_writer *writer = s2s_zip_writer_new(to_buf, &had);
    int64_t n;
    assert_int_equal(s2s_zip_add(writer, "archive/data.pkl", 64, pickle, len, &err), 0);
    assert_int_equal(s2s_zip_add(writer, "archive/version", 64, "3\n", 2, &err), 0);
    assert_int_equal(s2s_zip_finish(writer, &n, &err), 0);
    s2s_zip_writer_free(writer);
    char *text;
    struct s2s_zip_source source = {.fd = -1, .bytes = had.data, .len_bytes = (int64_t)had.len};
    int rc = ckpt_common_change(to_buf, &out, &source, how, &err);
    source = (struct s2s_zip_source){.fd = -1, .bytes = out.data, .len_bytes = (int64_t)out.len};
    if (rc == 0 && how->listed)
        rc = ckpt_common_check(&source, &err);
    if (rc < 0) {
        text = s2s_xasprintf("%s", s2s_errc_name(err.code));
    } else {
        struct ckpt_archive archive;
        assert_int_equal(ckpt_archive_open(&archive, &source, CKPT_OPEN, &err), 0);
        const struct ckpt_node *root = archive.pickle.root;
        /* JSON has no numbers for keys: the first key's kind is told before it */
        bool number = root->n && root->items[0]->kind == CKPT_INT;
        json_t *json =
            ckpt_node_json(root, &(struct ckpt_json_left){.nodes = 1000, .text_bytes = 1000});
        char *dump = json_dumps(json, JSON_COMPACT | JSON_SORT_KEYS);
        text = s2s_xasprintf("%s%s", number ? "number " : "", dump);
        free(dump);
        json_decref(json);
        ckpt_archive_release(&archive);
    }
    s2s_buf_release(&had);
    s2s_buf_release(&out);
    return text;
}

#define CHANGED(pickle, how, want) \
    do { \
        char *text = changed(pickle, sizeof(pickle) - 1, how); \
        assert_string_equal(text, want); \
        free(text); \
    } while (0)

static void a_common_state_leaves_its_list(void **state)
{
    const struct ckpt_common_change plain = {.listed = true}, none = {0};
    json_t *seven = json_integer(7);
    const struct ckpt_common_change set = {.listed = true, .key = "a", .value = seven};
    /* [{0: 1}] as torch.save writes it, without memo, and with a mark */
    CHANGED("\x80\x02]q\0}q\1K\0K\1sa.", &plain, "number {\"0\":1}");
    CHANGED("\x80\x02]}K\0K\1sa.", &plain, "number {\"0\":1}");
    CHANGED("\x80\x02](}K\0K\1se.", &plain, "number {\"0\":1}");
    CHANGED("\x80\x02]q\0}q\1K\0K\1sa.", &set, "number {\"0\":1,\"a\":7}");
    CHANGED("\x80\x02}K\0K\1s.", &none, "number {\"0\":1}");
    /* no list, no dict in it, a dict that needs its list */
    CHANGED("\x80\x02}K\0K\1s.", &plain, "UNSUPPORTED");
    CHANGED("\x80\x02]q\0K\1a.", &plain, "UNSUPPORTED");
    CHANGED("\x80\x02]q\0}K\0h\0sa.", &plain, "FORMAT");
    json_decref(seven);
}

static void an_optimizer_may_have_any_number_of_small_tensors(void **state)
{
    enum { N = 1500 };
    json_t *steps = json_array();
    for (int i = 0; i < N; i++)
        json_array_append_new(steps, json_pack("{s:f}", CKPT_SMALL_TENSOR "F32", i / 2.));
    json_t *common = json_pack("{s:o}", "optimizer", steps);
    struct s2s_buf file = S2S_BUF_INIT;
    ckpt_common_make(&file, common);
    const struct s2s_zip_source source = {
        .fd = -1, .bytes = file.data, .len_bytes = (int64_t)file.len};
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_zip zip;
    float last = 0;
    assert_int_equal(s2s_zip_open(&zip, &source, &err), 0);
    assert_int_equal(zip.n_members, N + 3);
    const struct s2s_zip_member *member = s2s_zip_find(&zip, "data/1499");
    assert_non_null(member);
    assert_int_equal(member->len_bytes, sizeof last);
    assert_int_equal(s2s_zip_read(&zip, &last, member->pos, sizeof last, &err), 0);
    assert_true(last == 749.5f);
    s2s_zip_release(&zip);
    s2s_buf_release(&file);
    json_decref(common);
}

/* a file may say any sizes, and strides are asked for before they are refused */
static void strides_of_absurd_sizes_do_not_overflow(void **state)
{
    const int64_t size[] = {0, INT64_MAX, INT64_MAX, 3};
    int64_t stride[4];
    ckpt_box_strides(stride, size, 4);
    assert_int_equal(stride[3], 1);
    assert_int_equal(stride[2], 3);
    assert_int_equal(stride[1], INT64_MAX);
    assert_int_equal(stride[0], INT64_MAX);
}

/* 100,000,000 bytes, as in the format's own reader */
static void no_safetensors_header_is_longer_than_readers_take(void **state)
{
    enum { NAME = 4000, FIT = 24600, N = 24900 };
    const int64_t shape[1] = {0};
    char *name = s2s_xcalloc(NAME + 1, 1);
    struct s2s_ckpt_plan plan = {.source = NULL};
    struct s2s_ckpt_write how = {.n_files = 0};
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_outfile *out;
    memset(name, 'n', NAME);
    for (int i = 0; i < N; i++) {
        name[snprintf(name, NAME, "%05d", i)] = 'n';
        s2s_ckpt_plan_add(&plan, name, S2S_U8, 1, shape);
    }
    assert_int_equal(s2s_outfile_open(&out, "/dev/null", &err), 0);
    assert_int_equal(s2s_ckpt_write_safetensors(&plan, 0, FIT, out, &how, NULL, &err), 0);
    assert_int_equal(s2s_ckpt_write_safetensors(&plan, 0, N, out, &how, NULL, &err),
                     S2S_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "of which no reader takes more than 100000000"));
    s2s_outfile_abort(out);
    s2s_ckpt_plan_release(&plan);
    free(name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(commit_makes_the_folder_and_the_tracker, make_root,
                                        remove_root),
        cmocka_unit_test_setup_teardown(a_check_sees_names_shapes_and_dtypes, make_root,
                                        remove_root),
        cmocka_unit_test_setup_teardown(commit_refuses_a_hole_and_leaves_nothing, make_root,
                                        remove_root),
        cmocka_unit_test_setup_teardown(begin_removes_what_killed_saves_left, make_root,
                                        remove_root),
        cmocka_unit_test_setup_teardown(prune_keeps_the_newest, make_root, remove_root),
        cmocka_unit_test_setup_teardown(prune_keeps_what_the_tracker_names, make_root, remove_root),
        cmocka_unit_test_setup_teardown(finish_refuses_lists_that_contradict, make_root,
                                        remove_root),
        cmocka_unit_test_setup_teardown(an_object_is_written_once, make_root, remove_root),
        cmocka_unit_test_setup_teardown(writer_refuses_more_or_less_than_its_box, make_root,
                                        remove_root),
        cmocka_unit_test_setup_teardown(tensors_of_every_size_come_back, make_root, remove_root),
        cmocka_unit_test(a_walk_meets_each_element_once),
        cmocka_unit_test(strides_of_absurd_sizes_do_not_overflow),
        cmocka_unit_test(a_common_state_leaves_its_list),
        cmocka_unit_test(no_safetensors_header_is_longer_than_readers_take),
        cmocka_unit_test(an_optimizer_may_have_any_number_of_small_tensors),
        cmocka_unit_test_setup_teardown(writer_refuses_a_box_outside_its_tensor, make_root,
                                        remove_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
